"""Decides when a checkpoint holds every row, and when only dirty rows.

| policy       | a delta holds what changed since | a restore reads          |
|--------------|----------------------------------|--------------------------|
| full         | there is none                    | the newest               |
| one_shot     | the base, of which there is one  | base and newest          |
| consecutive  | the save before                  | base and all deltas      |
| intermittent | the base, which is renewed       | base and newest          |

`intermittent` renews its base by the rule of Check-N-Run (arXiv 2010.08679).
Let S_1 ... S_i be the sizes of the deltas since the base, as fractions of it.
If history repeats itself, the next i + 1 saves cost F = 1 + S_1 + ... + S_i
with a new base, and I = (i + 1) S_i without. A new base is made as soon as F <=
I.
"""

from collections.abc import Sequence

POLICIES = ('full', 'one_shot', 'consecutive', 'intermittent')


def wants_base(
  policy: str, history: Sequence[float] | None, full_every: int = 0
) -> bool:
  """Whether the next save is a base.

  Args:
    policy: a name in `POLICIES`.
    history: sizes of the deltas since the last base, as fractions of it; None
      where there is no base.
    full_every: at the latest, every so many saves are a base; 0: no such limit.
  """
  if policy not in POLICIES:
    raise ValueError(
      f'checkpoint policy is {policy!r}, must be one of {", ".join(POLICIES)}'
    )
  if history is None or policy == 'full':
    return True
  if 0 < full_every <= len(history) + 1:
    return True
  if policy != 'intermittent' or not history:
    return False
  renewed = 1 + sum(history)
  going_on = (len(history) + 1) * history[-1]
  return renewed <= going_on


def deltas_start_at_base(policy: str) -> bool:
  """Whether deltas hold what changed since the base, not since the last."""
  return policy != 'consecutive'
