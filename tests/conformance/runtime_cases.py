"""Every implementer of `contracts.Runtime`, and a training of some batches.

Another implementer is one more line of `RUNTIMES`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.contracts import Extensions
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from genrec_jax.runtime.state import flatten_state
from tests.conformance.admitting import Admitting
from tests.conformance.drawn import Drawn
from tests.conformance.task_cases import ITEMS, PADDED, EveryRead, pack_numbers

STEPS, SEED = 4, 0
MEETING = ITEMS - 4  # rows of the tables of an id map: not every id gets one


@dataclasses.dataclass(frozen=True)
class Setting:
  """A runtime.

  Attributes:
    make: (config, task, optimizer, extensions) -> the runtime.
    parallel: that section of the config.
  """

  make: Callable[..., Any]
  parallel: dict = dataclasses.field(default_factory=dict)

  @property
  def looks_ahead(self) -> bool:
    return self.parallel.get('pipeline', 'none') != 'none'


MESH = dict(hosts=2, devices=4)
SMALL = dict(hosts=2, devices=2)
RUNTIMES = {
  'one device': Setting(SingleDeviceRuntime),
  'mesh': Setting(MeshRuntime, MESH),
  'mesh, exact': Setting(MeshRuntime, {**SMALL, 'pipeline': 'exact'}),
  'mesh, microbatches, fsdp': Setting(
    MeshRuntime,
    {
      **SMALL,
      'microbatches': 4,
      'dense': 'fsdp',
      'rules': (('params/.*', 0), ('.*', None)),
      'pool': 'sums',
      'scheme': 'table_row_wise',
    },
  ),
}
SLOW = {
  'mesh, sums': Setting(MeshRuntime, {**MESH, 'pool': 'sums'}),
  'mesh, in order': Setting(
    MeshRuntime,
    {**MESH, 'determinism': 'mesh_invariant', 'reduction_blocks': 16},
  ),
  'mesh, exact, microbatches': Setting(
    MeshRuntime, {**SMALL, 'pipeline': 'exact', 'microbatches': 4}
  ),
}


class Mapped(EveryRead):
  """With tables whose ids are not their rows; `MAPS` says which are."""

  def tables(self):
    tables = super().tables()
    for name in ('one', 'bag'):
      tables[name] = dataclasses.replace(
        tables[name], rows=MEETING, id_map='hash', ids=ITEMS
      )
    return tables


# Sets of id maps: of no table, of the library, and handed in.
MAPS = {
  'identity': (EveryRead, {}),
  'hashed': (Mapped, {}),
  'admitting': (
    Mapped,
    {name: Admitting(ITEMS, MEETING) for name in ('one', 'bag')},
  ),
  'learned': (
    Mapped,
    {name: Drawn(name, ITEMS, MEETING, '') for name in ('one', 'bag')},
  ),
}


def make_runtime(setting: Setting, maps: str = 'identity'):
  config = config_lib.ranking()
  config.seed = SEED
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.update(setting.parallel)
  task, own = MAPS[maps]
  return setting.make(
    config, task(), optax.sgd(0.1), Extensions(id_maps=own or {})
  )


class Packs:
  """An iterator of batches in shards, whose state is how many it has given."""

  def __init__(self, shards: int, count: int = STEPS):
    self._shards, self._at, self._count = shards, 0, count

  def __iter__(self) -> Iterator:
    return self

  def __next__(self):
    if self._at == self._count:
      raise StopIteration
    self._at += 1
    return pack_numbers(PADDED, self._shards, seed=self._at - 1)

  def get_state(self) -> dict:
    return {'at': self._at}

  def set_state(self, state: dict) -> None:
    self._at = state['at']

  def close(self) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Curve:
  """A training, on the host.

  Attributes:
    losses: of each step.
    norms: of the gradients, added up, behind each step.
    states: {name: array} behind each step.
  """

  losses: list[float]
  norms: list[float]
  states: list[dict[str, np.ndarray]]


def host(state) -> dict[str, np.ndarray]:
  return jax.device_get(flatten_state(state))


class Training:
  """A runtime and its compiled step, which several tests use."""

  def __init__(self, setting: Setting, maps: str):
    self.setting = setting
    self.runtime = make_runtime(setting, maps)
    # Promotion is optax's habit; everything else stays strict.
    with jax.numpy_dtype_promotion('standard'):
      self.step = self.runtime.step()

  def run(
    self, state=None, batches=None, between=lambda state, batch: None
  ) -> tuple[Any, Curve]:
    """Trains to the end of the batches.

    Args:
      state: to begin with; None for a fresh one.
      batches: from `batches`; None for all.
      between: called with the state before each step, and its batch.
    """
    curve = Curve([], [], [])
    with jax.numpy_dtype_promotion('standard'):
      state = self.runtime.fresh_state() if state is None else state
      for batch in self.batches() if batches is None else batches:
        between(state, batch[0] if self.setting.looks_ahead else batch)
        state, loss = self.step(state, batch)
        curve.losses.append(float(loss))
        curve.norms.append(float(state.metric_sums['grad_norm'][0]))
        curve.states.append(host(state))
    return state, curve

  def batches(self):
    return self.runtime.batches(Packs(self.runtime.shards))

  def restored(self, directory):
    """(state, batches) of the only checkpoint of a directory."""
    with CheckpointManager(directory) as checkpoints:
      batches = self.batches()
      with jax.numpy_dtype_promotion('standard'):
        found = self.runtime.restore(checkpoints, checkpoints.latest(), batches)
    return found.state, batches


@functools.cache
def training_of(name: str, maps: str = 'identity') -> Training:
  return Training({**RUNTIMES, **SLOW}[name], maps)


@functools.cache
def curve_of(name: str, maps: str = 'identity') -> Curve:
  return training_of(name, maps).run()[1]
