"""Gradients clipped by their norm; running statistics are none of them."""

import jax
import jax.numpy as jnp

from genrec_jax.parallel import rules


def clip(grads, norm: jax.Array, limit: float):
  """Gradients scaled down to the norm `limit`, where they are longer."""
  if not limit:
    return grads
  scale = jnp.where(norm < limit, 1.0, limit / norm)
  return jax.tree_util.tree_map_with_path(
    lambda path, g: (
      g if rules.is_statistic(rules.path_name(path)) else g * scale.astype(g.dtype)
    ),
    grads,
  )


def counted(grads) -> list[jax.Array]:
  """The leaves that a norm counts."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    if not rules.is_statistic(rules.path_name(path))
  ]
