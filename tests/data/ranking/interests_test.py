"""A stream with planted time structure: what its parts are, and its bounds."""

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import interests

SMALL = dict(users=300, impressions=4, categories=8, items=40, favourites=2)


def make_log(**changes):
  return interests.InterestLog(**(SMALL | changes))


def join_rows(log, split=''):
  """Every impression with its history: lists of (item, category, time)."""
  out = []
  for rows in interests.draw_rows(log, split):
    events = list(
      zip(
        rows.events.item.tolist(),
        rows.events.category.tolist(),
        rows.events.time.tolist(),
        strict=True,
      )
    )
    shown = rows.shown
    for i in range(len(shown)):
      begin = int(shown.begin[i])
      out.append(
        (
          *(int(getattr(shown, n)[i]) for n in ('user', 'item', 'category')),
          int(shown.time[i]),
          int(shown.label[i]),
          float(shown.beside['probability'][i]),
          rows.parts[i],
          events[begin : begin + int(shown.length[i])],
        )
      )
  return out


def state_parts(stream, category, at, history):
  """Decay, periodic and order of one impression, as the definition has them."""
  log, kind = stream.log, stream.kind
  decay = periodic = adjacent = 0
  for _, own, moment in history:
    if own == category:
      age = at - moment
      decay += 0.5 ** (age / log.half_life_s)
      turns = round(age / log.period_s)
      distance = abs(age - turns * log.period_s)
      periodic += turns > 0 and distance <= log.period_width * log.period_s
  first, second = stream.pairs[kind[category]]
  kinds = [kind[own] for _, own, _ in history]
  for a, b in itertools.pairwise(kinds):
    adjacent += (a, b) == (first, second)
  # In the mean over all orders of the events.
  mean = kinds.count(first) * kinds.count(second) / len(kinds)
  return decay, periodic, adjacent - mean


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'history': 3, 'kinds': 2, 'period_width': 0.5, 'gap_s': 3000},
    {'activity': 0.0, 'zipf': 0.0, 'loyal': 0.0, 'order': 0.0},
  ],
)
def test_probabilities_are_those_of_the_definition(changes):
  log = make_log(users=40, **changes)
  stream = interests.InterestStream(log)
  rows = join_rows(log)
  found = np.array([row[6] for row in rows])
  wanted = np.array(
    [state_parts(stream, row[2], row[3], row[7]) for row in rows]
  )
  for i, name in enumerate(interests.PARTS[:3]):
    # Shifted and scaled, and nothing else.
    deviation = wanted[:, i].std() / found[:, i].std()
    shift = wanted[0, i] - deviation * found[0, i]
    np.testing.assert_allclose(
      deviation * found[:, i] + shift, wanted[:, i], atol=1e-9, err_msg=name
    )
  assert len(set(np.round(found[:, 3], 9))) == 2
  strengths = [getattr(log, name) for name in interests.PARTS]
  probability = np.array([row[5] for row in rows])
  logits = np.log(probability / (1 - probability))
  np.testing.assert_allclose(logits, stream.bias + found @ strengths, atol=1e-6)


def test_the_order_counts_a_before_b_alone():
  log = make_log(kinds=2, history=6)
  rows = [row for row in join_rows(log) if len(row[7]) == 6]
  stream = interests.InterestStream(log)
  seen = 0
  for row in rows[:40]:
    own = [
      state_parts(stream, row[2], row[3], history)[2]
      for history in itertools.permutations(row[7])
    ]
    # Whoever knows the events and not their order knows nothing.
    assert np.mean(own) == pytest.approx(0, abs=1e-9)
    seen += max(own) > 0
  assert seen
  first, second = stream.pairs[stream.kind[0]]
  a, b = (int(np.flatnonzero(stream.kind == k)[0]) for k in (first, second))
  forth, back = (
    state_parts(stream, 0, 9, [(0, x, 1), (0, y, 2)])[2]
    for x, y in ((a, b), (b, a))
  )
  assert forth == 0.5 and back == -0.5  # 1 and 0, less their mean


def test_histories_are_the_last_events_before_an_impression():
  log = make_log(history=5, activity=2.0)
  rows = join_rows(log)
  lengths = {len(row[7]) for row in rows}
  assert min(lengths) >= 1 and max(lengths) == 5 and len(lengths) > 2
  for user, item, category, at, label, probability, _, history in rows:
    assert 0 <= user < 300 and item % 8 == category and 0 <= item < 40
    assert label in (0, 1) and 0 < probability < 1
    moments = [moment for *_, moment in history]
    assert moments == sorted(moments) and moments[-1] < at
    assert moments[0] >= 0
    assert all(item % 8 == own for item, own, _ in history)
  per_user = {}
  for user, _, _, at, *_, history in rows:
    per_user.setdefault(user, []).append((at, history))
  assert {len(own) for own in per_user.values()} == {4}
  for own in per_user.values():
    # Two impressions of a user see one timeline.
    for (early, first), (late, second) in itertools.pairwise(own):
      assert early <= late
      common = [event for event in second if event[2] < early]
      assert first[len(first) - len(common) :] == common


def read(log, split='', chunk_rows=4096, names=None):
  names = names or log.names
  chunks = list(interests.read_chunks(log, names, split, chunk_rows))
  assert all(set(chunk.columns) == set(names) for chunk in chunks)
  out = {}
  for name in names:
    columns = [chunk.columns[name] for chunk in chunks]
    if name.startswith('history_'):
      out[name] = np.concatenate([c.values.values for c in columns])
      out['lengths'] = np.concatenate([c.lengths for c in columns])
    else:
      out[name] = np.concatenate([c.values for c in columns])
  return out


def assert_equal(a, b, rows=None):
  assert set(a) == set(b)
  events = None if rows is None else a['lengths'][:rows].sum()
  for name in a:
    stop = events if name.startswith('history_') else rows
    np.testing.assert_array_equal(a[name][:stop], b[name][:stop], name)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 700), st.integers(1, 2000))
def test_rows_do_not_depend_on_chunks_or_the_number_of_users(users, chunk_rows):
  wanted = read(make_log(users=700))
  got = read(make_log(users=users), chunk_rows=chunk_rows)
  assert len(got['label']) == 4 * users
  assert_equal(got, wanted, 4 * users)
  np.testing.assert_array_equal(
    got['history_age'], np.repeat(got['time'], got['lengths'])
    - got['history_time']
  )  # fmt: skip


def test_the_seed_decides():
  assert_equal(read(make_log(seed=3)), read(make_log(seed=3)))
  others = read(make_log(seed=4))
  assert not np.array_equal(others['item'], read(make_log(seed=3))['item'])


@pytest.mark.parametrize('split', interests.SPLITS)
def test_splits_divide_the_rows(split):
  log = make_log(split=split, valid_share=0.2, test_share=0.3, users=500)
  parts = {name: read(log, name) for name in ('train', 'valid', 'test')}
  sizes = [len(part['label']) / 2000 for part in parts.values()]
  np.testing.assert_allclose(sizes, [0.5, 0.2, 0.3], atol=0.04)
  key = {'users': 'user', 'time': 'time'}[split]
  for early, late in itertools.pairwise(parts.values()):
    assert early[key].max() < late[key].min()
  whole = read(log)
  both = np.concatenate([part['probability'] for part in parts.values()])
  assert sorted(both) == sorted(whole['probability'])
  assert log.splits == ['train', 'valid', 'test']
  assert make_log(valid_share=0.0, split=split).splits == ['train', 'test']
  none = make_log(valid_share=0.0, split=split)
  assert not list(interests.read_chunks(none, ['user'], 'valid'))


@pytest.mark.parametrize('name', interests.PARTS)
def test_a_strength_switches_off_its_part_alone(name):
  log, off = make_log(users=2000), make_log(users=2000, **{name: 0.0})
  on_rows, off_rows = join_rows(log), join_rows(off)
  place = interests.PARTS.index(name)
  parts = np.array([row[6] for row in off_rows])
  np.testing.assert_array_equal(parts, [row[6] for row in on_rows])
  assert [row[7] for row in on_rows[:99]] == [row[7] for row in off_rows[:99]]
  logits = np.array([math.log(row[5] / (1 - row[5])) for row in off_rows])
  others = np.delete(parts, place, axis=1)
  strengths = [getattr(log, n) for n in interests.PARTS if n != name]
  rest = logits - others @ strengths
  np.testing.assert_allclose(rest, rest.mean(), atol=1e-6)


@pytest.mark.parametrize('decay', [1.0, 300.0, 1e4])
def test_no_strength_hides_the_rate(decay):
  rows = join_rows(make_log(users=2000, rate=0.05, decay=decay))
  probability = np.array([row[5] for row in rows])
  assert probability.mean() == pytest.approx(0.05, abs=0.015)


def test_the_rate_and_the_strengths_are_those_asked_for():
  log = make_log(users=4000, rate=0.1, decay=0.7, order=1.5, **{'taste': 0.0})
  rows = join_rows(log)
  label, probability = np.array([(row[4], row[5]) for row in rows]).T
  assert probability.mean() == pytest.approx(0.1, abs=0.01)
  assert label.mean() == pytest.approx(0.1, abs=0.01)
  parts = np.array([row[6] for row in rows])
  np.testing.assert_allclose(parts.mean(0), 0, atol=0.06)
  np.testing.assert_allclose(parts.std(0), 1, atol=0.06)
  # Labels are draws of the probabilities.
  bins = np.minimum((probability * 10).astype(int), 9)
  for b in range(6):
    own = bins == b
    if own.sum() > 200:
      error = 5 * np.sqrt(0.25 / own.sum())
      assert abs(label[own].mean() - probability[own].mean()) < error


@settings(max_examples=50, deadline=None)
@given(
  st.lists(st.sampled_from((0.0, 0.1, 0.25, 0.5, 0.9, 1.0)), min_size=2,
           max_size=12)
)  # fmt: skip
def test_bounds_beside_a_count_of_all_pairs(probability):
  p = probability
  if not 0 < np.mean(p) < 1:
    with pytest.raises(ValueError, match='no bounds are known'):
      interests.find_bounds(np.array(p))
    return
  right = pairs = 0.0
  for (i, a), (j, b) in itertools.product(enumerate(p), repeat=2):
    if i != j:
      chance = a * (1 - b)
      pairs += chance
      right += chance * ((a > b) + (a == b) / 2)
  got = interests.find_bounds(np.array(p))
  assert got.auc == pytest.approx(right / pairs)

  def entropy(x):
    return -sum(y * math.log(y) for y in (x, 1 - x) if y)

  assert got.ne == pytest.approx(np.mean([*map(entropy, p)]) / entropy(
    np.mean(p)))  # fmt: skip


def test_the_bounds_are_those_of_many_draws():
  log = make_log(users=1000, rate=0.4)
  p = interests.read_probabilities(log)
  bounds = interests.find_bounds(p)
  order = np.argsort(p)
  aucs = []
  for seed in range(20):
    label = np.random.default_rng(seed).random(len(p)) < p
    rank = np.empty(len(p))
    rank[order] = np.arange(len(p))
    n = label.sum()
    aucs.append((rank[label].sum() - n * (n - 1) / 2) / (n * (len(p) - n)))
  assert bounds.auc == pytest.approx(np.mean(aucs), abs=0.004)
  assert 0.5 < bounds.ne < 0.95


def test_the_stream_is_fast_enough():
  log = interests.InterestLog(users=3000)
  interests.InterestStream(log)
  start = time.thread_time()
  rows = sum(len(c) for c in interests.read_chunks(log, log.names))
  # 100,000 a second, with room for a busy machine.
  assert rows / (time.thread_time() - start) > 40_000


def test_options_are_checked():
  for changes, message in (
    ({'users': 0}, 'data.interests.users must be at least 1 and at most'),
    ({'decay': float('inf')}, 'data.interests.decay must be at least 0 and'),
    ({'taste': float('nan')}, 'data.interests.taste must be at least 0 and'),
    ({'kinds': 9}, 'data.interests.kinds is 9, and there are 8 categories'),
    ({'items': 5}, 'data.interests.categories is 8, and there are 5 items'),
    ({'loyal': 2.0}, 'data.interests.loyal is 2.0, must be from 0 to 1'),
    ({'rate': 1.0}, 'data.interests.rate is 1.0'),
    ({'half_life_s': 0.0}, 'data.interests.half_life_s is 0.0'),
    ({'period_width': 0.6}, 'data.interests.period_width is 0.6'),
    ({'split': 'items'}, "data.interests.split is 'items', must be one of"),
    ({'valid_share': 0.5, 'test_share': 0.5}, 'leave nothing to train on'),
    ({'decay': -1.0}, 'data.interests.decay must be at least 0'),
  ):
    with pytest.raises(ValueError, match=message):
      make_log(**changes)
  stream = interests.InterestStream(make_log())
  with pytest.raises(ValueError, match='no unit 2 of 300 users'):
    stream.draw_users(2)
  fields = {field.name for field in dataclasses.fields(interests.InterestLog)}
  assert fields >= set(interests.PARTS)
