"""How far the popularity of candidates goes alone, and what splits hold.

Negatives that are drawn uniformly from all items are mostly items that hardly
anybody meets. So the number of positives that an item has in training says much
about a label, whatever the user has done, and the AUC of a model means little
without that of this number beside it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from genrec_jax.data.ranking import raw

COLUMNS = ('user', 'item', 'label')


@dataclasses.dataclass(frozen=True)
class SplitCounts:
  """What a split holds.

  Attributes:
    users: different ones.
    rows: examples.
    positives: of them.
  """

  users: int
  rows: int
  positives: int

  def __str__(self) -> str:
    share = self.positives / max(self.rows, 1)
    return f'{self.users:,} users, {self.rows:,} examples, {share:.1%} positive'


class Popularity:
  """Positives of each item in training.

  >>> rows = raw.from_columns(
  ...   {'item': ['a', 'a', 'b'], 'label': [1, 1, 0]}, ['item', 'label']
  ... )
  >>> Popularity([rows]).measure_auc([rows])
  1.0
  """

  def __init__(
    self,
    chunks: Iterable[raw.RawChunk],
    item: str = 'item',
    label: str = 'label',
  ):
    """Counts.

    Args:
      chunks: the training rows, with at least these columns.
      item: column of the candidate.
      label: column of 0 and 1.
    """
    self._item, self._label, self._counts = item, label, {}
    for chunk in chunks:
      items, labels = self._read(chunk)
      names, counts = np.unique(items[labels == 1], return_counts=True)
      for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        self._counts[name] = self._counts.get(name, 0) + count

  def score(self, chunk: raw.RawChunk) -> np.ndarray:
    """`[N]` int64 positives that the candidates have in training."""
    names, place = np.unique(self._read(chunk)[0], return_inverse=True)
    counts = [self._counts.get(name, 0) for name in names.tolist()]
    return np.array(counts, np.int64)[place]

  def measure_auc(self, chunks: Iterable[raw.RawChunk]) -> float:
    """The AUC of this number alone; NaN where labels are of one kind.

    Args:
      chunks: the rows of a split, with the same columns.
    """
    rows = np.zeros((2, 1), np.int64)  # [label, score]
    for chunk in chunks:
      scores, labels = self.score(chunk), self._read(chunk)[1]
      size = max(rows.shape[1], int(scores.max(initial=0)) + 1)
      rows = np.pad(rows, ((0, 0), (0, size - rows.shape[1])))
      for kind in (0, 1):
        rows[kind] += np.bincount(scores[labels == kind], minlength=size)
    negatives, positives = rows
    below = np.cumsum(negatives) - negatives
    right = (positives * (below + negatives / 2)).sum()
    pairs = int(positives.sum()) * int(negatives.sum())
    return float(right / pairs) if pairs else float('nan')

  def _read(self, chunk: raw.RawChunk) -> tuple[np.ndarray, np.ndarray]:
    columns = (chunk.columns[self._item], chunk.columns[self._label])
    items, labels = (
      c.values if isinstance(c, raw.NumberColumn) else np.asarray(c)
      for c in columns
    )
    return items, labels.astype(np.int64)


def describe_splits(
  splits: Sequence[str],
  read: Callable[[str, Sequence[str]], Iterable[raw.RawChunk]],
) -> list[str]:
  """Lines for a log: users, examples, positives, AUC of popularity alone.

  Args:
    splits: their names, 'train' first.
    read: (split, columns) -> the rows.
  """
  popularity = Popularity(read('train', COLUMNS))
  lines = []
  for split in splits:
    line = f'{split}: {count_rows(read(split, COLUMNS))}'
    if split != 'train':
      auc = popularity.measure_auc(read(split, COLUMNS))
      line += f'; AUC of popularity alone {auc:.4f}'
    lines.append(line)
  return lines


def count_rows(chunks: Iterable[raw.RawChunk]) -> SplitCounts:
  """What a split holds.

  Args:
    chunks: its rows, with the columns user and label as numbers.
  """
  users, rows, positives = [np.zeros(0, np.int64)], 0, 0
  for chunk in chunks:
    users.append(np.unique(chunk.columns['user'].values))
    rows += len(chunk)
    positives += int(chunk.columns['label'].values.sum())
    if len(users) > 64:
      users = [np.unique(np.concatenate(users))]
  return SplitCounts(len(np.unique(np.concatenate(users))), rows, positives)
