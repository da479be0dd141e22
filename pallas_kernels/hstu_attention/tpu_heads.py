"""How the TPU kernels find a head in arrays that have all heads side by side.

Arrays stay as models make them, `[tokens, heads * width]`: a register has 128
lanes, so one of it holds several narrow heads, and nothing is transposed or
filled up to 128 lanes a head. No lane moves in the kernel either. A product
takes all lanes of the registers that hold the head, and zeros in one operand,
where the other heads are, leave them out: the matrix unit contracts 128 lanes
whatever the width, and a sum of several heads has each in lanes of its own.

Where a head holds a number that is not finite, outputs and gradients of its
neighbours are not finite either: 0 * inf.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LANES = 128
MOST = 8  # heads at once: each is compiled anew


class HeadPlan(NamedTuple):
  """How heads are packed. Hashable.

  Attributes:
    together: heads of a step; they share masks and biases.
    groups: how many such steps there are for all heads; their last places may
      be empty.
    dqk: lanes of a query or key, of a head.
    dv: lanes of a value.
  """

  together: int
  groups: int
  dqk: int
  dv: int


class Lanes(NamedTuple):
  """Where a head lies in the lanes of a block.

  Attributes:
    first: first lane of the registers that hold it.
    end: the lane behind them, or behind the block.
    low: its first lane, from `first`.
    high: the lane behind it.
  """

  first: int
  end: int
  low: int
  high: int


def choose(heads: int, dqk: int, dv: int, fit: int) -> HeadPlan:
  """Packs heads so that no head lies in more registers than it must.

  >>> choose(4, 64, 64, fit=8)
  HeadPlan(together=4, groups=1, dqk=64, dv=64)
  >>> choose(2, 25, 130, fit=8)
  HeadPlan(together=2, groups=1, dqk=25, dv=256)
  >>> choose(5, 25, 60, fit=4)
  HeadPlan(together=4, groups=2, dqk=32, dv=64)

  Args:
    heads: number of heads.
    dqk: width of a query and key.
    dv: width of a value.
    fit: heads at once that there is room for.
  """
  fit = min(fit, MOST)
  widths = tuple(fill(d) for d in (dqk, dv))
  if heads <= fit:
    # One block has all lanes, however many. Heads that share one register need
    # no filling.
    widths = (
      d if heads * d <= LANES else width
      for d, width in zip((dqk, dv), widths, strict=True)
    )
    return HeadPlan(heads, 1, *widths)
  # A block is some whole registers of the keys and of the values, which may be
  # of other widths.
  unit = 1
  while 2 * unit <= fit and min(widths) * unit < LANES:
    unit *= 2
  # Where values are so wide that few heads fit, narrow keys are filled up.
  widths = (max(width, LANES // unit) for width in widths)
  # Empty places are computed like heads, and masks and biases once a group,
  # which is taken to cost as much as a head.
  together = min(
    range(unit, fit + 1, unit), key=lambda h: (-(-heads // h) * (h + 1), -h)
  )
  return HeadPlan(together, -(-heads // together), *widths)


def fill(width: int) -> int:
  """Lanes of a head, so that heads share a register or fill whole ones.

  >>> [fill(width) for width in (1, 16, 25, 50, 64, 65, 130)]
  [16, 16, 32, 64, 64, 128, 256]
  """
  shared = (lanes for lanes in (16, 32, 64) if width <= lanes)
  return next(shared, -(-width // LANES) * LANES)


def pack(plan: HeadPlan, x: jax.Array, width: int) -> jax.Array:
  """`[tokens, H, d] -> [tokens, places * width]`, zeros where nothing is."""
  tokens, heads, d = x.shape
  places = plan.together * plan.groups
  if (places, width) != (heads, d):
    x = jnp.pad(x, ((0, 0), (0, places - heads), (0, width - d)))
  return x.reshape(tokens, places * width)


def unpack(x: jax.Array, width: int, heads: int, d: int) -> jax.Array:
  """What `pack` packed."""
  return x.reshape(len(x), -1, width)[:, :heads, :d]


def find_lanes(head: int, width: int, size: int) -> Lanes:
  """Where a head lies.

  >>> find_lanes(3, 64, 384), find_lanes(1, 25, 50)
  (Lanes(first=128, end=256, low=64, high=128), Lanes(first=0, end=50, \
low=25, high=50))

  Args:
    head: number of the head in its block.
    width: lanes of a head.
    size: lanes of the block.
  """
  begin = head * width
  first = begin // LANES * LANES
  end = min(first + max(width, LANES), size)
  return Lanes(first, end, begin - first, begin - first + width)


def read(ref, lanes: Lanes) -> jax.Array:
  """The registers of a block that hold a head, with its neighbours."""
  return ref[:, lanes.first : lanes.end]


def add(ref, lanes: Lanes, x) -> None:
  """Adds to the registers that hold a head."""
  ref[:, lanes.first : lanes.end] += x


def isolate(lanes: Lanes, x, others=0.0, rows=None) -> jax.Array:
  """`x`, with `others` in place of the neighbours.

  Args:
    lanes: of the head.
    x: `[rows, end - first]`, or a column of it.
    others: a number, or such an array.
    rows: `[rows, 1]` the rows to keep; None for all.
  """
  shape = (x.shape[0], lanes.end - lanes.first)
  is_own = rows
  if (lanes.low, lanes.high) != (0, shape[1]):
    lane = lax.broadcasted_iota(jnp.int32, shape, 1)
    is_own = (lane >= lanes.low) & (lane < lanes.high)
    if rows is not None:
      is_own &= rows
  if is_own is None:
    return x
  return jnp.where(is_own, x, jnp.asarray(others, x.dtype))
