"""fit, score, save and load of models that rank."""

import doctest
import json
import shutil
import types

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.data import text as text_lib
from genrec_jax.data.ranking import store
from genrec_jax.data.ranking.datasets import RankingDataset
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import examples as examples_lib
from genrec_jax.library import files, settings
from genrec_jax.library.examples import choose_features, write_examples
from genrec_jax.serve import score
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, results
from genrec_jax.train.ranking_data import RankingData
from tests.library.frames import Frame

SETTINGS = {
  'model.dim': 4,
  'train.batch_size': 16,
  'train.log_every': 1,
  'eval.batch_size': 16,
  'report': {'importance_rows': 20, 'importance_repeats': 1},
}


def make_examples(rows: int = 60) -> dict:
  """Clicks on shops, with a number, a missing one and a list of tags."""
  rng = np.random.default_rng(0)
  tags = np.array(['red', 'big', 'new'])
  price = rng.normal(100, 30, rows)
  price[3] = np.nan
  return {
    'shop': np.array([f's{n}' for n in rng.integers(0, 5, rows)]),
    'hour': rng.integers(0, 24, rows),
    'price': price,
    'tags': [tags[: rng.integers(0, 4)].tolist() for _ in range(rows)],
    'row': np.arange(rows),
    'click': rng.integers(0, 2, rows),
  }


def fit(examples, workdir=None, **more):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return genrec_jax.fit(
      examples,
      **{
        'model': 'fm',
        'label': 'click',
        'features': {'row': None},
        'settings': SETTINGS,
        'steps': 2,
        'progress': False,
        **more,
      },
      workdir=workdir,
    )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return fit(make_examples(), tmp_path_factory.mktemp('fit') / 'run')


def test_metrics_and_features(run):
  assert set(run.metrics) == {'valid', 'test'}
  assert 'auc' in run.metrics['test'] and 'mean' in run.baselines
  assert run.features == ('shop', 'hour', 'price', 'tags')
  assert run.labels == ('click',)
  assert repr(run).startswith('RankingRun(fm; valid: auc')
  assert run.report().exists()
  kinds = {c.name: c.kind for c in run._scorer.encoder.schema.columns}
  assert kinds == {
    'shop': 'categorical',
    'hour': 'categorical',
    'price': 'numeric',
    'tags': 'multi_hot',
  }


def test_scores_are_those_of_the_scorer_whatever_holds_the_examples(run):
  examples = make_examples(20)
  found = run.score(examples)
  assert found.shape == (20,) and ((found > 0) & (found < 1)).all()
  records = [
    {
      name: None if name == 'price' and np.isnan(examples[name][i]) else
      examples[name][i]
      for name in run.features
    }
    for i in range(20)
  ]  # fmt: skip
  wanted = Scorer.load(run.workdir).score(records)[:, 0]
  np.testing.assert_array_equal(found, wanted)
  del examples['click'], examples['row']
  np.testing.assert_array_equal(run.score(Frame(examples)), wanted)
  examples['hour'] = examples['hour'].astype(float)  # beside missing ones
  np.testing.assert_array_equal(run.score(examples), wanted)
  unseen = {**examples, 'shop': ['nobody'] * 20, 'tags': [None] * 20}
  assert np.isfinite(run.score(unseen)).all()
  with pytest.raises(ValueError, match="no column 'hour' for a feature of"):
    run.score({'shop': ['s1']})
  assert run.score({name: [] for name in run.features}).shape == (0,)


@pytest.mark.parametrize('package', ['pandas', 'polars'])
def test_a_missing_cell_changes_no_other_row(run, package):
  frames = pytest.importorskip(package)
  examples = make_examples(20)
  hours = examples['hour'].tolist()
  examples['price'] = [None if x != x else x for x in examples['price']]
  whole = run.score(frames.DataFrame(examples))
  frame = frames.DataFrame({**examples, 'hour': [None, *hours[1:]]})
  records = (
    frame.to_dict('records') if package == 'pandas' else frame.to_dicts()
  )
  changed = run.score({**examples, 'hour': [None, *hours[1:]]})
  assert changed[0] != whole[0]
  np.testing.assert_array_equal(changed[1:], whole[1:])
  scorer = Scorer.load(run.workdir)
  for found in (
    run.score(frame),
    run.score(records),
    scorer.score(records)[:, 0],
    scorer.score(frame)[:, 0],
    scorer.score({name: frame[name] for name in run.features})[:, 0],
  ):
    np.testing.assert_array_equal(found, changed)
  assert scorer.score(frame.head(0)).shape == (0, 1)


def test_a_saved_run_scores_without_its_data(run, tmp_path):
  saved = genrec_jax.load(run.save(tmp_path / 'kept'))
  assert isinstance(saved, genrec_jax.RankingRun)
  assert not (saved.workdir / 'data').exists()
  np.testing.assert_equal(saved.metrics, run.metrics)  # some are NaN
  examples = make_examples(20)
  np.testing.assert_array_equal(saved.score(examples), run.score(examples))


def test_a_run_without_validation_keeps_its_latest_weights(run, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(run.workdir, workdir)
  shutil.rmtree(workdir / 'best')
  saved = genrec_jax.load(genrec_jax.load(workdir).save(tmp_path / 'kept'))
  assert (saved.workdir / 'checkpoints').exists()
  assert np.isfinite(saved.score(make_examples(5))).all()


def test_files(tmp_path):
  """A CSV file, with a feature that is a number and one left out."""
  examples = make_examples()
  del examples['tags']
  path = tmp_path / 'clicks.csv'
  lines = zip(*examples.values(), strict=True)
  text = [','.join(examples), *(','.join(map(str, x)) for x in lines)]
  path.write_text('\n'.join(text).replace('nan', '') + '\n')
  run = fit(path, features={'price': 'numeric', 'row': None})
  assert run.features == ('shop', 'hour', 'price')
  config = ConfigDict(config_lib.read_config(run.workdir / 'config.json'))
  out = tmp_path / 'out.jsonl'
  config.predict.update(input=str(path), output=str(out))
  score.write_scores(config, run.workdir)
  wanted = [json.loads(line) for line in out.read_text().splitlines()]
  np.testing.assert_allclose(
    run.score(path), [list(line.values())[-1] for line in wanted], rtol=1e-6
  )
  np.testing.assert_allclose(run.score(path), run.score(examples), rtol=1e-6)


BY_TYPE = {
  'shop': {'kind': 'categorical'},
  'price': {'kind': 'numeric'},
  'day': None,
  'click': {'kind': 'categorical'},
}


@pytest.mark.parametrize(
  'features, wanted',
  [
    (['shop'], {'shop': {'kind': 'categorical'}}),
    ('price', {'price': {'kind': 'numeric'}}),
    (
      {'day': None, 'price': {'transform': 'log'}},
      {
        'shop': {'kind': 'categorical'},
        'price': {'kind': 'numeric', 'transform': 'log'},
      },
    ),
    (
      {
        'day': None,
        'price': None,
        'again': {'column': 'shop', 'table': 'shop'},
      },
      {
        'shop': {'kind': 'categorical'},
        'again': {'column': 'shop', 'table': 'shop'},
      },
    ),
  ],
)
def test_features_by_name(features, wanted):
  assert choose_features(BY_TYPE, features, ['click']) == wanted


@pytest.mark.parametrize(
  'features, words',
  [
    (None, "'day' holds dates, .* leave it out with features={'day': None}"),
    (['shp'], "features names 'shp', .* did you mean 'shop'"),
    ({'shop': None, 'price': None, 'day': None}, 'no column is left'),
  ],
)
def test_features_that_cannot_be(features, words):
  with pytest.raises(ValueError, match=words):
    choose_features(BY_TYPE, features, ['click'])


def test_chunks_and_missing_values(tmp_path, monkeypatch):
  monkeypatch.setattr(examples_lib, 'CHUNK_ROWS', 7)
  cfg = config_lib.ranking().data
  cfg.labels, cfg.split.valid_fraction = ('click',), 0.0
  cfg.split.test_fraction = 0.0
  examples = make_examples()
  examples['age'] = [None if n % 3 else n for n in range(60)]
  examples['odd'] = [{}] * 60  # which is left out, and may hold anything
  columns = columns_lib.read_columns(Frame(examples))
  lines = []
  paths = {
    write_examples(columns, cfg, {'odd': None}, tmp_path, lines.append)
    for _ in range(2)
  }
  assert 'give shop (categorical), hour (categorical), price (num' in lines[1]
  [path] = paths
  data = store.PreparedStore(path)
  rows = data.splits['train'].rows(0, 60)
  encoder = data.encoder
  ids = dict(zip(encoder.schema.names.ids, rows.ids.T, strict=True))
  shops = encoder.vocabularies['shop'].decode(ids['shop'])
  assert shops == examples['shop'].tolist()
  ages = encoder.vocabularies['age'].decode(ids['age'])
  assert ages == ['' if n % 3 else str(n) for n in range(60)]
  tags = encoder.vocabularies['tags'].decode(rows.bags['tags'].values)
  assert tags == [tag for tags in examples['tags'] for tag in tags]
  np.testing.assert_array_equal(rows.labels[:, 0], examples['click'])
  examples['hour'][5] += 1
  columns = columns_lib.read_columns(examples)
  other = write_examples(columns, cfg, {'odd': None}, tmp_path, lambda *_: None)
  assert other != path


def test_a_label_that_is_always_the_same_in_training(tmp_path, caplog):
  cfg = config_lib.ranking().data
  cfg.labels = ('click',)
  columns = columns_lib.read_columns({'shop': ['a'] * 9, 'click': [0] * 9})
  path = write_examples(columns, cfg, None, tmp_path, lambda *_: None)
  data = RankingData(RankingDataset('clicks', store.PreparedStore(path)))
  runtime = types.SimpleNamespace(shards=1, local_shards=None)
  data.train_batches(config_lib.ranking(), runtime, None, None)
  assert "'click' is 0 in all 7 examples of the train split" in caplog.text


@pytest.mark.parametrize(
  'changed, more, words',
  [
    ({}, {'label': 'clik'}, "'clik' for the label; .* 'click'. Say what it is"),
    ({'click': [0, 2] * 30}, {}, "'click', row 1: 2 is not a label; labels"),
    ({'click': [0, None] * 30}, {}, "'click', row 1: the label is missing"),
    ({'click': ['on', 'off'] * 30}, {}, "'on' is not a label; .*convert the"),
    ({'click': [[0]] * 60}, {}, "label 'click' must hold numbers, 0 or 1"),
    ({'price': [1e300] * 60}, {}, "row 0, column 'price': '1e.300' is not a"),
    (
      {'day': np.array(['2024-01-01'] * 60, 'datetime64[D]')},
      {'features': {'row': None, 'day': 'categorical'}},
      "row 0, column 'day': dates are not categories; .* make feature .day. nu",
    ),
    ({}, {'features': {'row': None, 'price': 'nombre'}}, 'kind of feature'),
    ({'price': [np.inf] * 60}, {}, "'inf' is not .*, or give None or NaN if"),
  ],
)
def test_examples_that_cannot_be_used(changed, more, words):
  with pytest.raises(ValueError, match=words):
    fit({**make_examples(), **changed}, **more)


def test_the_examples_in_docstrings_are_true():
  for module in (examples_lib, files, settings, text_lib):
    assert doctest.testmod(module).failed == 0


def test_ids_that_are_spelled_otherwise_are_told_everywhere(tmp_path, caplog):
  """Training, evaluation, predictions, scorer and library count and warn."""
  rng = np.random.default_rng(0)

  def write(name, prefix, rows):
    lines = ['user,age,click']
    for row in range(rows):
      age = rng.integers(80) if row % 5 else ''
      lines.append(f'{prefix}{rng.integers(40)},{age},{row % 2}')
    path = tmp_path / name
    path.write_text('\n'.join(lines) + '\n')
    return path

  train, other = write('train.csv', 'u', 400), write('other.csv', 'user_', 200)
  config = config_lib.ranking()
  config.data.update(name='csv', path=str(tmp_path), labels=('click',))
  config.data.files.update(train='train.csv', test='other.csv')
  config.data.features = ConfigDict(
    {'user': 'categorical', 'age': {'kind': 'numeric'}}
  )
  config.model = config_lib.lr()
  config.train.update(steps=1, batch_size=64)
  config.report.importance_rows = 0
  workdir = tmp_path / 'run'

  def warnings():
    said = [r.getMessage() for r in caplog.records if r.levelname == 'WARNING']
    caplog.clear()
    return [text for text in said if 'values of' in text]

  with caplog.at_level('INFO', 'genrec_jax'):
    with jax.numpy_dtype_promotion('standard'):
      report = loop.train_and_evaluate(config, workdir, TASK_KINDS)
    assert 'test: unseen: user 100%; missing: age 20.0%' in caplog.messages
    assert 'train: missing: age 20.0%' in caplog.messages
  (text,) = warnings()
  assert text.startswith(
    "test split: 100% of the values of 'user' are unseen (200 of 200), "
  )
  assert f"{other}, line 2, column 'user': 'user_" in text
  assert text in report['notes']
  own = report['values']['test']['user']
  assert own['far_more'] == ['unseen'] and own['unseen'] == 200
  page = (workdir / 'report.html').read_text()
  assert 'Unseen and missing values' in page and 'title="200 of 200"' in page

  found = results.evaluate_run(config, workdir, TASK_KINDS)
  assert found['values'] == report['values']
  assert warnings() == [text]

  config.predict.update(input=str(other), output=str(tmp_path / 'out.csv'))
  found = score.write_scores(config, workdir)
  assert found['values']['user']['unseen'] == 200
  (text,) = warnings()
  assert text.startswith(f"{other}: 100% of the values of 'user' are unseen")
  config.predict.input = ''
  found = score.write_scores(config, workdir)
  assert found['values']['age'] == report['values']['test']['age']
  assert [text[:10] for text in warnings()] == ['test split']
  config.predict.input = str(train)
  score.write_scores(config, workdir)
  assert not warnings()

  scorer = Scorer.load(workdir)
  records = [{'user': f'user_{n}', 'age': 3.0} for n in range(40)]
  scorer.score(records[:1])
  assert not warnings() and scorer.values['user'].unseen == 1
  scorer.score(records)
  (text,) = warnings()
  assert text.startswith('the last 41 rows to be scored: 100% of the values of')
  scorer.score(records * 10)
  assert not warnings()
  assert scorer.values['user'].unseen == 441
  assert scorer.values['age'].missing == 0

  run = genrec_jax.load(workdir)
  run.score({'user': [f'user_{n}' for n in range(300)], 'age': [1.5] * 300})
  assert len(warnings()) == 1
  assert run.values['scored']['user'].unseen == 300
  assert run.values['train']['user'].values == report['values']['train'][
    'user']['values']  # fmt: skip
