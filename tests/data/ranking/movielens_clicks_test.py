"""MovieLens as clicks, beside a script that goes rating by rating."""

import collections
import itertools
import os
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import (
  behaviour_rows,
  counted_draws,
  movielens_clicks,
  movielens_files,
  popularity,
  raw,
)
from tests.data.ranking.behaviour_files import (
  make_ratings,
  split_lists,
  write_edition,
)

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
# War and Western have the fewest films of what each film has.
RAREST = {1: 'Comedy', 2: 'Drama', 3: 'War', 4: 'War', 5: 'Western', 6: '',
          7: 'Drama', 8: 'Comedy'}  # fmt: skip


def read_examples(clicks, split=''):
  out, chunks = [], []
  if len(clicks.draw_impressions(split)):
    chunks = clicks.read_chunks(behaviour_rows.NAMES, split)
  for chunk in chunks:
    columns = {
      name: split_lists(column) if name.startswith('history_') else column
      for name, column in chunk.columns.items()
    }
    values = [
      c.values.tolist() if isinstance(c, raw.NumberColumn) else c
      for c in columns.values()
    ]
    out += [
      dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)
    ]
  return out


LAYOUTS = ('ratings.dat', 'u.data', 'ratings.csv')


@settings(max_examples=40, deadline=None)
@given(
  st.lists(st.integers(1, 7), min_size=1, max_size=8),
  st.integers(0, 999),
  st.sampled_from((1, 3, 20)),
  st.sampled_from((1, 2)),
  st.sampled_from((0, 1, 3)),
  st.sampled_from(LAYOUTS),
)
def test_examples_are_those_of_a_script(
  tmp_path_factory, lengths, seed, history, least, windows, layout
):
  rows = make_ratings(seed, [*lengths, 8])
  # The user of all films would have no negative.
  rows = [row for row in rows if row[0] <= len(lengths) or row[1] != 3]
  rows += [(99, 3, 5, 900_000_000)]
  folder = write_edition(tmp_path_factory.mktemp('ml') / 'x', rows, layout)
  options = movielens_clicks.MovielensClickOptions(
    history=history, least=least, windows=windows, seed=seed, valid_share=0.3,
    test_share=0.3,
  )  # fmt: skip
  clicks = movielens_clicks.MovielensClicks(folder, options)
  of = collections.defaultdict(list)
  for user, film, _, time in rows:
    of[user].append((time, film))

  def place(user, event):
    time, film = event
    if layout != 'ratings.csv':
      return time  # and the order of the file
    tie = movielens_clicks.draw_uniform(seed, movielens_files.TIE, user, film)
    return time, tie.item()

  for user, own in of.items():
    own.sort(key=lambda event, user=user: place(user, event))

  found, users = [], {}
  for split in ('train', 'valid', 'test'):
    examples = read_examples(clicks, split)
    found += examples
    for example in examples:
      assert users.setdefault(example['user'], split) == split
  assert sorted(found, key=str) == sorted(read_examples(clicks), key=str)
  per_user = collections.defaultdict(list)
  for example in found:
    user, own = example['user'], of[example['user']]
    places = [
      p
      for p in range(least, len(own))
      if example['history_item'] == [f for _, f in own[max(0, p - history) : p]]
      and example['time'] == own[p][0]
      and (example['label'] == 0 or example['item'] == own[p][1])
    ]
    assert places
    before = own[max(0, places[0] - history) : places[0]]
    assert example['history_time'] == [t for t, _ in before]
    ages = [example['time'] - t for t, _ in before]
    assert example['history_age'] == ages and min(ages) >= 0
    assert example['history_category'] == [RAREST[f] for _, f in before]
    assert example['category'] == RAREST[example['item']]
    if not example['label']:
      assert example['item'] not in {film for _, film in own}
    per_user[user].append(places[0])
  for user, own in of.items():
    possible = max(0, len(own) - least)
    wanted = min(possible, windows) if windows else possible
    assert len(per_user[user]) == wanted


@pytest.fixture(scope='module')
def many(tmp_path_factory):
  films = 60
  rows = make_ratings(0, [25] * 300, films, 10**6)
  genres = {film: ['Drama'] for film in range(1, films + 1)}
  return write_edition(tmp_path_factory.mktemp('ml') / 'x', rows, genres=genres)


def test_ratings_of_one_second_are_counted(tmp_path):
  rows = [(1, 1, 5, 7), (1, 2, 5, 7), (1, 3, 5, 8), (2, 1, 5, 8), (2, 2, 5, 8)]
  rows += [(3, 4, 5, 9)]
  clicks = movielens_clicks.MovielensClicks(write_edition(tmp_path / 'x', rows))
  assert clicks.measure_ties() == pytest.approx(2 / 6)


def test_half_of_the_candidates_are_random(many):
  clicks = movielens_clicks.MovielensClicks(many)
  shown = clicks.draw_impressions()
  assert len(shown) == 300 * 24
  assert shown.label.mean() == pytest.approx(0.5, abs=0.02)
  drawn = np.bincount(shown.item[shown.label == 0], minlength=61)[1:]
  assert drawn.min() > 0.5 * drawn.mean()


def test_users_are_in_one_split_by_a_draw(many):
  options = movielens_clicks.MovielensClickOptions(
    valid_share=0.2, test_share=0.3
  )
  clicks = movielens_clicks.MovielensClicks(many, options)
  users = [
    set(clicks.draw_impressions(split).user.tolist())
    for split in ('train', 'valid', 'test')
  ]
  assert sum(map(len, users)) == len(set.union(*users)) == 300
  np.testing.assert_allclose([len(x) / 300 for x in users], [0.5, 0.2, 0.3],
                             atol=0.08)  # fmt: skip
  other = movielens_clicks.MovielensClickOptions(seed=1)
  assert set(
    movielens_clicks.MovielensClicks(many, other).draw_impressions('test').user
  ) != {*users[2]}


def test_examples_of_a_user_do_not_depend_on_other_users(many, tmp_path):
  lines = (many / 'ratings.dat').read_text().splitlines()
  rows = [line.split('::') for line in lines]
  rows = [[*map(int, row)] for row in rows if int(row[0]) < 40]
  genres = {film: ['Drama'] for film in range(1, 61)}
  fewer = movielens_clicks.MovielensClicks(
    write_edition(tmp_path / 'x', rows, genres=genres)
  )
  every = movielens_clicks.MovielensClicks(many)
  for split in ('train', 'test'):
    wanted = [x for x in read_examples(every, split) if x['user'] < 40]
    assert read_examples(fewer, split) == wanted


def test_a_film_that_was_rated_twice_may_be_in_its_own_history(tmp_path):
  rows = [(1, 2, 5, 10), (1, 2, 4, 30), (1, 3, 4, 20), (2, 5, 1, 1)]
  folder = write_edition(tmp_path / 'x', rows)
  for seed in itertools.count():
    options = movielens_clicks.MovielensClickOptions(seed=seed)
    clicks = movielens_clicks.MovielensClicks(folder, options)
    own = [x for x in read_examples(clicks) if x['user'] == 1]
    if own[-1]['label']:
      assert own[-1]['item'] == 2 and own[-1]['history_item'] == [2, 3]
      return
    assert own[-1]['item'] == 5


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'ratings.dat': '1::2::5\n'}, 'ratings.dat, line 1: 3 fields'),
    ({'ratings.dat': '1::2::5::-7\n'}, "line 1.*'-7' is not a time"),
    ({'ratings.dat': '1::9::5::7\n'}, 'film 9 is not in .*movies.dat; give'),
    ({'ratings.dat': ''}, 'ratings.dat: the file holds no events'),
    ({'movies.dat': '1::a\n'}, 'movies.dat, line 1: 2 fields instead of 3'),
    ({'movies.dat': 'x::a::b\n'}, "movies.dat, line 1: 'x' is no id of a film"),
    ({'movies.dat': '1::a::b\n1::a::b\n'}, 'line 2: film 1 a second time'),
    ({'u.data': '1\t2\t3\t4\n'}, 'several of the files'),
    (
      {'movies.dat': '2::a::War\n3::b::Drama|Ro'},
      'movies.dat, line 2: the file ends within this line',
    ),
    ({'ratings.dat': '1::2::5::70\n1::3::5::8'}, 'ratings.dat, line 2: the fi'),
  ],
)
def test_damaged_files_are_refused(tmp_path, changes, message):
  folder = write_edition(tmp_path / 'x', [(1, 2, 3, 4), (1, 3, 3, 5)])
  for name, text in changes.items():
    (folder / name).write_text(text)
  with pytest.raises(ValueError, match=message):
    movielens_clicks.MovielensClicks(folder)


def test_flags_that_are_neither_0_nor_1_are_refused(tmp_path):
  folder = write_edition(tmp_path / 'x', [(1, 2, 3, 4)], 'u.data')
  path = folder / 'u.item'
  path.write_text(path.read_text().replace('|0\n', '|2\n', 1))
  with pytest.raises(ValueError, match="u.item, line 1: '2' for the genre"):
    movielens_clicks.MovielensClicks(folder)


def test_what_is_no_edition_and_options_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='none of the files ratings.dat'):
    movielens_clicks.MovielensClicks(tmp_path)
  for changes, message in (
    ({'history': 0}, 'data.movielens_clicks.history must be at least 1'),
    ({'windows': -1}, 'data.movielens_clicks.windows must be at least 0'),
    ({'valid_share': 0.6, 'test_share': 0.4}, 'leave something to train on'),
  ):
    with pytest.raises(ValueError, match=message):
      movielens_clicks.MovielensClickOptions(**changes)


@pytest.mark.parametrize(
  ('options', 'split', 'message'),
  [
    ({'least': 9}, 'train', 'users with 10 ratings or more, of whom the file '
     'has 0 among 6 users, and this split 0 among [1-6]; lower '
     r'data.movielens_clicks.least, which is 9$'),
    ({'test_share': 1e-9}, 'test', 'has 6 among 6 users, and this split 0 '
     'among 0; raise data.movielens_clicks.test_share$'),
    ({'valid_share': 0.99, 'test_share': 0.0}, 'train', 'among 0; lower '
     'data.movielens_clicks.valid_share or data.movielens_clicks.test_share$'),
  ],
)  # fmt: skip
def test_a_split_without_examples_says_what_to_change(
  tmp_path, options, split, message
):
  folder = write_edition(tmp_path / 'x', make_ratings(0, [4] * 6))
  clicks = movielens_clicks.MovielensClicks(
    folder, movielens_clicks.MovielensClickOptions(**options)
  )
  with pytest.raises(ValueError, match=f'{split} split: holds no rows') as e:
    next(clicks.read_chunks(['user'], split))
  assert re.search(message, str(e.value)), e.value


def test_a_user_who_rated_everything_is_named(tmp_path):
  rows = [(1, film, 3, film) for film in range(1, 9)] + [(2, 1, 3, 1)]
  folder = write_edition(tmp_path / 'x', rows)
  clicks = movielens_clicks.MovielensClicks(folder)
  with pytest.raises(ValueError, match='user 1 rated all 8 films'):
    clicks.draw_impressions()


@settings(max_examples=40, deadline=None)
@given(
  st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=1),
  st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=1),
)
def test_popularity_beside_a_count_of_all_pairs(train, test):
  def make(rows):
    items, labels = zip(*rows, strict=True)
    return raw.RawChunk(
      {
        'item': raw.NumberColumn(np.array(items)),
        'label': raw.NumberColumn(np.array(labels)),
      },
      len(rows),
    )

  found = popularity.Popularity([make(train), make(train[:2])])
  counts = collections.Counter(i for i, y in train + train[:2] if y)
  scores = [(counts[item], label) for item, label in test]
  halves = [make(test[: len(test) // 2]), make(test[len(test) // 2 :])] if (
    len(test) > 1) else [make(test)]  # fmt: skip
  auc = found.measure_auc(halves)
  pairs = [
    (a > b) + (a == b) / 2
    for (a, y), (b, z) in itertools.product(scores, repeat=2)
    if y > z
  ]
  if pairs:
    assert auc == pytest.approx(np.mean(pairs))
  else:
    assert np.isnan(auc)


def test_popularity_reads_texts():
  rows = raw.from_columns(
    {'film': ['a', 'b', 'a'], 'seen': [1, 0, 1]}, ['film', 'seen']
  )
  found = popularity.Popularity([rows], 'film', 'seen')
  assert found.score(rows).tolist() == [2, 0, 2]
  assert found.measure_auc([rows]) == 1.0


def test_lines_say_users_examples_and_popularity(many):
  clicks = movielens_clicks.MovielensClicks(many)
  lines = popularity.describe_splits(
    clicks.options.splits, lambda split, names: clicks.read_chunks(names, split)
  )
  assert [line.split(':')[0] for line in lines] == ['train', 'valid', 'test']
  counts = popularity.count_rows(clicks.read_chunks(popularity.COLUMNS, 'test'))
  assert str(counts) in lines[2] and 'popularity alone 0.' in lines[2]
  assert counts.rows == 24 * counts.users


def test_unmet_items_are_uniform_over_what_is_left():
  owner = np.repeat(np.arange(2), [3, 9])
  met = counted_draws.make_keys(owner, np.array([0, 1, 2, *range(9)]), 10)
  who = np.repeat([0, 1], 700)
  drawn = counted_draws.draw_unmet_items(
    met, who, 10, lambda n, at: counted_draws.draw_uniform(5, 0, at, n)
  )
  counts = np.bincount(drawn[:700], minlength=10)
  assert counts[:3].sum() == 0 and counts[3:].min() > 60
  assert set(drawn[700:]) == {9}
  with pytest.raises(counted_draws.NoItemLeftError) as error:
    counted_draws.draw_unmet_items(
      counted_draws.make_keys(owner, np.array([0, 1, 2, *range(9)]), 9), who, 9,
      lambda n, at: counted_draws.draw_uniform(5, 0, at, n),
    )  # fmt: skip
  assert error.value.owner == 1


@pytest.mark.parametrize('name', ['ml-100k', 'ml-latest-small', 'ml-1m'])
def test_the_real_files(name):
  if not (DATA / name).is_dir():
    pytest.skip(f'{name} is not under GENREC_DATA or ../shared/data')
  clicks = movielens_clicks.MovielensClicks(DATA / name)
  shown = clicks.draw_impressions('test')
  users = len(clicks.users)
  assert len(np.unique(shown.user)) == pytest.approx(users / 10, rel=0.25)
  assert shown.label.mean() == pytest.approx(0.5, abs=0.02)
  train, test = (
    clicks.read_chunks(popularity.COLUMNS, split) for split in ('train', 'test')
  )
  auc = popularity.Popularity(train).measure_auc(test)
  assert 0.8 < auc < 0.9
