"""Histories and examples -> batches of packed tokens, through grain.

Indices are shuffled and batched; the events are gathered for a whole batch at
once, without a Python loop over users.
"""

import functools
from collections.abc import Iterator

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import splits

MIN_CAPACITY = 128
_INT32 = np.iinfo(np.int32).max


def capacity_for(tokens: int) -> int:
  """The least capacity for `tokens` on a ladder with 8 steps an octave.

  Padding to few different shapes compiles few programs; at most one token in
  eight is padding (above the minimum).
  """
  capacity = max(int(tokens), MIN_CAPACITY)
  step = 1 << max(0, (capacity - 1).bit_length() - 4)
  return -(-capacity // step) * step


def _padded(values: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
  out = np.full(size, fill, np.int32)
  out[: len(values)] = values
  return out


def collate(
  histories: histories_lib.Histories,
  examples: splits.Examples,
  indices: np.ndarray,
  *,
  max_len: int,
  batch_size: int,
  capacity: int | None = None,
) -> features.Batch:
  """Packs the examples `indices` into one batch.

  Args:
    histories: the events.
    examples: what to read of them.
    indices: `[n]` which examples, n <= batch_size.
    max_len: most tokens of an example; the latest ones are taken.
    batch_size: B; sequences beyond n are empty.
    capacity: T; None takes `capacity_for` the tokens that there are.

  Returns:
    A `Batch` of NumPy arrays.
  """
  indices = np.asarray(indices, np.int64)
  if len(indices) > batch_size:
    raise ValueError(f'{len(indices)} examples for a batch of {batch_size}')
  end = examples.end[indices]
  begin = np.maximum(examples.begin[indices], end - max_len)
  lengths = end - begin
  tokens = int(lengths.sum())
  if capacity is None:
    capacity = capacity_for(tokens)
  if tokens > capacity:
    raise ValueError(f'{tokens} tokens for a capacity of {capacity}')
  at = splits.positions(begin, lengths)
  # A history to be continued has nothing behind its last token.
  open_end = end == histories.offsets[examples.row[indices] + 1]
  missing = (np.cumsum(lengths) - 1)[open_end]
  after = at + 1
  after[missing] -= 1
  next_item = histories.items[after]
  next_item[missing] = features.PAD
  if histories.times is None:
    time = next_time = np.zeros(tokens, np.int64)
  else:
    start = np.repeat(histories.times[begin], lengths)
    time = histories.times[at] - start
    next_time = histories.times[after] - start
    if tokens and next_time.max() > _INT32:
      late = np.searchsorted(np.cumsum(lengths), next_time.argmax(), 'right')
      user = histories.users.ids[examples.row[indices[late]]]
      raise ValueError(
        f'the events of user {user} span {next_time.max()} seconds, more than '
        f"{_INT32}; are the times in milliseconds? (time_unit='ms')"
      )
  return features.Batch(
    users=_padded(examples.row[indices], batch_size, -1),
    lengths=_padded(lengths, batch_size),
    item=_padded(histories.items[at], capacity),
    time=_padded(time, capacity),
    next_item=_padded(next_item, capacity),
    next_time=_padded(next_time, capacity),
  )


def steps_per_epoch(examples: splits.Examples, batch_size: int) -> int:
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


def train_batches(
  histories: histories_lib.Histories,
  examples: splits.Examples,
  *,
  batch_size: int,
  max_len: int,
  seed: int,
  shuffle: bool = True,
  prefetch: int = 2,
) -> grain.IterDataset:
  """Endless training batches.

  Every epoch takes each example once, in an order of its own; its last batch
  is filled up with empty sequences. The state of the iterator is one number,
  so that it resumes exactly anywhere.

  Args:
    histories: the events.
    examples: the training part.
    batch_size: B.
    max_len: most tokens of an example.
    seed: of the order.
    shuffle: False takes the examples in order, in every epoch.
    prefetch: batches made ahead by a background thread; 0 makes them when
      they are asked for.

  Returns:
    An `IterDataset` of `Batch` with capacity `capacity_for` its tokens.
  """
  if not len(examples):
    raise ValueError('there are no examples to train on')
  dataset = _IndexBatches(len(examples), batch_size, seed if shuffle else None)
  dataset = dataset.repeat(None).map(
    lambda indices: collate(
      histories, examples, indices, max_len=max_len, batch_size=batch_size
    )
  )
  return dataset.to_iter_dataset(
    grain.ReadOptions(
      num_threads=1 if prefetch else 0, prefetch_buffer_size=prefetch
    )
  )


def _cuts(lengths: np.ndarray, batch_size: int, capacity: int) -> list[int]:
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
  examples: splits.Examples,
  *,
  batch_size: int,
  capacity: int,
  max_len: int,
  seen: str = 'window',
) -> Iterator[features.Batch]:
  """The examples once, in order, in batches of one shape.

  Args:
    histories: the events.
    examples: the part to evaluate.
    batch_size: B, most examples of a batch.
    capacity: T, most tokens of a batch; a batch ends when either is full.
    max_len: most tokens of an example.
    seen: 'window' leaves `Batch.seen` None (the tokens themselves); 'history'
      puts all earlier items of the user there, also those that do not fit.

  Yields:
    `Batch` of NumPy arrays.
  """
  if capacity < max_len:
    raise ValueError(
      f'a capacity of {capacity} tokens cannot hold one example of {max_len}'
    )
  if seen not in ('window', 'history'):
    raise ValueError(f"seen must be 'window' or 'history', not {seen!r}")
  lengths = np.minimum(examples.end - examples.begin, max_len)
  bounds = _cuts(lengths, batch_size, capacity)
  start = histories.offsets[examples.row]
  past = examples.end - start
  if seen == 'history' and len(examples):
    seen_size = capacity_for(np.add.reduceat(past, bounds[:-1]).max())
  for a, b in zip(bounds[:-1], bounds[1:], strict=True):
    batch = collate(
      histories,
      examples,
      np.arange(a, b),
      max_len=max_len,
      batch_size=batch_size,
      capacity=capacity,
    )
    if seen == 'history':
      at = splits.positions(start[a:b], past[a:b])
      batch = features.Batch(
        **{
          **vars(batch),
          'seen': features.Jagged(
            values=_padded(histories.items[at], seen_size),
            lengths=_padded(past[a:b], batch_size),
          ),
        }
      )
    yield batch
