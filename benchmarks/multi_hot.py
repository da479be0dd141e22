"""Rows or sums: what a step of DLRM with multi-hot features sends and costs.

  python -m benchmarks.multi_hot --part bytes
  python -m benchmarks.multi_hot --part one_device
  python -m benchmarks.multi_hot --part mesh

The same training step with `parallel.pool` of rows, of sums and of auto:

  bytes       what a device sends, of the collectives in the compiled HLO, on 4
              to 64 devices (hosts of 4), 512 examples a device
  one_device  processor time, 2,048 examples
  mesh        the same on 2 hosts of 4 fake devices, 256 examples a device

Every bag is full, of 1, 5 or 20 ids drawn evenly; all tables have 1,000 or
1,000,000 rows of 32 numbers. There are 8 tables, or as many more as the places
of a scheme need to be equally full. In the case `mixed` there are three times
as many, and they differ: a third of the features has each length, and half of
the tables each size.

Bytes are compiled, not run. Before anything is timed the losses of the three
ways must agree; then the three programs take turns on one state. Each finished
row is in the result file at once, and what is there is not measured again, so
that the same command continues an interrupted run; `--again` measures anew.
"""

import dataclasses
import itertools
import json
import os
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cli, hlo, result, timing
from benchmarks.multi_hot_steps import (
  COUNTS,
  PARTS,
  Setting,
  alike,
  batch,
  build,
  chosen,
  compiled,
  settings,
)
from genrec_jax.planner.pooling import AUTO, POOLS, ROWS, SUMS

BATCHES = 4
# Losses of the ways differ by the order in which float32 numbers are added.
LOSS_STEPS, LOSS_RTOL = 3, 1e-5
# Of the machine code alone, which nobody runs: collectives stay as they are.
QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}
OPS = ('all-to-all', 'all-gather')
COLUMNS = (
  'case', 'tables', 'auto', 'rows_table_bytes', 'sums_table_bytes',
  'auto_table_bytes', 'sums_x', 'auto_x',
  'rows_core_ms', 'sums_core_ms', 'auto_core_ms', 'rows_min_core_ms',
  'sums_min_core_ms', 'twin_x', 'load_1min',
)  # fmt: skip
NOTES = (
  '*_bytes: what a device sends in a step for its tables, of the collectives '
  'in the compiled HLO; ring for all-gather. all_reduce: of '
  'the dense gradients and of scalars, not in the others.',
  '*_table_bytes: over the number of tables, to compare numbers of devices.',
  "overflow='raise', so that one branch is compiled; dense='ddp'.",
  'auto: what auto chose for the features. sums_x, auto_x: over rows; of times '
  'the median over the turns.',
  'twin_x: auto over the way that it chose for all features, whose program is '
  'the same: how far from 1 noise alone takes a ratio.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('multi_hot', __doc__)
  parser.add_argument('--part', choices=PARTS, required=True)
  parser.add_argument('--turns', type=int, default=42, help='timed (42)')
  parser.add_argument('--warmup', type=int, default=3, help='not timed (3)')
  parser.add_argument(
    '--again', action='store_true', help='also what the result file has'
  )
  args = parser.parse_args(argv)
  start_devices(args.part, args.smoke)
  if args.smoke:
    args.turns, args.warmup = 2, 1
  done = {} if args.again else measured(args)
  for setting in settings(args.part, args.smoke):
    if setting.case in done:
      continue
    measure = send if args.part == 'bytes' else spend
    cli.finish(args, 'multi_hot', [measure(setting, args)], COLUMNS, NOTES)


def start_devices(part: str, smoke: bool) -> None:
  """Splits the CPU, unless JAX has begun already."""
  wanted = 8 if smoke else max(COUNTS[part])
  if part == 'one_device':
    return
  if part == 'mesh':  # fewer threads than devices wait for each other for ever
    os.environ.setdefault('NPROC', '32')
  try:
    jax.config.update('jax_num_cpu_devices', wanted)
  except RuntimeError:
    pass
  if len(jax.devices()) < wanted:
    cli.fail(f'needs JAX_NUM_CPU_DEVICES={wanted}, not {len(jax.devices())}')


def measured(args) -> dict[str, dict]:
  """The rows of the result file, by case."""
  folder = args.results or result.RESULTS
  path = os.path.join(folder, result.machine_kind(), 'multi_hot.json')
  if (args.smoke and not args.results) or not os.path.exists(path):
    return {}
  with open(path) as f:
    return {row['case']: row for row in json.load(f)['rows']}


def send(setting: Setting, args) -> dict:
  """The row of a setting whose programs are compiled."""
  del args
  runtimes = {way: build(setting, way) for way in POOLS}
  pooling = chosen(runtimes[AUTO])
  sent = {
    way: collect(compiled(runtimes[way], setting, QUICK))
    for way in (ROWS, SUMS, *([] if alike(pooling) else [AUTO]))
  }
  sent.setdefault(AUTO, sent.get(alike(pooling)))
  of_tables = {way: sum(ops[op] for op in OPS) for way, ops in sent.items()}
  return {
    **describe(setting, pooling),
    **{f'{way}_bytes': size for way, size in of_tables.items()},
    **{
      f'{way}_table_bytes': size / setting.tables
      for way, size in of_tables.items()
    },
    'sums_x': of_tables[SUMS] / of_tables[ROWS],
    'auto_x': of_tables[AUTO] / of_tables[ROWS],
    **{
      f'{way}_{op.replace("-", "_")}_bytes': size
      for way, ops in sent.items()
      for op, size in ops.items()
    },
  }


def collect(program) -> dict[str, float]:
  """Collective -> bytes that a device sends by all of its kind."""
  sent = dict.fromkeys((*OPS, 'all-reduce'), 0.0)
  for x in hlo.find_collectives(program):
    if x.computation != hlo.ENTRY:
      raise ValueError(f'{x.op} in {x.computation}: how often is not known')
    sent[x.op] += hlo.sent_bytes(x)
  return sent


def spend(setting: Setting, args) -> dict:
  """The row of a setting whose three programs take turns."""
  runtimes = {way: build(setting, way) for way in POOLS}
  pooling = chosen(runtimes[AUTO])
  steps = {way: compiled(runtimes[way], setting) for way in (ROWS, SUMS)}
  twin = alike(pooling)
  steps[AUTO] = steps[twin] if twin else compiled(runtimes[AUTO], setting)
  runtime = runtimes[ROWS]
  found = [
    runtime.put_on_devices(batch(setting, seed)) for seed in range(BATCHES)
  ]
  if setting.devices == 1:
    found = jax.device_put(found)
  state = runtime.fresh_state()
  check_losses(steps, state, found)
  timers = {way: [] for way in steps}
  # Every order in turn: a program finds in the processor's caches what the one
  # before has left there.
  orders = itertools.cycle(itertools.permutations(steps))
  for turn in range(args.warmup + args.turns):
    for way in next(orders):
      (state, _), timer = timing.measure(
        steps[way], state, found[turn % BATCHES]
      )
      timers[way].append(timer)
  timers = {way: x[args.warmup :] for way, x in timers.items()}
  row = describe(setting, pooling)
  for way, own in timers.items():
    for key, value in timing.summary(own).items():
      row[f'{way}_{key.removesuffix("_s")}_ms'] = 1e3 * value
  for way in (SUMS, AUTO):
    row[f'{way}_x'] = ratio(timers[way], timers[ROWS])
    row[f'{way}_min_x'] = row[f'{way}_min_core_ms'] / row['rows_min_core_ms']
  if twin:
    row['twin_x'] = ratio(timers[AUTO], timers[twin])
  return row | {'turns': args.turns, 'load_1min': os.getloadavg()[0]}


def check_losses(steps, state, batches) -> None:
  """Fails unless all ways have the same losses from the same state."""
  losses = {}
  for way, step in steps.items():
    own = jax.tree.map(jnp.copy, state)  # a step gives its state away
    losses[way] = []
    for i in range(LOSS_STEPS):
      own, loss = step(own, batches[i])
      losses[way].append(float(loss))
  for way in (SUMS, AUTO):
    if not np.allclose(losses[way], losses[ROWS], rtol=LOSS_RTOL, atol=0):
      cli.fail(f'losses of rows {losses[ROWS]} and of {way} {losses[way]}')


def ratio(timers, others) -> float:
  """Median over the turns of what one way costs, over another."""
  pairs = zip(timers, others, strict=True)
  return statistics.median(a.core_s / b.core_s for a, b in pairs)


def describe(setting: Setting, pooling: dict[str, str]) -> dict:
  """What every row has."""
  counts = {way: list(pooling.values()).count(way) for way in (SUMS, ROWS)}
  both = ', '.join(f'{way} of {n}' for way, n in counts.items())
  return {
    'case': setting.case,
    **dataclasses.asdict(setting),
    'auto': alike(pooling) or both,
  }


if __name__ == '__main__':
  main()
