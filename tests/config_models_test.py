"""Models by name, on the command line and as variants of config files."""

import itertools
import logging
import pathlib

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import event_models, models, request_models
from genrec_jax.config.model_choice import MODELS_OF
from genrec_jax.config.request_models import PooledRequests
from genrec_jax.library import fitting
from genrec_jax.train import loop, settings_checks

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
FILES = sorted(path.name for path in CONFIGS.glob('*.py'))


def load(name, *overrides):
  return config_lib.load(str(CONFIGS / name), overrides)


def explain(name, *overrides):
  with pytest.raises(config_lib.ConfigError) as error:
    load(name, *overrides)
  return str(error.value)


@pytest.mark.parametrize('name', FILES)
def test_every_config_takes_every_model_of_its_kind_by_name(name):
  for variant, model in itertools.product(
    ('', ':smoke'), MODELS_OF[load(name).task]
  ):
    config = load(name + variant, f'model.name={model}')
    assert config.model.name == model
    assert config.model.keys() == MODELS_OF[config.task][model]().keys()
    if config.model.get('time_bias') and config.data.name in (
      'synthetic',
      'sasrec_text',
    ):
      config.model.time_bias = False  # which a sentence asks for
    if model in ('lr', 'fm') and config.get('distill'):
      config.distill.method = 'none'  # likewise
    settings_checks.check_settings(config)


def test_the_section_is_that_of_the_model_whatever_the_order(caplog):
  with caplog.at_level(logging.INFO, 'genrec_jax'):
    config = load('own_csv.py', 'model.ffn_dim=99', 'model.name=sasrec')
  # Its width is the data's; heads, dqk and dv were chosen for HSTU.
  wanted = config_lib.sasrec(dim=64, ffn_dim=99)
  assert config.model.to_dict() == wanted.to_dict()
  assert 'sasrec with its defaults in place of hstu' in caplog.text
  assert 'of the config file stay model.dim=64' in caplog.text
  assert load('own_csv.py', 'model.name=sasrec', 'model.dim=8').model.dim == 8


def test_the_name_that_a_config_has_changes_nothing():
  assert load('own_csv.py', 'model.name=hstu') == load('own_csv.py')


def test_a_model_of_another_kind_and_no_model():
  text = explain('own_csv.py', 'model.name=dlrm')
  assert 'choose one of hstu, sasrec, or' in text
  assert text.endswith(' own_clicks:dlrm')
  text = explain('own_clicks.py', 'model.name=sasrec')
  assert text.endswith(' own_csv:sasrec')
  assert 'those that recommend are hstu' in explain(
    'own_csv.py', 'model.name=gru'
  )
  assert "did you mean 'dlrm'?" in explain('own_clicks.py', 'model.name=DLMR')
  assert "unknown config key 'model.dqk'" in explain(
    'own_csv.py', 'model.name=sasrec', 'model.dqk=3'
  )


def test_models_of_requests():
  config = load('gr_streaming.py', 'model.name=wukong')
  assert config.model.history.to_dict() == vars(PooledRequests())
  assert config.model.layers == config_lib.wukong().layers
  stu = load('gr_streaming.py:dlrm', 'model.name=stu', 'model.token_hidden=7')
  assert 'history' not in stu.model and stu.model.token_hidden == 7
  text = explain('own_clicks.py', 'model.name=stu')
  assert text.endswith(' gr_streaming:stu')
  assert 'choose one of stu, dcn' in explain(
    'gr_streaming.py', 'model.name=sasrec'
  )
  assert 'those for requests are stu' in explain(
    'gr_streaming.py', 'model.name=gru'
  )
  assert 'on generated data it is gr_streaming:stu' in explain('own_csv.py:stu')
  assert 'exclude each other' in explain('gr_ml1m.py:dlrm,interleaved')
  assert 'exclude each other' in explain('gr_ml1m.py:no_actions,interleaved')
  assert load('gr_ml1m.py:stu,interleaved').model.layout == 'interleaved'


@pytest.mark.parametrize('name', ['gr_ml1m', 'gr_kuairand', 'gr_yambda'])
@pytest.mark.parametrize('model', ['dlrm', 'wukong'])
def test_requests_by_variant_and_by_name(name, model):
  variant = load(f'{name}.py:{model}')
  assert load(f'{name}.py', f'model.name={model}') == variant
  assert load(f'{name}.py').model.name == 'stu'


def test_fit_offers_what_it_can_fit():
  for model in ('stu', 'sttu'):
    with pytest.raises(ValueError, match=f"model is '{model}'; th") as error:
      fitting._is_ranker(model)
    assert ' stu' not in str(error.value)
    assert 'requests' not in str(error.value)


def test_a_variant_that_is_a_model_of_another_config():
  text = explain('wukong_frappe.py:dlrm')
  assert 'configs/frappe.py:dlrm' in text
  assert 'own_clicks:dlrm' in text
  assert 'configs/wukong_frappe.py' in explain('frappe.py:wukong')
  assert 'own_csv:sasrec' in explain('quickstart.py:sasrec')
  assert 'one model at a time' in explain('own_csv.py:hstu,sasrec')


@pytest.mark.parametrize('model', MODELS_OF['ranking'])
def test_clicks_of_ones_own_by_the_name_of_the_model(model):
  config = load(f'own_clicks.py:{model}')
  assert config.model.name == model
  assert (config.train.monitor, config.loss.table_l2) == ('logloss', 0.0)
  # What the model wants is the same in `fit`, and by the name of the model.
  fitted = fitting._ranking_config(model)
  assert config.model.to_dict() == fitted.model.to_dict()
  named = load('own_clicks.py:lr', f'model.name={model}')
  assert config.model.to_dict() == named.model.to_dict()


def test_the_name_of_a_file_says_its_format(tmp_path):
  assert load('own_csv.py', 'data.path=a/x.PARQUET').data.name == 'parquet'
  assert load('own_clicks.py', 'data.path=s3://b/x.parquet').data.name == (
    'parquet'
  )
  assert load('own_clicks.py', 'data.path=x.tsv.gz').data.name == 'csv'
  given = ['data.path=x.parquet', 'data.name=csv']
  assert load('own_csv.py', *given).data.name == 'csv'
  (tmp_path / 'part-0.parquet').touch()
  config = load('own_clicks.py', f'data.path={tmp_path}')
  assert config.data.name == 'parquet'
  assert load('frappe.py', 'data.path=x.parquet').data.name == 'frappe'


@pytest.mark.parametrize('name', FILES)
def test_files_that_generated_data_do_not_read_are_warned_of(name, caplog):
  load(f'{name}:smoke', 'data.path=')
  assert 'is not read' not in caplog.text
  config = load(f'{name}:smoke', 'data.path=s3://me:word@b/x.parquet')
  (line,) = [r.getMessage() for r in caplog.records]
  assert line.startswith('data.path=s3://***@b/x.parquet is not read: ')
  assert f'data.name is {config.data.name}' in line and ':smoke' in line
  assert line.endswith('such as data.name=parquet')
  caplog.clear()
  load(f'{name}:smoke', 'data.path=x.csv', 'data.name=csv')
  assert not caplog.records


@pytest.mark.parametrize(
  'overrides, text',
  [
    (['data.name=sasrec_text'], 'model.time_bias needs timestamps and sasrec'),
    (['data.columns.time='], 'model.time_bias needs timestamps and csv'),
    (
      ['model.name=sasrec', 'data.columns.time='],
      "split.name='global_time' needs timestamps and csv has none",
    ),
    (
      ['model.name=sasrec', 'eval.request_time=last_event'],
      'a model without model.time_bias reads no times',
    ),
    (['train.monitor=auc'], "train.monitor is 'auc'; measured are hr@1"),
  ],
)
def test_a_conflict_is_told_before_the_data_are_read(tmp_path, overrides, text):
  config = load('own_csv.py', 'data.path=not_there.csv', *overrides)
  with pytest.raises(config_lib.ConfigError, match=text):
    loop.train_and_evaluate(config, tmp_path / 'run', {})
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'override, text',
  [
    ('model.dropout=1.5', 'model.dropout is 1.5, must be at least 0 and below'),
    ('eval.ks=0,10', r'eval.ks is \(0, 10\), must be at least 1'),
    ('optimizer.learning_rate=-1', 'learning_rate is -1.0, must be at least 0'),
    ('eval.filter_seen=yes', "is 'yes', must be one of 'window', 'history'"),
    ('model.dim=-3', 'model.dim is -3, must be at least 1'),
    ('model.dim=1e9', 'expected int'),
    ('model.dim=1000000000', 'must be at most 1,048,576'),
    ('model.attention=relu', "model.attention is 'relu', must be one of"),
    ('split.valid_fraction=1', 'must be at least 0 and below 1'),
    ('train.batch_size=0', 'train.batch_size is 0, must be at least 1'),
  ],
)
def test_a_value_is_judged_where_it_is_set(override, text):
  with pytest.raises(config_lib.ConfigError, match=text):
    load('own_csv.py', override)


def test_what_a_config_file_holds_is_judged_by_training_alone(tmp_path):
  path = tmp_path / 'former.py'
  text = (CONFIGS / 'own_csv.py').read_text()
  line = '  config.train.epochs'
  path.write_text(text.replace(line, f'  config.model.dropout = 1.5\n{line}'))
  config = config_lib.load(str(path), ['train.steps=3'])
  assert config.model.dropout == 1.5
  with pytest.raises(config_lib.ConfigError, match='model.dropout is 1.5'):
    settings_checks.check_settings(config)


def test_a_trial_of_tbsm_has_histories():
  """Whatever the data are: clicks, which others try, have none."""
  config = load('own_clicks.py:tbsm,smoke')
  assert (config.data.name, config.data.split.by) == ('interests', 'order')


def test_pairs_of_tbsm_from_a_command_line():
  config = load('own_clicks.py:tbsm')
  config_lib.apply_override(config, 'model.pairs.films=film')
  assert config.model.pairs.to_dict() == {'films': 'film'}


def test_weights_of_products_are_for_products():
  with pytest.raises(ValueError, match="weights='mul' is for .*'gru'"):
    event_models.TBSM(mechanism='gru', weights='mul')


@pytest.mark.parametrize(
  'model, name',
  [
    (request_models.STU, 'prefix'),
    (request_models.STU, 'full_tail'),
    (models.HSTU, 'prefix'),
  ],
)
def test_what_says_more_of_a_window_has_one(model, name):
  message = rf'model\.{name}=2 are tokens .*: set model\.window, or {name} to 0'
  with pytest.raises(ValueError, match=message):
    model(**{name: 2})
  assert model(window=5, **{name: 2}).window == 5
