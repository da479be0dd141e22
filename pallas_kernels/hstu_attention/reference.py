"""The definition written out, over all pairs of tokens: the tests' oracle."""

import jax
import jax.numpy as jnp

from pallas_kernels.hashing import keep_mask
from pallas_kernels.hstu_attention import masks
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors

BUCKET_WIDTH = 0.301  # natural logarithm, as published


def time_bucket(delta: jax.Array, buckets: int) -> jax.Array:
  """Bucket of a time difference in seconds; `buckets` rows in the table."""
  # At least one second: the logarithm of zero has no bucket.
  log = jnp.log(jnp.maximum(jnp.abs(delta), 1).astype(jnp.float32))
  return jnp.clip((log / BUCKET_WIDTH).astype(jnp.int32), 0, buckets - 1)


def attention(spec: Spec, tensors: Tensors, context: Context) -> jax.Array:
  """See `api.hstu_attention`; holds `[H, Tq, T]` scores."""
  q, k, v, position_bias, time_bias = tensors
  query = masks.query_places(spec, context, q.shape[0])
  key = masks.key_places(spec, context, k.shape[0])
  mask = masks.is_visible(
    spec,
    query.position[:, None] == key.position[None],
    query.order[:, None],
    key.order[None],
    query.limit[:, None],
  )
  # Sequences lie in one packed array and must not see each other.
  mask &= query.segment[:, None] == key.segment[None]
  # Padding queries and padding keys share the segment B.
  mask &= (query.segment < context.lengths.shape[0])[:, None]

  scores = spec.alpha * jnp.einsum(
    'ihd,jhd->hij', q, k, preferred_element_type=jnp.float32
  )
  if position_bias is not None:
    n = (position_bias.shape[0] + 1) // 2
    # Clipped for pairs of different sequences alone, which are masked.
    relative = key.anchor[None] - query.anchor[:, None] + n - 1
    bias = position_bias[jnp.clip(relative, 0, 2 * n - 2)]
    scores += bias.astype(jnp.float32)[None]
  if time_bias is not None:
    delta = context.query_time[:, None] - context.time[None]
    bias = time_bias[time_bucket(delta, time_bias.shape[0])]
    scores += bias.astype(jnp.float32)[None]

  if spec.mode == 'silu':
    # Masked after the activation: silu(-inf) would be NaN.
    weights = jnp.where(mask[None], jax.nn.silu(scores), 0.0)
    if spec.normaliser is None:
      weights /= context.normaliser[None, :, None]
    else:
      weights /= spec.normaliser
  else:
    # Not -inf, which makes NaN of a row that sees nothing; such a row becomes
    # uniform here and zero on the next line.
    scores = jnp.where(mask[None], scores, -1e30)
    weights = jnp.where(mask[None], jax.nn.softmax(scores, axis=-1), 0.0)
  if spec.dropout:
    keep = keep_mask(
      context.dropout_seed,
      jnp.arange(q.shape[1])[:, None, None],
      query.token[None, :, None],
      key.token[None, None, :],
      spec.dropout,
    )
    weights = jnp.where(keep, weights / (1.0 - spec.dropout), 0.0)
  out = jnp.einsum(
    'hij,jhd->ihd',
    # The product of the tensor cores and the MXU is one of 16-bit numbers;
    # rounding the weights here keeps the backends comparable.
    weights.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )
  return out.astype(v.dtype)
