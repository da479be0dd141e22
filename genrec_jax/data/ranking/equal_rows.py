"""How many held-out rows stand in the training split too, from a sample.

Rows are equal when their features, as the model reads them, their labels, times
and groups are. Rows are chosen by a hash of their content, so that a row and
its twin are both in the sample or both not; memory is that of the sample.
"""

import dataclasses
import logging
from collections.abc import Callable

import numpy as np

from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking.mixing import mix_bits
from genrec_jax.data.ranking.split_rules import draw_uniform

LOG = logging.getLogger('genrec_jax')
MOST_ROWS = 1 << 16  # distinct rows of a split in the sample
MOST_SHOWN = 1 << 12  # training rows from which the chance is estimated
# So many are many: metrics then speak of rows that were learned by heart.
MANY, LEAST = 0.1, 10
ABOVE = 1.2  # what is nearer to the chance is not above it


def _to_cells(rows: rows_lib.Rows) -> np.ndarray:
  """`[N, F]` uint64: a number of each feature, label, time and group."""
  columns = [rows.ids, rows.numbers, rows.labels]
  columns += [x[:, None] for x in (rows.time, rows.group) if x is not None]
  cells = [
    x.view(f'u{x.itemsize}').astype(np.uint64) for x in columns if x.size
  ]
  for name in sorted(rows.bags):
    cells.append(_hash_lists(rows.bags[name])[:, None])
  return np.concatenate(cells, axis=1)


def _hash_lists(bags: rows_lib.Bags) -> np.ndarray:
  """`[N]` uint64 of lists, in their order, with all that stands at a value."""
  ends = np.cumsum(bags.lengths)
  place = np.arange(len(bags.values)) - np.repeat(
    ends - bags.lengths, bags.lengths
  )
  mixed = place.astype(np.uint64) + np.uint64(1)
  for field in dataclasses.fields(bags):
    values = getattr(bags, field.name)
    if field.name != 'lengths' and values is not None:
      mixed = mix_bits(
        mixed + values.view(f'u{values.itemsize}').astype(np.uint64)
      )
  sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
  return sums[ends] - sums[ends - bags.lengths]


class EqualRows:
  """Counts the rows of each split that are in the sample.

  equal = EqualRows(('train', 'test'))
  equal.add('train', rows, where)
  equal.log_shares(print)
  """

  def __init__(self, splits):
    """Starts without rows; `splits` are the names of those there are."""
    self._rows = dict.fromkeys(splits, 0)
    # Hash of a row -> how many such rows, and where the first is.
    self._sample = {split: {} for split in splits}
    self._end = 1 << 64  # hashes below are in the sample
    self._shown, self._draws = [], []  # cells of some training rows
    self._share = 1.0  # of the training rows that are shown

  def add(
    self, split: str, rows: rows_lib.Rows, where: Callable[[int], str]
  ) -> None:
    """Takes in rows of a split; `where` names the origin of row i."""
    if len(self._rows) < 2 or not len(rows):
      return
    cells = _to_cells(rows)
    factors = np.random.default_rng(0).integers(
      1 << 63, size=cells.shape[1], dtype=np.uint64
    )
    hashes = mix_bits(
      (cells * (factors * np.uint64(2) + np.uint64(1))).sum(axis=1)
    )
    if split == 'train':
      self._show(cells)
    self._rows[split] += len(rows)
    sample = self._sample[split]
    for i in np.flatnonzero(hashes <= np.uint64(self._end - 1)).tolist():
      entry = sample.setdefault(int(hashes[i]), [0, ''])
      entry[0] += 1
      entry[1] = entry[1] or where(i)
    while len(sample) > MOST_ROWS:
      self._end //= 2
      for name, old in self._sample.items():
        sample = {h: entry for h, entry in old.items() if h < self._end}
        self._sample[name] = sample
      sample = self._sample[split]

  def _show(self, cells: np.ndarray) -> None:
    draws = draw_uniform(1, self._rows['train'], len(cells))
    self._shown.append(cells[draws < self._share])
    self._draws.append(draws[draws < self._share])
    if sum(map(len, self._draws)) > 2 * MOST_SHOWN:
      self._share /= 2
      shown, draws = np.concatenate(self._shown), np.concatenate(self._draws)
      self._shown = [shown[draws < self._share]]
      self._draws = [draws[draws < self._share]]

  def _chance(self) -> float:
    """Share of rows with a twin in training if columns were independent."""
    cells = np.concatenate(self._shown)
    log_p = np.zeros(len(cells))
    for column in cells.T:
      _, place, counts = np.unique(
        column, return_inverse=True, return_counts=True
      )
      others = np.maximum(counts[place] - 1, 0.5) / max(len(cells) - 1, 1)
      log_p += np.log(others)
    some = -np.expm1(self._rows['train'] * np.log1p(-np.exp(log_p) * 0.999999))
    return float(some.mean())

  def log_shares(self, log: Callable[[str], None]) -> None:
    """Says what is above chance; what is many is a warning.

    Args:
      log: called with a line for each split that shares few rows with training.
    """
    train = self._sample.get('train')
    for split, sample in self._sample.items():
      if split == 'train' or not train or not sample:
        continue
      twins = {h: entry for h, entry in sample.items() if h in train}
      count = sum(entry[0] for entry in twins.values())
      share = count / sum(entry[0] for entry in sample.values())
      chance = self._chance() if twins else 1.0
      if share <= ABOVE * chance:
        continue
      about, total = '' if self._end == 1 << 64 else 'about ', self._rows[split]
      key, entry = next(iter(twins.items()))
      text = (
        f'{about}{share * total:,.0f} of {total:,} rows of the {split} split '
        f'({share:.2%}) stand in the training split too, with the same '
        'features and labels: '
        f'{entry[1]}, is {train[key][1]}, for one'
      )
      if share < MANY or share < 2 * chance or count < LEAST:
        log(text)
        continue
      LOG.warning(
        '%s. If a file is in both splits, or rows were written twice, remove '
        'them, for metrics of the split then measure what was learned by '
        'heart; rows of one user can be kept together by '
        "data.split.by='group'. Where rows say little, as with few features "
        'that depend on each other, they are equal by nature.',
        text,
      )
