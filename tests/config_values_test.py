"""Every key of every model against values that make no run.

A value is accepted, or refused by a sentence that names the key and the value,
without data: no config ends in a traceback.
"""

import itertools
import math

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.config.checks import check_values
from genrec_jax.config.key_rules import (
  MODEL,
  RANKING,
  REQUESTS,
  RETRIEVAL,
  find_rule,
)
from genrec_jax.config.loading import OPEN, flatten
from genrec_jax.config.model_choice import MODELS_OF
from genrec_jax.config.overrides import apply_overrides
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec
from genrec_jax.parallel import codecs
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.tasks.request_ranking import RequestRanking
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train.settings_checks import check_settings

NAN, INF = math.nan, math.inf
DEFAULTS = {
  'retrieval': config_lib.retrieval,
  'ranking': config_lib.ranking,
  'request_ranking': config_lib.request_ranking,
}
MODELS = [
  (task, model) for task, models in MODELS_OF.items() for model in models
]
# Ranking models are the same for requests, but for what they are told of them.
DIFFERING = [
  (task, model)
  for task, model in MODELS
  if task != 'request_ranking' or model in ('stu', 'lr')
]
BAD = (
  'no such word', '', -3, -0.5, 0, 1.5, 10**30, 1e300, NAN, INF, None, True,
  (), (-1,), (0, 10), ('no such word', 'a'), (1, 2, 3), {'a': 1},
)  # fmt: skip
TEXTS = ('', '-3', '0', '1.5', '1e300', 'nan', 'inf', 'None', 'word', '(')
# What a value must be, to make a run of a kind of default, for most keys.
KINDS = {
  bool: lambda v: isinstance(v, bool),
  int: lambda v: type(v) is int and abs(v) < 2**31,
  float: lambda v: type(v) in (int, float) and math.isfinite(v),
  str: lambda v: isinstance(v, str),
  tuple: lambda v: isinstance(v, tuple),
}
EITHER = ('model.fmb', 'model.lcb')  # one width, or one of each layer
NULLABLE = ('split.valid_from',)


def make_config(task, model):
  config = DEFAULTS[task]()
  config_lib.set_model(config, model)
  if task == 'retrieval' and 'time_bias' in config.model:
    config.model.time_bias = False  # the generated data have no times
    config.train.monitor = 'mrr'  # which every eval.ks measures
  return config


def set_value(config, key, value):
  """The value as the config holds it, which makes floats of other numbers."""
  *sections, last = key.split('.')
  for name in sections:
    config = config[name]
  with config.ignore_type(), config.unlocked():
    config[last] = value
  return config.to_dict()[last]


def list_keys(task, model):
  """Keys of the model; the others with one model of each kind of task."""
  flat = flatten(make_config(task, model).to_dict())
  is_first = model == next(iter(MODELS_OF[task]))
  own = ('model.', 'loss.')
  if task == 'request_ranking':
    own = ('model.history.',)
  return [k for k in flat if is_first or k.startswith(own)]


@pytest.mark.parametrize('task, model', MODELS)
def test_every_key_has_a_rule(task, model):
  flat = flatten(make_config(task, model).to_dict())
  assert [key for key in flat if not find_rule(key, task)] == []
  check_settings(make_config(task, model))


def test_every_codec_can_be_chosen():
  assert find_rule('parallel.exchange.forward', 'ranking').words == (
    codecs.names()
  )
  assert find_rule('parallel.exchange.near_backward', 'ranking').words[1:] == (
    codecs.names()
  )


def test_no_rule_is_of_a_key_that_is_not_there():
  known = {k for x in MODELS for k in flatten(make_config(*x).to_dict())}
  rules = {*RETRIEVAL, *RANKING, *REQUESTS}
  rules |= {f'model.{field}' for field in MODEL}
  assert rules <= known


def list_values(key, task, met):
  """Values of `BAD` that the key has to be tried with.

  A value that its rule refuses is refused by it alone: all of them are tried
  with one key of each rule, and one with every other key. What a rule accepts
  meets other checks, and is tried with every key.

  Args:
    key: with dots.
    task: its kind.
    met: rules of the keys before it; that of this key is added.
  """
  rule = find_rule(key, task)
  if rule not in met:
    met.append(rule)
    return BAD
  refused = [value for value in BAD if rule.explain(value)]
  return [*refused[:1], *(value for value in BAD if not rule.explain(value))]


@pytest.mark.parametrize('task, model', DIFFERING)
def test_a_bad_value_is_refused_by_a_sentence_that_names_the_key(task, model):
  accepted, met = [], []
  config = make_config(task, model)
  defaults = flatten(config.to_dict())
  for key in list_keys(task, model):
    default = defaults[key]
    for value in list_values(key, task, met):
      value = set_value(config, key, value)
      try:
        check_settings(config)
      except config_lib.ConfigError as error:
        _check_sentence(str(error), key, value)
        continue
      finally:
        set_value(config, key, default)
      accepted.append((key, value))
      if key == 'task':
        continue  # which may be from outside
      if value is None:
        assert default is None or key in NULLABLE, (key, value)
      elif default is not None and key not in EITHER:
        assert KINDS[type(default)](value), (key, value, default)
  check_settings(config)
  assert config.to_dict() == make_config(task, model).to_dict()
  _build_tasks(task, model, accepted)


def _check_sentence(text, key, value):
  field = key.rpartition('.')[2]
  assert field in text, (key, value, text)
  if isinstance(value, dict | bool):
    return  # a switch that contradicts another key is named alone
  words = [repr(value), str(value)]
  if isinstance(value, tuple):
    words += map(repr, value)
  if isinstance(value, int | float):
    words.append(f'{value:,}')
  assert any(word in text for word in words), (key, value, text)
  assert len(text) < 1000


_REQUESTS = RequestSpec(
  items=(FeatureSpec('item', 'categorical', rows=9, table='item'),),
  context=(FeatureSpec('user', 'categorical', rows=9, table='user'),),
  actions=(('seen', 1),),
  labels=(LabelSpec('liked'),),
)


def _build_tasks(task, model, accepted):
  """What was accepted of a model makes one, as far as shapes can say."""
  for key, value in accepted:
    # Names of features are compared with those of the data, and so are towers.
    of_data = (
      'model.context', 'model.towers', 'model.history_name', 'model.leave_out',
      'model.pairs',
    )  # fmt: skip
    if not key.startswith('model.') or key.startswith(of_data):
      continue
    config = make_config(task, model)
    set_value(config, key, value)
    if task == 'request_ranking':
      RequestRanking.from_config(config, _REQUESTS)
      continue
    if task == 'retrieval':
      Retrieval.from_config(config, np.arange(1, 9), np.ones(9, np.int64))
      continue
    features = [
      FeatureSpec('user', 'categorical', rows=9, table='user'),
      FeatureSpec('item', 'categorical', rows=9, table='item'),
      FeatureSpec('price', 'numeric'),
    ]
    if model == 'tbsm':
      seen = dict(rows=9, table='item', max_len=4, history='seen')
      features.append(FeatureSpec('seen_item', 'sequence', **seen))
    Ranking.from_config(config, features, ['label'])


@pytest.mark.parametrize('task', DEFAULTS)
def test_a_text_of_the_command_line(task):
  model = next(iter(MODELS_OF[task]))
  config = make_config(task, model)
  defaults = flatten(config.to_dict())
  for key, text in itertools.product(list_keys(task, model), TEXTS):
    try:
      apply_overrides(config, [f'{key}={text}'])
      check_settings(config)
    except config_lib.ConfigError as error:
      assert key.rpartition('.')[2] in str(error), (key, text, error)
    finally:
      set_value(config, key, defaults[key])
  assert config.to_dict() == make_config(task, model).to_dict()


@pytest.mark.parametrize('section', OPEN)
def test_names_of_columns_with_bad_values(section):
  task = 'retrieval' if section == 'data.extras' else 'ranking'
  model = 'hstu' if task == 'retrieval' else 'wukong'
  if section == 'model.pairs':
    model = 'tbsm'  # which alone has it
  for value in BAD:
    config = make_config(task, model)
    if section == 'data.label_kinds' or section == 'data.label_weights':
      set_value(config, section, ConfigDict({'label': value}))
    else:
      set_value(config, section, ConfigDict({'a': value}))
    try:
      check_settings(config)
    except config_lib.ConfigError as error:
      assert section.rpartition('.')[2] in str(error), (section, value, error)


@pytest.mark.parametrize(
  'key, name, value, wanted',
  [
    ('tables', 'rate', -1.0, 'at least 0'),
    ('tables', 'learning_rate', -1, 'at least 0'),
    ('tables', 'momentum', 1.5, 'at least 0 and below 1'),
    ('optimizer.groups', 'learning_rate', -1.0, 'at least 0'),
    ('optimizer.groups', 'b2', 1, 'at least 0 and below 1'),
    # These are judged by what reads the entries: keys that are none, words
    # and their names, and what is no number.
    ('optimizer.groups', 'rate', -1.0, None),
    ('optimizer.groups', 'momentum', 1.5, None),
    ('tables', 'name', 3, None),
    ('tables', 'rate', '-1', None),
    ('tables', 'rate', 0.0, None),
  ],
)
def test_numbers_in_pairs_of_a_pattern_and_settings(key, name, value, wanted):
  config = make_config('retrieval', 'hstu')
  pairs = ('a', {}), ['x', {name: value}]
  set_value(config, key, pairs)
  if wanted is None:
    check_values(config)
    return
  with pytest.raises(config_lib.ConfigError) as error:
    check_values(config)
  said = str(error.value)
  assert said.startswith(f"{key}, 'x': {name} is {value}, must be ")
  assert said.endswith(wanted)


@pytest.mark.parametrize('entry', ['x', ('x',), ('x', 3), ('x', {}, {'b1': 2})])
@pytest.mark.parametrize('key', ['tables', 'optimizer.groups'])
def test_what_is_no_pair_is_left_to_its_reader(key, entry):
  config = make_config('retrieval', 'hstu')
  set_value(config, key, (entry,))
  check_values(config)
  with pytest.raises(config_lib.ConfigError, match=key):
    check_settings(config)
