"""determinism='mesh_invariant' with batch norms, the default of four models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from genrec_jax import config as config_lib
from genrec_jax.models.batch_norm import BatchNorm
from genrec_jax.parallel import collectives
from genrec_jax.runtime import step as step_lib
from genrec_jax.runtime.mesh import MeshRuntime
from tests.conformance.task_cases import pack_impressions, rank
from tests.marks import slow_but

BLOCKS, BATCH = 8, 16
# Of eight blocks, a device has one, two or four.
MESHES = {'dnn': (1, 4), 'dcn': (2, 4), 'deepfm': (2, 4), 'finalmlp': (1, 2)}


@functools.cache
def trained(model: str, hosts: int, devices: int, determinism: str):
  """(losses, parameters, tables) after three steps."""
  config = config_lib.ranking()
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.update(
    dict(hosts=hosts, devices=devices, scheme='row_wise', pool='rows')
  )
  config.parallel.update(dict(determinism=determinism, reduction_blocks=BLOCKS))
  task = rank(model, table_update='row_sgd')
  runtime = MeshRuntime(config, task, optax.sgd(0.1))
  state, step, losses = runtime.fresh_state(), runtime.step(), []
  for seed in range(3):
    batch = pack_impressions(BATCH, BLOCKS, seed)
    state, loss = step(state, runtime.put_on_devices(batch))
    losses.append(float(loss))
  return losses, jax.device_get(state.params)


def means_of(params) -> dict[str, np.ndarray]:
  """Running statistics by path."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  named = {jax.tree_util.keystr(path): x for path, x in leaves}
  return {name: x for name, x in named.items() if 'running' in name}


@pytest.mark.parametrize('model', slow_but(MESHES, ['dnn']))
def test_the_mesh_changes_no_bit(model):
  losses, params = trained(model, 1, 1, 'mesh_invariant')
  many, params_of_many = trained(model, *MESHES[model], 'mesh_invariant')
  assert means_of(params)  # it has a batch norm
  assert losses == many
  jax.tree.map(np.testing.assert_array_equal, params, params_of_many)


def test_statistics_of_blocks_are_others_than_those_of_the_batch():
  apart, _ = trained('dnn', 1, 1, 'mesh_invariant')
  together, _ = trained('dnn', 1, 1, 'per_mesh')
  assert not np.allclose(apart, together, rtol=1e-3)


def test_running_statistics_are_the_means_of_the_blocks():
  """One after the other, weighted by their examples."""
  rng = np.random.default_rng(0)
  x = rng.normal(2.0, 3.0, (4, 5, 3)).astype(np.float32)
  weights = (rng.random((4, 5)) < 0.8).astype(np.float32)
  graph, params = nnx.split(BatchNorm(3))

  def gradient(x, weights):
    def apply(params):
      return nnx.merge(graph, params)(x, weights, True).sum()

    with collectives.keep_blocks_apart():
      return jax.grad(apply)(params)

  sums = jax.tree.map(
    lambda *each: sum(each),
    *(gradient(*block) for block in zip(x, weights, strict=True)),
  )
  real = [block[own > 0].astype(float) for block, own in zip(x, weights)]
  mean = sum(len(b) * b.mean(0) for b in real) / weights.sum()
  variance = sum(len(b) * b.var(0, ddof=1) for b in real) / weights.sum()
  # Of values that begin at 0 and 1, the gradient is what they are off by.
  found = sums['running_mean'][...], sums['running_variance'][...]
  np.testing.assert_allclose(-found[0] / weights.sum(), mean, rtol=1e-5)
  np.testing.assert_allclose(1 - found[1] / weights.sum(), variance, rtol=1e-5)


@pytest.mark.parametrize('count', [1, 3])
def test_one_block_is_computed_in_a_loop_as_several_are(count):
  """Else XLA joins it with what is around it, and rounds in another way."""
  blocks = {'x': jnp.arange(12.0).reshape(3, 4)[:count]}

  def run(block):
    return jnp.sum(block['x']), {'double': 2 * block['x']}

  def map_blocks(blocks, number):
    return step_lib.map_blocks(run, blocks, count, number)

  number = jnp.int32(7)
  program = jax.jit(map_blocks).lower(blocks, number).compile()
  assert ' while(' in program.as_text()
  jax.tree.map(
    np.testing.assert_array_equal,
    program(blocks, number),
    jax.lax.map(run, blocks),
  )
