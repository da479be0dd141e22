"""Batch norm over the real examples of all shards.

Statistics are computed over all examples with a weight, on every shard of a
mesh, so W shards give the same result as one device, and padding changes
nothing. Inside `collectives.restrict_axes(...)` they are those of the shards of
that scope. Inside `collectives.keep_blocks_apart()`, where results must have
the same bits on any mesh, each block of a batch has statistics of its own (a
ghost batch norm), and the running ones are their mean.

Running statistics are ordinary parameters, `running_mean` and
`running_variance`, so that checkpoints, meshes and counts need not know of
batch norm. They are updated through their gradient: the backward pass returns
`weight * (running - statistic of the batch)`, with the weight of the shard's
examples. The step sums gradients over shards and microbatches and divides by
the whole weight. The result is the error of the running value, and the
optimizer removes a tenth of it (`runtime.optimizer.MOMENTUM`). This part of the
gradient does not come from the loss.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.parallel import collectives

EPS = 1e-5


class BatchNorm(nnx.Module):
  """Normalises columns of `[B, width]` as PyTorch does: eps 1e-5, affine.

  The running variance is the unbiased one, x is normalised by the biased one.
  """

  def __init__(self, width: int):
    self.scale = nnx.Param(jnp.ones(width))
    self.shift = nnx.Param(jnp.zeros(width))
    self.running_mean = nnx.Param(jnp.zeros(width))
    self.running_variance = nnx.Param(jnp.ones(width))

  def __call__(
    self, x: jax.Array, weights: jax.Array, training: bool
  ) -> jax.Array:
    """`[B, width]` in the dtype of x; arithmetic in float32.

    Args:
      x: `[B, width]`.
      weights: `[B]`, 0 for padding.
      training: by the statistics of this batch, or by the running ones.
    """
    parameters = (
      self.scale[...],
      self.shift[...],
      self.running_mean[...],
      self.running_variance[...],
    )
    wide = x.astype(jnp.float32)
    if training:
      y = _by_batch(collectives.statistics_axes(), wide, weights, *parameters)
    else:
      y = _normalise_batch(wide, *parameters)
    return y.astype(x.dtype)


def _normalise_batch(x, scale, shift, mean, variance):
  factor = scale * jax.lax.rsqrt(variance + EPS)
  return x * factor[None] + (shift - mean * factor)[None]


def batch_statistics(x: jax.Array, weights: jax.Array):
  """(number of real examples, mean and biased variance `[width]` of them).

  One pass: deviations are taken from an example of the shard, which lies among
  the values, so that no sum cancels; shards are then put together by theirs.
  """
  real = (weights > 0).astype(jnp.float32)
  count = jnp.sum(real)
  pivot = x[0]
  away = (x - pivot[None]) * real[:, None]
  n = jnp.maximum(count, 1.0)
  offset = jnp.sum(away, axis=0) / n
  square = jnp.sum(jnp.square(away), axis=0) - n * jnp.square(offset)
  whole, sums = collectives.sum_over_shards((count, count * (pivot + offset)))
  whole = jnp.maximum(whole, 1.0)
  mean = sums / whole
  apart = pivot + offset - mean
  variance = (
    collectives.sum_over_shards(square + count * jnp.square(apart)) / whole
  )
  return whole, mean, jnp.maximum(variance, 0.0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_batch(axes, x, weights, scale, shift, running_mean, running_variance):
  arguments = x, weights, scale, shift, running_mean, running_variance
  return _normalise_forward(axes, *arguments)[0]


def _normalise_forward(
  axes, x, weights, scale, shift, running_mean, running_variance
):
  # JAX may trace this, and does trace `_normalise_backward`, when the scope in
  # which the batch norm was called has ended: hence `axes`, and a scope of
  # them.
  with collectives.restrict_axes(*axes):
    count, mean, variance = batch_statistics(x, weights)
  unbiased = variance * (count / jnp.maximum(count - 1.0, 1.0))
  off = running_mean - mean, running_variance - unbiased
  y = _normalise_batch(x, scale, shift, mean, variance)
  return y, (x, weights, scale, count, mean, variance, off)


def _normalise_backward(axes, saved, dy):
  x, weights, scale, count, mean, variance, off = saved
  inverse = jax.lax.rsqrt(variance + EPS)
  dshift = jnp.sum(dy, axis=0)
  along = jnp.sum(dy * (x - mean[None]), axis=0)
  dscale = along * inverse
  # Every example of every shard in the scope moves the statistics of all.
  with collectives.restrict_axes(*axes):
    dmean, slope = collectives.sum_over_shards((dshift, dscale))
  centre, slope = dmean / count, slope * inverse / count
  real = (weights > 0)[:, None]
  common = centre[None] + (x - mean[None]) * slope[None]
  dx = (scale * inverse)[None] * (dy - jnp.where(real, common, 0.0))
  weight = jnp.sum(weights)
  return (
    dx,
    jnp.zeros_like(weights),
    dscale,
    dshift,
    *(weight * o for o in off),
  )


_by_batch.defvjp(_normalise_forward, _normalise_backward)
