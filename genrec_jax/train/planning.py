"""Whether the tables of an experiment fit, where they go, what that costs."""

import pathlib

import jax
import numpy as np

from genrec_jax import planner
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import schemes
from genrec_jax.planner import hardware
from genrec_jax.train import state as state_lib

GB = 10**9
AUTO = 'auto'  # a scheme: the planner chooses for each table
# Of a parameter on a device: itself, its gradient and two moments.
DENSE_COPIES = 4


def make_plan(config, task, mesh_shape: dict) -> plan_lib.ShardingPlan:
  """The plan of the tables that are updated by rows.

  Args:
    config: the experiment's.
    task: whose tables.
    mesh_shape: {'replicas', 'hosts', 'devices'}.
  """
  p, specs = config.parallel, state_lib.row_specs(task)
  if not p.plan:
    if p.scheme != AUTO:
      return schemes.one_scheme(specs, p.scheme, **mesh_shape)
    plan, _ = planner.make_plan(
      loads(config, task, mesh_shape),
      machine(config, mesh_shape),
      batch=config.train.batch_size,
      dense=dense_part(config, task, mesh_shape),
    )
    return plan
  plan = plan_lib.load(p.plan)
  planned = {name: getattr(plan, name) for name in mesh_shape}
  if planned != mesh_shape:
    raise plan_lib.PlanError(
      f'{p.plan} is for {planned}, parallel.* describes {mesh_shape}'
    )
  schemes.check(plan, specs)
  return plan


def check_memory(config, task, plan: plan_lib.ShardingPlan) -> None:
  """Refuses what would not fit the hardware that `config.parallel` names.

  Raises:
    planner.InsufficientMemory: with the arithmetic.
  """
  p = config.parallel
  if not (p.topology or p.memory_gb):
    return
  shape = {k: getattr(plan, k) for k in ('replicas', 'hosts', 'devices')}
  report = planner.evaluate(
    plan,
    loads(config, task, shape),
    machine(config, shape),
    config.train.batch_size,
    dense_part(config, task, shape),
  )
  if len(report.over):
    alone = plan.group * plan.replicas == 1
    scheme = 'the model on one device' if alone else f'scheme {p.scheme!r}'
    raise planner.too_full(report, p.plan or scheme)


def describe(config, task, workdir) -> str:
  """The report that `--mode=plan` prints; leaves plan.json in the workdir."""
  p = config.parallel
  shape = mesh_shape(config)
  fixed = None
  if p.plan:
    fixed = p.plan
  elif p.scheme != AUTO:
    fixed = make_plan(config, task, shape)
  path = pathlib.Path(workdir) / 'plan.json'
  path.parent.mkdir(parents=True, exist_ok=True)
  text = planner.describe(
    loads(config, task, shape),
    machine(config, shape),
    batch=config.train.batch_size,
    overrides=shape,
    plan=fixed,
    dense=dense_part(config, task, shape),
    save=str(path),
  )
  return f'{text}\nplan: {path}'


def mesh_shape(config) -> dict:
  """The mesh of a config; 0 devices are those of the hardware it names."""
  p = config.parallel
  devices = p.devices
  if not devices:
    known = hardware.get(p.topology).devices if p.topology else None
    devices = known or jax.device_count() // (p.replicas * p.hosts)
  return {'replicas': p.replicas, 'hosts': p.hosts, 'devices': devices}


def machine(config, shape: dict) -> planner.Topology:
  """The hardware that a config names, in the shape of a mesh."""
  p = config.parallel
  changed = dict(shape)
  if p.memory_gb:
    changed['memory'] = int(p.memory_gb * GB)
  return hardware.get(p.topology or 'cpu', **changed)


def loads(config, task, shape: dict) -> list[planner.Load]:
  """What a step asks, on such a mesh, of tables that are updated by rows."""
  shards = int(np.prod(list(shape.values())))
  ids_of = {}
  for read in task.expected_reads().values():
    ids_of[read.table] = ids_of.get(read.table, 0.0) + read.ids
  found = []
  for name, spec in state_lib.row_specs(task).items():
    ids = ids_of[name]
    # Of evenly drawn ids; real ones repeat more.
    drawn = max(1.0, ids * config.train.batch_size / shards)
    distinct = spec.rows * -np.expm1(-drawn / spec.rows) / drawn
    found.append(
      planner.Load(
        name,
        spec.rows,
        spec.dim,
        spec.dtype,
        spec.update,
        (planner.Feature(ids, pooled=False),),
        distinct=min(1.0, float(distinct)),
      )
    )
  return found


def pooling(config, task, plan: plan_lib.ShardingPlan) -> dict[str, str]:
  """Pooled feature of tables that are updated by rows -> 'rows' or 'sums'."""
  del config, plan
  specs = state_lib.row_specs(task)
  return {
    feature: 'rows'
    for feature, read in task.expected_reads().items()
    if read.pooling != 'none' and read.table in specs
  }


def dense_part(config, task, shape: dict) -> planner.Dense:
  """Everything that optax updates."""
  trained = jax.eval_shape(lambda: state_lib.init_trained(task, 0))
  count = sum(leaf.size for leaf in jax.tree.leaves(trained))
  parts = {
    'ddp': 1,
    'grad_op': 1,
    'fsdp': np.prod(list(shape.values())),
    'hybrid': shape['devices'],
  }[config.parallel.dense]
  return planner.Dense(
    parameters=count, bytes=int(4 * count * DENSE_COPIES / parts)
  )
