"""Chooses for how many tokens a batch has room, before batches are made.

Each capacity is a program that has to be compiled, and each token of room that
is not used is padding that every step pays. The sums of tokens are known from
the order of the epochs. So a run begins with one capacity that nearly every
batch fits, and a smaller one comes into use at the step at which it would have
saved as much as its program costs: a short run compiles one program, and a long
one pays for each of the others about twice at most. The steps depend on the
data and their order alone, so that a continued run has the same shapes.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

UNIT = 128  # tokens; accelerators compute tiles of so many
# What a program costs in tokens of padding. On two CPU cores it is compiled in
# 7 to 15 core-seconds, and HSTU and SASRec with their default sizes take 15 to
# 18 microseconds for a token of padding.
PROGRAM_TOKENS = 1 << 19
MIN_CAPACITY = 128  # of a ladder


def capacity_for(tokens: int, steps: int = 8) -> int:
  """The least capacity for `tokens` on a ladder with 8 steps an octave.

  Padding to few different shapes compiles few programs; at most one token in
  eight is padding (above the minimum).

  Args:
    tokens: that must have room.
    steps: of an octave, a power of two.
  """
  capacity = max(int(tokens), MIN_CAPACITY)
  step = 1 << max(0, (capacity - 1).bit_length() - steps.bit_length())
  return -(-capacity // step) * step


def share_of(batch_size: int, shards: int, name: str = 'batch_size') -> int:
  """Sequences of one shard; `name` is what a user calls the batch size."""
  if batch_size % shards:
    below = batch_size // shards * shards
    near = ' or '.join(str(x) for x in (below, below + shards) if x)
    raise ValueError(
      f'{name} is {batch_size}, and must be a multiple of {shards}: the number '
      'of devices (parallel.devices) that share a batch, in training times '
      'parallel.microbatches, or parallel.reduction_blocks where '
      "parallel.determinism is 'mesh_invariant'; set "
      f'{name} to {near}'
    )
  return batch_size // shards


@dataclasses.dataclass(frozen=True)
class Capacities:
  """Capacities of a shard, and from which batch on each is used.

  >>> capacities = Capacities((512, 256), (0, 100))
  >>> [capacities.fit(200, number) for number in (0, 99, 100)]
  [512, 512, 256]
  >>> capacities.fit(600, 0) is None
  True

  Attributes:
    sizes: tokens; the first is the largest, with which a run begins.
    since: number of the first batch that each may have.
  """

  sizes: tuple[int, ...]
  since: tuple[int, ...]

  def fit(self, tokens: int, number: int) -> int | None:
    """The capacity of batch `number`; None where none has room for it."""
    usable = zip(self.sizes, self.since, strict=True)
    fitting = [size for size, n in usable if n <= number and tokens <= size]
    return min(fitting, default=None)

  def count_programs(self, steps: int) -> int:
    """How many of the capacities a run of `steps` steps uses."""
    return sum(number < steps for number in self.since)

  def describe(self) -> str:
    """The capacities, as a line of a log says them."""
    first, *others = zip(self.sizes, self.since, strict=True)
    texts = [f'{size:,} from step {number:,}' for size, number in others]
    return f'room for {first[0]:,} tokens a batch' + ''.join(
      f', or {text}' for text in texts
    )


def choose_capacities(sums: Sequence[int], most: int) -> Capacities:
  """Chooses capacities for batches of so many tokens.

  >>> choose_capacities([1000, 1000, 500, 1000], 1)
  Capacities(sizes=(1024,), since=(0,))
  >>> choose_capacities([1000, 1000, 500, 1000], 2)  # saves 128 a batch
  Capacities(sizes=(1024, 512), since=(0, 4096))

  Args:
    sums: tokens of batches, those of the longest shard.
    most: the most capacities to choose.
  """
  rounded = -(-np.maximum(np.asarray(sums, np.int64), 1) // UNIT) * UNIT
  values, counts = np.unique(rounded, return_counts=True)
  sizes, since = [int(values[-1])], [0]
  room = np.full(len(values), values[-1])  # of the batches with each sum
  for _ in range(1, most):
    # What each value would save as a further capacity, of all batches.
    saved = np.array([
      ((room - size) * counts)[(values <= size) & (room > size)].sum()
      for size in values
    ])  # fmt: skip
    best = int(saved.argmax())
    if not saved[best]:
      break
    room = np.where(
      values <= values[best], np.minimum(room, values[best]), room
    )
    sizes.append(int(values[best]))
    since.append(int(-(-PROGRAM_TOKENS * len(rounded) // saved[best])))
  return Capacities(tuple(sizes), tuple(since))


@dataclasses.dataclass(frozen=True)
class SizedBatches:
  """An iterable of training batches whose shapes are known beforehand.

  Attributes:
    batches: the iterable.
    capacities: of its batches; None where all have one shape.
  """

  batches: Iterable
  capacities: Capacities | None = None

  def __iter__(self):
    return iter(self.batches)

  def count_programs(self, steps: int) -> int:
    """How many shapes the batches of a run of `steps` steps have."""
    return self.capacities.count_programs(steps) if self.capacities else 1
