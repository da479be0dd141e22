"""Parts -> batches of `Examples`, through grain.

The order of an epoch is a permutation of the blocks and, within windows of as
many blocks as `shuffle_rows` holds, of the rows. A window lies in memory; a
split that fits into one stays there. A batch is gathered at once, without a
Python loop over rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import pipeline
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking import store, unseen_draws
from genrec_jax.data.ranking.collation import (
  collate_rows,
  find_longest_shard,
  list_lengths,
)

SAMPLED = 64  # batches that say how long the lists of a batch are


class _Batches(grain.MapDataset):
  """Rows of batch number i; element i is of epoch i // steps."""

  def __init__(
    self,
    split,
    batch_size: int,
    seed: int | None,
    window_rows: int,
    unseen: unseen_draws.UnseenDraws | None = None,
  ):
    super().__init__()
    self._split, self._batch_size, self._seed = split, batch_size, seed
    self._window_rows, self._unseen = window_rows, unseen
    self._epoch = functools.lru_cache(2)(self._make_epoch)
    self._order = functools.lru_cache(2)(self._make_order)

  def __len__(self) -> int:
    return pipeline.steps_per_epoch(self._split, self._batch_size)

  def _make_epoch(self, epoch: int):
    """The windows of an epoch: their blocks, and where each begins."""
    split = self._split
    rng = np.random.default_rng([self._seed, epoch])
    numbers = rng.permutation(split.blocks)
    most = int(np.diff(split.starts).max())
    count = max(1, self._window_rows // most)
    windows = [
      # In order, so that a split in one window keeps it over the epochs.
      tuple(sorted(numbers[i : i + count].tolist()))
      for i in range(0, split.blocks, count)
    ]
    sizes = [int(np.diff(split.starts)[list(w)].sum()) for w in windows]
    return windows, np.concatenate([[0], np.cumsum(sizes)])

  def _make_order(self, epoch: int, window: int) -> np.ndarray:
    starts = self._epoch(epoch)[1]
    order = np.arange(starts[window + 1] - starts[window], dtype=np.int32)
    rng = np.random.default_rng([self._seed, epoch, window])
    rng.shuffle(order)
    return order

  def __getitem__(self, index: int) -> rows_lib.Rows:
    rows = self.read_rows(index)
    # Before the batch is cut into shards, so that every mesh draws the same.
    return self._unseen.apply(rows, index) if self._unseen else rows

  @property
  def is_shuffled(self) -> bool:
    return self._seed is not None

  def read_rows(self, index: int, own: slice = slice(None)) -> rows_lib.Rows:
    """Those of a batch as they are stored, or some of them."""
    epoch, step = divmod(index, len(self))
    first = step * self._batch_size
    size = min(self._batch_size, len(self._split) - first)
    a, b, _ = own.indices(size)
    if a >= b:  # a short batch has nothing for the last shards
      return self._split.block(0).slice_rows(0, 0)
    a, b = first + a, first + b
    if self._seed is None:
      return self._split.rows(a, b)
    windows, starts = self._epoch(epoch)
    window = int(np.searchsorted(starts, a, 'right')) - 1
    pieces = []
    while a < b:
      end = min(b, int(starts[window + 1]))
      start = int(starts[window])
      at = self._order(epoch, window)[a - start : end - start]
      pieces.append(self._split.window(windows[window]).take(at))
      a, window = end, window + 1
    return rows_lib.concatenate_rows(pieces)


class _OwnBatches(_Batches):
  """Some shards of batch number i, for which the others need not be read.

  That is so without lists, whose capacity depends on the longest shard of all.
  """

  def __init__(self, split, batch_size: int, *order, shards: int, own: range):
    super().__init__(split, batch_size, *order)
    self._share, self._own = pipeline.share_of(batch_size, shards), own

  def __getitem__(self, index: int) -> features.Examples:
    a, b = self._own.start * self._share, self._own.stop * self._share
    batch = collate_rows(
      self.read_rows(index, slice(a, b)),
      self._split.names,
      batch_size=b - a,
      shards=len(self._own),
    )
    size = len(self._split) - index % len(self) * self._batch_size
    # Numbers of examples are those of the whole batch, which may be short.
    return dataclasses.replace(
      batch, first=batch.first + np.int32(min(a, size))
    )


@dataclasses.dataclass(frozen=True)
class Turns:
  """Steps that have rows of their own.

  Attributes:
    split: these rows.
    steps: of an epoch, those of all rows.
    find_place: step -> (whether it is one of them, number of the batch among
      those of its rows).
  """

  split: store.SplitStore
  steps: int
  find_place: Callable[[int], tuple[bool, int]]


class _InTurns(grain.MapDataset):
  """Batch number i of the one rows or of the other."""

  def __init__(self, outer, inner, turns: Turns):
    super().__init__()
    self._parts, self._turns = (outer, inner), turns

  def __len__(self) -> int:
    return self._turns.steps

  def __getitem__(self, index: int):
    is_inner, number = self._turns.find_place(index)
    return self._parts[is_inner][number]


def train_batches(
  split: store.SplitStore,
  *,
  batch_size: int,
  seed: int,
  shuffle: bool = True,
  shuffle_rows: int = 4_000_000,
  shards: int = 1,
  own: range | None = None,
  prefetch: int = 2,
  unseen: unseen_draws.UnseenDraws | None = None,
  fixed_lists: bool = False,
  turns: Turns | None = None,
) -> grain.IterDataset:
  """Endless training batches.

  Every epoch takes each row once, in an order of its own; its last batch is
  filled up with examples of weight 0. The state of the iterator is one number,
  the same for any `shards` and `own`, so that it resumes exactly anywhere.

  Args:
    split: the training split.
    batch_size: B.
    seed: of the order.
    shuffle: False takes the rows in order, in every epoch.
    shuffle_rows: rows that are shuffled together, and lie in memory.
    shards: W, see `collate_rows`.
    own: the shards to make; None for all.
    prefetch: batches made ahead by a background thread; 0 makes them when
      they are asked for.
    unseen: which values are read as unseen; None for none.
    fixed_lists: whether the lists of a feature, or a history, have one
      capacity, which a sample of batches says, in all batches that it has room
      for. Otherwise, and beyond it, it is `pipeline.capacity_for` the values of
      each batch.
    turns: steps that have other rows than those of `split`.

  Returns:
    An `IterDataset` of `Examples`.
  """
  if not len(split):
    raise ValueError(f'the {split.name} split is empty: nothing to train on')
  if shuffle_rows < 1:
    raise ValueError(
      f'data.shuffle_rows must be at least 1, not {shuffle_rows}; '
      'train.shuffle=false takes the rows in order'
    )
  pipeline.share_of(batch_size, shards, 'train.batch_size')
  order = seed if shuffle else None, shuffle_rows
  has_lists = bool(split.block(0).bags)

  def take_turns(make):
    made = make(split)
    return made if turns is None else _InTurns(made, make(turns.split), turns)

  if own is not None and not (has_lists or unseen):
    dataset = take_turns(
      lambda split: _OwnBatches(
        split, batch_size, *order, shards=shards, own=own
      )
    )
    return pipeline.read_ahead(dataset.repeat(None), prefetch)
  dataset = _Batches(split, batch_size, *order, unseen)
  capacities = None
  if fixed_lists and has_lists:
    capacities = _sample_capacities(
      dataset, split.names, batch_size // shards, shards
    )
  dataset = take_turns(lambda rows: _Batches(rows, batch_size, *order, unseen))
  dataset = dataset.repeat(None).map(
    lambda rows: collate_rows(
      rows,
      split.names,
      batch_size=batch_size,
      shards=shards,
      own=own,
      capacities=capacities,
    )
  )
  return pipeline.read_ahead(dataset, prefetch)


def _sample_capacities(
  dataset: _Batches, names: rows_lib.ColumnNames, share: int, shards: int
) -> dict[str, int]:
  """Values of each jagged feature for which nearly every shard has room."""
  # Unshuffled rows may have longer lists later; of shuffled ones, the window
  # of the first step is read anyway.
  step = 1 if dataset.is_shuffled else -(-len(dataset) // SAMPLED)
  sums = {}
  for number in range(0, min(len(dataset), SAMPLED * step), step):
    rows = dataset.read_rows(number)
    bounds = np.minimum(np.arange(shards + 1) * share, len(rows))
    for name, lengths in list_lengths(rows, names).items():
      sums.setdefault(name, []).append(find_longest_shard(lengths, bounds))
  # Two deviations above the longest of the sample, for those that follow.
  most = {name: max(x) + int(2 * np.std(x)) for name, x in sums.items()}
  return {
    name: capacities_lib.choose_capacities([size], 1).sizes[0]
    for name, size in most.items()
  }


def choose_list_capacities(
  split: store.SplitStore, batch_size: int, shards: int = 1
) -> dict[str, int]:
  """Values of each jagged feature for which batches of such rows have room.

  Args:
    split: rows like those of the batches.
    batch_size: B.
    shards: W, see `collate_rows`.

  Returns:
    {} without lists.
  """
  if not split.block(0).bags:
    return {}
  share = pipeline.share_of(batch_size, shards, 'train.batch_size')
  dataset = _Batches(split, batch_size, None, 1)
  return _sample_capacities(dataset, split.names, share, shards)


def _find_capacities(split: store.SplitStore, share: int) -> dict[str, int]:
  """Values of a jagged feature of which a shard of `share` rows has room."""
  most, seen, held = {}, {}, 0
  for rows in split:
    if not rows.bags:
      return {}
    cuts = np.arange(-held % share, len(rows), share)
    for name, lengths in list_lengths(rows, split.names).items():
      total = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
      ends = np.concatenate([[0], total[cuts], total[-1:]])
      sums = np.diff(ends)
      sums[0] += seen.get(name, 0)
      most[name] = max(most.get(name, 0), int(sums.max()))
      seen[name] = int(sums[-1])
    held = (held + len(rows)) % share
  return {name: pipeline.capacity_for(size) for name, size in most.items()}


def eval_batches(
  split: store.SplitStore,
  *,
  batch_size: int,
  shards: int = 1,
  own: range | None = None,
  weighted: bool = True,
) -> Iterator[features.Examples]:
  """Every row once, in order, in batches of one shape.

  Args:
    split: the split to evaluate.
    batch_size: B; the last batch is filled up with examples of weight 0.
    shards: W, see `collate_rows`.
    own: the shards to make; None for all.
    weighted: False gives every row weight 1, to predict for all of them.

  Yields:
    `Examples` of NumPy arrays.
  """
  share = pipeline.share_of(batch_size, shards, 'eval.batch_size')
  capacities = _find_capacities(split, share)
  for a in range(0, len(split), batch_size):
    rows = split.rows(a, min(a + batch_size, len(split)))
    if not weighted:
      rows = dataclasses.replace(rows, weight=None)
    yield collate_rows(
      rows,
      split.names,
      batch_size=batch_size,
      shards=shards,
      own=own,
      capacities=capacities,
    )
