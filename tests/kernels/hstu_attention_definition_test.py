"""The reference against its definition: loops over scalars in NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import hashing
from pallas_kernels.hstu_attention import masks, reference, shapes
from pallas_kernels.hstu_attention.spec import Context, Spec
from tests.kernels import attention_cases as cases
from tests.tolerances import assert_close

SIZES = [5, 0, 12, 1]
SEED, RATE, ALPHA = 3, 0.4, 0.7
LONGEST = 18


def bucket(seconds, buckets):
  return min(int(math.log(max(abs(seconds), 1)) / 0.301), buckets - 1)


def kept(head, query, key):
  one = np.array
  return bool(
    hashing.keep_mask(one(SEED), one(head), one(query), one(key), RATE)
  )


def sees(
  i, j, length, targets=0, contextual=0, window=None, full_tail=0, prefix=0
):
  """The table of `api`, in words: does token i of a sequence see token j?"""
  history = length - targets - contextual
  kind = [
    'context' if x < contextual else 'target' if x >= length - targets else ''
    for x in (i, j)
  ]
  if i == j:
    return True
  if kind[1] == 'target':
    return False
  if kind[0] == 'context':
    return True
  if not kind[0] and not kind[1] and j > i:
    return False
  if window is None:
    return True
  # How far back j lies, counted in history tokens; a target stands behind them.
  mine = history if kind[0] == 'target' else i - contextual
  if full_tail and mine >= history - full_tail:
    return True
  if prefix and j < contextual + prefix:
    return True
  return mine - (-1 if kind[1] == 'context' else j - contextual) <= window


def attention(a, mode, dropout):
  """The formulas of `api`, one weight at a time."""
  q, k, v = (np.asarray(a[n], np.float64) for n in ('q', 'k', 'v'))
  n = (len(a['position_bias']) + 1) // 2
  rules = {
    x: a[x] for x in ('contextual', 'window', 'full_tail', 'prefix') if x in a
  }
  lengths = a['lengths']
  asking = a.get('query_lengths', lengths)
  targets = a.get('targets', np.zeros_like(lengths))
  out = np.zeros((len(q), *v.shape[1:]))
  start = row = 0
  for size, queries, candidates in zip(lengths, asking, targets, strict=True):
    high = size - candidates
    for i, head in itertools.product(
      range(size - queries, size), range(v.shape[1])
    ):
      me = row + i - (size - queries)
      seen, scores = [], []
      for j in range(size):
        if not sees(i, j, size, targets=candidates, **rules):
          continue
        seconds = int(a['query_time'][me]) - int(a['time'][start + j])
        s = ALPHA * q[me, head] @ k[start + j, head]
        s += float(a['position_bias'][min(j, high) - min(i, high) + n - 1])
        s += float(a['time_bias'][bucket(seconds, len(a['time_bias']))])
        scores.append(s)
        seen.append(j)
      scores = np.array(scores)
      if mode == 'silu':
        divisor = np.broadcast_to(a['normaliser'], len(q))[me]
        weights = scores / (1 + np.exp(-scores)) / divisor
      else:
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
      for j, weight in zip(seen, weights, strict=True):
        if dropout:
          weight *= kept(head, start + i, start + j) / (1 - RATE)
        out[me, head] += weight * v[start + j, head]
    start += size
    row += queries
  return out


def check(arguments, mode, dropout):
  options = dict(mode=mode, alpha=ALPHA)
  if dropout:
    options |= dict(dropout=RATE, dropout_seed=np.uint32(SEED))
  out = cases.results(arguments, 'reference', **options)['out']
  plain = {
    n: np.asarray(value) if hasattr(value, 'shape') else value
    for n, value in arguments.items()
  }
  assert_close(out, attention(plain, mode, dropout))


@pytest.mark.parametrize('dropout', [False, True])
@pytest.mark.parametrize('mode', cases.MODES)
def test_reference_is_the_definition(mode, dropout):
  shape = shapes.SHAPES['tiny']
  check(shapes.inputs(shape, sizes=SIZES, capacity=24), mode, dropout)


@pytest.mark.parametrize('names', cases.COMBINED, ids='+'.join)
def test_reference_is_the_definition_under_masks(names):
  arguments = cases.masked(*names)
  arguments['normaliser'] = jnp.linspace(3.0, 9.0, arguments['q'].shape[0])
  check(arguments, 'softmax' if len(names) > 2 else 'silu', len(names) > 2)


def test_the_closed_form_is_the_table_in_words():
  rng = np.random.default_rng(0)
  seen = 0
  for _ in range(60):
    contextual, candidates, tail, prefix = (
      int(x) for x in rng.integers(0, 4, 4)
    )
    window = [None, 1, 3, 30][rng.integers(4)]
    length = contextual + candidates + int(rng.integers(0, 12))
    spec = Spec(
      max_len=32,
      max_queries=32,
      mode='silu',
      alpha=1.0,
      normaliser=1.0,
      contextual=contextual,
      window=window,
      full_tail=tail if window else 0,
      dropout=0.0,
      prefix=prefix if window else 0,
    )
    end = masks.target_limit(length, candidates, contextual)
    place = jnp.arange(LONGEST)  # one shape: one compilation
    orders = masks.order(place, end, contextual)
    actual = masks.is_visible(
      spec,
      place[:, None] == place[None],
      orders[:, None],
      orders[None],
      end,
    )
    expected = [
      [
        sees(
          i,
          j,
          length,
          candidates,
          contextual,
          window,
          spec.full_tail,
          spec.prefix,
        )
        for j in range(length)
      ]
      for i in range(length)
    ]
    np.testing.assert_array_equal(
      actual[:length, :length],
      np.reshape(expected, (length, length)).astype(bool),
      str(spec),
    )
    seen += length**2
  assert seen > 5000


@pytest.mark.parametrize('x64', [False, True])
def test_places_of_tokens_and_of_padding(x64):
  spec = Spec(8, 8, 'silu', 1.0, 1.0, 2, None, 0, 0.0)  # two of context
  ints = lambda *x: jnp.array(x, jnp.int32)  # noqa: E731
  context = Context(
    ints(4, 0, 6), ints(1, 0, 3), ints(1, 0, 2), None, None, None, None
  )
  with jax.enable_x64(x64):
    keys = masks.key_places(spec, context, 12)
    queries = masks.query_places(spec, context, 6)
  # Padding is last: of sequence 3, which there is not, and zero otherwise.
  expected = {
    'segment': ([0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 3, 3], [0, 2, 2, 2, 3, 3]),
    'position': ([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 0], [3, 3, 4, 5, 0, 0]),
    'order': ([0, 0, 1, 2, 0, 0, 1, 2, 3, 3, 0, 0], [2, 2, 3, 3, 0, 0]),
    'limit': ([2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 0, 0], [2, 3, 3, 3, 0, 0]),
    'anchor': ([0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 0, 0], [3, 3, 4, 4, 0, 0]),
    # Dropout hashes it: that of all tokens, and in padding the own number.
    'token': (list(range(12)), [3, 7, 8, 9, 4, 5]),
  }
  for name, (of_keys, of_queries) in expected.items():
    for places, wanted in ((keys, of_keys), (queries, of_queries)):
      found = getattr(places, name)
      assert found.tolist() == wanted, name
      assert found.dtype == jnp.int32, name


@pytest.mark.parametrize(
  'seconds, expected',
  [
    (0, 0),
    (1, 0),
    (-1, 0),
    (2, 2),  # ln 2 / 0.301 = 2.30
    (-2, 2),
    (60, 13),
    (86_400, 37),
    (30 * 365 * 86_400, 68),  # the published remark: 30 years
    (2**31 - 1, 71),
  ],
)
def test_time_buckets(seconds, expected):
  assert int(reference.time_bucket(np.int32(seconds), 129)) == expected
  assert int(reference.time_bucket(np.int32(seconds), 10)) == min(expected, 9)
