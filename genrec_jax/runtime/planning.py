"""Decides whether the tables of an experiment fit, and where they lie."""

import dataclasses
import pathlib

import jax
import numpy as np

from genrec_jax import planner
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import layout as layout_lib
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import single_scheme as schemes_lib
from genrec_jax.embedding import tower_plans
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.formatting import format_bytes
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.planner import hardware, pooling
from genrec_jax.runtime import state as state_lib

GB = 10**9
DEFAULT_SCHEME = 'row_wise'
AUTO = 'auto'  # a scheme: the planner chooses for each table
# Of a parameter on a device: itself, its gradient and two moments.
DENSE_COPIES = 4
_OTHER_PLAN = (
  'give the path of a plan of this model and mesh, which `genrec plan` writes, '
  'or leave parallel.plan out and let parallel.scheme say where rows lie'
)


def make_plan(
  config,
  task,
  mesh_shape: dict,
  extensions: Extensions = Extensions(),
) -> plan_lib.ShardingPlan:
  """The plan of the tables that are updated by rows.

  Args:
    config: the experiment's.
    task: whose tables.
    mesh_shape: {'replicas', 'hosts', 'devices'}.
    extensions: what is used from outside the library.
  """
  p, specs = config.parallel, state_lib.row_specs(task)
  schemes = extensions.schemes
  check_scheme(p, specs, schemes)
  rule = pooling_rule(config, extensions)
  towers = state_lib.find_towers(task, extensions)
  if towers is not None:
    tower_plans.check_settings(p, towers)
  elif rule.exchange.near_forward or rule.exchange.near_backward:
    raise ConfigError(
      'parallel.exchange.near_forward and near_backward are formats of sums on '
      'their way to towers, and none travel there: leave them out, or set '
      'model.towers and an optimizer.rows.name'
    )
  elif not p.plan and p.scheme == AUTO:
    work = _describe_work(config, task, mesh_shape, extensions)
    return planner.make_plan(**work, schemes=schemes, pooling=rule)[0]
  if p.plan:
    plan = _load_plan(p.plan, specs, mesh_shape, schemes)
    tower_plans.check_section(plan, towers)
  elif towers is not None:
    tables = {n: r.table for n, r in task.expected_reads().items()}
    plan = tower_plans.plan_towers(
      towers, tables, specs, p.scheme, **mesh_shape, schemes=schemes
    )
  else:
    plan = schemes_lib.plan_with_scheme(
      specs, p.scheme or DEFAULT_SCHEME, **mesh_shape, schemes=schemes
    )
  loads = expected_loads(config, task, mesh_shape, extensions)
  plan = pooling.fill_pooling(plan, loads, config.train.batch_size, rule)
  if towers is not None:
    plan = tower_plans.add_towers(plan, towers, task)
  return plan


def _load_plan(path: str, specs, mesh_shape: dict, schemes):
  """The plan of a file, which must be of these tables and this mesh."""
  try:
    plan = plan_lib.load_plan(path, schemes)
    planned = {name: getattr(plan, name) for name in mesh_shape}
    if planned != mesh_shape:
      raise plan_lib.PlanError(
        f'{path} is a plan for {describe_mesh(planned)}, and the config says '
        f'{describe_mesh(mesh_shape)}'
      )
    schemes_lib.require_same_tables(plan, specs)
  except OSError as e:
    raise plan_lib.PlanError(
      f'parallel.plan: {path} cannot be read ({e.strerror}); {_OTHER_PLAN}'
    ) from None
  except plan_lib.PlanError as e:
    raise plan_lib.PlanError(f'parallel.plan: {e}; {_OTHER_PLAN}') from None
  return plan


def _describe_work(config, task, shape: dict, extensions: Extensions) -> dict:
  """What the planner asks whatever it is to do."""
  return {
    'loads': expected_loads(config, task, shape, extensions),
    'topology': load_topology(config, shape),
    'batch': config.train.batch_size,
    'dense': dense_part(config, task, shape),
  }


def check_parallel(p, shards: int, specs=()) -> None:
  """Refuses settings that contradict each other.

  Args:
    p: `config.parallel`.
    shards: devices of the mesh.
    specs: the tables that are updated by rows.
  """
  for key, known in {
    'determinism': ('per_mesh', 'mesh_invariant'),
    'pipeline': ('none', 'exact', 'stale'),
  }.items():
    if p[key] not in known:
      raise ConfigError(f'parallel.{key} is {p[key]!r}, must be one of {known}')
  if p.microbatches < 1:
    raise ConfigError(f'parallel.microbatches is {p.microbatches}, at least 1')
  if p.determinism == 'per_mesh':
    return
  if p.replicas > 1 and specs:
    raise ConfigError(
      "parallel.determinism='mesh_invariant' and "
      f'parallel.replicas={p.replicas} contradict each other: replicas average '
      'their own copies of the tables, so that results depend on their number; '
      'set parallel.replicas=1 and give the devices to parallel.hosts, or set '
      'parallel.determinism=per_mesh'
    )
  if p.reduction_blocks < 1 or p.reduction_blocks % shards:
    raise ConfigError(
      f'parallel.reduction_blocks is {p.reduction_blocks}, must be a multiple '
      f"of the {shards} devices for parallel.determinism='mesh_invariant'"
    )
  if p.dense != 'ddp' or p.microbatches != 1:
    raise ConfigError(
      "parallel.determinism='mesh_invariant' adds up "
      "parallel.reduction_blocks by itself: it needs parallel.dense='ddp' and "
      'parallel.microbatches=1'
    )


def check_one_device(
  config, task, extensions: Extensions = Extensions()
) -> None:
  """Refuses places of rows that one device could not follow on a mesh either.

  Args:
    config: of the experiment, of one device.
    task: whose tables.
    extensions: what is used from outside the library.
  """
  p, specs = config.parallel, state_lib.row_specs(task)
  _check_name(p.scheme, extensions.schemes)
  if p.plan:
    one = {'replicas': 1, 'hosts': 1, 'devices': 1}
    _load_plan(p.plan, specs, one, extensions.schemes)


def _check_name(scheme: str, schemes) -> None:
  """Refuses a scheme that there is not."""
  known = {**SCHEMES, **(schemes or {})}
  if scheme and scheme != AUTO and scheme not in known:
    raise ConfigError(
      f'parallel.scheme is {scheme!r}, must be {AUTO!r} or one of '
      f'{", ".join(map(repr, known))}'
    )


def check_scheme(p, specs, schemes=None) -> None:
  """Refuses a scheme that there is not, or nothing or two things would follow.

  Args:
    p: `config.parallel`.
    specs: the tables that are updated by rows.
    schemes: from outside the library, by name.
  """
  _check_name(p.scheme, schemes)
  for key in ('scheme', 'plan'):
    if p[key] and not specs:
      raise ConfigError(
        f'parallel.{key} is {p[key]!r} and says where tables lie that are '
        'updated by rows, but every table is updated by optax (dense) and lies '
        f'on every device; leave parallel.{key} out, or set '
        "optimizer.rows.name='row_adagrad' or config.tables"
      )
  own = {name: spec.scheme for name, spec in specs.items() if spec.scheme}
  if own and (p.plan or p.scheme == AUTO):
    name, scheme = next(iter(own.items()))
    chosen = 'parallel.plan' if p.plan else "parallel.scheme='auto'"
    raise ConfigError(
      f'config.tables gives table {name!r} the scheme {scheme!r}, and {chosen} '
      'says where every table lies; leave one of them out'
    )


def plan_one_device(task, scheme: str = 'table_wise') -> plan_lib.ShardingPlan:
  """One device has all tables, whatever their settings say of many."""
  specs = {
    name: dataclasses.replace(spec, scheme='')
    for name, spec in state_lib.row_specs(task).items()
  }
  return schemes_lib.plan_with_scheme(specs, scheme)


def pooling_on_one_device(
  config, task, extensions: Extensions = Extensions()
) -> dict[str, str]:
  """Pooled feature -> 'rows' or 'sums', where one device has all tables."""
  shape = {'replicas': 1, 'hosts': 1, 'devices': 1}
  plan = plan_one_device(task)
  return pooling.fill_pooling(
    plan,
    expected_loads(config, task, shape, extensions),
    config.train.batch_size,
    pooling_rule(config, extensions),
  ).pooling


def check_memory(
  config,
  task,
  plan: plan_lib.ShardingPlan,
  extensions: Extensions = Extensions(),
  *,
  trains: bool = True,
) -> None:
  """Refuses what would not fit the hardware that `config.parallel` names.

  Args:
    config: of the experiment.
    task: whose tables and parameters.
    plan: where rows lie.
    extensions: what is used from outside the library.
    trains: whether there are steps, beside evaluations or predictions.

  Raises:
    planner.InsufficientMemory: with the arithmetic.
  """
  p = config.parallel
  if not (p.topology or p.memory_gb):
    return
  shape = {k: getattr(plan, k) for k in ('replicas', 'hosts', 'devices')}
  if not trains:
    rows = planner.tree_bytes(layout_lib.lay_out(plan).shapes())
    parameters = 4 * dense_part(config, task, shape).parameters
    _check_evaluation(config, task, shape, rows, parameters, '')
    return
  work = _describe_work(config, task, shape, extensions)
  exchange = pooling_rule(config, extensions).exchange
  towers = planner.from_towers(state_lib.find_towers(task, extensions))
  report = planner.evaluate_plan(plan, **work, exchange=exchange, towers=towers)
  if len(report.over):
    alone = plan.group_size * plan.replicas == 1
    scheme = p.scheme or DEFAULT_SCHEME
    scheme = 'the model on one device' if alone else f'scheme {scheme!r}'
    raise planner.insufficient_memory_error(report, p.plan or scheme)
  if config.eval.splits:  # between two steps, beside their whole state
    of = ', with their optimizers,'
    held = report.allocated, report.dense.bytes
    _check_evaluation(config, task, shape, *held, of)


def _check_evaluation(
  config, task, shape: dict, rows: int, parameters: int, of: str
) -> None:
  """Refuses an evaluation that needs more than a device has.

  Args:
    config: of the experiment.
    task: what is evaluated, or predicts.
    shape: of the mesh.
    rows: bytes of a device's part of the tables.
    parameters: the same of everything else.
    of: what these hold, in words, beside weights.
  """
  topology = load_topology(config, shape)
  budget = int(topology.memory * (1 - topology.reserve))
  # A task that compares with all there is keeps a vector of each.
  vectors, keeps = 0, config.eval.get('keep_vectors', True)
  if keeps and hasattr(task, 'count_evaluation_bytes'):
    vectors = task.count_evaluation_bytes(int(np.prod(list(shape.values()))))
  if rows + parameters + vectors <= budget:
    return
  more = without = ''
  if vectors:
    more = f' and {format_bytes(vectors)} of vectors of items'
    without = 'set eval.keep_vectors=False, '
  raise planner.InsufficientMemory(
    'evaluations and predictions do not fit: a device would hold '
    f'{format_bytes(rows)} of rows and {format_bytes(parameters)} of '
    f'parameters{of}{more}, and has {format_bytes(budget)} '
    f'({format_bytes(topology.memory)} less {topology.reserve:.0%} reserve); '
    f'{without}take more devices (parallel.hosts, parallel.devices), or '
    'devices with more memory (parallel.topology, parallel.memory_gb)'
  )


def describe_plan(
  config, task, workdir, extensions: Extensions = Extensions()
) -> str:
  """The report that `--mode=plan` prints; leaves plan.json in the workdir."""
  p = config.parallel
  shape = mesh_shape(config)
  fixed, towers = None, state_lib.find_towers(task, extensions)
  if p.plan or p.scheme != AUTO or towers is not None:
    fixed = make_plan(config, task, shape, extensions)
  path = pathlib.Path(workdir) / 'plan.json'
  path.parent.mkdir(parents=True, exist_ok=True)
  text = planner.describe(
    **_describe_work(config, task, shape, extensions),
    overrides=shape,
    plan=fixed,
    pooling=pooling_rule(config, extensions),
    schemes=extensions.schemes,
    towers=planner.from_towers(towers),
    save=str(path),
  )
  return f'{text}\nplan: {path}'


def mesh_shape(config) -> dict:
  """The mesh of a config; 0 devices are those of the hardware it names."""
  p = config.parallel
  devices = p.devices
  if not devices:
    known = hardware.find_topology(p.topology).devices if p.topology else None
    devices = known or jax.device_count() // (p.replicas * p.hosts)
  return {'replicas': p.replicas, 'hosts': p.hosts, 'devices': devices}


def describe_mesh(shape: dict) -> str:
  """The keys that make such a mesh."""
  return ', '.join(f'parallel.{key}={size}' for key, size in shape.items())


def load_topology(config, shape: dict) -> planner.Topology:
  """The hardware that a config names, in the shape of a mesh."""
  p = config.parallel
  changed = dict(shape)
  if p.memory_gb:
    changed['memory'] = int(p.memory_gb * GB)
  return hardware.find_topology(p.topology or 'cpu', **changed)


def pooling_rule(
  config, extensions: Extensions = Extensions()
) -> planner.PoolingRule:
  """How rows or sums is decided for the pooled features of a config."""
  p = config.parallel
  if p.pool not in pooling.POOLS:
    raise ConfigError(
      f'parallel.pool is {p.pool!r}, must be one of {pooling.POOLS}'
    )
  pool = p.pool
  if p.determinism == 'mesh_invariant' and p.scheme == AUTO and not p.plan:
    # The planner takes other schemes on other meshes, and not all of them allow
    # sums.
    if pool == pooling.SUMS:
      raise ConfigError(
        "parallel.pool='sums' and parallel.scheme='auto' contradict each other "
        "for parallel.determinism='mesh_invariant': the planner gives a table "
        'other schemes on other meshes, of which only some allow sums; set '
        "parallel.pool='rows' or a scheme, such as 'table_wise'"
      )
    pool = pooling.ROWS
  exchange = Exchange(
    **p.exchange.to_dict(), formats=extend_formats(extensions.formats)
  )
  return planner.PoolingRule(pool, exchange, p.determinism)


def expected_loads(
  config, task, shape: dict, extensions: Extensions = Extensions()
) -> list[planner.Load]:
  """What a step asks, on such a mesh, of tables that are updated by rows.

  A pooled feature has its name here: the plan says whether its rows or its
  sums travel.
  """
  shards = int(np.prod(list(shape.values())))
  features = _features_by_table(task)
  table_loads = []
  for name, spec in state_lib.row_specs(task).items():
    ids = sum(feature.length for feature in features.get(name, ()))
    # Of evenly drawn ids; real ones repeat more.
    drawn = max(1.0, ids * config.train.batch_size / shards)
    distinct = spec.rows * -np.expm1(-drawn / spec.rows) / drawn
    table_loads.append(
      planner.Load(
        name,
        spec.rows,
        spec.dim,
        spec.dtype,
        spec.update,
        features.get(name, ()),
        distinct=min(1.0, float(distinct)),
        codec=spec.codec,
        outside=extensions.row_optimizers.get(spec.update),
      )
    )
  return table_loads


def _features_by_table(task) -> dict[str, tuple[planner.Feature, ...]]:
  """Table -> the features that read it, as the task expects them."""
  features = {}
  for name, read in task.expected_reads().items():
    pooled = read.pooling != 'none'
    features.setdefault(read.table, []).append(
      planner.Feature(read.ids, pooled=pooled, name=name if pooled else '')
    )
  return {table: tuple(reads) for table, reads in features.items()}


def dense_part(config, task, shape: dict) -> planner.DensePart:
  """Everything that optax updates, and its averages."""
  towers = state_lib.find_towers(task)
  trained = jax.eval_shape(lambda: state_lib.init_optax_params(task, 0, towers))
  # Each host has the parameters of its own towers.
  own = {name: x for name, x in trained.items() if name != 'modules'}
  count = _count_parameters(own)
  if 'modules' in trained:
    count += _count_parameters(trained['modules']) // shape['hosts']
  # Running averages are kept of parameters, and of no table.
  averaged = 0
  if config.optimizer.average:
    averaged = _count_parameters(trained['params'])
  shards = {
    'ddp': 1,
    'grad_op': 1,
    'fsdp': np.prod(list(shape.values())),
    'hybrid': shape['devices'],
  }[config.parallel.dense]
  return planner.DensePart(
    parameters=count,
    bytes=int(4 * (count * DENSE_COPIES + averaged) / shards),
  )


def _count_parameters(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
