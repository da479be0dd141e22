"""Do the TPU kernels of embeddings compile, and how much do they move?

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.aot_compile_tpu_embedding
  python -m benchmarks.aot_compile_tpu_embedding --only v5e/bag

No TPU is needed: the compiler in the libtpu wheel is the real one, down to the
machine's instructions. Nothing runs, so this shows no speed. Each call is
compiled twice, with the kernels and as XLA does it alone. Bytes are for each
id, if all ids name different rows:

- least: ids and gradients once, each row and its slots once there (and back, if
  they move), and the result.
- traffic: `bytes accessed` of the compiled program. In it a kernel counts with
  the copies that it starts, and all else as XLA counts. XLA counts a gather or
  a scatter by tiles of eight rows, or as if it passed over the whole table;
  what a TPU moves then is not known here.
- kernel: the copies alone.

A kernel that does not change its table where it lies, or for which XLA makes
another array of the table's size or brings all of a slot with one number a row
into the fast memory, is an error.
"""

import contextlib
import functools
import math
import re
import unittest.mock
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from benchmarks import aot_compile, aot_compile_embedding, cli
from benchmarks.result import CoreTimer
from genrec_jax.parallel import slices
from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import api, tpu_room
from pallas_kernels.jagged_embedding.spec import Rule

ROWS, BAGS, IDS = 1_000_000, 4096, 4096 * 26
PROGRAMS = ('pallas_tpu', 'xla')
LOOKUPS = [('float32', 128), ('bfloat16', 128), ('float32', 256)]
# No multiples of 128, which the kernels refuse: what XLA does with them.
ODD_WIDTHS = (32, 64, 200)
OPTIMIZERS = aot_compile_embedding.OPTIMIZERS
# All optimizers for rows of one kind, and two of them for others.
UPDATES = [(name, 'float32', 128) for name in OPTIMIZERS] + [
  (name, *rows)
  for name in ('row_adagrad', 'adam')
  for rows in (('bfloat16', 128), ('float32', 256))
]
COLUMNS = (
  'case', 'compiled', 'least_id_bytes', 'traffic_id_bytes', 'kernel_id_bytes',
  'least_share', 'temp_bytes', 'vmem_bytes', 'smem_bytes', 'compile_core_s',
  'error',
)  # fmt: skip


class Call(NamedTuple):
  """A call that is compiled.

  Attributes:
    run: function of the program and the arguments.
    arguments: their shapes.
    held: how many of them, the first ones, must stay where they lie.
    moves: whether it changes them there.
    least: bytes that must be moved.
  """

  run: Callable
  arguments: tuple
  held: int
  moves: bool
  least: int

  @property
  def donated(self) -> tuple[int, ...]:
    return tuple(range(self.held if self.moves else 0))


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile_tpu_embedding', __doc__)
  parser.add_argument(
    '--chips', nargs='+', choices=aot_compile.CHIPS, default=['v5e']
  )
  parser.add_argument('--only', default='', help='cases that contain this')
  args = parser.parse_args(argv)
  if missing := slices.why_not():
    cli.fail(missing)
  rows = []
  for chip in args.chips:
    for case, fields, call in find_calls(args.smoke):
      for program in PROGRAMS if fields['width'] % 128 == 0 else ('xla',):
        name = f'{chip}/{case}/{program}'
        if args.only not in name:
          continue
        row = {'case': name, 'chip': chip, 'program': program, **fields}
        rows.append(row | measure(chip, program, call))
        print(cli.table(rows[-1:], COLUMNS), flush=True)
  notes = ['Compiled ahead of time by the libtpu wheel, not run.']
  cli.finish(args, 'aot_compile_tpu_embedding', rows, COLUMNS, notes)
  if any('error' in row for row in rows):
    cli.fail('some do not compile as they should')


def find_calls(smoke: bool) -> Iterator[tuple[str, dict, Call]]:
  """(case, fields of its row, the call)."""
  # Not fewer rows: XLA may bring a small table into the fast memory.
  sizes = (ROWS, 16, 64) if smoke else (ROWS, BAGS, IDS)
  lookups, updates = (LOOKUPS[:1], UPDATES[:1]) if smoke else (LOOKUPS, UPDATES)
  for dtype, width in lookups:
    for op in ('gather', 'embedding_bag', 'bag_row_gradient'):
      if op == 'bag_row_gradient' and dtype != 'float32':
        continue  # gradients are float32 whatever the table
      fields = {'op': op, 'dtype': dtype, 'width': width}
      yield f'{op}/{dtype}/{width}', fields, lookup(op, dtype, width, sizes)
  for width in () if smoke else ODD_WIDTHS:
    fields = {'op': 'gather', 'dtype': 'float32', 'width': width}
    yield f'gather/float32/{width}', fields, lookup(**fields, sizes=sizes)
  for optimizer, dtype, width in updates:
    fields = {'op': optimizer, 'dtype': dtype, 'width': width}
    call = update(OPTIMIZERS[optimizer], dtype, width, sizes)
    yield f'{optimizer}/{dtype}/{width}', fields, call


def _shapes(dtype: str, width: int, sizes):
  rows, bags, ids = sizes
  shape = jax.ShapeDtypeStruct
  return (
    shape((rows, width), dtype),
    shape((ids,), 'int32'),
    shape((bags,), 'int32'),
    shape((bags, width), 'float32'),
  )


def _size_of(*arrays) -> int:
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)


def lookup(op: str, dtype: str, width: int, sizes) -> Call:
  """A call that moves no rows.

  Args:
    op: name of a function of `api`.
    dtype: of the table.
    width: D.
    sizes: rows of the table, bags, ids.
  """
  table, ids, lengths, grads = _shapes(dtype, width, sizes)
  count, row = ids.size, width * table.dtype.itemsize
  if op == 'gather':

    def run(program, table, ids):
      return api.gather(table, ids, implementation=program)

    least = _size_of(ids) + 2 * count * row
    return Call(run, (table, ids), 1, False, least)
  if op == 'embedding_bag':

    def run(program, table, ids, lengths):
      return api.embedding_bag(table, ids, lengths, implementation=program)

    least = _size_of(ids, lengths) + (count + lengths.size) * row
    return Call(run, (table, ids, lengths), 1, False, least)

  def run(program, grads, ids, lengths):
    return api.bag_row_gradient(
      grads, ids, lengths, sizes[0], implementation=program
    )

  merged = min(count, sizes[0]) * (4 + 4 * width)
  least = _size_of(grads, ids, lengths) + merged
  return Call(run, (grads, ids, lengths), 0, False, least)


def update(rule: Rule, dtype: str, width: int, sizes) -> Call:
  """An update in one pass.

  Args:
    rule: how rows move.
    dtype: of the table.
    width: D.
    sizes: as in `lookup`.
  """
  table, ids, lengths, grads = _shapes(dtype, width, sizes)
  slots = jax.eval_shape(lambda table: api.init_slots(table, rule), table)

  def run(program, table, slots, ids, lengths, grads):
    return api.embedding_bag_backward_and_update(
      table,
      slots,
      ids,
      lengths,
      grads,
      optimizer=rule,
      learning_rate=0.1,
      stochastic_rounding_seed=3,
      implementation=program,
    )

  arrays = [table, *(x for x in slots.values() if x.ndim)]
  moved = min(ids.size, sizes[0]) * _size_of(*arrays) // sizes[0]
  least = _size_of(ids, lengths, grads) + 2 * moved
  return Call(run, (table, slots, ids, lengths, grads), 2, True, least)


def measure(chip: str, program: str, call: Call) -> dict:
  """Compiles a call for a chip; what it needs and moves.

  Args:
    chip: a key of `aot_compile.CHIPS`.
    program: one of `PROGRAMS`.
    call: the call.
  """
  ids = next(
    x for x in call.arguments if getattr(x, 'dtype', None) == 'int32'
  ).size
  with CoreTimer() as timer, record_kernels() as kernels:
    try:
      compiled = compile_for(chip, program, call)
    except Exception as error:  # Mosaic's and XLA's are of many types.
      return {'compiled': False, 'error': str(error).splitlines()[0][:200]}
  traffic = compiled.cost_analysis()['bytes accessed']
  row = {
    'compiled': True,
    'least_id_bytes': call.least / ids,
    'traffic_id_bytes': traffic / ids,
    'least_share': call.least / traffic,
    'temp_bytes': compiled.memory_analysis().temp_size_in_bytes,
    'compile_core_s': timer.core_s,
  }
  if program == 'pallas_tpu':
    row['kernel_id_bytes'] = sum(k['moved'] for k in kernels) / ids
    row['vmem_bytes'] = max(k['vmem'] for k in kernels)
    row['smem_bytes'] = max(k['smem'] for k in kernels)
    if fault := _find_fault(compiled, call):
      row['error'] = fault
  return row


def _find_fault(compiled, call: Call) -> str:
  """Which large array does not stay where it lies; '' for none."""
  arrays = jax.tree.leaves(call.arguments[: call.held])
  large = [x.shape for x in arrays if len(x.shape) == 2]
  copies = large and aot_compile_embedding.find_copies(
    compiled.as_text(), large
  )
  if copies:
    return f'made anew: {", ".join(copies)}'
  slots = {x.size for x in arrays if call.moves and len(x.shape) == 1}
  # S(1) is that memory.
  if any(re.search(rf'\[{n}\]\{{\S*S\(1\)', compiled.as_text()) for n in slots):
    return 'a slot is brought into the fast memory'
  size = _size_of(*arrays) if call.moves else 0
  alias = compiled.memory_analysis().alias_size_in_bytes
  # More where the last tile of a slot is filled up.
  return f'{alias} of {size} bytes lie in place' if alias < size else ''


def compile_for(chip: str, program: str, call: Call) -> jax.stages.Compiled:
  """As `aot_compile.compile_for`, with arguments that are changed in place.

  Args:
    chip: a key of `aot_compile.CHIPS`.
    program: one of `PROGRAMS`.
    call: the call.
  """
  devices = slices.find_chips(aot_compile.CHIPS[chip])
  mesh = jax.sharding.Mesh(np.array(devices[:1]), ('x',))
  here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  arguments = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
    call.arguments,
  )
  with (
    dispatch.compiling_for('tpu', devices[0].device_kind),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    compiled = jax.jit(
      functools.partial(call.run, program), donate_argnums=call.donated
    )
    traced = compiled.trace(*arguments)
    return traced.lower(lowering_platforms=('tpu',)).compile()


@contextlib.contextmanager
def record_kernels() -> Iterator[list[dict]]:
  """Of each kernel traced inside: bytes moved, and of both fast memories."""
  found, call = [], pl.pallas_call

  def record(kernel, *, grid_spec, out_shape, **options):
    run = call(kernel, grid_spec=grid_spec, out_shape=out_shape, **options)

    def count(*arguments):
      prefetched = arguments[: grid_spec.num_scalar_prefetch]
      inputs = arguments[grid_spec.num_scalar_prefetch :]
      in_specs = grid_spec.in_specs
      sizes = {
        name: tpu_room.count_bytes(grid_spec.scratch_shapes, space)
        + _count_blocks(in_specs, inputs, space)
        + _count_blocks(grid_spec.out_specs, out_shape, space)
        for name, space in (('vmem', pltpu.VMEM), ('smem', pltpu.SMEM))
      }
      sizes['smem'] += _size_of(*prefetched)
      found.append(sizes | {'moved': options['cost_estimate'].bytes_accessed})
      return run(*arguments)

    return count

  with unittest.mock.patch.object(pl, 'pallas_call', record):
    yield found


def _count_blocks(specs, arrays, space) -> int:
  """Bytes of the blocks in a memory, two of each."""
  specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, pl.BlockSpec))
  total = 0
  for spec, array in zip(specs, jax.tree.leaves(arrays), strict=True):
    # A spec that names no memory is of the fast one.
    if spec.block_shape and (spec.memory_space or pltpu.VMEM) == space:
      sizes = (1 if isinstance(n, pl.Squeezed) else n for n in spec.block_shape)
      total += 2 * math.prod(sizes) * array.dtype.itemsize
  return total


if __name__ == '__main__':
  main()
