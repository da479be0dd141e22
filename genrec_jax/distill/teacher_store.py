"""The scores of a teacher by example id, which only ever become more.

    DIRECTORY/
      manifest.json               teacher, labels, fingerprint; checksums
      part-window-000012.parquet  what was appended as 'window-000012'
      merged-000003.parquet       parts that `compact` has merged

The columns of a part are example_id, time, one float32 a label, snapshot_step
and snapshot_window: the published weights that gave the scores, by their step
and the last window that they were trained on. Rows are in order of (time, id).

Parts come and go by commits of `part_manifest`, so that a store that was killed
anywhere opens with each id exactly once. Ids are indexed in memory, 16 bytes
each; values are read by part when they are asked for.
"""

import collections
import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from genrec_jax.distill import part_manifest, score_parts
from genrec_jax.distill.score_parts import Scores

KIND = 'scores of a teacher'
_KEY = re.compile(r'[A-Za-z0-9][\w.-]*')
_CACHED_PARTS = 4  # a batch of a stream reads one or two
_HEADER = ('teacher', 'labels', 'fingerprint')


class Lookup(NamedTuple):
  """What a store knows of some ids.

  Attributes:
    values: `[N, L]` float32; NaN where the id is not found.
    found: `[N]` bool.
    snapshot_step: `[N]` int64; -1 where the id is not found.
    snapshot_window: `[N]` int64, likewise.
  """

  values: np.ndarray
  found: np.ndarray
  snapshot_step: np.ndarray
  snapshot_window: np.ndarray


class TeacherStore:
  """A store that is open, to read and to append.

  Several processes may read what one of them appends; `refresh` shows it to
  them.

  >>> import tempfile
  >>> store = TeacherStore.open(
  ...   tempfile.mkdtemp(), teacher='big', labels=['click'], fingerprint='a1'
  ... )
  >>> scores = Scores(
  ...   example_id=[7, 5], time=[60, 61], values=[[0.5], [0.25]],
  ...   snapshot_step=100, snapshot_window=0,
  ... )
  >>> store.append('window-000001', scores)
  True
  >>> values, found, *_ = store.lookup(np.array([5, 6]))
  >>> values.tolist(), found.tolist()
  ([[0.25], [nan]], [True, False])
  """

  def __init__(self, parts: part_manifest.PartDirectory):
    """Of a directory that is open; users call `open` or `open_existing`."""
    self._parts = parts
    self._names: list[str] = []  # by number; those of former parts stay
    self._ids = np.zeros(0, np.int64)  # ascending
    self._number = np.zeros(0, np.int32)  # of each id, which part
    self._row = np.zeros(0, np.int32)  # and which of its rows
    self._cache: collections.OrderedDict[str, Scores] = (
      collections.OrderedDict()
    )
    self._index()

  @classmethod
  def open(
    cls,
    directory: str | os.PathLike,
    *,
    teacher: str,
    labels: Sequence[str],
    fingerprint: str,
  ) -> 'TeacherStore':
    """Opens the store of a teacher, which is made if there is none.

    Args:
      directory: of the store.
      teacher: its name.
      labels: what its scores are of, in their order.
      fingerprint: of the run that trains it; another run is another teacher.

    Raises:
      ValueError: the store is of another teacher, or no store.
      DamagedError: a file of it is not as it was written.
    """
    score_parts.check_labels(labels)
    header = dict(teacher=teacher, labels=list(labels), fingerprint=fingerprint)
    parts = part_manifest.PartDirectory(
      directory, KIND, header | dict(appended={}, merges=0)
    )
    for key in _HEADER:
      if parts.facts[key] != header[key]:
        raise ValueError(
          f'{directory} holds scores of the teacher '
          f'{parts.facts["teacher"]!r}, of which {key} is '
          f'{parts.facts[key]!r}, and not {header[key]!r}: a store '
          'is of one teacher; give another directory'
        )
    parts.recover()
    return cls(parts)

  @classmethod
  def open_existing(cls, directory: str | os.PathLike) -> 'TeacherStore':
    """Opens a store that is there, whoever its teacher is.

    Nothing is written unless something is appended or merged.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no store.
      DamagedError: a file of it is not as it was written.
    """
    return cls(part_manifest.PartDirectory(directory, KIND))

  @property
  def teacher(self) -> str:
    return self._parts.facts['teacher']

  @property
  def labels(self) -> tuple[str, ...]:
    return tuple(self._parts.facts['labels'])

  @property
  def fingerprint(self) -> str:
    return self._parts.facts['fingerprint']

  @property
  def keys(self) -> tuple[str, ...]:
    """What was appended, by the names that `append` was given, sorted."""
    return tuple(self._parts.facts['appended'])

  def __len__(self) -> int:
    return len(self._ids)

  def append(self, name: str, scores: Scores) -> bool:
    """Adds scores under a name; they are on the disk when it returns.

    The same again is nothing new: a service that was killed may append once
    more what it does not know to be there.

    Args:
      name: what these scores are, as in 'window-000012'.
      scores: of examples that the store does not have yet.

    Returns:
      Whether they are new.

    Raises:
      ValueError: the store has other scores under this name, or has an example
        under another name; or the scores are none.
    """
    if not _KEY.fullmatch(name):
      raise ValueError(
        f'{name!r} is no name for scores: give letters, digits, _, - and .'
      )
    scores = score_parts.normalise(scores, self.labels, name)
    digest = _compute_digest(scores)
    facts = self._parts.facts
    former = facts['appended'].get(name)
    if former is not None:
      if former['digest'] != digest:
        raise ValueError(
          f'{self._parts.path} has other scores of {name!r}: what was appended '
          'does not change; give these another name'
        )
      return False
    self._refuse_known(name, scores.example_id)
    facts['appended'] = facts['appended'] | {
      name: dict(rows=len(scores), digest=digest)
    }
    file = f'part-{name}.parquet'
    self._commit({file: (scores, [name])}, facts, [])
    return True

  def lookup(self, ids: np.ndarray) -> Lookup:
    """The scores of examples.

    Args:
      ids: `[N]` int64, in any order.

    Raises:
      DamagedError: a part is not as it was written.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in 'iu':
      raise ValueError(
        f'example ids are [N] whole numbers, not {ids.dtype} {list(ids.shape)}'
      )
    try:
      return self._look_up(ids.astype(np.int64))
    except FileNotFoundError:  # another process has merged the part
      if not self.refresh():
        raise
      return self._look_up(ids.astype(np.int64))

  def refresh(self) -> bool:
    """Reads what others have appended; says whether there was something."""
    changed = self._parts.refresh()
    if changed:
      self._index()
    return changed

  def iterate(self) -> Iterator[Scores]:
    """All scores in order of (time, id), in pieces.

    Memory holds the parts whose times overlap. If another process merges
    parts meanwhile, they are missing to this one: begin again then.
    """
    notes = {x: y for x, y in self._parts.notes.items() if y['rows']}
    waiting = None
    for name in sorted(notes, key=lambda x: (notes[x]['first'], x)):
      if waiting is not None:
        ready = int(np.searchsorted(waiting.time, notes[name]['first']))
        if ready:
          yield waiting.take(slice(0, ready))
          waiting = waiting.take(slice(ready, None))
      part = self._read(name)
      waiting = part if waiting is None else score_parts.merge([waiting, part])
    if waiting is not None:
      yield waiting

  def compact(self, rows: int = 1 << 20) -> int:
    """Merges parts that are neighbours in time.

    Args:
      rows: most rows of a merged part; what has more than half as many stays
        as it is.

    Returns:
      How many parts there are less.
    """
    if rows < 1:
      raise ValueError(f'rows is {rows}: give the most rows of a merged part')
    fewer = 0
    for names in _group_small(self._parts.notes, rows):
      merged = score_parts.merge([self._read(name) for name in names])
      facts = self._parts.facts
      facts['merges'] += 1
      keys = [x for name in names for x in self._parts.notes[name]['keys']]
      file = f'merged-{facts["merges"]:06d}.parquet'
      self._commit({file: (merged, keys)}, facts, names)
      fewer += len(names) - 1
    return fewer

  def summary(self) -> dict[str, Any]:
    """What the store holds, as JSON."""
    facts, notes = self._parts.facts, self._parts.notes
    used = [x for x in notes.values() if x['rows']]
    return dict(
      teacher=facts['teacher'],
      labels=facts['labels'],
      fingerprint=facts['fingerprint'],
      examples=len(self),
      appended=len(facts['appended']),
      parts=len(notes),
      bytes=self._parts.count_bytes(),
      first_time=min((x['first'] for x in used), default=None),
      last_time=max((x['last'] for x in used), default=None),
    )

  def _commit(self, parts, facts, remove: list[str]) -> None:
    encoded = {}
    for file, (scores, keys) in parts.items():
      times = scores.time
      encoded[file] = part_manifest.Part(
        score_parts.encode(scores, self.labels),
        dict(
          keys=keys,
          rows=len(scores),
          first=int(times[0]) if len(times) else None,
          last=int(times[-1]) if len(times) else None,
        ),
      )
    self._parts.commit(encoded, facts, remove)
    self._drop(remove)
    self._add({file: scores.example_id for file, (scores, _) in parts.items()})

  def _index(self) -> None:
    """Brings the index of ids to what the manifest lists."""
    listed = self._parts.notes
    known = {self._names[number] for number in np.unique(self._number)}
    self._drop(known - set(listed))
    self._add(
      {
        name: score_parts.decode_ids(self._parts.read(name))
        for name in listed
        if name not in known
      }
    )
    twice = self._ids[1:][self._ids[1:] == self._ids[:-1]]
    if len(twice):
      raise ValueError(
        f'{self._parts.path} has the example {twice[0]} twice; it was not '
        'written by this program'
      )

  def _add(self, ids_of: dict[str, np.ndarray]) -> None:
    ids, numbers, rows = [self._ids], [self._number], [self._row]
    for name, ids_of_part in ids_of.items():
      ids.append(ids_of_part)
      numbers.append(np.full(len(ids_of_part), len(self._names), np.int32))
      rows.append(np.arange(len(ids_of_part), dtype=np.int32))
      self._names.append(name)
    ids = np.concatenate(ids)
    order = np.argsort(ids, kind='stable')
    self._ids = ids[order]
    self._number = np.concatenate(numbers)[order]
    self._row = np.concatenate(rows)[order]

  def _drop(self, names) -> None:
    gone = [i for i, name in enumerate(self._names) if name in set(names)]
    stays = ~np.isin(self._number, gone)
    self._ids, self._number = self._ids[stays], self._number[stays]
    self._row = self._row[stays]
    for name in names:
      self._cache.pop(name, None)

  def _find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place of each id in the index, and whether it is there at all."""
    if not len(self._ids):
      return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
    return at, self._ids[at] == ids

  def _refuse_known(self, name: str, ids: np.ndarray) -> None:
    at, found = self._find(ids)
    if found.any():
      part = self._names[self._number[at[found][0]]]
      keys = self._parts.notes[part]['keys']
      raise ValueError(
        f'{self._parts.path} has {int(found.sum()):,} examples of {name!r} '
        f'already, {ids[found][0]} in {part} (appended as {keys[0]!r}'
        f'{" or later" if len(keys) > 1 else ""}); an example has one score of '
        'a teacher'
      )

  def _look_up(self, ids: np.ndarray) -> Lookup:
    at, found = self._find(ids)
    values = np.full((len(ids), len(self.labels)), np.nan, np.float32)
    step = np.full(len(ids), -1, np.int64)
    window = np.full(len(ids), -1, np.int64)
    # The rows of one part behind those of another, so that each is read once.
    wanted = np.flatnonzero(found)
    wanted = wanted[np.argsort(self._number[at[wanted]], kind='stable')]
    numbers, first = np.unique(self._number[at[wanted]], return_index=True)
    ends = np.append(first, len(wanted))[1:]
    for number, begin, end in zip(numbers, first, ends, strict=True):
      rows = wanted[begin:end]
      part, row = self._read(self._names[number]), self._row[at[rows]]
      values[rows] = part.values[row]
      step[rows] = part.snapshot_step[row]
      window[rows] = part.snapshot_window[row]
    return Lookup(values, found, step, window)

  def _read(self, name: str) -> Scores:
    if name not in self._cache:
      content = self._parts.read(name)
      while len(self._cache) >= _CACHED_PARTS:
        self._cache.popitem(last=False)
      self._cache[name] = score_parts.decode(content, self.labels)
    self._cache.move_to_end(name)
    return self._cache[name]


def _compute_digest(scores: Scores) -> str:
  """Of what scores say, whatever file they are in."""
  digest = hashlib.sha256()
  for field in dataclasses.fields(scores):
    array = getattr(scores, field.name)
    digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder('<')))
  return digest.hexdigest()


def _group_small(notes: dict[str, dict], rows: int) -> list[list[str]]:
  """Parts that become one: neighbours in time, of so many rows together."""
  small = [x for x, y in notes.items() if 2 * y['rows'] <= rows]
  # Those without rows, which have no time, come first.
  small.sort(key=lambda x: (notes[x]['rows'] > 0, notes[x]['first'] or 0, x))
  groups, open_rows = [], 0
  for name in small:
    count = notes[name]['rows']
    if not groups or open_rows + count > rows:
      groups.append([])
      open_rows = 0
    groups[-1].append(name)
    open_rows += count
  return [group for group in groups if len(group) > 1]
