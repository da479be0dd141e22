"""Collectives for code that must also run outside of any mesh.

Models and tasks are written once. Inside `jax.shard_map` they see the examples
of one shard, and these functions communicate with the other shards. Outside,
they see all examples, and each function is the identity.

Gradients. Inside a step (`check_vma=False`) JAX differentiates as if the loss
were *the sum over shards of what each shard returns*: psum transposes to psum,
all_gather to a reduce-scatter. So a step differentiates the summand of its own
shard, `local_sum / sum_over_shards(local_weight)`, and sums the gradients over
shards: that is the gradient of the global mean. What is the same on every
shard, such as a regulariser of replicated parameters, belongs into the summand
divided by `shard_count()`. `sum_over_shards(loss)` for the log is taken after
differentiation.

Scopes. Code that differs between shards, such as a tower that only the devices
of one host compute, must only communicate with shards that run the same code:
`with restrict_axes('rep', 'dev'):` restricts every function here to those axes
while the code inside is traced. The backward function of a `jax.custom_vjp` is
traced after the scope has ended, so it has to be given the `current_axes()` of
the forward pass (see `models.batch_norm`).
"""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp

# JAX counts it among the keys of its caches of traced functions: a function
# that is jitted inside two scopes is traced in each of them.
_scope = jax.make_user_context(default_value=None)
_apart = jax.make_user_context(default_value=False)


@contextlib.contextmanager
def restrict_axes(*names: str) -> Iterator[None]:
  """Restricts the functions of this module to some axes of the mesh.

  If scopes are nested, the innermost one counts. Outside of `shard_map` a scope
  changes nothing.

  >>> def mean_of_tower(x):
  ...   with restrict_axes('rep', 'dev'):  # other hosts, other towers
  ...     return sum_over_shards(x) / shard_count()
  >>> mean_of_tower(3.0)  # on one device
  3.0

  Args:
    *names: axes of the mesh; without any, every shard is on its own.
  """
  with _scope(names):
    yield


def current_axes() -> tuple[str, ...]:
  """The mesh axes that collectives run over here; () outside of shard_map.

  Raises:
    ValueError: in a scope of axes that the mesh does not have.
  """
  every = tuple(jax.sharding.get_abstract_mesh().manual_axes)
  scope = _scope.value
  if not every or scope is None:
    return every
  if unknown := sorted(set(scope) - set(every)):
    raise ValueError(
      f'collectives.restrict_axes names {", ".join(map(repr, unknown))}; the '
      f'axes of this mesh are {", ".join(every)}'
    )
  # In the order of the mesh, which numbers the shards.
  return tuple(name for name in every if name in scope)


@contextlib.contextmanager
def keep_blocks_apart() -> Iterator[None]:
  """Says that what runs inside sees one of several blocks of a batch.

  Blocks are dealt to the shards, so that another number of shards puts other
  blocks side by side. What makes statistics of examples, such as a batch norm,
  then makes them of the block alone (`statistics_axes`), and its results do not
  depend on the mesh.
  """
  with _apart(True):
    yield


def statistics_axes() -> tuple[str, ...]:
  """The mesh axes over which statistics of examples are to be taken.

  >>> with keep_blocks_apart():
  ...   statistics_axes()
  ()
  """
  return () if _apart.value else current_axes()


def sum_over_shards(x):
  """Sums every leaf over shards; the result is the same on each of them."""
  over = current_axes()
  return jax.lax.psum(x, over) if over else x


def shard_index() -> jax.Array:
  """The number of this shard, int32, in the order of their parts of the batch.

  In a scope, it is the number among the shards of the scope.
  """
  over = current_axes()
  return jax.lax.axis_index(over) if over else jnp.int32(0)


def shard_count() -> int:
  """How many shards there are."""
  over = current_axes()
  return jax.lax.axis_size(over) if over else 1


def gather(x):
  """Concatenates every leaf `[n, ...]` over shards to `[shards * n, ...]`."""
  over = current_axes()
  if not over:
    return x
  return jax.tree.map(
    lambda leaf: jax.lax.all_gather(leaf, over, axis=0, tiled=True), x
  )


def exchange_rows(x):
  """What every shard has for this one's rows, side by side.

  Args:
    x: leaves `[shards * n, k]`, a part of n rows for each shard in its order.

  Returns:
    Leaves `[n, shards * k]`, the columns of the first shard in front.
  """
  over = current_axes()
  if not over:
    return x

  def exchange_leaf(leaf):
    parts = leaf.reshape(shard_count(), -1, leaf.shape[-1])
    parts = jax.lax.all_to_all(parts, over, 0, 0)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)

  return jax.tree.map(exchange_leaf, x)


def sum_before(x: jax.Array) -> jax.Array:
  """Sums a scalar over the shards before this one; zero outside of a mesh."""
  over = current_axes()
  if not over:
    return jnp.zeros_like(x)
  # A scalar for each shard: gathering them all costs less than a chain of
  # messages.
  everyone = jax.lax.all_gather(x, over)
  earlier = jnp.arange(everyone.shape[0]) < shard_index()
  return jnp.sum(jnp.where(earlier, everyone, 0), dtype=everyone.dtype)


def mean_of_copies(x: jax.Array, axis: str) -> jax.Array:
  """The mean over a mesh axis, which leaves equal numbers as they are.

  Args:
    x: this shard's copy; whole numbers stay what they are in each.
    axis: name of the axis.
  """
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return x
  ours, count = x.astype(jnp.float32), jax.lax.axis_size(axis)
  if count & (count - 1) == 0:
    return jax.lax.pmean(ours, axis).astype(x.dtype)
  # A third of three times a number may be its neighbour: add the mean of the
  # differences to the first copy.
  first = jnp.where(jax.lax.axis_index(axis) == 0, ours, jnp.float32(0))
  first = jax.lax.psum(first, axis)
  return (first + jax.lax.pmean(ours - first, axis)).astype(x.dtype)
