import itertools

import jax
import numpy as np
import pytest

from genrec_jax.data.requests import batches, checks, packing, request_order
from genrec_jax.data.requests.packing import Draws
from genrec_jax.data.requests.requests import keep_oldest
from genrec_jax.data.requests.stochastic_length import (
  SELECTORS,
  StochasticLength,
)
from tests.data.requests.random_requests import (
  make_dataset,
  read_slowly,
  unpack,
)

LIMITS = dict(max_history=16, max_candidates=4)
CASES = {
  'all': {},
  'untimed': dict(timed=False, places=True),
  'devices': dict(devices=True),
  'bare': dict(watch_time=False, context=False, weighted=False),
}
CUTS = [None, *(StochasticLength(1.5, s) for s in SELECTORS)]


def join(arrays):
  return jax.tree.map(lambda *x: np.concatenate(x), *arrays)


def assert_same(one, other):
  assert jax.tree.structure(one) == jax.tree.structure(other)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('stochastic', CUTS, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_collate_equals_a_loop(case, stochastic):
  for seed in range(4):
    data = make_dataset(seed, **CASES[case])
    checks.check_dataset(data)
    split = data.splits['train']
    draws = Draws(seed, 3, stochastic)
    for shards, n in itertools.product((1, 2, 4), (0, 1, 5, 8)):
      indices = np.random.default_rng(seed).permutation(len(split))[:n]
      batch = batches.collate_requests(
        data, split, indices, batch_size=8, shards=shards, draws=draws, **LIMITS
      )
      expected = [
        read_slowly(data, split, int(i), draws=draws, **LIMITS) for i in indices
      ]
      got = unpack(batch, data.spec, shards)
      share = 8 // shards
      assert got == [
        expected[k * share : (k + 1) * share] for k in range(shards)
      ]
      counts = np.array([len(shard) for shard in got])
      np.testing.assert_array_equal(batch.first, np.cumsum(counts) - counts)
      for name in ('history', 'candidates'):
        sums = np.array([sum(len(e[name]) for e in x) for x in got])
        np.testing.assert_array_equal(
          batch.jagged[name].first, np.cumsum(sums) - sums
        )


def test_a_long_history_keeps_the_latest_events():
  data = make_dataset(1, longest=40)
  split = data.splits['train']
  length = split.end - data.events.offsets[split.user]
  long = np.flatnonzero(length > 5)[:3]
  batch = batches.collate_requests(
    data, split, long, batch_size=3, max_history=5, max_candidates=99
  )
  at = np.concatenate([np.arange(split.end[r] - 5, split.end[r]) for r in long])
  np.testing.assert_array_equal(
    batch.jagged['history']['item'][:15], data.events.items['item'][at]
  )


@pytest.mark.parametrize('stochastic', CUTS, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_the_oldest_events_are_kept_if_they_are_asked_for(case, stochastic):
  data = make_dataset(1, **CASES[case])
  split, limits = data.splits['train'], dict(LIMITS, max_history=6)
  ends = split.end.copy()
  oldest = keep_oldest(data.events, split, 6)
  indices, draws = np.arange(16), Draws(1, 3, stochastic)
  batch = batches.collate_requests(
    data, oldest, indices, batch_size=16, draws=draws, **limits
  )
  expected = [
    read_slowly(data, split, i, draws=draws, oldest=True, **limits)
    for i in range(16)
  ]
  assert unpack(batch, data.spec)[0] == expected
  latest = [
    read_slowly(data, split, i, draws=draws, **limits) for i in range(16)
  ]
  differ = [a != b for a, b in zip(expected, latest, strict=True)]
  lengths = split.end - data.events.offsets[split.user]
  long = lengths[:16] > 6
  assert differ == long.tolist() and 3 < long.sum() < 14
  np.testing.assert_array_equal(split.end, ends)  # as they were


def train(data, split, batch_size=8, count=0, prefetch=0, **options):
  made = batches.train_batches(
    data, split, batch_size=batch_size, prefetch=prefetch, **LIMITS, **options
  )
  return list(itertools.islice(made, count)) if count else made


@pytest.mark.parametrize('order', request_order.ORDERS)
@pytest.mark.parametrize('stochastic', [None, CUTS[3]], ids=str)
def test_an_epoch_of_training_has_every_request_once(order, stochastic):
  data = make_dataset(2, steps=5)
  split = data.splits['train']
  asked = np.flatnonzero(np.diff(split.offsets))
  steps = request_order.steps_per_epoch(split, 8, order)
  made = train(
    data, split, count=3 * steps, seed=7, order=order, stochastic=stochastic
  )
  orders = []
  for epoch in range(3):
    draws = Draws(7, epoch, stochastic)
    examples = [
      example
      for batch in made[epoch * steps : (epoch + 1) * steps]
      for example in unpack(batch, data.spec)[0]
    ]
    orders.append([e['row'] for e in examples])
    assert sorted(orders[-1]) == asked.tolist()
    assert examples == [
      read_slowly(data, split, e['row'], draws=draws, **LIMITS)
      for e in examples
    ]
  if order == 'given':
    assert orders == [asked.tolist()] * 3
  else:
    assert orders[0] != orders[1] != orders[2] != orders[0]
    other = train(data, split, count=steps, seed=8, order=order)
    assert [r for b in other for r in b.row.tolist() if r >= 0] != orders[0]


def test_a_stream_goes_by_steps():
  data = make_dataset(3, steps=6)
  split = data.splits['train']
  batch_size = 4
  ends = request_order.find_step_ends(split, batch_size)
  counts = {
    step: int((np.diff(split.offsets)[split.step == step] > 0).sum())
    for step in np.unique(split.step).tolist()
  }
  expected, total = {}, 0
  for step, count in counts.items():
    if count:
      total += -(-count // batch_size)
      expected[step] = total
  assert ends == expected and min(expected) == -1
  assert request_order.steps_per_epoch(split, batch_size, 'stream') == total
  made = train(data, split, batch_size, count=2 * total, seed=0, order='stream')
  met = []
  for batch in made:
    (step,) = {int(split.step[r]) for r in batch.row if r >= 0}
    met.append(step)
  # Those of two epochs.
  begin = 0
  for step, end in ends.items():
    for first in (0, total):
      assert set(met[first + begin : first + end]) == {step}
      rows = [b.row[b.row >= 0] for b in made[first + begin : first + end]]
      assert len(np.unique(np.concatenate(rows))) == counts[step]
      # Whole batches, but for the last one of the step.
      assert all(len(r) == batch_size for r in rows[:-1])
    begin = end
  with pytest.raises(ValueError, match="no steps for the order 'stream'"):
    request_order.find_step_ends(make_dataset(3).splits['train'], batch_size)


def test_an_order_by_another_name_is_refused():
  split = make_dataset().splits['train']
  with pytest.raises(ValueError, match='must be one of shuffled, given, stre'):
    request_order.steps_per_epoch(split, 4, 'random')


@pytest.mark.parametrize('stochastic', [None, CUTS[3]], ids=str)
@pytest.mark.parametrize('order', ['shuffled', 'stream'])
def test_shards_and_own_do_not_change_what_is_in_a_batch(order, stochastic):
  data = make_dataset(4, steps=3)
  split = data.splits['train']
  options = dict(seed=1, order=order, stochastic=stochastic, count=12)
  whole = train(data, split, **options)
  for shards in (2, 4):
    parts = train(data, split, shards=shards, **options)
    half = shards // 2
    halves = [
      train(data, split, shards=shards, own=own, **options)
      for own in (range(half), range(half, shards))
    ]
    for one, many, *own in zip(whole, parts, *halves, strict=True):
      examples = unpack(many, data.spec, shards)
      assert [e for s in examples for e in s] == unpack(one, data.spec)[0]
      assert_same(join(own), many)


@pytest.mark.parametrize('prefetch', [0, 2])
@pytest.mark.parametrize('order', ['shuffled', 'stream'])
def test_a_killed_training_goes_on_with_the_same_bits(order, prefetch):
  data = make_dataset(5, steps=4)
  split = data.splits['train']
  options = dict(seed=3, order=order, stochastic=CUTS[2], prefetch=prefetch)
  whole = train(data, split, count=20, **options)
  for stop in (0, 1, 7, 13):
    first = iter(train(data, split, **options))
    list(itertools.islice(first, stop))
    state = first.get_state()
    # On another mesh, where state is the same number.
    again = iter(train(data, split, shards=2, **options))
    again.set_state(state)
    for expected, got in zip(
      whole[stop:], itertools.islice(again, 20 - stop), strict=True
    ):
      examples = unpack(got, data.spec, 2)
      assert [e for s in examples for e in s] == unpack(expected, data.spec)[0]
    again = iter(train(data, split, **options))
    again.set_state(state)
    for expected, got in zip(whole[stop:], again, strict=False):
      assert_same(got, expected)


def test_stochastic_length_cuts_in_training():
  data = make_dataset(0, longest=60)
  split = data.splits['train']
  options = dict(seed=0, order='given', count=3)
  most = train(data, split, **options)
  cut = train(data, split, stochastic=StochasticLength(1.2), **options)
  lengths = [
    np.concatenate([b.jagged['history'].lengths for b in x])
    for x in (most, cut)
  ]
  assert (lengths[0] >= lengths[1]).all() and lengths[1].sum() < sum(lengths[0])


def test_candidates_that_are_too_many_have_their_turns():
  data = make_dataset(0, most_candidates=12)
  split = data.splits['train']
  asked = np.diff(split.offsets)
  request = int(asked.argmax())
  epochs, counts = 2_000, np.zeros(asked[request])
  spans = [
    packing.find_spans(
      data, split, np.array([request]), None, draws=Draws(0, epoch), **LIMITS
    )
    for epoch in range(epochs)
  ]
  begin = split.offsets[request]
  for epoch, span in enumerate(spans):
    at = packing._place_candidates(span, Draws(0, epoch))
    assert len(at) == 4 and (np.diff(at) > 0).all()
    counts[at - begin] += 1
  share = 4 / asked[request]
  deviation = np.sqrt(epochs * share * (1 - share))
  assert np.abs(counts - epochs * share).max() < 4 * deviation
  with pytest.raises(ValueError, match='more than the 4 of an example; say wh'):
    batches.collate_requests(data, split, [request], batch_size=1, **LIMITS)


@pytest.mark.parametrize('shards', [1, 2, 4])
@pytest.mark.parametrize('capacity', [None, (16, 4), (40, 9), (1000, 5)])
def test_evaluation_has_every_candidate_once_in_order(shards, capacity):
  data = make_dataset(6, most_candidates=14)
  split = data.splits['test']
  made = list(
    batches.eval_batches(
      data, split, batch_size=8, capacity=capacity, shards=shards, **LIMITS
    )
  )
  assert len({str(jax.tree.map(np.shape, batch)) for batch in made}) == 1
  if capacity:
    size = capacity[0] * shards
    assert len(made[0].jagged['history'].columns.values) == size
  got = [e for b in made for s in unpack(b, data.spec, shards) for e in s]
  expected = [
    read_slowly(data, split, request, chunk=chunk, **LIMITS)
    for request in range(len(split))
    for chunk in range(-(-int(np.diff(split.offsets)[request]) // 4))
  ]
  assert got == expected
  assert sum(len(e['candidates']) for e in got) == split.candidates
  for batch in made:
    for name in ('history', 'candidates'):
      jagged = batch.jagged[name]
      sums = jagged.lengths.reshape(shards, -1).sum(1)
      np.testing.assert_array_equal(jagged.first, np.cumsum(sums) - sums)
  if shards > 1:
    for k in range(shards):
      own = batches.eval_batches(
        data,
        split,
        batch_size=8,
        capacity=capacity,
        shards=shards,
        own=range(k, k + 1),
        **LIMITS,
      )
      for part, batch in zip(own, made, strict=True):
        share = slice(k * 8 // shards, (k + 1) * 8 // shards)
        np.testing.assert_array_equal(part.row, batch.row[share])
        np.testing.assert_array_equal(
          part.jagged['history'].first, batch.jagged['history'].first[k : k + 1]
        )


def test_evaluation_of_one_step_of_a_stream():
  data = make_dataset(7, steps=5, longest=400, most_candidates=90)
  split = data.splits['test']
  options = dict(batch_size=4, max_history=300, max_candidates=50)
  every = list(batches.eval_batches(data, split, **options))
  shapes = {str(jax.tree.map(np.shape, batch)) for batch in every}
  rows = []
  for step in range(-1, 6):
    for batch in batches.eval_batches(data, split, step=step, **options):
      shapes.add(str(jax.tree.map(np.shape, batch)))
      valid = batch.row[batch.row >= 0]
      assert (split.step[valid] == step).all()
      rows += valid.tolist()
  assert len(shapes) == 1
  assert rows == [r for b in every for r in b.row.tolist() if r >= 0]
  plain = make_dataset(7)
  with pytest.raises(ValueError, match='there is no step 3 to evaluate'):
    list(batches.eval_batches(plain, plain.splits['test'], step=3, **options))


def test_a_request_without_labels_is_predicted():
  data = make_dataset(8)
  split = data.splits['test']
  unknown = type(split)(**{**vars(split), 'labels': {}, 'weight': None})
  (batch,) = batches.eval_batches(data, unknown, batch_size=99, **LIMITS)
  floats = batch.jagged['candidates'].floats
  number = batch.jagged['candidates'].lengths.sum()
  assert floats.names == ('liked', 'seconds', 'weight')
  assert floats.values[:number].tolist() == [[0, 0, 1]] * int(number)


@pytest.mark.parametrize('order', request_order.ORDERS)
@pytest.mark.parametrize('shards', [1, 2])
def test_chosen_capacities_leave_few_shapes(order, shards):
  data = make_dataset(9, users=60, longest=400, most_candidates=90, steps=4)
  split = data.splits['train']
  options = dict(
    seed=2,
    batch_size=4,
    max_history=300,
    max_candidates=50,
    order=order,
    stochastic=StochasticLength(1.5),
    shards=shards,
  )
  for most in (1, 3):
    chosen = batches.choose_capacities(data, split, most, **options)
    assert len(chosen.sizes) <= most
    made = batches.train_batches(
      data, split, capacities=chosen, prefetch=0, **options
    )
    count = request_order.steps_per_epoch(split, 4, order) * (
      1 if order == 'stream' else 16
    )
    rooms, need = set(), np.zeros(2, int)
    for batch in itertools.islice(made, count):
      both = [batch.jagged[name] for name in ('history', 'candidates')]
      rooms.add(tuple(len(x.columns.values) // shards for x in both))
      sums = [x.lengths.reshape(shards, -1).sum(1).max() for x in both]
      need = np.maximum(need, sums)
    assert rooms <= set(chosen.sizes)
    # No more than the largest batch takes.
    assert chosen.sizes[0] == tuple((-(-need // 128) * 128).tolist())
  assert batches.choose_capacities(data, split, 0, **options) is None


def test_what_does_not_fit_is_refused():
  data = make_dataset(0)
  split = data.splits['train']
  with pytest.raises(ValueError, match='3 requests for a batch of 2'):
    batches.collate_requests(data, split, [0, 1, 2], batch_size=2, **LIMITS)
  with pytest.raises(ValueError, match='candidates for a capacity of 4 and 3'):
    batches.collate_requests(
      data,
      split,
      np.arange(4),
      batch_size=4,
      capacity=(4, 3),
      draws=Draws(0, 0),
      **LIMITS,
    )
  with pytest.raises(
    ValueError, match='train.batch_size is 5, .* a multiple of 2'
  ):
    train(data, split, 5, seed=0, shards=2)
  with pytest.raises(ValueError, match='events cannot hold one request of 16'):
    list(
      batches.eval_batches(data, split, batch_size=4, capacity=(8, 8), **LIMITS)
    )
  none = make_dataset(0, most_candidates=0).splits['train']
  with pytest.raises(ValueError, match='no requests with candidates to train'):
    train(data, none, seed=0)
  empty = list(batches.eval_batches(data, none, batch_size=4, **LIMITS))
  assert empty == []
