"""From any plan on any mesh to any other, bit for bit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from genrec_jax.embedding import relayout
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from genrec_jax.embedding.sharded import ShardedTables
from genrec_jax.features import TableSpec
from genrec_jax.parallel import mesh as mesh_lib

SPECS = {
  'a': TableSpec('a', 41, 8, 0.5, 'row_adagrad'),
  'b': TableSpec('b', 10, 8, 0.5, 'row_adagrad'),
  'c': TableSpec('c', 23, 16, 0.5, 'row_adagrad'),
}


def plan(hosts, devices, **tables):
  return ShardingPlan(
    {
      name: TablePlan(SPECS[name].rows, SPECS[name].dim, *where)
      for name, where in tables.items()
    },
    hosts,
    devices,
  )


PLANS = {
  'whole': plan(
    1,
    1,
    a=('data_parallel',),
    b=('data_parallel',),
    c=('data_parallel',),
  ),
  'rows': plan(
    2,
    4,
    a=('row_wise',),
    b=('table_wise', (5,)),
    c=('row_wise', (), 'block'),
  ),
  'columns': plan(
    1,
    4,
    a=('column_wise', (3, 0)),
    b=('data_parallel',),
    c=('column_wise', (0, 1, 2, 3)),
  ),
  'hosts': plan(
    2, 2, a=('table_row_wise', (1,)), b=('row_wise',), c=('grid', (1, 0))
  ),
}


def filled(layout, key):
  """Arrays and slots of a replica group as a checkpoint holds them."""
  tables = ShardedTables(layout, SPECS)
  plan = layout.plan
  mesh = mesh_lib.make(1, plan.hosts, plan.devices)
  specs = tables.partition(layout.shapes())
  arrays = jax.jit(
    jax.shard_map(
      tables.init, mesh=mesh, in_specs=None, out_specs=specs, check_vma=False
    )
  )(key)
  arrays = {n: np.asarray(x) for n, x in arrays.items()}
  # The statistic of a row is its place in the table, whatever the plan.
  slots = {}
  for name, stack in relayout.sources(layout).items():
    numbers = [
      np.asarray(stack.identify(d, jnp.arange(stack.depth)))
      for d in range(stack.devices)
    ]
    number, ids = np.concatenate(numbers, axis=1)
    slots[name] = {'sum': np.where(number >= 0, ids, 0).astype(np.float32)}
  return arrays, slots


def moved(old, new, arrays, slots):
  tables, wanted = ShardedTables(new, SPECS), new.plan
  mesh = mesh_lib.make(1, wanted.hosts, wanted.devices)
  split = PartitionSpec(mesh_lib.GROUP)

  def pad(x):
    spare = -len(x) % wanted.group
    return np.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1))

  like = new.shapes()
  slots_like = jax.eval_shape(tables.init_slots, like)
  fn = jax.shard_map(
    lambda a, s: relayout.move(old, new, a, s),
    mesh=mesh,
    in_specs=(split, split),
    out_specs=(tables.partition(like), tables.partition(slots_like)),
    check_vma=False,
  )
  made = jax.jit(fn)(*jax.tree.map(pad, (arrays, slots)))
  return jax.tree.map(np.asarray, made)


@pytest.mark.parametrize('old, new', itertools.permutations(PLANS, 2))
def test_every_plan_becomes_every_other(old, new, key, monkeypatch):
  monkeypatch.setattr(relayout, 'RUN', 7)
  old, new = lay_out(PLANS[old]), lay_out(PLANS[new])
  made = moved(old, new, *filled(old, key))
  wanted = filled(new, key)
  for name in SPECS:
    np.testing.assert_array_equal(
      relayout.table(new, made[0], name), relayout.table(new, wanted[0], name)
    )
  for name, slots in wanted[1].items():
    for slot, values in slots.items():
      np.testing.assert_array_equal(made[1][name][slot], values)


def test_other_tables_are_refused(key):
  old = lay_out(PLANS['whole'])
  other = plan(1, 1, a=('data_parallel',), b=('data_parallel',))
  with pytest.raises(PlanError, match="table 'c' was saved as"):
    relayout.check(old, lay_out(other))
