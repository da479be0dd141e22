import numpy as np
import pytest

from genrec_jax.data import histories, pipeline, splits
from genrec_jax.features import EVENTS, PAD


def quiet(_):
  pass


def make(lengths, seed=0, span=1000, ties=True):
  rng = np.random.default_rng(seed)
  user = np.repeat(np.arange(len(lengths)), lengths)
  time = rng.integers(0, span if ties else 10**9, len(user)) + 10**6
  item = rng.integers(1, 30, len(user))
  return histories.from_arrays(user, item, time)


def as_lists(examples):
  return list(
    zip(
      examples.row.tolist(),
      examples.begin.tolist(),
      examples.end.tolist(),
      strict=True,
    )
  )


@pytest.mark.parametrize('holdout', [1, 2])
def test_leave_last_out_equals_a_loop(holdout):
  h = make([1, 2, 3, 4, 9, 1, 30])
  said = []
  parts = splits.split_histories(h, dict(holdout=holdout), log=said.append)
  expected = {'train': [], 'valid': [], 'test': []}
  for row in range(len(h)):
    begin, stop = h.offsets[row : row + 2].tolist()
    for part, end in [
      ('train', stop - 1 - holdout),
      ('valid', stop - 2),
      ('test', stop - 1),
    ]:
      if end - begin >= 1:
        expected[part].append((row, begin, end))
  if holdout == 1:
    del expected['valid']
  assert {k: as_lists(v) for k, v in parts.items()} == expected
  assert '2 of 7 users have too few events for the test split' in said[-1]


def test_users_too_short_are_counted_and_an_empty_part_is_an_error():
  with pytest.raises(ValueError, match='train split is empty'):
    splits.split_histories(make([2, 3]), dict(holdout=2), log=quiet)


@pytest.mark.parametrize('target', ['last', 'first', 'all'])
@pytest.mark.parametrize('valid', [None, 1_000_300, 0.3])
def test_global_time_equals_a_loop(target, valid, monkeypatch):
  monkeypatch.setattr(splits, 'CHUNK', 7)  # many chunks
  h = make([1, 2, 3, 17, 1, 5, 30, 2, 8], seed=4)
  cfg = dict(
    name='global_time', valid_from=valid, test_from=1_000_600, target=target
  )
  said = []
  parts = splits.split_histories(h, cfg, log=said.append)
  assert said[-1] == 'split: 2 users have a single event and are in no split'
  cut = {None: 1_000_600, 1_000_300: 1_000_300}.get(valid)
  if cut is None:
    cut = np.sort(h.times)[int(0.3 * len(h.times))]
  expected = {'train': [], 'valid': [], 'test': []}
  for row in range(len(h)):
    begin, stop = h.offsets[row : row + 2].tolist()
    at = range(begin, stop)
    train = [p for p in at if h.times[p] < cut]
    if len(train) >= 2:
      expected['train'].append((row, begin, train[-1]))
    for part, low, high in [
      ('valid', cut, 1_000_600),
      ('test', 1_000_600, 10**9),
    ]:
      targets = [p for p in at if low <= h.times[p] < high and p > begin]
      if target == 'last':
        targets = targets[-1:]
      if target == 'first':
        targets = targets[:1]
      expected[part] += [(row, begin, p) for p in targets]
  if valid is None:
    del expected['valid']
  assert {k: as_lists(v) for k, v in parts.items()} == expected


@pytest.mark.parametrize('span', [1, 50, 10**12])
@pytest.mark.parametrize('fraction', [0.001, 0.1, 0.5, 0.9, 0.9999])
def test_time_quantile_equals_sorting(span, fraction, monkeypatch):
  monkeypatch.setattr(splits, 'CHUNK', 100)
  times = np.random.default_rng(1).integers(0, span, 777)
  expected = np.sort(times)[int(fraction * len(times))]
  assert splits.time_quantile(times, fraction) == expected


def test_windows_cover_every_target_once():
  h = make([2, 3, 10, 11, 12, 13, 40])
  parts = splits.split_histories(
    h, dict(holdout=1, windows='all'), max_len=5, log=quiet
  )
  train, max_len = parts['train'], 5
  expected = []
  for row in range(len(h)):
    begin, end = int(h.offsets[row]), int(h.offsets[row + 1]) - 2
    while end > begin:
      expected.append((row, max(begin, end - max_len), end))
      end -= max_len
  assert as_lists(train) == expected
  targets = np.concatenate(
    [np.arange(b + 1, e + 1) for _, b, e in as_lists(train)]
  )
  latest = splits.split_histories(h, dict(holdout=1), log=quiet)['train']
  assert sorted(targets) == sorted(
    p for _, b, e in as_lists(latest) for p in range(b + 1, e + 1)
  )
  # Only the training split has windows.
  assert len(parts['test']) == len(h)


@pytest.mark.parametrize('windows', ['latest', 'all'])
def test_each_event_of_training_counts_once(windows, monkeypatch):
  monkeypatch.setattr(splits, 'CHUNK', 13)
  h = make([2, 3, 10, 11, 12, 1, 13, 40])
  cfg = dict(holdout=1, windows=windows)
  train = splits.split_histories(h, cfg, max_len=4, log=quiet)['train']
  counts = splits.count_events(h, train)
  events = [
    h.items[p]
    for row in range(len(h))
    if h.offsets[row + 1] - h.offsets[row] >= 3
    for p in range(h.offsets[row], h.offsets[row + 1] - 1)
  ]
  np.testing.assert_array_equal(
    counts, np.bincount(events, minlength=h.vocab.rows)
  )
  assert counts.dtype == np.int64


@pytest.mark.parametrize('max_len', [1, 4, 100])
@pytest.mark.parametrize('windows', ['latest', 'all'])
@pytest.mark.parametrize(
  'cfg',
  [
    dict(holdout=1),
    dict(holdout=2),
    dict(name='global_time', valid_from=0.6, test_from=0.8),
    dict(name='stream', test_fraction=0.2),
  ],
  ids=lambda cfg: '-'.join(map(str, cfg.values())),
)
def test_targets_are_counted_as_an_epoch_trains_them(
  cfg, windows, max_len, monkeypatch
):
  h = make([2, 3, 10, 11, 12, 1, 13, 40])
  cfg = dict(cfg, windows=windows)
  train = splits.split_histories(h, cfg, max_len=max_len, log=quiet)['train']
  dataset = pipeline.train_batches(
    h, train, batch_size=3, max_len=max_len, seed=0, prefetch=0
  )
  batches = iter(dataset)
  expected = np.zeros(h.vocab.rows, int)
  tokens = 0
  for _ in range(pipeline.steps_per_epoch(train, 3)):
    events = next(batches).jagged[EVENTS]
    expected += np.bincount(events['next_item'], minlength=h.vocab.rows)
    tokens += int(events.lengths.sum())
  expected[PAD] = 0
  monkeypatch.setattr(splits, 'CHUNK', 13)
  counts = splits.count_targets(h, train, max_len)
  np.testing.assert_array_equal(counts, expected)
  assert counts.sum() == tokens
  popularity = splits.count_events(h, train)
  assert np.all(popularity >= counts) and popularity.sum() > counts.sum()


def test_stream_splits_records_in_order():
  h = make([3] * 20)
  parts = splits.split_histories(h, dict(name='stream'), log=quiet)
  assert parts['train'].row.tolist() == list(range(18))
  assert parts['test'].row.tolist() == [18, 19]
  assert parts['test'].end.tolist() == [56, 59]
  cfg = dict(name='stream', test_fraction=0.2, valid_fraction=0.1)
  parts = splits.split_histories(h, cfg, log=quiet)
  assert [len(parts[k]) for k in ('train', 'valid', 'test')] == [14, 2, 4]


def test_whole_holds_nothing_out():
  h = make([1, 2, 9])
  assert as_lists(splits.keep_whole(h)) == [(1, 1, 2), (2, 3, 11)]
  assert as_lists(splits.to_predict(h)) == [(0, 0, 1), (1, 1, 3), (2, 3, 12)]
  windows = splits.keep_whole(h, windows='all', max_len=5)
  assert as_lists(windows) == [(1, 1, 2), (2, 6, 11), (2, 3, 6)]


@pytest.mark.parametrize(
  'cfg, message',
  [
    (dict(name='nope'), 'split.name must be one of'),
    (dict(holdout=3), 'holdout must be 1 or 2'),
    (dict(windows='some'), "windows must be 'latest' or 'all'"),
    (dict(windows='all'), 'needs max_len'),
    (dict(name='global_time', test_from=0), 'test_from must be'),
    (dict(name='global_time', test_from=float('nan')), 'test_from must be'),
    (dict(name='global_time', test_from=0.5, target='x'), 'target must be'),
    (dict(name='global_time', valid_from=0.9, test_from=0.5), 'is after'),
  ],
)
def test_errors(cfg, message):
  with pytest.raises(ValueError, match=message):
    splits.split_histories(make([5, 6, 7]), cfg, log=quiet)


def test_global_time_needs_times():
  h = histories.from_arrays([1, 1, 1], [1, 2, 3])
  with pytest.raises(ValueError, match='needs a log with times'):
    splits.split_histories(h, dict(name='global_time'), log=quiet)


@pytest.mark.parametrize('max_len', [None, 1, 3])
def test_repeats_equal_a_loop(max_len, monkeypatch):
  monkeypatch.setattr(splits, 'CHUNK', 50)  # many chunks, and a part of them
  h = make([2, 3, 9, 30, 30, 17, 2] * 3, span=10)
  examples = splits.split_histories(
    h, dict(name='global_time', test_from=0.5, target='all'), log=quiet
  )['test']
  lengths = examples.end - h.offsets[examples.row]
  if max_len:
    lengths = np.minimum(examples.end - examples.begin, max_len)
  every = max(1, -(-int(lengths.sum()) // 200))
  repeated = 0
  for end, length in zip(
    examples.end[::every], lengths[::every], strict=True
  ):  # fmt: skip
    repeated += h.items[end] in h.items[end - length : end]
  total = len(examples.end[::every])
  assert (every > 1) == (max_len != 1) and 0 < repeated < total
  assert splits.count_repeats(h, examples, max_len) == (repeated, total)


def test_the_line_about_times_has_dates():
  said = []
  h = make([5, 9, 9], seed=2, ties=False)
  splits.split_histories(
    h, dict(name='global_time', test_from=0.8, valid_from=0.6), log=said.append
  )
  (line,) = [x for x in said if 'validation from' in x]
  assert line.count(' UTC') == 2 and not any(
    word.isdigit() for word in line.replace(',', '').split()
  )
