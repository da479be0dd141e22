"""Clips gradients by their norm, from which running statistics are left out."""

import jax
import jax.numpy as jnp

from genrec_jax.parallel import rules


def clip_gradients(grads, norm: jax.Array, limit: float):
  """Scales gradients down to the norm `limit` if theirs is larger.

  >>> grads = {'w': jnp.array([6.0, 8.0])}
  >>> clip_gradients(grads, norm=jnp.float32(10.0), limit=5.0)['w'].tolist()
  [3.0, 4.0]

  Args:
    grads: tree of gradients.
    norm: their norm, over all devices.
    limit: largest norm; 0 for no limit.
  """
  if not limit:
    return grads
  # A norm of NaN fails the comparison and shows in every gradient.
  scale = jnp.where(norm < limit, 1.0, limit / norm)

  def scale_gradient(path, grad):
    # It is not a slope: scaled down, the statistic would lag behind.
    if rules.is_statistic(rules.path_name(path)):
      return grad
    return grad * scale.astype(grad.dtype)

  return jax.tree_util.tree_map_with_path(scale_gradient, grads)


def select_counted_leaves(grads) -> list[jax.Array]:
  """The leaves whose norm is taken: all but running statistics."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    if not rules.is_statistic(rules.path_name(path))
  ]
