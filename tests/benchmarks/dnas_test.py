"""Tests of the benchmark of searches: its oracle, its truth, its figures."""

import argparse
import doctest

import numpy as np
import pytest

from benchmarks import (
  dnas,
  dnas_every,
  dnas_frappe,
  dnas_picture,
  dnas_planted,
  dnas_rows,
  dnas_runs,
)
from benchmarks.dnas_every import Model, Training
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import clicks
from genrec_jax.search.settings import SearchSettings
from tests.search import spaces


def make_args(tmp_path, **changes):
  values = dict(
    runs=str(tmp_path), data='films', smoke=False, only=[''],
    results=str(tmp_path),
  )  # fmt: skip
  return argparse.Namespace(**values | changes)


def make_truth(excess, valid=None):
  """A truth of two models of 8 and one of 32, of a field."""
  models = [Model((8,), (1,)), Model((8,), (4,)), Model((32,), (4,))]
  excess = np.array(excess, float)
  return dnas_planted.Truth(
    models, excess if valid is None else np.array(valid, float), excess
  )


def test_doctests():
  for module in (dnas_runs, dnas_every):
    assert doctest.testmod(module).failed == 0


def test_names_are_told_apart(tmp_path):
  args = make_args(tmp_path)
  parts = (dnas_planted, dnas_rows, dnas_frappe)
  names = [name for part in parts for name, _ in part.list_rows(args)]
  assert len(set(names)) == len(names)
  assert 'planted/tried/900/seed3' in names
  assert 'planted/skips dropped/300/seed1' in names
  assert 'planted/skips dropped/200/seed1' not in names
  # Later rows read what earlier ones have written.
  assert names.index('planted/models') < names.index('planted/road/0')
  searched = names.index('planted/published/200/seed3')
  assert searched < names.index('planted/random/200')
  assert names.index('frappe/random/29') < names.index('frappe/ranking/seed1')
  assert not dnas_frappe.list_rows(make_args(tmp_path, data=''))


def test_operations_of_the_oracle_are_those_of_the_space(tmp_path):
  """Each of 192 models costs what the search believes."""
  config = config_lib.load(str(dnas_planted.runs.ROOT / dnas_planted.CONFIG))
  models = dnas_every.list_models(5, config.search.top, config.search.dims)
  assert len(set(models)) == len(models) == 192
  flops = sorted(model.flops for model in models)
  assert (flops[0], flops[-1]) == (96, 3_392)
  assert Model((8, 32), (1, 1, 4, 4, 4)).flops == 2 * (14 * 8 + 8 * 32 + 32 * 1)


def test_models_side_by_side_are_those_trained_alone():
  log = clicks.ClickLog(
    rows=2_000, fields=2, values=20, numbers=0, orders=(1, 2), terms=4
  )
  examples = dnas_every.Examples.generate(log)
  training = Training(epochs=2, batch_size=128)
  models = dnas_every.list_models(2, (2, 4), (1, 2))
  together = dnas_every.train_every(models, examples, training, 0)
  # A place has draws of its own, so that a model keeps its place here.
  others = [models[0]] * len(models)
  others[7] = models[7]
  alone = dnas_every.train_every(others, examples, training, 0)
  assert np.isclose(together.test[7], alone.test[7], atol=1e-5)
  assert not np.isclose(together.test[8], alone.test[8], atol=1e-5)
  # Nobody is better than the true chances.
  assert (together.test > examples.floor - 1e-6).all()


def test_noise_is_that_of_a_difference():
  rng = np.random.default_rng(0)
  excess = rng.normal(0.02, 0.001, (3, 2_000))
  truth = make_truth(excess)
  assert np.isclose(truth.noise, 1.96 * 0.001 * (2 / 2_000) ** 0.5, rtol=0.1)
  # Of few seeds it is that of t, with their degrees of freedom.
  few = make_truth(0.02 + 0.001 * np.array([[-1, 0, 1]] * 3))
  assert np.isclose(few.noise, 2.776 * 0.001 * (2 / 3) ** 0.5, rtol=1e-3)


def test_the_seed_that_chose_does_not_judge():
  truth = make_truth([[0.0, 0.3, 0.6]] * 3)
  assert np.isclose(truth.judge(1, 0), 0.45)
  assert np.isclose(truth.judge(1, 2), 0.15)
  assert np.isclose(make_truth([[0.2]] * 3).judge(0, 0), 0.2)


def test_what_is_known_without_a_search(tmp_path, monkeypatch):
  # Larger is better, and all seeds agree.
  truth = make_truth([[0.03] * 3, [0.02] * 3, [0.01] * 3], [[0.5] * 3] * 3)
  monkeypatch.setattr(dnas_planted.Truth, 'read', lambda _: truth)
  found = dnas_planted.know_budget(make_args(tmp_path), 900)
  assert np.isclose(found['spearman_size'], 1)
  assert np.isclose(found['spearman_halves'], 1)
  assert found['curse'] == 0 and np.isclose(found['regret'], 0.01)
  assert found['on_front'] == 1 / 3 and found['models'] == 3


def test_random_models_come_near_the_budget():
  space = spaces.make_space()
  least, most = map(space.measure_architecture, space.find_extremes())
  budget = 0.5 * (least['flops'] + most['flops'])
  settings = SearchSettings({'max_flops': budget})
  found = dnas_frappe.draw_models(space, settings, 8)
  assert len({model.name for model in found}) == 8
  costs = [space.measure_architecture(model)['flops'] for model in found]
  assert all(budget / 2 <= cost <= budget for cost in costs)


def test_models_within_a_budget_are_ordered_by_excess():
  truth = make_truth([[0.03, 0.03], [0.01, 0.02], [0.001, 0.001]])
  assert truth.list_within(10_000).tolist() == [2, 1, 0]
  assert truth.list_within(truth.models[1].flops).tolist() == [1, 0]
  assert truth.list_within(1).tolist() == []


def test_random_search_takes_what_validates_best(tmp_path, monkeypatch):
  """The model that is best on test is the worst on validation."""
  truth = make_truth(
    excess=[[0.001] * 2, [0.01] * 2, [0.02] * 2],
    valid=[[0.7] * 2, [0.6] * 2, [0.5] * 2],
  )
  monkeypatch.setattr(dnas_planted.Truth, 'read', lambda _: truth)
  row = {
    'of': 'planted/published/900', 'core_s': 20.0, 'trained': 4,
    'trained_s': 10.0, 'run_core_s': 1.0,
  }  # fmt: skip
  monkeypatch.setattr(dnas_planted.cli, 'read_rows', lambda *_: {'a': row})
  found = dnas_planted.search_randomly(make_args(tmp_path), 900)
  # 20 + 4 * 10 seconds are six trainings, and there are three models.
  assert found['trained'] == 3 and found['models'] == 3
  assert np.isclose(found['regret'], 0.019) and found['regret_std'] < 1e-9
  assert found['on_front'] == 0
  with pytest.raises(ValueError, match='do that first'):
    dnas_planted.search_randomly(make_args(tmp_path), 200)


def test_means_are_over_the_runs_of_a_case():
  rows = [
    {
      'kind': 'run', 'of': 'frappe/chosen/full', 'case': f'seed{s}',
      'auc': 0.9 + s / 100, 'auc_diff': s / 100, 'bytes': 7,
    }
    for s in (1, 2, 3)
  ]  # fmt: skip
  rows.append({'kind': 'random', 'case': 'alone', 'regret': 1.0})
  (mean,) = dnas.average(rows)
  assert mean['seeds'] == 3 and np.isclose(mean['auc'], 0.92)
  assert np.isclose(mean['auc_diff'], 0.02) and mean['bytes'] == 7
  # t of 2 degrees of freedom, 4.303, times 0.01 / sqrt(3).
  assert np.isclose(mean['auc_ci'], 4.303 * 0.01 / 3**0.5, rtol=1e-3)


def test_uniform_rows_have_the_bytes_of_the_budget(tmp_path, monkeypatch):
  seen = {}

  def train(args, config, name, options):
    seen.update(options)
    return {}

  monkeypatch.setattr(dnas_rows, '_train', train)
  args = make_args(tmp_path)
  row = dnas_rows.train_plain(args, 'uniform', 1)
  config = config_lib.load(
    str(dnas_rows.runs.ROOT / dnas_rows.CONFIG), [f'tables={seen["tables"]}']
  )
  assert config.tables[0][1] == {'id_map': 'hash', 'rows': row['rows']}
  fields, dim = config.data.clicks.fields, config.model.dim
  sizes = (fields * dim, *config.model.top, 1)
  top = sum(a * b + b for a, b in zip(sizes, sizes[1:], strict=False))
  whole = 4 * (top + fields * dim * row['rows'])
  left = config.search.max_bytes - whole
  assert 0 <= left < 4 * fields * dim  # no table could have another row


def test_the_picture_has_all_models_and_what_was_found():
  rows = [
    {'kind': 'search', 'variant': v, 'flops': 300, 'excess': 0.01}
    for v in ('published', 'tried', 'sgd')
  ]
  drawn = dnas_picture.draw(rows)
  assert 'four models drawn' in drawn and '64 tried' in drawn


def test_the_picture_of_frappe_has_a_dot_for_each_model_found():
  cost = {'flops': 1e5, 'bytes': 1e6}
  rows = [
    {'kind': 'random model', 'case': 'frappe/random/0', 'auc': 0.98, **cost},
    {'kind': 'scaled model', 'case': 'frappe/scaled/0', 'auc': 0.97, **cost},
    {'kind': 'mean', 'case': 'frappe/hand-made', 'auc': 0.984, **cost},
  ]
  rows += [
    {'kind': 'run', 'case': f'frappe/found/full/supernet{s}/seed{n}',
     'of': 'frappe/found/full', 'supernet': s, 'auc': 0.98 + n / 1e3, **cost}
    for s in (1, 2) for n in (1, 3)
  ]  # fmt: skip
  drawn = dnas_picture.draw_frappe(rows)
  assert 'found, one of each search' in drawn and 'narrower' in drawn
  one = dnas_picture.draw_frappe(rows[:5])
  assert drawn.count('h0') == one.count('h0') + 2


@pytest.mark.slow
def test_smoke_of_what_is_planted(tmp_path, rows):
  """Two searches and the models they are compared with, in small."""
  dnas.main([
    '--smoke', '--runs', str(tmp_path / 'runs'), '--results', str(tmp_path),
    '--only', 'planted/models', 'planted/road', 'planted/published/300',
    'planted/random/300', 'rows/',
  ])  # fmt: skip
  found = rows('dnas')
  row = found['planted/published/300/seed1']
  assert 1 <= row['place'] <= row['models'] < 192
  assert -1 <= row['spearman'] <= 1 and row['regret'] >= 0
  assert found['rows/found']['seeds'] == 1
  assert found['rows/search/seed1']['bytes'] <= 5e4
