"""Encoded rows: the columns that blocks on disk and batches are made of."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from genrec_jax.data import splits


@dataclasses.dataclass(frozen=True)
class Bags:
  """N lists of rows of one table, one behind the other.

  Attributes:
    values: `[K]` int32.
    lengths: `[N]` int32, their sum is K.
  """

  values: np.ndarray
  lengths: np.ndarray

  def take(self, at: np.ndarray) -> 'Bags':
    """The lists number `at [M]`, in that order."""
    begin = self.begin[at]
    lengths = self.lengths[at]
    return Bags(self.values[splits.positions(begin, lengths)], lengths)

  @property
  def begin(self) -> np.ndarray:
    """`[N]` int64, where each list begins."""
    if '_begin' not in self.__dict__:  # the offsets of a window are used often
      ends = np.cumsum(self.lengths, dtype=np.int64)
      object.__setattr__(self, '_begin', ends - self.lengths)
    return self.__dict__['_begin']


@dataclasses.dataclass(frozen=True)
class Rows:
  """N encoded rows.

  Attributes:
    labels: `[N, L]` uint8, 0 or 1; L is 0 where there are none.
    ids: `[N, C]` int32.
    numbers: `[N, M]` float32.
    group: `[N]` int32, or None without groups.
    bags: name of the feature -> lists.
  """

  labels: np.ndarray
  ids: np.ndarray
  numbers: np.ndarray
  group: np.ndarray | None
  bags: Mapping[str, Bags]

  def __len__(self) -> int:
    return len(self.ids)

  def take(self, at: np.ndarray) -> 'Rows':
    """The rows number `at [M]`, in that order."""
    return Rows(
      # np.take copies whole rows; indexing goes number by number.
      np.take(self.labels, at, axis=0),
      np.take(self.ids, at, axis=0),
      np.take(self.numbers, at, axis=0),
      None if self.group is None else np.take(self.group, at),
      {name: bags.take(at) for name, bags in self.bags.items()},
    )

  def between(self, a: int, b: int) -> 'Rows':
    """The rows a .. b - 1, not copied."""

    def cut(bags):
      begin = int(bags.lengths[:a].sum())
      size = int(bags.lengths[a:b].sum())
      return Bags(bags.values[begin : begin + size], bags.lengths[a:b])

    return Rows(
      self.labels[a:b],
      self.ids[a:b],
      self.numbers[a:b],
      None if self.group is None else self.group[a:b],
      {name: cut(bags) for name, bags in self.bags.items()},
    )


def concatenate(parts: Sequence[Rows]) -> Rows:
  """The rows of all parts, one behind the other."""
  if len(parts) == 1:
    return parts[0]
  first = parts[0]
  return Rows(
    np.concatenate([p.labels for p in parts]),
    np.concatenate([p.ids for p in parts]),
    np.concatenate([p.numbers for p in parts]),
    None if first.group is None else np.concatenate([p.group for p in parts]),
    {
      name: Bags(
        np.concatenate([p.bags[name].values for p in parts]),
        np.concatenate([p.bags[name].lengths for p in parts]),
      )
      for name in first.bags
    },
  )


def joined(parts: Iterable[Rows], total: int) -> Rows:
  """As `concatenate`, for parts that are made one by one, `total` rows in all.

  Never holds more than the result and one part.
  """
  out, lists, done = None, {}, 0
  for part in parts:
    if out is None:
      out = {name: _like(column, total) for name, column in _plain(part)}
      lists = {name: ([], []) for name in part.bags}
    for name, column in _plain(part):
      out[name][done : done + len(part)] = column
    for name, bags in part.bags.items():
      lists[name][0].append(bags.values.copy())
      lists[name][1].append(bags.lengths.copy())
    done += len(part)
  if done != total or out is None:
    raise ValueError(f'{done} rows instead of {total}')
  bags = {
    name: Bags(np.concatenate(values), np.concatenate(lengths))
    for name, (values, lengths) in lists.items()
  }
  return Rows(**{'group': None, **out, 'bags': bags})


def _plain(rows: Rows) -> list[tuple[str, np.ndarray]]:
  names = ('labels', 'ids', 'numbers', 'group')
  found = [(name, getattr(rows, name)) for name in names]
  return [(name, column) for name, column in found if column is not None]


def _like(column: np.ndarray, size: int) -> np.ndarray:
  return np.empty((size, *column.shape[1:]), column.dtype)
