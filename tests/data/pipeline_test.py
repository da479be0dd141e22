import itertools

import jax
import numpy as np
import pytest

from genrec_jax.data import histories, pipeline, splits


def make(lengths, times=True, seed=0):
  rng = np.random.default_rng(seed)
  user = np.repeat(np.arange(len(lengths)) + 100, lengths)
  time = np.sort(rng.integers(10**9, 10**9 + 10**5, len(user)))
  item = rng.integers(1, 30, len(user))
  return histories.from_arrays(user, item, time if times else None)


def quiet(_):
  pass


def slow_collate(h, examples, indices, max_len, batch_size, capacity):
  """One sequence, one token at a time."""
  out = {
    'row': [-1] * batch_size,
    'lengths': [0] * batch_size,
    'item': [],
    'time': [],
    'next_item': [],
    'next_time': [],
  }
  for place, i in enumerate(indices):
    end = int(examples.end[i])
    begin = max(int(examples.begin[i]), end - max_len)
    out['row'][place] = int(examples.row[i])
    out['lengths'][place] = end - begin
    for p in range(begin, end):
      out['item'].append(int(h.items[p]))
      out['next_item'].append(int(h.items[p + 1]))
      t = h.times if h.has_times else [0] * len(h.items)
      out['time'].append(int(t[p] - t[begin]))
      out['next_time'].append(int(t[p + 1] - t[begin]))
  for name in ('item', 'time', 'next_item', 'next_time'):
    out[name] += [0] * (capacity - len(out[name]))
  return out


def column_of(batch, name):
  events = batch.jagged['events']
  if name == 'row':
    return batch.row
  return events.lengths if name == 'lengths' else events[name]


def assert_equals(batch, expected):
  weights = np.asarray(expected['row']) >= 0
  np.testing.assert_array_equal(batch.weights, weights)
  for name, values in expected.items():
    got = column_of(batch, name)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, values, err_msg=name)


@pytest.mark.parametrize('times', [True, False])
@pytest.mark.parametrize('max_len', [1, 4, 100])
@pytest.mark.parametrize('windows', ['latest', 'all'])
def test_collate_equals_a_loop(times, max_len, windows):
  h = make([2, 3, 10, 11, 1, 12, 25], times)
  examples = splits.keep_whole(h, windows=windows, max_len=max_len)
  rng = np.random.default_rng(1)
  for n in (0, 1, 4):
    indices = rng.permutation(len(examples))[:n]
    batch = pipeline.collate_examples(
      h, examples, indices, max_len=max_len, batch_size=5
    )
    events = batch.jagged['events']
    capacity = pipeline.capacity_for(events.lengths.sum())
    assert events['item'].shape == (capacity,) and batch.seen is None
    assert_equals(
      batch, slow_collate(h, examples, indices, max_len, 5, capacity)
    )


@pytest.mark.parametrize('times', [True, False])
def test_histories_to_be_continued_have_no_next_item(times):
  h = make([1, 3, 12], times)
  examples = splits.to_predict(h)
  (batch,) = pipeline.eval_batches(
    h, examples, batch_size=3, capacity=128, max_len=9, seen='history'
  )
  events = batch.jagged['events']
  assert events.lengths.tolist() == [1, 3, 9]
  item, time = events['item'], events['time']
  next_item, next_time = events['next_item'], events['next_time']
  np.testing.assert_array_equal(item[:13], np.delete(h.items, range(4, 7)))
  last = np.array([0, 3, 12])
  others = np.setdiff1d(np.arange(13), last)
  assert next_item[last].tolist() == [0, 0, 0]
  np.testing.assert_array_equal(next_item[others], item[others + 1])
  np.testing.assert_array_equal(next_time[last], time[last])
  np.testing.assert_array_equal(next_time[others], time[others + 1])
  assert batch.seen.lengths.tolist() == [1, 3, 12]
  np.testing.assert_array_equal(batch.seen['item'][:16], h.items)


def test_collate_refuses_what_does_not_fit():
  h = make([5, 6, 7])
  examples = splits.keep_whole(h)
  with pytest.raises(ValueError, match='3 examples for a batch of 2'):
    pipeline.collate_examples(h, examples, [0, 1, 2], max_len=9, batch_size=2)
  with pytest.raises(ValueError, match='15 tokens for a capacity of 14'):
    pipeline.collate_examples(
      h, examples, [0, 1, 2], max_len=9, batch_size=3, capacity=14
    )


def test_times_beyond_int32_are_refused_and_the_user_is_named():
  time = [0, 1, 0, 2**31 - 1, 0, 2**31]
  h = histories.from_arrays(list('aabbcc'), [1] * 6, time)
  examples = splits.keep_whole(h)
  batch = pipeline.collate_examples(
    h, examples, [0, 1], max_len=9, batch_size=2
  )
  assert batch.jagged['events']['next_time'].max() == 2**31 - 1
  with pytest.raises(ValueError, match='user c span 2147483648.*milliseconds'):
    pipeline.collate_examples(h, examples, [0, 1, 2], max_len=9, batch_size=3)


def test_capacity_ladder():
  ladder = sorted({pipeline.capacity_for(n) for n in range(5000)})
  expected = {m * 2**k for m in range(8, 16) for k in range(12)}
  assert ladder == sorted(c for c in expected if 128 <= c <= ladder[-1])
  for n in range(1, 5000):
    c = pipeline.capacity_for(n)
    assert c >= n and (c == 128 or c * 8 <= 9 * n)
    assert pipeline.capacity_for(c) == c
  assert pipeline.capacity_for(0) == 128


def rows(batch):
  return batch.row[batch.row >= 0].tolist()


@pytest.mark.parametrize('prefetch', [0, 2])
def test_every_epoch_takes_each_example_once_in_its_own_order(prefetch):
  h = make([4] * 10)
  examples = splits.keep_whole(h)
  steps = pipeline.steps_per_epoch(examples, 4)
  assert steps == 3
  it = iter(
    pipeline.train_batches(
      h, examples, batch_size=4, max_len=9, seed=1, prefetch=prefetch
    )
  )
  epochs = [[rows(next(it)) for _ in range(steps)] for _ in range(4)]
  it.close()
  orders = [sum(epoch, []) for epoch in epochs]
  for epoch, order in zip(epochs, orders, strict=True):
    assert [len(b) for b in epoch] == [4, 4, 2]
    assert sorted(order) == list(range(10))
  assert len({tuple(order) for order in orders}) == 4


def test_unshuffled_batches_are_in_order_in_every_epoch():
  h = make([4] * 5)
  it = iter(
    pipeline.train_batches(
      h, splits.keep_whole(h), batch_size=3, max_len=9, seed=1, shuffle=False
    )
  )
  got = [rows(next(it)) for _ in range(4)]
  it.close()
  assert got == [[0, 1, 2], [3, 4]] * 2


def test_seeds_differ():
  h = make([4] * 10)
  first = []
  for seed in (1, 2, 1):
    dataset = pipeline.train_batches(
      h, splits.keep_whole(h), batch_size=10, max_len=9, seed=seed, prefetch=0
    )
    first.append(rows(next(iter(dataset))))
  assert first[0] == first[2] != first[1]


@pytest.mark.parametrize('before, after', [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_resume_is_exact_within_and_across_epochs(before, after):
  h = make([3, 4, 5, 6, 7, 8, 9, 10, 2, 2])

  def dataset(prefetch):
    return pipeline.train_batches(
      h,
      splits.keep_whole(h),
      batch_size=4,
      max_len=9,
      seed=5,
      prefetch=prefetch,
    )

  it = iter(dataset(before))
  states, batches = [], []
  for _ in range(11):  # three epochs and a bit
    states.append(it.get_state())
    batches.append(next(it))
  it.close()
  for stop in (0, 1, 2, 3, 4, 7):
    again = iter(dataset(after))
    again.set_state(states[stop])
    for batch in batches[stop:]:
      jax.tree.map(np.testing.assert_array_equal, next(again), batch)
    again.close()


@pytest.mark.parametrize('seen', ['window', 'history'])
@pytest.mark.parametrize('capacity', [9, 20, 1000])
def test_eval_batches_equal_a_loop(seen, capacity):
  h = make([2, 3, 10, 11, 12, 25, 1, 2, 5, 5, 5])
  examples = splits.split_histories(h, dict(holdout=2), log=quiet)['test']
  batches = list(
    pipeline.eval_batches(
      h, examples, batch_size=3, capacity=capacity, max_len=9, seen=seen
    )
  )
  done = 0
  for batch in batches:
    n = len(rows(batch))
    assert_equals(
      batch,
      slow_collate(h, examples, range(done, done + n), 9, 3, capacity),
    )
    done += n
    full = n == 3 or done == len(examples)
    if not full:  # the next example would not have fitted
      following = min(9, examples.end[done] - examples.begin[done])
      tokens = batch.jagged['events'].lengths.sum()
      assert tokens + following > capacity
    if seen == 'window':
      assert batch.seen is None
      continue
    bounds = np.cumsum(batch.seen.lengths)
    for place, row in enumerate(rows(batch)):
      stop = bounds[place]
      values = batch.seen['item'][stop - batch.seen.lengths[place] : stop]
      own = h.items[h.offsets[row] : h.offsets[row + 1] - 1]
      np.testing.assert_array_equal(values, own)
    assert not batch.seen['item'][bounds[-1] :].any()
  assert done == len(examples)
  shapes = {
    tuple(leaf.shape for leaf in jax.tree.leaves(batch)) for batch in batches
  }
  assert len(shapes) == 1


def test_eval_batches_of_nothing_and_bad_arguments():
  h = make([3, 4])
  none = splits.ExampleSpans(*(np.zeros(0, np.int64),) * 3)

  def run(examples, **changed):
    options = dict(batch_size=2, capacity=9, max_len=9) | changed
    return list(pipeline.eval_batches(h, examples, **options))

  assert run(none) == [] == run(none, seen='history')
  with pytest.raises(ValueError, match='cannot hold one example of 9'):
    run(splits.keep_whole(h), capacity=8)
  with pytest.raises(ValueError, match="'window' or 'history'"):
    run(splits.keep_whole(h), seen='all')


def test_batches_are_read_from_mapped_columns_alike(tmp_path):
  from genrec_jax.data import convert, readers

  h = make([3, 9, 4])
  user = np.repeat(h.users.ids, np.diff(h.offsets))
  events = readers.Events(user, h.vocab.ids[h.items - 1], h.times)
  mapped = convert.convert_log([events], tmp_path / 'h', log=quiet)
  for a, b in itertools.islice(
    zip(
      *(
        pipeline.train_batches(
          x, splits.keep_whole(x), batch_size=2, max_len=5, seed=0, prefetch=0
        )
        for x in (h, mapped)
      ),
      strict=True,
    ),
    5,
  ):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- Batches in shards


def real(batch, own, shards, rows_of):
  """What stands in the shards of a batch, without the padding."""
  tokens = {name: [] for name in ('item', 'time', 'next_item', 'next_time')}
  lengths, users, seen, first = [], [], [], []
  events = batch.jagged['events']
  for k in range(own):
    row = slice(k * rows_of, (k + 1) * rows_of)
    here = batch.row[row] >= 0
    assert not np.any(events.lengths[row][~here])
    n = int(events.lengths[row].sum())
    for name, found in tokens.items():
      part = np.split(events[name], own)[k]
      found.append(part[:n])
      assert not part[n:].any()
    lengths.append(events.lengths[row][here])
    users.append(batch.row[row][here])
    first.append(int(events.first[k]))
    if batch.seen is not None:
      part = np.split(batch.seen['item'], own)[k]
      seen.append(part[: batch.seen.lengths[row].sum()])
  joined = {name: np.concatenate(found) for name, found in tokens.items()}
  joined |= {'lengths': np.concatenate(lengths), 'users': np.concatenate(users)}
  if seen:
    joined['seen'] = np.concatenate(seen)
  counts = [len(t) for t in tokens['item']]
  return joined, first, counts


def assert_joined_equal(parts, whole):
  assert parts.keys() == whole.keys()
  for name, values in whole.items():
    np.testing.assert_array_equal(parts[name], values, err_msg=name)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('shards', [2, 4, 8])
def test_the_shards_of_a_batch_are_the_batch_in_order(shards, seed):
  rng = np.random.default_rng(seed)
  h = make(rng.integers(2, 40, 30), seed=seed)
  examples = splits.keep_whole(h)
  n = int(rng.integers(0, 17))  # often too few: the last shards are empty
  indices = rng.permutation(len(examples))[:n]
  options = dict(max_len=25, batch_size=16)
  whole = pipeline.collate_examples(h, examples, indices, **options)
  batch = pipeline.collate_examples(
    h, examples, indices, shards=shards, **options
  )
  want, (zero,), _ = real(whole, 1, 1, 16)
  got, first, counts = real(batch, shards, shards, 16 // shards)
  assert zero == 0
  assert_joined_equal(got, want)
  assert first == [sum(counts[:k]) for k in range(shards)]
  dtypes = {leaf.dtype for leaf in jax.tree.leaves(batch)}
  assert dtypes == {np.dtype('int32'), np.dtype('float32')}
  assert len(batch.jagged['events']['item']) == shards * pipeline.capacity_for(
    max(counts)
  )


@pytest.mark.parametrize('processes', [2, 4])
def test_processes_make_disjoint_parts_of_the_same_batch(processes):
  h = make([2, 3, 10, 611, 2, 120, 250, 40, 500, 6, 7])

  def batches(own=None):
    it = iter(
      pipeline.train_batches(
        h,
        splits.keep_whole(h),
        batch_size=8,
        max_len=500,
        seed=3,
        prefetch=0,
        shards=8,
        own=own,
      )
    )
    return [(next(it), it.get_state()) for _ in range(5)]

  each = 8 // processes
  owns = [range(p * each, (p + 1) * each) for p in range(processes)]
  found = [batches(own) for own in owns]
  for step, (whole, state) in enumerate(batches()):
    parts = [one[step][0] for one in found]
    joined = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    jax.tree.map(np.testing.assert_array_equal, joined, whole)
    assert all(one[step][1] == state for one in found)
    tokens = len(whole.jagged['events']['item'])
    for part in parts:
      assert len(part.jagged['events']['item']) == tokens // processes


def test_a_run_may_go_on_with_another_number_of_shards():
  h = make([3, 4, 5, 6, 7, 8, 9, 10, 2, 2])

  def iterator(shards):
    return iter(
      pipeline.train_batches(
        h, splits.keep_whole(h), batch_size=8, max_len=9, seed=5, shards=shards
      )
    )

  one, eight = iterator(1), iterator(8)
  for _ in range(3):
    next(one)
  eight.set_state(one.get_state())
  for _ in range(3):
    want, _, _ = real(next(one), 1, 1, 8)
    got, _, _ = real(next(eight), 8, 8, 1)
    assert_joined_equal(got, want)
  one.close()
  eight.close()


@pytest.mark.parametrize('seen', ['window', 'history'])
@pytest.mark.parametrize('shards', [1, 2, 4])
def test_evaluation_in_shards_takes_every_example_once(shards, seen):
  h = make([2, 3, 10, 11, 12, 25, 2, 2, 5, 5, 5, 30, 2])
  examples = splits.split_histories(h, dict(holdout=2), log=quiet)['test']
  options = dict(batch_size=8, max_len=9, seen=seen)

  def run(own=None):
    return list(
      pipeline.eval_batches(
        h, examples, capacity=20 * shards, shards=shards, own=own, **options
      )
    )

  found = run()
  joined = [real(b, shards, shards, 8 // shards) for b in found]
  (whole,) = pipeline.eval_batches(
    h, examples, capacity=1000, **(options | {'batch_size': 100})
  )
  want, _, _ = real(whole, 1, 1, 100)
  got = {
    name: np.concatenate([part[name] for part, _, _ in joined])
    for name in joined[0][0]
  }
  assert_joined_equal(got, want)
  for _, first, counts in joined:
    assert first == [sum(counts[:k]) for k in range(shards)]
  shapes = {tuple(x.shape for x in jax.tree.leaves(b)) for b in found}
  assert len(shapes) == 1
  assert len(found[0].jagged['events']['item']) == 20 * shards
  if shards > 1:
    low, high = run(range(shards // 2)), run(range(shards // 2, shards))
    for a, b, both in zip(low, high, found, strict=True):
      both_parts = jax.tree.map(lambda x, y: np.concatenate([x, y]), a, b)
      jax.tree.map(np.testing.assert_array_equal, both_parts, both)


def test_batches_that_cannot_be_shared_are_refused():
  h = make([5, 6, 7])
  examples = splits.keep_whole(h)
  with pytest.raises(
    ValueError, match='train.batch_size is 9, .* a multiple of 4'
  ):
    pipeline.train_batches(
      h, examples, batch_size=9, max_len=9, seed=0, shards=4
    )
  options = dict(max_len=9, capacity=35, shards=4)
  with pytest.raises(ValueError, match='batch_size is 9, .* a multiple of 4'):
    next(pipeline.eval_batches(h, examples, batch_size=9, **options))
  with pytest.raises(ValueError, match='of 9; 4 devices need 36 together'):
    next(pipeline.eval_batches(h, examples, batch_size=8, **options))
