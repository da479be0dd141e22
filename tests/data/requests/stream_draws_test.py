"""The draws of the generated stream against plain loops and its description.

All seeds are fixed, and bounds are four and a half standard errors or more.
"""

import dataclasses

import numpy as np
import pytest

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import stream_draws
from genrec_jax.data.requests.stream_draws import find_slot_steps
from tests.data.requests.slow_stream import SlowStream, what_ratings

SMALL = StreamOptions(
  users=400, inference_events=160, inference_candidates=96, seed=5
)


@pytest.fixture(scope='module')
def events():
  """Of 150 users."""
  return [stream_draws.draw_events(SMALL, user) for user in range(150)]


@pytest.fixture(scope='module')
def plans():
  return stream_draws.draw_plans(SMALL, range(1_000))


def join(events, name):
  return np.concatenate([getattr(e, name) for e in events])


def bound(values, expected, errors=4.5):
  """Whether the mean of independent values is what is expected."""
  values = np.asarray(values, np.float64)
  error = values.std(ddof=1, axis=0) / np.sqrt(len(values))
  return np.all(abs(values.mean(axis=0) - expected) <= errors * error)


def check_shares(counts, shares):
  """Pearson's statistic has mean d and variance 2 d."""
  counts, shares = np.asarray(counts, float), np.asarray(shares, float)
  assert not counts[shares == 0].any()
  expected = (counts.sum(axis=-1, keepdims=True) * shares)[shares > 0]
  freedom = (shares > 0).sum() - counts[..., 0].size
  excess = np.sum((counts[shares > 0] - expected) ** 2 / expected) - freedom
  assert abs(excess) < 4.5 * np.sqrt(2 * freedom) + 5


def summarise_user(options, columns) -> list[float]:
  """What a user has done, in numbers that two generators must agree on."""
  slot, place, rating = columns['slot'], columns['place'], columns['rating']
  history, asked = columns['is_history'], columns['is_candidate']
  trained = slot < options.evaluation_slot
  tested = slot > options.evaluation_slot
  step = columns['step']

  def shares(which):
    counts = np.bincount(place[which], minlength=options.categories_per_user)
    return counts / max(counts.sum(), 1)

  by_slot = [shares(slot == s) for s in np.unique(slot)]
  moved = [a @ b for a, b in zip(by_slot, by_slot[1:], strict=False)]
  numbers = [
    len(np.unique(slot[trained])),
    np.sum(history & trained),
    np.sum(history & tested),
    np.sum(asked & tested),
    np.sum(tested),
    *np.sort(shares(history & trained)),
    *np.sort(shares(tested)),
    np.mean(moved),
    np.mean(moved[:5]),
    np.mean(rating[history]),
    np.mean(rating[asked & trained]),
    np.mean(rating[asked & tested]),
    np.mean(columns['item_rating']),
  ]
  for quartile in range(4):
    for phase in range(8):
      which = (place == quartile) & (step % 8 == phase) & history
      liked = rating[which] >= 3.5
      # A user with a category hardly ever met says what says nothing.
      numbers += [
        np.mean(rating[which]) if len(liked) > 5 else 3.0,
        np.mean(liked) if len(liked) > 5 else 0.5,
      ]
  return numbers


def as_columns(options, events):
  columns = {
    f.name: getattr(events, f.name) for f in dataclasses.fields(events)
  }
  return columns | {'step': find_slot_steps(options)[events.slot]}


def test_users_are_those_of_the_slow_process(events):
  slow = SlowStream(SMALL, seed=1)
  theirs = np.array(
    [summarise_user(SMALL, slow.make_user()) for _ in range(80)]
  )
  ours = np.array([summarise_user(SMALL, as_columns(SMALL, e)) for e in events])
  error = np.sqrt(
    ours.var(axis=0, ddof=1) / len(ours)
    + theirs.var(axis=0, ddof=1) / len(theirs)
  )
  difference = abs(ours.mean(axis=0) - theirs.mean(axis=0))
  assert np.all(difference <= 4.5 * error + 1e-9)


def test_early_tastes_are_those_of_the_slow_process():
  # Where alpha decides most: two slots with one taste.
  options = dataclasses.replace(SMALL, steps=2, train_steps=2, activity=1.0)
  slow = SlowStream(options, seed=2)

  def repeat(slot, place):
    first, second = (np.bincount(place[slot == s], minlength=4) for s in (0, 2))
    return first @ second / first.sum() / second.sum() - 0.25

  theirs, ours = [], []
  for user in range(800):
    columns = slow.make_user()
    theirs.append(repeat(columns['slot'], columns['place']))
    columns = stream_draws.draw_events(options, user)
    ours.append(repeat(columns.slot, columns.place))
  error = np.sqrt((np.var(ours) + np.var(theirs)) / 800)
  assert np.mean(theirs) > 4.5 * error  # it could be told from no taste
  assert abs(np.mean(ours) - np.mean(theirs)) < 4.5 * error


def test_categories_are_drawn_by_alpha_and_all_earlier_counts(events):
  # Also by those of the evaluation, and of what never becomes history, which
  # are the most where training is short.
  short = dataclasses.replace(
    SMALL, steps=20, train_steps=3, inference_events=800
  )
  drawn = [stream_draws.draw_events(short, user) for user in range(100)]
  for options, some in ((SMALL, events), (short, drawn)):
    observed, chances = [], []
    for user, e in enumerate(some):
      alpha = stream_draws.draw_plans(options, [user]).alpha[0]
      counts = np.zeros(4)
      for slot in range(len(alpha)):
        mine = e.place[e.slot == slot]
        if not len(mine):
          continue
        a, now = alpha[slot], [np.sum(mine == k) for k in range(4)]
        chances.append((a / 4 + counts) / (a + sum(counts)))
        observed.append(now)
        counts = counts + now
    check_shares(observed, chances)


def test_plans_have_the_distributions_of_the_description(plans):
  evaluation = SMALL.evaluation_slot
  train = plans.drawn[:, 1:evaluation]
  assert bound((train > 0).mean(axis=1), 0.7)
  assert bound((plans.drawn[:, evaluation + 1 :] > 0).mean(axis=1), 0.7)
  assert (plans.drawn[:, 0] >= 33).all()
  assert (plans.drawn[:, evaluation] == 32).all()
  lengths = train[train > 0]
  assert lengths.min() == 33
  assert bound(lengths, 100.03)  # .3 % of a normal are moved up
  assert abs(lengths.std() - 24.9) < 0.3
  # As many on both sides of the mean: it is not a variable cut at 33.
  assert abs(np.mean(lengths < 100) - np.mean(lengths > 100)) < 0.01
  assert plans.alpha.min() == 1 and plans.alpha.max() == 500
  check_shares(np.bincount((plans.alpha.ravel() - 1) // 50), np.full(10, 0.1))
  # Of every category equally many, at every place.
  assert all(len(set(row)) == 4 for row in plans.categories.tolist())
  for place in range(4):
    counts = np.bincount(plans.categories[:, place], minlength=128)
    check_shares(counts, np.full(128, 1 / 128))


def test_lengths_are_rounded_to_the_nearest():
  for events, expected in ((99.6, 100), (100.4, 100), (12.0, 33)):
    options = dataclasses.replace(SMALL, events=events, deviation=0)
    drawn = stream_draws.draw_plans(options, range(3)).drawn
    assert set(drawn[:, 1 : options.evaluation_slot].ravel()) == {0, expected}


def test_a_history_at_step_90_has_6400_events_in_the_mean(plans):
  lengths = plans.kept[:, : SMALL.evaluation_slot].sum(axis=1)
  assert bound(lengths, 6_400)
  # The deviation of a user is 480 events.
  assert 4_000 < lengths.min() and lengths.max() < 8_800
  assert abs(lengths.std() - 480) < 50


def test_items_are_uniform_among_the_open_ids_of_a_category(events):
  per_category = 80_000 // 128
  step = find_slot_steps(SMALL)[join(events, 'slot')]
  item, category = join(events, 'item'), join(events, 'category')
  offset = item - category * per_category
  opened = (per_category * np.maximum(step + 1, 1) / 100).astype(int)
  assert (offset >= 0).all() and (offset < opened).all()
  for t in (-1, 0, 12, 89, 99):
    mine = offset[step == t]
    (count,) = set(opened[step == t])
    counts = np.bincount(mine, minlength=count)
    assert len(counts) == count
    check_shares(counts, np.full(count, 1 / count))


def test_users_have_their_categories_in_the_order_of_places(events):
  for user, e in enumerate(events[:20]):
    own = stream_draws.draw_plans(SMALL, [user]).categories[0]
    np.testing.assert_array_equal(e.category, own[e.place])


def test_items_are_rated_once_for_all(events):
  item, rating = join(events, 'item'), join(events, 'item_rating')
  table = np.zeros(SMALL.item_count, np.int8)
  table[item] = rating
  np.testing.assert_array_equal(table[item], rating)
  every = stream_draws.rate_items(SMALL.seed, np.arange(SMALL.item_count))
  np.testing.assert_array_equal(every[item], rating)
  shares = [0.1, 0.2, 0.25, 0.25, 0.2]
  check_shares(np.bincount(every, minlength=6)[1:], shares)
  other = stream_draws.rate_items(SMALL.seed + 1, np.arange(80_000))
  # Neither of neighbours nor of seeds is one told by the other.
  agree = sum(share**2 for share in shares)
  assert abs(np.mean(every == other) - agree) < 0.01
  assert abs(np.mean(every[1:] == every[:-1]) - agree) < 0.01


def test_categories_are_rated_by_quartile_and_step(events):
  step = find_slot_steps(SMALL)[join(events, 'slot')]
  place = join(events, 'place')
  rated = 2 * join(events, 'rating') - join(events, 'item_rating')
  counts, chances = [], []
  for t in (-1, 0, 3, 4, 20, 57, 88, 90, 92, 93, 94, 95, 96, 97, 98, 99):
    for quartile in range(4):
      mine = rated[(step == t) & (place == quartile)]
      chance = {}
      for v, p in zip(*what_ratings(quartile, 4, t), strict=True):
        chance[round(v, 6)] = chance.get(round(v, 6), 0) + p
      values, count = np.unique(mine.round(6), return_counts=True)
      assert set(values) <= set(chance)
      row = dict.fromkeys(chance, 0) | dict(zip(values, count, strict=True))
      filled = [0] * (3 - len(chance))
      counts.append([row[v] for v in chance] + filled)
      chances.append([*chance.values(), *filled])
  check_shares(counts, chances)


@pytest.mark.parametrize(
  ('categories', 'expected'),
  [
    (1, [3]),
    (2, [1, 3]),
    (4, [0, 1, 2, 3]),
    (5, [0, 1, 2, 3, 3]),
    (6, [0, 1, 1, 3, 3, 3]),
    (8, [0, 0, 1, 1, 2, 2, 3, 3]),
  ],
)
def test_quartiles_of_any_number_of_categories(categories, expected):
  assert stream_draws.find_quartiles(categories).tolist() == expected
  for place, quartile in enumerate(expected):
    values, shares = what_ratings(place, categories, 3)
    table = stream_draws.rate_categories(np.array(3))[quartile]
    np.testing.assert_allclose(table[: len(values)], values, atol=1e-8)
    used = stream_draws.CATEGORY_SHARES[quartile]
    assert used[: len(shares)].tolist() == shares and used.sum() == 1


def test_base_rates_of_equal_categories_are_the_known_ones(events):
  known = [0.342, 0.342, 0.512, 0.495, 0.495, 0.495, 0.552, 0.342, 0.342, 0.342]
  steps = np.arange(90, 100)
  exact = stream_draws.chance_to_like(steps) @ stream_draws.ITEM_SHARES
  np.testing.assert_allclose(exact.mean(axis=1), known, atol=6e-4)
  step = find_slot_steps(SMALL)[join(events, 'slot')]
  place, liked = join(events, 'place'), join(events, 'rating') >= 3.5
  for t, by_place in zip(steps, exact, strict=True):
    for quartile, rate in enumerate(by_place):
      mine = liked[(step == t) & (place == quartile)]
      assert abs(mine.mean() - rate) < 4.5 * 0.5 / len(mine) ** 0.5


def test_a_rating_that_is_three_and_a_half_is_liked():
  # With cosines of floating point, ratings of 3.5 are below it in some steps.
  steps = np.arange(4, 100, 8)
  table = stream_draws.rate_categories(steps)
  np.testing.assert_array_equal(table, np.broadcast_to(table[0], table.shape))
  np.testing.assert_array_equal(table[0, 0], [4.0, 4.0, 4.0])
  three = stream_draws.ITEM_RATINGS.tolist().index(3)
  np.testing.assert_allclose(
    stream_draws.chance_to_like(steps)[:, 0, three], 1.0
  )


def test_a_user_depends_on_seed_and_number_alone():
  twice = [stream_draws.draw_events(SMALL, 7) for _ in range(2)]
  more_users = dataclasses.replace(SMALL, users=9_000, items=80_000)
  other = {
    'seed': stream_draws.draw_events(dataclasses.replace(SMALL, seed=6), 7),
    'user': stream_draws.draw_events(SMALL, 8),
  }
  fewer = stream_draws.draw_events(
    dataclasses.replace(SMALL, inference_candidates=5), 7
  )
  scaled = stream_draws.draw_events(more_users, 7)
  for name in as_columns(SMALL, twice[0]):
    if name == 'step':
      continue
    first = getattr(twice[0], name)
    np.testing.assert_array_equal(first, getattr(twice[1], name))
    np.testing.assert_array_equal(first, getattr(scaled, name))
    if name != 'is_candidate':
      np.testing.assert_array_equal(first, getattr(fewer, name))
  for changed in other.values():
    assert len(changed.slot) != len(twice[0].slot) or not np.array_equal(
      changed.item, twice[0].item
    )
    assert set(changed.category) != set(twice[0].category)


def test_random_numbers_of_users_and_slots_do_not_repeat():
  # A key or a place of the counter that is used twice would repeat words.
  words = [
    stream_draws._generator(seed, user, stage).random(4)
    for seed in (0, 1, 2**64 - 1)
    for user in np.arange(20)
    for stage in np.arange(20)
  ]
  assert len(np.unique(words)) == 4 * len(words)


def test_parts_of_a_slot_are_drawn_at_random():
  # Neither the first events nor those of one kind.
  first = np.zeros(160)
  both = 0
  for user in range(200):
    e = stream_draws.draw_events(SMALL, user)
    for slot in np.unique(e.slot[e.slot > SMALL.evaluation_slot]):
      mine = e.slot == slot
      first += e.is_candidate[mine]
      both += np.sum(e.is_candidate[mine] & e.is_history[mine])
      kept = np.sum(e.is_history[mine])
      both -= kept * 96 / 160
  slots = first.sum() / 96
  assert np.all(abs(first / slots - 0.6) < 4.5 * (0.24 / slots) ** 0.5)
  # Candidates and history are chosen independently.
  assert abs(both / slots) < 4.5 * 6 / slots**0.5


@pytest.mark.parametrize(
  ('changed', 'message'),
  [
    ({'users': 0}, 'data.streaming.users is 0, must be 1 at least'),
    ({'categories_per_user': 9, 'categories': 8}, 'per_user .* 8 at most'),
    (
      {'items': 100},
      'streaming.items is 100, must be 128 at least',
    ),
    ({'train_steps': 101}, 'train_steps .* 100 at most'),
    ({'activity': 1.5}, 'activity is 1.5'),
    ({'activity': float('nan')}, 'activity'),
    ({'inference_candidates': 200}, 'inference_candidates .* 160 at most'),
    ({'seed': -1}, 'seed is -1'),
    (
      {'users': 20_000_000},
      'users x 200 items is 4000000000, must be .* at most',
    ),
  ],
)
def test_options_that_mean_nothing_are_refused(changed, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(SMALL, **changed)
