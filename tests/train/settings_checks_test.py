"""Numbers that make no run are refused before any data are read."""

import json
import math

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.config.comparison import describe_differences
from genrec_jax.train import loop
from genrec_jax.train.settings_checks import check_settings
from tests.train.tiny_run import train

NAN, INF = math.nan, math.inf
GROUPS = (('.*/bias', {'learning_rate': -1.0}),)
TABLES = (('item', {}), ('.*', {'rate': NAN}))


@pytest.mark.parametrize(
  'key, value, message',
  [
    ('optimizer.learning_rate', NAN, 'is nan, must be at least 0'),
    ('optimizer.learning_rate', -1.0, 'is -1.0, must be at least 0'),
    ('optimizer.learning_rate', INF, 'is inf, must be a finite number'),
    ('optimizer.rows.learning_rate', -0.1, 'must be at least 0'),
    ('optimizer.rows.weight_decay', NAN, 'must be at least 0'),
    ('optimizer.rows.max_norm', 0.0, 'must be a finite number above 0'),
    ('optimizer.weight_decay', -0.1, 'must be at least 0'),
    ('optimizer.clip_norm', NAN, 'must be at least 0'),
    ('optimizer.b1', 1.0, 'must be at least 0 and below 1'),
    ('optimizer.end_factor', 1.5, 'must be from 0 to 1'),
    ('optimizer.plateau_factor', NAN, 'must be from 0 to 1'),
    ('optimizer.plateau_min_rate', -1.0, 'must be at least 0'),
    ('optimizer.plateau_min_rate', 1.0, 'must not be above optimizer.learning'),
    ('train.min_delta', -1e-6, 'must be at least 0'),
    ('model.dropout', 1.0, 'must be at least 0 and below 1'),
    ('model.embedding_dropout', -0.1, 'must be at least 0 and below 1'),
    ('loss.temperature', 0.0, 'must be a finite number above 0'),
    ('loss.temperature', NAN, 'must be a finite number above 0'),
    ('data.init_std', NAN, 'must be at least 0'),
    ('split.valid_fraction', NAN, 'is nan, must be at least 0 and below 1'),
    ('optimizer.groups', GROUPS, "groups, '.*/bias': learning_rate is -1.0"),
    ('tables', TABLES, "tables, '.*': rate is nan, must be at least 0"),
  ],
)
def test_a_number_that_makes_no_run(tmp_path, key, value, message):
  config = config_lib.retrieval()
  *sections, last = key.split('.')
  section = config
  for name in sections:
    section = section[name]
  with section.ignore_type():
    section[last] = value
  with pytest.raises(ConfigError) as e:
    loop.train_and_evaluate(config, tmp_path / 'run', {})
  assert key in str(e.value) and message in str(e.value)
  assert not (tmp_path / 'run').exists()


def test_numbers_at_the_edge():
  config = config_lib.retrieval()
  config.model.time_bias = False  # the generated data have no times
  config.optimizer.learning_rate = config.model.dropout = 0.0
  config.optimizer.plateau_factor = config.optimizer.plateau_min = 0.0
  config.tables = (('.*', {'rate': 0, 'weight_decay': 0, 'max_norm': None}),)
  check_settings(config)


def test_a_config_does_not_differ_from_itself():
  config = config_lib.retrieval()
  config.optimizer.learning_rate = NAN
  saved = json.loads(config_lib.to_json(config))
  assert describe_differences(saved, config) == []


@pytest.mark.parametrize(
  'override, message',
  [
    ('train.batch_size=0', 'train.batch_size is 0, must be at least 1'),
    ('train.log_every=0', 'train.log_every is 0'),
    ('train.eval_every=-1', 'train.eval_every is -1, must be at least 0'),
    ('train.keep_checkpoints=0', 'train.keep_checkpoints is 0'),
    ('train.profile_steps=5', r'is \(5,\), must be \(first, last\)'),
    ('train.profile_steps=5,5', 'must be'),
    ('train.monitor=ndcg@7', 'are hr@1, .*set --config.train.monitor=ndcg@10'),
    ('eval.splits=vald', "must be one of 'train', .* did you mean 'valid'"),
  ],
)
def test_settings_are_refused_before_the_first_step(
  tmp_path, override, message
):
  with pytest.raises(ValueError, match=message):
    train(tmp_path, override)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_a_monitor_with_a_k_above_the_catalogue_gets_the_largest(
  tmp_path, said
):
  train(tmp_path, 'eval.ks=1,10,201', 'train.monitor=hr@201', 'train.steps=8')
  assert 'k=201 of eval.ks is left out: there are 200 items' in said()
  assert 'train.monitor is hr@201' in said()
  assert 'hr@10 is compared instead' in said()
  with pytest.raises(ConfigError, match='hr@202.*set --config.train.monitor'):
    train(tmp_path / 'typo', 'eval.ks=1,10', 'train.monitor=hr@202')


def test_neither_steps_nor_epochs(tmp_path):
  with pytest.raises(ConfigError, match='both 0'):
    train(tmp_path, 'train.steps=0', 'train.epochs=0')


def test_patience_needs_a_validation_part(tmp_path):
  with pytest.raises(ConfigError, match="train.patience.*without 'valid'"):
    train(tmp_path, 'eval.splits=test', 'train.patience=3')


@pytest.mark.parametrize(
  ('settings', 'parts'),
  [
    ({'microbatches': 3}, 3),
    ({'devices': 6, 'hosts': 2}, 12),
    ({'determinism': 'mesh_invariant', 'reduction_blocks': 24}, 24),
  ],
)
def test_a_batch_that_cannot_be_shared(tmp_path, settings, parts):
  config = config_lib.ranking()
  config_lib.set_model(config, 'dlrm')
  config.data.name, config.data.path = 'csv', str(tmp_path / 'gone.csv')
  config.train.batch_size = 128
  config.parallel.update(settings)
  with pytest.raises(ConfigError, match=f'must be a multiple of {parts}: '):
    loop.train_and_evaluate(config, tmp_path / 'run', {})
  assert not (tmp_path / 'run').exists()
  config.parallel.devices = 0  # as many as there are
  config.parallel.determinism = 'per_mesh'
  check_settings(config)
