"""Examples with histories as named data sets: config, splits, blocks, a run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import (
  behaviour_rows,
  behaviour_sets,
  datasets,
  interests,
  store,
  taobao,
)
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.data.ranking import behaviour_files

INTERESTS = dict(users=300, impressions=4, categories=8, items=40, favourites=2)
EDITION = behaviour_files.make_ratings(0, [20] * 60, 40)
GENRES = {film: ['Drama', 'War'][: 1 + film % 2] for film in range(1, 41)}
EVENTS = behaviour_files.make_events(0, [12, 33, 45] * 30, seconds=10**5)


@pytest.fixture(scope='module')
def settings(tmp_path_factory):
  """Data set -> `config.data` for it."""
  folder = tmp_path_factory.mktemp('files')
  behaviour_files.write_edition(folder / 'ml', EDITION, 'ratings.csv', GENRES)
  path = behaviour_files.write_events(folder / 'UserBehavior.csv', EVENTS)
  return {
    'interests': {'name': 'interests', 'interests': INTERESTS},
    'movielens_clicks': {'name': 'movielens_clicks', 'path': f'{folder}/ml'},
    'taobao': {'name': 'taobao', 'path': str(path), 'taobao': {'history': 5}},
  }


@pytest.fixture(scope='module')
def loaded(settings, tmp_path_factory):
  """Data set -> what was loaded, its log, and where it was prepared."""
  out = {}
  for name, cfg in settings.items():
    lines, cache = [], tmp_path_factory.mktemp('cache')
    out[name] = datasets.load(cfg, cache, lines.append), lines, cache
  return out


@pytest.mark.parametrize('name', behaviour_sets.OPTIONS)
def test_the_keys_of_the_config_are_the_options(name):
  section = config_lib.ranking().data[name].to_dict()
  assert section == dataclasses.asdict(behaviour_sets.OPTIONS[name]())


@pytest.mark.parametrize('name', behaviour_sets.OPTIONS)
def test_blocks_hold_the_rows(loaded, name):
  data, _, _ = loaded[name]
  assert list(data.splits) == list(store.SPLITS)
  kinds = {f.name: (f.kind, f.history) for f in data.features}
  assert kinds == {
    'user': ('categorical', ''),
    'item': ('categorical', ''),
    'category': ('categorical', ''),
    'history_item': ('sequence', 'events'),
    'history_category': ('sequence', 'events'),
    'history_age': ('numeric_sequence', 'events'),
  }
  # Candidates and events share rows.
  assert set(data.vocabularies) == {'user', 'item', 'category'}
  for split in store.SPLITS:
    (chunk,) = list(
      data.raw_rows.read_split(split, behaviour_rows.NAMES, print)
    )[:1]
    rows = data.splits[split].rows(0, len(chunk))
    labels = chunk.columns['label'].values
    np.testing.assert_array_equal(rows.labels[:, 0], labels)
    for feature, table in (
      ('history_item', 'item'),
      ('history_category', 'category'),
    ):
      column, bag = chunk.columns[feature], rows.bags[feature]
      np.testing.assert_array_equal(bag.lengths, column.lengths)
      values = column.values
      values = values if isinstance(values, list) else values.values.tolist()
      texts = [str(text) for text in data.vocabularies[table].decode(
        bag.values)]  # fmt: skip
      same = [a == str(b) for a, b in zip(texts, values, strict=True)]
      assert np.mean(same) > 0.9  # the others are unseen
    ages = rows.bags['history_age'].values
    wanted = np.log1p(chunk.columns['history_age'].values.values)
    np.testing.assert_allclose(ages, wanted, rtol=1e-5)


@pytest.mark.parametrize('name', ['interests', 'drift'])
@pytest.mark.parametrize(
  'feature, options',
  [
    ('probability', {'kind': 'numeric'}),
    ('mine', {'kind': 'numeric', 'column': 'probability'}),
    ('item', {'kind': 'multi_hot', 'weights': 'probability'}),
  ],
)
def test_the_true_probability_is_no_feature(tmp_path, name, feature, options):
  if name == 'drift' and feature == 'item':
    options = {**options, 'column': 'c0'}
  cfg = {'name': name, 'features': {feature: options}}
  with pytest.raises(ValueError) as error:
    datasets.load(cfg, tmp_path, print)
  words = f"data.features.{feature} reads the column 'probability' of data.name"
  assert str(error.value).startswith(f'{words}={name}, the true probability')
  assert not list(tmp_path.iterdir())


def test_what_stands_in_the_log(loaded):
  lines = '\n'.join(loaded['movielens_clicks'][1])
  assert 'movielens_clicks, train: ' in lines
  assert 'users, ' in lines and 'AUC of popularity alone 0.' in lines
  lines = '\n'.join(loaded['taobao'][1])
  assert "data.taobao.split='corrected'" in lines
  assert '0 users both validate and train' in lines


@pytest.mark.parametrize('name', behaviour_sets.OPTIONS)
def test_users_are_in_one_split_without_a_warning(loaded, name):
  data, _, _ = loaded[name]
  users = [
    {
      user
      for chunk in data.raw_rows.read_split(split, ['user'], print)
      for user in chunk.columns['user'].values.tolist()
    }
    for split in store.SPLITS
  ]
  assert sum(map(len, users)) == len(set.union(*users))
  assert data.split_column == 'user'
  unseen = {x.feature for found in data.find_excesses().values() for x in found}
  assert 'user' not in unseen


@pytest.mark.parametrize('name', behaviour_sets.OPTIONS)
def test_prepared_data_are_opened_and_files_are_left_alone(
  settings, loaded, name
):
  _, _, cache = loaded[name]
  before = sorted(cache.rglob('*'))
  lines = []
  again = datasets.load(settings[name], cache, lines.append)
  assert not lines and sorted(cache.rglob('*')) == before
  assert again.fingerprint() == loaded[name][0].fingerprint()
  columns, _ = again.raw_rows.list_columns('test')
  assert set(behaviour_rows.NAMES) <= set(columns)


def test_memory_does_not_name_the_data(settings, loaded):
  _, _, cache = loaded['taobao']
  cfg = settings['taobao'] | {'taobao': {'history': 5, 'memory_mb': 1}}
  lines = []
  datasets.load(cfg, cache, lines.append)
  assert not lines
  cfg['taobao']['seed'] = 1
  datasets.load(cfg, cache, lines.append)
  assert lines


def test_a_directory_may_be_given_and_nothing_is_left_of_an_error(
  settings, tmp_path
):
  path = tmp_path / 'UserBehavior.csv'
  path.write_text('1,2,3,pv,4\n1,2,3,pv\n')
  cfg = {'name': 'taobao', 'path': str(tmp_path)}
  with pytest.raises(ValueError, match='UserBehavior.csv, line 2: 4 fields'):
    datasets.load(cfg, tmp_path / 'cache')
  assert not list((tmp_path / 'cache').iterdir())
  path.unlink()
  with pytest.raises(FileNotFoundError, match='no file UserBehavior.csv'):
    datasets.load(cfg, tmp_path / 'cache')


def test_a_split_without_rows_is_an_error_that_says_what_to_change(tmp_path):
  rows = behaviour_files.make_events(
    0, [5, 5, 5]
  )  # too few events for a window
  path = behaviour_files.write_events(tmp_path / 'UserBehavior.csv', rows)
  with pytest.raises(ValueError, match='train split: holds no rows'):
    datasets.load({'name': 'taobao', 'path': str(path)}, tmp_path / 'cache')


def test_published_users_train_and_validate(settings, tmp_path):
  options = taobao.TaobaoOptions(split='published', valid_share=0.5)
  cfg = settings['taobao'] | {'taobao': dataclasses.asdict(options)}
  data = datasets.load(cfg, tmp_path, lambda _: None)
  users = [
    {
      user
      for chunk in data.raw_rows.read_split(split, ['user'], print)
      for user in chunk.columns['user'].values.tolist()
    }
    for split in ('train', 'valid', 'test')
  ]
  assert users[1] and users[1] <= users[0] and not users[2] & users[0]


@pytest.mark.parametrize(
  ('cfg', 'message'),
  [
    ({'split': {'by': 'time'}}, "data.split.by='time'.*splits of its own"),
    ({'split': {'by': 'group', 'column': 'user'}}, 'interests has splits of'),
    ({'interests': {'user': 3}}, "data.interests.user is not an option.*users"),
    ({'interests': {'users': 0}}, 'data.interests.users must be at least 1'),
    ({'name': 'taobao'}, 'data.path is not set: data.name=taobao reads files'),
    ({'name': 'taobao', 'path': '/nowhere'}, 'no such file or directory'),
  ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, cfg, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    datasets.load({'name': 'interests', **cfg}, tmp_path)


def test_a_stream_by_time_has_the_same_users_everywhere(tmp_path):
  options = INTERESTS | {'split': 'time', 'valid_share': 0.0}
  cfg = {
    'name': 'interests',
    'interests': options,
    'time': 'time',
    'extras': {'probability': 'float'},
  }
  data = datasets.load(cfg, tmp_path, lambda _: None)
  assert list(data.splits) == ['train', 'test'] and data.split_column == ''
  train, test = (s.rows(0, len(s)) for s in data.splits.values())
  assert train.time.max() < test.time.min()
  log = interests.InterestLog(**options)
  wanted = interests.read_probabilities(log, 'test')
  np.testing.assert_allclose(test.extras['probability'], wanted, rtol=1e-6)


@pytest.mark.parametrize('name', behaviour_sets.OPTIONS)
def test_a_smoke_run_is_on_generated_rows(name):
  config = config_lib.ranking()
  config.data.name, config.data.path = name, '/somewhere'
  data = config_lib.ranking_smoke(config).data
  assert data.name == 'interests' and data.interests.users <= 300
  interests.InterestLog(**data.interests.to_dict())
  assert data.path == ('/somewhere' if name == 'interests' else '')


def test_a_run_of_a_model_that_pools_histories(tmp_path):
  config = config_lib.load(
    'wukong_synthetic:smoke',
    [
      'data.name=interests',
      'data.group=user',
      'data.features.item=categorical',
      'data.features.category=categorical',
      'data.features.history_category.kind=sequence',
      'data.features.history_category.table=category',
    ],
  )
  config.train.eval_every, config.report.importance_rows = 16, 0
  with jax.numpy_dtype_promotion('standard'):  # optax mixes dtypes
    loop.train_and_evaluate(config, tmp_path / 'run', TASK_KINDS)
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  assert 0.5 < report['metrics']['test']['ne'] < 3
