"""Do plans that are predicted to be slower run more slowly?

  python -m benchmarks.plan_costs
  python -m benchmarks.plan_costs --part gloo
  python -m benchmarks.plan_costs --only 0 12 13

One set of tables, and random plans of it: every table by a scheme and at places
that are drawn. The step of the tables (routing, lookup, exchange, update) is
measured, and predicted with the constants of a calibration that is made first:

  devices  one process that pretends to be 8 devices, 2 hosts of 4
  gloo     two processes of 2 devices each, that exchange over loopback

What is compared is the order: Spearman's rank correlation of the predictions
and the least time of some repeats. Devices that are pretended share the cores,
so the core-seconds of all of them are compared with the seconds that all
devices are predicted to spend together; the wall time, which other work on the
machine disturbs, stands beside. This tests the form of the formulas. No network
is involved, and memory that all devices share is no network.

Each plan is in the result file as soon as it is measured; what is there is not
measured again, unless `--again` is given.
"""

import multiprocessing
import os
import pathlib
import socket
import tempfile

import numpy as np

# Of two processes, each would start collectives in an order of its own.
KEEP_ORDER = '--xla_cpu_enable_concurrency_optimized_scheduler=false'
PARTS = {'devices': (1, 8), 'gloo': (2, 2)}  # processes, devices of each
HOSTS = 2
COLUMNS = (
  'case', 'schemes', 'predicted_ms', 'min_wall_ms', 'predicted_all_ms',
  'min_core_ms', 'sent_mb',
)  # fmt: skip
NOTES = (
  'predicted_ms: the planner\'s step; predicted_all_ms: compute, ordering of '
  'lists and sending of all devices, which share the cores. Constants of a '
  'calibration before. min_*: the least of the repeats.',
  "rank: Spearman's correlation of predicted_ms and min_wall_ms, and of "
  'predicted_all_ms and min_core_ms, over the plans.',
  'No network: eight devices of one process, or two processes over loopback.',
)


def main(argv: list[str] | None = None) -> None:
  from benchmarks import cli

  parser = cli.parser('plan_costs', __doc__)
  parser.add_argument('--part', choices=PARTS, default='devices')
  parser.add_argument('--plans', type=int, default=56, help='drawn (56)')
  parser.add_argument('--only', nargs='+', type=int, help='numbers of plans')
  parser.add_argument('--repeats', type=int, default=15, help='(15)')
  parser.add_argument('--again', action='store_true', help='measure all anew')
  args = parser.parse_args(argv)
  numbers = args.only or range(args.plans)
  if args.smoke:
    numbers, args.repeats = range(2), 2
  # JAX, which could say so, must not begin before it is told of devices.
  machine = f'cpu{len(os.sched_getaffinity(0))}'
  done = {} if args.again else cli.read_rows(args, 'plan_costs', machine)
  processes, devices = PARTS[args.part]
  numbers = [n for n in numbers if f'{args.part}/{n}' not in done]
  with tempfile.TemporaryDirectory() as folder:
    ask = args.part, numbers, args.repeats, args.smoke, folder
    if processes == 1:
      _start_devices(devices)
      found = measure_plans(0, *ask)
    else:
      found = _in_processes(processes, devices, ask)
    for row in found:
      done[row['case']] = row
      cli.finish(args, 'plan_costs', [row], COLUMNS, NOTES)
  own = [r for r in done.values() if r['part'] == args.part and 'schemes' in r]
  if len(own) > 2:
    cli.finish(args, 'plan_costs', [summarise(args.part, own)], RANKS, NOTES)


RANKS = (
  'case', 'plans', 'rank', 'core_rank', 'ordering_rank', 'compute_rank',
  'sent_rank',
)  # fmt: skip


def summarise(part: str, rows: list[dict]) -> dict:
  """How well predictions order the plans; constants are those of the part."""

  def rank(predicted: str, measured: str) -> float:
    return correlate_ranks(
      [r[predicted] for r in rows], [r[measured] for r in rows]
    )

  return {
    'case': f'{part}/rank',
    'part': part,
    'plans': len(rows),
    'rank': rank('predicted_ms', 'min_wall_ms'),
    'core_rank': rank('predicted_all_ms', 'min_core_ms'),
    # Of the parts of a prediction alone.
    'ordering_rank': rank('ordering_all_ms', 'min_core_ms'),
    'compute_rank': rank('compute_all_ms', 'min_core_ms'),
    'sent_rank': rank('sent_mb', 'min_core_ms'),
  }


def correlate_ranks(a, b) -> float:
  """Spearman's rank correlation; equal numbers share their mean rank.

  >>> round(correlate_ranks([1, 2, 3, 4], [10, 20, 40, 30]), 6)
  0.8
  """
  ranks = []
  for values in (np.asarray(a), np.asarray(b)):
    below = (values[:, None] > values[None]).sum(axis=1)
    equal = (values[:, None] == values[None]).sum(axis=1)
    ranks.append(below + (equal - 1) / 2)
  return float(np.corrcoef(*ranks)[0, 1])


def draw_tables(smoke: bool = False):
  """The tables, some of them pooled and some not."""
  from genrec_jax.planner import Feature, Load

  bag, sequence = (lambda n: Feature(n)), (lambda n: Feature(n, pooled=False))
  tables = [
    Load('cities', 500, 32, features=(bag(1.0),)),
    Load('brands', 3_000, 32, features=(bag(4.0), bag(1.0))),
    Load('tags', 20_000, 64, features=(bag(20.0),)),
    Load('words', 100_000, 64, features=(bag(40.0),)),
    Load('users', 200_000, 32, features=(bag(1.0),)),
    Load('items', 150_000, 64, features=(sequence(20.0), bag(1.0))),
    Load('authors', 40_000, 32, features=(sequence(20.0),)),
    Load('queries', 80_000, 64, features=(bag(10.0),)),
  ]
  return tables[:3] if smoke else tables


def draw_plan(seed: int, loads, hosts: int, devices: int):
  """A plan whose schemes and places are drawn."""
  from genrec_jax.embedding.plan import ShardingPlan
  from genrec_jax.embedding.scheme import SCHEMES

  rng, tables = np.random.default_rng(seed), {}
  # Some plans prefer a scheme, so that they differ more than a mean does.
  names = list(SCHEMES)
  weights = rng.dirichlet(np.full(len(names), 0.5))
  for load in loads:
    name = names[rng.choice(len(names), p=weights)]
    at = SCHEMES[name].place(int(rng.integers(64)), load, hosts, devices)
    tables[load.name] = load.plan(name, at)
  return ShardingPlan(tables, hosts, devices)


def measure_plans(process, part, numbers, repeats, smoke, folder):
  """Rows of the plans, one by one; all processes of a job do the same."""
  import jax

  from benchmarks import table_steps
  from benchmarks.result import CoreTimer
  from genrec_jax import planner
  from genrec_jax.planner import calibrate, hardware

  count, devices = PARTS[part]
  devices = count * devices // HOSTS
  batch = HOSTS * devices * (16 if smoke else 128)
  loads = draw_tables(smoke)
  size = 4_000_000 if smoke else calibrate.SIZE
  measured = calibrate.measure_bandwidths(size)
  machine = hardware.replace_numbers(
    calibrate.make_topology(measured, 'here'), hosts=HOSTS, devices=devices
  )
  for number in numbers:
    plan = draw_plan(number, loads, HOSTS, devices)
    report = planner.evaluate_plan(plan, loads, machine, batch)
    step = table_steps.make_step(plan, loads, batch)
    with CoreTimer() as compiling:
      run = step.compile()
    arrays, slots = step.init_state()
    values, index = step.draw_values(number), np.int32(0)
    walls, cores = [], []
    for _ in range(1 + repeats):
      with CoreTimer() as timer:
        arrays, slots, square = run(arrays, slots, values, index)
        jax.block_until_ready((arrays, slots, square))
      walls.append(timer.wall_s)
      cores.append(timer.core_s)
    core = _add_processes(folder, process, count, number, min(cores[1:]))
    sent = sum(t.expected for t in report.sent)
    schemes = [t.scheme for t in plan.tables.values()]
    yield {
      'case': f'{part}/{number}',
      'part': part,
      'schemes': ', '.join(
        f'{schemes.count(s)} {s}' for s in sorted(set(schemes))
      ),
      'predicted_ms': 1e3 * report.critical_path,
      'predicted_all_ms': 1e3 * report.times.sum(),
      'compute_all_ms': 1e3 * report.times[:, :2].sum(),
      'ordering_all_ms': 1e3 * report.times[:, 4].sum(),
      'sent_mb': sent / 1e6,
      'min_wall_ms': 1e3 * min(walls[1:]),
      'min_core_ms': 1e3 * core,
      'compile_core_s': compiling.core_s,
      'repeats': repeats,
      'memory_rate_mb_s': machine.memory_bandwidth / 1e6,
      'exchange_rate_mb_s': machine.intra / 1e6,
      'sort_rate_m_s': 1e-6 / machine.ordering,
      'load_1min': os.getloadavg()[0],
    }


def _add_processes(folder, process, count, number, core: float) -> float:
  """Core-seconds of all processes; each leaves its own in a file."""
  if count == 1:
    return core
  from jax.experimental import multihost_utils

  pathlib.Path(folder, f'{number}.{process}').write_text(str(core))
  multihost_utils.sync_global_devices(f'plan {number}')
  files = [pathlib.Path(folder, f'{number}.{i}') for i in range(count)]
  return sum(float(file.read_text()) for file in files)


def _in_processes(count: int, devices: int, ask):
  """`measure_plans` in a job of processes; yields the rows of the first."""
  context = multiprocessing.get_context('spawn')
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{s.getsockname()[1]}'
  rows = context.Queue()
  jobs = [
    context.Process(
      target=_run_process, args=(i, count, devices, address, ask, rows)
    )
    for i in range(count)
  ]
  for job in jobs:
    job.start()
  try:
    while (row := rows.get()) is not None:
      if isinstance(row, str):
        raise RuntimeError(row)
      yield row
  finally:
    for job in jobs:
      job.join(10)
      job.terminate()


def _run_process(process, count, devices, address, ask, rows) -> None:
  """One process of the job."""
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {KEEP_ORDER}'
  _start_devices(devices)
  import jax

  try:
    jax.distributed.initialize(address, count, process)
    for row in measure_plans(process, *ask):
      if process == 0:
        rows.put(row)
  except Exception as e:  # whoever waits must hear of it
    rows.put(f'process {process}: {e}')
    raise
  if process == 0:
    rows.put(None)


def _start_devices(count: int) -> None:
  """Splits the CPU, unless JAX has begun already."""
  # Fewer threads than devices wait for each other for ever.
  os.environ.setdefault('NPROC', '32')
  import jax

  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    pass


if __name__ == '__main__':
  main()
