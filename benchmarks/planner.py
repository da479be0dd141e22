"""How evenly the planner's partitioners load devices, and how fast it plans.

  python -m benchmarks.planner
  python -m benchmarks.planner --only uniform/80/8 --draws 20

`grid`: costs drawn at random, no limit of memory; mean over the draws of the
busiest device's load over the mean load. 'random' throws tables at devices.
'split' halves the columns of tables before it partitions (ten rounds), and
takes a half to cost half. The published figures are of tables drawn elsewhere.

`trace`: tables with the reads and the skew of published embedding traces
(benchmarks/locality.py says what is drawn and what is assumed), whole
on one device each, costs by the planner's model. There halves cost more than
half. Tables with more rows than a device can address lie on one host.

`plan`: the same tables given to the whole planner, all schemes allowed; and a
thousand drawn tables that take much of 128 devices (`plan/drawn/1000/128`).

Traces are looked for in $GENREC_DATA/dlrm_locality, then ../shared/data.
"""

import os
import pathlib
import random
import statistics
import time

import numpy as np

from benchmarks import cli, locality
from benchmarks.result import CoreTimer
from genrec_jax.planner import (
  Constraint,
  Feature,
  Load,
  evaluate_plan,
  hardware,
  make_plan,
)
from genrec_jax.planner.balance import measure_imbalance
from genrec_jax.planner.column_halving import split_search
from genrec_jax.planner.cost import Cost
from genrec_jax.planner.ldm import partition_ldm
from genrec_jax.planner.options import Option, enumerate_options
from genrec_jax.planner.partition import (
  PartialPlacement,
  memory_balanced,
  partition_lpt,
)

ROOT = pathlib.Path(__file__).parent.parent
# Distribution, sigma, tables, devices, draws -> published random, LPT, LDM.
GRID = {
  ('uniform', 0, 20, 4, 20): (1.54, 1.0208, 1.0063),
  ('uniform', 0, 80, 8, 20): (1.60, 1.0046, 1.0008),
  ('uniform', 0, 856, 128, 3): (2.41, 1.0114, 1.0121),
  ('lognormal', 1, 80, 8, 20): (1.66, 1.0373, 1.0349),
  ('lognormal', 2, 80, 8, 20): (3.12, 2.161, 2.161),
  # Few draws say little where one table in a draw may outweigh a device.
  ('lognormal', 1, 80, 8, 200): (),
  ('lognormal', 2, 80, 8, 200): (),
}
# Statistics, machine, hosts, tables, examples a step.
TRACES = (
  ('2021', 'h100', 1, 80, 65_536),
  ('2021', 'zionex', 16, 856, 65_536),
  ('2022', 'zionex', 16, 788, 131_072),
)
# Tables, their bytes with slots, machine, hosts, examples a step.
DRAWN = (1000, 2.7e12, 'h100', 16, 65_536)
PARTITIONERS = ('random', 'lpt', 'ldm', 'memory_balanced', 'split')
COLUMNS = (
  'case', 'draws', 'random_x', 'lpt_x', 'ldm_x', 'memory_balanced_x',
  'split_x', 'bound_x', 'lpt_bytes_x', 'memory_balanced_bytes_x', 'step_ms',
  'plan_step_ms', 'padding', 'plan_core_s', 'lpt_ms', 'ldm_ms', 'load_1min',
)  # fmt: skip
FREE = 2**62  # bytes of a device where memory is no question


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('planner', __doc__)
  parser.add_argument('--only', nargs='+', help='cases to measure', default=())
  parser.add_argument('--draws', type=int, help='of each grid case', default=0)
  args = parser.parse_args(argv)
  rows = []
  for (kind, sigma, tables, devices, draws), published in GRID.items():
    name = f'{kind}{sigma or ""}/{tables}/{devices}'
    name += f'/{draws}' if not published else ''
    if args.only and name not in args.only or args.smoke and tables > 20:
      continue
    draws = 2 if args.smoke else args.draws or draws
    rows.append(
      grid(name, kind, sigma, tables, devices, draws)
      | dict(
        zip(
          ('published_random_x', 'published_lpt_x', 'published_ldm_x'),
          published,
          strict=False,  # a case may have none
        )
      )
    )
  for year, machine, hosts, tables, batch in TRACES:
    name = f'trace{year}/{tables}/{hosts * 8}'
    if args.only and name not in args.only or args.smoke and tables > 80:
      continue
    path = data() / 'dlrm_locality' / f'locality_stats_{year}.txt'
    if not path.exists():
      print(f'{name} is left out: {path} is not there')
      continue
    stats = locality.read(path)
    topology = hardware.find_topology(machine, hosts=hosts)
    loads = locality.draw_loads(stats, 0, tables=8 if args.smoke else tables)
    rows.append(trace(name, loads, topology, batch) | {'trace': year})
    name = name.replace('trace', 'plan')
    rows.append(plan(name, loads, topology, batch) | {'trace': year})
  tables, size, machine, hosts, batch = DRAWN
  name = f'plan/drawn/{tables}/{hosts * 8}'
  if not args.smoke and (not args.only or name in args.only):
    topology = hardware.find_topology(machine, hosts=hosts)
    loads = draw_loads(tables, size)
    rows.append(plan(name, loads, topology, batch) | {'trace': 'drawn'})
  notes = [
    '*_x: load of the busiest device over the mean load (time, or bytes). '
    'Of grid cases the mean over the draws; traces and plans are one draw.',
    'bound_x: of whole tables, which the largest one alone may set.',
    'Published: measured elsewhere in Python on tables drawn in the same way.',
    'step_ms is what the cost model predicts for the tables, nothing '
    'overlapped; it was not measured on such a machine.',
  ]
  cli.finish(args, 'planner', rows, COLUMNS, notes)


def draw_loads(count: int, size: float) -> list[Load]:
  """Tables of very different sizes, read by bags of different lengths.

  Args:
    count: of the tables.
    size: bytes of all of them together, with slots.
  """
  rng = np.random.default_rng(0)
  shares = rng.lognormal(sigma=2, size=count)
  widths = rng.choice([64, 128, 256], count)
  rows = size * shares / (4.0 * (widths + 1) * shares.sum())
  ids = rng.integers(1, 40, count)
  return [
    Load(
      f't{i}', int(rows[i]) + 1, int(widths[i]),
      features=(Feature(float(ids[i]), name=f'f{i}'),),
    )
    for i in range(count)
  ]  # fmt: skip


def data() -> pathlib.Path:
  return pathlib.Path(
    os.environ.get('GENREC_DATA', ROOT.parent / 'shared/data')
  )


def grid(name, kind, sigma, tables, devices, draws) -> dict:
  """Costs drawn at random, which a half halves."""
  topology = hardware.find_topology('h100', hosts=1, devices=devices)
  found = {p: [] for p in PARTITIONERS if p != 'memory_balanced'}
  spent, bounds = {'lpt': [], 'ldm': []}, []
  for seed in range(draws):
    rng = np.random.default_rng(seed)
    costs = rng.uniform(size=tables)
    if kind == 'lognormal':
      costs = rng.lognormal(sigma=sigma, size=tables)
    bounds.append(max(1.0, costs.max() * devices / costs.sum()))
    options = [
      Option((str(i),), 'table_wise', 1, Cost(float(c)), 1)
      for i, c in enumerate(costs)
    ]

    def halve(index, option):
      cost = Cost(option.cost.forward_compute / 2)
      return Option(option.names, 'column_wise', 2 * option.pieces, cost, 1)

    for how in found:
      begun = time.perf_counter()
      placement = place(how, options, topology, FREE, halve, seed)
      if how in spent:
        spent[how].append(1e3 * (time.perf_counter() - begun))
      found[how].append(measure_imbalance(placement.time)['max_over_mean'])
  return {
    'case': name,
    'kind': 'grid',
    'costs': f'{kind}, sigma {sigma}' if sigma else kind,
    'tables': tables,
    'devices': devices,
    'draws': draws,
    'bound_x': statistics.mean(bounds),
    'outweighed': sum(bound > 1 for bound in bounds) / draws,
    **{f'{how}_x': statistics.mean(values) for how, values in found.items()},
    **{f'{how}_ms': statistics.median(ms) for how, ms in spent.items()},
  }


def trace(name, loads, topology, batch) -> dict:
  """Whole tables of a trace, by every partitioner."""
  # Rows of 16 and 32 columns: a half is read at the price of a whole.
  free = {load.name: Constraint(min_columns=4) for load in loads}
  items = enumerate_options(loads, topology, batch, free)
  whole = [min(options, key=lambda o: o.shards) for options in items]
  cap = int(topology.memory * (1 - topology.reserve))

  def halve(index, option):
    wanted = ('column_wise', 2 * option.pieces)
    found = (o for o in items[index] if (o.scheme, o.pieces) == wanted)
    return next(found, None)

  mean = sum(o.time * o.shards for o in whole) / topology.group_size
  row = {
    'case': name,
    'kind': 'trace',
    'machine_planned': topology.name,
    'tables': len(loads),
    'devices': topology.group_size,
    'draws': 1,
    'bound_x': max(1.0, max(o.time for o in whole) / mean),
    'on_a_host': sum(o.devices_per_piece > 1 for o in whole),
  }
  for how in PARTITIONERS:
    begun = time.perf_counter()
    placement = place(how, whole, topology, cap, halve, 0)
    if how in ('lpt', 'ldm'):
      row[f'{how}_ms'] = 1e3 * (time.perf_counter() - begun)
    row[f'{how}_x'] = measure_imbalance(placement.time)['max_over_mean']
    row[f'{how}_bytes_x'] = measure_imbalance(placement.used)['max_over_mean']
    # As its program would send it, padding and all, to compare with plans.
    made = placement.plan(
      {load.name: load for load in loads}, topology, constraints={}
    )
    report = evaluate_plan(made, loads, topology, batch)
    row[f'{how}_step_ms'] = 1e3 * report.step
  row['step_ms'] = min(row['lpt_step_ms'], row['ldm_step_ms'])
  return row | {'load_1min': os.getloadavg()[0]}


def plan(name, loads, topology, batch) -> dict:
  """The whole planner."""
  with CoreTimer() as timer:
    _, report = make_plan(loads, topology, batch=batch)
  costs = report
  schemes = {}
  for table in costs.tables:
    schemes[table.scheme] = schemes.get(table.scheme, 0) + 1
  return {
    'case': name,
    'kind': 'plan',
    'machine_planned': topology.name,
    'tables': len(loads),
    'devices': topology.group_size,
    'made_by': report.made_by,
    'tried': report.tried,
    'schemes': ', '.join(f'{n} {s}' for s, n in sorted(schemes.items())),
    'plan_x': measure_imbalance(costs.times.sum(axis=1))['max_over_mean'],
    'plan_bytes_x': measure_imbalance(costs.row_bytes)['max_over_mean'],
    'plan_step_ms': 1e3 * costs.step,
    'allocated_bytes': costs.allocated,
    'padding': 1 - float(np.mean(costs.row_bytes)) / costs.allocated,
    'tables_bytes': sum(table.bytes for table in costs.tables),
    'tables_gb': sum(table.bytes for table in costs.tables) / 1e9,
    'plan_wall_s': timer.wall_s,
    'plan_core_s': timer.core_s,
    'load_1min': os.getloadavg()[0],
  }


def place(how, options, topology, cap, halve, seed):
  """The placement of one partitioner."""
  if how == 'random':
    return at_random(options, topology, seed)
  if how == 'split':
    found = split_search(
      options, halve, lambda o: partition_lpt(o, topology, cap)
    )
    return min(
      (
        partition_lpt(found.options, topology, cap),
        partition_ldm(found.options, topology, cap),
      ),
      key=lambda placement: placement.rate,
    )
  by_name = {
    'lpt': partition_lpt,
    'ldm': partition_ldm,
    'memory_balanced': memory_balanced,
  }
  return by_name[how](options, topology, cap)


def at_random(options, topology, seed):
  """Tables thrown at devices; memory is no question."""
  rng = random.Random(seed)
  filling = PartialPlacement(options, topology, FREE)
  for index, option in enumerate(options):
    device = rng.randrange(topology.group_size)
    filling.put(option, (device,))
    filling.at[index] = [device]
  return filling.build_placement()


if __name__ == '__main__':
  main()
