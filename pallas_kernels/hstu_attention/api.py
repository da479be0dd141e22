"""`hstu_attention`: causal attention inside each packed sequence.

For token i and the tokens j <= i of the same sequence:

    s[i, j] = alpha * q[i] . k[j] + position_bias[j - i + n - 1]
                                  + time_bias[bucket(query_time[i] - time[j])]
    silu:     out[i] = sum_j silu(s[i, j]) * v[j] / normaliser
    softmax:  out[i] = sum_j softmax_j(s[i, :]) * v[j]

with n = (len(position_bias) + 1) / 2 and
bucket(d) = clip(trunc(ln(max(|d|, 1)) / 0.301), 0, len(time_bias) - 1).
Both biases are shared by the heads. Gradients flow to q, k, v and both tables.
"""

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import reference, xla

MODES = ('silu', 'softmax')
BACKENDS = {'xla': xla.attention, 'reference': reference.attention}


def hstu_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  lengths: jax.Array,
  *,
  max_len: int,
  mode: str = 'silu',
  alpha: float = 1.0,
  normaliser: float | None = None,
  position_bias: jax.Array | None = None,
  time_bias: jax.Array | None = None,
  query_time: jax.Array | None = None,
  time: jax.Array | None = None,
  dropout: float = 0.0,
  dropout_seed: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """Attends causally within each sequence of a packed batch.

  Args:
    q: `[T, H, dqk]` queries; `k` the same shape, `v` `[T, H, dv]`.
    k: keys.
    v: values.
    lengths: `[B]` tokens of each sequence, none above `max_len`; the output is
      NaN where one is, because a wrong number would be worse.
    max_len: static bound of the lengths.
    mode: 'silu' (HSTU) or 'softmax'.
    alpha: factor of the dot product.
    normaliser: divisor of the SiLU scores; `max_len` if None. Static on
      purpose: the result of one user must not depend on the others' lengths.
    position_bias: `[2n - 1]` with n >= max_len, or None.
    time_bias: `[buckets]`, or None; needs `query_time` and `time`.
    query_time: `[T]` int32, when token i's prediction is asked for (HSTU: the
      time of the next event).
    time: `[T]` int32 time of each token.
    dropout: share of the attention weights to drop (the others are scaled up).
    dropout_seed: uint32 scalar; needed when `dropout` is not 0. Which weights
      are dropped depends on the seed and their place, not on the backend.
    implementation: None for the best one here, or 'xla', 'reference'.

  Returns:
    `[T, H, dv]` in the dtype of `v`; zeros in the padding tokens.
  """
  if mode not in MODES:
    raise ValueError(f'mode is {mode!r}, must be one of {MODES}.')
  if q.ndim != 3 or q.shape != k.shape or q.shape[:2] != v.shape[:2]:
    raise ValueError(
      'q, k, v must be [T, H, dqk], [T, H, dqk], [T, H, dv], not '
      f'{q.shape}, {k.shape}, {v.shape}.'
    )
  if lengths.ndim != 1:
    raise ValueError(f'lengths must be [B], not {lengths.shape}.')
  if position_bias is not None:
    _check_position_bias(position_bias.shape, max_len)
  if time_bias is None:
    query_time = time = None
  elif query_time is None or time is None:
    raise ValueError('time_bias needs query_time and time.')
  elif query_time.shape != q.shape[:1] or time.shape != q.shape[:1]:
    raise ValueError(
      f'query_time and time must be [T] = {q.shape[:1]}, not '
      f'{query_time.shape} and {time.shape}.'
    )
  if not 0.0 <= dropout < 1.0:
    raise ValueError(f'dropout is {dropout}, must be in [0, 1).')
  if dropout and dropout_seed is None:
    raise ValueError('dropout needs dropout_seed.')
  # A caller may close over NumPy arrays, which loops cannot index.
  q, k, v, lengths, query_time, time = jax.tree.map(
    jnp.asarray, (q, k, v, lengths, query_time, time)
  )
  backend = dispatch.choose('hstu_attention', BACKENDS, implementation)
  return backend(
    q,
    k,
    v,
    lengths,
    position_bias,
    time_bias,
    query_time,
    time,
    dropout_seed if dropout else None,
    max_len=max_len,
    mode=mode,
    alpha=alpha,
    normaliser=float(max_len if normaliser is None else normaliser),
    dropout=float(dropout),
  )


def _check_position_bias(shape: tuple[int, ...], max_len: int) -> None:
  if len(shape) != 1 or shape[0] % 2 == 0:
    raise ValueError(f'position_bias must be [2n - 1], not {shape}.')
  if shape[0] < 2 * max_len - 1:
    raise ValueError(
      f'position_bias has {shape[0]} entries; max_len={max_len} needs at least '
      f'{2 * max_len - 1}.'
    )
