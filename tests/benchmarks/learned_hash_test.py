"""The benchmark of maps: its cases, its bytes, its kinds."""

import argparse

import numpy as np
import pytest

from benchmarks import (
  learned_hash,
  learned_hash_curves,
  learned_hash_deciles,
  learned_hash_drift,
  learned_hash_kinds,
  learned_hash_plane,
  learned_hash_search,
)
from genrec_jax.data.ranking import clicks


def make_args(tmp_path, **changes):
  values = dict(
    runs=str(tmp_path), data='films', smoke=False, only=[''], results='none'
  )
  return argparse.Namespace(**values | changes)


def test_all_cases_have_all_seeds(tmp_path):
  names = [name for name, _ in learned_hash.list_rows(make_args(tmp_path))]
  assert len(set(names)) == len(names)
  for data in learned_hash.DATA:
    own = [n for n in names if n.startswith(f'{data}/identity')]
    seeds = range(1, 1 + (3 if data == 'frappe' else 5))
    assert own == [f'{data}/identity/seed{s}' for s in seeds]
  assert 'clicks/2000/oracle, 100x/seed5' in names
  assert not [n for n in names if n.startswith('movielens/oracle')]
  without = learned_hash.list_rows(make_args(tmp_path, data=''))
  assert not [n for n, _ in without if n.startswith(('movielens', 'frappe'))]
  with pytest.raises(ValueError, match='no case that begins'):
    learned_hash.list_rows(make_args(tmp_path, only=['nobody']))


def test_bytes_count_the_map():
  sizes = {'user': 10_001}
  plain = learned_hash.count_bytes(sizes, 100, 'hash')
  mapped = learned_hash.count_bytes(sizes, 100, 'learned')
  assert plain['bytes'] == 101 * 64
  # Seven bits an id.
  assert mapped['bytes'] - plain['bytes'] == 4 * (313 * 7 + 1)
  assert round(plain['times']) == 99 and 40 < mapped['times'] < 43


def test_kinds_are_those_of_the_log():
  log = clicks.ClickLog(rows=10, fields=3, values=50, traits=3, zipf=0.7)
  planted = clicks.PlantedSignal(log)
  kinds = planted.find_kinds()
  assert kinds.shape == (3, 50)
  for field in range(3):
    traits = planted._traits[field].T
    for kind in range(8):
      own = traits[kinds[field] == kind]
      assert len(own) and np.all(own == own[0])
    assert len(np.unique(traits, axis=0)) == 8


def test_traits_that_no_term_has_make_no_kinds():
  log = clicks.ClickLog(
    rows=10, fields=3, values=50, traits=3, orders=(1,), terms=1, numbers=0
  )
  planted = clicks.PlantedSignal(log)
  ((((field, trait),),),) = planted._terms
  kinds = planted.find_kinds()
  assert [len(np.unique(own)) for own in kinds] == [
    2 if i == field else 1 for i in range(3)
  ]
  own = planted._traits[field, trait]
  assert len({(k, t) for k, t in zip(kinds[field], own, strict=True)}) == 2


def test_kinds_with_several_rows_are_alike():
  rng = np.random.default_rng(0)
  kinds = rng.integers(0, 8, 800)
  split = 8 * rng.integers(0, 5, 800) + kinds
  found = learned_hash_kinds.score(kinds, split)
  assert found['alike'] == 1.0 and found['rand'] < 0.4
  assert learned_hash_kinds.score(kinds, kinds)['rand'] == 1.0
  drawn = learned_hash_kinds.score(kinds, rng.integers(0, 8, 800))
  assert abs(drawn['rand']) < 0.02 and 0.11 < drawn['alike'] < 0.14
  alone = learned_hash_kinds.score(kinds, np.arange(800))
  assert 'alike' not in alone and alone['rand'] == 0.0


def test_rows_of_kinds_are_searched_with_others(tmp_path):
  args = make_args(tmp_path)
  searched = {data for data, *_ in learned_hash_search.list_searches(args)}
  assert searched == {'clicks/2000', 'clicks/20000', 'movielens'}
  for name, known in learned_hash.DATA.items():
    assert known.share is not None or (known.knobs_of or name) in searched
  for ids in (200, 202):
    assert learned_hash.count_rows(ids, learned_hash.AS_KINDS) == 8 + 2


def make_row(case, seed, ne, times=10):
  return {
    'case': f'd/{case}, {times}x/seed{seed}', 'kind': 'run',
    'of': f'd/{case}, {times}x', 'against': f'd/hash, {times}x', 'data': 'd',
    'map': case, 'compression': times, 'seed': seed, 'auc': 0.5, 'ne': ne,
    'logloss': ne, 'bytes': 9, 'times': 8.0, 'core_s': 1.0,
  }  # fmt: skip


def test_means_are_paired_by_seed():
  rows = [make_row('hash', s, s) for s in (1, 2, 3)]
  rows += [make_row('learned', s, s - 0.5) for s in (2, 3, 4)]
  found = {row['case']: row for row in learned_hash.average(rows)}
  assert found['d/learned, 10x']['ne_diff'] == -0.5
  assert found['d/learned, 10x']['ne_ci'] == 0
  assert 'ne_diff' not in found['d/hash, 10x']


def test_shares_of_rows_are_private():
  tables = learned_hash.set_tables(
    {'user': 1001}, 10, {'id_map': 'double', 'share': 0.5}
  )
  own = {'id_map': 'double', 'rows': 101, 'private': 49}
  assert tables == (('user', own), ('.*', {}))


def test_quotients_need_rows():
  assert not learned_hash.refuse_quotients({'user': 2001}, 10)
  assert 'qr' in learned_hash.refuse_quotients({'user': 2001}, 100)


def test_knobs_are_those_of_the_best_try(tmp_path, monkeypatch):
  def make(times, rows_rate, loss):
    return {
      'data': 'd', 'map': 'hash', 'compression': times, 'valid_logloss': loss,
      'knobs': {'rows_rate': rows_rate},
    }  # fmt: skip

  rows = [make(2, 0.1, 0.5), make(2, 0.2, 0.4), make(10, 0.3, 0.9)]
  monkeypatch.setattr(
    learned_hash.cli, 'read_rows', lambda *_: dict(enumerate(rows))
  )
  assert learned_hash.read_knobs(make_args(tmp_path)) == {
    ('d', 'hash', 2): {'rows_rate': 0.2},
    ('d', 'hash', 10): {'rows_rate': 0.3},
  }


@pytest.mark.parametrize('shared', [False, True])
def test_every_map_has_seven_tries(shared):
  # The second rate is best, then the larger L2, and then the last one.
  order = iter([0.5, 0.3, 0.4, 0.35, 0.2, 0.25, 0.1])
  tried = []
  while knobs := learned_hash_search.suggest_knobs(tried, shared):
    tried.append({'knobs': knobs, 'valid_logloss': next(order)})
  found = [tuple(row['knobs'].values())[:3] for row in tried]
  assert found[:5] == [
    (1e-3, 1e-3, 0.0), (1e-3, 3e-3, 0.0), (1e-3, 1e-2, 0.0),
    (1e-3, 3e-3, 1e-5), (1e-3, 3e-3, 1e-4),
  ]  # fmt: skip
  assert len(tried) == 7
  if shared:
    assert [row['knobs']['share'] for row in tried] == [0.5] * 5 + [0.0, 0.9]
  else:
    assert [row['knobs']['rate'] for row in tried[5:]] == [3e-4, 3e-3]
    assert all(row['knobs']['l2'] == 1e-4 for row in tried[4:])


def test_age_is_counted_from_the_renewal():
  last = learned_hash_drift.EVERY[-1]
  fresh = {s: {'by_window': [0.0] * 19} for s in (1, 2, 3)}
  old = {s: {'by_window': [k % last + s for k in range(19)]} for s in fresh}
  found = learned_hash_drift.compare_ages(
    {'every 1': fresh, f'every {last}': old}, first=8
  )
  assert [row['ne_diff'] for row in found] == [2 + age for age in range(last)]
  assert not learned_hash_drift.compare_ages({'every 1': fresh}, first=8)


def test_equal_sightings_lie_in_one_part():
  rng = np.random.default_rng(0)
  seen, losses = rng.integers(0, 20, 500), rng.random(500)
  found = learned_hash_deciles.cut_parts(losses, seen, 10)
  assert sum(part['examples'] for part in found) == 500
  bounds = [np.inf, *(part['seen'] for part in found)]
  for (low, high), part in zip(
    zip(bounds[1:], bounds[:-1], strict=True), found, strict=True
  ):
    own = (seen >= low) & (seen < high)
    assert part['examples'] == own.sum()
    assert np.isclose(part['logloss'], losses[own].mean())


def test_a_plane_shows_the_rows_that_were_seen_most():
  rows = np.repeat([1, 2, 3, 4, 5, 6], [3, 5, 5, 5, 5, 30])
  counts = np.repeat([90, 1, 5, 2, 4, 99], [3, 5, 5, 5, 5, 30])
  found = learned_hash_plane.choose_rows(rows, counts, (5, 12))
  assert found == {3: 1, 5: 2, 4: 3, 2: 4}


def test_values_of_one_row_are_near(rng=np.random.default_rng(0)):
  centres = rng.normal(size=(5, 4))
  rows = rng.integers(0, 5, 200)
  counts = rng.integers(1, 50, 200)
  vectors = centres[rows] + 0.1 * rng.normal(size=(200, 4))
  found = learned_hash_plane.spread(vectors, counts, rows)
  means = [
    np.average(vectors[rows == k], axis=0, weights=counts[rows == k])
    for k in range(5)
  ]
  squares = ((vectors - np.array(means)[rows]) ** 2).sum(axis=1)
  assert np.isclose(found['near'], np.average(squares, weights=counts))
  assert found['near'] < 0.1 * found['all']
  # A plane keeps the most of what lies apart.
  places = learned_hash_plane.project(vectors, counts)
  assert places.shape == (200, 2)
  kept = np.average(places**2, axis=0, weights=counts)
  assert kept[0] > kept[1] and 0.6 < kept.sum() / found['all'] <= 1


def make_mean(data, case, times, **values):
  end = f', {times}x' if times > 1 else ''
  return {
    'case': f'{data}/{case}{end}', 'kind': 'mean', 'data': data, 'map': case,
    'compression': times, 'times': 0.8 * times, 'ne': 0.8 + 1e-3 * times,
    'logloss': 0.5 + 1e-3 * times, 'floor': 0.7,
  } | values  # fmt: skip


def test_pictures_of_some_rows_are_drawn():
  """A sweep is drawn before all of it has been measured."""
  clicks_rows = [make_mean('clicks/2000', 'identity', 1)]
  clicks_rows += [make_mean('clicks/2000', 'hash', c) for c in (2, 10)]
  curves = learned_hash_curves
  assert '>hash<' in curves.draw_clicks(clicks_rows)
  assert '<svg' in curves.draw_films(clicks_rows)  # of which there are none
  tenths = {f'{k}_{i}': 0.5 for i in range(1, 11) for k in ('rand', 'alike')}
  tenths |= {f'seen_{i}': 1000.0 / i for i in range(1, 11)}
  own = [
    make_mean('rows/50000', 'embedding', times, **tenths) for times in (10, 21)
  ]
  assert 'adjusted Rand' in curves.draw_rows(own)
  parts = [
    {
      'kind': 'mean', 'table': table, 'map': 'learned', 'compression': 10,
      'part': i + 1, 'logloss_diff': 0.01 * i, 'logloss_ci': 0.02,
    }
    for table in ('item', 'user') for i in range(10)
  ]  # fmt: skip
  assert 'by film' in curves.draw_deciles(parts)
  ages = [
    {'kind': 'age', 'case': f'age {i}', 'ne_diff': 0.1 * i} for i in range(8)
  ]
  ages += [
    {'kind': 'mean', 'case': f'every {n}', 'ne': 0.9, 'ne_std': 0.01}
    for n in learned_hash_drift.EVERY
  ]
  assert 'windows' in curves.draw_ages(ages)
  points = [(i, -i, i % 3) for i in range(9)]
  plane = {'kind': 'plane', 'case': 'films', 'points': points}
  assert 'row 2' in learned_hash_plane.draw([plane])
