"""The benchmark of models on towers: which runs, and how they are compared."""

import doctest

import numpy as np
import pytest

from benchmarks import dmt_quality as bench


def make_row(name, seed, auc, **more):
  part, model, how = name.split('/')
  return {
    'case': f'{name}/seed{seed}',
    'kind': 'run',
    'part': part,
    'of': name,
    'model': model,
    'towers': how.split(' ')[0],
    'count': 0 if how == 'flat' else 4,
    'seed': seed,
    'parameters': 7,
    'logloss': 1 - auc,
    'auc': auc,
    'valid_auc': auc,
    'epochs': 1.0,
    'core_s': 1.0,
    **more,
  }


def test_differences_are_those_of_equal_seeds():
  flat, towers = [0.7, 0.8, 0.6], [0.71, 0.83, 0.9]
  rows = [make_row('planted/dlrm/flat', s, x) for s, x in enumerate(flat)]
  rows += [
    make_row('planted/dlrm/coherent 4', s, x, compression=2.0, ari=1.0)
    for s, x in enumerate(towers[:2])
  ]
  # The flat run of another model is of no account.
  rows.append(make_row('planted/dcn/flat', 0, 0.1))
  rows.append(make_row('planted/dlrm/random 4', 1, 0.75, ari=0.0))
  found = {row['case']: row for row in bench.average(rows)}
  row = found['planted/dlrm/coherent 4']
  np.testing.assert_allclose(row['minus_flat'], 0.02)
  np.testing.assert_allclose(row['minus_flat_se'], 0.01)
  np.testing.assert_allclose(row['logloss_minus_flat'], -0.02)
  assert row['minus_flat_pairs'] == row['seeds'] == 2
  np.testing.assert_allclose(row['minus_random'], 0.08)
  assert 'minus_random_se' not in row
  assert 'minus_flat' not in found['planted/dlrm/flat']
  assert doctest.testmod(bench).failed == 0


def test_random_towers_of_the_same_settings_are_compared():
  rows = [
    make_row('frappe/dlrm/coherent 4, tower_compression=1.0', 1, 0.9),
    make_row('frappe/dlrm/random 4', 1, 0.8),
  ]
  assert 'minus_random' not in bench.average(rows)[0]
  rows.append(make_row('frappe/dlrm/random 4, tower_compression=1.0', 1, 0.7))
  np.testing.assert_allclose(bench.average(rows)[0]['minus_random'], 0.2)


def test_every_case_has_a_flat_one_before_it():
  cases = [case for stage in bench.list_stages() for case in stage]
  runs = [(case.name, seed) for case in cases for seed in case.seeds]
  assert len(set(runs)) == len(runs)
  for case in cases:
    if case.part == 'frappe':  # whose towers are of a seed that is not counted
      assert bench.SOURCE_SEED not in case.seeds
    for seed in case.seeds:
      flat = f'{case.part}/{case.model}/flat', seed
      assert runs.index(flat) <= runs.index((case.name, seed))


@pytest.mark.parametrize('model', bench.PLANTED)
def test_compression_is_that_of_the_towers(model):
  towers = [['a', 'b', 'c', 'd'], ['e', 'f']]
  options = dict(name=model, dim=16, **bench.PLANTED[model])
  assert bench.find_compression(options, towers) == 2
  options['tower_compression'] = 1.0
  assert bench.find_compression(options, towers) == 1


@pytest.mark.slow
def test_smoke_trains_each_choice_and_continues(tmp_path, rows):
  argv = ['--smoke', '--results', str(tmp_path), '--runs', str(tmp_path / 'r')]
  bench.main([*argv, '--only', 'planted'])
  found = rows('dmt_quality')
  worst = found['planted/dlrm/worst 4/seed0']
  assert worst['ari'] < 0 and worst['compression'] == 2
  assert worst['parameters'] != found['planted/dlrm/flat/seed0']['parameters']
  assert len(worst['partition'].split(' | ')) == 4
  for how in ('coherent', 'random', 'worst'):
    assert 'minus_flat' in found[f'planted/dlrm/{how} 4']
  # A row that is there needs no workdir any more.
  bench.main([*argv[:-1], str(tmp_path / 'none'), '--only', 'planted'])
  again = rows('dmt_quality')
  assert again.keys() == found.keys()
  for name, row in found.items():  # means are of rounded figures now
    assert row['kind'] == 'mean' or row == again[name]
  assert not (tmp_path / 'none').exists()
  with pytest.raises(SystemExit):
    bench.main([*argv, '--only', 'nothing'])


@pytest.mark.slow
def test_smoke_of_frappe_takes_towers_of_a_run_of_its_own(tmp_path, rows):
  bench.main(
    ['--smoke', '--results', str(tmp_path), '--runs', str(tmp_path / 'r')]
    + ['--only', 'frappe/dlrm/flat', 'frappe/dlrm/coherent']
  )
  found = rows('dmt_quality')
  assert 'minus_flat' in found['frappe/dlrm/coherent 4']
  assert 'ari' not in found['frappe/dlrm/coherent 4']
  assert (tmp_path / 'r' / 'frappe_dlrm_dot_seed0' / 'report.json').exists()
