"""Do the Triton kernels of `jagged_embedding` compile, and to what, for a GPU?

  pip install 'genrec_jax[triton]' && python -m benchmarks.aot_compile_embedding

Traces lookups and updates as for a GPU, and compiles each kernel that they
launch with Triton alone. No GPU is needed and none is used. Registers a thread
and bytes spilled from them come from NVIDIA's assembler.

  pip install jax-triton
  pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt  # of JAX's version
  python -m benchmarks.aot_compile_embedding --xla

has XLA compile whole calls for an H100, the kernels in them. What an update
moves is donated, and must be changed where it lies, also in a loop: a call is
refused whose kernel does not write over its own inputs, or in which anything
else makes an array of the size of the table or of a slot.
"""

import functools
import re
import time
import unittest.mock
from collections.abc import Iterator

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
  'row_lamb': Rule('row_lamb'),
  'lamb': Rule('lamb', row_count=True, decay='decoupled', weight_decay=0.1),
}
ROWS, BAGS, IDS = 1_000_000, 65_536, 2_097_152
COLUMNS = (
  'case', 'compiled', 'warps', 'registers', 'spilled_bytes', 'shared_bytes',
  'compile_s', 'error',
)  # fmt: skip
WHOLE_COLUMNS = (
  'case', 'compiled', 'kernels', 'aliases', 'temp_mb', 'compile_s', 'error',
)  # fmt: skip
WHOLE_TRIPS = {'once': 1, 'in a loop': 3}
_TYPES = {
  'float32': '*fp32', 'bfloat16': '*bf16', 'float16': '*fp16',
  'int32': '*i32', 'uint32': '*u32',
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile_embedding', __doc__)
  parser.add_argument('--only', default='', help='cases that contain this')
  parser.add_argument('--target', default='sm_90')
  parser.add_argument('--xla', action='store_true', help='whole calls')
  args = parser.parse_args(argv)
  aot_compile_gpu.prepare_compilers(args.xla)
  rows = []
  columns = WHOLE_COLUMNS if args.xla else COLUMNS
  for row in _whole_rows(args) if args.xla else _kernel_rows(args):
    rows.append(row)
    print(cli.table(rows[-1:], columns).splitlines()[-1], flush=True)
  notes = ['Compiled, not executed: no GPU was there.']
  name = 'aot_compile_embedding'
  cli.finish(args, f'{name}_xla' if args.xla else name, rows, columns, notes)
  if any('error' in row for row in rows):
    cli.fail('some do not compile as they should')


def _kernel_rows(args) -> Iterator[dict]:
  """A row for each kernel of the chosen calls, compiled by Triton alone."""
  seen = set()
  for case, trace, compiler in _chosen(args.smoke):
    for launch, dtypes in _launches(trace):
      name = f'{case}: {_describe(launch)}, {args.target}'
      if args.only not in name or (launch, dtypes) in seen:
        continue
      seen.add((launch, dtypes))
      yield {'case': name, **_row(launch, dtypes, args.target, compiler)}


def _chosen(smoke: bool):
  """(name, function that traces a call, what its kernels are given to), ..."""
  if smoke:
    lookups = functools.partial(_trace_lookups, 100, 'float32', True)
    yield 'lookups', lookups, compile_launch
    # Machine code of one optimizer with most of the options; of the others and
    # of each dtype what differs is source, which a parser refuses in a moment.
    updates = functools.partial(_trace_updates, 100)
    rule = OPTIMIZERS['lamb']
    yield (
      'updates', functools.partial(updates, 'bfloat16', rule), compile_launch
    )  # fmt: skip
    for optimizer, rule in OPTIMIZERS.items():
      trace = functools.partial(updates, 'float32', rule)
      yield f'parsed, {optimizer}', trace, parse_launch
    for dtype in ('bfloat16', 'float16'):
      trace = functools.partial(updates, dtype, OPTIMIZERS['row_adagrad'])
      yield f'parsed, {dtype}', trace, parse_launch
    return
  for dtype in DTYPES:
    for width in WIDTHS:
      about = f'width {width}, {dtype}'
      for weighted in (False, True):
        name = f'{about}, weighted' if weighted else about
        trace = functools.partial(_trace_lookups, width, dtype, weighted)
        yield name, trace, compile_launch
      for optimizer, rule in OPTIMIZERS.items():
        trace = functools.partial(_trace_updates, width, dtype, rule)
        yield f'{about}, {optimizer}', trace, compile_launch


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
    dispatch.compiling_for('cuda', 'NVIDIA H100 80GB HBM3', '9.0'),
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


def _row(launch, dtypes, target: str, compiler) -> dict:
  row = dict(kernel=launch.kernel, target=target, warps=launch.warps)
  begin = time.perf_counter()
  try:
    compiled = compiler(launch, dtypes, target)
  except Exception as error:  # any failure is a result
    return row | dict(compiled=False, error=_shorten(error))
  row |= dict(compiled=True, compile_s=time.perf_counter() - begin)
  if compiler is parse_launch:
    return row
  row['shared_bytes'] = compiled.metadata.shared
  return row | aot_compile_gpu.resources(compiled)


def _shorten(error: Exception) -> str:
  """What an error says in one line; Triton's ends with the reason."""
  while error.__cause__ is not None:  # the innermost call says most
    error = error.__cause__
  lines = str(error).splitlines() or [repr(error)]
  return f'{lines[0]} {lines[-1]}'[:200] if len(lines) > 1 else lines[0][:200]


def compile_launch(launch, dtypes: tuple[str, ...], target: str):
  """Machine code of a launch, by Triton alone.

  Args:
    launch: a `triton_call.Launch`.
    dtypes: of its inputs and outputs.
    target: a key of `aot_compile_gpu.TARGETS`.
  """
  import triton
  from triton.backends.compiler import GPUTarget

  return triton.compile(
    _source(launch, dtypes),
    target=GPUTarget(*aot_compile_gpu.TARGETS[target]),
    options=dict(num_warps=launch.warps, num_stages=launch.stages),
  )


def parse_launch(launch, dtypes: tuple[str, ...], target: str):
  """The first form of a launch in Triton's compiler, in less than a second.

  What a version of Triton does not take in the source, it refuses here.

  Args:
    launch: as in `compile_launch`.
    dtypes: likewise.
    target: likewise.
  """
  from triton._C.libtriton import ir
  from triton.backends.compiler import GPUTarget
  from triton.compiler import make_backend

  target = GPUTarget(*aot_compile_gpu.TARGETS[target])
  backend = make_backend(target)
  options = backend.parse_options(dict(num_warps=launch.warps))
  context = ir.context()
  ir.load_dialects(context)
  backend.load_dialects(context)
  return _source(launch, dtypes).make_ir(
    target,
    options,
    backend.get_codegen_implementation(options),
    backend.get_module_map(),
    context,
  )


def _source(launch, dtypes):
  from triton.compiler import ASTSource

  function = gpu.kernel_of(launch.kernel)
  names = [_TYPES[dtype] for dtype in dtypes]
  return ASTSource(
    function,
    signature=dict(zip(function.arg_names, names, strict=False))
    | {'s': 'constexpr'},
    constexprs={'s': launch.constants},
    # As jax-triton does: JAX's buffers begin at multiples of 16 bytes.
    attrs={(i,): [['tt.divisibility', 16]] for i in range(len(names))},
  )


def _whole_rows(args) -> Iterator[dict]:
  """A row for each whole call, compiled by XLA for an H100."""
  for case, program, arguments, state in _whole_calls(args.smoke):
    if args.only not in case:
      continue
    try:
      yield {'case': case, **_whole(program, arguments, state)}
    except Exception as error:  # any failure is a result
      yield {'case': case, 'compiled': False, 'error': _shorten(error)}


def _whole_calls(smoke: bool):
  """(name, function, arguments, whether the first one is moved), ..."""
  widths, dtypes, rules = (128, 64), ('float32', 'bfloat16'), OPTIMIZERS
  if smoke:
    widths, dtypes = (64,), ('float32',)
    rules = {'row_adagrad': rules['row_adagrad']}
  for width in widths:
    for dtype in dtypes:
      about = f'width {width}, {dtype}'
      table, bags, grads, _ = _arguments(width, dtype)
      yield f'{about}: embedding_bag', _whole_lookup, (table, *bags), False
      yield f'{about}: merge', _whole_merge, (grads, *bags), False
      for optimizer, rule in rules.items():
        for trips in WHOLE_TRIPS:
          yield (
            f'{about}, {optimizer}: bag_update {trips}',
            *_whole_bag_update(table, rule, (*bags, grads), trips),
            True,
          )
          yield (
            f'{about}, {optimizer}: update {trips}',
            *_whole_update(table, rule, trips),
            True,
          )


def _whole_lookup(table, ids, lengths):
  return api.embedding_bag(table, ids, lengths, implementation='triton')


def _whole_merge(grads, ids, lengths):
  options = dict(implementation='triton')
  return api.bag_row_gradient(grads, ids, lengths, ROWS, **options)


def _whole_bag_update(table, rule: Rule, inputs, trips: str):
  return _repeat(
    api.embedding_bag_backward_and_update, table, rule, inputs, trips
  )


def _whole_update(table, rule: Rule, trips: str):
  import jax

  ids = jax.ShapeDtypeStruct((IDS // 4,), 'int32')
  grads = jax.ShapeDtypeStruct((IDS // 4, table.shape[1]), 'float32')
  return _repeat(api.update_rows, table, rule, (ids, grads), trips)


def _repeat(update, table, rule: Rule, inputs, trips: str):
  """The updates of a table, once or in a loop, and what they are given."""
  import jax

  def step(_, state, *inputs):
    return update(
      *state,
      *inputs,
      optimizer=rule,
      learning_rate=0.1,
      stochastic_rounding_seed=3,
      implementation='triton',
    )

  def run(state, *inputs):
    if WHOLE_TRIPS[trips] == 1:
      return step(0, state, *inputs)
    return jax.lax.fori_loop(
      0, WHOLE_TRIPS[trips], lambda i, state: step(i, state, *inputs), state
    )

  slots = jax.eval_shape(lambda table: api.init_slots(table, rule), table)
  return run, ((table, slots), *inputs)


def _whole(program, arguments, moves: bool) -> dict:
  """XLA compiles a call; `moves` says that it moves its first argument."""
  import jax

  begin = time.perf_counter()
  program = jax.jit(program, donate_argnums=(0,) if moves else ())
  compiled = aot_compile_gpu.compile_for_h100(program, arguments)
  text, memory = compiled.as_text(), compiled.memory_analysis()
  row = dict(
    compiled=True,
    kernels=text.count('custom_call_target="triton_kernel_call'),
    temp_mb=memory.temp_size_in_bytes / 2**20,
    compile_s=time.perf_counter() - begin,
  )
  if moves:
    state = [x for x in jax.tree.leaves(arguments[0]) if x.ndim]
    row['aliases'] = count_aliases(text)
    copies = find_copies(text, [x.shape for x in state])
    if row['aliases'] != len(state):
      row['error'] = f'{row["aliases"]} of {len(state)} arrays lie in place'
    elif copies:
      row['error'] = f'made anew: {", ".join(copies)}'
  return row


def count_aliases(text: str) -> int:
  """Outputs that share memory with inputs, over the calls of a program."""
  lists = re.findall(r'output_to_operand_aliasing=\{(.*?)\)\}', text)
  return sum(line.count(': (') for line in lists)


def find_copies(text: str, shapes) -> list[str]:
  """Instructions that make an array of one of these shapes anew.

  Args:
    text: a compiled program.
    shapes: of the arrays that are to stay where they are.
  """
  sizes = '|'.join({','.join(map(str, shape)) for shape in shapes})
  # What a kernel writes is judged by what it shares; the others move nothing.
  free = (
    'parameter', 'get-tuple-element', 'bitcast', 'custom-call', 'tuple',
    'while',
  )  # fmt: skip
  made = re.findall(r'%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(', text)
  return [
    name
    for name, kind, instruction in made
    if instruction not in free and re.search(rf'\[(?:{sizes})\]', kind)
  ]


if __name__ == '__main__':
  main()
