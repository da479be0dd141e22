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
  assert 'give shop (categorical), hour (categorical), price (num' in lines[0]
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
    ({'click': ['yes', 'no'] * 30}, {}, "'yes' is not a label; .*convert the"),
    ({'click': [[0]] * 60}, {}, "label 'click' must hold numbers, 0 or 1"),
    ({'price': [1e300] * 60}, {}, "row 0, column 'price': '1e.300' is not a"),
    (
      {},
      {'features': {'row': None, 'price': 'categorical'}},
      'not fractions; make feature .price. numeric',
    ),
    ({}, {'features': {'row': None, 'price': 'nombre'}}, 'kind of feature'),
    ({'tags': [[0.5]] * 60}, {}, "'tags' holds lists of fractions"),
  ],
)
def test_examples_that_cannot_be_used(changed, more, words):
  with pytest.raises(ValueError, match=words):
    fit({**make_examples(), **changed}, **more)


def test_the_examples_in_docstrings_are_true():
  for module in (examples_lib, files, settings, text_lib):
    assert doctest.testmod(module).failed == 0
