"""UserBehavior.csv as examples, beside a script that holds everything."""

import collections
import dataclasses
import gzip
import itertools
import math
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import behaviour_rows, taobao, taobao_sort
from tests.data.ranking.behaviour_files import (
  make_events,
  split_lists,
  write_events,
)

LISTS = ('item', 'category', 'age', 'time', 'behaviour')


def read_examples(path, name, **options):
  """The examples of a split, a tuple each."""
  log = taobao.TaobaoClicks(
    path, taobao.TaobaoOptions(**options), path.parent / 'scratch', lambda _: 0
  )
  out, chunks = [], log.read_chunks(taobao.NAMES, name)
  try:
    first = [next(chunks)]
  except ValueError as error:
    if 'holds no rows' not in str(error):
      raise
    return []
  for chunk in itertools.chain(first, chunks):
    lists = {
      key: map(tuple, split_lists(chunk.columns[f'history_{key}']))
      for key in LISTS
    }
    single = [
      chunk.columns[key].values.tolist()
      for key in ('user', 'item', 'category', 'time', 'label')
    ]
    out += zip(*single, *lists.values(), strict=True)
  return out


class Script:
  """The published preparation and our correction, one event at a time."""

  def __init__(self, rows, history, most, points, quantile):
    self.most, self.points, self.history = most, points, history
    self.category = {}
    self.of = collections.defaultdict(list)
    for user, item, category, word, time in rows:
      self.category.setdefault(item, category)
      self.of[user].append((time, item, category, word))
    for events in self.of.values():
      events.sort(key=lambda event: event[0])  # which is stable
    last = sorted(events[-1][0] for events in self.of.values())
    after = last[int(len(last) * quantile)]
    self.testers = {u for u, e in self.of.items() if e[-1][0] > after}

  def past(self, user):
    return self.of[user][-self.most :][:-1]

  def count(self, user):
    size = len(self.past(user))
    for limit, count in ((10, 0), (20, 1), (30, 3), (40, 6)):
      if size < limit:
        return count
    return self.points

  def row(self, user, shown, before):
    """A tuple as `read_examples` has them, without the label."""
    time, item, category = shown[:3]
    before = before[-self.history :]
    return (
      user, item, category, time, tuple(e[1] for e in before),
      tuple(e[2] for e in before), tuple(time - e[0] for e in before),
      tuple(e[0] for e in before), tuple(e[3] for e in before),
    )  # fmt: skip

  def positives(self, user):
    """Every window that may be drawn."""
    past = self.past(user)
    least = min(self.history, len(past) - 1)
    return {
      self.row(user, past[end], past[:end]) for end in range(least, len(past))
    }

  def negatives(self, user):
    """Every window, with the item that is replaced."""
    past = self.past(user)
    events = [*past, self.of[user][-1]]
    least = min(self.history - 1, len(past) - 1)
    return {
      self.row(user, events[end + 1], past[: end + 1])
      for end in range(least, len(past))
    }

  def target(self, user):
    return self.row(user, self.of[user][-1], self.past(user))


def without_candidate(row):
  return row[0], *row[3:]


def split_label(row):
  return row[4], (*row[:4], *row[5:])


SIZES = st.lists(st.sampled_from((1, 2, 9, 11, 12, 21, 33, 45)), min_size=2,
                 max_size=8)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
  SIZES,
  st.integers(0, 999),
  st.sampled_from((1, 3, 20)),
  st.sampled_from((12, 30, 200)),
  st.sampled_from(taobao.SPLITS),
)
def test_examples_are_those_of_a_script(
  tmp_path_factory, lengths, seed, history, most, split
):
  options = dict(
    split=split, history=history, most=most, points=8, memory_mb=0,
    train_quantile=0.6, valid_share=0.4, seed=seed,
  )  # fmt: skip
  rows = make_events(seed, lengths)
  path = write_events(tmp_path_factory.mktemp('log') / 'log.csv', rows)
  script = Script(rows, history, most, 8, 0.6)
  read = {
    name: read_examples(path, name, **options)
    for name in ('train', 'valid', 'test')
  }
  users = {name: {row[0] for row in found} for name, found in read.items()}
  assert users['test'] == {
    user for user in script.testers if len(script.of[user]) > 1
  }
  able = {u for u in script.of if u not in script.testers and script.count(u)}
  if split == 'published':
    assert users['train'] == able and users['valid'] <= able
  else:
    assert users['train'] | users['valid'] == able
    assert not users['train'] & users['valid']

  for name in ('train', 'valid'):
    labels = collections.Counter((row[0], row[4]) for row in read[name])
    for user in users[name]:
      wanted = script.count(user) if name == 'train' else 1
      assert labels[user, 0] == labels[user, 1] == wanted
    for label, row in map(split_label, read[name]):
      user, item, category = row[:3]
      if label:
        assert row in script.positives(user)
        continue
      assert category == script.category[item]
      assert without_candidate(row) in map(
        without_candidate, script.negatives(user)
      )
      met = script.of[user][-most if split == 'published' else 0 :]
      assert item not in {event[1] for event in met}
  assert len(read['test']) == len(users['test'])
  for label, row in map(split_label, read['test']):
    target = script.target(row[0])
    if label:
      assert row == target
      continue
    assert without_candidate(row) == without_candidate(target)
    assert row[2] == script.category[row[1]]
    met = {event[1] for event in script.of[row[0]]}
    assert row[1] not in ({target[1]} if split == 'published' else met)


def test_windows_are_drawn_from_all_that_are_possible(tmp_path):
  rows = make_events(0, [30] * 40, items=90, seconds=10**6)
  path = write_events(tmp_path / 'log.csv', rows)
  script = Script(rows, 20, 200, 10, 0.9)
  read = read_examples(path, 'train', train_quantile=0.9, valid_share=0.01)
  labels = [row[4] for row in read]
  assert sum(labels) == len(labels) / 2
  windows = {split_label(row)[1] for row in read if row[4]}
  users = {row[0] for row in read}
  possible = {row for user in users for row in script.positives(user)}
  # Three draws of each user from nine windows.
  share = 1 - (8 / 9) ** 3
  assert len(windows) / len(possible) == pytest.approx(share, abs=0.06)
  # Of ten negative ones, the first of which ends with event number T.
  windows = {without_candidate(split_label(r)[1]) for r in read if not r[4]}
  firsts = {
    min(map(without_candidate, script.negatives(user)), key=lambda row: row[1])
    for user in users
  }
  assert len(windows & firsts) / len(firsts) == pytest.approx(0.271, abs=0.2)
  possible = {
    without_candidate(row) for user in users for row in script.negatives(user)
  }
  assert len(windows) / len(possible) == pytest.approx(0.271, abs=0.06)


def test_published_users_validate_on_windows_of_their_own(tmp_path):
  rows = make_events(0, [30] * 40, items=90, seconds=10**6)
  path = write_events(tmp_path / 'log.csv', rows)
  train, valid = (
    {
      row
      for row in read_examples(path, name, split='published', valid_share=0.9)
      if row[4]
    }
    for name in ('train', 'valid')
  )
  # By chance alone, three draws of nine meet a fourth one.
  share = len(valid & train) / len(valid)
  assert share == pytest.approx(1 - (8 / 9) ** 3, abs=0.25)


def test_published_tests_may_replace_the_target_by_what_is_known(tmp_path):
  path = write_events(
    tmp_path / 'log.csv', make_events(0, [12] * 60, seconds=10**6)
  )
  for split in taobao.SPLITS:
    read = read_examples(path, 'test', split=split, train_quantile=0.1)
    known = [row[1] in row[5] for row in read if not row[4]]
    assert len(known) > 10 and any(known) == (split == 'published')


def test_half_of_the_test_is_negative_and_negatives_are_uniform(tmp_path):
  rng = np.random.default_rng(0)
  rows = [
    (u, int(i), int(i) % 4, 'pv', int(t))
    for u in range(900)
    for i, t in zip(rng.integers(50, size=3), rng.integers(99, size=3),
                    strict=True)
  ]  # fmt: skip
  path = write_events(tmp_path / 'log.csv', rows)
  read = read_examples(path, 'test', train_quantile=0.01)
  labels = np.array([row[4] for row in read])
  assert labels.mean() == pytest.approx(0.5, abs=0.06)
  drawn = np.bincount([r[1] for r in read if not r[4]], minlength=50)
  assert drawn.min() > 0 and drawn.max() < 3 * drawn.mean()


def test_the_numbers_of_windows():
  lengths = np.arange(0, 60)
  wanted = [0] * 10 + [1] * 10 + [3] * 10 + [6] * 10 + [7] * 20
  assert taobao.count_windows(lengths, 7).tolist() == wanted


def sort_rows(path, scratch, **options):
  """The users and events of a sorted log, as tuples."""
  lines = []
  with taobao_sort.sort_log(path, scratch, log=lines.append, **options) as log:
    events = log.read_events(0, int(log.offsets[-1]))
    user = np.repeat(log.users, np.diff(log.offsets)).tolist()
    item = log.catalogue.items[events['item']].tolist()
    words = [taobao_sort.BEHAVIOURS[i] for i in events['behaviour']]
    columns = events['category'].tolist(), words, events['time'].tolist()
    last = log.last_time.tolist()
    catalogue = dict(
      zip(
        log.catalogue.items.tolist(),
        log.catalogue.categories.tolist(),
        strict=True,
      )
    )
  assert not list(scratch.iterdir())
  return list(zip(user, item, *columns, strict=True)), last, catalogue, lines


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2500), st.integers(0, 999), st.integers(1, 40))
def test_runs_are_merged_in_the_order_of_user_time_and_file(
  tmp_path_factory, count, seed, seconds
):
  rng = random.Random(seed)
  rows = [
    (rng.randrange(-3, 9), rng.randrange(10**12), i, 'buy',
     rng.randrange(seconds))
    for i in range(count + 1)
  ]  # fmt: skip
  folder = tmp_path_factory.mktemp('log')
  path = write_events(folder / 'log.csv', rows)
  got, last, catalogue, lines = sort_rows(path, folder / 's', memory_mb=0)
  wanted = sorted(rows, key=lambda row: (row[0], row[4]))
  assert got == wanted
  ends = {row[0]: row[4] for row in wanted}
  assert last == list(ends.values())
  first = {row[1]: row[2] for row in reversed(rows)}
  assert catalogue == first
  runs = math.ceil(len(rows) / 16)  # 16 rows are the least that are sorted
  assert f'{len(rows):,} rows in {runs:,} sorted runs' in lines[0]


def test_duplicates_are_kept_and_a_file_may_be_compressed(tmp_path):
  rows = [(1, 2, 3, 'pv', 4)] * 3 + [(1, 5, 3, 'cart', 4)] * 2
  path = tmp_path / 'log.csv.gz'
  with gzip.open(path, 'wt') as f:
    f.writelines(','.join(map(str, row)) + '\r\n' for row in rows)
  assert sort_rows(path, tmp_path / 's')[0] == rows


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(taobao_sort, '_TEXT_ROWS', 1 << 12)
  peaks = []
  for count in (40_000, 160_000):
    rng = np.random.default_rng(0)
    numbers = rng.integers(3_000, size=(count, 3)).tolist()
    path = write_events(
      tmp_path / f'{count}.csv', [(u, i, i % 9, 'pv', t) for u, i, t in numbers]
    )
    tracemalloc.start()
    with taobao_sort.sort_log(
      path, tmp_path / 's', memory_mb=1, log=lambda _: 0
    ) as log:
      assert log.offsets[-1] == count
    peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
    tracemalloc.stop()
  # Sorted and merged in memory, 120,000 more rows would take 8 MB or more.
  assert peaks[1] < peaks[0] + 2


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('7,8,9,pv', r'log.csv, line 3: 4 fields instead of 5'),
    ('7,8,9,look,5', r"log.csv, line 3, column 3: the behaviour 'look' is no"),
    ('7,8,9,,5', r"log.csv, line 3, column 3: the behaviour '' is none of pv"),
    ('7,x8,9,pv,5', r"log.csv, line 3, column 1: the item 'x8' is no whole"),
    ('7,8,9.5,pv,5', r"log.csv, line 3, column 2: the category '9.5' is no"),
    ('7,8,9,pv,', r"log.csv, line 3, column 4: the time '' is no whole number"),
    ('7,8,9,pv,-5', r"log.csv, line 3, column 4: the time '-5' is negative"),
  ],
)
def test_damaged_lines_are_refused_with_their_number(tmp_path, line, message):
  path = tmp_path / 'log.csv'
  path.write_text(f'1,2,3,pv,4\n1,2,3,fav,4\n{line}\n1,2,3,pv,4\n')
  with pytest.raises(ValueError, match=message):
    sort_rows(path, tmp_path / 's', memory_mb=0)
  assert not list((tmp_path / 's').iterdir())


def test_a_header_and_an_empty_file_are_refused(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('user,item,category,behaviour,time\n1,2,3,pv,4\n')
  with pytest.raises(ValueError, match='line 1, .*without a header'):
    sort_rows(path, tmp_path / 's')
  path.write_text('')
  with pytest.raises(ValueError, match='log.csv: the file holds no events'):
    sort_rows(path, tmp_path / 's')
  with pytest.raises(FileNotFoundError, match='gone.csv'):
    sort_rows(tmp_path / 'gone.csv', tmp_path / 's')


def test_rows_with_a_negative_time_are_dropped_on_demand(tmp_path):
  rows = [(1, 2, 3, 'pv', 4), (1, 5, 3, 'pv', -4), (6, 7, 3, 'pv', -1)]
  path = write_events(tmp_path / 'log.csv', rows)
  got, _, catalogue, lines = sort_rows(
    path, tmp_path / 's', negative_times='drop'
  )
  assert got == rows[:1] and catalogue == {2: 3}
  assert 'left out 2 rows with a negative time' in lines[1]


def test_scratch_is_gone_after_an_error_in_between(tmp_path):
  path = write_events(tmp_path / 'log.csv', make_events(1, [30] * 9))
  options = taobao.TaobaoOptions(memory_mb=0)
  with (
    pytest.raises(RuntimeError, match='stop'),
    taobao.TaobaoClicks(path, options, tmp_path / 's', lambda _: 0) as log,
  ):
    assert next(log.read_chunks(['user'], 'train'))
    assert list((tmp_path / 's').iterdir())
    raise RuntimeError('stop')
  assert not list((tmp_path / 's').iterdir())


def test_a_log_is_sorted_once_in_a_context_and_anew_outside(tmp_path):
  path = write_events(
    tmp_path / 'log.csv', make_events(1, [30] * 9, seconds=999)
  )
  lines = []
  clicks = taobao.TaobaoClicks(
    path, taobao.TaobaoOptions(), tmp_path / 's', lines.append
  )
  with clicks as log:
    inside = [
      count_columns(log.read_chunks(taobao.NAMES, split))
      for split in ('train', 'train', 'test')
    ]
  assert sum('sorted runs' in line for line in lines) == 1
  outside = count_columns(clicks.read_chunks(taobao.NAMES, 'train'))
  assert inside[0] == inside[1] == outside
  assert sum('sorted runs' in line for line in lines) == 2
  assert not list((tmp_path / 's').iterdir())


def count_columns(chunks):
  return [
    (name, len(column))
    for chunk in chunks
    for name, column in chunk.columns.items()
  ]


def test_examples_do_not_depend_on_memory_or_blocks(tmp_path, monkeypatch):
  rows = make_events(2, [12, 33, 45] * 9, seconds=10**5)
  path = write_events(tmp_path / 'log.csv', rows)
  wanted = {
    split: read_examples(path, split) for split in ('train', 'valid', 'test')
  }
  monkeypatch.setattr(taobao, '_BLOCK', 50)
  monkeypatch.setattr(taobao, '_CHUNK', 7)
  for split, rows in wanted.items():
    assert rows and read_examples(path, split, memory_mb=0) == rows
  assert read_examples(path, 'train', seed=1) != wanted['train']


def test_the_log_says_the_rules_and_the_counts(tmp_path):
  rows = make_events(2, [12, 33, 45] * 30, seconds=10**5)
  path = write_events(tmp_path / 'log.csv', rows)
  for split in taobao.SPLITS:
    lines = []
    options = taobao.TaobaoOptions(split=split, valid_share=0.3)
    with taobao.TaobaoClicks(path, options, tmp_path, lines.append) as log:
      read = {
        name: [
          (user, label)
          for chunk in log.read_chunks(['user', 'label'], name)
          for user, label in zip(
            chunk.columns['user'].values.tolist(),
            chunk.columns['label'].values.tolist(),
            strict=True,
          )
        ]
        for name in ('train', 'valid', 'test')
      }
    assert f"data.taobao.split='{split}': 91 users, 7 items" in lines[1]
    both = {u for u, _ in read['train']} & {u for u, _ in read['valid']}
    assert f'; {len(both)} users both validate and train;' in lines[1]
    assert bool(both) == (split == 'published')
    for line, rows in zip(lines[2:], read.values(), strict=True):
      assert f', {len(rows):,} examples' in line


def test_a_user_who_has_touched_everything_is_named(tmp_path):
  rows = [(u, u % 4, 0, 'pv', u) for u in range(9)]
  rows += [(9, i % 4, 0, 'pv', 100 + i) for i in range(12)]
  path = write_events(tmp_path / 'log.csv', rows)
  for seed in itertools.count():
    try:
      read_examples(path, 'test', seed=seed)
    except ValueError as error:
      assert 'log.csv: user 9 has touched all 4 items' in str(error)
      return


def test_options_are_checked():
  for changes, message in (
    ({'history': 0}, 'data.taobao.history must be at least 1'),
    ({'most': 1}, 'data.taobao.most must be at least 2'),
    ({'split': 'x'}, "data.taobao.split is 'x', must be one of corrected"),
    ({'negative_times': 'x'}, 'negative_times is'),
    ({'valid_share': 1.0}, 'data.taobao.valid_share is 1.0'),
    ({'train_quantile': float('nan')}, 'train_quantile is nan'),
  ):
    with pytest.raises(ValueError, match=message):
      taobao.TaobaoOptions(**changes)
  names = {f.name for f in dataclasses.fields(behaviour_rows.Impressions)}
  assert {'user', 'item', 'time', 'label'} <= names
