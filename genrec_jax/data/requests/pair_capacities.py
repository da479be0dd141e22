"""Chooses for how many events and candidates a batch of requests has room.

As `data.capacities`, for two sums of a batch at once: each pair of capacities
is a program that has to be compiled, and what is not used of either is padding.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from genrec_jax.data import capacities, pipeline

_VALUES = 16  # of each sum, at most, among which pairs are looked for


@dataclasses.dataclass(frozen=True)
class PairCapacities:
  """Capacities of a shard, and from which batch on each pair is used.

  >>> pairs = PairCapacities(((512, 256), (256, 128)), (0, 100))
  >>> [pairs.find_room(200, 100, number) for number in (0, 100)]
  [(512, 256), (256, 128)]
  >>> pairs.find_room(200, 300, 0)  # more candidates than ever expected
  (512, 320)

  Attributes:
    sizes: (events, candidates); the first pair has room for all batches that
      were looked at, and a run may begin with it.
    since: number of the first batch that each may have.
  """

  sizes: tuple[tuple[int, int], ...]
  since: tuple[int, ...]

  def find_room(
    self, events: int, candidates: int, number: int
  ) -> tuple[int, int]:
    """The smallest pair with room that batch `number` may have.

    Where none has room, what does not fit the largest pair is rounded up by
    `pipeline.capacity_for`.
    """
    fitting = [
      pair
      for pair, since in zip(self.sizes, self.since, strict=True)
      if since <= number and events <= pair[0] and candidates <= pair[1]
    ]
    if fitting:
      return min(fitting, key=sum)
    most_events, most_candidates = self.sizes[0]
    return (
      most_events if events <= most_events else pipeline.capacity_for(events),
      most_candidates
      if candidates <= most_candidates
      else pipeline.capacity_for(candidates),
    )

  def count_programs(self, steps: int) -> int:
    """How many of the pairs a run of `steps` steps may use."""
    return sum(number < steps for number in self.since)

  def describe(self) -> str:
    """The capacities, as a line of a log says them."""
    texts = [
      f'of {events:,} events and {candidates:,} candidates'
      + f' from step {since:,}' * bool(since)
      for (events, candidates), since in zip(
        self.sizes, self.since, strict=True
      )
    ]
    return f'room for a batch {", or ".join(texts)}'


def choose_pairs(
  sums: Sequence[tuple[int, int]],
  most: int,
  epoch_batches: int | None = None,
) -> PairCapacities:
  """Chooses capacities for batches of so many events and candidates.

  >>> choose_pairs([(1000, 90), (1000, 200), (100, 90)], 1)
  PairCapacities(sizes=((1024, 256),), since=(0,))

  Args:
    sums: (events, candidates) of batches, those of the longest shard.
    most: the most pairs to choose.
    epoch_batches: batches of an epoch whose order is that of the data, so that
      small batches may stand at its beginning alone, of which `sums` are a
      sample. A pair may then be used at once, and is chosen if it saves as
      much as its program costs within the epoch. None for shuffled epochs,
      where it is used from the step on at which it would have done so.
  """
  unit = capacities.UNIT
  rounded = -(-np.maximum(np.asarray(sums, np.int64), 1) // unit) * unit
  batches, counts = np.unique(rounded, axis=0, return_counts=True)
  axes = [_pick_values(batches[:, i]) for i in (0, 1)]
  pairs = np.stack(np.meshgrid(*axes, indexing='ij'), -1).reshape(-1, 2)
  sizes, since = [tuple(batches.max(axis=0).tolist())], [0]
  room = np.full(len(batches), sum(sizes[0]))
  for _ in range(1, most):
    saved = np.array([_count_saved(batches, counts, room, p) for p in pairs])
    best = int(saved.argmax())
    if not saved[best]:
      break
    # The batch at which the savings have paid for the program.
    pays = -(-capacities.PROGRAM_TOKENS * len(rounded) // int(saved[best]))
    if epoch_batches is not None and pays > epoch_batches:
      break
    fits = (batches <= pairs[best]).all(axis=1)
    room[fits] = np.minimum(room[fits], pairs[best].sum())
    sizes.append(tuple(pairs[best].tolist()))
    since.append(0 if epoch_batches is not None else pays)
  return PairCapacities(tuple(sizes), tuple(since))


def _pick_values(values: np.ndarray) -> np.ndarray:
  """At most `_VALUES` of the distinct values, evenly spread, the last too."""
  distinct = np.unique(values)
  at = np.linspace(0, len(distinct) - 1, min(len(distinct), _VALUES))
  return distinct[np.ceil(at).astype(int)]


def _count_saved(batches, counts, room, pair) -> int:
  """Tokens of padding that `pair` would save, as one more."""
  fits = (batches <= pair).all(axis=1)
  return int((np.maximum(room - pair.sum(), 0) * counts)[fits].sum())
