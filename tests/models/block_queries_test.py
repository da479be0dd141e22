"""A layer that asks for the last tokens alone, as behind a cache of others."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax.config.models import HSTU as Config
from genrec_jax.features import Jagged, stack_columns
from genrec_jax.models import hstu
from tests.tolerances import assert_close

SIZES = dict(dim=6, heads=2, dqk=4, dv=3, max_len=16, extra_positions=0)
PLAIN = dict(position_bias=False, time_bias=False)
LENGTHS, TARGETS, ASKING = [11, 0, 16, 3], [4, 0, 5, 1], [6, 0, 5, 3]
TOKENS, QUERIES = 34, 17  # of which 30 and 14 are real
# (config, options, whether there are candidates, or a divisor for each query)
CASES = {
  'candidates': (PLAIN, dict(contextual=2), True, False),
  'biases': ({}, {}, True, True),
  'window': ({}, dict(window=3, full_tail=2), False, False),
  'softmax': (PLAIN | dict(attention='softmax'), {}, True, False),
}
ENDS = np.cumsum(LENGTHS)
# Quick to compile rather than to run.
jit = functools.partial(
  jax.jit, compiler_options={'xla_backend_optimization_level': 0}
)
ASKED = np.concatenate(
  [np.arange(e - n, e) for e, n in zip(ENDS, ASKING, strict=True)]
)


class Case(NamedTuple):
  """A layer and what it computes.

  Attributes:
    x: `[TOKENS, D]`.
    whole: x -> the layer of all tokens.
    tail: x -> the same of `ASKED`, by their queries alone.
  """

  x: jax.Array
  whole: object
  tail: object


@functools.cache
def make(name: str) -> Case:
  config, options, has_targets, has_divisors = CASES[name]
  layer = hstu.Block(
    Config(**SIZES | config), nnx.Rngs(0), hstu.Options(**options)
  )
  graphdef, state = nnx.split(layer)
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda p: p + jnp.asarray(0.3 * rng.normal(size=p.shape), p.dtype), state
  )
  x = jnp.asarray(rng.normal(size=(TOKENS, 6)), jnp.float32)
  ages = np.zeros(TOKENS, int)
  for end, length, asked in zip(ENDS, LENGTHS, TARGETS, strict=True):
    ages[end - length : end - asked] = -np.sort(
      -rng.integers(1, 9_999, length - asked)
    )
  columns = stack_columns({'time': -ages, 'next_time': -ages}, 'int32')
  events = Jagged(jax.tree.map(jnp.asarray, columns), jnp.array(LENGTHS))
  targets = jnp.array(TARGETS) if has_targets else None
  divisors = jnp.asarray(rng.uniform(5, 9, TOKENS), jnp.float32)
  at = jnp.asarray(np.append(ASKED, [TOKENS - 1] * (QUERIES - len(ASKED))))

  def whole(x):
    layer = nnx.merge(graphdef, state)
    divisor = divisors if has_divisors else None
    return layer(x, events, None, targets, normaliser=divisor)

  def tail(x):
    layer = nnx.merge(graphdef, state)
    _, _, k, v = layer.project(x)
    # What of a cache would not be computed.
    u, q, _, _ = layer.project(x[at])
    divisor = divisors[at] if has_divisors else None
    attended = layer.attend(
      q, k, v, events, targets, divisor,
      query_lengths=jnp.array(ASKING), max_queries=7,
    )  # fmt: skip
    return layer.combine(x[at], u, attended)

  return Case(x, whole, tail)


@pytest.mark.parametrize('name', CASES)
def test_the_last_tokens_get_what_they_get_of_the_whole(name):
  x, whole, tail = make(name)
  found = jit(tail)(x)
  assert found.shape == (QUERIES, 6) and np.all(np.isfinite(found))
  assert_close(found[: len(ASKED)], jit(whole)(x)[ASKED])


def test_gradients_are_those_of_the_whole():
  x, whole, tail = make('biases')
  factor = jnp.sin(jnp.arange(len(ASKED) * 6.0)).reshape(-1, 6)

  def differentiate(run, at):
    return jit(jax.grad(lambda x: jnp.sum(run(x)[at] * factor)))(x)

  found = differentiate(tail, np.arange(len(ASKED)))
  assert_close(found, differentiate(whole, ASKED))


def test_candidates_do_not_see_each_other_or_their_order():
  x, _, tail = make('candidates')
  tail = jit(tail)
  swap = np.arange(TOKENS)
  swap[[7, 10]] = [10, 7]  # of the first sequence, which asks for 5 to 10
  before, after = (np.asarray(tail(y)) for y in (x, x[swap]))
  order = np.arange(QUERIES)
  order[[2, 5]] = [5, 2]
  np.testing.assert_array_equal(after, before[order])
  moved = np.any(np.asarray(tail(x.at[8].add(1.0))) != before, axis=1)
  assert np.flatnonzero(moved).tolist() == [3]
