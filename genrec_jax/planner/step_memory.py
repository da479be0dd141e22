"""What a step needs on a device beside the tables, their slots and the ids.

The buffers that are held at once where most are, in rows of float32; of the
program's many small ones, nothing is said:

| what travels         | held at once                                  |
|----------------------|-----------------------------------------------|
| rows, `all_to_all`   | 4 c M d                                       |
| rows, `ragged`       | 3 c M d                                       |
| rows, `gather`       | (2 W + 1) M d                                 |
| sums                 | min(K, depth) d + 2 W P B d                   |
| copies, as tables    | 2 T (D+1) + 2 E D                             |
| copies, as rows      | 2 R W E D                                     |

The letters are those of traffic.py; K requests for rows come to a device, which
has `depth` rows of the array. On a TPU a row is as wide as a multiple of 128.
The factors were read from programs; `benchmarks/plan_memory.py` says how far
they are off.
"""

import math
from collections.abc import Sequence

from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.planner import plan_traffic
from genrec_jax.planner.traffic import WORD, Wire
from genrec_jax.planner.workload import DENSE, Load

LANES = 128  # of a TPU's registers
# Buffers as long as what arrives that are held at once.
HELD = {'all_to_all': 4, 'ragged': 3, 'gather': 2}


def estimate_bytes(
  plan: ShardingPlan, loads: Sequence[Load], batch: int, wire: Wire = Wire()
) -> int:
  """Bytes of a device; arguments as `plan_traffic.list_plan`.

  Arrays are updated one after another, and so are copied tables: the largest
  counts.
  """
  step = plan_traffic.count_step(plan, loads, batch, wire)
  found = [0.0]
  for name, groups in step.groups.items():
    stack = step.laid.stacks[name]
    row = _row_bytes(stack.columns, wire)
    rows = 0.0
    for group in groups:
      if group.needed:
        kind = group.wire.exchange.kind
        rows += HELD[kind] * group.arrivals
        rows += group.needed if kind == 'gather' else 0
      else:
        rows += min(group.arrivals, stack.depth) + 2 * group.sums
    found.append(rows * row)
  shards = plan.group_size * plan.replicas
  for name in step.laid.whole:
    load, reads = step.loads[name], step.reads[name]
    if load.optimizer == DENSE:  # its gradient belongs to the dense part
      continue
    entries = reads.rows + sum(ids for _, ids, _ in reads.sums)
    row = _row_bytes(load.dim, wire)
    if copied_tables.travels_as_table(entries, load.rows, shards):
      table = load.rows * _row_bytes(load.dim + 1, wire)
      found.append(2 * table + 2 * entries * row)
    else:
      found.append(2 * shards * entries * row)
  return int(max(found))


def _row_bytes(columns: int, wire: Wire) -> int:
  if wire.platform == 'tpu':
    columns = LANES * math.ceil(columns / LANES)
  return WORD * columns
