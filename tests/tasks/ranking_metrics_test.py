"""Metrics of a ranking model against scikit-learn, on adversarial inputs."""

import decimal
import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.tasks import ranking_metrics as rm
from genrec_jax.tasks.ranking_metrics import auc as auc_lib

sklearn_metrics = pytest.importorskip(
  'sklearn.metrics', reason='scikit-learn is the oracle: pip install .[dev]'
)

TINY32 = float(np.finfo(np.float32).smallest_subnormal)
MAX32 = float(np.finfo(np.float32).max)


def close(actual, expected):
  """Equal but for the last digits of float64."""
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def random_case(seed, dtype=np.float64, ties=0.0, n=400):
  rng = np.random.default_rng(seed)
  logits = rng.normal(-1, 2, n).astype(dtype)
  logits = np.where(rng.random(n) < ties, np.round(logits), logits)
  labels = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
  weights = rng.integers(0, 4, n).astype(np.float64)
  return logits, labels, weights, rng.integers(-1, 25, n).astype(np.int32)


# What trips implementations: name -> (logits, labels).
HARD = {
  'all tie': ([0.3] * 6, [1, 0, 0, 1, 0, 1]),
  'two zeros': ([-0.0, 0.0, -0.0, 0.0], [1, 0, 0, 1]),
  'zeros and denormals': (
    [-TINY32, -0.0, 0.0, TINY32, 2 * TINY32],
    [0, 1, 0, 1, 0],
  ),
  'float64 denormals': ([5e-324, 0.0, 1e-323, -5e-324], [1, 0, 0, 1]),
  # All of these are 1 or 0 after the sigmoid of float32, most of float64 too.
  'saturated': (
    [18.0, 19.0, 40.0, 41.0, 1000.0, -110.0, -120.0, -1000.0],
    [0, 1, 0, 1, 1, 0, 1, 0],
  ),
  'one ulp apart': (
    [17.0, float(np.nextafter(np.float32(17), np.float32(18)))],
    [0, 1],
  ),
  'largest': ([MAX32, -MAX32, MAX32, 0.0], [1, 0, 0, 1]),
  'float64 largest': ([1e308, -1e308, 1e308, 0.0], [1, 0, 0, 1]),
  'reversed': ([3.0, 2.0, 1.0, 0.0], [0, 0, 1, 1]),
  'perfect': ([0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1]),
  'one of each': ([0.5, 0.25], [0, 1]),
}


@pytest.mark.parametrize('case', HARD)
@pytest.mark.parametrize('weighted', [False, True])
def test_auc_of_hard_cases(case, weighted):
  logits, labels = (np.array(x) for x in HARD[case])
  weights = None
  if weighted:
    weights = np.random.default_rng(0).uniform(0.1, 3, len(labels))
  expected = sklearn_metrics.roc_auc_score(
    labels, logits, sample_weight=weights
  )
  found = rm.ExactAuc().update(logits, labels, weights)
  close(found.result(), expected)
  if case != 'float64 denormals':  # bins tell apart what float32 does
    binned = rm.BinnedAuc().update(logits, labels, weights)
    assert abs(binned.result() - expected) <= binned.error() + 1e-15


def test_scores_that_tie_as_probabilities_rank_as_logits():
  logits = np.array([20.0, 30.0], np.float32)
  p = 1 / (1 + np.exp(-logits))
  assert p[0] == p[1]
  assert rm.ExactAuc().update(logits, [0, 1]).result() == 1.0
  assert rm.BinnedAuc().update(logits, [0, 1]).result() == 1.0


@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64])
@pytest.mark.parametrize('ties', [0.0, 0.5, 1.0])
def test_against_scikit_learn(dtype, ties):
  logits, labels, weights, _ = random_case(1, dtype, ties)
  for w in (None, weights, weights / 7):
    found = rm.LabelMetrics().update(logits, labels, w).result()
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    close(
      found['auc'],
      sklearn_metrics.roc_auc_score(labels, logits, sample_weight=w),
    )
    loss = sklearn_metrics.log_loss(labels, p, sample_weight=w)
    close(found['logloss'], loss)
    rate = np.average(labels.astype(np.float64), weights=w)
    base = sklearn_metrics.log_loss(
      labels, np.full(len(labels), rate), sample_weight=w
    )
    close(found['ne'], loss / base)
    close(found['calibration'], np.average(p, weights=w) / rate)


@pytest.mark.parametrize('ties', [0.0, 1.0])
@pytest.mark.parametrize('fraction', [1, 7])
def test_gauc_against_scikit_learn(ties, fraction):
  logits, labels, weights, group = random_case(2, np.float32, ties)
  labels[group == 3] = 1  # no pair in these, nor in the group of one example
  labels[group == 4] = 0
  group[7], labels[7] = 1000, 1
  weights[group == 5] = 0
  weights = weights / fraction
  total = count = 0.0
  for u in np.unique(group[group >= 0]):
    of = (group == u) & (weights > 0)
    if len(np.unique(labels[of])) == 2:
      auc = sklearn_metrics.roc_auc_score(
        labels[of], logits[of], sample_weight=weights[of]
      )
      total += auc * weights[of].sum()
      count += weights[of].sum()
  found = rm.GroupedAuc().update(logits, labels, weights, group)
  close(found.result(), total / count)
  close(found.sums(), (total, count))


def exact_log_loss(logit, label):
  with decimal.localcontext(prec=60):
    x = decimal.Decimal(float(logit))
    x = -x if label else x
    if abs(x) > 100:  # 60 digits do not see the 1, or nothing but it
      return float(x) if x > 0 else float(x.exp())
    return float((1 + x.exp()).ln())


@pytest.mark.parametrize(
  'logit',
  [0.0, -0.0, TINY32, 1e-9, 0.7, -3.0, 17.5, -40.0, 88.8, -104.0, 700.0, 744.9,
   -745.2, 800.0, -1e30, MAX32, 1e308],
)  # fmt: skip
@pytest.mark.parametrize('label', [0, 1])
def test_log_loss_of_one_example(logit, label):
  found = rm.WeightedMeans().update([logit], [label]).result()
  np.testing.assert_allclose(
    found['logloss'], exact_log_loss(logit, label), rtol=1e-14, atol=5e-324
  )
  assert math.isnan(found['ne'])  # one label has no entropy
  assert math.isnan(found['calibration']) == (label == 0)


def test_a_loss_beyond_float64_is_infinite():
  found = rm.WeightedMeans().update([1.7e308, 1.7e308], [0, 0]).result()
  assert found['logloss'] == math.inf


def test_what_is_undefined_is_nan():
  one = rm.LabelMetrics(grouped=rm.GroupedAuc()).update(
    [1.0, 2.0], [1, 1], None, [0, 0]
  )
  found = one.result()
  assert math.isnan(found['auc']) and math.isnan(found['gauc'])
  assert math.isnan(found['ne']) and found['logloss'] > 0
  assert found['calibration'] > 0
  assert math.isnan(rm.BinnedAuc().update([1.0], [1]).result())
  assert math.isnan(rm.BinnedAuc().error())
  empty = np.zeros(0)
  for nothing in (
    rm.LabelMetrics(grouped=rm.GroupedAuc()),
    rm.LabelMetrics(grouped=rm.GroupedAuc()).update(empty, empty, None, empty),
    rm.LabelMetrics(rm.BinnedAuc(), grouped=rm.GroupedAuc()),
  ):
    assert set(nothing.result()) == set(rm.NAMES)
    assert all(math.isnan(v) for v in nothing.result().values())
  # Scores of no group have no gAUC, but an AUC.
  lost = rm.LabelMetrics(grouped=rm.GroupedAuc()).update(
    [1, 2], [0, 1], None, [-1, -1]
  )
  assert lost.result()['auc'] == 1 and math.isnan(lost.result()['gauc'])


def test_padding_may_hold_anything():
  logits, labels = np.array([1.0, np.nan, 0.0, np.inf]), [1, 9, 0, np.nan]
  found = rm.LabelMetrics(grouped=rm.GroupedAuc()).update(
    logits, labels, [1, 0, 1, 0], [0, -1, 0, -1]
  )
  expected = rm.LabelMetrics(grouped=rm.GroupedAuc()).update(
    [1.0, 0.0], [1, 0], None, [0, 0]
  )
  assert found.result() == expected.result()


def test_bad_input():
  for bad in (np.nan, np.inf, -np.inf):
    with pytest.raises(FloatingPointError, match='NaN or infinite'):
      rm.LabelMetrics().update([0.0, bad], [0, 1])
  for bad in (2, -1, np.nan):
    with pytest.raises(ValueError, match='label of an example must be 0 or 1'):
      rm.ExactAuc().update([0.0, 1.0], [0, bad])
  for bad in (-1, np.nan, np.inf):
    with pytest.raises(ValueError, match='weight of an example must be fini'):
      rm.WeightedMeans().update([0.0, 1.0], [0, 1], [1, bad])
  with pytest.raises(ValueError, match=r'are \(2,\), \(1,\), \(2,\)'):
    rm.BinnedAuc().update([0.0, 1.0], [0])
  with pytest.raises(ValueError, match='needs the group'):
    rm.GroupedAuc().update([0.0], [0])
  with pytest.raises(ValueError, match=r'group must be \(1,\)'):
    rm.GroupedAuc().update([0.0], [0], None, [1, 2])
  with pytest.raises(ValueError, match='2 labels'):
    rm.measure_labels(np.zeros((3, 1)), np.zeros((3, 1)), names=('a', 'b'))


FRESH = {
  'exact': rm.ExactAuc(),
  'binned': rm.BinnedAuc(),
  'grouped': rm.GroupedAuc(),
  'means': rm.WeightedMeans(),
}


def cut(case, edges):
  edges = [0, *edges, len(case[0])]
  return [
    [x[a:b] for x in case] for a, b in itertools.pairwise(edges)
  ]  # fmt: skip


@pytest.mark.parametrize('name', FRESH)
def test_parts_merge_to_the_whole(name):
  fresh = FRESH[name]
  # Halves add without rounding, so that nothing may differ.
  case = random_case(3, np.float32, 0.3)
  case = (case[0], case[1], case[2] / 2, case[3])
  whole = fresh.update(*case).result()
  parts = cut(case, [0, 1, 17, 17, 180, 200, 391])
  streamed = functools.reduce(lambda a, p: a.update(*p), parts, fresh)
  alone = [fresh.update(*p) for p in parts]
  for found in (
    streamed,
    functools.reduce(lambda a, b: a.merge(b), alone),
    functools.reduce(lambda a, b: b.merge(a), alone[::-1]),
    alone[0]
    .merge(alone[1].merge(alone[2]))
    .merge(functools.reduce(lambda a, b: a.merge(b), alone[3:], fresh)),
  ):
    if name == 'means':
      close(list(found.result().values()), list(whole.values()))
    else:
      assert found.result() == whole
  # None of these changed what it was made of.
  for part, found in zip(parts, alone, strict=True):
    np.testing.assert_equal(found.result(), fresh.update(*part).result())


def test_many_small_updates_stay_compact():
  case = random_case(4, n=3000)
  found = rm.ExactAuc()
  for part in cut(case, range(5, 3000, 5)):
    found = found.update(*part)
  assert len(found.runs) <= math.log2(3000)
  assert found.result() == rm.ExactAuc().update(*case).result()
  same = rm.ExactAuc()
  for _ in range(20):  # the same scores again take no more room
    same = same.update(*case)
  assert sum(len(r.logit) for r in same.runs) <= 2 * len(case[0])


scores = st.one_of(
  st.floats(-40, 40, width=32),
  st.floats(allow_nan=False, allow_infinity=False, width=32),
  st.sampled_from([0.0, -0.0, 1.0, TINY32, -TINY32, 17.0, 18.0]),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(scores, st.booleans()), min_size=2, max_size=30))
def test_auc_of_any_scores(rows):
  logits = np.array([r[0] for r in rows], np.float32)
  labels = np.array([r[1] for r in rows])
  positive, negative = logits[labels], logits[~labels]
  pairs = list(itertools.product(positive, negative))
  exact = rm.ExactAuc().update(logits, labels).result()
  binned = rm.BinnedAuc().update(logits, labels)
  if not pairs:
    assert math.isnan(exact) and math.isnan(binned.result())
    return
  expected = sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)
  close(exact, expected)
  assert abs(binned.result() - expected) <= binned.error() + 1e-15


def test_places_are_in_order_and_as_many_as_logits():
  rng = np.random.default_rng(0)
  x = np.concatenate(
    [rng.normal(0, s, 2000) for s in (1e-30, 1e-8, 1e-3, 1, 10, 1e4, 1e37)]
    + [[0, TINY32, -TINY32, 2**-24, -(2**-24), 65_536, 3.4e38, -3.4e38]]
  ).astype(np.float32)
  x = np.unique(np.concatenate([x, np.nextafter(x, np.float32(0))]))
  assert np.all(np.diff(auc_lib.place_of(x.astype(np.float64))) > 0)
  zeros = auc_lib.place_of(np.array([0.0, -0.0]))
  assert zeros[0] == zeros[1]
  far = auc_lib.place_of(np.array([-1e308, 1e308]))
  assert far[0] < zeros[0] < far[1]


SHAPES = {
  **{
    f'spread {s}': lambda rng, n, s=s: rng.normal(-3.5, s, n)
    for s in (1e-4, 1e-3, 0.01, 0.05, 0.5, 5)
  },
  'near zero': lambda rng, n: rng.normal(0, 1e-10, n),
  'mixture': lambda rng, n: np.where(
    rng.random(n) < 0.5, rng.normal(-3.5, 1e-4, n), rng.normal(2, 5, n)
  ),
  'growing': lambda rng, n: rng.normal(-3.5, np.geomspace(1e-4, 2, n)),
  'shrinking': lambda rng, n: rng.normal(-3.5, np.geomspace(2, 1e-4, n)),
}


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('least, most', [(1 << 15, 1e-12), (1 << 12, 1e-4)])
def test_bins_follow_the_scores(monkeypatch, shape, least, most):
  n = 60_000
  monkeypatch.setattr(auc_lib, 'LEAST_BINS', least)
  rng = np.random.default_rng(0)
  logits = SHAPES[shape](rng, n).astype(np.float32)
  z = (logits - logits.mean()) / logits.std()
  labels = rng.random(n) < 1 / (1 + np.exp(1 - 0.5 * z))
  exact = rm.ExactAuc().update(logits, labels).result()
  binned, cut = rm.BinnedAuc(), rm.BinnedAuc()
  for i in range(0, n, 7_000):
    binned = binned.update(logits[i : i + 7_000], labels[i : i + 7_000])
  assert len(binned.start) <= 2 * least + 1
  off = abs(binned.result() - exact)
  assert off <= binned.error() + 1e-12
  assert off < most
  # However the stream is cut.
  for i in range(0, n, 1_999):
    cut = cut.update(logits[i : i + 1_999], labels[i : i + 1_999])
  for name, column in vars(binned).items():
    np.testing.assert_array_equal(getattr(cut, name), column)
  # No example is lost or moved where parts with other bins are merged.
  half = n // 2
  parts = [
    rm.BinnedAuc().update(logits[x], labels[x])
    for x in (slice(half), slice(half, n))
  ]
  for merged in (parts[0].merge(parts[1]), parts[1].merge(parts[0])):
    assert merged.positive.sum() == labels.sum()
    assert merged.negative.sum() == n - labels.sum()
    assert abs(merged.result() - exact) <= merged.error() + 1e-12
    assert np.all(merged.start[1:] >= (merged.start + (1 << merged.level))[:-1])


def test_the_bound_is_reached():
  """Two scores in one wide bin, all positives above all negatives."""
  wide = np.linspace(-10, 10, 200_000, dtype=np.float32)
  binned = rm.BinnedAuc().update(wide, np.arange(len(wide)) % 2)
  weights = np.full(2, 1e12)  # beside which the others count nothing
  binned = binned.update(np.float32([3.0, 3.000001]), [0, 1], weights)
  assert binned.result() == pytest.approx(0.5, abs=1e-3)
  assert binned.error() == pytest.approx(0.5, abs=1e-3)


def test_what_ties_is_no_error():
  same = rm.BinnedAuc().update(np.zeros(50), np.arange(50) % 2)
  assert same.result() == 0.5 and same.error() == 0
  near = rm.BinnedAuc().update(np.float32([1.0, 1.0000001]), [0, 1])
  assert near.result() == 1 and near.error() == 0


def test_several_labels():
  logits, labels, weights, group = random_case(6, np.float32)
  second = (labels + (group % 3 == 0)) % 2
  nothing = np.zeros_like(labels)
  found = rm.measure_labels(
    np.stack([logits, -logits, logits], 1),
    np.stack([labels, second, nothing], 1),
    weights,
    group,
    ('click', 'buy', 'never'),
  )
  assert list(found)[:5] == list(rm.NAMES)
  one = rm.measure_labels(logits[:, None], labels[:, None], weights, group)
  assert list(one) == list(rm.NAMES)
  for name in rm.NAMES:
    assert found[f'{name}/click'] == one[name]
  assert math.isnan(found['auc/never']) and math.isnan(
    found['calibration/never']
  )
  close(found['auc'], (found['auc/click'] + found['auc/buy']) / 2)
  close(
    found['logloss'],
    np.mean([found[f'logloss/{n}'] for n in ('click', 'buy', 'never')]),
  )
  assert 'gauc' not in rm.measure_labels(logits[:, None], labels[:, None])


@pytest.mark.parametrize('name', FRESH)
def test_weights_count_as_copies(name):
  logits, labels, weights, group = random_case(7, np.float32, 0.2)
  copies = np.repeat(np.arange(len(labels)), weights.astype(int))
  one = FRESH[name].update(logits, labels, weights, group).result()
  many = FRESH[name].update(logits[copies], labels[copies], None, group[copies])
  if name == 'means':
    close(list(one.values()), list(many.result().values()))
  else:
    assert one == many.result()


def test_calibration_curve_against_scikit_learn():
  calibration = pytest.importorskip('sklearn.calibration')
  logits, labels, *_ = random_case(8, n=1000)
  p = 1 / (1 + np.exp(-logits))
  curve = rm.calibration_curve(logits, labels, bins=10)
  rate, prediction = calibration.calibration_curve(
    labels, p, n_bins=10, strategy='quantile'
  )
  close([b['rate'] for b in curve], rate)
  close([b['prediction'] for b in curve], prediction)
  assert sum(b['weight'] for b in curve) == 1000
  for b, following in itertools.pairwise(curve):
    assert b['low'] <= b['prediction'] <= b['high'] < following['low']
    assert 0 <= b['rate_low'] <= b['rate'] < b['rate_high'] <= 1
  error = np.mean([abs(b['prediction'] - b['rate']) for b in curve])
  close(rm.calibration_error(curve), error)


def test_wilson_intervals_of_a_bin():
  # Wilson (1927) for 2 of 10, as every text book has it.
  (b,) = rm.calibration_curve(np.zeros(10), [1, 1] + [0] * 8, bins=3)
  assert (b['rate_low'], b['rate_high']) == pytest.approx(
    (0.0567, 0.5098), abs=1e-4
  )
  # Weights that are all alike change nothing.
  (c,) = rm.calibration_curve(
    np.zeros(10), [1, 1] + [0] * 8, np.full(10, 0.25), bins=3
  )
  close((c['rate_low'], c['rate_high']), (b['rate_low'], b['rate_high']))


def test_curves_of_odd_examples():
  assert rm.calibration_curve([], []) == []
  assert math.isnan(rm.calibration_error([]))
  assert rm.score_histogram([], [])['edges'] == []
  for logits in ([0.0], [1e30] * 3, [-1e-300, 5e-324], [700.0, -700.0, 0.0]):
    labels = np.arange(len(logits)) % 2
    curve = rm.calibration_curve(logits, labels, bins=4)
    assert all(math.isfinite(v) for b in curve for v in b.values())
    found = rm.score_histogram(logits, labels, bins=7)
    assert len(found['edges']) == 8 and np.all(np.diff(found['edges']) > 0)
    assert sum(found['positive']) == labels.sum()
    assert sum(found['negative']) == len(logits) - labels.sum()
  with pytest.raises(ValueError, match='report.bins is 0'):
    rm.calibration_curve([0.0], [1], bins=0)


def test_histograms_count_each_example_once():
  logits, labels, weights, _ = random_case(9)
  found = rm.score_histogram(logits, labels, weights, bins=12)
  edges = np.array(found['edges'])
  place = np.clip(np.searchsorted(edges, logits, 'right') - 1, 0, 11)
  for name, of in (('positive', labels), ('negative', 1 - labels)):
    close(found[name], np.bincount(place, of * weights, 12))


def test_a_small_run_is_not_merged_with_a_large_one():
  """Else every batch would sort all scores so far."""
  runs = ()
  for first, size in ((0, 8), (100, 1), (200, 1), (300, 4)):
    logits = np.arange(first, first + size, dtype=np.float64)
    run = auc_lib.make_tally(None, logits, np.ones(size), np.ones(size))
    runs = auc_lib._append_run(runs, run)
    lengths = [len(run.logit) for run in runs]
    assert all(2 * b < a for a, b in itertools.pairwise(lengths))
    if first == 200:
      assert lengths == [8, 2]
  assert lengths == [14]
