"""Do the TPU kernels compile for each chip, and how much memory do they take?

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.aot_compile
  python -m benchmarks.aot_compile --chips v5e --shapes long_8192

No TPU is needed: the compiler in the libtpu wheel is the real one, down to the
machine's instructions. Nothing runs, so this shows no speed. `temp_bytes` is
the memory beside arguments and results that the compiled program needs;
`vmem_bytes` what the blocks of the largest kernel take of the fast memory, two
of each that changes from step to step (counted from their specs; what lies in
registers and is spilled is not in it).
"""

import contextlib
import functools
import math
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
  'case', 'compiled', 'temp_bytes', 'vmem_bytes', 'argument_bytes',
  'output_bytes', 'compile_core_s', 'error',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile', __doc__)
  parser.add_argument('--chips', nargs='+', choices=CHIPS, default=[*CHIPS])
  parser.add_argument('--shapes', nargs='+', choices=SHAPES, default=[*SHAPES])
  parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=DTYPES)
  parser.add_argument('--passes', nargs='+', choices=PASSES, default=PASSES)
  args = parser.parse_args(argv)
  if args.smoke:
    args.chips, args.shapes = args.chips[:1], ['tiny']
  if missing := slices.why_not():
    cli.fail(missing)
  rows = []
  for chip in args.chips:
    for row in measured(chip, args.shapes, args.dtypes, args.passes):
      rows.append(row)
      print(cli.table([row], COLUMNS), flush=True)
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
  attend = functools.partial(pallas_kernels.hstu_attention, **static)

  def forward(arrays):
    return attend(**arrays)

  def both(arrays, grad):
    inputs = {n: arrays[n] for n in DIFFERENTIABLE if n in arrays}
    out, pullback = jax.vjp(lambda x: attend(**(arrays | x)), inputs)
    return out, pullback(grad)

  if which == 'forward':
    return forward, (arrays,)
  v = arrays['v']
  grad = jax.ShapeDtypeStruct((len(arrays['q']), *v.shape[1:]), v.dtype)
  return both, (arrays, grad)


def compiled(chip: str, function: Callable, arguments: tuple) -> dict:
  """Whether it compiles for the chip, with what memory, in what time."""
  with CoreTimer() as timer, record_vmem() as sizes:
    try:
      memory = compile_for(chip, function, arguments).memory_analysis()
    except Exception as error:  # Mosaic's and XLA's are of many types.
      return {'compiled': False, 'error': str(error).splitlines()[0][:200]}
  return {
    'compiled': True,
    'temp_bytes': memory.temp_size_in_bytes,
    'argument_bytes': memory.argument_size_in_bytes,
    'output_bytes': memory.output_size_in_bytes,
    'vmem_bytes': max(sizes, default=0),
    'compile_core_s': timer.core_s,
  }


@contextlib.contextmanager
def record_vmem() -> Iterator[list[int]]:
  """Counts the bytes of the blocks of each kernel that is traced inside."""
  sizes, call = [], pl.pallas_call

  def record(kernel, *, grid_spec, out_shape, **options):
    run = call(kernel, grid_spec=grid_spec, out_shape=out_shape, **options)

    def count(*arguments):
      inputs = arguments[grid_spec.num_scalar_prefetch :]
      sizes.append(
        _count_blocks(grid_spec.in_specs, inputs)
        + _count_blocks(grid_spec.out_specs, out_shape)
        + _count_scratch(grid_spec.scratch_shapes)
      )
      return run(*arguments)

    return count

  with unittest.mock.patch.object(pl, 'pallas_call', record):
    yield sizes


def _count_blocks(specs, arrays) -> int:
  specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, pl.BlockSpec))
  total = 0
  for spec, array in zip(specs, jax.tree.leaves(arrays), strict=True):
    copies = getattr(spec.pipeline_mode, 'buffer_count', 2)
    total += copies * math.prod(spec.block_shape) * array.dtype.itemsize
  return total


def _count_scratch(scratch) -> int:
  return sum(
    math.prod(x.shape) * np.dtype(x.dtype).itemsize
    for x in jax.tree.leaves(scratch, is_leaf=lambda x: hasattr(x, 'shape'))
  )


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
