"""Tables, plans of them, and what a checkpoint of each plan would hold."""

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding import relayout
from genrec_jax.embedding.plan import ShardingPlan, TablePlan
from genrec_jax.embedding.sharded_tables import ShardedTables
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
  mesh = mesh_lib.make_mesh(1, plan.hosts, plan.devices)
  specs = tables.partition(layout.shapes())
  arrays = jax.jit(
    jax.shard_map(
      tables.init, mesh=mesh, in_specs=None, out_specs=specs, check_vma=False
    )
  )(key)
  arrays = {n: np.asarray(x) for n, x in arrays.items()}
  # The statistic of a row is its place in the table, whatever the plan.
  slots = {}
  for name, stack in relayout.find_stacks(layout).items():
    numbers = [
      np.asarray(stack.identify(d, jnp.arange(stack.depth)))
      for d in range(stack.devices)
    ]
    number, ids = np.concatenate(numbers, axis=1)
    slots[name] = {'sum': np.where(number >= 0, ids, 0).astype(np.float32)}
  return arrays, slots
