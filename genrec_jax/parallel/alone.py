"""`dense.Layout` of one device: nothing is cut and nothing travels."""

import dataclasses

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Alone:
  """The same calls; see `dense`.

  Attributes:
    clip_norm: largest norm of the gradient; 0 is none.
  """

  clip_norm: float = 0.0

  def gather(self, params):
    return params

  def use(self, held):
    return held

  def remat(self, loss):
    return loss

  def reduce(self, grads):
    return grads

  def norm(self, grads):
    return optax.global_norm(grads)

  def clip(self, grads, norm):
    if not self.clip_norm:
      return grads
    scale = jnp.where(norm < self.clip_norm, 1.0, self.clip_norm / norm)
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)

  def apply(self, tx, grads, state, params):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state
