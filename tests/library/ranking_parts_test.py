"""Weights, kept negatives, soft labels and splits, from data to predictions."""

import csv

import jax
import numpy as np
import pytest

import genrec_jax
from genrec_jax.data.ranking import datasets
from genrec_jax.evaluators.ranking import RankingEvaluator
from genrec_jax.serve import score
from genrec_jax.tasks.ranking_metrics import measure_labels
from genrec_jax.train.ranking_data import RankingData

ROWS = 6_000
SETTINGS = {
  'train.batch_size': 256,
  'train.log_every': 20,
  'train.monitor': 'logloss',
  'eval.batch_size': 1024,
  'optimizer.learning_rate': 0.05,
  'data.split.by': 'random',
  'data.example_id': 'row',
  'report.importance_rows': 50,
  'report.importance_repeats': 1,
}


def make_examples(seed=0) -> dict:
  rng = np.random.default_rng(seed)
  shop = rng.integers(0, 3, ROWS)
  chance = np.array([0.04, 0.12, 0.3])[shop]
  return {
    'shop': np.array(['a', 'b', 'c'])[shop],
    'page': rng.integers(0, 4, ROWS),
    'chance': chance,
    'click': (rng.random(ROWS) < chance).astype(int),
    'mass': np.where(rng.random(ROWS) < 0.2, 0, rng.integers(1, 4, ROWS)),
    'user': rng.integers(0, 500, ROWS),
    'when': 1_700_000_000 + rng.permutation(ROWS) / 8,
  }


def fit(examples, steps=60, workdir=None, label='click', **settings):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return genrec_jax.fit(
      examples,
      'lr',
      label=label,
      features=['shop', 'page'],
      settings={**SETTINGS, **settings},
      steps=steps,
      workdir=workdir,
      progress=False,
    )


def rows_of(run, split):
  """Which rows of the examples are in a split."""
  data = datasets.load(run.config.data, run.workdir / 'data', lambda _: None)
  rows = data.splits[split].rows(0, len(data.splits[split]))
  return rows.example_id


def logits_of(p):
  p = np.asarray(p, np.float64)
  return (np.log(p) - np.log1p(-p))[:, None]


def check_metrics(run, examples, label='click', weight=None):
  """The metrics of a run are those of its scores, said plainly."""
  at = rows_of(run, 'test')
  scores = run.score({n: examples[n][at] for n in ('shop', 'page')})
  weights = None if weight is None else examples[weight][at]
  expected = measure_labels(
    logits_of(scores), examples[label][at, None].astype(float), weights
  )
  for name, value in expected.items():
    assert run.metrics['test'][name] == pytest.approx(value, abs=2e-5), name
  return scores


def test_negatives_left_out_do_not_change_the_probabilities():
  examples = make_examples()
  plain = fit(examples, 150)
  run = fit(examples, 150, **{'data.negatives_kept': 0.2})
  rows = {'shop': ['a', 'b', 'c'], 'page': [0, 0, 0]}
  check_metrics(run, examples)
  # A fifth of the negatives were learned from, and all of them are meant.
  np.testing.assert_allclose(run.score(rows), plain.score(rows), atol=0.04)
  assert run.metrics['test']['calibration'] == pytest.approx(1, abs=0.2)
  baseline = run.baselines['mean']['test']
  assert baseline['calibration'] == pytest.approx(1, abs=0.2)
  labels = examples['click'][rows_of(run, 'train')]
  everyone = examples['click'][rows_of(plain, 'train')]
  assert labels.sum() == everyone.sum()
  assert (labels == 0).sum() == pytest.approx(
    0.2 * (everyone == 0).sum(), rel=0.1
  )
  for split in ('valid', 'test'):
    assert rows_of(run, split).tolist() == rows_of(plain, split).tolist()
  # The rows of training lack negatives, so their probabilities are not changed.
  data = RankingData(datasets.load(run.config.data, '', lambda _: None))
  task = data.task(run.config)
  for split, shift in (('train', 0), ('test', np.log(0.2))):
    e = RankingEvaluator(
      task, data.dataset, data.splits[split], run.config.eval
    )
    assert e._correction == pytest.approx(shift)


def test_weights_count_in_loss_and_metrics(tmp_path):
  examples = make_examples()
  weight = {'data.weight': 'mass'}
  run = fit(examples, 20, tmp_path / 'run', **weight)
  check_metrics(run, examples, weight='mass')
  at = rows_of(run, 'train')
  weights, clicks = examples['mass'][at], examples['click'][at]
  mean = np.full(ROWS, (weights @ clicks) / weights.sum())
  at = rows_of(run, 'test')
  expected = measure_labels(
    logits_of(mean[at]), examples['click'][at, None], examples['mass'][at]
  )
  for name in ('logloss', 'ne', 'calibration'):
    got = run.baselines['mean']['test'][name]
    assert got == pytest.approx(expected[name], rel=1e-6)
  # What has weight 0 might as well be another label.
  other = dict(examples)
  other['click'] = np.where(examples['mass'] == 0, 1, examples['click'])
  again = fit(other, 20, **weight)
  rows = {n: examples[n][:50] for n in ('shop', 'page')}
  np.testing.assert_array_equal(again.score(rows), run.score(rows))
  assert again.metrics == run.metrics
  # Predictions are of all rows, whatever their weight.
  found = score.write_scores(run.config, run.workdir)
  assert found['rows'] == len(at)


@pytest.mark.parametrize('value', [-1.0, np.nan, np.inf])
def test_a_weight_below_zero_is_refused_with_its_row(value):
  examples = make_examples()
  examples['mass'] = examples['mass'].astype(float)
  examples['mass'][7] = value
  with pytest.raises(ValueError, match="row 7.*'mass'.*weight .data.weight."):
    fit(examples, 1, **{'data.weight': 'mass'})


def test_labels_may_be_probabilities():
  examples = make_examples()
  kind = {'data.label_kinds.chance': 'probability'}
  run = fit(examples, 150, label='chance', **kind)
  check_metrics(run, examples, 'chance')
  rows = {'shop': ['a', 'b', 'c'], 'page': [0, 0, 0]}
  np.testing.assert_allclose(run.score(rows), [0.04, 0.12, 0.3], atol=0.03)
  examples['chance'][3] = 1.5
  with pytest.raises(ValueError, match="row 3.*'1.5': the label must be a num"):
    fit(examples, 1, label='chance', **kind)


@pytest.mark.parametrize(
  'settings, words',
  [
    ({'data.negatives_kept': 0.0}, 'must be above 0 and at most 1'),
    (
      {
        'data.negatives_kept': 0.5,
        'data.label_kinds.click': 'probability',
      },
      "needs one label, of 0 and 1.*'click' is not",
    ),
    ({'data.label_kinds.click': 'float'}, "set it to 'probability'"),
    ({'data.label_kinds.click': 'soft'}, 'must be one of binary, probability'),
    ({'data.split.by': 'time'}, 'reads a column that is not named; set data.t'),
    ({'data.split.by': 'group', 'data.split.column': 'usr'}, "no column 'usr'"),
  ],
)
def test_options_that_cannot_be_are_refused(settings, words):
  with pytest.raises(ValueError, match=words):
    fit(make_examples(), 1, **settings)


@pytest.mark.parametrize('by', ['time', 'group'])
def test_splits_of_data_at_hand(by):
  examples = make_examples()
  if by == 'time':
    moments = (examples['when'] * 1000).astype('datetime64[ms]')
    settings = {'data.time': 'when'}
    run = fit({**examples, 'when': moments}, 1, **settings, **{
      'data.split.by': by})  # fmt: skip
    when = {s: examples['when'][rows_of(run, s)] for s in ('train', 'test')}
    assert max(when['train']) < min(when['test'])
    assert len(when['test']) == ROWS / 10
  else:
    settings = {'data.split.by': by, 'data.split.column': 'user'}
    run = fit(examples, 1, **settings)
    users = {s: {*examples['user'][rows_of(run, s)]} for s in ('train', 'test')}
    assert not users['train'] & users['test'] and len(users['test']) > 20


def write_csv(path, names, rows):
  with open(path, 'w', newline='') as f:
    csv.writer(f).writerows([names, *rows])
  return path


def test_predicting_reads_features_alone(tmp_path):
  names = ('click', 'mass', 'user', 'when', 'shop', 'page')
  examples = make_examples()
  columns = [examples[n][:400].tolist() for n in names]
  path = write_csv(tmp_path / 'x.csv', names, zip(*columns, strict=True))
  with jax.numpy_dtype_promotion('standard'):
    run = genrec_jax.fit(
      str(path),
      'lr',
      label='click',
      features=['shop', 'page'],
      group='user',
      settings={
        **SETTINGS,
        'data.weight': 'mass',
        'data.time': 'when',
        'data.label_weights.click': 'mass',
        'data.extras.number.column': 'page',
        'data.extras.number.kind': 'int',
      },
      steps=1,
      workdir=tmp_path / 'run',
      progress=False,
    )
  whole = run.score(str(path))
  for text in ('', '-1', '?'):
    rows = [(text,) * 4 + row[4:] for row in zip(*columns, strict=True)]
    rows[5] = (*rows[5][:-1], 'none')  # a page that no int can be
    write_csv(tmp_path / 'new.csv', names, rows)
    got = run.score(str(tmp_path / 'new.csv'))
    keep = np.arange(400) != 5
    np.testing.assert_array_equal(got[keep], whole[keep])
    config = run.config
    config.predict.input = str(tmp_path / 'new.csv')
    assert score.write_scores(config, run.workdir)['rows'] == 400


def test_columns_beside_the_features_of_a_file_are_none(tmp_path):
  """A weight of 1 / w for negatives would tell the label."""
  examples = make_examples()
  path = tmp_path / 'x.csv'
  with open(path, 'w', newline='') as f:
    out = csv.writer(f)
    out.writerow(examples)
    out.writerows(zip(*examples.values(), strict=True))
  with jax.numpy_dtype_promotion('standard'):
    run = genrec_jax.fit(
      path,
      'lr',
      label='click',
      features={'shop': 'categorical', 'chance': None, 'page': None},
      settings={
        **SETTINGS,
        'data.weight': 'mass',
        'data.time': 'when',
        'eval.splits': (),
      },
      steps=2,
      workdir=tmp_path / 'run',
      progress=False,
    )
  assert run.features == ('shop', 'user')
