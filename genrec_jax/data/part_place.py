"""Where a stream of part files stands, as its state and checkpoints say it."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class PartPlace:
  """The part that was used last, and how far.

  >>> PartPlace('part-7.csv', used=3, batches=3).is_end
  True

  Attributes:
    name: of its file; '' before the first part.
    used: batches of it that were taken.
    batches: how many it has; 0 for a part without examples, and in the states
      of streams that do not say it.
    number: how many parts have been taken, this one included; 0 before the
      first, and in checkpoints of earlier versions.
  """

  name: str = ''
  used: int = 0
  batches: int = 0
  number: int = 0

  @property
  def is_end(self) -> bool:
    """Whether the batch taken last is the last one of its part."""
    return 0 < self.batches == self.used

  def to_json(self) -> dict:
    """Its fields."""
    return dataclasses.asdict(self)


def locate_part(state: Mapping) -> PartPlace:
  """The place in the state of an iterator of `growing.GrowingBatches`.

  Args:
    state: what its `get_state` returns, also after a trip through JSON.
  """
  return PartPlace(
    state.get('current', ''),
    state.get('used', 0),
    state.get('batches', 0),
    state.get('older', 0) + len(state.get('taken', ())),
  )
