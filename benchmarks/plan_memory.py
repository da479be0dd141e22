"""How far is the planner off in the memory of a step?

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.plan_memory
  python -m benchmarks.plan_memory --only table_wise --devices 8

A step of the tables (routing, lookup, exchange, update) is compiled ahead of
time for slices of a TPU v5p that are not there, and nothing runs. What XLA
says it needs beside arguments and results is compared with an estimate that a
planner could make. The load of a device is fixed: 16 tables, of each 64 bags of
8 ids. The estimate:

Buffers that are held at once where most are, in rows of float32; of the
program's many small ones, nothing is said:

| what travels         | held at once                                  |
|----------------------|-----------------------------------------------|
| rows, `all_to_all`   | 4 c M d                                       |
| rows, `ragged`       | 3 c M d                                       |
| rows, `gather`       | (2 W + 1) M d                                 |
| sums                 | min(K, depth) d + 2 W P B d                   |
| copies, as tables    | 2 T (D+1) + 2 E D                             |
| copies, as rows      | 2 R W E D                                     |

The letters are those of traffic.py; K requests for rows come to a device, which
has `depth` rows of the array. On a TPU a row is as wide as a multiple of 128.
The factors are those of one large table in benchmarks/scale.py. They are not
good enough to decide what fits, and the planner does not use them.
"""

import dataclasses
import math
from collections.abc import Sequence

from benchmarks import cli, table_steps
from benchmarks.result import CoreTimer
from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.parallel import slices
from genrec_jax.planner import Feature, Load, plan_traffic
from genrec_jax.planner.traffic import WORD, Wire
from genrec_jax.planner.workload import DENSE

SLICES = {8: 'v5p:2x2x2', 64: 'v5p:4x4x4'}
OF_HOST = 4  # chips
TABLES, WIDTH, BAGS, PER_BAG = 16, 128, 64, 8
ROWS, COPIED_ROWS = 1_000_000, 10_000
LANES = 128  # of a TPU's registers
# Buffers as long as what arrives that are held at once.
HELD = {'all_to_all': 4, 'ragged': 3, 'gather': 2}
COLUMNS = (
  'case', 'temp_mb', 'predicted_mb', 'error', 'argument_mb', 'compile_core_s',
)  # fmt: skip
NOTES = (
  f'{TABLES} tables of {ROWS:,} rows (copied ones of {COPIED_ROWS:,}) of '
  f'{WIDTH} columns, moved by row_adagrad; of each {BAGS} bags of {PER_BAG} '
  'ids on a device.',
  'error: of the prediction, as a share of what XLA allocates. Compiled for '
  'TPU v5p ahead of time; nothing ran.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is read, and how it travels."""

  scheme: str
  kind: str = 'all_to_all'
  pooled: bool = True


CASES = {
  **{scheme: Case(scheme) for scheme in SCHEMES},
  **{f'rows/{kind}': Case('row_wise', kind, False) for kind in KINDS},
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('plan_memory', __doc__)
  parser.add_argument('--only', nargs='+', choices=CASES, default=[*CASES])
  parser.add_argument(
    '--devices', nargs='+', type=int, choices=SLICES, default=[*SLICES]
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.only, args.devices = ['rows/all_to_all'], [8]
  if missing := slices.why_not():
    cli.fail(missing)
  for name in args.only:
    for devices in args.devices:
      row = measure(name, devices)
      cli.finish(args, 'plan_memory', [row], COLUMNS, NOTES)


def measure(name: str, devices: int) -> dict:
  """The row of a case on so many devices."""
  case = CASES[name]
  rows = COPIED_ROWS if case.scheme == 'data_parallel' else ROWS
  feature = Feature(PER_BAG, pooled=case.pooled)
  loads = [
    Load(f't{i:02}', rows, WIDTH, features=(feature,)) for i in range(TABLES)
  ]
  scheme, hosts = SCHEMES[case.scheme], devices // OF_HOST
  tables = {
    load.name: load.plan(case.scheme, scheme.place(turn, load, hosts, OF_HOST))
    for turn, load in enumerate(loads)
  }
  plan, exchange = ShardingPlan(tables, hosts, OF_HOST), Exchange(case.kind)
  chips = slices.find_chips(SLICES[devices])
  step = table_steps.make_step(plan, loads, BAGS * devices, exchange, chips)
  with CoreTimer() as timer:
    memory = step.compile('tpu').memory_analysis()
  found = estimate_bytes(plan, loads, BAGS * devices, Wire(exchange, 'tpu'))
  temp = memory.temp_size_in_bytes
  return {
    'case': f'{name}/{devices}',
    'scheme': case.scheme,
    'kind': case.kind if not case.pooled else 'pooled',
    'devices': devices,
    'temp_mb': temp / 1e6,
    'predicted_mb': found / 1e6,
    'error': found / temp - 1,
    'argument_mb': memory.argument_size_in_bytes / 1e6,
    'compile_core_s': timer.core_s,
  }


def estimate_bytes(
  plan: ShardingPlan, loads: Sequence[Load], batch: int, wire: Wire = Wire()
) -> int:
  """Bytes of a device; arguments as `plan_traffic.list_plan`.

  Arrays are updated one after another, and so are copied tables: the largest
  counts.
  """
  step = plan_traffic.count_step(plan, loads, batch, wire)
  found = [0.0]
  for name, groups in step.groups.items():
    stack = step.laid.stacks[name]
    row = _row_bytes(stack.columns, wire)
    rows = 0.0
    for group in groups:
      if group.needed:
        kind = group.wire.exchange.kind
        rows += HELD[kind] * group.arrivals
        rows += group.needed if kind == 'gather' else 0
      else:
        rows += min(group.arrivals, stack.depth) + 2 * group.sums
    found.append(rows * row)
  shards = plan.group_size * plan.replicas
  for name in step.laid.whole:
    load, reads = step.loads[name], step.reads[name]
    if load.optimizer == DENSE:  # its gradient belongs to the dense part
      continue
    entries = reads.rows + sum(ids for _, ids, _ in reads.sums)
    row = _row_bytes(load.dim, wire)
    if copied_tables.travels_as_table(entries, load.rows, shards):
      table = load.rows * _row_bytes(load.dim + 1, wire)
      found.append(2 * table + 2 * entries * row)
    else:
      found.append(2 * shards * entries * row)
  return int(max(found))


def _row_bytes(columns: int, wire: Wire) -> int:
  if wire.platform == 'tpu':
    columns = LANES * math.ceil(columns / LANES)
  return WORD * columns


if __name__ == '__main__':
  main()
