"""fit, report and score on data with a history, by a model that pools it."""

import json

import jax
import numpy as np
import pytest

import genrec_jax
from genrec_jax.serve.scorer import Scorer

SETTINGS = {
  'model.dim': 4,
  'train.batch_size': 16,
  'eval.batch_size': 16,
  'data.token_capacities': 1,
  'report': {'importance_rows': 20, 'importance_repeats': 1},
}
VISITS = {'kind': 'sequence', 'history': 'visits', 'max_len': 3}
FEATURES = {
  'films': {**VISITS, 'table': 'film'},
  'film': {'kind': 'categorical', 'table': 'film'},
  'places': VISITS,
}
AGES = {'kind': 'numeric_sequence', 'history': 'visits', 'max_len': 3}


def make_examples(rows: int = 60) -> dict:
  rng = np.random.default_rng(0)
  events = rng.integers(0, 5, rows)

  def draw(most):
    return [rng.integers(0, most, n).tolist() for n in events]

  return {
    'film': rng.integers(0, 9, rows),
    'films': draw(9),
    'places': [[None if x == 3 else f'p{x}' for x in y] for y in draw(4)],
    'ages': [[float(x) for x in y] for y in draw(100)],
    'click': rng.integers(0, 2, rows),
  }


def fit(features, **more):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return genrec_jax.fit(
      make_examples(),
      'dlrm',
      label='click',
      features=features,
      settings=SETTINGS,
      steps=2,
      progress=False,
      **more,
    )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('fit') / 'run'
  return fit({**FEATURES, 'ages': None}, workdir=workdir)


def test_the_report_knows_the_history(run):
  report = json.loads((run.workdir / 'report.json').read_text())
  found = {
    (x['feature'], x['kind'])
    for x in report['ranking']['importance']['features']
  }
  assert found == {('film', 'categorical'), ('visits', 'history')}
  assert report['values']['train']['places']['missing'] > 0


def test_scores_are_those_of_records_and_columns(run):
  examples = make_examples(20)
  found = run.score(examples)
  records = [{name: examples[name][i] for name in FEATURES} for i in range(20)]
  wanted = Scorer.load(run.workdir).score(records)[:, 0]
  np.testing.assert_array_equal(found, wanted)
  examples['places'][0] = ['p1'] * 9
  with pytest.raises(ValueError, match="row 0: column 'films' holds .* 9;"):
    run.score(examples)


def test_numbers_of_events_need_another_model(tmp_path):
  with pytest.raises(ValueError, match="'ages' is the numbers of history 'vi"):
    fit({**FEATURES, 'ages': AGES}, workdir=tmp_path / 'run')


def test_events_are_weighed_by_each_head(tmp_path):
  features = {
    **FEATURES,
    'ages': AGES,
    'place': {'kind': 'categorical', 'table': 'places'},
  }
  examples = make_examples() | {'place': ['p1', 'p2'] * 30}
  settings = SETTINGS | {'model.heads': 2, 'model.k_sequences': True}
  with jax.numpy_dtype_promotion('standard'):  # for optax
    run = genrec_jax.fit(
      examples, 'tbsm', label='click', features=features, settings=settings,
      steps=2, progress=False, workdir=tmp_path / 'run',
    )  # fmt: skip
  scorer = Scorer.load(run.workdir)
  rows = {name: examples[name][:20] for name in features}
  weights = scorer.weigh_events(rows)
  assert weights.shape == (20, 2, 3)
  for row, films in zip(weights, rows['films'], strict=True):
    for head, most in enumerate((3, 2)):
      there = np.arange(3) >= 3 - min(len(films), most)
      np.testing.assert_array_equal(row[head] != 0, there)
  # In any company: batches have 16 examples.
  one = scorer.weigh_events({name: x[5:6] for name, x in rows.items()})
  np.testing.assert_allclose(one[0], weights[5], rtol=1e-5)
  assert scorer.weigh_events([]).shape == (0, 2, 3)
  with pytest.raises(ValueError, match="'rows.csv' is a path"):
    scorer.score('rows.csv')
  plain = fit({**FEATURES, 'ages': None}, workdir=tmp_path / 'plain')
  with pytest.raises(ValueError, match="'dlrm' gives no weights to events"):
    Scorer.load(plain.workdir).weigh_events(rows)
