"""Bytes of a plan, against the formulas and against XLA."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from genrec_jax.embedding import layout
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.planner import (
  DensePart,
  Feature,
  Load,
  hardware,
  storage,
  tree_bytes,
)
from genrec_jax.planner.workload import slot_bytes

TWO = hardware.find_topology('torchrec', hosts=2)
BATCH = 512 * 16
TABLE = Load('t', 1_000_001, 64, features=(Feature(10.0),))


@pytest.mark.parametrize(
  'scheme, columns, rows, ids, sent',
  [
    ('data_parallel', 64, 1_000_001, 5_120 * 8, 512 * 64 * 4),
    ('table_wise', 64, 1_000_001, 5_120 * 16 * 8, 512 * 16 * 64 * 4),
    ('column_wise', 16, 1_000_001, 5_120 * 16 * 8, 512 * 16 * 16 * 4),
    ('table_column_wise', 32, 1_000_001, 5_120 * 16 * 8, 512 * 16 * 32 * 4),
    ('row_wise', 64, 62_501, 320 * 16 * 8, 512 * 16 * 64 * 4),
    ('table_row_wise', 64, 125_001, 640 * 16 * 8, 512 * 16 * 64 * 4),
    ('grid', 32, 125_001, 640 * 16 * 8, 512 * 16 * 32 * 4),
  ],
)
def test_bytes_of_a_piece(scheme, columns, rows, ids, sent):
  args = (TABLE, SCHEMES[scheme], columns, TWO)
  assert storage.row_bytes(*args) == rows * (columns * 4 + 4)
  assert storage.buffer_bytes(*args, BATCH) == ids + sent
  twice = dataclasses.replace(TWO, input_buffers=2)
  found = storage.buffer_bytes(TABLE, SCHEMES[scheme], columns, twice, BATCH)
  assert found == 2 * ids + sent


def test_budget_is_what_reserve_and_dense_part_leave():
  machine = hardware.find_topology('h100', memory=1000, reserve=0.1)
  assert storage.table_budget(machine, DensePart(bytes=300)) == 600


@pytest.mark.parametrize('optimizer', ROW_OPTIMIZERS)
def test_slots_are_those_the_optimizer_makes(optimizer):
  table = jnp.zeros((7, 12))
  slots = ROW_OPTIMIZERS[optimizer].init(table)
  assert slot_bytes(optimizer, 7, 12) == tree_bytes(slots)


def test_dense_tables_keep_a_gradient_and_two_moments():
  load = Load('t', 10, 4, optimizer='dense')
  assert load.bytes_of(10, 4) == 4 * 10 * 4 * 4


def test_unknown_optimizers_are_refused():
  with pytest.raises(ValueError, match="no row optimizer 'row_adagard'"):
    Load('t', 10, 4, optimizer='row_adagard')


def test_allocated_bytes_are_those_xla_sees():
  loads = [
    Load('all', 1001, 32),
    Load('one', 300, 32),
    Load('whole', 50, 16),
    Load('cut', 200, 64),
  ]
  plans = {
    'all': loads[0].plan('row_wise'),
    'one': loads[1].plan('table_wise', (3,)),
    'whole': loads[2].plan('data_parallel'),
    'cut': loads[3].plan('column_wise', (0, 5)),
  }
  plan = ShardingPlan(plans, hosts=2, devices=4)
  laid = layout.lay_out(plan)
  mesh = mesh_lib.make_mesh(hosts=2)
  tables, slots, shardings = {}, {}, {}
  for name, shape in laid.shapes().items():
    optimizer = ROW_OPTIMIZERS[laid.optimizers[name]]
    spec = P() if name in laid.whole else P(mesh_lib.DEVICE_GROUP)
    shardings[name] = NamedSharding(mesh, spec)
    rows = shape.shape[0] * (1 if name in laid.whole else plan.group_size)
    tables[name] = jax.ShapeDtypeStruct((rows, shape.shape[1]), shape.dtype)
    slots[name] = jax.eval_shape(optimizer.init, tables[name])

  def total(tables, slots):
    leaves = jax.tree.leaves((tables, slots))
    return sum(jnp.sum(x) for x in leaves)

  per_slot = {n: jax.tree.map(lambda _, n=n: shardings[n], slots[n])
              for n in slots}  # fmt: skip
  compiled = (
    jax.jit(total, in_shardings=(shardings, per_slot))
    .lower(tables, slots)
    .compile()
  )
  seen = compiled.memory_analysis().argument_size_in_bytes
  assert storage.allocated_bytes(plan) == seen
