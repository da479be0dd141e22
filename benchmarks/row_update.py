"""Whether a step that updates rows costs the same for a table of any size.

  python -m benchmarks.row_update
  python -m benchmarks.row_update --parts sizes --huge-pages
  python -m benchmarks.row_update --parts optimizers --peer FILE.json

A step is the lookup of 4,096 bags of 26 ids each, the way back, and the exact
update. `sizes`: the same step on tables of 1, 10 and 30 million rows of 64,
'sparse' (the rows it touches) and 'dense' (a gradient of the table's size, and
the optimizer on all of it). `optimizers`: each row optimizer on a million rows,
and the options that cost something.

A row is a random place in memory: the larger the table, the more of the
processor's time goes into finding its page. `--huge-pages` starts Python with
GLIBC_TUNABLES=glibc.malloc.hugetlb=1, which lets the allocator ask Linux for
pages of 2 MB, and measures that.

A case that would need more than 60 % of the memory that is free is left out,
and the notes say so. Another program is measured on what
`python -m benchmarks.jagged_embedding --save DIR` writes, and its rows given by
`--peer`: a JSON list with the keys of ours (`case`, `program`, `ids`, `rows`,
`optimizer`, `core_ms`, ...) and `versions`.
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import optax

from benchmarks import cli, jagged_embedding, timing
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS, find_optimizer
from pallas_kernels.jagged_embedding import api, shapes

SIZES = (1_000_000, 10_000_000, 30_000_000)
PARTS = ('sizes', 'optimizers')
RATE, BATCHES, MEMORY = 0.05, 4, 0.6
MODULE, HUGE = 'benchmarks.row_update', 'glibc.malloc.hugetlb=1'
COLUMNS = (
  'case', 'slot_floats', 'core_ms', 'min_core_ms', 'wall_ms', 'min_wall_ms',
  'of_smallest_x', 'dense_x', 'peer_x', 'load_1min',
)  # fmt: skip
# What is measured -> name of the optimizer and its options, dtype.
OPTIMIZERS = {
  name: (name, {}, 'float32') for name in ROW_OPTIMIZERS if name != 'row_sgd'
} | {
  'row_adagrad, decay, norm': (
    'row_adagrad',
    dict(decay='decoupled', weight_decay=1e-4, max_norm=10.0),
    'float32',
  ),
  'adam, counts of rows': ('adam', dict(row_count=True), 'float32'),
  'row_adagrad, by chance': (
    'row_adagrad', dict(stochastic_rounding=True), 'bfloat16',
  ),
  'row_adagrad, by chance, float16': (
    'row_adagrad', dict(stochastic_rounding=True), 'float16',
  ),
}  # fmt: skip
DENSE = {'row_adagrad': None, 'adam': optax.adam(RATE)}


@dataclasses.dataclass(frozen=True)
class Case:
  """One measured program; `program` is 'dense' or the name of a backend."""

  part: str
  rows: int
  ids: str
  program: str
  what: str

  @property
  def name(self) -> str:
    return f'{self.part}/{self.rows}/{self.ids}/{self.program}/{self.what}'


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('row_update', __doc__)
  parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
  parser.add_argument('--sizes', nargs='+', type=int, default=SIZES)
  parser.add_argument('--steps', type=int, default=15, help='measured (15)')
  parser.add_argument('--dense-steps', type=int, default=3, help='of them (3)')
  parser.add_argument('--peer', help='JSON file of measured rows', default='')
  parser.add_argument('--huge-pages', action='store_true', help='see above')
  args = parser.parse_args(argv)
  if args.huge_pages and os.environ.get('GLIBC_TUNABLES') != HUGE:
    os.environ['GLIBC_TUNABLES'] = HUGE  # read when a program starts
    os.execv(sys.executable, [sys.executable, '-m', MODULE, *sys.argv[1:]])
  bags = shapes.SHAPES['million_uniform'].bags
  if args.smoke:
    args.sizes, args.steps, args.dense_steps, bags = (500, 2000), 2, 1, 8
  peers = json.loads(pathlib.Path(args.peer).read_text()) if args.peer else []
  rows, left_out = [], []
  for case in cases(args.parts, args.sizes):
    if (needs := memory(case)) > MEMORY * free_memory():
      left_out.append(f'{case.name}: {needs / 1e9:.1f} GB')
      print('left out', left_out[-1], flush=True)
      continue
    steps = args.dense_steps if case.program == 'dense' else args.steps
    rows.append(measure(case, bags, steps))
    rows[-1]['pages'] = 'huge' if args.huge_pages else 'default'
    rows[-1]['case'] += '/huge pages' * args.huge_pages
    print(case.name, f'{rows[-1]["min_core_ms"]:.1f} core-ms', flush=True)
  compare(rows, peers)
  notes = [
    'core_ms and wall_ms are medians over the steps, core_ms of all threads; '
    'min_* are the least, which suffer least from other programs on the '
    'machine (load_1min). The ratios are of the least core_ms.',
    *(f'Left out, too large for the memory: {what}' for what in left_out),
  ]
  cli.finish(args, 'row_update', rows + peers, COLUMNS, notes)


def cases(parts, sizes) -> list[Case]:
  found = []
  best = 'xla' if api.BACKENDS['cpu'].why_not() else 'cpu'
  if 'sizes' in parts:
    found += [
      Case('sizes', rows, 'uniform', program, what)
      for what in DENSE
      for program in (best, 'dense')
      for rows in sizes
    ]
  if 'optimizers' in parts:
    found += [
      Case('optimizers', min(sizes), ids, program, what)
      for ids, program in dict.fromkeys(
        [('uniform', best), ('zipf', best), ('uniform', 'xla')]
      )
      for what in OPTIMIZERS
    ]
  return found


def measure(case: Case, bags: int, steps: int) -> dict:
  """A row of the result file."""
  shape = dataclasses.replace(
    shapes.SHAPES[f'million_{case.ids}'], rows=case.rows, bags=bags
  )
  calls = [jnp.asarray(shapes.ids(shape, seed)) for seed in range(BATCHES)]
  rest = (
    jnp.asarray(shapes.lengths(shape)),
    jnp.asarray(jagged_embedding.bag_gradient(shape)),
  )
  run, slots = program(case, shape)
  table = first_table(case, shape)
  slots = slots(table)
  run = jax.jit(run, donate_argnums=(0, 1))
  timers = []
  for i in range(steps + 2):
    (_, table, slots), timer = timing.measure(
      run, table, slots, calls[i % BATCHES], *rest
    )
    timers.append(timer)
  floats = sum(x.size for x in jax.tree.leaves(slots) if x.ndim)
  return {
    'case': case.name,
    **dataclasses.asdict(case),
    'optimizer': case.what,
    'dtype': str(table.dtype),
    'steps': steps,
    'table_bytes': table.nbytes,
    'slot_floats': floats / case.rows,
    **jagged_embedding.cost(timers[2:]),
    'load_1min': os.getloadavg()[0],
  }


def first_table(case: Case, shape: shapes.Shape) -> jax.Array:
  dtype = 'float32' if case.program == 'dense' else OPTIMIZERS[case.what][2]
  return jnp.full((shape.rows, shape.dim), 0.01, dtype)


def program(case: Case, shape: shapes.Shape):
  """`step(table, slots, ids, lengths, grads)` -> (bags, table, slots), init."""
  if case.program == 'dense':
    tx = DENSE[case.what]
    if tx is None:
      step = functools.partial(jagged_embedding.step, 'naive')
      return step, lambda table: api.init_slots(table, case.what)
    return functools.partial(dense_step, tx), tx.init
  name, options, _ = OPTIMIZERS[case.what]
  optimizer = find_optimizer(name, **options)
  step = functools.partial(sparse_step, case.program, optimizer)
  return step, optimizer.init


def sparse_step(backend, optimizer, table, slots, ids, lengths, grads):
  """Lookup, way back and update of the rows that occur."""
  bags = api.embedding_bag(table, ids, lengths, implementation=backend)
  grads += 0 * bags.astype(jnp.float32)  # the update comes after the lookup
  return bags, *api.embedding_bag_backward_and_update(
    table, slots, ids, lengths, grads, learning_rate=RATE, optimizer=optimizer,
    implementation=backend,
    stochastic_rounding_seed=1 if optimizer.stochastic_rounding else None,
  )  # fmt: skip


def dense_step(tx, table, state, ids, lengths, grads):
  """The same with a gradient of the whole table, and optax."""
  bags, back = jax.vjp(
    lambda t: jagged_embedding.forward('naive', t, ids, lengths), table
  )
  updates, state = tx.update(*back(grads), state, table)
  return bags, optax.apply_updates(table, updates), state


def memory(case: Case) -> float:
  """Bytes that a case holds at once, about."""
  element = 4.0 * case.rows * shapes.SHAPES['million_uniform'].dim
  if case.program == 'dense':  # also the gradient and what becomes of it
    return element * (5 if case.what == 'adam' else 3)
  name, options, _ = OPTIMIZERS[case.what]
  floats = find_optimizer(name, **options).slot_floats(64)
  return element * (1 + floats / 64)


def free_memory() -> float:
  lines = pathlib.Path('/proc/meminfo').read_text().splitlines()
  (line,) = (x for x in lines if x.startswith('MemAvailable'))
  return 1024.0 * int(line.split()[1])


def compare(rows: list[dict], peers: list[dict]) -> None:
  """Adds ratios of the least core-ms: what the other costs, over ours."""
  for row in rows:
    if row['part'] == 'sizes':
      alike = [
        other
        for other in rows
        if other['part'] == 'sizes' and other['what'] == row['what']
      ]
      own = [x for x in alike if x['program'] == row['program']]
      smallest = min(own, key=lambda x: x['rows'])
      row['of_smallest_x'] = row['min_core_ms'] / smallest['min_core_ms']
      for other in alike:
        if other['program'] == 'dense' != row['program'] and (
          other['rows'] == row['rows']
        ):
          row['dense_x'] = other['min_core_ms'] / row['min_core_ms']
    elif alike := [
      peer['min_core_ms']
      for peer in peers
      if all(peer[key] == row[key] for key in ('ids', 'rows', 'optimizer'))
    ]:
      row['peer_x'] = min(alike) / row['min_core_ms']


if __name__ == '__main__':
  main()
