"""Column splits before partitioning: a beam search over halved tables.

One table that is a large part of all work keeps its device busy whatever the
others do. Halving its columns halves the piece. The search keeps the best few
sets of options, and halves in each the tables with the largest or the slowest
pieces, a few times.
"""

from collections.abc import Callable, Sequence

from genrec_jax.planner.options import Option
from genrec_jax.planner.partition import Placement

BEAM = 3  # sets of options kept after each round
TOP = 10  # tables considered for their bytes, and as many for their time
HALVINGS = 10


def split_search(
  options: Sequence[Option],
  halve: Callable[[int, Option], Option | None],
  place: Callable[[Sequence[Option]], Placement | None],
  *,
  halvings: int = HALVINGS,
) -> Placement | None:
  """The best placement met, None if nothing fits.

  Args:
    options: one of each table, to begin with.
    halve: (number of a table, its option) -> the one with twice the pieces,
      None where there is none.
    place: a partitioner.
    halvings: rounds.
  """
  best = place(options)
  kept, seen = [tuple(options)], {_options_key(options)}
  for _ in range(halvings):
    pieces = []
    for chosen in kept:
      for index in _find_heaviest(chosen):
        half = halve(index, chosen[index])
        if half is None:
          continue
        new = (*chosen[:index], half, *chosen[index + 1 :])
        if _options_key(new) in seen:
          continue
        seen.add(_options_key(new))
        placement = place(new)
        rate = placement.rate if placement else float('inf')
        # While nothing fits, smaller pieces come nearer to it.
        pieces.append((rate, max(o.bytes for o in new), len(pieces), new))
        if placement and (best is None or rate < best.rate):
          best = placement
    if not pieces:
      break
    kept = [new for *_, new in sorted(pieces, key=lambda f: f[:3])[:BEAM]]
  return best


def _find_heaviest(options) -> list[int]:
  numbers = range(len(options))
  large = sorted(numbers, key=lambda i: (-options[i].bytes, i))[:TOP]
  slow = sorted(numbers, key=lambda i: (-options[i].time, i))[:TOP]
  return list(dict.fromkeys(large + slow))


def _options_key(options) -> tuple:
  return tuple((o.scheme, o.pieces) for o in options)
