"""MovieLens as labelled ratings, beside a script that goes rating by rating."""

import collections
import dataclasses
import decimal
import itertools
import json
import os
import pathlib
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import (
  counted_draws,
  datasets,
  movielens_files,
  movielens_ratings,
)
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.data.ranking.behaviour_files import (
  GENRES,
  make_ratings,
  split_lists,
  write_edition,
)

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
SPLITS = ('train', 'valid', 'test')
LAYOUTS = {'ratings.dat': '::', 'u.data': '\t', 'ratings.csv': ','}
Options = movielens_ratings.MovielensRatingOptions


def cut_naively(folder, layout, options):
  """Split -> its (label, user, item, genres, time), from the lines."""
  lines = (folder / layout).read_text().splitlines()
  of = collections.defaultdict(list)
  for line in lines[layout == 'ratings.csv' :]:
    user, film, rating, time = line.split(LAYOUTS[layout])
    of[int(user)].append((int(time), int(film), decimal.Decimal(rating)))
  out = {split: [] for split in SPLITS}
  for user, own in of.items():

    def place(event, user=user):
      tie = counted_draws.draw_uniform(
        options.seed, movielens_files.TIE, user, event[1]
      )
      # Elsewhere the order of the file, since sorted() is stable.
      return event[0], tie.item() if layout == 'ratings.csv' else 0

    own = sorted(own, key=place)
    sizes = {
      split: int(len(own) * decimal.Decimal(str(share)))
      for split, share in (
        ('valid', options.valid_fraction),
        ('test', options.test_fraction),
      )
      if share
    }
    if 0 in sizes.values():
      sizes = {}
    for split in ('test', 'valid'):
      for _ in range(sizes.get(split, 0)):
        out[split].append((user, *own.pop()))
    out['train'] += [(user, *event) for event in own]
  return {
    split: sorted(
      (int(rating >= decimal.Decimal(str(options.least))), user, film,
       tuple(sorted(GENRES[film])), time)
      for user, time, film, rating in rows
    )
    for split, rows in out.items()
  }  # fmt: skip


def read_rows(ratings, split):
  """The rows of a split as tuples of `NAMES`."""
  out = []
  for chunk in ratings.read_chunks(movielens_ratings.NAMES, split):
    columns = dict(chunk.columns)
    genres = [tuple(sorted(x)) for x in split_lists(columns.pop('genres'))]
    label, user, item, time = (c.values.tolist() for c in columns.values())
    out += list(zip(label, user, item, genres, time, strict=True))
  return out


@settings(max_examples=60, deadline=None)
@given(
  st.lists(st.integers(1, 8), min_size=1, max_size=8),
  st.integers(0, 999),
  st.sampled_from((0.5, 3, 3.3, 4.0, 5)),
  st.sampled_from((0, 0.1, 0.25, 0.29, 0.3)),
  st.sampled_from((0, 0.15, 0.34, 0.5)),
  st.sampled_from(tuple(LAYOUTS)),
)
def test_splits_are_those_of_a_script(
  tmp_path_factory, lengths, seed, least, valid, test, layout
):
  rows = make_ratings(seed, lengths)
  folder = write_edition(tmp_path_factory.mktemp('ml') / 'x', rows, layout)
  options = Options(
    least=least, valid_fraction=valid, test_fraction=test, seed=seed
  )
  wanted = cut_naively(folder, layout, options)
  if len(options.splits) > 1 and len(wanted['train']) == len(rows):
    with pytest.raises(ValueError, match='nothing to validate or test on'):
      movielens_ratings.MovielensRatings(folder, options)
    return
  ratings = movielens_ratings.MovielensRatings(folder, options)
  for split in options.splits:
    found = read_rows(ratings, split)
    assert sorted(found) == wanted[split]
    times = [row[-1] for row in found]
    assert times == sorted(times)
    if split != 'train':
      known = {row[2] for row in wanted['train']}
      new = [row[2] for row in found if row[2] not in known]
      assert ratings.count_unseen(split) == (len(new), len(set(new)))
  held_out = {row[1] for split in SPLITS[1:] for row in wanted[split]}
  if held_out:
    assert ratings.alone == len(lengths) - len(held_out)


def test_a_small_file_by_hand(tmp_path):
  times = [40, 10, 20, 30, 50, 60, 70, 80]
  rows = [(7, film, 3 + film % 3, t) for film, t in enumerate(times, 1)]
  rows += [(8, 3, 4, 5), (8, 1, 1, 6)]
  ratings = movielens_ratings.MovielensRatings(
    write_edition(tmp_path / 'x', rows),
    Options(valid_fraction=0.25, test_fraction=0.125),
  )
  found = {split: read_rows(ratings, split) for split in SPLITS}
  assert [row[2] for row in found['train']] == [3, 1, 2, 3, 4, 1, 5]
  assert found['valid'] == [
    (0, 7, 6, (), 60),
    (1, 7, 7, ('Drama',), 70),
  ]
  assert found['test'] == [(1, 7, 8, ('Comedy',), 80)]
  assert ratings.alone == 1
  assert ratings.count_unseen('valid') == (2, 2)
  assert ratings.describe() == [
    'train: 2 users, 7 examples, 71.4% positive',
    'valid: 1 users, 2 examples, 50.0% positive; AUC of popularity alone '
    '0.5000; 2 examples are of 2 films that training lacks',
    'test: 1 users, 1 examples, 100.0% positive; AUC of popularity alone nan; '
    '1 examples are of 1 films that training lacks',
    '1 of 2 users have fewer than 8 ratings and are in the training split '
    'alone',
  ]


def test_the_order_of_films_is_not_that_of_time(tmp_path):
  # One second for all: with the order of the file, film 8 would always test.
  rows = [(user, film, 4, 5) for user in range(1, 201) for film in range(1, 9)]
  options = Options(valid_fraction=0.125, test_fraction=0.125)
  folder = write_edition(tmp_path / 'x', rows, 'ratings.csv')
  ratings = movielens_ratings.MovielensRatings(folder, options)
  tested = [row[2] for row in read_rows(ratings, 'test')]
  assert set(tested) == set(range(1, 9)) and abs(np.mean(tested) - 4.5) < 1
  other = dataclasses.replace(options, seed=1)
  ratings = movielens_ratings.MovielensRatings(folder, other)
  assert [row[2] for row in read_rows(ratings, 'test')] != tested


def test_fractions_are_taken_as_they_are_written(tmp_path):
  films = {film: ['Drama'] for film in range(1, 101)}
  rows = [(1, film, 4, film) for film in films]
  folder = write_edition(tmp_path / 'x', rows, genres=films)
  # As floats, 100 * 0.29 is below 29.
  options = Options(valid_fraction=0.29, test_fraction=0.57)
  ratings = movielens_ratings.MovielensRatings(folder, options)
  sizes = [len(read_rows(ratings, split)) for split in SPLITS]
  assert sizes == [14, 29, 57]
  assert Options().fewest == 10
  assert Options(valid_fraction=0.03).fewest == 34
  assert Options(valid_fraction=0.0, test_fraction=0).fewest == 1


@pytest.fixture(scope='module')
def edition(tmp_path_factory):
  rows = make_ratings(0, [8] * 30 + [5] * 4)
  # A film that one user alone rates, at the very end, and a user who is brief.
  rows = [row for row in rows if row[:2] != (1, 5)] + [(1, 5, 2, 10**9)]
  rows = [row for row in rows if row[1] != 5 or row[0] == 1]
  return write_edition(tmp_path_factory.mktemp('ml') / 'x', rows)


SECTION = {'valid_fraction': 0.15, 'test_fraction': 0.15}


def load(folder, cache, log=lambda _: None, **section):
  cfg = {
    'name': 'movielens_ratings',
    'path': str(folder),
    'time': 'time',
    'movielens_ratings': SECTION | section,
  }
  return datasets.load(cfg, cache, log)


def test_blocks_hold_the_rows(edition, tmp_path):
  lines = []
  data = load(edition, tmp_path, lines.append)
  assert list(data.splits) == list(SPLITS) and data.split_column == ''
  kinds = {f.name: f.kind for f in data.features}
  assert kinds == {
    'user': 'categorical',
    'item': 'categorical',
    'genres': 'multi_hot',
  }
  wanted = cut_naively(edition, 'ratings.dat', Options(**SECTION))
  for split in SPLITS:
    rows = data.splits[split].rows(0, len(data.splits[split]))
    user, item = (
      data.vocabularies[name].decode(rows.ids[:, place])
      for place, name in enumerate(('user', 'item'))
    )
    bag = rows.bags['genres']
    genres = map(str, data.vocabularies['genres'].decode(bag.values))
    found = [
      (label, str(u), str(i), tuple(sorted(itertools.islice(genres, n))), time)
      for label, u, i, n, time in zip(
        rows.labels[:, 0].tolist(), user, item, bag.lengths.tolist(),
        rows.time.tolist(), strict=True,
      )
    ]  # fmt: skip
    expected = [
      (label, str(u), str(i), g, t)
      for label, u, i, g, t in wanted[split]
      if i != 5
    ]
    assert sorted(x for x in found if x[4] < 10**9) == sorted(expected)
  text = '\n'.join(lines)
  assert 'movielens_ratings, valid: 30 users, ' in text
  assert 'test: 30 users, 30 examples' in text
  assert '4 of 34 users have fewer than 7 ratings' in text


def test_values_that_training_lacks_are_counted_and_told(edition, tmp_path):
  data, lines = load(edition, tmp_path), []
  data.tell_values(lines.append)
  unseen = {
    split: {name: x.unseen for name, x in features.items()}
    for split, features in data.encoder.value_counts.items()
  }
  assert unseen['valid'] == {'user': 0, 'item': 0, 'genres': 0}
  # The film is the only one of its genre.
  assert unseen['test'] == {'user': 0, 'item': 1, 'genres': 1}
  assert any(re.match('test: unseen: .*item 3.3%', line) for line in lines)


def test_prepared_data_are_opened(edition, tmp_path):
  first, lines = load(edition, tmp_path), []
  again = load(edition, tmp_path, lines.append)
  assert not lines and again.fingerprint() == first.fingerprint()
  columns, _ = again.raw_rows.list_columns('test')
  assert columns == list(movielens_ratings.NAMES)
  (chunk,) = again.raw_rows.read_split('test', ['user'], print)
  user = chunk.columns['user'].values[0]
  assert re.search(rf'ratings.dat, user {user}, film \d$', chunk.where(0))
  load(edition, tmp_path, lines.append, least=3.0)
  assert lines


def test_the_keys_of_the_config_are_the_options():
  section = config_lib.ranking().data.movielens_ratings.to_dict()
  assert section == dataclasses.asdict(Options())


def test_a_split_that_nobody_asks_for_is_not_there(edition, tmp_path):
  data = load(edition, tmp_path, valid_fraction=0.0)
  assert list(data.splits) == ['train', 'test']
  data = load(edition, tmp_path, valid_fraction=0, test_fraction=0)
  assert list(data.splits) == ['train']


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'least': 0}, 'data.movielens_ratings.least must be above 0'),
    ({'least': 6.0}, 'not 6.0'),
    ({'least': float('nan')}, 'not nan'),
    ({'seed': -1}, 'data.movielens_ratings.seed must be at least 0'),
    ({'valid_fraction': -0.1}, 'valid_fraction -0.1 and .* negative'),
    ({'valid_fraction': 0.6, 'test_fraction': 0.4}, 'something to train on'),
    ({'test_fraction': float('nan')}, 'something to train on'),
    ({'test_share': 0.1}, 'data.movielens_ratings.test_share is not an option'),
    ({'test_fraction': 0.01}, 'ratings.dat: nothing to validate or test on. '
     'With data.movielens_ratings.valid_fraction=0.15 and .*test_fraction=0.01 '
     'that takes a user with 100 ratings or more, and none of the 34 users has '
     'more than 8; raise a fraction'),
  ],
)  # fmt: skip
def test_options_that_leave_nothing_are_refused(
  edition, tmp_path, changes, message
):
  with pytest.raises(ValueError, match=message):
    load(edition, tmp_path / 'cache', **changes)
  cache = tmp_path / 'cache'
  assert not cache.exists() or not list(cache.iterdir())


def test_what_is_no_edition_is_refused(edition, tmp_path):
  with pytest.raises(FileNotFoundError, match=r'no such file.*\(data.path\)'):
    load(tmp_path / 'nowhere', tmp_path / 'cache')
  (tmp_path / 'other').mkdir()
  with pytest.raises(
    FileNotFoundError,
    match='none of the files ratings.dat, u.data, ratings.csv',
  ):
    load(tmp_path / 'other', tmp_path / 'cache')
  with pytest.raises(ValueError, match='data.path is not set'):
    datasets.load({'name': 'movielens_ratings'}, tmp_path / 'cache')
  for split in ({'by': 'time'}, {'by': 'group', 'column': 'user'}):
    cfg = {'name': 'movielens_ratings', 'path': str(edition), 'split': split}
    with pytest.raises(ValueError, match='movielens_ratings has splits of its'):
      datasets.load(cfg, tmp_path / 'cache')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'ratings.dat': '1::2::x::5\n'}, "ratings.dat, line 1.*'x'"),
    ({'ratings.dat': '1::9::5::7\n'}, 'film 9 is not in .*movies.dat; give'),
    ({'movies.dat': '1::a\n'}, 'movies.dat, line 1: 2 fields instead of 3'),
  ],
)
def test_damaged_files_are_refused(tmp_path, changes, message):
  folder = write_edition(tmp_path / 'x', [(1, 2, 3, 4), (1, 3, 3, 5)])
  for name, text in changes.items():
    (folder / name).write_text(text)
  with pytest.raises(ValueError, match=message):
    movielens_ratings.MovielensRatings(folder)


@pytest.mark.parametrize('variant', ['', 'hash', 'ordered', 'frequency'])
def test_the_maps_of_the_config(variant):
  config = config_lib.load(f'hash_movielens:{variant}', ['data.path=x'])
  assert (config.data.name, config.hash.tables) == (
    'movielens_ratings',
    'user|item',
  )
  maps = {name: given.get('id_map') for name, given in config.tables}
  wanted = {'user': variant, 'item': variant, '.*': None} if variant else {}
  assert maps == wanted


def test_a_smoke_run_is_on_generated_rows(tmp_path):
  config = config_lib.load('hash_movielens:smoke,frequency', [])
  assert (config.data.name, config.data.path) == ('interests', '')
  config.report.importance_rows = 0
  with jax.numpy_dtype_promotion('standard'):  # optax mixes dtypes
    loop.train_and_evaluate(config, tmp_path / 'run', TASK_KINDS)
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  assert set(report['metrics']) == {'valid', 'test'}


@pytest.mark.parametrize(
  ('name', 'rows'),
  [('ml-100k', 100_000), ('ml-latest-small', 100_836), ('ml-1m', 1_000_209)],
)
def test_the_editions(name, rows):
  if not (DATA / name).is_dir():
    pytest.skip(f'{name} is not under GENREC_DATA or ../shared/data')
  ratings = movielens_ratings.MovielensRatings(DATA / name)
  sizes = [
    sum(map(len, ratings.read_chunks(['label'], split))) for split in SPLITS
  ]
  assert sum(sizes) == rows and ratings.alone == 0
  assert 0.08 * rows < sizes[1] == sizes[2] <= 0.1 * rows
