"""What a device sends for all tables of a plan, collective by collective.

The program moves at once what is in one array, goes the same way and is encoded
alike, in parts that are equally long on all devices. One array after another (a
stack of layout.py) is counted here, by the formulas of traffic.py; the sums of
features under towers, which all travel at once, by those of tower_traffic.py.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax.embedding import layout
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Piece, Stack
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.embedding.scheme import ALL, HOST, ONE
from genrec_jax.embedding.tower_plans import SECTION
from genrec_jax.planner import tower_traffic
from genrec_jax.planner.traffic import (
  ALL_REDUCE,
  EVERYONE,
  REPLICAS,
  WORD,
  Reads,
  Transfer,
  Wire,
  count_reads,
  list_rows,
  list_scalar,
  list_sums,
  list_whole,
  reduced,
  round_up,
)
from genrec_jax.planner.workload import Load, TowerLoad, slot_bytes


@dataclasses.dataclass(frozen=True)
class Group:
  """What travels together: rows, or sums, of pieces of one array.

  Attributes:
    wire: how.
    sent: what a device sends.
    arrivals: gradients of rows that a device gets in a round, or requests of
      sums.
    rounds: in which rows travel, as it is expected.
    shared: whether several features read one table by sums.
    needed: rows that a device asks for; 0 for sums.
    sums: that a device makes for others; 0 for rows.
    near: bytes of sums, and of their gradients, that a device makes for one
      other and that travel with those of all other groups under towers.
  """

  wire: Wire
  sent: tuple[Transfer, ...]
  arrivals: int
  needed: int = 0
  sums: int = 0
  rounds: int = 1
  shared: bool = False
  near: tuple[float, float] = (0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Step:
  """A step over the tables of a plan, in numbers.

  Attributes:
    plan: where rows lie.
    laid: its layout.
    loads: table -> its lookups, as the plan has pooled features travel.
    reads: table -> what a device reads of it.
    groups: stack -> what travels together.
    of_towers: what a device sends for all features under towers together.
  """

  plan: ShardingPlan
  laid: layout.StackLayout
  loads: Mapping[str, Load]
  reads: Mapping[str, Reads]
  groups: Mapping[str, Sequence[Group]]
  of_towers: Sequence[Transfer] = ()


def count_step(
  plan: ShardingPlan,
  loads: Sequence[Load],
  batch: int,
  wire: Wire = Wire(),
  towers: TowerLoad | None = None,
) -> Step:
  """What a device reads, and what travels; arguments as `list_plan`."""
  check_towers(plan, towers)
  laid = layout.lay_out(plan)
  examples = batch / (plan.group_size * plan.replicas)
  reads, under, wires, by_name = {}, {}, {}, {}
  for load in loads:
    load = load.with_pooling(plan.pooling)
    by_name[load.name], wires[load.name] = load, wire.of(load)
    args = plan.tables[load.name].spread, examples, plan, wires[load.name]
    own, rest = load.split(towers.names if towers else ())
    under[load.name] = count_reads(own, *args, exact=True)
    reads[load.name] = count_reads(rest, *args, exact=True)
  groups = {
    stack.name: [
      *_group_pieces(
        plan,
        stack,
        reads,
        wires,
        # What must travel in the same round needs room in it.
        stack.most_alike if exchanges_squares(stack, by_name) else 1,
      ),
      *_group_sums(plan, stack, under, wires, _count_tower_sums),
    ]
    for stack in laid.stacks.values()
  }
  of_towers = []
  if towers is not None:
    near = [g.near for own in groups.values() for g in own]
    of_towers += tower_traffic.list_sums(plan, *map(sum, zip(*near)))
    own = next(wires[name] for name, read in under.items() if read.sums)
    bags = round_up(examples)
    of_towers += tower_traffic.list_vectors(plan, own, towers, bags)
  return Step(plan, laid, by_name, reads, groups, of_towers)


def check_towers(plan: ShardingPlan, towers: TowerLoad | None) -> None:
  """Refuses a plan for other towers than those of the model."""
  planned = plan.extra.get(SECTION)
  given = towers and {'features': [list(own) for own in towers.features]}
  if planned != given:
    raise PlanError(
      f'the plan was made for the towers {planned}, and those given are '
      f'{given}: `towers` must be those of the model, as `from_towers` makes '
      'them'
    )


def list_plan(
  plan: ShardingPlan,
  loads: Sequence[Load],
  batch: int,
  wire: Wire = Wire(),
  towers: TowerLoad | None = None,
) -> list[Transfer]:
  """What a device sends in a step under a plan; the same on all devices.

  Args:
    plan: where rows lie, and how pooled features travel.
    loads: the tables and the lookups into them; `length` is the room for ids.
    batch: examples of a step on all devices together.
    wire: how values travel.
    towers: of the model, which the plan must be made for; None for none.
  """
  return list_step(count_step(plan, loads, batch, wire, towers))


def list_step(step: Step) -> list[Transfer]:
  """`list_plan` of what is counted already."""
  plan, found = step.plan, []
  for name in step.laid.whole:
    found += list_whole(step.loads[name], step.reads[name], plan)
  for name, groups in step.groups.items():
    stack = step.laid.stacks[name]
    for group in groups:
      found += group.sent
    if exchanges_squares(stack, step.loads):
      for of_wire, arrivals, rounds in list_arrivals(groups):
        found += _list_squares(plan, stack, of_wire, arrivals, rounds)
    if plan.replicas > 1:
      found.append(_list_mean(plan, stack, step.loads))
  found += step.of_towers
  if step.groups:
    found.append(list_scalar(plan, 'backward', EVERYONE))  # the norm
  return found


def _group_pieces(
  plan: ShardingPlan,
  stack: Stack,
  reads: Mapping[str, Reads],
  wires: Mapping[str, Wire],
  repeats: int,
) -> Iterable[Group]:
  """What travels together of one array; reads and wires by table."""
  yield from _group_sums(plan, stack, reads, wires, _count_sums)
  for wire, pieces in _group_by_wire(stack, wires).items():
    asking = [p for p in pieces if reads[p.table].rows]
    if asking:
      yield _count_rows(plan, stack, asking, reads, wire, repeats)


def _group_by_wire(stack: Stack, wires) -> dict[Wire, list[Piece]]:
  by_wire = {}
  for piece in stack.pieces:
    by_wire.setdefault(wires[piece.table], []).append(piece)
  return by_wire


def _group_sums(plan, stack: Stack, reads, wires, count) -> Iterable[Group]:
  """Sums of one array, each group of them as `count` counts it."""
  for wire, pieces in _group_by_wire(stack, wires).items():
    for spread in (ONE, HOST, ALL):
      own = [p for p in pieces if p.spread == spread]
      entries = [(p, read) for p in own for read in reads[p.table].sums]
      if entries:
        yield count(plan, stack, spread, entries, wire)


def _count_sums(plan, stack: Stack, spread: str, entries, wire: Wire) -> Group:
  """Sums of rows that are spread alike; entries are reads of pieces."""
  count, ids, bags, weighted = _find_fullest(plan, spread, entries)
  asked = count, ids, bags, weighted
  sent = list_sums(plan, wire, stack.columns, spread, *asked)
  return _make_group(plan, wire, sent, entries, count, ids, bags)


def _count_tower_sums(plan, stack, spread, entries, wire) -> Group:
  """The same of features under towers."""
  count, ids, bags, weighted = _find_fullest(plan, spread, entries)
  sent = tower_traffic.list_ids(plan, spread, count, ids, bags, weighted)
  near = tuple(count * bags * x for x in wire.near_row_bytes(stack.columns))
  group = _make_group(plan, wire, sent, entries, count, ids, bags)
  return dataclasses.replace(group, near=near)


def _make_group(plan, wire, sent, entries, count, ids, bags) -> Group:
  n = plan.group_size
  shared = len({piece for piece, _ in entries}) < len(entries)
  return Group(wire, tuple(sent), n * ids, sums=n * count * bags, shared=shared)


def _find_fullest(plan, spread, entries) -> tuple[int, int, int, bool]:
  """Most pieces and ids of a device or host, bags, and whether any has weights.

  Entries are reads of pieces.
  """
  counts, ids = {}, {}
  for piece, (_, room, _) in entries:
    place = {ONE: piece.owners[0], HOST: piece.owners[0] // plan.devices}
    at = place.get(spread, 0)
    counts[at] = counts.get(at, 0) + 1
    ids[at] = ids.get(at, 0) + room
  bags = max(bags for _, (bags, _, _) in entries)
  weighted = any(weighted for *_, (_, _, weighted) in entries)
  return max(counts.values()), max(ids.values()), bags, weighted


def _count_rows(
  plan: ShardingPlan,
  stack: Stack,
  pieces: Iterable[Piece],
  reads: Mapping[str, Reads],
  wire: Wire,
  repeats: int,
) -> Group:
  """Rows of these pieces; `repeats` as in `Exchange.room`."""
  exchange, n = wire.exchange, plan.group_size
  needed, expected, asked = 0, 0.0, [0.0] * n
  for piece in pieces:
    needed += reads[piece.table].rows
    expected += reads[piece.table].expected
    for device in piece.owners:
      asked[device] += reads[piece.table].expected / len(piece.owners)
  room = exchange.room(needed, n, repeats)
  total_room = exchange.total_room(needed, n, repeats)
  fill = max(asked) / room
  if exchange.kind == 'ragged':
    fill = max(asked) * n / total_room
  rounds = max(1, math.ceil(fill - 1e-9))
  sent = list_rows(
    plan,
    wire,
    stack.columns,
    needed,
    room,
    total_room,
    expected=expected,
    rounds=rounds,
  )
  return Group(
    wire,
    tuple(sent),
    count_arrivals(exchange, needed, n, repeats),
    needed=needed,
    rounds=rounds,
  )


def count_arrivals(
  exchange: Exchange, needed: int, devices: int, repeats: int = 1
) -> int:
  """Room for what a device gets in a round, if each asks for so many rows."""
  if exchange.kind == 'gather':
    return devices * needed
  if exchange.kind == 'all_to_all':
    return devices * exchange.room(needed, devices, repeats)
  return exchange.total_room(needed, devices, repeats)


def list_arrivals(groups: Iterable[Group]) -> list[tuple[Wire, int, int]]:
  """(wire, gradients, rounds) of what arrives at an array and is merged."""
  arrived, rounds = {}, {}
  for group in groups:
    # What travels alike is merged together.
    wire = group.wire
    arrived[wire] = arrived.get(wire, 0) + group.arrivals
    rounds[wire] = max(rounds.get(wire, 1), group.rounds)
  return [(wire, arrived[wire], rounds[wire]) for wire in arrived]


def exchanges_squares(stack: Stack, loads: Mapping[str, Load]) -> bool:
  """Whether pieces of a row tell each other the squares of their gradients."""
  return loads[stack.pieces[0].table].needs_row_squares and any(
    p.columns < loads[p.table].dim for p in stack.pieces
  )


def _list_squares(
  plan, stack, wire: Wire, received: int, rounds: int
) -> list[Transfer]:
  """The squares of rows that were sent gradients, there and back."""
  plain = Exchange(wire.exchange.kind, wire.exchange.capacity)
  needed, n = min(received, stack.depth), plan.group_size
  sent = list_rows(
    plan,
    Wire(plain, wire.platform),
    1,
    needed,
    plain.room(needed, n),
    plain.total_room(needed, n),
    rounds=rounds,
  )
  return [dataclasses.replace(t, step='backward') for t in sent]


def _list_mean(plan, stack: Stack, loads: Mapping[str, Load]) -> Transfer:
  """The mean of an array and its slots over replica groups."""
  load, count = loads[stack.pieces[0].table], plan.replicas
  held = stack.depth * stack.columns * WORD
  held += slot_bytes(load.optimizer, stack.depth, stack.columns, load.outside)
  # A count that is no power of two takes a sum and a mean of differences.
  times = 1 if count & (count - 1) == 0 else 2
  sent = times * reduced(held, count)
  return Transfer('backward', 'copies', ALL_REDUCE, REPLICAS, sent)
