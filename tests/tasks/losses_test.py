"""Losses of logits, and the walk over chunks, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.tasks import losses
from tests.tolerances import assert_close

TOKENS, NEGATIVES, WIDTH, ROWS = 24, 5, 4, 11
BETA = 0.3


def softplus(x):
  return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0.0)


def sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


def softmax_of(positive, negative, hit):
  """Loss and its gradients for one token, in plain float64."""
  kept = np.exp(np.where(hit, -np.inf, negative))
  total = np.exp(positive) + kept.sum()
  share = np.exp(positive) / total
  return -np.log(share), share - 1.0, kept / total


def bce_of(positive, negative, hit):
  if hit.all():
    return 0.0, 0.0, np.zeros_like(negative)
  wrong = softplus(negative)[~hit].mean()
  slope = np.where(hit, 0.0, sigmoid(negative)) / (~hit).sum()
  return (
    0.5 * (softplus(-positive) + wrong),
    -0.5 * sigmoid(-positive),
    0.5 * slope,
  )


def gbce_of(positive, negative, hit):
  del hit  # collisions count, as published
  places = len(negative) + 1
  loss = BETA * softplus(-positive) + softplus(negative).sum()
  return (
    loss / places,
    -BETA * sigmoid(-positive) / places,
    sigmoid(negative) / places,
  )


def gbce(positive, negative, hit):
  return losses.generalised_bce(positive, negative, hit, beta=BETA)


LOSSES = {
  'sampled_softmax': (losses.sampled_softmax, softmax_of),
  'bce': (losses.binary_cross_entropy, bce_of),
  'gbce': (gbce, gbce_of),
}


@pytest.fixture
def logits():
  rng = np.random.default_rng(0)
  positive = 4 * rng.standard_normal(TOKENS)
  negative = 4 * rng.standard_normal((TOKENS, NEGATIVES))
  hit = rng.random((TOKENS, NEGATIVES)) < 0.3
  hit[0] = True  # every negative is the positive
  hit[1] = False
  return positive, negative, hit


@pytest.mark.parametrize('name', LOSSES)
def test_value_and_gradients(logits, name):
  fn, oracle = LOSSES[name]
  positive, negative, hit = logits
  expected = [
    np.stack(parts)
    for parts in zip(*map(oracle, positive, negative, hit), strict=True)
  ]
  arguments = jnp.float32(positive), jnp.float32(negative)
  loss = fn(*arguments, hit)
  grads = jax.grad(lambda p, n: fn(p, n, hit).sum(), argnums=(0, 1))(*arguments)
  for found, wanted in zip((loss, *grads), expected, strict=True):
    assert_close(found, wanted)


@pytest.mark.parametrize('name', LOSSES)
def test_large_logits_stay_finite(name):
  fn, _ = LOSSES[name]
  positive = jnp.float32([-3e4, 3e4])
  negative = jnp.float32([[3e4, -3e4], [3e4, -3e4]])
  hit = jnp.zeros((2, 2), bool)
  value, grads = jax.value_and_grad(
    lambda p, n: fn(p, n, hit).sum(), argnums=(0, 1)
  )(positive, negative)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)


def test_full_softmax():
  rng = np.random.default_rng(1)
  logits = 3 * rng.standard_normal((TOKENS, ROWS))
  index = rng.integers(0, ROWS, TOKENS)
  share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  at = np.arange(TOKENS), index
  assert_close(
    losses.full_softmax(jnp.float32(logits), jnp.int32(index)),
    -np.log(share[at]),
  )
  slope = share.copy()
  slope[at] -= 1.0
  assert_close(
    jax.grad(lambda x: losses.full_softmax(x, jnp.int32(index)).sum())(
      jnp.float32(logits)
    ),
    slope,
  )


@pytest.mark.parametrize('negatives, items', [(256, 3417), (1, 100), (16, 17)])
def test_beta_of_gbce(negatives, items):
  """Equation 11 of the paper at both ends, and in the middle."""
  alpha = negatives / (items - 1)
  assert losses.gbce_beta(negatives, items, 0.0) == pytest.approx(1.0)
  assert losses.gbce_beta(negatives, items, 1.0) == pytest.approx(alpha)
  middle = losses.gbce_beta(negatives, items, 0.5)
  assert middle == pytest.approx((1.0 + alpha) / 2)


def test_gbce_with_beta_one_is_the_mean_of_binary_losses(logits):
  positive, negative, _ = logits
  none = np.zeros(negative.shape, bool)
  every = np.concatenate([softplus(-positive)[:, None], softplus(negative)], 1)
  found = losses.generalised_bce(
    jnp.float32(positive), jnp.float32(negative), none, beta=1.0
  )
  assert_close(found, every.mean(1))


# --- The walk over chunks


def weighted(vectors, tokens, extra):
  """Some function of both, with a weight for each token."""
  if vectors.ndim == 2:
    scores = tokens @ vectors.T
  else:
    scores = jnp.einsum('td,trd->tr', tokens, vectors)
  return jnp.sum(jax.nn.logsumexp(scores, axis=-1) * extra['weight'])


def walk(chunk, shared):
  rng = np.random.default_rng(2)
  table = jnp.float32(rng.standard_normal((ROWS, WIDTH)))
  tokens = jnp.float32(rng.standard_normal((TOKENS, WIDTH)))
  # Rows repeat within a chunk and across chunks.
  ids = None if shared else rng.integers(0, ROWS, (TOKENS, NEGATIVES))
  extra = {'weight': jnp.float32(rng.integers(0, 2, TOKENS))}

  def total(table, tokens):
    if chunk is None:
      return weighted(table if shared else table[ids], tokens, extra)
    return losses.sum_over_chunks(weighted, chunk, table, ids, tokens, extra)

  value = jax.jit(total)(table, tokens)
  # A factor behind the sum must reach the gradients.
  with_grads = jax.jit(
    jax.value_and_grad(lambda *x: 3.0 * total(*x), argnums=(0, 1))
  )(table, tokens)
  return value, *with_grads


@pytest.mark.parametrize('shared', [False, True])
@pytest.mark.parametrize('chunk', [1, 8, TOKENS])
def test_chunks_change_nothing(chunk, shared):
  value, again, grads = walk(chunk, shared)
  expected, _, expected_grads = walk(None, shared)
  assert_close(value, expected)
  assert_close(again, 3.0 * expected)
  for found, wanted in zip(grads, expected_grads, strict=True):
    assert_close(found, wanted)


def test_a_chunk_is_a_power_of_two_and_fits_the_cache():
  for vectors, dim in ((129, 50), (257, 128), (2, 16), (4097, 512)):
    chunk = losses.chunk_for(vectors, dim)
    assert chunk >= 8 and chunk & (chunk - 1) == 0
    size = 4 * chunk * vectors * dim
    assert chunk == 8 or size <= losses.CHUNK_BYTES['cpu'] < 2 * size
