"""What a device sends for all tables of a plan, collective by collective.

The program moves at once what is in one array, goes the same way and is encoded
alike, in parts that are equally long on all devices. One array after another (a
stack of layout.py) is counted here, by the formulas of traffic.py.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax.embedding import layout
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Piece, Stack
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import ALL, HOST, ONE
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
)
from genrec_jax.planner.workload import Load, slot_bytes


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
  """

  wire: Wire
  sent: tuple[Transfer, ...]
  arrivals: int
  needed: int = 0
  sums: int = 0
  rounds: int = 1
  shared: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
  """A step over the tables of a plan, in numbers.

  Attributes:
    plan: where rows lie.
    laid: its layout.
    loads: table -> its lookups, as the plan has pooled features travel.
    reads: table -> what a device reads of it.
    groups: stack -> what travels together.
  """

  plan: ShardingPlan
  laid: layout.StackLayout
  loads: Mapping[str, Load]
  reads: Mapping[str, Reads]
  groups: Mapping[str, Sequence[Group]]


def count_step(
  plan: ShardingPlan, loads: Sequence[Load], batch: int, wire: Wire = Wire()
) -> Step:
  """What a device reads, and what travels; arguments as `list_plan`."""
  laid = layout.lay_out(plan)
  examples = batch / (plan.group_size * plan.replicas)
  reads, wires, by_name = {}, {}, {}
  for load in loads:
    load = load.with_pooling(plan.pooling)
    by_name[load.name], wires[load.name] = load, wire.of(load)
    reads[load.name] = count_reads(
      load,
      plan.tables[load.name].spread,
      examples,
      plan,
      wires[load.name],
      exact=True,
    )
  groups = {
    stack.name: list(
      _group_pieces(
        plan,
        stack,
        reads,
        wires,
        # What must travel in the same round needs room in it.
        stack.most_alike if exchanges_squares(stack, by_name) else 1,
      )
    )
    for stack in laid.stacks.values()
  }
  return Step(plan, laid, by_name, reads, groups)


def list_plan(
  plan: ShardingPlan, loads: Sequence[Load], batch: int, wire: Wire = Wire()
) -> list[Transfer]:
  """What a device sends in a step under a plan; the same on all devices.

  Args:
    plan: where rows lie, and how pooled features travel.
    loads: the tables and the lookups into them; `length` is the room for ids.
    batch: examples of a step on all devices together.
    wire: how values travel.
  """
  return list_step(count_step(plan, loads, batch, wire))


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
  by_wire = {}
  for piece in stack.pieces:
    by_wire.setdefault(wires[piece.table], []).append(piece)
  for wire, pieces in by_wire.items():
    for spread in (ONE, HOST, ALL):
      own = [p for p in pieces if p.spread == spread]
      entries = [(p, read) for p in own for read in reads[p.table].sums]
      if entries:
        yield _count_sums(plan, stack, spread, entries, wire)
    asking = [p for p in pieces if reads[p.table].rows]
    if asking:
      yield _count_rows(plan, stack, asking, reads, wire, repeats)


def _count_sums(plan, stack: Stack, spread: str, entries, wire: Wire) -> Group:
  """Sums of rows that are spread alike; entries are reads of pieces."""
  count, ids = _find_fullest(plan, spread, entries)
  bags = max(bags for _, (bags, _, _) in entries)
  weighted = any(weighted for *_, (_, _, weighted) in entries)
  sent = list_sums(
    plan, wire, stack.columns, spread, count, ids, bags, weighted
  )
  n = plan.group_size
  shared = len({piece for piece, _ in entries}) < len(entries)
  return Group(wire, tuple(sent), n * ids, sums=n * count * bags, shared=shared)


def _find_fullest(plan, spread, entries) -> tuple[int, int]:
  """Most pieces, and most ids, of a device or host; entries are reads of it."""
  counts, ids = {}, {}
  for piece, (_, room, _) in entries:
    place = {ONE: piece.owners[0], HOST: piece.owners[0] // plan.devices}
    at = place.get(spread, 0)
    counts[at] = counts.get(at, 0) + 1
    ids[at] = ids.get(at, 0) + room
  return max(counts.values()), max(ids.values())


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
