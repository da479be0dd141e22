"""Histories and examples -> batches of packed tokens, through grain.

Indices are shuffled and batched; the events are gathered for a whole batch at
once, without a Python loop over users.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import splits
from genrec_jax.data.capacities import capacity_for, share_of
from genrec_jax.data.ranges import expand_ranges

EVENT_COLUMNS = ('item', 'time', 'next_item', 'next_time')
# What capacities are chosen by: the first epochs, and of them so many examples.
_SAMPLED_EPOCHS, _SAMPLED = 16, 1 << 20
_INT32 = np.iinfo(np.int32).max


def _pad_runs(
  values: np.ndarray, bounds: np.ndarray, size: int, fill: int = 0
) -> np.ndarray:
  """The runs between `bounds`, each filled up to `size`, in a row, int32."""
  out = np.full((len(bounds) - 1) * size, fill, np.int32)
  _copy_runs(out, values, bounds, size)
  return out


def _copy_runs(
  out: np.ndarray, values: np.ndarray, bounds: np.ndarray, size: int
) -> None:
  """Puts the run number i between `bounds` at place `i * size` of `out`.

  `values` begins with the first run, whatever number that starts at.
  """
  bounds = (bounds - bounds[0]).tolist()
  for part in range(len(bounds) - 1):
    a, b = bounds[part], bounds[part + 1]
    out[part * size : part * size + b - a] = values[a:b]


def collate_examples(
  histories: histories_lib.Histories,
  examples: splits.ExampleSpans,
  indices: np.ndarray,
  *,
  max_len: int,
  batch_size: int,
  capacity: int | Callable[[int], int] = capacity_for,
  shards: int = 1,
  own: range | None = None,
) -> features.Examples:
  """Packs the examples `indices` into one batch.

  >>> h = histories_lib.from_arrays(
  ...   [1, 1, 1], [7, 8, 9], extras={'watched': [0.5, 2.0, 1.0]}
  ... )
  >>> batch = collate_examples(
  ...   h, splits.keep_whole(h), [0], max_len=9, batch_size=1, capacity=4
  ... )
  >>> events = batch.jagged['events']
  >>> events['item'].tolist(), events['next_item'].tolist()
  ([1, 2, 0, 0], [2, 3, 0, 0])
  >>> events['watched'].tolist(), events['next_watched'].tolist()
  ([0.5, 2.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0])

  Args:
    histories: the events.
    examples: what to read of them.
    indices: `[n]` which examples, n <= batch_size.
    max_len: most tokens of an example; the latest ones are taken.
    batch_size: B; sequences beyond n are empty.
    capacity: tokens of a shard, or a function that gives them for those of the
      longest of all shards, so that all processes come to the same without a
      word.
    shards: W, in how many parts of B / W sequences the batch is cut, each
      packed by itself.
    own: the shards to make; None for all.

  Returns:
    `Examples` of NumPy arrays: the shards `own`, one behind the other. Extra
    columns of the histories are columns of the events; 0 where there is no
    token, or nothing follows it.
  """
  rows = share_of(batch_size, shards)
  indices = np.asarray(indices, np.int64)
  if len(indices) > batch_size:
    raise ValueError(f'{len(indices)} examples for a batch of {batch_size}')
  bounds = np.minimum(np.arange(shards + 1) * rows, len(indices))
  options = dict(max_len=max_len, capacity=capacity, own=own)
  return _pack_batch(histories, examples, indices, bounds, rows, **options)


@dataclasses.dataclass(frozen=True)
class _Window:
  """Which events are the tokens of some shards of a batch.

  Attributes:
    indices: `[n]` the examples.
    mine: `[shards + 1]` where the examples of each shard begin.
    begin: `[n]` position of the first token of each example.
    end: `[n]` one beyond the position of the last.
    at: `[K]` positions of all tokens.
    after: `[K]` positions of the events that follow them.
    missing: places in `after` where nothing follows; some position stands
      there all the same.
    first: `[shards + 1]` number of the first token of each shard.
    capacity: tokens of a shard.
  """

  indices: np.ndarray
  mine: np.ndarray
  begin: np.ndarray
  end: np.ndarray
  at: np.ndarray
  after: np.ndarray
  missing: np.ndarray
  first: np.ndarray
  capacity: int

  def pack_values(
    self, columns: dict[str, np.ndarray], dtype
  ) -> features.Columns:
    """`[shards * capacity, C]` values of the tokens, shard behind shard."""
    size = (len(self.first) - 1) * self.capacity
    out = np.zeros((size, len(columns)), dtype)
    for i, values in enumerate(columns.values()):
      _copy_runs(out[:, i], values, self.first, self.capacity)
    return features.Columns(out, tuple(columns))

  def take_extras(self, histories) -> dict[str, np.ndarray]:
    """The extra columns of the tokens, and of the events that follow them."""
    columns = {}
    now, after = map(histories.take_extras, (self.at, self.after))
    for name, values in after.items():
      values[self.missing] = 0
      for label, x in ((name, now[name]), (f'next_{name}', values)):
        if label in columns or label in EVENT_COLUMNS:
          raise ValueError(
            f'{extras_lib.KEY}.{name}: a batch has another column {label!r}; '
            'give the extra another name'
          )
        columns[label] = extras_lib.fit_batch(name, x)
    return columns


def _find_window(
  histories, examples, indices, bounds, *, max_len, capacity, own
) -> _Window:
  """Shard k is of the examples `indices[bounds[k]:bounds[k + 1]]`."""
  begin, end = splits.find_tokens(examples, max_len, indices)
  total = np.concatenate([[0], np.cumsum(end - begin)])[bounds]
  most = int(np.diff(total).max())
  if callable(capacity):
    capacity = capacity(most)
  if most > capacity:
    raise ValueError(f'{most} tokens for a capacity of {capacity}')
  own = range(len(bounds) - 1) if own is None else own
  mine = bounds[own.start : own.stop + 1]
  first = total[own.start : own.stop + 1]
  whose = slice(mine[0], mine[-1])
  indices, begin, end = indices[whose], begin[whose], end[whose]
  lengths = end - begin
  at = expand_ranges(begin, lengths)
  # A history to be continued has nothing behind its last token.
  open_end = end == histories.offsets[examples.row[indices] + 1]
  missing = (np.cumsum(lengths) - 1)[open_end]
  after = at + 1
  after[missing] -= 1
  return _Window(indices, mine, begin, end, at, after, missing, first, capacity)


def _pack_batch(
  histories,
  examples,
  indices,
  bounds,
  rows: int,
  *,
  at_last_event: bool = False,
  **options,
) -> features.Examples:
  """As a batch; see `_find_window`, and `eval_batches` for `at_last_event`."""
  window = _find_window(histories, examples, indices, bounds, **options)
  indices, lengths = window.indices, window.end - window.begin
  next_item = histories.items[window.after]
  next_item[window.missing] = features.PAD
  if histories.times is None:
    time = next_time = np.zeros(len(window.at), np.int64)
  else:
    start = np.repeat(histories.times[window.begin], lengths)
    time = histories.times[window.at] - start
    next_time = histories.times[window.after] - start
    if len(time) and next_time.max() > _INT32:
      late = np.searchsorted(np.cumsum(lengths), next_time.argmax(), 'right')
      user = histories.users.ids[examples.row[indices[late]]]
      raise ValueError(
        f'the events of user {user} span {next_time.max()} seconds, more than '
        f"{_INT32}; are the times in milliseconds? (time_unit='ms')"
      )
    if at_last_event:
      last = np.cumsum(lengths) - 1
      next_time[last] = time[last]
  items = histories.items[window.at]
  values = (items, time, next_item, next_time)
  columns = dict(zip(EVENT_COLUMNS, values, strict=True))
  floats = {}
  for name, column in window.take_extras(histories).items():
    (floats if column.dtype == np.float32 else columns)[name] = column
  row = _pad_runs(examples.row[indices], window.mine, rows, -1)
  events = features.Jagged(
    window.pack_values(columns, np.int32),
    _pad_runs(lengths, window.mine, rows),
    window.pack_values(floats, np.float32) if floats else None,
    first=window.first[:-1].astype(np.int32),
  )
  return features.Examples(
    weights=(row >= 0).astype(np.float32),
    row=row,
    jagged={features.EVENTS: events},
  )


def steps_per_epoch(examples: splits.ExampleSpans, batch_size: int) -> int:
  return -(-len(examples) // batch_size)


class _IndexBatches(grain.MapDataset):
  """Batches of example numbers; element i is of epoch i // steps.

  grain's own shuffle computes every index by itself in Python, 12 us each: ten
  times the cost of gathering the events. A permutation of an epoch, 4 bytes an
  example, costs nothing beside it.
  """

  def __init__(self, size: int, batch_size: int, seed: int | None):
    super().__init__()
    self._size, self._batch_size, self._seed = size, batch_size, seed
    self._order = functools.lru_cache(1)(self._make_order)

  def __len__(self) -> int:
    return -(-self._size // self._batch_size)

  def _make_order(self, epoch: int) -> np.ndarray:
    dtype = np.int32 if self._size <= _INT32 else np.int64
    order = np.arange(self._size, dtype=dtype)
    if self._seed is None:
      return order
    return np.random.default_rng([self._seed, epoch]).permutation(order)

  def __getitem__(self, index: int) -> np.ndarray:
    epoch, step = divmod(index, len(self))
    order = self._order(0 if self._seed is None else epoch)
    return order[step * self._batch_size : (step + 1) * self._batch_size]


def choose_capacities(
  examples: splits.ExampleSpans,
  most: int,
  *,
  batch_size: int,
  max_len: int,
  seed: int,
  shuffle: bool = True,
  shards: int = 1,
) -> capacities_lib.Capacities | None:
  """Capacities for `train_batches` with the same arguments.

  Args:
    examples: the training split.
    most: the most capacities; 0 leaves them to `capacity_for`.
    batch_size: B.
    max_len: most tokens of an example.
    seed: of the order.
    shuffle: as in `train_batches`.
    shards: W, see `collate_examples`.
  """
  if not most or not len(examples):
    return None
  batches = _IndexBatches(len(examples), batch_size, seed if shuffle else None)
  count = len(batches) * (_SAMPLED_EPOCHS if shuffle else 1)
  edges = np.arange(shards) * share_of(batch_size, shards, 'train.batch_size')

  def count_tokens(indices: np.ndarray) -> int:
    begin, end = splits.find_tokens(examples, max_len, indices)
    # Shards behind the last example would repeat it.
    return int(np.add.reduceat(end - begin, edges[edges < len(indices)]).max())

  return capacities_lib.choose_capacities(
    [
      count_tokens(batches[number])
      for number in range(min(count, max(1, _SAMPLED // batch_size)))
    ],
    most,
  )


def train_batches(
  histories: histories_lib.Histories,
  examples: splits.ExampleSpans,
  *,
  batch_size: int,
  max_len: int,
  seed: int,
  shuffle: bool = True,
  prefetch: int = 2,
  shards: int = 1,
  own: range | None = None,
  capacities: capacities_lib.Capacities | None = None,
) -> grain.IterDataset:
  """Endless training batches.

  Every epoch takes each example once, in an order of its own; its last batch
  is filled up with empty sequences. The state of the iterator is one number,
  the same for any `shards` and `own`, so that it resumes exactly anywhere.

  Args:
    histories: the events.
    examples: the training split.
    batch_size: B.
    max_len: most tokens of an example.
    seed: of the order.
    shuffle: False takes the examples in order, in every epoch.
    prefetch: batches made ahead by a background thread; 0 makes them when
      they are asked for.
    shards: W, see `collate_examples`.
    own: the shards to make; None for all.
    capacities: of a shard, by the tokens of the longest one; None, and batches
      that none of them fits, have `capacity_for`.

  Returns:
    An `IterDataset` of `Examples`.
  """
  if not len(examples):
    raise ValueError('there are no examples to train on')
  share_of(batch_size, shards, 'train.batch_size')
  dataset = _IndexBatches(len(examples), batch_size, seed if shuffle else None)

  def collate(number: int, indices: np.ndarray) -> features.Examples:
    def find_capacity(tokens: int) -> int:
      chosen = capacities and capacities.fit(tokens, number)
      return chosen or capacity_for(tokens)

    return collate_examples(
      histories,
      examples,
      indices,
      max_len=max_len,
      batch_size=batch_size,
      capacity=find_capacity,
      shards=shards,
      own=own,
    )

  return read_ahead(dataset.repeat(None).map_with_index(collate), prefetch)


def read_ahead(dataset: grain.MapDataset, batches: int) -> grain.IterDataset:
  """The batches in order, as many made ahead of their use in a thread."""
  return dataset.to_iter_dataset(
    grain.ReadOptions(
      num_threads=1 if batches else 0, prefetch_buffer_size=batches
    )
  )


def _find_cuts(
  lengths: np.ndarray, batch_size: int, capacity: int
) -> list[int]:
  """Bounds of consecutive groups of <= batch_size rows, <= capacity tokens."""
  total = np.concatenate([[0], np.cumsum(lengths)])
  bounds = [0]
  while bounds[-1] < len(lengths):
    first = bounds[-1]
    most = int(np.searchsorted(total, total[first] + capacity, 'right')) - 1
    bounds.append(min(most, first + batch_size))
  return bounds


def eval_batches(
  histories: histories_lib.Histories,
  examples: splits.ExampleSpans,
  *,
  batch_size: int,
  capacity: int,
  max_len: int,
  seen: str = 'window',
  at_last_event: bool = False,
  shards: int = 1,
  own: range | None = None,
) -> Iterator[features.Examples]:
  """The examples once, in order, in batches of one shape.

  Args:
    histories: the events.
    examples: the part to evaluate.
    batch_size: B, most examples of a batch.
    capacity: T, most tokens of a batch. Each shard holds at most a W-th of the
      examples and of the tokens; it ends when either is full.
    max_len: most tokens of an example.
    seen: 'window' leaves `Examples.seen` None (the tokens themselves);
      'history' puts all earlier items of the user there, also those that do
      not fit.
    at_last_event: whether the target is asked for at the time of the event
      before it, and not at its own.
    shards: W, see `collate_examples`.
    own: the shards to make; None for all.

  Yields:
    `Examples` of NumPy arrays.
  """
  rows, capacity = share_of(batch_size, shards), capacity // shards
  if capacity < max_len:
    raise ValueError(
      f'a capacity of {capacity} tokens cannot hold one example of {max_len}'
      + f'; {shards} devices need {shards * max_len} together' * (shards > 1)
    )
  if seen not in ('window', 'history'):
    raise ValueError(f"seen must be 'window' or 'history', not {seen!r}")
  own = range(shards) if own is None else own
  lengths = np.subtract(*splits.find_tokens(examples, max_len)[::-1])
  cuts = _find_cuts(lengths, rows, capacity)
  start = histories.offsets[examples.row]
  past = examples.end - start
  past_before = np.concatenate([[0], np.cumsum(past)])
  seen_size = capacity_for(np.diff(past_before[cuts]).max(initial=0))
  # The last batch may have shards without an example.
  cuts = np.array(cuts + [len(examples)] * (-(len(cuts) - 1) % shards))
  for first in range(0, len(cuts) - 1, shards):
    bounds = cuts[first : first + shards + 1]
    batch = _pack_batch(
      histories,
      examples,
      np.arange(bounds[0], bounds[-1]),
      bounds - bounds[0],
      rows,
      max_len=max_len,
      capacity=capacity,
      own=own,
      at_last_event=at_last_event,
    )
    if seen == 'history':
      mine = bounds[own.start : own.stop + 1]
      whose = slice(mine[0], mine[-1])
      at = expand_ranges(start[whose], past[whose])
      items = _pad_runs(histories.items[at], past_before[mine], seen_size)
      history = features.Jagged(
        features.Columns(items[:, None], ('item',)),
        _pad_runs(past[whose], mine, rows),
      )
      batch = dataclasses.replace(batch, seen=history)
    yield batch
