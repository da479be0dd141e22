"""The steps of `benchmarks.dmt`: the ways of vectors, and their programs."""

import dataclasses
from collections.abc import Iterator

import jax
import optax

from benchmarks import multi_hot_steps
from genrec_jax import config as config_lib
from genrec_jax.features import FeatureSpec
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.tasks.ranking import Ranking

MESHES = ((2, 4), (8, 8), (4, 4), (4, 2))  # hosts, devices of each
FEATURES, TOWERS = 64, 8
WIDTH, DIM = 64, 16  # below the towers and above them
ROWS, EXAMPLES = 1_000, 128  # of a table; of a device
HIDDEN = (64,)
COMPRESSIONS = (2, 4, 8, 16)
NARROW = ('bfloat16', 'int8')  # near, far; gradients are alike


@dataclasses.dataclass(frozen=True)
class Way:
  """How vectors get to the examples.

  Attributes:
    name: of it.
    scheme: of all tables.
    pool: whether sums or rows travel.
    compression: of the towers; 1 for those that change nothing, 0 for none.
    codecs: number formats within hosts and between them.
  """

  name: str
  scheme: str = 'table_wise'
  pool: str = 'sums'
  compression: int = 0
  codecs: tuple[str, str] = ('float32', 'float32')


FLAT, ALONE = Way('flat'), Way('sptt', compression=1)
WAYS = (
  FLAT,
  Way('flat by rows', 'row_wise', 'rows'),
  Way('flat in steps', 'table_row_wise'),
  ALONE,
  Way('sptt, rows in the host', 'table_row_wise', compression=1),
  *(Way(f'dmt {c}', compression=c) for c in COMPRESSIONS),
  Way('dmt 4, narrow', compression=4, codecs=NARROW),
)
ON_ALL = (FLAT, ALONE, *WAYS[5:-1])  # of all meshes; others of the first
# Of the steps that run.
TIMED = (FLAT, ALONE, Way('dmt 4', compression=4))
TIMED_SIZES = {'features': 32, 'towers': 4, 'batch': 512}
SMOKE_SIZES = {'features': 8, 'towers': 2, 'batch': 8}


@dataclasses.dataclass(frozen=True)
class Setting:
  """A step.

  Attributes:
    hosts: of the mesh.
    on_host: devices of each.
    way: of the vectors.
    features: of an example, each with a table of its own and one id.
    towers: that share them.
    batch: examples of a device.
  """

  hosts: int
  on_host: int
  way: Way
  features: int = FEATURES
  towers: int = TOWERS
  batch: int = EXAMPLES

  @property
  def mesh(self) -> str:
    return f'{self.hosts}x{self.on_host}'

  @property
  def case(self) -> str:
    return f'{self.mesh}/{self.way.name}'

  @property
  def devices(self) -> int:
    return self.hosts * self.on_host

  @property
  def shapes(self) -> list[tuple[int, int]]:
    """(ids of a bag, rows of its table) of each feature."""
    return [(1, ROWS)] * self.features


def settings(smoke: bool) -> Iterator[Setting]:
  """Those whose bytes are counted."""
  if smoke:
    for way in (FLAT, ALONE, WAYS[-1]):
      yield Setting(*MESHES[0], way, **SMOKE_SIZES)
    return
  for mesh in MESHES:
    for way in WAYS if mesh == MESHES[0] else ON_ALL:
      yield Setting(*mesh, way)


def build(setting: Setting, mesh=None):
  """(config, task, runtime) of the step, as a run would make them.

  Args:
    setting: the step.
    mesh: of devices that need not be there; None for those of this process.
  """
  way = setting.way
  names = [f'f{i:03}' for i in range(setting.features)]
  features = [FeatureSpec(n, 'multi_hot', rows=ROWS, max_len=1) for n in names]
  features += [
    FeatureSpec(f'n{i}', 'numeric') for i in range(multi_hot_steps.NUMBERS)
  ]
  config = config_lib.ranking()
  config.train.batch_size = setting.devices * setting.batch
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.update(
    scheme=way.scheme,
    pool=way.pool,
    hosts=setting.hosts,
    devices=setting.on_host,
  )
  near, far = way.codecs
  config.parallel.exchange.update(forward=far, backward=far, overflow='raise')
  if near != far:
    config.parallel.exchange.update(near_forward=near, near_backward=near)
  model = {'dim': WIDTH}
  if way.compression > 1:
    model = {
      'dim': DIM, 'tower_width': WIDTH, 'tower_compression': way.compression,
    }  # fmt: skip
  elif way.compression:
    model['tower'] = 'identity'
  model = config_lib.dlrm(
    bottom=HIDDEN, top=HIDDEN, batch_norm=False, **model
  ).to_dict()
  each = setting.features // setting.towers
  towers = [names[i : i + each] for i in range(0, len(names), each)]
  task = Ranking(
    model.pop('name'),
    model,
    {},
    features=features,
    labels=('label',),
    table_update='row_adagrad',
    init_std=0.1,  # so that rows, and not biases alone, make the loss
    towers=towers if way.compression else (),
  )
  runtime = MeshRuntime(config, task, optax.sgd(0.01), mesh=mesh)
  return config, task, runtime


def compile_step(runtime: MeshRuntime, setting: Setting, options=None):
  """The step's program."""
  return multi_hot_steps.compiled(runtime, setting, options)


def draw_batch(runtime: MeshRuntime, setting: Setting, seed: int):
  """Examples of all devices, of which a process puts down its own."""
  batch = multi_hot_steps.batch(setting, seed)
  own = runtime.local_shards

  def pick(x):
    each = len(x) // setting.devices
    return x[own.start * each : own.stop * each]

  return runtime.put_on_devices(jax.tree.map(pick, batch))
