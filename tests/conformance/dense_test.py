"""What `contracts.Dense` promises: every implementer takes the same steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from genrec_jax import contracts
from genrec_jax.parallel import collectives, placement
from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel.dense import DenseOptions
from genrec_jax.parallel.single_device import SingleDeviceLayout
from tests.parallel import toy_mlp
from tests.tolerances import assert_close

# Promotion is optax's habit.
pytestmark = pytest.mark.usefixtures('optax_promotes')

STEPS, MICROBATCHES = 2, 2
CLIP = 1.0
TX = optax.adam(0.01)
# Every implementer: None is one device, the others are of a mesh.
IMPLEMENTERS = {
  'alone': None,
  'ddp': DenseOptions('ddp', clip_norm=CLIP),
  'grad_op': DenseOptions('grad_op', toy_mlp.RULES, clip_norm=CLIP),
  'fsdp': DenseOptions('fsdp', toy_mlp.RULES, clip_norm=CLIP),
  'fsdp, kept': DenseOptions(
    'fsdp', toy_mlp.RULES, keep_gathered=True, clip_norm=CLIP
  ),
  'hybrid': DenseOptions('hybrid', toy_mlp.RULES, clip_norm=CLIP),
}


@pytest.fixture
def optax_promotes():
  with jax.numpy_dtype_promotion('standard'):
    yield


@dataclasses.dataclass(frozen=True)
class Run:
  """Some steps, on the host."""

  losses: list[float]
  norms: list[float]
  clipped: list[float]
  params: dict


def take_step(dense, params, state, batches):
  """The calls of a step; `batches` are `[shards, micro, ...]` of this shard."""
  batches = jax.tree.map(lambda x: x[0], batches)
  weight = collectives.sum_over_shards(jnp.sum(batches['weight']))
  held = dense.gather(params)
  loss = dense.remat(lambda h, b: toy_mlp.summand(dense.use(h), b, weight))
  value, grads = dense_lib.accumulate_sums(
    lambda b: jax.value_and_grad(loss)(held, b), batches
  )
  grads = dense.reduce(grads)
  norm = dense.norm(grads)
  grads = dense.clip(grads, norm)
  # What is updated has the shapes of what the gradients are of.
  own = dense.local_slice(params)
  assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, grads)
  params, state = dense.apply(TX, grads, state, params)
  return (
    params,
    state,
    collectives.sum_over_shards(value),
    norm,
    dense.norm(grads),
  )


@functools.cache
def layout_of(name: str):
  options = IMPLEMENTERS[name]
  if options is None:
    return SingleDeviceLayout(CLIP)
  mesh = mesh_lib.make_mesh(1, 2, 2)
  return dense_lib.make_layout(options, mesh, jax.eval_shape(toy_mlp.init))


@functools.cache
def run_of(name: str) -> Run:
  dense = layout_of(name)
  step = functools.partial(take_step, dense)
  if isinstance(dense, SingleDeviceLayout):
    params = jax.jit(toy_mlp.init)()
    state = TX.init(params)
    shards = 1
  else:
    alike, split = PartitionSpec(), PartitionSpec(mesh_lib.AXES)
    specs = placement.specs(dense), placement.state_specs(dense, TX)
    step = jax.shard_map(
      step,
      mesh=dense.mesh,
      in_specs=(*specs, split),
      out_specs=(*specs, alike, alike, alike),
      check_vma=False,
    )
    params = placement.init_sharded(toy_mlp.init, placement.shardings(dense))
    resting = placement.state_shardings(dense, TX)
    state = placement.init_sharded(TX.init, resting, params)
    shards = mesh_lib.count_shards(dense.mesh)
  step, run = jax.jit(step), Run([], [], [], {})
  for number in range(STEPS):
    batches = jax.tree.map(
      lambda x: x.reshape(shards, MICROBATCHES, -1, *x.shape[1:]),
      toy_mlp.batch(number),
    )
    params, state, *told = step(params, state, batches)
    for column, value in zip(
      (run.losses, run.norms, run.clipped), told, strict=True
    ):
      column.append(float(value))
  return dataclasses.replace(run, params=jax.device_get(params))


@functools.cache
def plain():
  return toy_mlp.plain(TX, STEPS, clip=CLIP)


@pytest.mark.parametrize('name', IMPLEMENTERS)
def test_it_holds_dense_parameters(name):
  assert isinstance(layout_of(name), contracts.Dense)


@pytest.mark.parametrize('name', IMPLEMENTERS)
def test_its_steps_are_those_of_optax(name):
  run, (params, losses, norms) = run_of(name), plain()
  assert_close(run.losses, losses, 'curve')
  assert_close(run.norms, norms, 'curve')
  jax.tree.map(
    lambda a, b, s: assert_close(
      np.asarray(a) - s, np.asarray(b) - s, 'ten_adam_steps'
    ),
    run.params,
    jax.device_get(params),
    toy_mlp.start(),
  )


@pytest.mark.parametrize('name', IMPLEMENTERS)
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(name):
  run = run_of(name)
  assert min(run.norms) > CLIP, 'nothing is clipped'
  assert_close(run.clipped, [CLIP] * STEPS)


def test_every_mode_is_under_test():
  modes = {d.mode for d in IMPLEMENTERS.values() if d is not None}
  assert modes == set(dense_lib.CUT)
