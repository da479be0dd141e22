"""Requests in a directory of columns that are mapped, not loaded.

    DIRECTORY/
      000-users.npy             what the data call the users
      001-events.offsets.npy    one file a column, see `RequestDataset.arrays`
      ...
      meta.json                 spec, sizes, fingerprint, and which file is what
      SEAL.json                 checksums of all of them

What a run needs to predict with is a directory of the same form with the users,
their context and the vocabularies alone.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from genrec_jax import sealed
from genrec_jax.data import scratch
from genrec_jax.data.requests import checks
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec

FORMAT = 1
_META = 'meta.json'
_REMEDY = 'remove the directory and make it again from the source files'
_VOCAB = 'vocab.'


@dataclasses.dataclass(frozen=True)
class RequestEncoding:
  """What turns requests into rows of tables, without events.

  Attributes:
    name: of the data, for people.
    spec: what requests hold.
    context: as in `RequestDataset`, of users; what else `spec` has of it
      belongs to requests.
    vocabs: as in `RequestDataset`.
    users: the users as the data name them; user row u is value number u.
    fingerprint: of the whole data.
  """

  name: str
  spec: RequestSpec
  context: Mapping[str, np.ndarray]
  vocabs: Mapping[str, Vocab]
  users: Vocab
  fingerprint: str


def save_requests(dataset: RequestDataset, path: str | os.PathLike) -> None:
  """Writes requests into a new directory, which appears whole or not at all.

  Args:
    dataset: is checked before.
    path: of the directory. One with the same data stays as it is.

  Raises:
    FileExistsError: the path holds something else.
    ValueError: see `checks.check_dataset`.
  """
  checks.check_dataset(dataset)
  path = pathlib.Path(path)
  try:
    with scratch.staged_directory(path) as work:
      _write_files(dataset, work, dataset.arrays())
  except FileExistsError:
    try:
      same = read_fingerprint(path) == dataset.fingerprint()
    except (FileNotFoundError, ValueError):
      same = False
    if not same:
      raise


def save_for_predicting(
  dataset: RequestDataset, path: str | os.PathLike
) -> None:
  """Writes what predicting needs; it takes the place of what is there."""
  wanted = {
    name: array
    for name, array in dataset.arrays().items()
    if _is_of_encoding(name)
  }
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  with scratch.replaced_directory(path) as work:
    work.mkdir()
    _write_files(dataset, work, wanted)


def open_requests(
  path: str | os.PathLike, remedy: str = _REMEDY
) -> RequestDataset:
  """Maps the columns that `save_requests` wrote, every file checked.

  Args:
    path: of the directory.
    remedy: what a user does about a damaged or missing file.

  Raises:
    FileNotFoundError: there are no requests, or not all their files.
    sealed.DamagedError: a file is not what was written.
  """
  files = sealed.SealedDirectory(path, remedy)
  meta = _read_meta(files)
  if not meta['splits']:
    raise ValueError(
      f'{files.path}: there are no events, as in what a training leaves to '
      'predict with; open the directory of the data'
    )
  columns = _Columns(files, meta)
  users = meta['users']
  sizes = {'offsets': users + 1}
  events = columns.read('events', checks.EVENT_DTYPES, sizes, meta['events'])
  columns.check_offsets('events', events['offsets'], meta['events'])
  splits = {}
  for name, (requests, candidates) in meta['splits'].items():
    sizes = {'offsets': requests + 1}
    of_request = ('user', 'end', 'time', 'step', 'context')
    sizes |= dict.fromkeys(of_request, requests)
    split = columns.read(name, checks.REQUEST_DTYPES, sizes, candidates)
    columns.check_offsets(name, split['offsets'], candidates)
    # A split of a spec without labels, or to be predicted, has none.
    splits[name] = Requests(**{'labels': {}, **split})
  known = _read_encoding(columns)
  dataset = RequestDataset(
    name=known.name,
    spec=known.spec,
    events=EventStore(**events),
    context=known.context,
    splits=splits,
    vocabs=known.vocabs,
    user_ids=known.users.ids,
  )
  # All bytes are those that were written, and so is what they were called.
  object.__setattr__(dataset, 'saved_fingerprint', known.fingerprint)
  return dataset


def open_for_predicting(
  path: str | os.PathLike, remedy: str = _REMEDY
) -> RequestEncoding:
  """Reads what predicting needs, of either kind of directory.

  Nothing else is opened or checked. The arguments are those of `open_requests`.
  """
  files = sealed.SealedDirectory(path, remedy)
  return _read_encoding(_Columns(files, _read_meta(files)))


def read_fingerprint(path: str | os.PathLike, remedy: str = _REMEDY) -> str:
  """The fingerprint of saved data, without reading them."""
  return _read_meta(sealed.SealedDirectory(path, remedy))['fingerprint']


def _is_of_encoding(name: str) -> bool:
  return name == 'users' or name.startswith(('context.', _VOCAB))


def _write_files(
  dataset: RequestDataset, work: pathlib.Path, arrays: dict[str, np.ndarray]
) -> None:
  has_events = 'events.offsets' in arrays
  files = {}
  for number, (name, array) in enumerate(arrays.items()):
    # Names of features may hold anything.
    readable = re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80]
    files[name] = f'{number:03d}-{readable}.npy'
    if name == 'users' or name.startswith(_VOCAB):
      Vocab(array).save(work / files[name])  # which packs texts
    else:
      np.save(work / files[name], array, allow_pickle=False)
  meta = {
    'format': FORMAT,
    'name': dataset.name,
    'fingerprint': dataset.fingerprint(),
    'spec': dataclasses.asdict(dataset.spec),
    'users': dataset.events.users,
    'events': len(dataset.events) if has_events else 0,
    'splits': {
      name: [len(split), split.candidates]
      for name, split in dataset.splits.items()
      if has_events
    },
    'files': files,
  }
  (work / _META).write_text(json.dumps(meta, indent=1))
  sealed.seal(work, _META)


def _read_meta(files: sealed.SealedDirectory) -> dict:
  if not files.is_sealed and not (files.path / _META).exists():
    raise FileNotFoundError(
      f'{files.path}: not a directory of saved requests (no {_META}); '
      f'{files.remedy}'
    )
  meta = files.read_json(_META, format=int)
  if meta['format'] != FORMAT:
    raise ValueError(
      f'{files.path}: requests of format {meta["format"]}, this version reads '
      f'format {FORMAT}; make them again from the source files'
    )
  with files.explain_damage(_META):
    sealed.check_keys(
      meta, name=str, fingerprint=str, spec=dict, users=int, events=int,
      splits=dict, files=dict,
    )  # fmt: skip
    meta['spec'] = _read_spec(meta['spec'])
  return meta


def _read_spec(body: dict) -> RequestSpec:
  return RequestSpec(
    **{
      **body,
      'items': tuple(FeatureSpec(**x) for x in body['items']),
      # Requests that were saved before there were any do not say so.
      'candidates': tuple(FeatureSpec(**x) for x in body.get('candidates', ())),
      'context': tuple(FeatureSpec(**x) for x in body['context']),
      'labels': tuple(LabelSpec(**x) for x in body['labels']),
      'actions': tuple((name, bit) for name, bit in body['actions']),
    }
  )


def _read_encoding(columns: '_Columns') -> RequestEncoding:
  meta = columns.meta
  context = columns.read_group('context.', checks.CONTEXT_DTYPE, meta['users'])
  vocabs = {
    name: columns.read_vocab(_VOCAB + name)
    for name in columns.list_keys(_VOCAB)
  }
  users = columns.read_vocab('users', meta['users'])
  return RequestEncoding(
    meta['name'], meta['spec'], context, vocabs, users, meta['fingerprint']
  )


@dataclasses.dataclass(frozen=True)
class _Columns:
  """The arrays of a directory by their names.

  Attributes:
    files: the directory.
    meta: its `meta.json`.
  """

  files: sealed.SealedDirectory
  meta: dict

  def list_keys(self, prefix: str) -> list[str]:
    """What follows a prefix in the names of arrays, in their order."""
    names = self.meta['files']
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix)]

  def map_array(self, name: str, dtype, size: int) -> np.ndarray:
    return self.files.map_array(self._find_file(name), dtype, (size,))

  def read_vocab(self, name: str, size: int | None = None) -> Vocab:
    file = self._find_file(name)
    ids = self.files.read_array(file)
    with self.files.explain_damage(file):
      vocab = Vocab(ids)
      if size not in (None, len(vocab)):
        raise ValueError(f'{len(vocab)} values instead of {size}')
      return vocab

  def read_group(self, prefix: str, dtype, size: int) -> dict[str, np.ndarray]:
    """The columns of a mapping, by name."""
    return {
      key: self.map_array(prefix + key, dtype, size)
      for key in self.list_keys(prefix)
    }

  def read(
    self, prefix: str, dtypes: Mapping, sizes: Mapping[str, int], size: int
  ) -> dict:
    """The fields of a record; `sizes` are of those that are not of `size`."""
    fields = {}
    for field, dtype in dtypes.items():
      count, name = sizes.get(field, size), f'{prefix}.{field}'
      if name in self.meta['files']:
        fields[field] = self.map_array(name, dtype, count)
      elif group := self.read_group(f'{name}.', dtype, count):
        fields[field] = group
    return fields

  def check_offsets(self, prefix: str, offsets: np.ndarray, size: int) -> None:
    if offsets[0] or offsets[-1] != size or (np.diff(offsets) < 0).any():
      raise self.files.damaged(
        self._find_file(f'{prefix}.offsets'),
        f'they do not ascend from 0 to {size:,}',
      )

  def _find_file(self, name: str) -> str:
    file = self.meta['files'].get(name)
    if not isinstance(file, str):
      raise self.files.damaged(_META, f'it names no file of {name}')
    return file
