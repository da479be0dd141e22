"""Encoded rows: the columns that blocks on disk and batches are made of."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from genrec_jax.data.ranges import expand_ranges


@dataclasses.dataclass(frozen=True)
class Bags:
  """N lists of values of one feature, one behind the other.

  Attributes:
    values: `[K]` int32 rows of the table; float32 of a list of numbers.
    lengths: `[N]` int32, their sum is K.
    weights: `[K]` float32 of the values, or None where all are 1.
  """

  values: np.ndarray
  lengths: np.ndarray
  weights: np.ndarray | None = None

  def take(self, at: np.ndarray) -> 'Bags':
    """The lists number `at [M]`, in that order."""
    begin = self.begin[at]
    lengths = self.lengths[at]
    return self._pick(expand_ranges(begin, lengths), lengths)

  def slice_lists(self, a: int, b: int) -> 'Bags':
    """The lists a .. b - 1, not copied."""
    begin = int(self.lengths[:a].sum())
    end = begin + int(self.lengths[a:b].sum())
    return self._pick(slice(begin, end), self.lengths[a:b])

  def _pick(self, at: np.ndarray | slice, lengths: np.ndarray) -> 'Bags':
    weights = None if self.weights is None else self.weights[at]
    return Bags(self.values[at], lengths, weights)

  @property
  def begin(self) -> np.ndarray:
    """`[N]` int64, where each list begins."""
    if '_begin' not in self.__dict__:  # the offsets of a window are used often
      ends = np.cumsum(self.lengths, dtype=np.int64)
      object.__setattr__(self, '_begin', ends - self.lengths)
    return self.__dict__['_begin']


@dataclasses.dataclass(frozen=True)
class ColumnNames:
  """What the columns of encoded rows are called.

  Attributes:
    labels: those of `Rows.labels`.
    ids: those of `Rows.ids`, categorical features.
    numbers: those of `Rows.numbers`, numeric features.
    histories: (name, names of its columns among `Rows.bags`) of each history,
      lists of the same lengths in every row.
  """

  labels: tuple[str, ...]
  ids: tuple[str, ...] = ()
  numbers: tuple[str, ...] = ()
  histories: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class Rows:
  """N encoded rows.

  Attributes:
    labels: `[N, L]` uint8, 0 or 1; float32 where one of them is any number; L
      is 0 where there are none.
    ids: `[N, C]` int32.
    numbers: `[N, M]` float32.
    group: `[N]` int32, or None without groups.
    bags: name of the feature -> lists.
    time: `[N]` int64, or None without times.
    example_id: `[N]` int64, or None without ids.
    label_weights: `[N, L]` float32, or None where all are 1.
    extras: name of an extra column -> `[N]` float32, int32 or int64.
    weight: `[N]` float32, or None where all are 1.
  """

  labels: np.ndarray
  ids: np.ndarray
  numbers: np.ndarray
  group: np.ndarray | None
  bags: Mapping[str, Bags]
  time: np.ndarray | None = None
  example_id: np.ndarray | None = None
  label_weights: np.ndarray | None = None
  extras: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  weight: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.ids)

  def take(self, at: np.ndarray) -> 'Rows':
    """The rows number `at [M]`, in that order."""
    # np.take copies whole rows; indexing goes number by number.
    return self._map_columns(
      lambda column: np.take(column, at, axis=0), lambda bags: bags.take(at)
    )

  def slice_rows(self, a: int, b: int) -> 'Rows':
    """The rows a .. b - 1, not copied."""
    return self._map_columns(
      lambda column: column[a:b], lambda bags: bags.slice_lists(a, b)
    )

  def _map_columns(
    self,
    of_column: Callable[[np.ndarray], np.ndarray],
    of_bags: Callable[[Bags], Bags],
  ) -> 'Rows':
    columns = {name: of_column(c) for name, c in columns_of(self).items()}
    bags = {name: of_bags(bags) for name, bags in self.bags.items()}
    return from_columns(columns, bags)


_EXTRA = 'extra:'  # of the names of extra columns among all columns
_PLAIN = tuple(
  f.name for f in dataclasses.fields(Rows) if f.name not in ('bags', 'extras')
)


def columns_of(rows: Rows) -> dict[str, np.ndarray]:
  """Every column of one entry a row, by names of which none is another's."""
  columns = {name: getattr(rows, name) for name in _PLAIN}
  columns = {name: c for name, c in columns.items() if c is not None}
  return columns | {_EXTRA + name: c for name, c in rows.extras.items()}


def from_columns(
  columns: Mapping[str, np.ndarray], bags: Mapping[str, Bags]
) -> Rows:
  """The inverse of `columns_of`; columns of other names are left out."""
  plain = {name: columns.get(name) for name in _PLAIN}
  extras = {
    name.removeprefix(_EXTRA): column
    for name, column in columns.items()
    if name.startswith(_EXTRA)
  }
  return Rows(**plain, bags=bags, extras=extras)


def columns_of_bags(bags: Bags) -> dict[str, np.ndarray]:
  """The arrays of some lists, by their names in `Bags`."""
  columns = {'lengths': bags.lengths, 'values': bags.values}
  return columns | ({} if bags.weights is None else {'weights': bags.weights})


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
  """The rows of all parts, one behind the other."""
  if len(parts) == 1:
    return parts[0]
  return concatenate_stream(parts, sum(map(len, parts)))


def concatenate_stream(parts: Iterable[Rows], total: int) -> Rows:
  """As `concatenate_rows`, for rows made piece by piece, `total` in all.

  Never holds more than the result and one part.
  """
  out, lists, done = None, {}, 0
  for part in parts:
    columns = columns_of(part)
    if out is None:
      out = {
        name: _empty_like(column, total) for name, column in columns.items()
      }
      lists = {
        name: {key: [] for key in columns_of_bags(bags)}
        for name, bags in part.bags.items()
      }
    for name, column in columns.items():
      out[name][done : done + len(part)] = column
    for name, bags in part.bags.items():
      for key, column in columns_of_bags(bags).items():
        lists[name][key].append(column.copy())
    done += len(part)
  if done != total or out is None:
    raise ValueError(f'{done} rows instead of {total}')
  bags = {
    name: Bags(**{key: np.concatenate(x) for key, x in columns.items()})
    for name, columns in lists.items()
  }
  return from_columns(out, bags)


def _empty_like(column: np.ndarray, size: int) -> np.ndarray:
  return np.empty((size, *column.shape[1:]), column.dtype)
