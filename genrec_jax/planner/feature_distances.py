"""How far apart features are: by what a model learned, or by their values.

Both are similarities from 0 to 1 of every pair, estimated from samples:

- `measure_alignment`: the mean of |cos| between the vectors that two features
  have in the same example. A model whose features are multiplied aligns the
  vectors of those that interact.
- `measure_cooccurrence`: Cramer's V of the values themselves, which needs no
  model. It sees which features tell something about each other; with the label
  as a condition, also those that say something about it together.

What says nothing is not guessed: a feature with few values, or a pair that no
sample has, gets the mean similarity, and a note says so.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

DISTANCES = {'coherent': '1 - similarity', 'diverse': 'similarity'}
FEW_VALUES = 3  # features with so many at most say nothing by their cosines
MOST_CODES = 64  # values told apart by `measure_cooccurrence`
_CHUNK = 1024  # samples at a time: `[1024, F, F]` cosines


@dataclasses.dataclass(frozen=True)
class Similarity:
  """What was measured of every pair of features.

  Attributes:
    matrix: `[F, F]`, symmetric, from 0 to 1, with ones on the diagonal.
    samples: examples that were looked at.
    notes: sentences about what could not be measured.
  """

  matrix: np.ndarray
  samples: int
  notes: tuple[str, ...] = ()

  def to_distances(self, kind: str = 'coherent') -> np.ndarray:
    """`[F, F]` distances, zero on the diagonal.

    Args:
      kind: 'coherent' keeps similar features near each other, 'diverse' apart.
    """
    if kind not in DISTANCES:
      raise ValueError(
        f'the distance is {kind!r}, must be one of {", ".join(DISTANCES)}'
      )
    out = 1 - self.matrix if kind == 'coherent' else self.matrix.copy()
    np.fill_diagonal(out, 0.0)
    return out

  def scale(self) -> 'Similarity':
    """As a share of the largest similarity of two features.

    Where all are small, all distances are nearly 1, and points that keep them
    show that and nothing else.

    >>> Similarity(np.array([[1, 0.02], [0.02, 1]]), 9).scale().matrix.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    others = self.matrix[~np.eye(len(self.matrix), dtype=bool)]
    if not others.any():
      return self
    matrix = self.matrix / others.max()
    np.fill_diagonal(matrix, 1.0)
    return dataclasses.replace(self, matrix=matrix)


def measure_alignment(
  vectors: Mapping[str, np.ndarray],
  present: Mapping[str, np.ndarray] | None = None,
  values: Mapping[str, int] | None = None,
) -> Similarity:
  """The mean of |cos| between the vectors of every two features.

  >>> x = np.array([[1.0, 0.0], [0.0, 2.0]])
  >>> measure_alignment({'a': x, 'b': -x, 'c': x[::-1]}).matrix.tolist()
  [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

  Args:
    vectors: feature -> `[N, D]`, what a model has for it in each sample.
    present: feature -> `[N]`, whether the sample has a value; None for always.
    values: feature -> how many values it has; None does not look at it.

  Raises:
    ValueError: the vectors differ in their width or number.
  """
  names = list(vectors)
  _check_widths(vectors)
  stacked = np.stack([np.asarray(vectors[n], np.float32) for n in names], 1)
  norms = np.linalg.norm(stacked, axis=2, keepdims=True)
  there = norms[..., 0] > 0  # a row of zeros has no direction
  for i, name in enumerate(names):
    if present is not None:
      there[:, i] &= np.asarray(present[name], bool)
  units = stacked / np.where(norms > 0, norms, 1)
  units[~there] = 0.0
  sums = np.zeros((len(names), len(names)))
  for start in range(0, len(units), _CHUNK):
    chunk = units[start : start + _CHUNK]
    cosines = np.abs(chunk @ chunk.transpose(0, 2, 1))
    sums += cosines.sum(axis=0, dtype=np.float64)
  counts = there.T.astype(np.float64) @ there
  few = [n for n in names if values is not None and values[n] <= FEW_VALUES]
  return _fill_unknown(names, sums, counts, few, len(units))


def _check_widths(vectors: Mapping[str, np.ndarray]) -> None:
  if not vectors:
    raise ValueError('there are no features with a table')
  by_width = {}
  for name, array in vectors.items():
    by_width.setdefault(np.shape(array)[1], name)
  if len(by_width) > 1:
    (a, first), (b, other) = list(by_width.items())[:2]
    raise ValueError(
      f'the rows of {first!r} have {a} numbers and those of {other!r} {b}: '
      'cosines need one width for all features; cooccurrence needs none'
    )


def _fill_unknown(
  names: Sequence[str],
  sums: np.ndarray,
  counts: np.ndarray,
  few: Sequence[str],
  samples: int,
) -> Similarity:
  """Means of pairs, and the mean of all means where there is none."""
  known = counts > 0
  unused = np.isin(names, few)
  known[unused] = known[:, unused] = False
  np.fill_diagonal(known, False)
  means = np.divide(sums, counts, out=np.zeros_like(sums), where=known)
  usual = means[known].mean() if known.any() else 0.5
  matrix = np.clip(np.where(known, means, usual), 0.0, 1.0)
  matrix = (matrix + matrix.T) / 2
  np.fill_diagonal(matrix, 1.0)
  notes = []
  if few:
    notes.append(
      f'{", ".join(few)}: {FEW_VALUES} values or fewer, whose cosines say '
      f'nothing; the mean similarity {usual:.2f} stands for them'
    )
  pairs = [
    f'{names[i]} and {names[j]}'
    for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
    if not (known[i, j] or unused[i] or unused[j])
  ]
  if pairs:
    more = f' and {len(pairs) - 3} more pairs' if len(pairs) > 3 else ''
    notes.append(
      f'{"; ".join(pairs[:3])}{more}: never in one sample; the mean similarity '
      f'{usual:.2f} stands for them'
    )
  return Similarity(matrix, samples, tuple(notes))


def measure_cooccurrence(
  codes: Mapping[str, np.ndarray],
  present: Mapping[str, np.ndarray] | None = None,
  strata: np.ndarray | None = None,
) -> Similarity:
  """Cramer's V of the values of every two features, without its bias.

  V would be above zero for features that have nothing to do with each other,
  the more so the more values they have. W. Bergsma (2013), "A bias-correction
  for Cramer's V and Tschuprow's T", takes off what chance alone would give.

  >>> x = np.arange(400) % 4
  >>> v = measure_cooccurrence({'a': x, 'b': 3 - x, 'c': np.arange(400) // 100})
  >>> v.matrix.round(6).tolist()
  [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

  Args:
    codes: feature -> `[N]` whole numbers, its value in each sample. All but the
      `MOST_CODES` most frequent count as one.
    present: feature -> `[N]`, whether the sample has a value; None for always.
    strata: `[N]` whole numbers: V is measured among the samples of each, and
      the squares are averaged. With labels, it finds what is related given the
      label.
  """
  if not codes:
    raise ValueError('there are no features with a table')
  names = list(codes)
  folded = [fold_codes(np.asarray(codes[name])) for name in names]
  samples = len(folded[0])
  groups = np.zeros(samples, int) if strata is None else np.asarray(strata)
  there = [
    np.ones(samples, bool) if present is None else np.asarray(present[n], bool)
    for n in names
  ]
  sums, counts = np.zeros((2, len(names), len(names)))
  for i in range(len(names)):
    for j in range(i):
      squares, total = 0.0, 0
      for group in np.unique(groups):
        both = there[i] & there[j] & (groups == group)
        size = int(both.sum())
        v = _correct_cramer(folded[i][both], folded[j][both])
        squares, total = squares + size * v * v, total + size
      if total:
        sums[i, j] = sums[j, i] = (squares / total) ** 0.5
        counts[i, j] = counts[j, i] = 1
  return _fill_unknown(names, sums, counts, [], samples)


def fold_codes(codes: np.ndarray, most: int = MOST_CODES) -> np.ndarray:
  """Numbers the most frequent values from 1 on; all others are 0.

  >>> fold_codes(np.array([7, 7, 7, 5, 5, 9]), most=2).tolist()
  [1, 1, 1, 2, 2, 0]
  """
  found, index, counts = np.unique(
    codes, return_inverse=True, return_counts=True
  )
  order = np.argsort(-counts, kind='stable')[:most]
  numbers = np.zeros(len(found), np.int64)
  numbers[order] = 1 + np.arange(len(order))
  return numbers[index]


def _correct_cramer(a: np.ndarray, b: np.ndarray) -> float:
  n = len(a)
  if n < 2:
    return 0.0
  table = np.bincount(a * (b.max() + 1) + b, minlength=0)
  table = np.pad(table, (0, (a.max() + 1) * (b.max() + 1) - len(table)))
  table = table.reshape(a.max() + 1, b.max() + 1).astype(np.float64)
  table = table[table.any(axis=1)][:, table.any(axis=0)]
  rows, columns = table.shape
  expected = np.outer(table.sum(1), table.sum(0)) / n
  chi = ((table - expected) ** 2 / expected).sum() / n
  chance = (rows - 1) * (columns - 1) / (n - 1)
  least = min(
    rows - (rows - 1) ** 2 / (n - 1), columns - (columns - 1) ** 2 / (n - 1)
  )
  if least <= 1 + 1e-9:  # one value, or too few samples for so many
    return 0.0
  return min(1.0, max(0.0, chi - chance) / (least - 1)) ** 0.5
