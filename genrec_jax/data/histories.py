"""Per-user event sequences in flat columns that are mapped, not loaded.

A directory of histories holds `offsets.npy [U+1]`, `items.npy [N]`, maybe
`times.npy [N]` and `ratings.npy [N]`, the vocabularies `user_ids.npy` and
`item_ids.npy`, `meta.json`, and the checksums of all of them. Extra columns are
`extra-0.npy [N]` and so on, with `extra-0-ids.npy` for one of categories; their
names stand in `meta.json`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from genrec_jax import sealed
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import fields, text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.quoting import quote

# Without extra columns a directory is what it always was. With them it has a
# number of its own, so that versions that know none do not ignore them.
FORMATS = (1, 2)
DTYPES = {'items': np.int32, 'times': np.int64, 'ratings': np.float32}


@dataclasses.dataclass(frozen=True)
class Histories:
  """U users' events, each user's in order of (full time, input order).

  Attributes:
    offsets: `[U + 1]` int64; user row u owns positions offsets[u] up to
      offsets[u + 1] of the columns.
    items: `[N]` int32 item indices, 1..V.
    times: `[N]` int64 seconds, or None when the log has no times.
    ratings: `[N]` float32, or None.
    users: ids of the users; row u has index u + 1.
    vocab: ids of the items.
    path: the directory, or None when in memory.
    extras: name of an extra column -> `[N]` float32, int32 or int64.
    extra_vocabs: name of an extra column of categories -> their vocabulary;
      the column holds indices 1..V of it, 0 for a value it does not know.
    skipped_unknown: events that were left out when they were converted, as
      their items are not in a vocabulary that was given.
  """

  offsets: np.ndarray
  items: np.ndarray
  times: np.ndarray | None
  ratings: np.ndarray | None
  users: vocab_lib.Vocab
  vocab: vocab_lib.Vocab
  path: pathlib.Path | None = None
  extras: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  extra_vocabs: Mapping[str, vocab_lib.Vocab] = dataclasses.field(
    default_factory=dict
  )
  skipped_unknown: int = 0

  def __len__(self) -> int:
    return len(self.offsets) - 1

  @property
  def has_times(self) -> bool:
    return self.times is not None

  @classmethod
  def open(cls, path: str | pathlib.Path) -> 'Histories':
    """Maps the columns of a directory that `convert` wrote, all of it checked.

    Raises:
      FileNotFoundError: there are no histories, or not all their files.
      sealed.DamagedError: a file is not what was written.
    """
    remedy = 'remove the directory and convert the files again'
    return cls.from_files(sealed.SealedDirectory(path, remedy))

  @classmethod
  def from_files(cls, files: sealed.SealedDirectory) -> 'Histories':
    """Like `open`, where a damaged directory has another remedy."""
    meta = read_meta(files)
    users, vocab = (_read_vocab(files, f'{x}_ids') for x in ('user', 'item'))
    columns = dict.fromkeys(DTYPES)  # name -> None, where there are none
    shape = (meta['events'],)
    for name in meta['columns']:
      columns[name] = files.map_array(f'{name}.npy', DTYPES[name], shape)
    _check_range(files, 'items', columns['items'], 1, len(vocab))
    extras, extra_vocabs = {}, {}
    for entry in meta.get('extras', ()):
      name, file = entry['name'], entry['file']
      dtype = extras_lib.KINDS[entry['kind']]
      extras[name] = files.map_array(f'{file}.npy', dtype, shape)
      if 'vocabulary' in entry:
        extra_vocabs[name] = _read_vocab(files, entry['vocabulary'])
        _check_range(files, file, extras[name], 0, len(extra_vocabs[name]))
    offsets = files.read_array('offsets.npy', np.int64, (len(users) + 1,))
    if offsets[0] or offsets[-1] != shape[0] or (np.diff(offsets) < 0).any():
      raise files.damaged(
        'offsets.npy', f'they do not ascend from 0 to {shape[0]:,} events'
      )
    return cls(
      offsets=offsets,
      users=users,
      vocab=vocab,
      path=files.path,
      extras=extras,
      extra_vocabs=extra_vocabs,
      skipped_unknown=meta.get('skipped_unknown_item', 0),
      **columns,
    )

  def take_extras(self, at: np.ndarray) -> dict[str, np.ndarray]:
    """The extra columns at positions `at [T]` of the events.

    >>> h = from_arrays([1, 1], [8, 9], extras={'stars': np.int32([4, 5])})
    >>> h.take_extras(np.array([1, 0, 1]))
    {'stars': array([5, 4, 5], dtype=int32)}
    """
    return {name: column[at] for name, column in self.extras.items()}


def _read_vocab(files: sealed.SealedDirectory, name: str) -> vocab_lib.Vocab:
  ids = files.read_array(f'{name}.npy')
  with files.explain_damage(f'{name}.npy'):
    return vocab_lib.Vocab(ids)


def _check_range(files, name: str, indices: np.ndarray, first, last) -> None:
  """Refuses indices that a table does not have: JAX would clamp them."""
  if not len(indices):
    return
  low, high = int(indices.min()), int(indices.max())
  if low < first or high > last:
    raise files.damaged(
      f'{name}.npy', f'indices {low:,} to {high:,}, beyond {first} to {last:,}'
    )


def read_meta(files: sealed.SealedDirectory) -> dict:
  """The `meta.json` of a directory of histories."""
  if not files.is_sealed and not (files.path / 'meta.json').exists():
    raise FileNotFoundError(
      f'{files.path}: not a directory of converted histories (no meta.json)'
    )
  meta = files.read_json('meta.json', format=int)
  if meta['format'] not in FORMATS:
    raise ValueError(
      f'{files.path}: histories of format {meta["format"]}, this version reads '
      f'{" and ".join(map(str, FORMATS))}; convert the files again'
    )
  with files.explain_damage('meta.json'):
    sealed.check_keys(meta, events=int, columns=list)
    if not {'items'} <= set(meta['columns']) <= set(DTYPES):
      raise ValueError(f'its columns are {meta["columns"]}')
    for entry in meta.get('extras', ()):
      if not (
        entry['kind'] in extras_lib.KINDS
        and isinstance(entry['name'], str)
        and str(entry['file']).startswith('extra-')
      ):
        raise ValueError(f'its extra columns are {meta["extras"]}')
  return meta


def group_events(
  user: np.ndarray,
  time: np.ndarray | None,
  fraction: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Order of events by (user, time, input order), and where users start.

  Args:
    user: `[N]` user of each event.
    time: `[N]` its second; None keeps the input order within a user.
    fraction: `[N]` what follows within the second; None where nothing does.

  Returns:
    `[N]` positions in the new order, and `[U + 1]` int64 offsets of the users
    that occur, in the order of their ids.
  """
  keys = (user,) if time is None else (time, user)
  if fraction is not None and fraction.any():
    keys = (fraction, *keys)
  order = np.lexsort(keys)  # stable
  ordered = user[order]
  starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
  ends = [len(user)] if len(user) else []
  return order, np.concatenate([[0], starts, ends]).astype(np.int64)


def encode_category(
  name: str,
  vocab: vocab_lib.Vocab,
  values: np.ndarray,
  unknown: str,
  where: Callable[[int], str] = 'event {}'.format,
) -> np.ndarray:
  """Indices `[N]` int32 of an extra column of categories.

  Args:
    name: of the column.
    vocab: its vocabulary.
    values: `[N]` texts.
    unknown: a value that `vocab` lacks is an 'error', or 'skip' makes it 0.
    where: names the origin of event i for messages.
  """
  index = vocab.encode(values)
  if unknown == 'error' and not index.all():
    bad = int(np.argmin(index))
    raise ValueError(
      f'{where(bad)}: {name} {quote(str(values[bad]))} is not in its '
      f"vocabulary of {len(vocab)} values; unknown_items='skip' reads such "
      'values as 0'
    )
  return index


def _in_memory(
  extras: Mapping[str, np.ndarray],
  given: Mapping[str, vocab_lib.Vocab],
  unknown: str,
) -> tuple[dict[str, np.ndarray], dict[str, vocab_lib.Vocab]]:
  """Extra columns as they are stored, and the vocabularies of categories."""
  out, vocabs = {}, {}
  for name, values in extras.items():
    if text_arrays.is_text(values):
      if name in given:
        vocabs[name] = given[name]
      else:
        vocabs[name] = vocab_lib.Vocab(np.unique(values))
      values = encode_category(name, vocabs[name], values, unknown)
    elif values.dtype.kind == 'f':
      values = values.astype(np.float32)
      if not np.isfinite(values).all():
        bad = int(np.argmin(np.isfinite(values)))
        raise ValueError(f'event {bad}: {name} is not a finite number')
    elif values.dtype not in (np.int32, np.int64):
      raise ValueError(
        f'extra {name!r} is of type {values.dtype}; give int32, int64, floats '
        'or text'
      )
    out[name] = values
  return out, vocabs


def from_arrays(
  user: Sequence,
  item: Sequence,
  time: Sequence | fields.Times | None = None,
  rating: Sequence | None = None,
  *,
  item_vocab: vocab_lib.Vocab | None = None,
  unknown: str = 'error',
  extras: Mapping[str, Sequence] | None = None,
  extra_vocabs: Mapping[str, vocab_lib.Vocab] | None = None,
) -> Histories:
  """Histories in memory from the columns of a log that fits into it.

  Args:
    user: `[N]` int or str ids; the users come out in the order of their ids.
    item: `[N]` int or str ids.
    time: `[N]` seconds; fractions sort the events and are not kept.
    rating: `[N]` numbers.
    item_vocab: the items; None takes those that occur, in order of their ids.
    unknown: what to do with an item that `item_vocab` lacks: 'error' or
      'skip'.
    extras: name -> `[N]` int32, int64, floats or, for a category, text.
    extra_vocabs: vocabularies of categories among them, see
      `convert.convert_log`.

  Returns:
    The histories; users without events are absent.
  """
  user, item = np.asarray(user), np.asarray(item)
  time, fraction = (None, None) if time is None else fields.from_seconds(time)
  rating = None if rating is None else np.asarray(rating, np.float32)
  if item_vocab is None:
    item_vocab = vocab_lib.Vocab(np.unique(item))
  index = item_vocab.encode(item)
  if unknown not in ('error', 'skip'):
    raise ValueError(f"unknown must be 'error' or 'skip', not {unknown!r}")
  beside = {name: np.asarray(v) for name, v in (extras or {}).items()}
  if not index.all():
    if unknown == 'error':
      raise ValueError(
        f'item {item[np.argmin(index)]} is not in the vocabulary of '
        f'{len(item_vocab)} items'
      )
    keep = index > 0
    user, index = user[keep], index[keep]
    time = None if time is None else time[keep]
    fraction = None if fraction is None else fraction[keep]
    rating = None if rating is None else rating[keep]
    beside = {name: column[keep] for name, column in beside.items()}
  beside, vocabs = _in_memory(beside, extra_vocabs or {}, unknown)
  order, offsets = group_events(user, time, fraction)
  return Histories(
    offsets=offsets,
    items=index[order],
    times=None if time is None else time[order],
    ratings=None if rating is None else rating[order],
    users=vocab_lib.Vocab(user[order][offsets[:-1]]),
    vocab=item_vocab,
    extras={name: column[order] for name, column in beside.items()},
    extra_vocabs=vocabs,
  )
