"""A run over a mesh of devices, each with its shard of every batch."""

import dataclasses
import functools
import logging

import jax
from jax.sharding import NamedSharding, PartitionSpec

from genrec_jax import contracts
from genrec_jax.contracts import Extensions
from genrec_jax.data import devices as devices_lib
from genrec_jax.embedding import id_maps, relayout
from genrec_jax.embedding import layout as layout_lib
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import placement
from genrec_jax.runtime import host_stage as stage_lib
from genrec_jax.runtime import (
  measurements,
  pipelining,
  planning,
  restoring,
  saving,
)
from genrec_jax.runtime import optimizer as optimizer_lib
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.restoring import ResumePoint
from genrec_jax.runtime.state import TrainState
from genrec_jax.runtime.step import make_step
from genrec_jax.runtime.views import add_dense_towers, route_reads, view_reads

LOG = logging.getLogger('genrec_jax')
SPLIT, ALIKE = 'split', 'alike'  # a shard on each device, or the same on all
MB = 1 << 20


class MeshRuntime:
  """A shard of every batch on each device of a mesh.

  Attributes:
    mesh: of replicas, hosts and devices.
    plan: where rows lie.
    maps: as in `SingleDeviceRuntime`.
  """

  def __init__(
    self,
    config,
    task,
    tx,
    extensions: Extensions | None = None,
    plan: plan_lib.ShardingPlan | None = None,
    *,
    mesh: jax.sharding.Mesh | None = None,
    trains: bool = True,
  ):
    """Lays everything out; nothing is allocated yet.

    Args:
      config: of the experiment.
      task: what is trained.
      tx: optimizer of everything dense.
      extensions: what is used from outside the library.
      plan: where rows lie; None: as the config says.
      mesh: as `mesh.make_mesh` makes it, of devices that need not be there if
        steps are only compiled; None: of those of the job, as the config says.
      trains: whether there are steps, for which there must be memory.
    """
    p = self._parallel = config.parallel
    self.extensions = extensions = extensions or Extensions()
    self.maps = extensions.id_maps
    towers = state_lib.find_towers(task, extensions)
    stage_lib.check_mesh(extensions.stores)
    self._config, self._task, self._tx = config, task, tx
    self.mesh = mesh or mesh_lib.make_mesh(
      p.replicas, p.hosts, p.devices or None
    )
    specs = state_lib.row_specs(task)
    planning.check_parallel(p, mesh_lib.count_shards(self.mesh), specs)
    axes = {'replicas': 'rep', 'hosts': 'host', 'devices': 'dev'}
    shape = {name: self.mesh.shape[axis] for name, axis in axes.items()}
    self.plan = plan or planning.make_plan(config, task, shape, extensions)
    planning.check_memory(config, task, self.plan, extensions, trains=trains)
    self._tables = ShardedTables(
      layout_lib.lay_out(self.plan),
      specs,
      planning.pooling_rule(config, extensions).exchange,
      p.sync_every,
      optimizer_lib.row_options(config.optimizer),
      self.plan.pooling,
      towers,
      extra_optimizers=extensions.row_optimizers,
    )
    self.measured = measurements.measurement_names(task, on_mesh=True)
    shapes = jax.eval_shape(
      lambda: state_lib.init_optax_params(task, config.seed, towers)
    )
    self._dense = dense_lib.make_layout(
      dense_lib.DenseOptions(
        mode=p.dense,
        rules=tuple(tuple(rule) for rule in p.rules),
        gather_dtype=p.gather_dtype,
        reduce_dtype=p.reduce_dtype,
        bucket_bytes=int(p.bucket_mb * MB),
        keep_gathered=p.keep_gathered,
        clip_norm=config.optimizer.clip_norm,
        offload_state=p.offload,
      ),
      self.mesh,
      shapes,
      {'modules/.*': towers_lib.CUT}
      if towers is not None and shapes.get('modules')
      else {},
    )
    # The loop and the checkpoints see plain arrays; only steps see shards.
    self._specs = self._state_specs()

  @property
  def _is_ordered(self) -> bool:
    return self._parallel.determinism == 'mesh_invariant'

  @property
  def _microbatches(self) -> int:
    """Microbatches of a device's batch."""
    if self._is_ordered:
      return self._parallel.reduction_blocks // self.eval_shards
    return self._parallel.microbatches

  @property
  def eval_shards(self) -> int:
    """Devices, each of which evaluates its part of a batch."""
    return mesh_lib.count_shards(self.mesh)

  @property
  def shards(self) -> int:
    """Parts of a training batch: microbatches of devices."""
    return self.eval_shards * self._microbatches

  @property
  def local_eval_shards(self) -> range:
    """The parts of an evaluation batch that this process makes."""
    return devices_lib.own_shards(self.mesh)

  @property
  def local_shards(self) -> range:
    """The parts of a training batch that this process makes."""
    parts, each = self.local_eval_shards, self._microbatches
    return range(parts.start * each, parts.stop * each)

  def batches(self, iterator):
    """Batches on the devices, the next ones put there while a step runs."""
    batches = devices_lib.DeviceBatches(iterator, self.mesh)
    return (
      pipelining.LookaheadIterator(batches) if self._looks_ahead else batches
    )

  def put_on_devices(self, batch):
    """A batch, as a function of `jit` takes it."""
    return devices_lib.to_global(batch, self.mesh)

  def count(self, batch):
    """(tokens, examples) of a batch, not waited for."""
    return self._jitted_count(batch[0] if self._looks_ahead else batch)

  @functools.cached_property
  def _jitted_count(self):
    everywhere = mesh_lib.replicated(self.mesh)
    return jax.jit(self._task.count, out_shardings=everywhere)

  @property
  def _looks_ahead(self) -> bool:
    return self._parallel.pipeline != 'none'

  def abstract_state(self) -> TrainState:
    """Shapes and shardings of the train state, nothing allocated."""
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      jax.eval_shape(self._create_state),
      self._state_shardings,
    )

  def fresh_state(self) -> TrainState:
    """The state before the first step; each device makes its part."""
    create = jax.jit(self._create_state, out_shardings=self._state_shardings)
    return state_lib.load_maps(create(), self._task, self.maps)

  def step(self):
    """`(state, batch) -> (state, loss)`; the state is given away."""
    step = make_step(
      self._task,
      self._tx,
      seed=self._config.seed,
      row_learning_rate=optimizer_lib.row_rates(
        self._config.optimizer, self._tables.specs
      ),
      tables=self._tables,
      dense=self._dense,
      microbatches=self._microbatches,
      ordered=self._is_ordered,
      average=self._config.optimizer.average,
      maps=self.maps,
    )
    split = PartitionSpec(mesh_lib.AXES)
    if not self._looks_ahead:
      mapped = self._map_shards(
        step, (self._specs, split), (self._specs, PartitionSpec())
      )
      return jax.jit(self._rest_optimizer(mapped), donate_argnums=0)
    stale = self._parallel.pipeline == 'stale'
    prepare, run = pipelining.split_step(step, stale=stale)
    ready = split, split, PartitionSpec()
    mapped = self._map_shards(
      run,
      (self._specs, split, ready, split),
      (self._specs, PartitionSpec(), ready),
    )
    return pipelining.PipelinedStep(
      jax.jit(self._map_shards(prepare, (self._specs, split), ready)),
      jax.jit(self._rest_optimizer(mapped), donate_argnums=0),
    )

  def _rest_optimizer(self, mapped):
    """A step whose optimizer state rests where it is configured to."""
    resting = self._state_shardings.opt_state

    def run_step(state, *batches):
      ready = placement.to_device(state.opt_state, resting)
      state, *rest = mapped(
        dataclasses.replace(state, opt_state=ready), *batches
      )
      rested = placement.to_rest(state.opt_state, resting)
      return dataclasses.replace(state, opt_state=rested), *rest

    return run_step

  def jit(self, function, inputs, output=SPLIT):
    """Compiles a function of weights and batches for all devices.

    Args:
      function: `(weights, *inputs) -> output`, of one shard; `weights` is
        `contracts.weights_of` a state.
      inputs: SPLIT or ALIKE for each further argument.
      output: SPLIT or ALIKE.
    """
    kinds = {SPLIT: PartitionSpec(mesh_lib.AXES), ALIKE: PartitionSpec()}
    weights = contracts.weights_of(self._specs)
    return jax.jit(
      self._map_shards(
        function, (weights, *(kinds[x] for x in inputs)), kinds[output]
      )
    )

  def read_rows(self, task, weights, reads):
    """(parameters, views of the reads), inside such a function.

    It reads as a step with one microbatch does, without gradients.

    Args:
      task: what is evaluated.
      weights: its first argument.
      reads: feature -> what it reads, as from `Task.reads_for`.
    """
    trained = state_lib.collect_optax_params(
      task, weights['params'], weights['tables'], weights['modules']
    )
    whole = self._dense.use(self._dense.gather(trained))
    reads = jax.tree.map(lambda x: x[None], reads)
    id_map = id_maps.collect_maps(task, self.maps)
    rows = id_map.lookup(weights['id_states'], reads)
    routed = route_reads(task, self._tables, reads, rows)
    fetched = self._tables.fetch(weights['tables'], routed.routes)
    modules = whole.get('modules', {})
    finished = self._tables.finish(modules, fetched, routed.routes)
    views = view_reads(whole['tables'], routed, finished)
    return whole['params'], add_dense_towers(task, modules, views)

  def restore(self, checkpoints, step, data=None) -> ResumePoint:
    """The state of a checkpoint, whatever plan and mesh it was trained on."""
    manifest = checkpoints.read_manifest(step)
    if 'rows' in manifest:
      return restoring.restore_by_rows(
        self, checkpoints, step, data, manifest['tree']
      )
    saved = plan_lib.from_checkpoint(manifest['host'])
    if self.plan.same_placement(saved):
      return restoring.restore_unchanged(
        self.abstract_state(), checkpoints, step, data
      )
    if saved is None:
      saved = planning.plan_one_device(self._task, 'data_parallel')
    LOG.info('laying the tables out anew, for another plan')
    return restoring.restore_other_layout(
      checkpoints,
      step,
      data,
      manifest['tree'],
      layouts=(layout_lib.lay_out(saved), self._tables.layout),
      abstract=self.abstract_state(),
      mesh=self.mesh,
      specs=self._specs,
    )

  def restore_weights(self, checkpoints, step: int) -> dict:
    """What predicts, of a checkpoint of any plan; see `restoring`."""
    manifest = checkpoints.read_manifest(step)
    saved = None
    if 'rows' not in manifest:
      saved = plan_lib.from_checkpoint(manifest['host'])
      saved = saved or planning.plan_one_device(self._task, 'data_parallel')
    return restoring.restore_weights(self, checkpoints, step, saved)

  def _create_state(self) -> TrainState:
    specs = self._specs
    rows = {name: specs.tables[name] for name in specs.row_opt_state}
    return state_lib.create_state(
      self._task,
      self._tx,
      self._config.seed,
      self.measured,
      self._tables,
      tracked=saving.tracks_dirty_rows(self._config),
      averages=self._config.optimizer.average > 0,
      maps=self.maps,
      mapped=lambda init: self._map_shards(
        init, (PartitionSpec(),), (rows, specs.row_opt_state)
      ),
    )

  def _state_specs(self) -> TrainState:
    """A `PartitionSpec` for every leaf of the state."""
    tables = self._tables
    layout = tables.layout.shapes()
    rows = tables.partition(layout)
    dense = placement.specs(self._dense)
    slots_like = jax.eval_shape(tables.init_slots, layout)
    return TrainState(
      step=PartitionSpec(),
      params=dense['params'],
      tables={**dense['tables'], **rows},
      opt_state=placement.state_specs(self._dense, self._tx),
      row_opt_state=tables.partition(slots_like),
      metric_sums={n: PartitionSpec() for n in self.measured},
      first_nonfinite=PartitionSpec(),
      lr_scale=PartitionSpec(),
      dirty_rows=rows if saving.tracks_dirty_rows(self._config) else {},
      modules=dense.get('modules', {}),
      averaged=dense['params'] if self._config.optimizer.average else {},
      aux=dense.get('aux', {}),
      id_states=jax.tree.map(
        lambda _: PartitionSpec(),
        id_maps.collect_maps(self._task, self.maps).init(),
      ),
    )

  @property
  def layout(self) -> layout_lib.StackLayout:
    """Where the rows of each array lie."""
    return self._tables.layout

  @property
  def stacks(self):
    """What lies in the arrays of rows, as checkpoints of rows ask."""
    return relayout.find_stacks(self._tables.layout)

  @functools.cached_property
  def _state_shardings(self) -> TrainState:
    """A sharding for every leaf of the state, between steps."""
    plain = jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec),
      self._specs,
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    return dataclasses.replace(
      plain, opt_state=placement.state_shardings(self._dense, self._tx)
    )

  def _map_shards(self, function, in_specs, out_specs):
    return jax.shard_map(
      function,
      mesh=self.mesh,
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=False,
    )
