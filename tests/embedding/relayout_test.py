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
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.parallel import mesh as mesh_lib
from tests.embedding.plans import PLANS, SPECS, filled, plan
from tests.marks import slow


def moved(old, new, arrays, slots):
  tables, wanted = ShardedTables(new, SPECS), new.plan
  mesh = mesh_lib.make_mesh(1, wanted.hosts, wanted.devices)
  split = PartitionSpec(mesh_lib.DEVICE_GROUP)

  def pad(x):
    spare = -len(x) % wanted.group_size
    return np.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1))

  like = new.shapes()
  slots_like = jax.eval_shape(tables.init_slots, like)
  fn = jax.shard_map(
    lambda a, s: relayout.move_arrays(old, new, a, s),
    mesh=mesh,
    in_specs=(split, split),
    out_specs=(tables.partition(like), tables.partition(slots_like)),
    check_vma=False,
  )
  made = jax.jit(fn)(*jax.tree.map(pad, (arrays, slots)))
  return jax.tree.map(np.asarray, made)


# Each plan as the old one and as the new one: rows are found by the one and
# placed by the other, apart.
PAIRS = list(itertools.permutations(PLANS, 2))
QUICK = [
  ('whole', 'rows'),
  ('rows', 'columns'),
  ('columns', 'hosts'),
  ('hosts', 'whole'),
  ('hosts', 'rows'),
]


@pytest.mark.parametrize(
  'old, new', [pair if pair in QUICK else slow(*pair) for pair in PAIRS]
)
def test_every_plan_becomes_every_other(old, new, key, monkeypatch):
  monkeypatch.setattr(relayout, 'RUN_BYTES', 1)
  monkeypatch.setattr(relayout, 'FEWEST', 7)
  old, new = lay_out(PLANS[old]), lay_out(PLANS[new])
  made = moved(old, new, *filled(old, key))
  wanted = filled(new, key)
  for name in SPECS:
    np.testing.assert_array_equal(
      relayout.gather_table(new, made[0], name),
      relayout.gather_table(new, wanted[0], name),
    )
  for name, slots in wanted[1].items():
    for slot, values in slots.items():
      np.testing.assert_array_equal(made[1][name][slot], values)


def test_other_tables_are_refused(key):
  old = lay_out(PLANS['whole'])
  other = plan(1, 1, a=('data_parallel',), b=('data_parallel',))
  with pytest.raises(PlanError, match="table 'c' was saved as"):
    relayout.require_same_tables(old, lay_out(other))


@pytest.mark.parametrize('devices', [3, 4, 16])
def test_arrays_of_more_rows_than_one_number_counts_are_cut_anew(devices):
  tables = {name: TablePlan(2**31 - 2, 4, 'row_wise') for name in 'ab'}
  (old,) = lay_out(ShardingPlan(tables, 2, 4)).stacks.values()
  ids = np.random.default_rng(0).integers(-2, 2**31 - 2, 500, np.int32)
  size = -(-old.size // devices)  # an int32 counts the rows of a device
  for piece in old.pieces:
    addresses = old.locate(piece, jnp.asarray(ids))
    found = relayout.cut_anew(addresses, old, size)
    address = old.index(piece, ids)
    np.testing.assert_array_equal(found.device, address // size)
    np.testing.assert_array_equal(found.row, address % size)
