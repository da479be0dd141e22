"""`hstu_attention`: attention inside each packed sequence, with HSTU's biases.

For query i and the keys j it sees, of the same sequence:

    s[i, j] = alpha * q[i] . k[j] + position_bias[p(j) - p(i) + n - 1]
                                  + time_bias[bucket(query_time[i] - time[j])]
    silu:     out[i] = sum_j silu(s[i, j]) * v[j] / normaliser
    softmax:  out[i] = sum_j softmax_j(s[i, :]) * v[j]

with n = (len(position_bias) + 1) / 2, p the position in the sequence (all
targets count as standing where the first one does) and
bucket(d) = clip(trunc(ln(max(|d|, 1)) / 0.301), 0, len(time_bias) - 1).
Both biases are shared by the heads. Gradients flow to q, k, v and both tables.

A sequence is [contextual tokens][history][targets]. What a token sees:

| token      | context | history                      | targets |
|------------|---------|------------------------------|---------|
| contextual | all     | all, later ones too          | none    |
| history    | all     | earlier ones and itself      | none    |
| target     | all     | all                          | itself  |

A window W limits that to tokens at most W away. The distance of two history
tokens is the difference of their positions; history token number u (from 0) is
u + 1 away from the context, and a target stands after the whole history.
Contextual tokens, the latest `full_tail` history tokens and, if `full_tail` is
set, the targets are exempt. With a prefix P, all later tokens also see the
first P tokens of the history, and the context, however far they are: a window
with a global prefix is semi-local attention (arXiv 2602.16986).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch, integers, manual_axes, triton_call
from pallas_kernels.hstu_attention import gpu, reference, xla
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors
from pallas_kernels.jagged import api as jagged

MODES = ('silu', 'softmax')
DTYPES = ('float32', 'bfloat16')
MAX_HEAD_DIM = 256


def attend_on_tpu(*args, **options) -> jax.Array:
  from pallas_kernels.hstu_attention import tpu  # a quarter second to load

  return tpu.attention(*args, **options)


BACKENDS = {
  'pallas_tpu': dispatch.Backend(attend_on_tpu, dispatch.needs_platform('tpu')),
  'triton': dispatch.Backend(
    gpu.attention, triton_call.why_not, platforms=('cuda', 'rocm')
  ),
  'xla': dispatch.Backend(xla.attention),
  'reference': dispatch.Backend(reference.attention, automatic=False),
  'interpret': dispatch.Backend(
    functools.partial(attend_on_tpu, interpret=True), automatic=False
  ),
}


def hstu_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  lengths: jax.Array,
  *,
  max_len: int,
  mode: str = 'silu',
  alpha: float = 1.0,
  normaliser: float | jax.Array | None = None,
  position_bias: jax.Array | None = None,
  time_bias: jax.Array | None = None,
  query_time: jax.Array | None = None,
  time: jax.Array | None = None,
  targets: jax.Array | None = None,
  contextual: int = 0,
  window: int | None = None,
  full_tail: int = 0,
  prefix: int = 0,
  max_targets: int | None = None,
  query_lengths: jax.Array | None = None,
  max_queries: int | None = None,
  dropout: float = 0.0,
  dropout_seed: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """Attends within each sequence of a packed batch.

  The formulas and what each token sees are at the top of this file. Wrong
  lengths raise an error where they are known, and make the output NaN under
  jit, where they are not: a wrong number would be worse. A number in q, k or v
  that is not finite may reach all tokens of its sequence, also those that do
  not see it, and by `xla` no other sequence; by other implementations those
  that share a block with it, on TPUs in the heads beside its own, too.

  With equal scores softmax averages what a token sees, here itself and the
  earlier tokens of a sequence of three; the fourth token is padding:

  >>> q = k = jnp.zeros((4, 1, 1))
  >>> v = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1)
  >>> lengths = jnp.array([3])
  >>> out = hstu_attention(q, k, v, lengths, max_len=3, mode='softmax')
  >>> out.ravel().tolist()
  [1.0, 1.5, 2.0, 0.0]

  Args:
    q: `[Tq, H, dqk]` queries, float32 or bfloat16; sums are float32 anyway.
    k: `[T, H, dqk]` keys.
    v: `[T, H, dv]` values.
    lengths: `[B]` int32 tokens of each sequence, none above `max_len`.
    max_len: static bound of the lengths.
    mode: 'silu' (HSTU) or 'softmax'.
    alpha: factor of the dot product.
    normaliser: divisor of the SiLU scores, which softmax does without: a number
      above 0, or `[Tq]` for one a query (no gradient flows to it); `max_len` if
      None. It is not taken from the lengths of the batch, on which one user's
      result must not depend.
    position_bias: `[2n - 1]` with n >= max_len, or None.
    time_bias: `[buckets]`, or None; needs `query_time` and `time`.
    query_time: `[Tq]` int32, when query i's prediction is asked for (HSTU: the
      time of the next event). Not looked at without `time_bias`, nor is `time`.
    time: `[T]` int32 time of each key, less than 2^31 away from that of any
      query.
    targets: `[B]` int32, how many tokens at the end of each sequence are
      candidates; None for none.
    contextual: how many tokens at the head of each non-empty sequence are
      context.
    window: how far a token sees, None for any distance.
    full_tail: latest history tokens which the window does not bind; needs
      `window`, if it is not 0.
    prefix: oldest history tokens that are seen from beyond the window; needs
      `window`, if it is not 0.
    max_targets: static bound of `targets`; `max_len` if None. With a window,
      less is read where it is known. Without `targets` it bounds nothing: a
      model may pass its own bound to all of its calls.
    query_lengths: `[B]` int32: q holds only the last so many tokens of each
      sequence (the others are cached keys). None: q has every token.
    max_queries: static bound of query_lengths, which it needs; if None,
      `max_len` or all tokens of q. Give it: fewer rows are walked over.
    dropout: share of the attention weights to drop (the others are scaled up).
    dropout_seed: uint32 scalar, such as `jax.random.bits(key)`, of each layer
      and step its own; needed when `dropout` is not 0. Which weights are
      dropped depends on the seed and on the numbers of head, query and key,
      not on the backend. Not looked at without dropout, as in evaluation.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[Tq, H, dv]` in the dtype of `v`; zeros in the padding tokens.

  Raises:
    ValueError: shapes, dtypes, options or known lengths are wrong.
    NotImplementedError: the implementation cannot run on this machine.
  """
  q, k, v, position_bias, time_bias = _to_arrays(
    q, k, v, position_bias, time_bias
  )
  lengths, targets, query_lengths = (
    x if x is None else integers.to_int32(name, x)
    for name, x in (
      ('lengths', lengths),
      ('targets', targets),
      ('query_lengths', query_lengths),
    )
  )
  _check_tensors(q, k, v, query_lengths is not None)
  _check_options(
    mode, max_len, contextual, window, full_tail, prefix, max_targets, dropout
  )
  _check_needs(window, full_tail, prefix, query_lengths, max_queries)
  batch = _check_lengths_shape(lengths, targets, query_lengths)
  if position_bias is not None:
    _check_position_bias(position_bias.shape, max_len)
  # Times without a table are dropped, so that they do not recompile.
  if time_bias is None:
    query_time = time = None
  else:
    query_time, time = _check_time_bias(
      time_bias.shape, query_time, time, q.shape, k.shape
    )
  if dropout and dropout_seed is None:
    raise ValueError('dropout needs dropout_seed.')
  if dropout:
    dropout_seed = integers.to_seed('dropout_seed', dropout_seed)
  normaliser = _check_normaliser(normaliser, q.shape[:1], max_len)
  # A vector is data; a number goes into the Spec and is compiled in.
  per_query = not isinstance(normaliser, float)
  if query_lengths is None:
    max_queries = max_len
  elif max_queries is None:
    # No sequence has more tokens than all together: less to walk over.
    max_queries = max(1, min(max_len, q.shape[0]))
  elif max_queries < 1:
    raise ValueError(f'max_queries must be at least 1, not {max_queries}.')
  spec = Spec(
    max_len=max_len,
    max_queries=min(max_queries, max_len),
    mode=mode,
    alpha=float(alpha),
    normaliser=None if per_query else normaliser,
    contextual=contextual,
    window=window,
    full_tail=full_tail,
    prefix=prefix,
    max_targets=_bound_targets(targets, max_targets, max_len),
    dropout=float(dropout),
  )
  # A caller may close over NumPy arrays, which loops cannot index.
  tensors = Tensors(
    *jax.tree.map(jnp.asarray, (q, k, v, position_bias, time_bias))
  )
  context = Context(
    *jax.tree.map(
      jnp.asarray,
      (
        lengths,
        query_lengths,
        targets,
        query_time,
        time,
        normaliser if per_query else None,
        dropout_seed if dropout else None,
      ),
    )
  )
  # Before the choice of a backend, so that all of them refuse the same calls.
  wrong = _wrong_lengths(spec, context, q.shape[0], k.shape[0])
  if per_query:
    context = context._replace(normaliser=_mask_normaliser(context))
  run = dispatch.choose('hstu_attention', BACKENDS, implementation)
  # A kernel cannot be launched on a grid of no sequences, nor read no tokens.
  if not (batch and q.shape[0] and k.shape[0]):
    out = jnp.zeros((q.shape[0], *v.shape[1:]), v.dtype)
  else:
    out = run(spec, *_vary_alike(tensors, _drop_lengths(context, wrong)))
  return jnp.where(wrong, jnp.nan, out).astype(v.dtype)


def _to_arrays(*given):
  """Lists and numbers as arrays; what is an array or None stays as it is."""
  return [
    x if x is None or hasattr(x, 'ndim') else np.asarray(x) for x in given
  ]


def _vary_alike(tensors: Tensors, context: Context):
  """Both for all axes over which one array differs; see `manual_axes`."""
  axes = manual_axes.varying_axes(*tensors, *context)
  return jax.tree.map(
    functools.partial(manual_axes.vary_over, axes), (tensors, context)
  )


def _mask_normaliser(context: Context) -> jax.Array:
  """The divisors, 1 in the padding, where a caller may have 0 or NaN.

  Raises:
    ValueError: all are known, and that of a token is not above 0.
  """
  asking = context.query_lengths
  tokens = jnp.sum(context.lengths if asking is None else asking)
  is_real = jnp.arange(context.normaliser.size) < tokens
  found = jnp.where(is_real, context.normaliser, 1.0)
  if not isinstance(found, jax.core.Tracer) and not (found > 0).all():
    raise ValueError('normaliser holds a number that is not above 0.')
  return found


def _drop_lengths(context: Context, wrong) -> Context:
  """No tokens where lengths are wrong, so that nothing walks beyond them."""
  if not isinstance(wrong, jax.core.Tracer):
    return context
  names = ('lengths', 'query_lengths', 'targets')
  given = {name: getattr(context, name) for name in names}
  return context._replace(
    **{
      name: jnp.where(wrong, 0, x) for name, x in given.items() if x is not None
    }
  )


def _check_normaliser(normaliser, queries: tuple[int], max_len: int):
  """A float, or `[Tq]` float32 where it is not known or one a query."""
  if normaliser is None:
    return float(max_len)
  if not isinstance(normaliser, jax.core.Tracer) and np.ndim(normaliser) == 0:
    if not 0 < normaliser < np.inf:
      raise ValueError(f'normaliser is {normaliser}, must be above 0.')
    return float(normaliser)
  normaliser = jnp.asarray(normaliser, jnp.float32)
  if normaliser.shape not in ((), queries):
    raise ValueError(
      f'normaliser must be a number or [Tq] = {queries}, not '
      f'{normaliser.shape}.'
    )
  return jnp.broadcast_to(normaliser, queries)


def _check_tensors(q, k, v, delta: bool) -> None:
  shapes = f'{q.shape}, {k.shape}, {v.shape}'
  if q.ndim != 3 or k.ndim != 3 or v.ndim != 3:
    raise ValueError(
      f'q, k, v must be [T, H, dqk], [T, H, dqk], [T, H, dv], not {shapes}.'
    )
  if q.shape[1:] != k.shape[1:] or k.shape[:2] != v.shape[:2]:
    raise ValueError(
      f'q, k, v must be [Tq, H, dqk], [T, H, dqk], [T, H, dv], not {shapes}.'
    )
  if not delta and q.shape[0] != k.shape[0]:
    raise ValueError(
      f'q, k, v have {q.shape[0]}, {k.shape[0]}, {v.shape[0]} tokens: give '
      'query_lengths where the queries are fewer than the keys.'
    )
  for name, x in (('q', q), ('k', k), ('v', v)):
    if x.dtype not in DTYPES or x.dtype != v.dtype:
      raise ValueError(
        f'{name} is {x.dtype}: q, k, v must all be one of {", ".join(DTYPES)}.'
      )
    if not 1 <= x.shape[2] <= MAX_HEAD_DIM:
      raise ValueError(
        f'{name} has heads of {x.shape[2]} numbers; 1 to {MAX_HEAD_DIM} work.'
      )


def _bound_targets(targets, max_targets: int | None, max_len: int) -> int:
  if targets is None:
    return 0
  return max_len if max_targets is None else min(max_targets, max_len)


def _check_options(
  mode, max_len, contextual, window, full_tail, prefix, max_targets, dropout
):
  if mode not in MODES:
    raise ValueError(f'mode is {mode!r}, must be one of {MODES}.')
  for name, value, least in (
    ('max_len', max_len, 1),
    ('contextual', contextual, 0),
    ('window', 1 if window is None else window, 1),
    ('full_tail', full_tail, 0),
    ('prefix', prefix, 0),
    ('max_targets', max_targets or 0, 0),
  ):
    if value < least:
      raise ValueError(f'{name} is {value}, must be at least {least}.')
  if not 0.0 <= dropout < 1.0:
    raise ValueError(f'dropout is {dropout}, must be in [0, 1).')


def _check_needs(window, full_tail, prefix, query_lengths, max_queries) -> None:
  """Refuses options that change nothing, for want of another one.

  Only those that a caller chooses for the call. What code for all calls passes
  along is left alone: a seed in evaluation, times or a normaliser beside a mode
  without them, a model's bound of targets.
  """
  for name, value, other, there in (
    ('full_tail', full_tail, 'window', window),
    ('prefix', prefix, 'window', window),
    ('max_queries', max_queries, 'query_lengths', query_lengths),
  ):
    if value and there is None:
      raise ValueError(
        f'{name} is {value}, and changes nothing without {other}: give '
        f'{other}, or leave {name} out.'
      )


def _check_lengths_shape(lengths, targets, query_lengths) -> int:
  """Returns the number of sequences."""
  for name, x in (
    ('lengths', lengths),
    ('targets', targets),
    ('query_lengths', query_lengths),
  ):
    if x is None:
      continue
    if x.ndim != 1 or x.shape != lengths.shape:
      raise ValueError(
        f'{name} must be [B]{"" if x is lengths else f" = {lengths.shape}"}, '
        f'not {x.shape}.'
      )
  return lengths.shape[0]


def _check_position_bias(shape: tuple[int, ...], max_len: int) -> None:
  if len(shape) != 1 or shape[0] % 2 == 0:
    raise ValueError(f'position_bias must be [2n - 1], not {shape}.')
  if shape[0] < 2 * max_len - 1:
    raise ValueError(
      f'position_bias has {shape[0]} entries; max_len={max_len} needs at least '
      f'{2 * max_len - 1}.'
    )


def _check_time_bias(shape, query_time, time, q_shape, k_shape):
  """Both times as int32."""
  if len(shape) != 1 or not shape[0]:
    raise ValueError(f'time_bias must be [buckets], not {shape}.')
  if query_time is None or time is None:
    raise ValueError('time_bias needs query_time and time.')
  # Those that are not known and do not fit stay the last or the first ones.
  query_time = integers.to_int32('query_time', query_time, clip=True)
  time = integers.to_int32('time', time, clip=True)
  if query_time.shape != q_shape[:1] or time.shape != k_shape[:1]:
    raise ValueError(
      f'query_time and time must be [Tq] = {q_shape[:1]} and [T] = '
      f'{k_shape[:1]}, not {query_time.shape} and {time.shape}.'
    )
  return query_time, time


def _wrong_lengths(spec: Spec, context: Context, queries: int, keys: int):
  """True where lengths contradict each other; raises where they are known."""
  lengths, query_lengths, targets = context[:3]
  rules = [
    (
      lengths.min(initial=0) < 0,
      'lengths holds a negative number.',
    ),
    (
      lengths.max(initial=0) > spec.max_len,
      f'lengths holds a number above max_len={spec.max_len}.',
    ),
    (
      jagged.exceed(lengths, keys),
      f'lengths add up to more than the {keys} tokens of k and v.',
    ),
  ]
  if targets is not None:
    rules += [
      (targets.min(initial=0) < 0, 'targets holds a negative number.'),
      (
        targets.max(initial=0) > spec.max_targets,
        f'targets holds a number above max_targets={spec.max_targets}.',
      ),
    ]
  if targets is not None or spec.contextual:
    least = spec.contextual + (0 if targets is None else targets)
    rules += [
      (
        jnp.any((lengths > 0) & (lengths < least)),
        'lengths holds a sequence shorter than its contextual tokens and '
        'targets together.',
      )
    ]
  if query_lengths is not None:
    rules += [
      (
        jnp.any((query_lengths < 0) | (query_lengths > lengths)),
        'query_lengths must lie between 0 and lengths.',
      ),
      (
        jagged.exceed(query_lengths, queries),
        f'query_lengths add up to more than the {queries} tokens of q.',
      ),
      (
        query_lengths.max(initial=0) > spec.max_queries,
        f'query_lengths holds a number above max_queries={spec.max_queries}.',
      ),
    ]
  wrong = jnp.bool_(False)
  for broken, message in rules:
    # A value is known unless it is traced; then it can only mark the output.
    if not isinstance(broken, jax.core.Tracer) and broken:
      raise ValueError(message)
    wrong |= broken
  return wrong
