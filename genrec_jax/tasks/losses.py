"""Losses of next-item prediction, computed in chunks of tokens.

`sum_over_chunks` processes the tokens in chunks, so only one chunk of item
vectors and logits exists at a time. It computes the gradients in the same pass,
so the backward pass repeats nothing.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from genrec_jax.embedding import lookup

# What the gathered vectors of one chunk may take. On a CPU they, and their
# gradients, should stay in the cache. Elsewhere, fewer chunks are better.
CHUNK_BYTES = {'cpu': 5 << 20}
CHUNK_BYTES_ELSEWHERE = 256 << 20
MOST_SCORES = 1 << 24  # of tokens at a time, where scores alone are kept
MASKED = -5e4  # the published logit of a negative that is the positive


def chunk_for(vectors: int, dim: int) -> int:
  """Tokens at a time where each needs so many vectors: a power of two."""
  most = CHUNK_BYTES.get(jax.default_backend(), CHUNK_BYTES_ELSEWHERE)
  tokens = max(8, most // (4 * vectors * dim))
  return 1 << (tokens.bit_length() - 1)


def cut_scores(tokens: int, each: int) -> int:
  """Tokens at a time where each has so many scores and no vectors.

  >>> cut_scores(tokens=3_000, each=129), cut_scores(tokens=3 << 18, each=129)
  (3000, 65536)
  """
  if tokens * each <= MOST_SCORES:
    return tokens
  most = max(1, MOST_SCORES // each)
  return math.gcd(tokens, 1 << (most.bit_length() - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_over_chunks(fn, chunk: int, table, index, tokens, extra) -> jax.Array:
  """Sums `fn(vectors, tokens_chunk, extra_chunk)` over chunks of tokens.

  Gathering the vectors of 128 negatives a token, chunk by chunk, costs less
  than half of one matmul with a whole table of 3,884 rows, forward and backward
  (benchmarks/train_step.py), and does not grow with the table.

  Args:
    fn: returns a float32 scalar, differentiable in vectors and tokens.
    chunk: tokens at a time; must divide their number.
    table: `[V, D]`.
    index: `[T, R]` rows of the table, so that vectors are `[chunk, R, D]`, NaN
      for what is not a row; or None, and vectors are the table itself.
    tokens: pytree of `[T, ...]` arrays.
    extra: pytree of `[T, ...]` arrays without gradient.
  """
  return _walk_chunks(fn, chunk, table, index, tokens, extra, with_grads=False)[
    0
  ]


def _walk_chunks(fn, chunk, table, index, tokens, extra, with_grads=True):
  def split_chunks(x):
    return x.reshape(x.shape[0] // chunk, chunk, *x.shape[1:])

  def add_chunk(carry, xs):
    total, table_grad = carry
    index, tokens, extra = xs
    vectors = table if index is None else lookup.take_rows(table, index)
    if not with_grads:
      return (total + fn(vectors, tokens, extra), table_grad), None
    gradient = jax.value_and_grad(fn, argnums=(0, 1))
    value, (grad, token_grad) = gradient(vectors, tokens, extra)
    if index is None:
      table_grad += grad
    else:
      table_grad = table_grad.at[index].add(
        grad, mode='drop', wrap_negative_indices=False
      )
    return (total + value, table_grad), token_grad

  start = jnp.float32(0), jnp.zeros_like(table) if with_grads else None
  (total, table_grad), token_grads = lax.scan(
    add_chunk, start, jax.tree.map(split_chunks, (index, tokens, extra))
  )
  if not with_grads:
    return total, None
  token_grads = jax.tree.map(
    lambda grad, x: grad.reshape(x.shape), token_grads, tokens
  )
  return total, (table_grad, token_grads)


def _scale_grads(fn, chunk, grads, cotangent):
  table_grad, token_grads = grads
  token_grads = jax.tree.map(lambda grad: grad * cotangent, token_grads)
  return table_grad * cotangent, None, token_grads, None


sum_over_chunks.defvjp(_walk_chunks, _scale_grads)


def pick_logits(logits: jax.Array, index: jax.Array) -> jax.Array:
  """`logits[t, index[t, r]]`, `[T, R]`."""
  return jnp.take_along_axis(logits, index, axis=-1)


def sampled_softmax(
  positive: jax.Array, negative: jax.Array, hit: jax.Array
) -> jax.Array:
  """-log softmax of the positive among itself and the negatives, `[T]`.

  Args:
    positive: `[T]` logit of the positive.
    negative: `[T, R]` logits of the negatives.
    hit: `[T, R]` where a negative is the positive itself: masked.
  """
  negative = jnp.where(hit, MASKED, negative)
  every = jnp.concatenate([positive[:, None], negative], axis=-1)
  return jax.nn.logsumexp(every, axis=-1) - positive


def binary_cross_entropy(positive, negative, hit) -> jax.Array:
  """Mean of the positive's and the negatives' binary losses, `[T]`.

  With one negative: 0.5 * (BCE+ + BCE-), and nothing where it is the positive.
  """
  count = jnp.sum(~hit, axis=-1)
  wrong = jnp.sum(jnp.where(hit, 0.0, jax.nn.softplus(negative)), axis=-1)
  wrong = wrong / jnp.maximum(count, 1).astype(wrong.dtype)
  loss = 0.5 * (jax.nn.softplus(-positive) + wrong)
  return jnp.where(count > 0, loss, 0.0)


def gbce_beta(negatives: int, items: int, t: float) -> float:
  """gSASRec's exponent (arXiv 2308.07192, eq. 11): 1 at t=0, alpha at t=1."""
  alpha = negatives / (items - 1)
  return alpha * (t * (1.0 - 1.0 / alpha) + 1.0 / alpha)


def generalised_bce(positive, negative, hit, *, beta: float) -> jax.Array:
  """gBCE: -(beta log s(positive) + sum log s(-negative)) / (R + 1), `[T]`.

  Collisions count as negatives, as published.
  """
  del hit
  wrong = jnp.sum(jax.nn.softplus(negative), axis=-1)
  total = beta * jax.nn.softplus(-positive) + wrong
  return total / (negative.shape[-1] + 1)


def full_softmax(logits: jax.Array, index: jax.Array) -> jax.Array:
  """-log softmax over the whole catalogue, `[T]`; index `[T]` of `[T, C]`."""
  return (
    jax.nn.logsumexp(logits, axis=-1)
    - pick_logits(logits, index[:, None])[:, 0]
  )


def logistic_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Binary cross entropy of each element, stable for any logit."""
  return jax.nn.softplus(logits) - labels * logits
