"""The reference against its definition: loops over scalars in NumPy."""

import math

import numpy as np
import pytest

from pallas_kernels.hstu_attention import reference, shapes
from tests.kernels import attention_cases as cases
from tests.tolerances import assert_close

SIZES = [5, 0, 12, 1]
SEED, RATE, ALPHA = 3, 0.4, 0.7


def bucket(seconds, buckets):
  return min(int(math.log(max(abs(seconds), 1)) / 0.301), buckets - 1)


def kept(head, query, key):
  one = np.array
  return bool(
    reference.keep_mask(one(SEED), one(head), one(query), one(key), RATE)
  )


def attention(a, mode, dropout):
  """The formulas of `api`, one weight at a time."""
  q, k, v = (np.asarray(a[n], np.float64) for n in ('q', 'k', 'v'))
  n = (len(a['position_bias']) + 1) // 2
  out = np.zeros(v.shape)
  start = 0
  for size in SIZES:
    for i in range(start, start + size):
      for head in range(v.shape[1]):
        scores = []
        for j in range(start, i + 1):
          seconds = int(a['query_time'][i]) - int(a['time'][j])
          s = ALPHA * q[i, head] @ k[j, head]
          s += float(a['position_bias'][j - i + n - 1])
          s += float(a['time_bias'][bucket(seconds, len(a['time_bias']))])
          scores.append(s)
        scores = np.array(scores)
        if mode == 'silu':
          weights = scores / (1 + np.exp(-scores)) / a['normaliser']
        else:
          weights = np.exp(scores - scores.max())
          weights /= weights.sum()
        for j, weight in zip(range(start, i + 1), weights, strict=True):
          if dropout:
            weight *= kept(head, i, j) / (1 - RATE)
          out[i, head] += weight * v[j, head]
    start += size
  return out


@pytest.mark.parametrize('dropout', [False, True])
@pytest.mark.parametrize('mode', cases.MODES)
def test_reference_is_the_definition(mode, dropout):
  arguments = shapes.inputs(shapes.SHAPES['tiny'], sizes=SIZES, capacity=24)
  options = dict(mode=mode, alpha=ALPHA)
  if dropout:
    options |= dict(dropout=RATE, dropout_seed=np.uint32(SEED))
  out = cases.results(arguments, 'reference', **options)['out']
  plain = {n: np.asarray(value) for n, value in arguments.items()}
  assert_close(out, attention(plain, mode, dropout))


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
