"""The text that `--mode=plan` prints, for a new plan or a given one."""

from collections.abc import Mapping, Sequence

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner import errors, hardware
from genrec_jax.planner.evaluate import evaluate_plan
from genrec_jax.planner.options import Constraint
from genrec_jax.planner.pooling import PoolingRule, fill_pooling
from genrec_jax.planner.search import make_plan
from genrec_jax.planner.workload import DensePart, Load


def describe(
  loads: Sequence[Load],
  topology: str | hardware.Topology,
  *,
  batch: int,
  overrides: Mapping[str, object] | None = None,
  plan: str | ShardingPlan | None = None,
  constraints: Mapping[str, Constraint] | None = None,
  dense: DensePart = DensePart(),
  schemes: Mapping[str, Scheme] | None = None,
  pooling: PoolingRule = PoolingRule(),
  save: str | None = None,
  top: int = 20,
  **search,
) -> str:
  """The report of a plan for a machine that need not be there.

  Args:
    loads: tables and the lookups into them.
    topology: name of a preset, a topology file, or a topology.
    batch: examples of a step on all devices together.
    overrides: numbers of the topology to change: hosts, devices, memory, ...
      With a plan, its shape counts unless it is given here.
    plan: a plan to describe, or its file; None makes one.
    constraints: table -> what is settled about it.
    dense: the rest of the model.
    schemes: from outside the library, by name.
    pooling: how rows or sums is decided for features with names, where the plan
      does not say.
    save: file for the plan.
    top: tables to list.
    **search: further arguments of `make_plan`.

  Raises:
    InsufficientMemory: the plan, or any plan, does not fit; with the numbers.
    ValueError: one of the arguments cannot be; it says which.
  """
  overrides = dict(overrides or {})
  given = plan_lib.load_plan(plan, schemes) if isinstance(plan, str) else plan
  if given:
    shape = {k: getattr(given, k) for k in ('replicas', 'hosts', 'devices')}
    overrides = shape | overrides
  if isinstance(topology, str):
    machine = hardware.find_topology(topology, **overrides)
  else:
    machine = hardware.replace_numbers(topology, **overrides)
  if given:
    given = fill_pooling(given, loads, batch, pooling)
    report = evaluate_plan(
      given, loads, machine, batch, dense, pooling.exchange
    )
    if len(report.over):
      name = plan if isinstance(plan, str) else 'the plan'
      raise errors.insufficient_memory_error(report, name)
  else:
    given, report = make_plan(
      loads,
      machine,
      batch=batch,
      constraints=constraints,
      dense=dense,
      schemes=schemes,
      pooling=pooling,
      **search,
    )
  if save:
    given.save(save)
  return report.text(top)
