"""Gradients of copied tables: both ways, on eight shards."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks import hlo
from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.lookup import BagGradients
from genrec_jax.parallel import mesh as mesh_lib
from tests.tolerances import assert_close

W, DIM = 8, 4
SPEC = PartitionSpec(mesh_lib.AXES)


def make_program(rows, **options):
  def on_shard(ids, grads):
    merged = copied_tables.sum_gradients(
      [BagGradients(ids[0], None, grads[0])], rows, **options
    )
    return jax.tree.map(lambda x: x[None], merged)

  return jax.jit(
    jax.shard_map(
      on_shard,
      mesh=mesh_lib.make_mesh(1, 2, 4),
      in_specs=(SPEC, SPEC),
      out_specs=SPEC,
      check_vma=False,
    )
  )


def make_gradients(rows, each):
  each = 100 if rows == 300 else each
  rng = np.random.default_rng(rows)
  ids = rng.integers(0, rows + 1, (W, each), np.int32)  # some are no rows
  ids[0, :2] = -1, rows + 3
  return ids, rng.normal(size=(W, each, DIM)).astype(np.float32)


def add_all(ids, grads, rows):
  """Row -> the sum, of the rows that somebody has read."""
  sums = {}
  for i, grad in zip(ids.reshape(-1), grads.reshape(-1, DIM), strict=True):
    if 0 <= i < rows:
      sums[int(i)] = sums.get(int(i), np.float32(0)) + grad
  return sums


@pytest.mark.parametrize('in_order', [False, True])
# A table is shorter, also one of more than a line for each device; or is not.
@pytest.mark.parametrize('rows', [13, 300, 1000])
def test_every_device_gets_the_same_sums(rows, in_order):
  ids, grads = make_gradients(rows, 10)
  found, of_rows = make_program(rows, in_order=in_order)(ids, grads)
  found, of_rows = np.asarray(found), np.asarray(of_rows)
  wanted = add_all(ids, grads, rows)
  for device in range(W):
    np.testing.assert_array_equal(found[device], found[0])
    np.testing.assert_array_equal(of_rows[device], of_rows[0])
  real = found[0] < rows
  assert found[0][real].tolist() == sorted(wanted)
  assert not np.any(of_rows[0][~real]) and not np.any(real[len(wanted) :])
  sums = np.stack([wanted[i] for i in sorted(wanted)])
  assert_close(of_rows[0][real], sums, 'exchanged')
  if in_order:
    np.testing.assert_array_equal(of_rows[0][real], sums)


def test_a_row_that_was_read_and_has_no_gradient_is_there():
  """Adam moves it all the same."""
  ids = np.full((W, 10), 5, np.int32)
  found, grads = make_program(13)(ids, np.zeros((W, 10, DIM), np.float32))
  assert np.asarray(found)[:, 0].tolist() == [5] * W
  assert not np.any(grads)


def test_the_shorter_way_is_taken():
  sent = {}
  for rows in (13, 1000):
    ids = jax.ShapeDtypeStruct((W, 10), jnp.int32)
    grads = jax.ShapeDtypeStruct((W, 10, DIM), jnp.float32)
    program = make_program(rows).lower(ids, grads).compile()
    sent[rows] = sum(map(hlo.sent_bytes, hlo.find_collectives(program)))
  # Two rows for each device, on their way to it and back.
  assert sent[13] == 2 * 2 * 4 * (DIM + 1) * (W - 1)
  assert sent[1000] == 10 * 4 * (DIM + 1) * (W - 1)


def test_the_examples():
  assert doctest.testmod(copied_tables).failed == 0
