"""Compares a plan with towers to the same tables without them."""

import dataclasses
from collections.abc import Iterable, Sequence

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.tower_plans import SECTION
from genrec_jax.planner import exchange_time, plan_traffic, traffic
from genrec_jax.planner.evaluate import evaluate_plan
from genrec_jax.planner.report import Report
from genrec_jax.planner.tower_report import (
  FLAT,
  Stage,
  TowerLine,
  TowerReport,
  Way,
)
from genrec_jax.planner.traffic import DEVICES, HOSTS, Transfer, Wire
from genrec_jax.planner.workload import Load, TowerLoad

# (step, what, over) of a transfer -> what it is.
_STAGES = {
  ('ids', 'ids', HOSTS): 'ids to the host of their tower',
  ('ids', 'ids', DEVICES): 'ids to the devices with their rows',
  ('forward', 'rows', DEVICES): 'sums to all devices of the host',
  ('forward', 'ids', HOSTS): 'numbers of examples, for random draws',
  ('forward', 'rows', HOSTS): 'what the towers make',
  ('backward', 'rows', HOSTS): 'gradients of what they make',
  ('backward', 'rows', DEVICES): 'gradients of sums',
}


def compare_towers(
  plan: ShardingPlan,
  report: Report,
  loads: Sequence[Load],
  towers: TowerLoad,
  exchange: Exchange = Exchange(),
  planned: Report | None = None,
) -> TowerReport:
  """Counts the ways that the sums of a plan could take.

  Args:
    plan: made for the towers.
    report: of it.
    loads: its tables and the lookups into them.
    towers: of the model.
    exchange: how values travel.
    planned: report of the plan that would be best without towers, if there is.
  """
  about = loads, report.topology, report.batch, report.dense, exchange
  flat = {k: x for k, x in plan.extra.items() if k != SECTION}
  ways = [
    _describe_way(
      f'{FLAT}, tables in the same places',
      evaluate_plan(dataclasses.replace(plan, extra=flat), *about),
    )
  ]
  if planned is not None:
    ways.append(_describe_way(f'{FLAT}, as the planner places them', planned))
  alone = evaluate_plan(plan, *about, towers.as_identity())
  ways.append(_describe_way('towers that change nothing (SPTT)', alone))
  ways.append(_describe_way('these towers', report))
  wire = Wire(exchange, report.topology.platform)
  return TowerReport(
    towers,
    plan.hosts,
    tuple(_list_towers(plan, loads, towers)),
    tuple(
      _list_stages(
        _list_under(plan, loads, report.batch, wire, towers), report.topology
      )
    ),
    tuple(ways),
  )


def _list_towers(plan, loads, towers: TowerLoad) -> Iterable[TowerLine]:
  own = towers.count // plan.hosts
  for number, features in enumerate(towers.features):
    tables = [load for load in loads if load.split(features)[0].features]
    yield TowerLine(
      number // own,
      features,
      towers.vectors[number],
      towers.kept[number],
      sum(load.bytes_of(load.rows, load.dim) for load in tables),
    )


def _list_under(plan, loads, batch, wire: Wire, towers) -> list[Transfer]:
  """What travels for features under towers alone."""
  under = [load.split(towers.names)[0] for load in loads]
  under = [load for load in under if load.features]
  names = {load.name for load in under}
  own = dataclasses.replace(
    plan,
    tables={n: table for n, table in plan.tables.items() if n in names},
    pooling={n: way for n, way in plan.pooling.items() if n in towers.names},
  )
  return plan_traffic.list_plan(own, under, batch, wire, towers)


def _list_stages(sent: Iterable[Transfer], topology) -> Iterable[Stage]:
  sent = list(sent)
  for key, name in _STAGES.items():
    found = [t for t in sent if (t.step, t.what, t.over) == key]
    messages = [sum(exchange_time.count_messages(t, topology)) for t in found]
    if found:
      far = key[2] == HOSTS
      yield Stage(name, far, sum(t.expected for t in found), sum(messages))


def _describe_way(name: str, report: Report) -> Way:
  """What a device sends for all tables, without means over replicas."""
  sent = [t for t in report.sent if t.what in ('ids', 'rows')]
  topology = report.topology
  links = [traffic.split_by_link(t, topology) for t in sent]
  messages = [exchange_time.count_messages(t, topology) for t in sent]
  near, far = map(sum, zip(*links, strict=True))
  near_messages, far_messages = map(sum, zip(*messages, strict=True))
  # All devices send alike; the busiest one is busy with its memory.
  return Way(
    name,
    near,
    far,
    near_messages,
    far_messages,
    float(report.times[:, 2:4].sum(axis=1).max()),
    report.step,
  )
