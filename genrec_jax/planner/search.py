"""The planner: tables and a machine in, the best plan and a report out.

Every proposer in turn chooses one option for every table, and partitioners
place these; the placement whose busiest device has the least work wins. A
proposal is not placed if even a perfect partition would be slower than the best
so far, or would need too many bytes. Afterwards tables are halved where that
helps (column_halving.py). All of it depends on the arguments alone, unless
`timeout` ends it, which the report says.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner import (
  errors,
  exchange_time,
  leveling,
  plan_traffic,
  storage,
)
from genrec_jax.planner.column_halving import split_search
from genrec_jax.planner.evaluate import evaluate_plan
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.ldm import partition_ldm
from genrec_jax.planner.options import (
  Constraint,
  Option,
  enumerate_options,
)
from genrec_jax.planner.partition import (
  Placement,
  even_arrays,
  memory_balanced,
  partition_lpt,
)
from genrec_jax.planner.pooling import PoolingRule, fill_pooling
from genrec_jax.planner.propose import PROPOSERS, propose_frugal
from genrec_jax.planner.report import Report
from genrec_jax.planner.traffic import Wire
from genrec_jax.planner.workload import DensePart, Load

PARTITIONERS = {
  'lpt': partition_lpt,
  'ldm': partition_ldm,
  'memory_balanced': memory_balanced,
}
BETTER = 1 - 1e-9
# Their proposals differ from the next in one table.
STEPWISE, MOST_SKIPPED = ('greedy_max', 'greedy_sum'), 64
SLACKS = (0.3, 0.05)  # of arrays, until they fit
MOST_LEVEL = 4  # level placements that are compared
FEW = 4  # tables of which all promising placements are compared


def make_plan(
  loads: Sequence[Load],
  topology: Topology,
  *,
  batch: int,
  constraints: Mapping[str, Constraint] | None = None,
  dense: DensePart = DensePart(),
  schemes: Mapping[str, Scheme] | None = None,
  pooling: PoolingRule = PoolingRule(),
  proposers: Sequence[str] = tuple(PROPOSERS),
  partitioners: Sequence[str] = ('lpt', 'ldm'),
  proposals: int = 300,
  halvings: int = 10,
  timeout: float = 120.0,
) -> tuple[ShardingPlan, Report]:
  """The best plan met.

  Args:
    loads: tables and the lookups into them.
    topology: the machine.
    batch: examples of a step on all devices together.
    constraints: table -> what is settled about it.
    dense: the rest of the model.
    schemes: from outside the library, by name; considered like all others.
    pooling: how rows or sums is decided for features with names.
    proposers: names in `propose.PROPOSERS`.
    partitioners: names in `PARTITIONERS`.
    proposals: at most so many of each proposer; a small grid is always tried
      whole.
    halvings: rounds of column splits at the end, 0 for none.
    timeout: seconds after which no further proposal is tried.

  Raises:
    InsufficientMemory: nothing fits; with the arithmetic.
    ConstraintError: a constraint cannot be kept.
  """
  if not loads:
    raise ValueError('there are no tables to plan')
  for name in (*proposers, *partitioners):
    if name not in PROPOSERS and name not in PARTITIONERS:
      raise ValueError(
        f'there is no {name!r}: proposers are {", ".join(PROPOSERS)}, '
        f'partitioners {", ".join(PARTITIONERS)}'
      )
  constraints = constraints or {}
  ways = dict(schemes=schemes, rule=pooling)
  search = _Search(loads, topology, batch, constraints, dense, ways)
  if search.cap <= 0:
    raise errors.no_memory_left_error(topology, dense)
  search.end = time.monotonic() + timeout
  for name in proposers:
    search.propose(name, partitioners, proposals)
  if halvings:
    search.halve_tables(halvings)
  if search.best is None:
    search.minimise_bytes()
  search.level_arrays()
  if search.best is None:
    raise errors.no_plan_fits_error(
      loads, topology, batch, constraints, dense, **ways
    )
  plan = fill_pooling(search.plan, loads, batch, pooling)
  report = dataclasses.replace(
    evaluate_plan(plan, loads, topology, batch, dense, pooling.exchange),
    made_by=search.made_by,
    tried=search.tried,
    notes=(f'stopped after {timeout:g} s: more time may find a better plan',)
    if search.late
    else (),
  )
  return plan, report


class _Search:
  """The best placement so far."""

  def __init__(self, loads, topology, batch, constraints, dense, ways):
    self.loads = {load.name: load for load in loads}
    self.topology, self.constraints = topology, constraints
    self.items = enumerate_options(loads, topology, batch, constraints, **ways)
    self.cap = storage.table_budget(topology, dense)
    self.batch, self.rule = batch, ways['rule']
    self.best: Placement | None = None
    # The least seconds so far: with even shares, and of the best as its
    # program sends.
    self.rate = self.step = float('inf')
    self.plan: ShardingPlan | None = None
    self.made_by, self.tried, self.late, self.seen = '', 0, False, set()

  def propose(self, name, partitioners, most) -> None:
    source = PROPOSERS[name](self.items, self.topology, self.cap)
    skip, placed, misses = 0, 0, 0
    for number, proposal in enumerate(source):
      if self._is_late() or placed >= most and name != 'grid':
        return
      if proposal in self.seen or number < skip:
        continue
      self.seen.add(proposal)
      options = [o[i] for o, i in zip(self.items, proposal, strict=True)]
      room = not self._is_hopeless(options)
      if room:
        placed += 1
        room = self._try_options(name, partitioners, options)
      misses = 0 if room else misses + 1
      if name in STEPWISE:
        skip = number + min(2**misses, MOST_SKIPPED)

  def halve_tables(self, halvings: int) -> None:
    """Halves tables of the best placement, or of whole tables."""
    starts = [self.best.options] if self.best else []
    starts.append(
      [min(o, key=lambda x: (x.pieces, x.time)) for o in self.items]
    )
    for start in starts:
      if self._is_late():
        return
      candidate = split_search(
        start, self._halve_pieces,
        functools.partial(self._try_partitioner, partition_lpt),
        halvings=halvings,
      )  # fmt: skip
      if candidate:
        self._try_options('column splits', ('lpt', 'ldm'), candidate.options)

  def minimise_bytes(self) -> None:
    """As few bytes as there may be, however late it is."""
    for proposal in propose_frugal(self.items, self.topology, self.cap):
      options = [o[i] for o, i in zip(self.items, proposal, strict=True)]
      candidate = partition_lpt(options, self.topology, self.cap, by='bytes')
      if candidate and self._keep_better('frugal + lpt', candidate):
        return

  def level_arrays(self) -> None:
    """Cuts large tables by rows if much of the memory would be padding."""
    if self.best is None or not self._wastes_memory(self.best, self.plan):
      return
    # Also from whole tables, since the best was not chosen to be levelled.
    whole = [min(own, key=lambda o: (o.shards, o.time)) for own in self.items]
    level = {}  # seconds -> placement and plan
    for options in (self.best.options, whole):
      level |= self._level_options(options)
    if level:
      self.step = min(level)
      self.best, self.plan = level[self.step]
      self.made_by += ', level arrays'

  def _level_options(self, options: Sequence[Option]) -> dict:
    """Seconds -> some level placements of these options, and their plans."""
    level = {}
    for placement in leveling.level_arrays(
      self.items, options, self.topology, self.cap
    ):
      plan = self._make_plan(placement)
      fits = placement.needs(plan) <= self.cap
      if fits and not self._wastes_memory(placement, plan):
        step = self._measure_step(placement, plan)
        level.setdefault(step, (placement, plan))
      if len(level) == MOST_LEVEL:
        break
    return level

  def _wastes_memory(self, placement: Placement, plan: ShardingPlan) -> bool:
    allocated = storage.allocated_bytes(plan)
    if allocated < leveling.SMALL * self.topology.memory:
      return False
    padding = leveling.measure_padding(placement, allocated)
    return padding > leveling.MOST_PADDING

  def _halve_pieces(self, index: int, option: Option) -> Option | None:
    """The same table in twice as many pieces."""
    if option.kind.at_names is None:
      return None
    cut = option.kind.in_pieces()
    for other in self.items[index]:
      # A table that was whole becomes pieces that lie as freely as it did.
      same = other.scheme == option.scheme
      alike = other.kind == cut if option.pieces == 1 else same
      if alike and other.pieces == 2 * option.pieces:
        return other
    return None

  def _try_partitioner(self, partitioner, options) -> Placement | None:
    if self._is_late():
      return None
    self.tried += 1
    return partitioner(options, self.topology, self.cap)

  def _try_options(self, made_by, partitioners, options) -> bool:
    """Places options in each way; False if there was no room."""
    ways = {name: self._try_partitioner(PARTITIONERS[name], options)
            for name in partitioners}  # fmt: skip
    ways = {name: candidate for name, candidate in ways.items() if candidate}
    if not ways:
      return False
    best = min(ways, key=lambda name: ways[name].rate)
    return self._keep_better(f'{made_by} + {best}', ways[best])

  def _keep_better(self, made_by: str, placement: Placement) -> bool:
    """Makes a placement the best one if it is; False if it does not fit."""
    if not self._is_faster(placement):
      return True
    plan = self._make_plan(placement)
    even = ''
    for slack in SLACKS:
      if placement.needs(plan) <= self.cap:
        break
      options = placement.options
      placement = even_arrays(options, self.topology, self.cap, slack)
      if not placement:
        return False
      if not self._is_faster(placement):
        return True
      plan, even = self._make_plan(placement), ', even arrays'
    if placement.needs(plan) > self.cap:
      return False
    self.rate = min(self.rate, placement.rate)
    step = self._measure_step(placement, plan)
    if step < self.step * BETTER:
      self.best, self.plan, self.step = placement, plan, step
      self.made_by = made_by + even
    return True

  def _is_faster(self, placement: Placement) -> bool:
    """Whether it may be the best; its time is that of even shares."""
    limit = self.rate
    if len(self.items) <= FEW:  # even shares are far from theirs
      limit = max(self.rate, 2 * self.step)
    return placement.rate < limit * BETTER

  def _measure_step(self, placement: Placement, plan: ShardingPlan) -> float:
    """Seconds of the busiest device, with what the plan's program sends."""
    compute = np.zeros(plan.group_size)
    for option in placement.options:
      name = option.names[0]  # the others lie where it lies
      for piece in range(plan.tables[name].pieces):
        compute[list(plan.owners(name, piece))] += option.cost.compute
    loads = list(self.loads.values())
    plan = fill_pooling(plan, loads, self.batch, self.rule)
    wire = Wire(self.rule.exchange, self.topology.platform)
    sent = plan_traffic.list_plan(plan, loads, self.batch, wire)
    return compute.max() + sum(
      exchange_time.measure_plan_time(sent, self.topology)
    )

  def _is_hopeless(self, options: Sequence[Option]) -> bool:
    """Whether no partition of them can be faster than the best, or fit."""
    group_size = self.topology.group_size
    if sum(o.total_bytes for o in options) > group_size * self.cap:
      return True
    total = sum(o.time * o.shards for o in options) / group_size
    somewhere = [o for o in options if o.kind.at_names]
    everywhere = sum(o.time for o in options if not o.kind.at_names)
    rest = (o.time for o in somewhere)
    bound = max(total, everywhere + max(rest, default=0.0))
    return bound >= (self.step if len(self.items) <= FEW else self.rate)

  def _make_plan(self, placement: Placement) -> ShardingPlan:
    return placement.plan(self.loads, self.topology, self.constraints)

  def _is_late(self) -> bool:
    self.late = self.late or time.monotonic() > self.end
    return self.late
