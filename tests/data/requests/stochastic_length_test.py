import functools
import itertools

import numpy as np
import pytest

from genrec_jax.data.requests import draws
from genrec_jax.data.requests.stochastic_length import (
  SELECTORS,
  StochasticLength,
)
from tests.data.requests.random_requests import bits_of, key_of, uniform

TRIALS = 20_000


def make_keys(count, seed=0):
  return draws.make_keys(seed, 0, np.arange(count), 7)


@pytest.mark.parametrize(
  ('most', 'alpha', 'threshold'),
  [(4096, 1.6, 776), (1024, 1.6, 256), (1024, 1.4, 128), (1024, 1.8, 512),
   (8192, 1.7, 2120), (50, 2.0, 50), (1, 1.5, 1)],
)  # fmt: skip
def test_threshold(most, alpha, threshold):
  assert StochasticLength(alpha).find_threshold(most) == threshold


def test_draws_are_those_of_plain_integers():
  keys = draws.make_keys(3, np.arange(5), 2**63 + 1)
  assert keys.tolist() == [key_of(3, i, 2**63 + 1) for i in range(5)]
  bits = draws.draw_bits(keys, np.arange(5))
  assert bits.tolist() == [bits_of(k, i) for i, k in enumerate(keys.tolist())]
  assert draws.to_uniform(bits).tolist() == [uniform(b) for b in bits.tolist()]


def assert_share(hits, share, trials=TRIALS):
  """Within four deviations of a binomial."""
  deviation = np.sqrt(np.maximum(share * (1 - share), 1e-9) / trials)
  assert (np.abs(hits / trials - share) < 4 * deviation + 1e-12).all()


@pytest.mark.parametrize('alpha', [1.2, 1.6, 1.9])
def test_histories_are_cut_with_the_probability_of_the_paper(alpha):
  most, how = 100, StochasticLength(alpha)
  keys = make_keys(TRIALS)
  threshold = how.find_threshold(most)
  for n in (0, 1, threshold - 1, threshold, threshold + 1, 70, 100):
    lengths = np.full(TRIALS, n)
    cut = how.find_cut(lengths, most, keys)
    expected = 1 - most**alpha / n**2 if n > threshold else 0.0
    assert_share(cut.sum(), np.array(expected))
    kept = np.where(cut, threshold, n).mean()
    mean = expected * threshold + (1 - expected) * n
    assert abs(kept - mean) < 4 * max(n - threshold, 0) / np.sqrt(TRIALS) + 1e-9
    # The expected square, which attention costs, is about N^alpha at most.
    square = expected * threshold**2 + (1 - expected) * n**2
    assert square < 2 * most**alpha


def test_alpha_2_cuts_nothing():
  lengths = np.repeat(np.arange(101), 50)
  keys = make_keys(len(lengths))
  for most in (100, 137, 1024):
    assert not StochasticLength(2.0).find_cut(lengths, most, keys).any()


def test_draws_differ_by_seed_epoch_user_and_request():
  how, n = StochasticLength(1.6), np.full(TRIALS, 40)
  base = [0, 0, np.arange(TRIALS), 7]
  first = how.find_cut(n, 60, draws.make_keys(*base))
  share = first.mean()
  assert 0.2 < share < 0.8
  others = [(0, 1), (1, 1), (2, np.arange(TRIALS) + 1), (3, 8)]
  for place, value in others:
    numbers = list(base)
    numbers[place] = value
    other = how.find_cut(n, 60, draws.make_keys(*numbers))
    # As often both as independent draws.
    assert_share((first & other).sum(), np.array(share * other.mean()))


def place(selector, begin, lengths, cut, keys, most, alpha, **times):
  how = StochasticLength(alpha, selector)
  return how.place_events(begin, lengths, cut, most, keys, **times)


@pytest.mark.parametrize('selector', SELECTORS)
def test_kept_events_are_a_part_in_order(selector):
  rng = np.random.default_rng(0)
  most, alpha = 64, 1.5
  count = StochasticLength(alpha).find_threshold(most)
  lengths = rng.integers(0, most + 1, 200)
  begin = rng.permutation(200) * 100
  cut = (lengths > count) & (rng.random(200) < 0.7)
  time = np.sort(rng.integers(0, 10**6, 20_100))
  at = place(
    selector, begin, lengths, cut, make_keys(200), most, alpha,
    time=time, asked=np.full(200, 10**6),
  )  # fmt: skip
  kept = np.where(cut, count, lengths)
  assert len(at) == kept.sum()
  for i, part in enumerate(np.split(at, np.cumsum(kept)[:-1])):
    assert (np.diff(part) > 0).all()
    whole = np.arange(begin[i], begin[i] + lengths[i])
    if not cut[i]:
      np.testing.assert_array_equal(part, whole)
    elif selector == 'greedy':
      np.testing.assert_array_equal(part, whole[-count:])
    else:
      assert set(part) < set(whole) and part[0] < whole[-count]


def count_kept(selector, ages, count):
  """How often each event of a history is kept, by hand-picked N and alpha."""
  n = len(ages)
  # 16^(1.25 / 2) is 5.66, 16^(1.1 / 2) 4.59, 9^(1.2 / 2) 3.74, 4^.6 2.3.
  most, alpha = {5: (16, 1.25), 4: (16, 1.1), 3: (9, 1.2), 2: (4, 1.2)}[count]
  assert StochasticLength(alpha).find_threshold(most) == count
  at = place(
    selector,
    np.zeros(TRIALS, int),
    np.full(TRIALS, n),
    np.ones(TRIALS, bool),
    make_keys(TRIALS, seed=count),
    most,
    alpha,
    time=-np.array(ages),
    asked=np.zeros(TRIALS, int),
  )
  return np.bincount(at, minlength=n)


def find_inclusion(weights, count):
  """The probability that each is among `count` drawn one after another."""
  n = len(weights)

  @functools.cache
  def draw(left, count):
    shares = np.zeros(n)
    total = sum(weights[i] for i in left)
    for i in left if count and total else ():
      rest = tuple(j for j in left if j != i)
      hit = draw(rest, count - 1) + np.eye(n)[i]
      shares += weights[i] / total * hit
    return shares

  return draw(tuple(range(n)), count)


@pytest.mark.parametrize('count', [2, 3, 4])
@pytest.mark.parametrize(
  'ages',
  [
    (9, 5, 3, 1, 1, 0),
    (100, 1, 1, 1, 0, 0),
    (7, 0, 0, 0, 0),
    (90, 40, 12, 11, 10, 10),  # asked for long after the last event
  ],
)
def test_weighted_events_are_kept_as_often_as_an_enumeration_says(ages, count):
  weights = tuple(1 - age / sum(ages) for age in ages)
  expected = find_inclusion(weights, count)
  assert abs(expected.sum() - count) < 1e-9
  assert_share(count_kept('feature_weighted', ages, count), expected)
  # A test that could not tell the weights apart would say nothing.
  assert (np.ptp(expected) > 0.05).all()


@pytest.mark.parametrize('count', [2, 5])
def test_random_events_are_kept_alike(count):
  got = count_kept('random', (9, 5, 3, 1, 1, 0), count)
  assert_share(got, np.full(6, count / 6))


def test_an_event_that_has_all_the_age_is_not_kept():
  assert count_kept('feature_weighted', (7, 0, 0, 0, 0), 4)[0] == 0


@pytest.mark.parametrize('age', [0, 5])
def test_events_of_equal_times_are_drawn_at_random(age):
  begin, keys = np.zeros(300, int), make_keys(300)
  arguments = begin, begin + 8, begin == 0, keys, 9, 1.2
  times = dict(time=np.full(8, -age), asked=begin)
  weighted = place('feature_weighted', *arguments, **times)
  np.testing.assert_array_equal(weighted, place('random', *arguments))
  np.testing.assert_array_equal(weighted, place('feature_weighted', *arguments))


def test_what_no_draw_can_be_made_of_is_refused():
  for alpha in (1.0, 2.1, 0, float('nan')):
    with pytest.raises(ValueError, match='must be above 1 and at most 2'):
      StochasticLength(alpha)
  with pytest.raises(ValueError, match="'newest', must be one of greedy, rand"):
    StochasticLength(1.5, 'newest')


def test_keep_smallest_equals_sorting():
  rng = np.random.default_rng(1)
  for count, many in itertools.product((1, 3, 8), (0, 1, 20)):
    lengths = rng.integers(count, 40, many)
    keys = rng.random(lengths.sum())
    got = draws.keep_smallest(keys, lengths, count)
    runs = np.split(keys, np.cumsum(lengths)[:-1]) if many else []
    assert got.tolist() == [sorted(np.argsort(run)[:count]) for run in runs]
