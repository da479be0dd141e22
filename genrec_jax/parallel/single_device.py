"""`dense.MeshLayout` of one device: nothing is cut and nothing travels."""

import dataclasses

import optax

from genrec_jax.parallel import clipping


@dataclasses.dataclass(frozen=True)
class SingleDeviceLayout:
  """The methods of `dense.MeshLayout`, most of which do nothing here.

  Attributes:
    clip_norm: largest norm of the gradient; 0 for no limit.
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

  def local_slice(self, params):
    return params

  def norm(self, grads):
    return optax.tree.norm(clipping.select_counted_leaves(grads))

  def clip(self, grads, norm):
    return clipping.clip_gradients(grads, norm, self.clip_norm)

  def apply(self, tx, grads, state, params, **extra):
    updates, state = tx.update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), state
