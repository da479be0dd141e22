"""A run on one device."""

import dataclasses

import jax
from jax.sharding import SingleDeviceSharding

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import relayout
from genrec_jax.embedding.local_tables import (
  LocalTables,
  SingleDeviceEvalRuntime,
)
from genrec_jax.runtime import host_stage as stage_lib
from genrec_jax.runtime import measurements, planning, restoring, saving
from genrec_jax.runtime import optimizer as optimizer_lib
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.restoring import ResumePoint
from genrec_jax.runtime.state import TrainState
from genrec_jax.runtime.step import make_step


class SingleDeviceRuntime(SingleDeviceEvalRuntime):
  """Everything on one device.

  Attributes:
    shards: parts that a training batch is cut into.
    plan: where rows lie, None where they lie together.
  """

  shards, plan, local_shards = 1, None, None

  def __init__(
    self,
    config,
    task,
    tx,
    extensions: Extensions | None = None,
    *,
    trains: bool = True,
  ):
    self._config, self._task, self._tx = config, task, tx
    self.extensions = extensions = extensions or Extensions()
    self.maps = extensions.id_maps
    self.towers = state_lib.find_towers(task, extensions)
    self.stores = extensions.stores
    stage_lib.check_one_device(config, self.stores)
    specs = state_lib.row_specs(task)
    planning.check_memory(
      config,
      task,
      planning.plan_one_device(task),
      extensions,
      trains=trains,
    )
    self.pooling = planning.pooling_on_one_device(config, task, extensions)
    self._tables = LocalTables(
      specs,
      optimizer_lib.row_options(config.optimizer),
      self.pooling,
      self.towers,
      extra_optimizers=extensions.row_optimizers,
      stores=self.stores,
    )
    self.measured = measurements.measurement_names(task, on_mesh=False)

  @property
  def stacks(self):
    """What lies in the arrays of rows, as checkpoints of rows ask."""
    return relayout.sources_of_whole(state_lib.row_specs(self._task))

  def batches(self, iterator):
    """The iterator of NumPy batches, as the step takes them."""
    return iterator

  def count(self, batch):
    """(tokens, examples) of a batch, padding left out."""
    tokens, examples = self._task.count(batch)
    return int(tokens), int(examples)

  def abstract_state(self) -> TrainState:
    """Shapes of the train state, nothing allocated."""
    return jax.eval_shape(self._create_state)

  def fresh_state(self) -> TrainState:
    """The state before the first step."""
    # Bound to its device from the start, as every later state is: a step would
    # be compiled anew for a state of which only some arrays are bound.
    device = SingleDeviceSharding(jax.local_devices()[0])
    state = jax.jit(self._create_state, out_shardings=device)()
    return state_lib.load_maps(state, self._task, self.maps)

  def step(self):
    """`(state, batch) -> (state, loss)`; the state is given away."""
    optimizer = self._config.optimizer
    step = make_step(
      self._task,
      self._tx,
      seed=self._config.seed,
      row_learning_rate=optimizer_lib.row_rates(optimizer, self._tables.specs),
      clip_norm=optimizer.clip_norm,
      tables=self._tables,
      average=optimizer.average,
      maps=self.maps,
    )
    return stage_lib.compile_step(step, self._tables)

  def restore(self, checkpoints, step, data=None) -> ResumePoint:
    """The state of a checkpoint, whatever it was trained on."""
    manifest = checkpoints.read_manifest(step)
    if 'rows' in manifest:
      return restoring.restore_by_rows(
        self, checkpoints, step, data, manifest['tree']
      )
    if plan_lib.from_checkpoint(manifest['host']) is not None:
      resumed = self._on_mesh().restore(checkpoints, step, data)
      # A mesh measures what one device does, and its own exchange.
      sums = {name: resumed.state.metric_sums[name] for name in self.measured}
      state = dataclasses.replace(resumed.state, metric_sums=sums)
      device = jax.local_devices()[0]
      return dataclasses.replace(resumed, state=jax.device_put(state, device))
    return restoring.restore_unchanged(
      self.abstract_state(), checkpoints, step, data
    )

  def _on_mesh(self) -> 'MeshRuntime':
    """A mesh of this device, whose tables are whole arrays as ours are."""
    config = self._config.copy_and_resolve_references()
    config.parallel = config_lib.parallel()
    plan = planning.plan_one_device(self._task, 'data_parallel')
    return MeshRuntime(config, self._task, self._tx, self.extensions, plan=plan)

  def _create_state(self) -> TrainState:
    return state_lib.create_state(
      self._task,
      self._tx,
      self._config.seed,
      self.measured,
      self._tables,
      tracked=saving.tracks_dirty_rows(self._config),
      averages=self._config.optimizer.average > 0,
      maps=self.maps,
    )
