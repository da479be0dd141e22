"""How the Triton kernels of `jagged_embedding` are launched, as data.

`gpu.py` hands these plans to jax-triton, the tests to Triton's interpreter, and
the compile benchmark to Triton's compiler. Nothing here imports triton.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import triton_call
from pallas_kernels.jagged_embedding import settings, spec

# The kernels that add up or move rows, which have tiles of their own.
ROW_KERNELS = (
  'gather_rows',
  'weight_gradient',
  'sum_pieces',
  'sum_bags',
  'merge_runs',
  'update_runs',
  'update_rows',
)
LEVELS = 3  # of sums over pieces, pieces of pieces, ...


class Tile(NamedTuple):
  """The rows that a program has under way at once.

  Attributes:
    segments: bags or runs of equal ids, or rows, that it works on.
    ahead: rows of each segment that are loaded together.
    warps: warps of a program; with one, nothing has to wait for another.
  """

  segments: int
  ahead: int
  warps: int


# All that a measurement may change. A piece is a sum made ahead of long
# segments, in places: `bags` of one bag, `runs` of one id's gradients, which
# come in `LEVELS`. `blocks` are numbers a program adds up or compares. Tiles go
# by kernel and widest row, in elements, the last one also for wider rows; a
# program has as many columns at most, except that one that moves rows has all.
TUNED = {
  'pieces': {'bags': 1024, 'runs': 32},
  'blocks': 1024,
  'tiles': {
    'gather_rows': {
      16: Tile(64, 1, 1),
      32: Tile(32, 1, 1),
      64: Tile(16, 1, 1),
      128: Tile(8, 1, 1),
      256: Tile(8, 1, 2),
      512: Tile(8, 1, 4),
    },
    'weight_gradient': {
      16: Tile(64, 1, 1),
      32: Tile(32, 1, 1),
      64: Tile(16, 1, 1),
      128: Tile(8, 1, 1),
      256: Tile(8, 1, 2),
      512: Tile(8, 1, 4),
    },
    'sum_pieces': {
      16: Tile(1, 32, 1),
      32: Tile(1, 32, 1),
      64: Tile(1, 16, 1),
      128: Tile(1, 8, 1),
      256: Tile(1, 8, 2),
      512: Tile(1, 8, 4),
    },
    'sum_bags': {
      16: Tile(4, 16, 1),
      32: Tile(2, 16, 1),
      64: Tile(1, 16, 1),
      128: Tile(1, 8, 1),
      256: Tile(1, 8, 2),
      512: Tile(1, 8, 4),
    },
    'merge_runs': {
      16: Tile(16, 4, 1),
      32: Tile(16, 2, 1),
      64: Tile(8, 2, 1),
      128: Tile(4, 2, 1),
      256: Tile(4, 2, 2),
      512: Tile(4, 2, 4),
    },
    'update_runs': {
      16: Tile(16, 2, 1),
      32: Tile(8, 2, 1),
      64: Tile(4, 2, 1),
      128: Tile(2, 2, 1),
      256: Tile(4, 2, 2),
      512: Tile(4, 2, 4),
      1024: Tile(2, 2, 4),
      2048: Tile(1, 2, 4),
      4096: Tile(1, 2, 8),
      8192: Tile(1, 1, 16),
    },
    'update_rows': {
      16: Tile(32, 1, 1),
      32: Tile(16, 1, 1),
      64: Tile(8, 1, 1),
      128: Tile(4, 1, 1),
      256: Tile(4, 1, 2),
      512: Tile(4, 1, 4),
      1024: Tile(4, 1, 4),
      2048: Tile(2, 1, 4),
      4096: Tile(1, 1, 8),
      8192: Tile(1, 1, 16),
    },
  },
}


class Constants(NamedTuple):
  """What a kernel is compiled for.

  Attributes:
    count: how many numbers, ids or places there are.
    rows: rows of the table.
    bags: B; 0 for none.
    runs: N, how many rows could occur.
    capacity: K, of `list_ends`.
    sources: rows of the matrix that is summed or read.
    block: numbers of a program, where it has no rows.
    heads: whether numbers that differ from the one before are counted.
    steps: of a bisection over the bags.
    dim: D.
    width: columns of a program, a power of two.
    column_blocks: programs that share a row.
    segments: as in `Tile`.
    ahead: as in `Tile`.
    lanes: their product.
    piece: places of the shortest piece.
    top: places of the longest piece; 0 if there are none.
    span: of `sum_pieces`, places of the pieces that it sums.
    by_bag: whether segments are bags of ids, not runs of equal ones.
    bagged: whether the sorted ids belong to bags.
    weighted: whether ids have weights.
    spare: as in `spec.gather`.
    ptx: whether instructions of NVIDIA's chips may be written as such.
    optimizer: as in `rules.OPTIMIZERS`.
    row_wise: whether mean squares are one number a row.
    lamb: whether it is one of the two LAMBs.
    row_count: as in `Rule`.
    first: kind of the first slot, 'element' or 'row'; '' for none.
    second: of the second one.
    third: of the third one.
    eps: as in `RuleNumbers`, as the next ones.
    beta1: likewise.
    rest1: likewise.
    log1: likewise, and no less than a finite number.
    beta2: likewise.
    rest2: likewise.
    log2: likewise, and no less than a finite number.
    momentum: likewise.
    trust: likewise.
    l2: likewise.
    decoupled: likewise.
    decay_apart: whether that decay is added to the step, not to its direction.
    max_norm: likewise; 0 for none.
    stochastic: whether rows are rounded by chance.
    numbered: whether its numbers of rows are given.
    shifted: whether its numbers of first columns are given.
  """

  count: int
  rows: int = 0
  bags: int = 0
  runs: int = 0
  capacity: int = 0
  sources: int = 0
  block: int = 0
  heads: bool = False
  steps: int = 0
  dim: int = 1
  width: int = 1
  column_blocks: int = 1
  segments: int = 1
  ahead: int = 1
  lanes: int = 1
  piece: int = 1
  top: int = 0
  span: int = 0
  by_bag: bool = False
  bagged: bool = False
  weighted: bool = False
  spare: bool = False
  ptx: bool = False
  optimizer: str = ''
  row_wise: bool = False
  lamb: bool = False
  row_count: bool = False
  first: str = ''
  second: str = ''
  third: str = ''
  eps: float = 0.0
  beta1: float = 0.0
  rest1: float = 0.0
  log1: float = 0.0
  beta2: float = 0.0
  rest2: float = 0.0
  log2: float = 0.0
  momentum: float = 0.0
  trust: float = 0.0
  l2: float = 0.0
  decoupled: float = 0.0
  decay_apart: bool = False
  max_norm: float = 0.0
  stochastic: bool = False
  numbered: bool = False
  shifted: bool = False


def plan_blocks(kernel: str, base: Constants, *outputs) -> triton_call.Launch:
  """The launch of a kernel whose programs have a block of numbers each.

  Args:
    kernel: its name.
    base: constants but for the block.
    *outputs: `jax.ShapeDtypeStruct` of each.
  """
  block = TUNED['blocks']
  return triton_call.Launch(
    kernel=kernel,
    grid=count_blocks(base.count),
    constants=base._replace(block=block, steps=base.bags.bit_length()),
    outputs=outputs,
    warps=4,
    stages=1,
  )


def count_blocks(count: int) -> int:
  return -(-count // TUNED['blocks'])


def plan_rows(
  kernel: str, base: Constants, items: int, *outputs, aliases=()
) -> triton_call.Launch:
  """The launch of one of `ROW_KERNELS`.

  Args:
    kernel: its name.
    base: constants but for the tile.
    items: segments, rows or pieces that the programs share.
    *outputs: `jax.ShapeDtypeStruct` of each.
    aliases: as in `Launch`.
  """
  tiles = TUNED['tiles'][kernel]
  width = _power_of_two(base.dim)
  fitting = [size for size in tiles if size >= width]
  widest = min(fitting, default=max(tiles))
  tile = tiles[widest]
  if kernel == 'sum_pieces':  # most of its programs have nothing to do
    tile = tile._replace(segments=1)
  whole = kernel.startswith('update')
  if not whole:
    width = min(width, widest)
  blocks = -(-base.dim // width)
  constants = base._replace(
    width=width,
    column_blocks=blocks,
    segments=tile.segments,
    ahead=tile.ahead,
    lanes=tile.segments * tile.ahead,
    steps=base.bags.bit_length(),
  )
  # A program of the weights' gradient adds up the products of all columns.
  if kernel == 'weight_gradient':
    blocks = 1
  return triton_call.Launch(
    kernel=kernel,
    grid=-(-items // tile.segments) * blocks,
    constants=constants,
    outputs=outputs,
    warps=tile.warps,
    stages=1,
    aliases=aliases,
  )


def piece_spans(kind: str, count: int) -> list[int]:
  """Places of a piece at each level, for `count` places of 'bags' or 'runs'."""
  piece = TUNED['pieces'][kind]
  levels = 1 if kind == 'bags' else LEVELS
  spans = [piece ** (level + 1) for level in range(levels)]
  return [span for span in spans if count >= 2 * span]


def rule_constants(moved_by: settings.Settings) -> dict:
  """The fields of `Constants` that say how a row moves; without groups."""
  rule = moved_by.rule
  numbers = settings.numbers_of_rows(moved_by)
  names = (
    'eps', 'beta1', 'rest1', 'log1', 'beta2', 'rest2', 'log2', 'momentum',
    'trust', 'l2', 'decoupled', 'max_norm',
  )  # fmt: skip
  fields = {name: getattr(numbers, name) for name in names}
  # The kernels know no infinite numbers; e to this power is zero.
  fields |= {name: max(fields[name], -1e30) for name in ('log1', 'log2')}
  if rule.max_norm is None:
    fields['max_norm'] = 0.0
  kinds = spec.slot_kinds(rule)
  slots = [kinds[name] for name in spec.slot_arrays(rule)]
  fields |= dict(zip(('first', 'second', 'third'), slots))
  means = 'beta1' if 'mean' in kinds else ''
  return fields | dict(
    optimizer=rule.optimizer,
    row_wise=rule.optimizer.startswith('row_'),
    lamb=rule.optimizer.endswith('lamb'),
    row_count=rule.row_count,
    decay_apart=not means and fields['decoupled'] != 0,
  )


def _power_of_two(number: int) -> int:
  return 1 << max(number - 1, 0).bit_length()


def shape(*size: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(size, dtype)
