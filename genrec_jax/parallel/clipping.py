"""Gradients clipped by their norm; running statistics are none of them."""

import jax
import jax.numpy as jnp

from genrec_jax.parallel import rules


def clip(grads, norm: jax.Array, limit: float):
  """Gradients scaled down to the norm `limit`, where they are longer."""
  if not limit:
    return grads
  scale = jnp.where(norm < limit, 1.0, limit / norm)

  def clipped(path, grad):
    if rules.is_statistic(rules.path_name(path)):
      return grad
    return grad * scale.astype(grad.dtype)

  return jax.tree_util.tree_map_with_path(clipped, grads)


def select_counted_leaves(grads) -> list[jax.Array]:
  """The leaves that a norm counts."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    if not rules.is_statistic(rules.path_name(path))
  ]
