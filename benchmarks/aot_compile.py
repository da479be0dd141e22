"""Do the TPU kernels compile for each chip, and how much memory do they take?

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.aot_compile
  python -m benchmarks.aot_compile --chips v5e --shapes long_8192

  python -m benchmarks.aot_compile --kernels-of COMMIT   # in a checkout of it

No TPU is needed: the compiler in the libtpu wheel is the real one, down to the
machine's instructions. Nothing runs, so this shows no speed. Queries, keys,
values and the output are `[tokens, heads * width]`, as a model's products make
and take them.

  temp_bytes     memory beside arguments and results that the program needs
  vmem_bytes     what the blocks of the largest kernel take of the fast memory,
                 two of each that changes from step to step (by their specs, in
                 whole tiles; what is spilled from registers is not in it)
  around_bytes   what XLA counts that all but the kernels reads and writes
  around_flops   and computes
  around_cycles  the compiler's estimate for these instructions; loops, gathers
                 and sorts, for which it tells none, are not in it
  kernel_bytes   what the kernels tell XLA that they move
  kernel_flops   and compute; XLA counts nothing for kernels that tell nothing

`--kernels-of` names the commit whose kernels these are, in the rows and their
cases: copy this file to a checkout of it.
"""

import contextlib
import math
import re
import unittest.mock
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import pallas as pl

import pallas_kernels
from benchmarks import cli
from benchmarks.result import CoreTimer
from genrec_jax.parallel import slices
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import shapes

# chip -> the smallest topology of it that the compiler knows.
CHIPS = {
  'v5e': 'v5e:2x2',
  'v5p': 'v5p:2x2x1',
  'v6e': 'v6e:2x2',
  'tpu7x': 'tpu7x:2x2x1',
}
SHAPES = {
  **shapes.SHAPES,
  'long_8192': shapes.Shape(4, max_len=8192, heads=4, dqk=64, dv=64),
  'wide_8192': shapes.Shape(
    4, max_len=8192, heads=2, dqk=256, dv=256, targets=32, contextual=3
  ),
}
SOFTMAX = ('ml1m_hstu', 'ranking_cached', 'long_8192')  # also in that mode
DTYPES = ('bfloat16', 'float32')
PASSES = ('forward', 'forward+backward')
DIFFERENTIABLE = ('q', 'k', 'v', 'position_bias', 'time_bias')
COLUMNS = (
  'case', 'compiled', 'temp_bytes', 'vmem_bytes', 'around_bytes',
  'around_flops', 'around_cycles', 'kernel_bytes', 'kernel_flops',
  'argument_bytes', 'output_bytes', 'compile_core_s', 'error',
)  # fmt: skip
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile', __doc__)
  parser.add_argument('--chips', nargs='+', choices=CHIPS, default=[*CHIPS])
  parser.add_argument('--shapes', nargs='+', choices=SHAPES, default=[*SHAPES])
  parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=DTYPES)
  parser.add_argument('--passes', nargs='+', choices=PASSES, default=PASSES)
  parser.add_argument('--kernels-of', default='', help='a commit, for the rows')
  args = parser.parse_args(argv)
  if args.smoke:
    args.chips, args.shapes = args.chips[:1], ['tiny']
  if missing := slices.why_not():
    cli.fail(missing)
  rows = []
  for chip in args.chips:
    for row in measured(chip, args.shapes, args.dtypes, args.passes):
      if args.kernels_of:
        row['case'] += f'/{args.kernels_of}'
      rows.append(row | {'kernels_of': args.kernels_of or 'this version'})
      print(cli.table(rows[-1:], COLUMNS), flush=True)
  notes = [
    'Compiled ahead of time by the libtpu wheel, not run: no TPU was there.',
    'temp_bytes as the compiler reports it: memory in HBM beside arguments and '
    "results. 0: all of it stays in the chip's fast memory (VMEM).",
  ]
  cli.finish(args, 'aot_compile', rows, COLUMNS, notes)


def measured(chip: str, names, dtypes, passes) -> Iterator[dict]:
  """Compiles attention at the named shapes, one row a program."""
  for name in names:
    for mode in ('silu', 'softmax') if name in SOFTMAX else ('silu',):
      for dtype in dtypes:
        for which in passes:
          row = {
            'case': f'{chip}/{name}/{mode}/{dtype}/{which}',
            'kernel': 'hstu_attention',
            'chip': chip,
            'shape': name,
            'mode': mode,
            'dtype': dtype,
            'pass': which,
          }
          arguments = shapes.inputs(SHAPES[name], dtype=dtype) | {'mode': mode}
          yield row | compiled(chip, *program(arguments, which))


def program(arguments: dict, which: str) -> tuple[Callable, tuple]:
  """A function of arrays, and its arguments, for one of `PASSES`.

  Args:
    arguments: of `hstu_attention`.
    which: 'forward', or 'forward+backward' for the output and all gradients.
  """
  arrays = {n: x for n, x in arguments.items() if hasattr(x, 'shape')}
  static = {n: x for n, x in arguments.items() if n not in arrays}
  heads = arrays['q'].shape[1]

  def attend(arrays):
    split = {n: arrays[n].reshape(len(arrays[n]), heads, -1) for n in 'qkv'}
    out = pallas_kernels.hstu_attention(**(arrays | split), **static)
    return out.reshape(len(out), -1)

  def both(arrays, grad):
    inputs = {n: arrays[n] for n in DIFFERENTIABLE if n in arrays}
    out, pullback = jax.vjp(lambda x: attend(arrays | x), inputs)
    return out, pullback(grad)

  arrays |= {n: arrays[n].reshape(len(arrays[n]), -1) for n in 'qkv'}
  if which == 'forward':
    return attend, (arrays,)
  v = arrays['v']
  grad = jax.ShapeDtypeStruct((len(arrays['q']), v.shape[1]), v.dtype)
  return both, (arrays, grad)


def compiled(chip: str, function: Callable, arguments: tuple) -> dict:
  """Whether it compiles for the chip, with what memory, in what time."""
  with CoreTimer() as timer, record_kernels() as kernels:
    try:
      program = compile_for(chip, function, arguments)
    except Exception as error:  # Mosaic's and XLA's are of many types.
      return {'compiled': False, 'error': str(error).splitlines()[0][:200]}
  memory, counted = program.memory_analysis(), program.cost_analysis()
  moved = sum(kernel['bytes'] for kernel in kernels)
  flops = sum(kernel['flops'] for kernel in kernels)
  row = {
    'compiled': True,
    'temp_bytes': memory.temp_size_in_bytes,
    'argument_bytes': memory.argument_size_in_bytes,
    'output_bytes': memory.output_size_in_bytes,
    'vmem_bytes': max((kernel['vmem'] for kernel in kernels), default=0),
    'around_bytes': int(counted['bytes accessed']) - moved,
    'around_flops': int(counted['flops']) - flops,
    'around_cycles': count_cycles(program.as_text()),
    'compile_core_s': timer.core_s,
  }
  return row | ({'kernel_bytes': moved, 'kernel_flops': flops} if moved else {})


def count_cycles(text: str) -> int:
  """Cycles that the compiler estimates for the instructions of a program.

  >>> count_cycles(
  ...   'body { a = f(), {"estimated_cycles":"9"} }\\n'
  ...   'ENTRY main { b = f(), {"estimated_cycles":"3"}\\n c = g() }'
  ... )
  3

  Args:
    text: of the compiled program; those of its main computation count.
  """
  return sum(map(int, CYCLES.findall(text[text.index('ENTRY ') :])))


@contextlib.contextmanager
def record_kernels() -> Iterator[list[dict]]:
  """Of each kernel traced inside: bytes of its blocks, and what it tells."""
  found, call = [], pl.pallas_call

  def record(kernel, *, grid_spec, out_shape, **options):
    told = options.get('cost_estimate')
    run = call(kernel, grid_spec=grid_spec, out_shape=out_shape, **options)

    def count(*arguments):
      inputs = arguments[grid_spec.num_scalar_prefetch :]
      found.append(
        {
          'vmem': _count_blocks(grid_spec.in_specs, inputs)
          + _count_blocks(grid_spec.out_specs, out_shape)
          + _count_scratch(grid_spec.scratch_shapes),
          'bytes': told.bytes_accessed if told else 0,
          'flops': told.flops if told else 0,
        }
      )
      return run(*arguments)

    return count

  with unittest.mock.patch.object(pl, 'pallas_call', record):
    yield found


def _count_blocks(specs, arrays) -> int:
  specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, pl.BlockSpec))
  total = 0
  for spec, array in zip(specs, jax.tree.leaves(arrays), strict=True):
    copies = getattr(spec.pipeline_mode, 'buffer_count', 2)
    total += copies * count_tiles(spec.block_shape, array.dtype)
  return total


def _count_scratch(scratch) -> int:
  return sum(
    count_tiles(x.shape, x.dtype)
    for x in jax.tree.leaves(scratch, is_leaf=lambda x: hasattr(x, 'shape'))
  )


def count_tiles(shape, dtype) -> int:
  """Bytes of an array in whole tiles of 8 rows of 128 numbers of 32 bits.

  >>> count_tiles((3, 5, 130), 'float32'), count_tiles((256, 64), 'bfloat16')
  (24576, 65536)

  Args:
    shape: of the array.
    dtype: of its numbers; of 16 bits, two rows share a row of a tile.
  """
  size = np.dtype(dtype).itemsize
  *outer, rows, lanes = (1, *shape)
  tile = 8 * (4 // size)
  tiles = -(-rows // tile) * -(-lanes // 128)
  return math.prod(outer) * tiles * tile * 128 * size


def compile_for(
  chip: str, function: Callable, arguments: tuple
) -> jax.stages.Compiled:
  """Compiles `function` for one core of `chip`, with the kernels of a TPU.

  Args:
    chip: a key of `CHIPS`.
    function: of arrays.
    arguments: its arguments, or their shapes.
  """
  devices = slices.find_chips(CHIPS[chip])
  mesh = jax.sharding.Mesh(np.array(devices[:1]), ('x',))
  here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  arguments = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments
  )
  with (
    dispatch.compiling_for('tpu', devices[0].device_kind),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=('tpu',)).compile()


if __name__ == '__main__':
  main()
