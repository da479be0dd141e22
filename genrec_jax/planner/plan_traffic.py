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
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
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


def list_plan(
  plan: ShardingPlan,
  loads: Sequence[Load],
  batch: int,
  wire: Wire = Wire(),
  laid: layout.StackLayout | None = None,
) -> list[Transfer]:
  """What a device sends in a step under a plan; the same on all devices.

  Args:
    plan: where rows lie, and how pooled features travel.
    loads: the tables and the lookups into them; `length` is the room for ids.
    batch: examples of a step on all devices together.
    wire: how values travel.
    laid: the layout of the plan, if it is known.
  """
  laid = laid or layout.lay_out(plan)
  examples = batch / (plan.group_size * plan.replicas)
  found, reads, wires, by_name = [], {}, {}, {}
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
    if load.name in laid.whole:
      found += list_whole(load, reads[load.name], plan)
  for stack in laid.stacks.values():
    found += _list_stack(plan, stack, by_name, reads, wires)
  if laid.stacks:
    found.append(list_scalar(plan, 'backward', EVERYONE))  # the norm
  if plan.replicas > 1:
    found += [_list_mean(plan, s, by_name) for s in laid.stacks.values()]
  return found


def _list_stack(
  plan: ShardingPlan,
  stack: Stack,
  loads: Mapping[str, Load],
  reads: Mapping[str, Reads],
  wires: Mapping[str, Wire],
) -> list[Transfer]:
  """What travels for the pieces of one array; other arguments by table."""
  found = []
  arrived = {}  # exchange -> gradients of rows that a device gets
  by_wire = {}
  for piece in stack.pieces:
    by_wire.setdefault(wires[piece.table], []).append(piece)
  for wire, pieces in by_wire.items():
    for spread in (ONE, HOST, ALL):
      own = [p for p in pieces if p.spread == spread]
      entries = [(p, read) for p in own for read in reads[p.table].sums]
      if not entries:
        continue
      count, ids = _find_fullest(plan, spread, entries)
      bags = max(bags for _, (bags, _, _) in entries)
      weighted = any(weighted for *_, (_, _, weighted) in entries)
      found += list_sums(
        plan, wire, stack.columns, spread, count, ids, bags, weighted
      )
      arrived.setdefault(wire, 0)
      arrived[wire] += plan.group_size * ids
    asking = [p for p in pieces if reads[p.table].rows]
    if asking:
      moved, received = _list_rows_of(plan, stack, asking, reads, wire)
      found += moved
      arrived[wire] = arrived.get(wire, 0) + received
  if _exchanges_squares(stack, loads):
    for wire, received in arrived.items():
      found += _list_squares(plan, stack, wire, received)
  return found


def _find_fullest(plan, spread, entries) -> tuple[int, int]:
  """Most pieces, and most ids, of a device or host; entries are reads of it."""
  counts, ids = {}, {}
  for piece, (_, room, _) in entries:
    place = {ONE: piece.owners[0], HOST: piece.owners[0] // plan.devices}
    at = place.get(spread, 0)
    counts[at] = counts.get(at, 0) + 1
    ids[at] = ids.get(at, 0) + room
  return max(counts.values()), max(ids.values())


def _list_rows_of(
  plan: ShardingPlan,
  stack: Stack,
  pieces: Iterable[Piece],
  reads: Mapping[str, Reads],
  wire: Wire,
) -> tuple[list[Transfer], int]:
  """What travels of these pieces, and how many gradients a device gets."""
  exchange, n = wire.exchange, plan.group_size
  needed, expected, asked = 0, 0.0, [0.0] * n
  for piece in pieces:
    needed += reads[piece.table].rows
    expected += reads[piece.table].expected
    for device in piece.owners:
      asked[device] += reads[piece.table].expected / len(piece.owners)
  room = exchange.room(needed, n)
  total_room = exchange.total_room(needed, n)
  fill = max(asked) / room
  if exchange.kind == 'ragged':
    fill = max(asked) * n / total_room
  rounds = max(1, math.ceil(fill - 1e-9))
  sent = list_rows(
    plan, wire, stack.columns, needed, room, total_room,
    expected=expected, rounds=rounds,
  )  # fmt: skip
  received = {'gather': n * needed, 'all_to_all': n * room}
  return sent, received.get(exchange.kind, total_room)


def _exchanges_squares(stack: Stack, loads: Mapping[str, Load]) -> bool:
  """Whether pieces of a row tell each other the squares of their gradients."""
  load = loads[stack.pieces[0].table]
  optimizer = load.outside or ROW_OPTIMIZERS[load.optimizer]
  return optimizer.needs_row_squares and any(
    p.columns < loads[p.table].dim for p in stack.pieces
  )


def _list_squares(plan, stack, wire: Wire, received: int) -> list[Transfer]:
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
