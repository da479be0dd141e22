"""Do the Triton kernels of `jagged_embedding` compile, and to what, for a GPU?

  pip install 'genrec_jax[triton]' && python -m benchmarks.aot_compile_embedding

Traces lookups and updates as for a GPU, and compiles each kernel that they
launch with Triton alone. No GPU is needed and none is used. Registers a thread
and bytes spilled from them come from NVIDIA's assembler.
"""

import functools
import importlib.util
import os
import time
import unittest.mock

from benchmarks import aot_compile_gpu, cli
from pallas_kernels import dispatch, triton_call
from pallas_kernels.jagged_embedding import api, gpu
from pallas_kernels.jagged_embedding.spec import Rule

DTYPES = ('bfloat16', 'float32')
WIDTHS = (128, 64, 100, 512)
OPTIMIZERS = {
  'sgd': Rule('sgd'),
  'momentum': Rule('momentum', decay='decoupled', weight_decay=0.1),
  'row_adagrad': Rule('row_adagrad'),
  'adagrad': Rule('adagrad', decay='l2', weight_decay=0.1),
  'row_adam': Rule('row_adam', row_count=True),
  'adam': Rule('adam', max_norm=1.0),
  'lars': Rule('lars', decay='l2', weight_decay=0.1),
  'lamb': Rule('lamb', row_count=True, decay='decoupled', weight_decay=0.1),
}
ROWS, BAGS, IDS = 1_000_000, 65_536, 2_097_152
COLUMNS = (
  'case', 'compiled', 'warps', 'registers', 'spilled_bytes', 'shared_bytes',
  'compile_s', 'error',
)  # fmt: skip
_TYPES = {
  'float32': '*fp32', 'bfloat16': '*bf16', 'float16': '*fp16',
  'int32': '*i32', 'uint32': '*u32',
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile_embedding', __doc__)
  parser.add_argument('--only', default='', help='cases that contain this')
  parser.add_argument('--target', default='sm_90')
  args = parser.parse_args(argv)
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('TRITON_DEFAULT_FP_FUSION', '1')
  os.environ.setdefault('TRITON_ALWAYS_COMPILE', '1')  # whatever it has kept
  if importlib.util.find_spec('triton') is None:
    cli.fail('there is no package triton here; see --help.')
  rows, seen = [], set()
  for case, trace in _chosen(args.smoke):
    for launch, dtypes in _launches(trace):
      name = f'{case}: {_describe(launch)}, {args.target}'
      if args.only not in name or (launch, dtypes) in seen:
        continue
      seen.add((launch, dtypes))
      rows.append({'case': name, **_row(launch, dtypes, args.target)})
      print(cli.table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
  notes = ['Compiled, not executed: no GPU was there.']
  cli.finish(args, 'aot_compile_embedding', rows, COLUMNS, notes)
  if not all(row['compiled'] for row in rows):
    cli.fail('some kernels do not compile')


def _chosen(smoke: bool):
  """(name, function that traces a call), ..."""
  if smoke:
    yield 'lookups', functools.partial(_trace_lookups, 100, 'float32', True)
    rule = OPTIMIZERS['lamb']
    yield 'updates', functools.partial(_trace_updates, 100, 'bfloat16', rule)
    return
  for dtype in DTYPES:
    for width in WIDTHS:
      about = f'width {width}, {dtype}'
      for weighted in (False, True):
        name = f'{about}, weighted' if weighted else about
        yield name, functools.partial(_trace_lookups, width, dtype, weighted)
      for optimizer, rule in OPTIMIZERS.items():
        yield (
          f'{about}, {optimizer}',
          functools.partial(_trace_updates, width, dtype, rule),
        )


def _arguments(width: int, dtype: str):
  import jax

  def shape(*size, dtype='float32'):
    return jax.ShapeDtypeStruct(size, dtype)

  ids = shape(IDS, dtype='int32'), shape(BAGS, dtype='int32')
  return shape(ROWS, width, dtype=dtype), ids, shape(BAGS, width), shape(IDS)


def _trace_lookups(width: int, dtype: str, weighted: bool) -> None:
  """A bag, a gather, the gradients of both."""
  import jax

  table, bags, grads, weights = _arguments(width, dtype)

  def run(table, ids, lengths, grads, weights):
    options = dict(implementation='triton')
    api.gather(table, ids, spare=True, **options)
    api.bag_weight_gradient(table, grads, ids, lengths, **options)
    options['weights'] = weights if weighted else None
    api.embedding_bag(table, ids, lengths, **options)
    api.bag_row_gradient(grads, ids, lengths, ROWS, **options)

  jax.eval_shape(run, table, *bags, grads, weights)


def _trace_updates(width: int, dtype: str, rule: Rule) -> None:
  """An update in one pass, and one of merged gradients; rounded by chance."""
  import jax

  table, bags, grads, _ = _arguments(width, dtype)
  state = jax.eval_shape(lambda table: api.init_slots(table, rule), table)
  merged = jax.ShapeDtypeStruct((IDS // 4,), 'int32')
  some = jax.ShapeDtypeStruct((IDS // 4, width), 'float32')

  def run(table, state, ids, lengths, grads, merged, some):
    options = dict(
      optimizer=rule,
      learning_rate=0.1,
      stochastic_rounding_seed=3,
      implementation='triton',
    )
    api.embedding_bag_backward_and_update(
      table, state, ids, lengths, grads, **options
    )
    api.update_rows(table, state, merged, some, **options)

  jax.eval_shape(run, table, state, *bags, grads, merged, some)


def _launches(trace) -> list:
  """(launch, dtypes of inputs and outputs) of each kernel in a traced call."""
  found = []

  def record(function, launch, *inputs):
    import jax.numpy as jnp

    arrays = *inputs, *launch.outputs
    found.append((launch, tuple(x.dtype.name for x in arrays)))
    return [jnp.zeros(x.shape, x.dtype) for x in launch.outputs]

  with (
    dispatch.compiling_for('cuda', 'NVIDIA H100 80GB HBM3'),
    unittest.mock.patch.object(triton_call, 'run', record),
    unittest.mock.patch.dict(
      api.BACKENDS, triton=dispatch.Backend(lambda: gpu)
    ),
  ):
    trace()
  return found


def _describe(launch) -> str:
  """Its kernel, and what it is for where that is not the only launch of it."""
  constants = launch.constants
  if launch.kernel == 'sum_pieces':
    kind = 'ids of a bag' if constants.by_bag else 'places'
    return f'sum_pieces of {constants.span} {kind}'
  if launch.kernel == 'sum_blocks':
    return f'sum_blocks of {"runs" if constants.heads else "lengths"}'
  return launch.kernel


def _row(launch, dtypes, target: str) -> dict:
  row = dict(kernel=launch.kernel, target=target, warps=launch.warps)
  begin = time.perf_counter()
  try:
    compiled = compile_launch(launch, dtypes, target)
  except Exception as error:  # any failure is a result
    lines = str(error).splitlines() or [repr(error)]
    return row | dict(compiled=False, error=lines[0][:200])
  row |= dict(
    compiled=True,
    shared_bytes=compiled.metadata.shared,
    compile_s=time.perf_counter() - begin,
  )
  return row | aot_compile_gpu.resources(compiled)


def compile_launch(launch, dtypes: tuple[str, ...], target: str):
  """Machine code of a launch, by Triton alone.

  Args:
    launch: a `triton_call.Launch`.
    dtypes: of its inputs and outputs.
    target: a key of `aot_compile_gpu.TARGETS`.
  """
  import triton
  from triton.backends.compiler import GPUTarget
  from triton.compiler import ASTSource

  function = gpu.kernel_of(launch.kernel)
  names = [_TYPES[dtype] for dtype in dtypes]
  source = ASTSource(
    function,
    signature=dict(zip(function.arg_names, names, strict=False))
    | {'s': 'constexpr'},
    constexprs={'s': launch.constants},
    # As jax-triton does: JAX's buffers begin at multiples of 16 bytes.
    attrs={(i,): [['tt.divisibility', 16]] for i in range(len(names))},
  )
  return triton.compile(
    source,
    target=GPUTarget(*aot_compile_gpu.TARGETS[target]),
    options=dict(num_warps=launch.warps, num_stages=launch.stages),
  )


if __name__ == '__main__':
  main()
