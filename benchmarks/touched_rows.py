"""What does it cost to mark, within a step, the rows that it touches?

  python -m benchmarks.touched_rows
  NPROC=1 python -m benchmarks.touched_rows --cases step

Two cases, each as two programs that differ in nothing else:

  step     a training step of DLRM: 26 tables of 100,000 rows of 16 and 13
           numbers, a batch of 4,096, ids drawn evenly
  update   the worst case, a step that is nothing but a table: a million rows of
           64, 4,096 bags of 26 ids, their lookup and the update of the rows

The programs take turns, on the same state and the same batches; `more_x` is
the median over the turns of what the one with marks costs more than the other,
as a share of it. `mark` is the marking by itself, 20 times in a program of its
own: `share` is what one of them costs over what the step does. A row optimizer
reads and writes whole rows where the mark is a byte, and the rows are sorted in
any case.
"""

import dataclasses
import os
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import cli, jagged_embedding, timing
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import lookup
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.features import (
  Columns,
  Examples,
  FeatureSpec,
  Read,
  TableSpec,
)
from genrec_jax.runtime import measurements
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.step import make_step
from genrec_jax.tasks.ranking import Ranking
from pallas_kernels.jagged_embedding import shapes

CASES = ('step', 'update')
OPTIMIZER, RATE, BATCHES = 'row_adagrad', 0.05, 4
REPEATS = 20  # of the marking alone, in one program
COLUMNS = (
  'case', 'ids', 'core_ms', 'min_core_ms', 'wall_ms', 'more_x', 'more_wall_x',
  'mark_core_ms', 'min_mark_core_ms', 'share', 'min_share', 'bytes_x',
  'load_1min',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How large the cases are."""

  tables: int = 26
  rows: int = 100_000
  dim: int = 16
  numbers: int = 13
  batch: int = 4096
  hidden: tuple[int, ...] = (400, 400, 400)
  update: shapes.Shape = shapes.SHAPES['million_uniform']


SMALL = Sizes(3, 50, 4, 2, 16, (8,), shapes.SHAPES['narrow'])


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('touched_rows', __doc__)
  parser.add_argument('--cases', nargs='+', choices=CASES, default=CASES)
  parser.add_argument('--steps', type=int, default=30, help='turns (30)')
  parser.add_argument('--warmup', type=int, default=3, help='not measured (3)')
  args = parser.parse_args(argv)
  sizes = Sizes()
  if args.smoke:
    args.steps, args.warmup, sizes = 3, 1, SMALL
  build = {'step': training_step, 'update': update_alone}
  rows = []
  for name in args.cases:
    rows.append(measure(name, *build[name](sizes), args))
    print(f'{name}: {rows[-1]["share"]:.2%} for marking', flush=True)
  notes = [
    'core_ms and wall_ms: of the step without marks, medians over the turns; '
    'min_*: the least.',
    'more_x: median over the turns of (with marks / without) - 1; '
    'mark_core_ms: the marking alone, share: that over core_ms.',
    'bytes_x: bytes of the marks over those of tables and slots.',
  ]
  cli.finish(args, 'touched_rows', rows, COLUMNS, notes)


def training_step(sizes: Sizes):
  """(step, state, batches, ids -> rows of a batch)."""
  features = [
    FeatureSpec(f'c{i}', rows=sizes.rows) for i in range(sizes.tables)
  ] + [FeatureSpec(f'n{i}', 'numeric') for i in range(sizes.numbers)]
  model = config_lib.dlrm(
    dim=sizes.dim, bottom=sizes.hidden, top=sizes.hidden
  ).to_dict()
  task = Ranking(
    model.pop('name'),
    model,
    {},
    features=features,
    labels=('label',),
    table_update=OPTIMIZER,
    init_std=0.01,
  )
  tx, tables = optax.adam(1e-3), LocalTables(state_lib.row_specs(task))
  step = make_step(task, tx, seed=0, row_learning_rate=RATE, tables=tables)
  names = measurements.measurement_names(task, on_mesh=False)
  state = jax.jit(
    lambda: state_lib.create_state(task, tx, 0, names, tables, tracked=True)
  )()

  def rows_of(batch):
    return step.route(batch, state.step, {})[0].routes.ids

  found = [make_examples(sizes, seed) for seed in range(BATCHES)]
  return step, state, found, [jax.jit(rows_of)(batch) for batch in found]


def make_examples(sizes: Sizes, seed: int) -> Examples:
  rng = np.random.default_rng(seed)
  size = sizes.batch
  ids = rng.integers(1, sizes.rows, (size, sizes.tables), np.int32)
  labels = rng.integers(0, 2, (size, 1)).astype(np.float32)
  numbers = rng.normal(size=(size, sizes.numbers)).astype(np.float32)
  return jax.device_put(
    Examples(
      weights=np.ones(size, np.float32),
      dense=Columns(numbers, tuple(f'n{i}' for i in range(sizes.numbers))),
      ids=Columns(ids, tuple(f'c{i}' for i in range(sizes.tables))),
      labels=Columns(labels, ('label',)),
      first=np.zeros(1, np.int32),
    )
  )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alone:
  """A table by itself, with the fields of `TrainState` that matter here."""

  tables: dict
  row_opt_state: dict
  dirty_rows: dict


def update_alone(sizes: Sizes):
  """The same of the worst case."""
  shape = sizes.update
  spec = TableSpec('table', shape.rows, shape.dim, update=OPTIMIZER)
  tables = LocalTables({'table': spec}, pooling={'bag': 'sums'})
  lengths = jnp.asarray(shapes.lengths(shape))
  gradient = jnp.asarray(jagged_embedding.bag_gradient(shape))

  def push(state, ids):
    read = Read(ids[None], 'table', lengths[None], pooling='sum')
    routes = tables.route({'bag': read})
    _, sums = tables.fetch(state.tables, routes)
    # The update comes after the lookup.
    grads = {}, {'bag': gradient + 0 * sums['bag']}
    return tables.push(
      *(state.tables, state.row_opt_state, routes, grads, RATE, 0),
      state.dirty_rows,
    )

  def step(state, ids):
    pushed = push(state, ids)
    return Alone(*pushed[:2], pushed.dirty_rows), pushed.square

  def fresh():
    arrays = tables.init(jax.random.key(0))
    return Alone(
      arrays, tables.init_slots(arrays), dirty_lib.init_dirty_rows(arrays)
    )

  state = jax.jit(fresh)()
  batches = [jnp.asarray(shapes.ids(shape, seed)) for seed in range(BATCHES)]
  used = int(lengths.sum())  # the rest is padding
  rows_of = jax.jit(
    lambda ids: {'table': lookup.distinct_ids([ids[:used]], shape.rows)}
  )
  return step, state, batches, [rows_of(ids) for ids in batches]


def measure(name: str, step, state, batches, rows, args) -> dict:
  """Both programs in turns, then the marking alone."""
  dirty_rows = state.dirty_rows
  bare = dataclasses.replace(state, dirty_rows={})
  held = sum(
    x.nbytes for x in jax.tree.leaves((bare.tables, bare.row_opt_state))
  )
  run, _ = timing.ahead(
    step, [(bare, batches[0]), (state, batches[0])], donate_argnums=0
  )
  marking, _ = timing.ahead(
    mark_often, [(dirty_rows, rows[0])], donate_argnums=0
  )
  timers = {'with': [], 'without': [], 'mark': []}
  for turn in range(args.warmup + args.steps):
    batch = batches[turn % BATCHES]
    # Who comes second finds other things in the processor's caches.
    for which in ('with', 'without') if turn % 2 else ('without', 'with'):
      if which == 'with':
        state = dataclasses.replace(bare, dirty_rows=dirty_rows)
        (state, _), timer = timing.measure(run, state, batch)
        dirty_rows, bare = (
          state.dirty_rows,
          dataclasses.replace(state, dirty_rows={}),
        )
      else:
        (bare, _), timer = timing.measure(run, bare, batch)
      timers[which].append(timer)
    dirty_rows, timer = timing.measure(
      marking, dirty_rows, rows[turn % BATCHES]
    )
    timers['mark'].append(timer)
  timers = {n: found[args.warmup :] for n, found in timers.items()}
  plain, alone = (
    {k: 1e3 * x / times for k, x in timing.summary(timers[n]).items()}
    for n, times in (('without', 1), ('mark', REPEATS))
  )
  return {
    'case': f'{name}/1_thread' if os.environ.get('NPROC') == '1' else name,
    'steps': args.steps,
    'ids': sum(int((r < len(dirty_rows[n])).sum()) for n, r in rows[0].items()),
    **{k.replace('_s', '_ms'): x for k, x in plain.items()},
    'more_x': more(timers, 'core_s'),
    'more_wall_x': more(timers, 'wall_s'),
    **{
      k.replace('core_s', 'mark_core_ms'): x
      for k, x in alone.items()
      if 'core' in k
    },
    'share': alone['core_s'] / plain['core_s'],
    'min_share': alone['min_core_s'] / plain['min_core_s'],
    'marks_bytes': sum(x.nbytes for x in dirty_rows.values()),
    'bytes_x': sum(x.nbytes for x in dirty_rows.values()) / held,
    'load_1min': os.getloadavg()[0],
  }


def mark_often(dirty_rows, rows):
  """Calling a program of many arrays costs more than marking."""
  return jax.lax.fori_loop(
    0,
    REPEATS,
    lambda _, dirty_rows: dirty_lib.mark_rows(dirty_rows, rows),
    dirty_rows,
  )


def more(timers: dict[str, list[CoreTimer]], key: str) -> float:
  """Median over the turns of what marks cost, as a share of the rest."""
  pairs = zip(timers['with'], timers['without'], strict=True)
  return (
    statistics.median(getattr(a, key) / getattr(b, key) for a, b in pairs) - 1
  )


if __name__ == '__main__':
  main()
