"""Collectives for code that must also run plain, outside of any mesh.

Models and tasks are written once. Called inside `jax.shard_map` they see the
examples of one shard, and these functions speak to the other shards; called
outside they see everything, and each function is the identity.

Gradients. Inside a step (`check_vma=False`) JAX differentiates as if the loss
were *the sum over shards of what each shard returns*: psum transposes to psum,
all_gather to a reduce-scatter. So a step differentiates the summand of its own
shard, `local_sum / total(local_weight)`, and sums the gradients over shards:
that is the gradient of the global mean. What is the same on every shard, such
as a regulariser of replicated parameters, belongs into the summand divided by
`shard_count()`. `total(loss)` for the log is taken after differentiation.
"""

import jax
import jax.numpy as jnp


def axes() -> tuple[str, ...]:
  """The mesh axes this code runs split over; () outside of shard_map."""
  return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def total(x):
  """Sum of every leaf over shards, the same on each of them."""
  over = axes()
  return jax.lax.psum(x, over) if over else x


def shard_index() -> jax.Array:
  """Number of this shard, int32: the place of its part in the whole batch."""
  over = axes()
  return jax.lax.axis_index(over) if over else jnp.int32(0)


def shard_count() -> int:
  """How many shards there are."""
  over = axes()
  return jax.lax.axis_size(over) if over else 1


def gather(x):
  """Every leaf `[n, ...]` of all shards, `[shards * n, ...]` in shard order."""
  over = axes()
  if not over:
    return x
  return jax.tree.map(
    lambda leaf: jax.lax.all_gather(leaf, over, axis=0, tiled=True), x
  )


def before(x: jax.Array) -> jax.Array:
  """Sum of a scalar over the shards in front of this one; zero outside."""
  over = axes()
  if not over:
    return jnp.zeros_like(x)
  everyone = jax.lax.all_gather(x, over)
  earlier = jnp.arange(everyone.shape[0]) < shard_index()
  return jnp.sum(jnp.where(earlier, everyone, 0), dtype=everyone.dtype)
