"""The text that `--mode=plan` prints, for a new plan or a given one."""

import dataclasses
from collections.abc import Mapping, Sequence

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner import errors, hardware
from genrec_jax.planner.evaluate import evaluate_plan
from genrec_jax.planner.options import Constraint
from genrec_jax.planner.pooling import PoolingRule, fill_pooling
from genrec_jax.planner.search import make_plan
from genrec_jax.planner.storage import InsufficientMemory
from genrec_jax.planner.tower_comparison import compare_towers
from genrec_jax.planner.workload import DensePart, Load, TowerLoad


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
  towers: TowerLoad | None = None,
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
    towers: of the model, for which a plan must be given; None for none.
    save: file for the plan.
    top: tables to list.
    **search: further arguments of `make_plan`.

  Raises:
    InsufficientMemory: the plan, or any plan, does not fit; with the numbers.
    ValueError: one of the arguments cannot be; it says which.
  """
  overrides = dict(overrides or {})
  if towers is not None and plan is None:
    raise ValueError(
      'plans of models with towers are made by embedding.tower_plans, and not '
      'here: give one as plan='
    )
  given = plan_lib.load_plan(plan, schemes) if isinstance(plan, str) else plan
  if given:
    shape = {k: getattr(given, k) for k in ('replicas', 'hosts', 'devices')}
    overrides = shape | overrides
  if isinstance(topology, str):
    machine = hardware.find_topology(topology, **overrides)
  else:
    machine = hardware.replace_numbers(topology, **overrides)
  asked = dict(
    batch=batch,
    constraints=constraints,
    dense=dense,
    schemes=schemes,
    pooling=pooling,
    **search,
  )
  if given:
    given = fill_pooling(given, loads, batch, pooling)
    report = evaluate_plan(
      given, loads, machine, batch, dense, pooling.exchange, towers
    )
    if len(report.over):
      name = plan if isinstance(plan, str) else 'the plan'
      raise errors.insufficient_memory_error(report, name)
    if towers is not None:
      try:
        _, flat = make_plan(loads, machine, **asked)
      except InsufficientMemory:  # there is nothing to compare with
        flat = None
      compared = compare_towers(
        given, report, loads, towers, pooling.exchange, flat
      )
      report = dataclasses.replace(report, towers=compared)
  else:
    given, report = make_plan(loads, machine, **asked)
  if save:
    given.save(save)
  return report.text(top)
