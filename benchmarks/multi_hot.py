"""Rows or sums: what a step of DLRM with multi-hot features sends and costs.

  python -m benchmarks.multi_hot --part bytes
  python -m benchmarks.multi_hot --part one_device
  python -m benchmarks.multi_hot --part mesh

The same training step with `parallel.pool` of rows, of sums and of auto:

  bytes       what a device sends, of the collectives in the compiled HLO, on 4
              to 64 devices (hosts of 4), 64 tables, 64 examples a device
  one_device  processor time, 8 tables, 2,048 examples
  mesh        the same on 2 hosts of 4 fake devices, 256 examples a device

Every bag is full, of 1, 5 or 20 ids drawn evenly; all tables have 1,000 or
1,000,000 rows of 32 numbers. In the case `mixed` the features differ: a third
of them has each length, and half of the tables each size.

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
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import cli, result, timing
from genrec_jax import config as config_lib
from genrec_jax.features import FeatureSpec, Impressions, Jagged
from genrec_jax.parallel import hlo
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.planner.pooling import AUTO, POOLS, ROWS, SUMS
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.train.spread import OneDevice, OnMesh

PARTS = {'bytes': 64, 'one_device': 1, 'mesh': 8}  # part -> devices needed
SCHEMES = ('table_wise', 'table_row_wise', 'row_wise')
LENGTHS, SIZES, MIXED = (1, 5, 20), (1_000, 1_000_000), 'mixed'
HOST = 4  # devices
DIM, NUMBERS, HIDDEN, BATCHES = 32, 4, (64,), 4
# Losses of the ways differ by the order in which float32 numbers are added.
LOSS_STEPS, LOSS_RTOL = 3, 1e-5
# Of the machine code alone, which nobody runs: collectives stay as they are.
QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}
OPS = ('all-to-all', 'all-gather', 'reduce-scatter')
COLUMNS = (
  'case', 'auto', 'rows_bytes', 'sums_bytes', 'auto_bytes', 'sums_x', 'auto_x',
  'rows_core_ms', 'sums_core_ms', 'auto_core_ms', 'rows_min_core_ms',
  'sums_min_core_ms', 'twin_x', 'load_1min',
)  # fmt: skip
NOTES = (
  '*_bytes: what a device sends in a step for its tables, of the collectives '
  'in the compiled HLO; ring for all-gather and reduce-scatter. all_reduce: of '
  'the dense gradients and of scalars, the same in all ways, not in *_bytes.',
  "overflow='raise', so that one branch is compiled; dense='ddp'.",
  'auto: what auto chose for the features. sums_x, auto_x: over rows; of times '
  'the median over the turns.',
  'twin_x: auto over the way that it chose for all features, whose program is '
  'the same: how far from 1 noise alone takes a ratio.',
)


@dataclasses.dataclass(frozen=True)
class Setting:
  """A step.

  Attributes:
    part: one of `PARTS`.
    devices: in all.
    scheme: of all tables; '' on one device.
    bag: ids of each bag, or MIXED.
    rows: of each table, or MIXED.
    tables: how many, each read by a feature.
    batch: examples of a device.
  """

  part: str
  devices: int
  scheme: str
  bag: int | str
  rows: int | str
  tables: int
  batch: int

  @property
  def case(self) -> str:
    words = self.part, self.devices, self.scheme, self.bag, self.rows
    return '/'.join(str(word) for word in words if word)

  @property
  def shapes(self) -> list[tuple[int, int]]:
    """(ids of a bag, rows of its table) of each feature."""
    if self.bag != MIXED:
      return [(self.bag, self.rows)] * self.tables
    every = itertools.cycle(itertools.product(LENGTHS, SIZES))
    return list(itertools.islice(every, self.tables))


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('multi_hot', __doc__)
  parser.add_argument('--part', choices=PARTS, required=True)
  parser.add_argument('--turns', type=int, default=40, help='timed (40)')
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
  wanted = 8 if smoke else PARTS[part]
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


def settings(part: str, smoke: bool) -> Iterator[Setting]:
  """What is measured."""
  if smoke:
    devices, scheme = (1, '') if part == 'one_device' else (8, 'row_wise')
    yield Setting(part, devices, scheme, 5, 1_000, tables=2, batch=8)
    return
  shapes = [*itertools.product(LENGTHS, SIZES), (MIXED, MIXED)]
  if part == 'one_device':
    for shape in shapes:
      yield Setting(part, 1, '', *shape, tables=8, batch=2048)
  if part == 'mesh':
    for scheme, shape in itertools.product(SCHEMES, shapes):
      yield Setting(part, 8, scheme, *shape, tables=8, batch=256)
  if part == 'bytes':
    for devices in (8, 4, 16, 32, 64):
      for scheme, shape in itertools.product(SCHEMES, shapes):
        yield Setting(part, devices, scheme, *shape, tables=64, batch=64)


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
  for x in hlo.collectives(program):
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
  found = [runtime.on_devices(batch(setting, seed)) for seed in range(BATCHES)]
  if setting.devices == 1:
    found = jax.device_put(found)
  state = runtime.fresh_state()
  check_losses(steps, state, found)
  timers = {way: [] for way in steps}
  for turn in range(args.warmup + args.turns):
    # Whoever comes second finds other things in the processor's caches.
    for way in np.roll(list(steps), turn).tolist():
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


def chosen(runtime) -> dict[str, str]:
  """Feature -> the way that its rows take."""
  return runtime.pooling if runtime.plan is None else runtime.plan.pooling


def alike(pooling: dict[str, str]) -> str:
  """The way of all features, '' where they differ."""
  ways = set(pooling.values())
  return ways.pop() if len(ways) == 1 else ''


def build(setting: Setting, way: str) -> OneDevice | OnMesh:
  """The step's runtime, as a config of a run would make it."""
  config = config_lib.ranking()
  config.train.batch_size = setting.devices * setting.batch
  config.optimizer.row_learning_rate = 0.1
  config.parallel.pool = way
  features = [
    FeatureSpec(f'f{i}', 'multi_hot', rows=rows, max_len=length)
    for i, (length, rows) in enumerate(setting.shapes)
  ] + [FeatureSpec(f'n{i}', 'numeric') for i in range(NUMBERS)]
  model = config_lib.dlrm(
    dim=DIM, bottom=HIDDEN, top=HIDDEN, batch_norm=False
  ).to_dict()
  task = Ranking(
    model.pop('name'),
    model,
    {},
    features=features,
    labels=('label',),
    table_update='row_adagrad',
    init_std=0.1,  # so that rows, and not biases alone, make the loss
  )
  tx = optax.adam(1e-3)
  if setting.devices == 1:
    return OneDevice(config, task, tx)
  hosts, devices = max(1, setting.devices // HOST), HOST
  config.parallel.update(scheme=setting.scheme, hosts=hosts, devices=devices)
  config.parallel.exchange.overflow = 'raise'
  return OnMesh(config, task, tx)


def compiled(runtime, setting: Setting, options: dict | None = None):
  """The step's program."""
  like = jax.eval_shape(lambda: batch(setting))
  if setting.devices > 1:
    split = mesh_lib.split(runtime.mesh)
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), like
    )
  lowered = runtime.step().lower(runtime.abstract_state(), like)
  return lowered.compile(options)


def batch(setting: Setting, seed: int = 0) -> Impressions:
  """Examples with full bags of ids that are drawn evenly."""
  rng = np.random.default_rng(seed)
  size = setting.devices * setting.batch
  return Impressions(
    labels=rng.integers(0, 2, (size, 1)).astype(np.float32),
    weights=np.ones(size, np.float32),
    ids=np.zeros((size, 0), np.int32),
    numbers=rng.normal(size=(size, NUMBERS)).astype(np.float32),
    bags={
      f'f{i}': Jagged(
        rng.integers(1, rows, size * length, np.int32),
        np.full(size, length, np.int32),
      )
      for i, (length, rows) in enumerate(setting.shapes)
    },
    group=np.full(size, -1, np.int32),
    first=np.arange(0, size, setting.batch, dtype=np.int32),
  )


if __name__ == '__main__':
  main()
