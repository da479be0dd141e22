"""The steps of `benchmarks.multi_hot`: settings, programs, batches."""

import dataclasses
import itertools
from collections.abc import Iterator

import jax
import numpy as np
import optax

from genrec_jax import config as config_lib
from genrec_jax.features import (
  Columns,
  Examples,
  FeatureSpec,
  Jagged,
  stack_columns,
)
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from genrec_jax.tasks.ranking import Ranking

PARTS = ('bytes', 'one_device', 'mesh')
COUNTS = {'bytes': (4, 8, 16, 32, 64), 'one_device': (1,), 'mesh': (8,)}
EXAMPLES = {'bytes': 512, 'one_device': 2048, 'mesh': 256}  # of a device
SCHEMES = ('table_wise', 'table_row_wise', 'row_wise')
LENGTHS, SIZES, MIXED = (1, 5, 20), (1_000, 1_000_000), 'mixed'
HOST = 4  # devices
DIM, NUMBERS, HIDDEN = 32, 4, (64,)


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
    every = [(bag, rows) for rows in SIZES for bag in LENGTHS]
    return list(itertools.islice(itertools.cycle(every), self.tables))


def settings(part: str, smoke: bool) -> Iterator[Setting]:
  """What is measured."""
  if smoke:
    devices, scheme = (1, '') if part == 'one_device' else (8, 'row_wise')
    yield Setting(part, devices, scheme, 5, 1_000, tables=2, batch=8)
    return
  for devices in COUNTS[part]:
    for scheme, shape in itertools.product(
      [''] if part == 'one_device' else SCHEMES,
      [*itertools.product(LENGTHS, SIZES), (MIXED, MIXED)],
    ):
      tables = places(scheme, devices) * (3 if MIXED in shape else 1)
      yield Setting(part, devices, scheme, *shape, tables, EXAMPLES[part])


def places(scheme: str, devices: int) -> int:
  """Tables that lie evenly under a scheme, 8 at least."""
  needed = {'table_wise': devices, 'table_row_wise': devices // HOST}
  return max(8, needed.get(scheme, 1))


def chosen(runtime) -> dict[str, str]:
  """Feature -> the way that its rows take."""
  return runtime.pooling if runtime.plan is None else runtime.plan.pooling


def alike(pooling: dict[str, str]) -> str:
  """The way of all features, '' where they differ."""
  ways = set(pooling.values())
  return ways.pop() if len(ways) == 1 else ''


def build(setting: Setting, way: str) -> SingleDeviceRuntime | MeshRuntime:
  """The step's runtime, as a config of a run would make it."""
  config = config_lib.ranking()
  config.train.batch_size = setting.devices * setting.batch
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.pool = way
  features = [
    FeatureSpec(f'f{i:03}', 'multi_hot', rows=rows, max_len=length)
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
    return SingleDeviceRuntime(config, task, tx)
  hosts, devices = max(1, setting.devices // HOST), HOST
  config.parallel.update(scheme=setting.scheme, hosts=hosts, devices=devices)
  config.parallel.exchange.overflow = 'raise'
  return MeshRuntime(config, task, tx)


def compiled(runtime, setting: Setting, options: dict | None = None):
  """The step's program."""
  like = jax.eval_shape(lambda: batch(setting))
  if setting.devices > 1:
    split = mesh_lib.batch_sharding(runtime.mesh)
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), like
    )
  lowered = runtime.step().lower(runtime.abstract_state(), like)
  return lowered.compile(options)


def batch(setting: Setting, seed: int = 0) -> Examples:
  """Examples with full bags of ids that are drawn evenly."""
  rng = np.random.default_rng(seed)
  size = setting.devices * setting.batch
  return Examples(
    labels=stack_columns({'label': rng.integers(0, 2, size)}, np.float32),
    weights=np.ones(size, np.float32),
    ids=Columns(np.zeros((size, 0), np.int32), ()),
    dense=Columns(
      rng.normal(size=(size, NUMBERS)).astype(np.float32),
      tuple(f'n{i}' for i in range(NUMBERS)),
    ),
    jagged={
      f'f{i:03}': Jagged(
        stack_columns(
          {f'f{i:03}': rng.integers(1, rows, size * length)}, np.int32
        ),
        np.full(size, length, np.int32),
      )
      for i, (length, rows) in enumerate(setting.shapes)
    },
    group=np.full(size, -1, np.int32),
    first=np.arange(0, size, setting.batch, dtype=np.int32),
  )
