"""The emulated ragged all-to-all against its contract, word by word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import ragged

SPEC = PartitionSpec(mesh_lib.AXES)
ROOM = 40  # of operands and outputs


def expected(operand, output, starts, sizes, places):
  """Part j of device i goes to device j, to where device i says."""
  output = output.copy()
  for i in range(len(operand)):
    for j in range(len(operand)):
      part = operand[i, starts[i, j] : starts[i, j] + sizes[i, j]]
      output[j, places[i, j] : places[i, j] + sizes[i, j]] = part
  return output


def sent(mesh, axes, *args):
  def on_device(*args):
    return ragged.all_to_all(*(x[0] for x in args), axes)[None]

  mapped = jax.shard_map(
    on_device, mesh=mesh, in_specs=SPEC, out_specs=SPEC, check_vma=False
  )
  return jax.jit(mapped)(*args)


def parts(rng, devices, empty=0.3):
  """Sizes, and places where the parts fit without touching each other.

  Returns:
    starts, sizes, places, received: `[W, W]`, by sender, the last by receiver.
  """
  sizes = rng.integers(0, ROOM // devices, (devices, devices))
  sizes[rng.uniform(size=sizes.shape) < empty] = 0
  sizes[rng.integers(devices)] = 0  # one device sends nothing
  gaps = rng.integers(0, 2, sizes.shape)
  starts = np.cumsum(sizes + gaps, axis=1) - sizes
  places = np.cumsum(sizes + gaps, axis=0) - sizes
  return [x.astype(np.int32) for x in (starts, sizes, places, sizes.T)]


@pytest.mark.parametrize('dtype', ['float32', 'int32', 'uint8'])
@pytest.mark.parametrize('seed', range(3))
def test_any_sizes(seed, dtype):
  rng = np.random.default_rng(seed)
  starts, sizes, places, received = parts(rng, 8)
  shape = (8, 2 * ROOM, 3) if dtype != 'int32' else (8, 2 * ROOM)
  operand = rng.integers(1, 250, shape).astype(dtype)
  output = rng.integers(1, 250, shape).astype(dtype)
  found = sent(
    mesh_lib.make_mesh(1, 2),
    mesh_lib.DEVICE_GROUP,
    operand, output, starts, sizes, places, received,
  )  # fmt: skip
  np.testing.assert_array_equal(
    found, expected(operand, output, starts, sizes, places)
  )


def test_peers_of_one_axis():
  """Along 'dev' the devices of each host are among themselves."""
  rng = np.random.default_rng(5)
  by_host = [parts(rng, 4) for _ in range(2)]
  starts, sizes, places, received = map(np.concatenate, zip(*by_host))
  operand = rng.normal(size=(8, 2 * ROOM, 2)).astype(np.float32)
  output = np.zeros_like(operand)
  args = operand, output, starts, sizes, places, received
  found = np.asarray(sent(mesh_lib.make_mesh(1, 2), ('dev',), *args))
  for host in (slice(0, 4), slice(4, 8)):
    want = expected(*(x[host] for x in args[:5]))
    np.testing.assert_array_equal(found[host], want)


def test_what_does_not_fit_is_cut_off():
  sizes = np.full((8, 8), 3, np.int32)
  starts = np.cumsum(sizes, axis=1, dtype=np.int32) - sizes
  places = np.cumsum(sizes, axis=0, dtype=np.int32) - sizes
  operand = np.arange(8 * 24, dtype=np.float32).reshape(8, 24)
  output = np.full((8, 10), -1, np.float32)
  found = sent(
    mesh_lib.make_mesh(1, 2),
    mesh_lib.DEVICE_GROUP,
    operand, output, starts, sizes, places, sizes.T,
  )  # fmt: skip
  whole = expected(operand, np.zeros_like(operand), starts, sizes, places)
  np.testing.assert_array_equal(found, whole[:, :10])


def test_gradients_go_back_the_same_way():
  rng = np.random.default_rng(7)
  starts, sizes, places, received = parts(rng, 8)
  operand = rng.normal(size=(8, 2 * ROOM, 2)).astype(np.float32)
  output = rng.normal(size=operand.shape).astype(np.float32)
  weights = rng.normal(size=operand.shape).astype(np.float32)
  mesh = mesh_lib.make_mesh(1, 2)

  def loss(operand, output):
    found = sent(
      mesh,
      mesh_lib.DEVICE_GROUP,
      operand,
      output,
      starts,
      sizes,
      places,
      received,
    )
    return jnp.sum(found * weights)

  found = jax.grad(loss, argnums=(0, 1))(operand, output)
  # Whatever arrived carries its weight home; the rest kept the output's.
  of_operand, of_output = np.zeros_like(operand), weights.copy()
  for i in range(8):
    for j in range(8):
      there = slice(places[i, j], places[i, j] + sizes[i, j])
      here = slice(starts[i, j], starts[i, j] + sizes[i, j])
      of_operand[i, here] = weights[j, there]
      of_output[j, there] = 0
  np.testing.assert_array_equal(found[0], of_operand)
  np.testing.assert_array_equal(found[1], of_output)
