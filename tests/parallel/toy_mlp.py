"""A small network, its step on a mesh in ten lines, and plain training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from genrec_jax.parallel import collectives, placement
from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib

RULES = (('.*/bias|scale', None), ('layer_0/kernel', 1), ('.*/kernel', 0))
EXAMPLES = 64


def init(width: int = 16, layers: int = 2):
  """Values that only look random, which compiles sooner."""
  each = jnp.arange(width * width, dtype=jnp.float32).reshape(width, width)
  params = {
    f'layer_{i}': {
      'kernel': jnp.sin(each * (i + 17)) * np.float32((2 / width) ** 0.5),
      'bias': jnp.full(width, 0.1),
    }
    for i in range(layers)
  }
  return {**params, 'scale': jnp.ones(())}


@functools.cache
def start():
  """The parameters before training, on the host."""
  return jax.device_get(jax.jit(init)())


def batch(seed: int, width: int = 16, examples: int = EXAMPLES):
  rng = np.random.default_rng(seed)
  return {
    'x': rng.normal(size=(examples, width)).astype(np.float32),
    'y': rng.normal(size=examples).astype(np.float32),
    'weight': rng.integers(0, 3, examples).astype(np.float32),
  }


def summand(params, batch, weight):
  """This shard's part of a weighted mean over the real examples."""
  x, layers = batch['x'], len(params) - 1
  for i in range(layers):
    w, b = params[f'layer_{i}']['kernel'], params[f'layer_{i}']['bias']
    x = jnp.tanh(x.astype(w.dtype) @ w + b[None])
  error = jnp.sum(x, 1) * params['scale'] - batch['y'].astype(x.dtype)
  return jnp.sum(
    jnp.square(error.astype(jnp.float32)) * batch['weight'] / weight
  )


def trainer(dense, tx, mesh):
  """First parameters and state on a mesh, and the step that trains them."""
  train, layout = step(dense, tx, mesh)
  params = placement.init_sharded(init, placement.shardings(layout))
  resting = placement.state_shardings(layout, tx)
  return params, placement.init_sharded(tx.init, resting, params), train


def compiled(dense, tx, mesh, *, micro=1, width=16, layers=2, options=None):
  """The compiled step of a network that need not exist."""
  train, layout = step(dense, tx, mesh, width, layers)
  state = jax.eval_shape(tx.init, layout.params)
  shards, split = mesh_lib.count_shards(mesh), mesh_lib.batch_sharding(mesh)
  batches = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (shards, micro, len(x) // shards // micro, *x.shape[1:]), x.dtype
    ),
    batch(0, width),
  )
  arguments = jax.tree.map(
    lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    (layout.params, state, batches),
    (
      placement.shardings(layout),
      placement.state_shardings(layout, tx),
      jax.tree.map(lambda _: split, batches),
    ),
  )
  return train.lower(*arguments).compile(options)


def step(dense, tx, mesh, width: int = 16, layers: int = 2):
  """`train(params, state, batch)` and its layout.

  `train` takes batches `[shards, micro, examples, ...]`, see `cut`, and gives
  parameters, state, loss and the norm of the gradient.
  """
  fresh = functools.partial(init, width, layers)
  layout = dense_lib.make_layout(dense, mesh, jax.eval_shape(fresh))

  def shard(params, state, batches):
    batches = jax.tree.map(lambda x: x[0], batches)
    weight = collectives.sum_over_shards(jnp.sum(batches['weight']))
    held = layout.gather(params)
    loss = layout.remat(lambda h, b: summand(layout.use(h), b, weight))
    value, grads = dense_lib.accumulate_sums(
      lambda b: jax.value_and_grad(loss)(held, b), batches
    )
    grads = layout.reduce(grads)
    norm = layout.norm(grads)
    grads = layout.clip(grads, norm)
    params, state = layout.apply(tx, grads, state, params)
    return params, state, collectives.sum_over_shards(value), norm

  specs = placement.specs(layout), placement.state_specs(layout, tx)
  sharded = jax.shard_map(
    shard,
    mesh=mesh,
    in_specs=(*specs, P(mesh_lib.AXES)),
    out_specs=(*specs, P(), P()),
    check_vma=False,
  )
  resting = placement.state_shardings(layout, tx)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def train(params, state, batches):
    state = placement.to_device(state, resting)
    params, state, loss, norm = sharded(params, state, batches)
    return params, placement.to_rest(state, resting), loss, norm

  return train, layout


def cut(batch, mesh, micro: int = 1):
  """A batch -> `[shards, micro, examples, ...]`, on its devices."""
  shards, where = mesh_lib.count_shards(mesh), mesh_lib.batch_sharding(mesh)

  def spread(x):
    x = x.reshape(shards, micro, -1, *x.shape[1:])
    return jax.make_array_from_callback(x.shape, where, lambda i: x[i])

  return jax.tree.map(spread, batch)


def gradients(params, batch):
  """Loss and gradients of all examples on one device."""
  weight = jnp.sum(batch['weight'])
  return jax.value_and_grad(summand)(params, batch, weight)


def plain(tx, steps: int, *, clip: float = 0.0, gradients=gradients):
  """Parameters, losses and norms of training on one device with optax."""
  if clip:
    tx = optax.chain(optax.clip_by_global_norm(clip), tx)

  @jax.jit
  def step(params, state, batch):
    loss, grads = gradients(params, batch)
    updates, state = tx.update(grads, state, params)
    norm = optax.tree.norm(grads)
    return optax.apply_updates(params, updates), state, loss, norm

  params, losses, norms = start(), [], []
  state = jax.jit(tx.init)(params)
  for i in range(steps):
    params, state, loss, norm = step(params, state, batch(i))
    losses.append(float(loss))
    norms.append(float(norm))
  return params, losses, norms
