"""How the Triton kernels of `hstu_attention` are launched, as data.

`gpu.py` hands these plans to jax-triton, the tests to Triton's interpreter, and
the compile benchmark to Triton's compiler. Nothing here imports triton.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch, triton_call
from pallas_kernels.hstu_attention import blocks, masks
from pallas_kernels.hstu_attention.spec import Spec

KERNELS = ('forward', 'backward_queries', 'backward_keys', 'backward_bias')
CELLS = 640  # of the time table: exponents of 0 to 2**31, two bits more each
STEPS = 3  # boundaries of buckets in a tile that is worth no look at the cells
# Tiles, and those read ahead of them, reach so far beyond a table.
ROOM = 256
LOAD_BYTES = 16  # the most that a GPU loads at once
LEAST_WIDTH = 16  # a tile of a matrix product has at least so many columns
BIAS_PROGRAMS = 1056  # wanted, two waves of four on each part of an H100


class Constants(NamedTuple):
  """What a kernel is compiled for.

  Attributes:
    block_q: queries a tile.
    block_k: keys a tile.
    blocks: programs for each sequence and head.
    heads: H.
    group: heads of a program, whose scores have the same bias.
    dqk: width of a query.
    dv: width of a value.
    width_qk: dqk, padded to a power of two.
    width_v: dv, likewise.
    silu: the mode, softmax if not.
    alpha: factor of the dot product.
    scale: factor of the output: one over the static normaliser and over the
      share of weights that dropout keeps.
    slope: factor of the gradient of the scores.
    per_query: whether there is a divisor for each query.
    zero: entry of the position table for a difference of 0; -1 for no table.
    buckets: entries of the time table; 0 for none.
    targets: whether there are targets.
    contextual: as in the spec.
    window: as in the spec; 0 for none.
    full_tail: as in the spec.
    prefix: tokens at the head of a sequence that are seen from beyond the
      window, context and history together; 0 for none.
    drop_below: hashes below it are dropped; 0 for no dropout.
    precision: precision of float32 products: 'ieee' or 'tf32'.
    halved: whether the kernels halve the scores, of which the chip's
      approximate tanh gives the sigmoid; the tables must be halved, too.
    cells: rows of the table of cells, before those about the buckets.
    steps: boundaries of buckets in a tile that is worth no look at the cells.
    room: entries of pairs before the first one of a table.
    ptx: whether instructions of NVIDIA's chips may be written as such.
    ahead: backward_bias: how many differences are negative.
    shares: backward_bias: programs a difference.
    items: backward_bias: sequences.
    time_width: backward_bias: buckets, padded to a power of two.
  """

  block_q: int
  block_k: int
  blocks: int
  heads: int
  group: int
  dqk: int
  dv: int
  width_qk: int
  width_v: int
  silu: bool
  alpha: float
  scale: float
  slope: float
  per_query: bool
  zero: int
  buckets: int
  targets: bool
  contextual: int
  window: int
  full_tail: int
  prefix: int
  drop_below: int
  precision: str
  halved: bool
  cells: int
  steps: int
  room: int
  ptx: bool
  ahead: int = 0
  shares: int = 1
  items: int = 0
  time_width: int = 1


class CallShapes(NamedTuple):
  """Shapes of a call of `hstu_attention`, which its plan depends on.

  Attributes:
    batch: sequences.
    queries: tokens of q.
    keys: tokens of k.
    heads: H.
    dqk: width of a query.
    dv: width of a value.
    dtype: name of the dtype of q, k and v.
    positions: entries of the position table, 0 for none.
    buckets: entries of the time table, 0 for none.
    tail: whether q holds the last tokens only.
    targets: whether there are targets.
  """

  batch: int
  queries: int
  keys: int
  heads: int
  dqk: int
  dv: int
  dtype: str
  positions: int
  buckets: int
  tail: bool
  targets: bool


def call_of(tensors, context) -> CallShapes:
  """The shapes of a call, from its `Tensors` and `Context`."""
  q, k, v, position_bias, time_bias = tensors
  return CallShapes(
    batch=context.lengths.shape[0],
    queries=q.shape[0],
    keys=k.shape[0],
    heads=q.shape[1],
    dqk=q.shape[2],
    dv=v.shape[2],
    dtype=q.dtype.name,
    positions=0 if position_bias is None else position_bias.shape[0],
    buckets=0 if time_bias is None else time_bias.shape[0],
    tail=context.query_lengths is not None,
    targets=context.targets is not None,
  )


def launch_here(kernel: str, spec: Spec, call: CallShapes):
  """`launch` for the device that JAX computes on by default."""
  return launch(
    kernel,
    spec,
    call,
    dispatch.device_kind(),
    dispatch.platform() == 'cuda',
    dispatch.compute_capability(),
  )


def launch(
  kernel: str,
  spec: Spec,
  call: CallShapes,
  device_kind: str,
  cuda: bool,
  capability: str | None = None,
) -> triton_call.Launch:
  """How to launch one of `KERNELS`.

  Args:
    kernel: name of the kernel.
    spec: options of the call.
    call: shapes of the call.
    device_kind: kind of the device whose block sizes to take.
    cuda: whether the device is NVIDIA's.
    capability: its compute capability, None where that is not known.
  """
  # The table is made for bfloat16. Float32 has twice the bytes, and exact
  # products of it hold their operands in registers.
  numbers = 4 if call.dtype == 'float32' else 1
  by_kernel = blocks.lookup(
    'triton',
    device_kind,
    call.dqk * numbers,
    call.dv * numbers,
    blocks.gpu_class(cuda, capability, call.dtype),
  )
  sizes = by_kernel[kernel]
  if call.positions or call.buckets:
    sizes = by_kernel.get(f'{kernel} biased', sizes)
    if spec.window or spec.contextual or spec.dropout or call.targets:
      sizes = by_kernel.get(f'{kernel} biased, masked', sizes)
  _check_counts(spec, call)
  # What is read beyond a sequence must exist.
  if 2 * max(sizes['block_q'], sizes['block_k']) > ROOM:
    raise ValueError(f'blocks of {kernel} may have up to {ROOM // 2} tokens.')
  base = _constants(spec, call, sizes, cuda)
  sequences = call.batch * call.heads // base.group
  float32 = jnp.float32
  q_shape = (call.queries, call.heads, call.dqk)
  if kernel in ('forward', 'backward_queries'):
    constants = base._replace(
      blocks=-(-spec.max_queries // base.block_q) + call.tail
    )
    grid = sequences * constants.blocks
    if kernel == 'forward':
      # An output that is not wanted still needs a shape.
      sums = (call.queries, call.heads) if spec.mode == 'softmax' else (1,)
      shapes = (((*q_shape[:2], call.dv), call.dtype), (sums, float32))
    else:
      shapes = ((q_shape, call.dtype),)
  elif kernel == 'backward_keys':
    constants = base._replace(blocks=-(-spec.max_len // base.block_k))
    grid = sequences * constants.blocks
    # Only the bias of targets is summed by key.
    both = call.targets and call.positions
    sums = (call.keys, call.heads) if both else (1,)
    shapes = (
      ((call.keys, *q_shape[1:]), call.dtype),
      ((call.keys, call.heads, call.dv), call.dtype),
      (sums, float32),
    )
  else:
    constants, grid, shapes = _bias(spec, call, base)
  return triton_call.Launch(
    kernel=kernel,
    grid=grid,
    constants=constants,
    outputs=tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes),
    warps=sizes['warps'],
    stages=sizes['stages'],
  )


def _check_counts(spec: Spec, call: CallShapes) -> None:
  """Raises where a kernel's int32 would not count what it must."""
  width = max(call.dqk, call.dv)
  # Numbers inside a sequence, and numbers of which each token and head has one.
  inside = (spec.max_len + ROOM) * call.heads * width
  if max(inside, max(call.queries, call.keys) * call.heads) >= 2**31:
    raise ValueError(
      f'{call.keys} tokens in sequences of up to {spec.max_len}, of '
      f'{call.heads} heads of {width}, are more than the '
      'kernels for GPUs count.'
    )


def _bias(spec, call, base):
  # Square tiles: a difference of tiles then stands for 2b - 1 distances.
  block = base.block_q
  rows = -(-spec.max_len // block)
  ahead = rows - 1 if spec.contextual else 0
  items = call.batch
  # Enough programs to fill the chip, and no more partial sums than that.
  shares = min(items, -(-BIAS_PROGRAMS // (rows + ahead)))
  constants = base._replace(
    block_k=block,
    ahead=ahead,
    shares=shares,
    items=items,
    time_width=_power_of_two(call.buckets),
  )
  grid = (rows + ahead) * shares
  tiles = (rows + ahead, shares, block, block) if call.positions else (1,)
  sums = (grid, constants.time_width) if call.buckets else (1,)
  return constants, grid, ((tiles, jnp.float32), (sums, jnp.float32))


def _constants(
  spec: Spec, call: CallShapes, sizes: dict, cuda: bool
) -> Constants:
  silu = spec.mode == 'silu'
  # Every constant factor of the output in one number.
  scale = 1.0 / (1.0 - spec.dropout)
  if silu and spec.normaliser is not None:
    scale /= spec.normaliser
  halved = is_halved(spec, call.dtype, cuda)
  return Constants(
    block_q=sizes['block_q'],
    block_k=sizes['block_k'],
    blocks=1,
    heads=call.heads,
    group=_group(call, sizes),
    dqk=call.dqk,
    dv=call.dv,
    # A tile of Triton has a power of two of columns.
    width_qk=max(LEAST_WIDTH, _power_of_two(call.dqk)),
    width_v=max(LEAST_WIDTH, _power_of_two(call.dv)),
    silu=silu,
    alpha=spec.alpha,
    scale=scale,
    slope=scale / 2 if halved else scale,
    per_query=silu and spec.normaliser is None,
    # The middle of a table of 2n - 1 entries.
    zero=call.positions // 2 if call.positions else -1,
    buckets=call.buckets,
    targets=call.targets,
    contextual=spec.contextual,
    window=spec.window or 0,
    full_tail=spec.full_tail,
    prefix=masks.prefix_tokens(spec),
    drop_below=int(spec.dropout * 2**32),
    precision=_precision(),
    halved=halved,
    cells=CELLS,
    steps=STEPS,
    room=ROOM,
    ptx=cuda,
  )


def pad_width(width: int, itemsize: int) -> int:
  """The width of heads as the kernels take them: a multiple of 16 bytes.

  >>> pad_width(50, itemsize=2), pad_width(50, itemsize=4), pad_width(64, 2)
  (56, 52, 64)

  Args:
    width: of a head.
    itemsize: bytes of a number.
  """
  numbers = LOAD_BYTES // itemsize
  return -(-width // numbers) * numbers


def is_halved(spec: Spec, dtype: str, cuda: bool) -> bool:
  """Whether the kernels want half of the tables; see `Constants.halved`.

  Args:
    spec: options of the call.
    dtype: of q, k and v.
    cuda: whether the device is NVIDIA's.
  """
  # Its error of 2^-11 is that of the sigmoid, which bfloat16 rounds to 2^-9
  # where it is large; where it is small, so is the weight.
  return cuda and dtype == 'bfloat16' and spec.mode == 'silu'


def _group(call: CallShapes, sizes: dict) -> int:
  """Heads of a program: what has no bias gains nothing by several."""
  if not (call.positions or call.buckets):
    return 1
  return math.gcd(call.heads, sizes.get('group', 1))


def _precision() -> str:
  """As exact as float32 can be, unless the user's setting asks for less."""
  return 'tf32' if dispatch.allows_coarse_products() else 'ieee'


def _power_of_two(number: int) -> int:
  return 1 << max(number - 1, 0).bit_length()
