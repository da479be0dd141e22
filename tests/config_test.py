"""Configs: the files, overrides from the command line, saving, comparing."""

import ast
import json
import pathlib
import re

import pytest

from docs import config_keys
from genrec_jax import config as config_lib
from genrec_jax.config.checks import check_sections
from genrec_jax.config.loading import OPEN
from genrec_jax.config.model_choice import MODELS_OF
from genrec_jax.config.request_models import PooledRequests
from genrec_jax.config.sections import MODEL_CLASSES
from genrec_jax.data.datasets import DATASETS
from genrec_jax.data.ranking import datasets as ranking_datasets
from genrec_jax.data.requests import prepared
from genrec_jax.models import MODELS, RANKERS, REQUEST_MODELS
from genrec_jax.train import settings_checks

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / 'configs').glob('*.py'))


def variants(file):
  """Those a config file knows, as it tells someone who mistypes one."""
  with pytest.raises(config_lib.ConfigError, match="variant '-'") as e:
    config_lib.load(f'{file}:-')
  return str(e.value).partition('this config knows ')[2].split(', ')


def flat(tree, prefix=''):
  """(dotted key, value) of every key."""
  for key, value in tree.items():
    if isinstance(value, dict):
      yield from flat(value, f'{prefix}{key}.')
    else:
      yield prefix + key, value


def keys(config):
  """Dotted keys, those of sections that take any key left out."""
  tree = config if isinstance(config, dict) else config.to_dict()
  return {k for k, _ in flat(tree) if not k.startswith(OPEN)}


CASES = [f'{f}:{v}' for f in FILES for v in ['', *variants(f)]]


@pytest.fixture
def config():
  return config_lib.retrieval()


# --- The files


@pytest.mark.parametrize('case', CASES, ids=lambda c: pathlib.Path(c).name)
def test_a_shipped_config_loads_and_its_parts_are_built(case):
  config = config_lib.load(case)
  model = MODELS_OF[config.task][config.model.name]()
  experiment = getattr(config_lib, config.task)()
  known = experiment.to_dict() | {'model': model.to_dict()}
  assert keys(config) == keys(known)
  check_sections(config)
  settings_checks.check_settings(config)
  names = {
    'retrieval': DATASETS,
    'ranking': ranking_datasets.DATASETS,
    'request_ranking': prepared.SETS,
  }
  assert config.data.name in names[config.task]


@pytest.mark.parametrize('file', FILES, ids=lambda f: f.name)
def test_a_shipped_config_knows_smoke_and_says_how_to_run_it(file):
  assert 'smoke' in variants(file)
  text = file.read_text()
  assert f'genrec train {file.stem}' in text
  assert '--workdir=' in text
  imported = [
    ast.unparse(node)
    for node in ast.parse(text).body
    if isinstance(node, ast.Import | ast.ImportFrom)
  ]
  assert imported == ['from genrec_jax import config as config_lib']


def test_an_open_section_takes_any_key():
  config = config_lib.ranking()
  config_lib.apply_override(config, 'model.important.user=2')
  config_lib.apply_override(config, "data.features.age.kind='numeric'")
  assert config.model.important.to_dict() == {'user': 2}
  assert config.data.features.to_dict() == {'age': {'kind': 'numeric'}}
  with pytest.raises(config_lib.ConfigError, match='unknown config key'):
    config_lib.apply_override(config_lib.retrieval(), 'model.important.user=2')


def test_a_section_makes_the_config_of_its_model():
  classes = MODELS | RANKERS | REQUEST_MODELS
  assert classes.keys() == MODEL_CLASSES.keys() == config_keys.MODELS.keys()
  for task, models in MODELS_OF.items():
    for name, make in models.items():
      fields, model = make().to_dict(), classes[name]
      assert fields.pop('name') == name
      pooled = fields.pop('history', None)
      is_pooled = task == 'request_ranking' and name in RANKERS
      assert pooled == (vars(PooledRequests()) if is_pooled else None)
      assert model.Config(**fields) == model.Config()
      assert config_keys.MODELS[name] == model.Config.__name__


def test_a_field_that_a_model_does_not_have():
  with pytest.raises(config_lib.ConfigError, match="did you mean 'dqk'"):
    config_lib.hstu(dkq=3)


# --- Loading


def write(path, text):
  path.write_text(text)
  return str(path)


def test_loading_applies_overrides_and_locks():
  config = config_lib.load(
    str(ROOT / 'configs/quickstart.py'), ['train.steps=7', 'loss.logq']
  )
  assert config.train.steps == 7 and config.loss.logq is True
  with pytest.raises(AttributeError):
    config.train.stpes = 3


def test_a_file_that_is_not_there():
  with pytest.raises(
    config_lib.ConfigError, match="did you mean .*/quickstart.py'"
  ):
    config_lib.load(str(ROOT / 'configs/quikstart.py'))
  with pytest.raises(
    config_lib.ConfigError, match="no config file '/no/x.py'$"
  ):
    config_lib.load('/no/x.py:smoke')


def test_a_file_that_is_no_config(tmp_path):
  path = write(tmp_path / 'x.py', 'steps = 3\n')
  with pytest.raises(config_lib.ConfigError, match='no get_config'):
    config_lib.load(path)


def test_variants():
  assert config_lib.parse_variants(None) == set()
  assert config_lib.parse_variants('a,smoke', ('smoke', 'a')) == {'a', 'smoke'}
  with pytest.raises(
    config_lib.ConfigError, match="'smok'; this config knows smoke, narrow"
  ):
    config_lib.parse_variants('smok', ('smoke', 'narrow'))


# --- Overrides


@pytest.mark.parametrize(
  'override, hint',
  [
    ('sed=1', '--config.seed '),
    ('trian.steps=1', '--config.train.steps '),
    ('train.stesp=1', '--config.train.steps '),
    ('steps=1', '--config.train.steps '),
    ('data.synthetic.itmes=1', '--config.data.synthetic.items '),
    ('data.sinthetic.items=1', '--config.data.synthetic.items '),
    ('model.dims=1', '--config.model.dim '),
    ('seed.x=1', '--config.seed '),
    ('train.steps.x=1', '--config.train.steps '),
  ],
)
def test_an_unknown_key_is_answered_with_the_nearest(config, override, hint):
  before = config.to_dict()
  with pytest.raises(config_lib.ConfigError) as e:
    config_lib.apply_override(config, override)
  key = override.partition('=')[0]
  assert str(e.value) == f'unknown config key {key!r}; did you mean {hint}?'
  assert config.to_dict() == before


def test_an_unknown_key_that_is_like_nothing(config):
  with pytest.raises(
    config_lib.ConfigError,
    match='sections are checkpoint, compile_cache, data, eval, .*loss',
  ):
    config_lib.apply_override(config, 'zzz.qqq=1')


def test_a_section_is_no_key(config):
  with pytest.raises(
    config_lib.ConfigError, match='report is a section.*report.users'
  ):
    config_lib.apply_override(config, 'report=3')


@pytest.mark.parametrize(
  'override, value',
  [
    ('train.steps=1_000', 1000),
    ('seed=-3', -3),
    ('optimizer.learning_rate=3e-4', 3e-4),
    ('optimizer.clip_norm=1', 1.0),
    ('loss.logq', True),
    ('loss.logq=true', True),
    ('loss.logq=1', True),
    ('loss.l2_normalize=False', False),
    ('loss.l2_normalize=0', False),
    ('data.path=some/file:3,x=4', 'some/file:3,x=4'),
    ('data.path=', ''),
    ('eval.filter_seen=none', 'none'),
    ('eval.ks=(1, 5)', (1, 5)),
    ('eval.ks=[1,5]', (1, 5)),
    ('eval.ks=1,5', (1, 5)),
    ('eval.ks=5', (5,)),
    ('eval.splits=test', ('test',)),
    (
      "numerics.policy=(('.*/kernel', 'bfloat16'),)",
      (('.*/kernel', 'bfloat16'),),
    ),
    ('eval.splits=valid,test', ('valid', 'test')),
    ("eval.splits=('test',)", ('test',)),
    ('train.profile_steps=10,15', (10, 15)),
    ('train.profile_steps=()', ()),
    ('data.min_rating=4', 4),
    ('data.min_rating=3.5', 3.5),
    ('data.min_rating=None', None),
    ('model.alpha=none', None),
    ('model.implementation=xla', 'xla'),
  ],
)
def test_a_value_takes_the_type_of_its_default(config, override, value):
  config_lib.apply_override(config, override)
  found = config
  for name in override.partition('=')[0].split('.'):
    found = found[name]
  assert found == value and type(found) is type(value)


def test_a_number_may_become_none_where_none_is_possible(config):
  config.model.alpha = 0.5
  config_lib.apply_override(config, 'model.alpha=None')
  assert config.model.alpha is None
  config_lib.apply_override(config, 'split.valid_from=None')
  assert config.split.valid_from is None


AS_GROUPS = "tuple, as in (('.*/bias', {'weight_decay': 0.0}),)"


@pytest.mark.parametrize(
  'override, expected',
  [
    ('optimizer.learning_rate=nan', 'float, as in 0.001'),
    ('train.steps=1e3', 'int, as in 0'),
    ('train.steps=', 'int, as in 0'),
    ('train.steps=None', 'int, as in 0'),
    ('loss.temperature=hot', 'float, as in 0.05'),
    ('loss.logq=maybe', 'bool, as in False'),
    ('eval.ks=1,x', 'tuple, as in (1, 10, 50, 100, 200)'),
    ('eval.ks=1.5', 'tuple, as in (1, 10, 50, 100, 200)'),
    ('eval.splits=(1, 2)', "tuple, as in ('valid', 'test')"),
    ("eval.splits=('valid','test'", "tuple, as in ('valid', 'test')"),
    ("optimizer.groups=('.*/bias',{'b1':0.5})", AS_GROUPS),
    ("optimizer.groups=(('.*/bias',{'b1':0.5})", AS_GROUPS),
    ('optimizer.groups=.*/bias', AS_GROUPS),
  ],
)
def test_a_value_of_another_type(config, override, expected):
  with pytest.raises(config_lib.ConfigError) as e:
    config_lib.apply_override(config, override)
  assert str(e.value) == f'--config.{override}: expected {expected}'


@pytest.mark.parametrize('key', ['train.steps', 'data.path', 'eval.ks'])
def test_only_a_switch_needs_no_value(config, key):
  with pytest.raises(config_lib.ConfigError, match=f'{key} needs a value'):
    config_lib.apply_override(config, key)


# --- Saving and comparing


def test_what_is_saved_is_read(config, tmp_path):
  config_lib.apply_override(config, 'data.min_rating=3.5')
  config_lib.save(config, tmp_path / 'config.json')
  saved = config_lib.read_config(tmp_path / 'config.json')
  assert saved['eval']['ks'] == list(config.eval.ks)
  assert saved['data']['min_rating'] == 3.5
  assert saved['model']['alpha'] is None
  assert config_lib.describe_differences(saved, config) == []


@pytest.mark.parametrize('kind', ['retrieval', 'ranking'])
def test_a_config_of_before_a_section_was_added_has_its_default(tmp_path, kind):
  config = getattr(config_lib, kind)()
  saved = json.loads(config_lib.to_json(config))
  del saved['numerics']
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  assert set(config_lib.read_config(tmp_path / 'config.json')) == set(config)
  assert config_lib.describe_differences(saved, config) == []
  config.numerics.policy = (('.*', 'bfloat16'),)
  assert config_lib.describe_differences(saved, config) == [
    "numerics.policy: saved [] (the default), now [['.*', 'bfloat16']]"
  ]


def test_differences_are_told_key_by_key(config):
  saved = json.loads(config_lib.to_json(config))
  config.train.batch_size = 64
  config.eval.ks = (1,)
  config.data.synthetic.seed = 5
  config.report.users = 9
  del saved['report']['users']
  saved['train']['old_key'] = 1
  assert config_lib.describe_differences(saved, config) == [
    'data.synthetic.seed: saved 0, now 5',
    'eval.ks: saved [1, 10, 50, 100, 200], now [1]',
    'report.users: saved 5 (the default), now 9',
    'train.batch_size: saved 128, now 64',
    'train.old_key: saved 1, now None',
  ]


@pytest.mark.parametrize(
  'make, model',
  [
    (config_lib.retrieval, config_lib.sasrec(dim=8)),
    (config_lib.ranking, config_lib.wukong()),
  ],
)
def test_a_key_that_is_not_saved_has_its_default(make, model):
  """A workdir of an earlier version continues, whatever keys are new."""
  config = make()
  config.model = model
  saved = json.loads(config_lib.to_json(config))
  for key in ('schedule', 'groups'):
    del saved['optimizer'][key]
  del saved['optimizer']['rows'], saved['model']['dropout']
  assert config_lib.describe_differences(saved, config) == []
  config.model.dropout += 0.25
  config.optimizer.groups = (('.*', {'frozen': True}),)
  dropout = model.dropout
  assert config_lib.describe_differences(saved, config) == [
    f'model.dropout: saved {dropout - 0.25} (the default), now {dropout}',
    "optimizer.groups: saved [] (the default), now [['.*', {'frozen': True}]]",
  ]


def test_an_unknown_task_or_model_is_compared_too(config):
  for key in ('task', 'model.name'):
    config_lib.apply_override(config, f'{key}=other')
    saved = json.loads(config_lib.to_json(config))
    config.seed += 1
    assert config_lib.describe_differences(saved, config) == [
      f'seed: saved {config.seed - 1}, now {config.seed}'
    ]


def test_groups_of_parameters_from_the_command_line_and_back(config, tmp_path):
  config_lib.apply_override(
    config,
    "optimizer.groups=(('.*/bias',{'weight_decay':0.0}),['x',{'frozen':True}])",
  )
  groups = (('.*/bias', {'weight_decay': 0.0}), ('x', {'frozen': True}))
  assert config.optimizer.groups == groups
  config_lib.save(config, tmp_path / 'config.json')
  saved = config_lib.read_config(tmp_path / 'config.json')
  assert config_lib.describe_differences(saved, config) == []
  config.optimizer.groups = groups[:1]
  assert len(config_lib.describe_differences(saved, config)) == 1
  config_lib.apply_override(config, 'optimizer.groups=()')
  assert config.optimizer.groups == ()


def test_ignored_keys_and_sections_may_differ(config):
  saved = json.loads(config_lib.to_json(config))
  config.train.steps = 3
  config.report.users = 9
  config.report.history = 1
  config.seed = 2
  ignored = ('train.steps', 'report')
  assert config_lib.describe_differences(saved, config, ignored) == [
    'seed: saved 0, now 2'
  ]


# --- docs/config_reference.md


def listed(task, model):
  """Key -> type, default, sentence of the page, for an experiment."""
  names = [task, model, *config_keys.SHARED]
  names += ['pooled'] * (task == 'request_ranking' and model in RANKERS)
  rows = [
    row
    for block in config_keys.BLOCKS
    if block.partition('.')[0] in names
    for row in config_keys.list_keys(block)
  ]
  return {key: told for key, *told in rows if not key.endswith('.*')}


def leaves(tree, prefix=''):
  """As `flat`, but a section without keys is one, too."""
  for key, value in tree.items():
    if isinstance(value, dict) and value:
      yield from leaves(value, f'{prefix}{key}.')
    else:
      yield prefix + key, value


@pytest.mark.parametrize(
  'task, model',
  [(task, model) for task, models in MODELS_OF.items() for model in models],
)
def test_every_key_has_its_default_a_type_and_a_sentence(task, model):
  config = getattr(config_lib, task)()
  config.model = MODELS_OF[task][model]()
  rows = listed(task, model)
  expected = dict(leaves(config.to_dict()))
  assert rows.keys() == expected.keys()
  for key, (kind, default, sentence) in rows.items():
    assert kind and (sentence[0].isupper() or sentence[0] in '`('), key
    assert sentence.endswith('.'), key
    other = {'ranking': 'in ranking', 'request_ranking': 'with requests'}
    where = re.escape(other.get(task, 'nowhere'))
    if told := re.search(
      rf'{where}[\w ]* the default is `(.*?)`\.', sentence, re.I
    ):
      default = told[1]
    assert default == repr(expected[key]), key


def test_the_page_is_up_to_date():
  text = config_keys.PAGE.read_text()
  assert config_keys.fill_page(text) == text


def test_a_key_without_a_sentence_is_an_error():
  with pytest.raises(ValueError, match='key train.steps has no sentence'):
    config_keys._typed('train.steps', 0, '')
  with pytest.raises(ValueError, match='must begin with the type of a value'):
    config_keys._typed('data.min_rating', None, 'Lower ratings are dropped.')


def test_a_page_without_a_block_is_an_error():
  text = config_keys.PAGE.read_text().replace('<!-- config:train -->', '')
  with pytest.raises(ValueError, match='BLOCKS differ: train'):
    config_keys.fill_page(text)
