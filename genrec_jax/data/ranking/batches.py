"""Parts -> batches of `Examples`, through grain.

The order of an epoch is a permutation of the blocks and, within windows of as
many blocks as `shuffle_rows` holds, of the rows. A window lies in memory; a
split that fits into one stays there. A batch is gathered at once, without a
Python loop over rows.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import pipeline
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import raw, store, unseen_draws
from genrec_jax.data.ranking import rows as rows_lib

NO_GROUP = -1
SAMPLED = 64  # batches that say how long the lists of a batch are


def _pad_values(values: np.ndarray, size: int, fill=0) -> np.ndarray:
  """`values` and behind them `fill`, `size` in all."""
  if len(values) == size:
    return np.ascontiguousarray(values)
  out = np.full((size, *values.shape[1:]), fill, values.dtype)
  out[: len(values)] = values
  return out


def _pack_lists(
  name: str,
  bags: rows_lib.Bags,
  bounds: np.ndarray,
  share: int,
  capacity: int,
) -> features.Jagged:
  """The lists of each shard, one behind the other.

  Args:
    name: of the feature, and of its column.
    bags: its lists.
    bounds: which of them are of each shard.
    share: examples of a shard.
    capacity: ids of a shard.
  """
  total = np.concatenate([[0], np.cumsum(bags.lengths)])[bounds]

  def pack(column: np.ndarray, name: str) -> features.Columns:
    packed = np.zeros(((len(bounds) - 1) * capacity, 1), column.dtype)
    for i, (a, b) in enumerate(zip(total[:-1], total[1:], strict=True)):
      packed[i * capacity : i * capacity + b - a, 0] = column[a:b]
    return features.Columns(packed, (name,))

  lengths = _pad_values(bags.lengths, (len(bounds) - 1) * share)
  floats = None if bags.weights is None else pack(bags.weights, features.WEIGHT)
  return features.Jagged(pack(bags.values, name), lengths, floats)


def _stack_columns(
  columns: Mapping[str, np.ndarray], size: int, dtype
) -> features.Columns | None:
  """Columns of this type side by side, filled up to `size`; None for none."""
  columns = {n: c for n, c in columns.items() if c.dtype == dtype}
  if not columns:
    return None
  out = np.zeros((size, len(columns)), dtype)
  for i, values in enumerate(columns.values()):
    out[: len(values), i] = values
  return features.Columns(out, tuple(columns))


def _in_32_bits(time: np.ndarray) -> np.ndarray:
  """Times as a batch has them."""
  most = np.abs(time).max(initial=0)
  if most > np.iinfo(np.int32).max:
    raise ValueError(
      f'data.time: {most} does not fit the 32 bits that the times of a batch '
      'have; give seconds, or set data.time='
      "'' if no task reads them"
    )
  return time.astype(np.int32)


def _longest_shard(lengths: np.ndarray, bounds: np.ndarray) -> int:
  """Values of the longest shard."""
  total = np.concatenate([[0], np.cumsum(lengths)])[bounds]
  return int(np.diff(total).max(initial=0))


def collate_rows(
  rows: rows_lib.Rows,
  names: rows_lib.ColumnNames,
  *,
  batch_size: int,
  shards: int = 1,
  own: range | None = None,
  capacities: Mapping[str, int] | None = None,
) -> features.Examples:
  """Makes one batch of at most `batch_size` rows.

  Args:
    rows: n <= batch_size rows, in order.
    names: what their columns are called.
    batch_size: B; examples beyond n have weight 0.
    shards: W, in how many parts of B / W examples the batch is cut.
    own: the shards to make; None for all.
    capacities: name of a bag -> ids of a shard. Where there is none, or a shard
      has more, it is `pipeline.capacity_for` the longest of all shards.

  Returns:
    `Examples` of NumPy arrays: the shards `own`, one behind the other.
  """
  share = pipeline.share_of(batch_size, shards)
  if len(rows) > batch_size:
    raise ValueError(f'{len(rows)} examples for a batch of {batch_size}')
  own = range(shards) if own is None else own
  bounds = np.minimum(np.arange(shards + 1) * share, len(rows))
  room, given = {}, capacities or {}
  for name, bags in rows.bags.items():
    ids = _longest_shard(bags.lengths, bounds)
    fits = ids <= given.get(name, -1)
    room[name] = given[name] if fits else pipeline.capacity_for(ids)
  mine = bounds[own.start : own.stop + 1]
  own_rows = rows.slice_rows(int(mine[0]), int(mine[-1]))
  size = len(own) * share
  group = own_rows.group
  if group is None:
    group = np.full(len(own_rows), NO_GROUP, np.int32)
  extras = {n: extras_lib.fit_batch(n, c) for n, c in own_rows.extras.items()}
  labels = own_rows.labels.astype(np.float32)
  weights = own_rows.weight
  if weights is None:
    weights = np.ones(len(own_rows), np.float32)
  return features.Examples(
    weights=_pad_values(weights, size),
    dense=features.Columns(_pad_values(own_rows.numbers, size), names.numbers),
    ids=features.Columns(_pad_values(own_rows.ids, size), names.ids),
    jagged={
      name: _pack_lists(name, bags, mine - mine[0], share, room[name])
      for name, bags in own_rows.bags.items()
    },
    labels=features.Columns(_pad_values(labels, size), names.labels),
    label_weights=None
    if own_rows.label_weights is None
    else features.Columns(
      _pad_values(own_rows.label_weights, size), names.labels
    ),
    time=None
    if own_rows.time is None
    else _pad_values(_in_32_bits(own_rows.time), size),
    example_id=None
    if own_rows.example_id is None
    else _pad_values(features.split_words(own_rows.example_id), size),
    group=_pad_values(group, size, NO_GROUP),
    extras=_stack_columns(extras, size, np.float32),
    int_extras=_stack_columns(extras, size, np.int32),
    first=mine[:-1].astype(np.int32),
  )


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

  def read_rows(self, index: int) -> rows_lib.Rows:
    """Those of a batch as they are stored."""
    epoch, step = divmod(index, len(self))
    a = step * self._batch_size
    b = min(a + self._batch_size, len(self._split))
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
    fixed_lists: whether the lists of a feature have one capacity, which a
      sample of batches says, in all batches that it has room for. Otherwise,
      and beyond it, it is `pipeline.capacity_for` the ids of each batch.

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
  dataset = _Batches(
    split, batch_size, seed if shuffle else None, shuffle_rows, unseen
  )
  capacities = None
  if fixed_lists and split.block(0).bags:
    capacities = _sample_capacities(dataset, batch_size // shards, shards)
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
  dataset: _Batches, share: int, shards: int
) -> dict[str, int]:
  """Ids of each list feature for which nearly every shard has room."""
  # Unshuffled rows may have longer lists later; of shuffled ones, the window
  # of the first step is read anyway.
  step = 1 if dataset.is_shuffled else -(-len(dataset) // SAMPLED)
  sums = {}
  for number in range(0, min(len(dataset), SAMPLED * step), step):
    rows = dataset.read_rows(number)
    bounds = np.minimum(np.arange(shards + 1) * share, len(rows))
    for name, bags in rows.bags.items():
      sums.setdefault(name, []).append(_longest_shard(bags.lengths, bounds))
  # Two deviations above the longest of the sample, for those that follow.
  most = {name: max(x) + int(2 * np.std(x)) for name, x in sums.items()}
  return {
    name: capacities_lib.choose_capacities([size], 1).sizes[0]
    for name, size in most.items()
  }


def _find_capacities(split: store.SplitStore, share: int) -> dict[str, int]:
  """Ids of a bag that a shard of `share` rows in order needs at most."""
  most, seen, held = {}, {}, 0
  for rows in split:
    if not rows.bags:
      return {}
    cuts = np.arange(-held % share, len(rows), share)
    for name, bags in rows.bags.items():
      total = np.concatenate([[0], np.cumsum(bags.lengths, dtype=np.int64)])
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


def raw_batches(
  encoder: encoder_lib.Encoder,
  chunks: Iterable[raw.RawChunk],
  *,
  batch_size: int,
  tally=None,
) -> Iterator[features.Examples]:
  """Batches of rows that are encoded as they come, for predictions.

  Args:
    encoder: of the training data.
    chunks: raw rows, with labels or without them.
    batch_size: B; the last batch is filled up with examples of weight 0.
    tally: a `value_tally.Tally`, or what else has its `add`: counts the values.

  Yields:
    `Examples` of NumPy arrays; labels are 0 where there are none.
  """
  names = encoder.schema.names
  waiting, size = [], 0
  for chunk in chunks:
    absent = encoder.make_absent(chunk)
    encoded = encoder.encode(chunk, absent=absent)
    if tally is not None:
      tally.add(chunk, encoded, absent)
    waiting.append(_add_empty_labels(encoded, len(names.labels)))
    size += len(chunk)
    if size >= batch_size:
      rows, done = rows_lib.concatenate_rows(waiting), 0
      while size - done >= batch_size:
        piece = rows.slice_rows(done, done + batch_size)
        yield collate_rows(piece, names, batch_size=batch_size)
        done += batch_size
      waiting, size = [rows.slice_rows(done, size)], size - done
  if size:
    rows = rows_lib.concatenate_rows(waiting)
    yield collate_rows(rows, names, batch_size=batch_size)


def _add_empty_labels(rows: rows_lib.Rows, names: int) -> rows_lib.Rows:
  """Labels of 0 where the rows do not bring all of them."""
  if rows.labels.shape[1] == names:
    return rows
  labels = np.zeros((len(rows), names), rows.labels.dtype)
  return dataclasses.replace(rows, labels=labels, label_weights=None)
