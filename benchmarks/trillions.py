"""A DLRM of 12 trillion parameters: planned, and compiled for chips not there.

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.trillions
  python -m benchmarks.trillions --chips 256 --parameters 5e12

The size is that of the largest model of the ZionEX paper (Mudigere et al.
2022); what its tables and layers are is not published, so these are ours: 128
bags of 20 ids, each of a table of its own, of 128 columns in bfloat16 moved by
row_adagrad, whose rows are drawn from a lognormal distribution. The planner
chooses where each table lies (`parallel.scheme=auto`), for a v5p as
`planner.hardware` describes it. The whole training step of that plan is then
compiled ahead of time for a slice of so many chips. Nothing runs.
"""

import jax
import numpy as np
import optax
from jax import ShapeDtypeStruct

from benchmarks import cli, hlo, scale
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.features import Columns, Examples, FeatureSpec, Jagged
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from genrec_jax.planner import evaluate_plan
from genrec_jax.runtime import planning
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.tasks.ranking import Ranking
from pallas_kernels import dispatch

TABLES, WIDTH, PER_BAG, NUMBERS = 128, 128, 20, 13
SIGMA = 1.5  # of the logarithm of a table's rows
MOST_ROWS = 2_000_000_000  # an int32 names hardly more
BATCH = 64  # examples of a chip
LAYERS = dict(bottom=(512, 256), top=(512, 256))
COLUMNS = (
  'case', 'parameters', 'tables_tb', 'chips', 'plan_core_s', 'schemes',
  'stacks', 'padding', 'argument_gb', 'planned_gb', 'temp_gb', 'of_memory',
  'sent_mb', 'trace_core_s', 'compile_core_s', 'compile_wall_s',
)  # fmt: skip
NOTES = (
  f'{TABLES} tables of width {WIDTH} in bfloat16, bags of {PER_BAG} ids, '
  f'{BATCH} examples a chip; rows lognormal, sigma {SIGMA}.',
  'planned_gb: rows, slots, buffers and dense parameters of the fullest chip, '
  'by the planner. argument_gb, temp_gb: of the compiled program, a chip; '
  'of_memory: both together over the memory of a chip.',
  'padding: share of the arrays of tables that no row needs. sent_mb: without '
  'what further rounds would send.',
  'Compiled for TPU v5p ahead of time; nothing ran.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('trillions', __doc__)
  parser.add_argument('--chips', type=int, choices=scale.SLICES, default=512)
  parser.add_argument('--parameters', type=float, default=12e12)
  args = parser.parse_args(argv)
  tables = TABLES
  if args.smoke:
    args.chips, args.parameters, tables = 8, 1e9, 8
  if missing := slices.why_not():
    cli.fail(missing)
  row, text = measure(args.chips, args.parameters, tables)
  print(text)
  cli.finish(args, 'trillions', [row], COLUMNS, NOTES)


def measure(chips: int, parameters: float, tables: int) -> tuple[dict, str]:
  """The row of a model on so many chips, and the planner's report."""
  # Otherwise JAX waits for the TPUs that a libtpu promises.
  jax.config.update('jax_platforms', 'cpu')
  devices = slices.find_chips(scale.SLICES[chips])
  config, task = build_task(chips, draw_rows(parameters, tables))
  shape = planning.mesh_shape(config)
  with CoreTimer() as planned:
    plan = planning.make_plan(config, task, shape)
  topology = planning.load_topology(config, shape)
  report = evaluate_plan(
    plan,
    planning.expected_loads(config, task, shape),
    topology,
    config.train.batch_size,
    planning.dense_part(config, task, shape),
  )
  print(report, flush=True)
  mesh = mesh_lib.arrange(devices, **shape)
  kind = devices[0].device_kind
  with dispatch.compiling_for('tpu', kind):
    runtime = MeshRuntime(config, task, optax.adam(1e-3), plan=plan, mesh=mesh)
    batch = describe_batch(task, chips, mesh)
    with CoreTimer() as traced:
      lowered = (
        runtime.step()
        .trace(runtime.abstract_state(), batch)
        .lower(lowering_platforms=('tpu',))
      )
    with CoreTimer() as compiled:
      program = lowered.compile()
  memory = program.memory_analysis()
  sent = sum(
    hlo.sent_bytes(x)
    for x in hlo.find_collectives(program)
    if x.computation == hlo.ENTRY
  )
  held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  schemes = [table.scheme for table in plan.tables.values()]
  specs = task.tables().values()
  row = {
    'case': f'{parameters:.3g}/{chips}',
    'parameters': sum(spec.rows * spec.dim for spec in specs),
    'dense': report.dense.parameters,
    'tables_tb': sum(2 * spec.rows * spec.dim for spec in specs) / 1e12,
    'chips': chips,
    'plan_core_s': planned.core_s,
    'schemes': ', '.join(
      f'{schemes.count(name)} {name}' for name in sorted({*schemes})
    ),
    'stacks': len(runtime.layout.stacks),
    'padding': 1 - float(np.mean(report.row_bytes)) / report.allocated,
    'argument_gb': memory.argument_size_in_bytes / 1e9,
    'planned_gb': float(np.max(report.device_bytes)) / 1e9,
    'temp_gb': memory.temp_size_in_bytes / 1e9,
    'of_memory': held / topology.memory,
    'sent_mb': sent / 1e6,
    'trace_core_s': traced.core_s,
    'compile_core_s': compiled.core_s,
    'compile_wall_s': compiled.wall_s,
  }
  return row, str(report)


def draw_rows(parameters: float, tables: int) -> list[int]:
  """Rows of each table, which together make so many parameters."""
  rng = np.random.default_rng(0)
  shares = rng.lognormal(sigma=SIGMA, size=tables)
  wanted = parameters / WIDTH
  rows = np.minimum(shares * (wanted / shares.sum()), MOST_ROWS)
  # What the largest may not have, the others get.
  for _ in range(50):
    free = rows < MOST_ROWS
    rows[free] *= (wanted - rows[~free].sum()) / rows[free].sum()
    rows = np.minimum(rows, MOST_ROWS)
  return [max(2, round(x)) for x in rows]


def build_task(chips: int, rows: list[int]):
  """The config of a run, and its task."""
  config = config_lib.ranking()
  config.train.batch_size = chips * BATCH
  config.parallel.update(
    scheme='auto', topology='v5p', hosts=chips // scale.OF_HOST,
    devices=scale.OF_HOST,
  )  # fmt: skip
  features = [
    FeatureSpec(f'f{i:03}', 'multi_hot', rows=count, max_len=PER_BAG)
    for i, count in enumerate(rows)
  ] + [FeatureSpec(f'n{i:02}', 'numeric') for i in range(NUMBERS)]
  model = config_lib.dlrm(dim=WIDTH, batch_norm=False, **LAYERS).to_dict()
  task = Ranking(
    model.pop('name'),
    model,
    {},
    features=features,
    labels=('label',),
    table_update='row_adagrad',
    table_dtype='bfloat16',
  )
  return config, task


def describe_batch(task, chips: int, mesh) -> Examples:
  """Shapes of a batch, split over the mesh."""
  split, size = mesh_lib.batch_sharding(mesh), chips * BATCH

  def lay(shape, dtype=np.int32):
    return ShapeDtypeStruct(shape, dtype, sharding=split)

  def name_columns(names, dtype):
    return Columns(lay((size, len(names)), dtype), names)

  return Examples(
    labels=name_columns(('label',), np.float32),
    weights=lay((size,), np.float32),
    ids=name_columns((), np.int32),
    dense=name_columns(
      tuple(f.name for f in task.features if f.kind == 'numeric'), np.float32
    ),
    jagged={
      f.name: Jagged(Columns(lay((size * PER_BAG, 1)), (f.name,)), lay((size,)))
      for f in task.features
      if f.kind == 'multi_hot'
    },
    group=lay((size,)),
    first=lay((chips,)),
  )


if __name__ == '__main__':
  main()
