"""Tests of the benchmarks of teacher and students."""

import doctest
import json

import numpy as np
import pytest

from benchmarks import exfm, exfm_picture, exfm_search, exfm_step, exfm_worlds
from genrec_jax.data.parquet import pq
from genrec_jax.data.ranking import drift
from genrec_jax.distill.teacher_store import TeacherStore


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  return tmp_path_factory.mktemp('runs')


def test_doctests():
  for module in (exfm, exfm_search, exfm_worlds):
    assert doctest.testmod(module).failed == 0


@pytest.mark.slow
def test_smoke_measures_what_a_teacher_is_worth(tmp_path, runs, rows):
  command = ['--smoke', '--runs', str(runs), '--results', str(tmp_path)]
  exfm.main([*command, '--only', 'ladder/usual/dlrm', '--keep'])
  found = rows('exfm')
  for method in exfm.METHODS:
    row = found[f'ladder/usual/dlrm/{method}/seed1']
    assert 0.5 < row["ne"] < 100 and 0 < row['floor'] < 1.2
    assert len(row['windows_ne']) == 2
  mean = found['ladder/usual/dlrm/head']
  one, plain = (
    found[f'ladder/usual/dlrm/{m}/seed1']['ne'] for m in ('head', 'none')
  )
  assert mean['gain_%'] == pytest.approx(100 * (1 - one / plain), rel=1e-3)
  # What is there is not measured again.
  exfm.main([*command, '--only', 'ladder/usual/dlrm', '--keep'])


def test_windows_are_scored_by_the_teacher_of_the_window_before(runs):
  options = exfm.USUAL | dict(seed=1, windows=4, rows=600, values=20)
  world = exfm_worlds.World(runs / 'usual' / 'seed1', drift.DriftLog(**options))
  store = world.score(exfm_worlds.Teacher(), 0)
  assert isinstance(store, TeacherStore) and len(store) == 3 * 600
  for scores in store.iterate():
    np.testing.assert_array_equal(
      scores.snapshot_window, scores.time // world.log.window_s - 1
    )
  parts = sorted(world.annotate(0, exfm_worlds.Teacher(), 0).glob('*.parquet'))
  for number, path in enumerate(parts):
    table = pq.read_table(path)
    assert (table['segment'].to_numpy() == 0).all()
    weight = table['teacher_weight'].to_numpy()
    assert (weight == (number > 0)).all()


@pytest.mark.slow
def test_smoke_of_the_cost_of_a_step(tmp_path, runs, rows):
  command = ['--smoke', '--runs', str(runs), '--results', str(tmp_path)]
  exfm_step.main(command)
  found = rows('exfm_step')
  assert found['step/no teacher']['heads'] == 0
  assert found['step/head, scores']['heads'] == 33
  assert all(row['teacher'] == 0 for row in found.values())


def test_means_are_paired_by_seed():
  def make(method, seed, ne):
    group = 'ladder/usual/dlrm'
    return {
      'case': f'{group}/{method}/seed{seed}', 'kind': 'run', 'seed': seed,
      'of': f'{group}/{method}', 'group': group, 'method': method, 'ne': ne,
      'auc': 0.7, 'calibration': 1.0, 'teacher_ne': 0.8, 'floor': 0.7,
      'core_s': 1.0,
    }  # fmt: skip

  given = [make('none', 1, 1.0), make('none', 2, 0.9)]
  given += [make('one_head', 1, 0.95), make('one_head', 2, 0.864)]
  given += [make('head', 1, 0.95), make('head', 2, 0.81)]
  means = {row['method']: row for row in exfm.average(given)}
  assert means['one_head']['gain_%'] == pytest.approx(4.5)
  assert means['head']['gain_%'] == pytest.approx(7.5)
  assert means['head']['step_%'] == pytest.approx((0 + 6.25) / 2)
  assert 'tuned_%' not in means['head']
  # The teacher is ahead by .2 and .1, of which .05 and .09 are reached.
  assert means["head"]["transfer"] == pytest.approx((0.05 + 0.09) / (0.2 + 0.1))
  assert 'gain_%' not in means['none']
  json.dumps(list(means.values()))


def test_the_mean_student_is_told_once_all_students_are_there():
  def make(student, method, ne):
    group = f'ladder/usual/{student}'
    return {
      'of': f'{group}/{method}', 'group': group, 'method': method, 'ne': ne,
      'seed': 1, 'auc': 0.7, 'calibration': 1.0, 'teacher_ne': 0.7,
      'floor': 0.7, 'core_s': 1.0,
    }  # fmt: skip

  given = [make(s, 'none', 1.0) for s in exfm.STUDENTS]
  given += [make(s, 'one_head_w', 0.9) for s in exfm.STUDENTS]
  given += [make('dlrm', 'head', 0.8), make('dcn', 'head', 0.7)]
  assert 'ladder/usual/all/head' not in {r['case'] for r in exfm.average(given)}
  given.append(make('deepfm', 'head', 0.6))
  means = {row['case']: row for row in exfm.average(given)}
  row = means['ladder/usual/all/head']
  assert row['ne'] == pytest.approx(0.7)
  assert row['gain_%'] == pytest.approx(30)
  assert row['tuned_%'] == pytest.approx(100 * (1 - 7 / 9))
  assert row['student'] == 'all' and row['seeds'] == 1


def test_every_method_has_knobs_and_every_case_a_name_of_its_own():
  assert exfm.RECIPES.keys() == {*exfm.METHODS}
  cases = [c.name for cases, _ in exfm.list_cases().values() for c in cases]
  assert len({*cases}) == len(cases)
  searched = [exfm_search.describe(*case) for case in exfm_search.list_cases()]
  assert len({*searched}) == len(searched)
  assert not {*exfm_search.SEEDS} & {*range(1, 6)}


def test_the_picture_draws_what_was_measured():
  rows = []
  for cases, _ in exfm.list_cases().values():
    for case in cases:
      for seed in (1, 2):
        ne = 1.0 if case.method == 'none' else 0.9 + 0.01 * seed
        rows.append({
          'kind': 'run', 'of': case.name, 'group': case.group, 'seed': seed,
          'method': case.method, 'part': case.part, 'stream': case.stream,
          'student': case.model, 'teacher': case.teacher.name,
          'lag': case.lag, 'ne': ne, 'early_ne': [ne] * 4,
          'windows_ne': [ne] * 4, 'auc': 0.7, 'calibration': 1.0,
          'teacher_ne': 0.8, 'floor': 0.7, 'core_s': 1.0,
        })  # fmt: skip
  only = [row for row in rows if row['part'] == 'ladder']
  assert exfm_picture.draw(only).count('class="title"') == 1
  drawn = exfm_picture.draw([*rows, *exfm.average(rows)])
  assert drawn.count('class="title"') == 3
  for name in (*exfm_picture.LAGS.values(), *exfm_picture.WINDOWS.values()):
    assert f'>{name}<' in drawn
