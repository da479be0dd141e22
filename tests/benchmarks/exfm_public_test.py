"""Tests of the benchmark of teacher and students on public data."""

import doctest
import os
import pathlib

import numpy as np
import pytest

from benchmarks import (
  exfm_films,
  exfm_folds,
  exfm_public,
  exfm_public_search,
  exfm_worlds,
)
from genrec_jax.data.parquet import pa, pq

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  return tmp_path_factory.mktemp('runs')


@pytest.fixture
def smoke(tmp_path, runs):
  """Measures some cases of the small form; runs are those of the module."""
  options = ['--smoke', '--runs', str(runs), '--results', str(tmp_path)]
  return lambda *only: exfm_public.main([*options, '--only', *only])


def test_doctests():
  for module in (exfm_public, exfm_public_search, exfm_films, exfm_folds):
    assert doctest.testmod(module).failed == 0


def test_windows_of_ratings_are_scored_before_they_are_learned(
  smoke, runs, rows, monkeypatch
):
  smoke('movielens')
  found = rows('exfm_public')
  group = 'movielens/latest/segment1'
  for method in ('none', 'adapter'):
    row = found[f'{group}/{method}/seed1']
    assert 0.5 < row['ne'] < 1.2 and len(row['pieces_ne']) == 2
    np.testing.assert_allclose(
      np.average(row['pieces_ne'], weights=row['pieces_rows']), row['ne'],
      rtol=1e-4,
    )  # fmt: skip
  mean = found[f'{group}/adapter']
  assert mean['seeds'] == 1 and 'gain_ci' not in mean and mean['data_ci'] > 0
  # Forty ratings a user: none of the last tenth is by one of before.
  about = found['movielens/latest/data']
  assert about['known_of_last_tenth_%'] == 0 and about['rows'] == 2400

  path = (runs / 'made_up' / 'ml-latest-small').resolve()
  log = exfm_films.FilmLog(str(path), 4, seed=1)
  times = np.concatenate([x['time'].to_numpy() for x in log.list_windows()])
  np.testing.assert_array_equal(times, np.arange(2400))
  world = exfm_films.FilmWorld(
    runs / 'movielens' / 'latest' / 'seed1', log, 1, 1.0
  )
  for scores in world.score(exfm_public.TEACHER, 0).iterate():
    window = scores.time // 600
    np.testing.assert_array_equal(scores.snapshot_window, window - 1)
  parts = world.annotate(1, exfm_public.TEACHER, 0)
  for number, path in enumerate(sorted(parts.glob('*.parquet'))):
    table = pq.read_table(path)
    assert (table['segment'].to_numpy() == 1).all()
    assert (table['teacher_weight'].to_numpy() == (number > 0)).all()

  # What the result file has is not measured again, and what ended not trained.
  def refuse(*_):
    raise AssertionError('it was measured')

  monkeypatch.setattr(exfm_public, 'measure_films', refuse)
  smoke('movielens')
  assert rows('exfm_public').keys() == found.keys()
  with pytest.raises(SystemExit, match='no case'):
    smoke('movie_lens')


@pytest.mark.slow
def test_smoke_of_the_search(tmp_path, runs, rows):
  command = ['--smoke', '--runs', str(runs), '--results', str(tmp_path)]
  exfm_public_search.main(command)
  found = rows('exfm_public_search')
  assert len(found) == 2 and all(0.5 < x['ne'] < 2 for x in found.values())


def test_no_teacher_scores_a_row_that_it_was_trained_on(tmp_path, monkeypatch):
  exfm_folds.invent_frappe(tmp_path / 'data', 'train.csv')
  folds = exfm_folds.Folds(tmp_path / 'made', tmp_path / 'data', 'train.csv')
  trained = {}

  def train(config, workdir):
    path = folds.files / config.data.files.train
    trained[workdir] = exfm_folds.Table.read(path)

  def score(workdir, rows):
    own = {*trained[workdir].lines}
    return np.array([0.9 if line in own else 0.1 for line in rows.lines])

  monkeypatch.setattr(exfm_folds, 'train_to_the_end', train)
  monkeypatch.setattr(exfm_folds, 'score', score)
  whole = exfm_folds.Table.read(folds.data / folds.train_file)
  assert len({*whole.lines}) == len(whole.lines) == 1800
  scored = exfm_folds.Table.read(folds.scored)
  assert [x.rsplit(',', 2)[0] for x in scored.lines] == whole.lines
  columns = scored.read_columns()
  assert set(columns['teacher']) == {'0.1'}
  assert set(columns['teacher_weight']) == {'1'}
  # Each row is learned by two of the teachers.
  learned = [line for table in trained.values() for line in table.lines]
  assert sorted(learned) == sorted(whole.lines * 2)
  for split in ('valid', 'test'):
    rest = exfm_folds.Table.read(folds.files / f'{split}.csv').read_columns()
    assert set(rest['teacher_weight']) == {'0'}


def test_rows_keep_their_order_behind_the_folds(tmp_path, monkeypatch):
  exfm_folds.invent_frappe(tmp_path / 'data', 'train.csv')
  folds = exfm_folds.Folds(tmp_path / 'made', tmp_path / 'data', 'train.csv')
  monkeypatch.setattr(
    exfm_folds.Folds,
    'score_fold',
    lambda self, k: k + np.arange((fold == k).sum()) / 10_000,
  )
  fold = exfm_folds.draw_folds(1800)
  scores = exfm_folds.Table.read(folds.scored).read_columns()['teacher']
  np.testing.assert_array_equal(scores.astype(float).astype(int), fold)
  for k in range(exfm_folds.FOLDS):
    own = scores[fold == k].astype(float)
    np.testing.assert_allclose(own, k + np.arange(len(own)) / 10_000)


@pytest.mark.slow
def test_smoke_of_folds(smoke, rows):
  smoke('frappe')
  found = rows('exfm_public')
  row = found['frappe/adapter/seed1']
  np.testing.assert_allclose(
    np.average(row['pieces_ne'], weights=row['pieces_rows']), row['ne'],
    rtol=1e-3,
  )  # fmt: skip
  assert sum(row['pieces_rows']) == 600
  assert {'gain_%', 'auc_gain'} <= found['frappe/adapter'].keys()
  for fold in range(exfm_folds.FOLDS):
    assert found[f'frappe/teacher/fold{fold}']['parameters'] > 0
  assert 0 < found['frappe/teacher/scores']['auc'] < 1


def make_row(group, method, seed, pieces, **more):
  case = exfm_public.Case(group, method)
  row = exfm_public.about(case, seed)
  row |= {'ne': float(np.mean(pieces)), 'auc': 0.7, 'logloss': 0.5}
  row |= {'pieces_ne': pieces, 'pieces_rows': [10] * len(pieces)}
  return row | {'core_s': 1.0, 'teacher_ne': 0.8} | more


def test_means_are_paired_by_seed_and_by_piece():
  rows = [
    make_row('frappe', 'none', 1, [1.0, 0.8]),
    make_row('frappe', 'none', 2, [1.1, 0.9]),
    make_row('frappe', 'none', 3, [0.1, 0.1]),  # without a partner
    make_row('frappe', 'head', 1, [0.9, 0.7], auc=0.71),
    make_row('frappe', 'head', 2, [1.0, 0.8], auc=0.73),
  ]
  found = {row['case']: row for row in exfm_public.average(rows)}
  row = found['frappe/head']
  gains = [100 * 0.1 / 0.9, 100 * 0.1 / 1.0]
  assert row['gain_%'] == pytest.approx(np.mean(gains))
  # Half of the range of two, times t with one degree of freedom.
  width = (gains[0] - gains[1]) / 2 * 12.7062
  assert row['gain_ci'] == pytest.approx(width, rel=1e-4)
  # The pieces differ from each other as much in both.
  assert row['data_ci'] == pytest.approx(0, abs=1e-9)
  assert row['auc_gain'] == pytest.approx(0.02)
  assert 'gain_%' not in found['frappe/none']


def test_segments_of_an_edition_are_averaged_where_all_are_there():
  rows = [
    make_row(f'movielens/100k/segment{i}', method, seed, [ne + i, ne])
    for i in range(3)
    for method, ne in (('none', 1.0), ('head', 0.9))
    for seed in (1, 2)
    if (i, seed) != (2, 2)
  ]
  found = {row['case']: row for row in exfm_public.average(rows)}
  row = found['movielens/100k/all/head']
  assert row['seeds'] == 1
  assert row['gain_%'] == pytest.approx(100 * 0.1 / 1.5)
  assert found['movielens/100k/segment1/head']['seeds'] == 2


def test_every_try_has_a_name_and_every_method_knobs():
  tries = exfm_public_search.list_tries()
  names = [exfm_public_search.describe(*x) for x in tries]
  assert len({*names}) == len(names)
  cases = exfm_public.list_cases()
  assert len({case.name for case in cases}) == len(cases)
  # What is measured was tried.
  for case in cases:
    knobs = exfm_public.KNOBS[case.stream][case.method]
    assert (case.stream, case.method, knobs) in [
      (tried.stream, tried.method, own) for tried, own in tries
    ]
  taught = dict(size=exfm_public.TEACHER.size, rate=exfm_public.TEACHER_RATE)
  assert ('teacher', taught) in [(case.method, own) for case, own in tries]
  assert exfm_public_search.SEED not in exfm_public.SEEDS


def test_the_search_sees_nothing_of_what_is_measured(tmp_path):
  path = tmp_path / 'ml-latest-small'
  exfm_films.invent_films(path)
  whole = exfm_films.FilmLog(str(path), 4)
  half = exfm_films.FilmLog(str(path), 4, 0.5)
  assert half.windows == 2
  assert [x.equals(y) for x, y in zip(
    half.list_windows(), whole.list_windows(), strict=False
  )] == [True, True]  # fmt: skip
  parts = tmp_path / 'parts'
  parts.mkdir()
  for k, window in enumerate(whole.list_windows()):
    pq.write_table(window, parts / f'window-{k:06d}.parquet')
  labels = exfm_worlds.read_labels(parts)
  assert labels.rows.tolist() == [600, 600] and np.isnan(labels.floor)
  measured = pa.concat_tables(whole.list_windows()[2:])
  assert labels.rate == pytest.approx(measured['label'].to_numpy().mean())


def test_segments_have_about_as_many_ratings():
  rng = np.random.default_rng(0)
  genres = ['Drama', 'Comedy', 'War', 'Western']
  films = {i: (genres[: 1 + i % 4], '') for i in range(100)}
  rarest = exfm_films.find_rarest({i: x for i, (x, _) in films.items()})
  assert [rarest[i] for i in range(4)] == genres
  rated = rng.integers(0, 100, 10_000)
  segments = exfm_films.cut_segments(films, rarest, rated)
  assert segments == {'Drama': 0, 'Comedy': 1, 'War': 1, 'Western': 2}


@pytest.mark.parametrize(
  ('name', 'rows', 'known'),
  [('ml-100k', 100_000, 14.18), ('ml-latest-small', 100_836, 9.22)],
)
def test_of_movielens_most_users_are_new(name, rows, known):
  path = DATA / name
  if not path.exists():
    pytest.skip(f'{path} is not under GENREC_DATA or ../shared/data')
  about = exfm_films.FilmLog(str(path)).describe()
  assert about['rows'] == rows
  assert about['known_of_last_tenth_%'] == pytest.approx(known, abs=0.02)
  assert min(about['segment_rows']) > 25_000
