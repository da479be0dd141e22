"""Per-user event sequences in flat columns that are mapped, not loaded.

A directory of histories holds `offsets.npy [U+1]`, `items.npy [N]`, maybe
`times.npy [N]` and `ratings.npy [N]`, the vocabularies `user_ids.npy` and
`item_ids.npy`, and `meta.json`, which is written last.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from genrec_jax.data import vocab as vocab_lib

FORMAT = 1
DTYPES = {'items': np.int32, 'times': np.int64, 'ratings': np.float32}


@dataclasses.dataclass(frozen=True)
class Histories:
  """U users' events, each user's in order of (time, input order).

  Attributes:
    offsets: `[U + 1]` int64; user row u owns positions offsets[u] up to
      offsets[u + 1] of the columns.
    items: `[N]` int32 item indices, 1..V.
    times: `[N]` int64 seconds, or None when the log has no times.
    ratings: `[N]` float32, or None.
    users: ids of the users; row u has index u + 1.
    vocab: ids of the items.
    path: the directory, or None when in memory.
  """

  offsets: np.ndarray
  items: np.ndarray
  times: np.ndarray | None
  ratings: np.ndarray | None
  users: vocab_lib.Vocab
  vocab: vocab_lib.Vocab
  path: pathlib.Path | None = None

  def __len__(self) -> int:
    return len(self.offsets) - 1

  @property
  def has_times(self) -> bool:
    return self.times is not None

  @classmethod
  def open(cls, path: str | pathlib.Path) -> 'Histories':
    """Maps the columns of a directory that `convert` or `save` wrote."""
    path = pathlib.Path(path)
    meta = read_meta(path)
    columns = {}
    for name in ('items', 'times', 'ratings'):
      if name not in meta['columns']:
        columns[name] = None
        continue
      column = np.load(path / f'{name}.npy', mmap_mode='r')
      if column.shape != (meta['events'],) or column.dtype != DTYPES[name]:
        raise ValueError(
          f'{path}/{name}.npy: {column.dtype} {column.shape} instead of '
          f'{meta["events"]} events; remove the directory and convert again'
        )
      columns[name] = np.asarray(column)
    return cls(
      offsets=np.load(path / 'offsets.npy'),
      users=vocab_lib.Vocab.load(path / 'user_ids.npy'),
      vocab=vocab_lib.Vocab.load(path / 'item_ids.npy'),
      path=path,
      **columns,
    )


def read_meta(path: pathlib.Path) -> dict:
  """The `meta.json` of a directory of histories."""
  try:
    meta = json.loads((path / 'meta.json').read_text())
  except FileNotFoundError:
    raise FileNotFoundError(
      f'{path}: not a directory of converted histories (no meta.json)'
    ) from None
  except ValueError as e:
    raise ValueError(f'{path}/meta.json: damaged ({e})') from None
  if meta.get('format') != FORMAT:
    raise ValueError(
      f'{path}: histories of format {meta.get("format")}, this version reads '
      f'format {FORMAT}; convert the files again'
    )
  return meta


def grouped(
  user: np.ndarray, time: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Order of events by (user, time, input order), and where users start.

  Args:
    user: `[N]` user of each event.
    time: `[N]` its time; None keeps the input order within a user.

  Returns:
    `[N]` positions in the new order, and `[U + 1]` int64 offsets of the users
    that occur, in the order of their ids.
  """
  keys = (user,) if time is None else (time, user)
  order = np.lexsort(keys)  # stable
  ordered = user[order]
  starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
  ends = [len(user)] if len(user) else []
  return order, np.concatenate([[0], starts, ends]).astype(np.int64)


def from_arrays(
  user: Sequence,
  item: Sequence,
  time: Sequence | None = None,
  rating: Sequence | None = None,
  *,
  item_vocab: vocab_lib.Vocab | None = None,
  unknown: str = 'error',
) -> Histories:
  """Histories in memory from the columns of a log that fits into it.

  Args:
    user: `[N]` int or str ids; the users come out in the order of their ids.
    item: `[N]` int or str ids.
    time: `[N]` seconds, whole.
    rating: `[N]` numbers.
    item_vocab: the items; None takes those that occur, in order of their ids.
    unknown: what to do with an item that `item_vocab` lacks: 'error' or
      'skip'.

  Returns:
    The histories; users without events are absent.
  """
  user, item = np.asarray(user), np.asarray(item)
  time = None if time is None else np.asarray(time, np.int64)
  rating = None if rating is None else np.asarray(rating, np.float32)
  if item_vocab is None:
    item_vocab = vocab_lib.Vocab(np.unique(item))
  index = item_vocab.encode(item)
  if unknown not in ('error', 'skip'):
    raise ValueError(f"unknown must be 'error' or 'skip', not {unknown!r}")
  if not index.all():
    if unknown == 'error':
      raise ValueError(
        f'item {item[np.argmin(index)]} is not in the vocabulary of '
        f'{len(item_vocab)} items'
      )
    keep = index > 0
    user, index = user[keep], index[keep]
    time = None if time is None else time[keep]
    rating = None if rating is None else rating[keep]
  order, offsets = grouped(user, time)
  return Histories(
    offsets=offsets,
    items=index[order],
    times=None if time is None else time[order],
    ratings=None if rating is None else rating[order],
    users=vocab_lib.Vocab(user[order][offsets[:-1]]),
    vocab=item_vocab,
  )
