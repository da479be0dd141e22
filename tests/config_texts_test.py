"""Odd texts behind `--config.key=`: always a value, or a sentence."""

import json
import math
import warnings

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config.key_rules import find_rule
from genrec_jax.config.loading import find_fault, parse_value, quote_value
from genrec_jax.config.overrides import apply_overrides
from genrec_jax.config.tables import table_settings
from genrec_jax.numerics import policy

LONG = 5000
SUM = '+'.join(['1'] * LONG)
TEXTS = (
  SUM, '9' * LONG, 'x' * LONG, f"'{'x' * LONG}'", '(' * 3000, '9' * 4000,
  f'({"9" * 4000},)', '[' * 150 + ']' * 150, '{"a":' * 30 + '1' + '}' * 30,
  '...', '...,...', '(', ')', '(1,', "('a'", '"', '\\', ',', '1,', '-', '--',
  '{1: 2}', '{1, 2}', "{'a.b': 1}", "{'__class__': 1}", '{(1, 2): 3}',
  'lambda: 0', "f'{1}'", "b'x'", "(b'x',)", '1j', '(1j,)', 'nan', 'inf',
  '(1e400,)', '1e400', '-1e308', str(10**30), '٣', '²', '1_0_', '０',
  'x\x1b[2J', "'\\d'", "(('\\d', 'bfloat16'),)", '()', '(())', '((),)',
  '(None,)', '(True,)', '0x10', '1 if 1 else 2', "(('a', 'b', 'c'),)",
  "((1, 2),)", "(('(', 'x'),)", "(('x', {}),)", "(('x', 3),)", "('x', 'y')",
  "(('x', {'a': {'b': 1}}),)", 'set()', '-(1)', 'not 1', 'True', 'None', '',
  f"(('{'x' * LONG}', 'y'),)", f"('{'x' * LONG}',)", str([[1] * 50] * 50),
)  # fmt: skip
KEYS = (  # of each type, and all that take more than a number or a word
  'seed', 'optimizer.learning_rate', 'train.shuffle', 'train.monitor',
  'data.min_rating', 'data.stream.idle_s', 'data.path', 'data.extras.a',
  'eval.ks', 'eval.splits', 'eval.filter_seen', 'split.holdout', 'tables',
  'optimizer.groups', 'numerics.policy', 'parallel.rules',
  'train.profile_steps', 'model.alpha', 'model.implementation', 'loss.chunk',
  'split.valid_from', 'checkpoint.bits',
)  # fmt: skip


@pytest.mark.parametrize('key', KEYS)
def test_a_text_is_a_value_or_refused_by_a_short_sentence(key):
  base, values = config_lib.retrieval(), 0
  for text in TEXTS:
    config = base.copy_and_resolve_references()
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('error')  # of how Python likes its texts
        apply_overrides(config, [f'{key}={text}'])
    except config_lib.ConfigError as error:
      assert key in str(error) and len(str(error)) < 400, (text[:50], error)
      continue
    values += 1
    json.loads(config_lib.to_json(config))
  # Of words there are few, and no text above is one of them.
  rule = find_rule(key, 'retrieval')
  assert values or (rule.words or key == 'train.shuffle')


def test_no_text_of_a_command_line_is_more_than_json_can_hold():
  for text in TEXTS:
    for default in (None, (), (1,), ('a',), 'a', 1, 0.5, False):
      try:
        value = parse_value('no.key', text, default)
      except config_lib.ConfigError as error:
        assert '--config.no.key=' in str(error) and len(str(error)) < 250
        continue
      json.dumps(value)
      kind = type(default)
      if default is not None and text != 'None':
        assert type(value) is kind, (text, default)
      if isinstance(value, float):
        assert not math.isnan(value)


def test_a_long_value_is_cut():
  assert quote_value('x' * 70) == repr('x' * 70)
  assert quote_value('x' * LONG) == f"'{'x' * 79}..."
  assert quote_value(10**LONG) == 'a very large int'
  config = config_lib.retrieval()
  with pytest.raises(config_lib.ConfigError) as error:
    apply_overrides(config, [f'data.min_rating={SUM}'])
  cut = f"'{SUM[:79]}..."
  assert str(error.value).startswith(f'data.min_rating is {cut}, must be a num')
  with pytest.raises(config_lib.ConfigError) as error:
    apply_overrides(config, [f'seed={"9" * LONG}'])
  assert str(error.value) == (
    f'--config.seed={"9" * 80}...: expected int, as in 0'
  )


@pytest.mark.parametrize(
  'value, told',
  [
    ((1, 'a', None, [True, {'a': (0.5,)}]), ''),
    (..., 'a value of type ellipsis'),
    ({'a': [b'x']}, 'a value of type bytes'),
    ({1: 2}, '1, which is no name of a key'),
    ({'a': {'b.c': 2}}, "'b.c', which is no name of a key"),
    ([[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]], 'nested too deeply'),
  ],
)
def test_what_a_value_cannot_hold(value, told):
  found = find_fault(value)
  assert told in found and bool(told) == bool(found)


@pytest.mark.parametrize(
  'key, told',
  [
    ('data.extras.__class__', 'unknown config key'),
    ('data.extras.', 'unknown config key'),
    ('data.extras.b..c', 'unknown config key'),
    ('data.extras.' + 'y' * LONG + '.__x', 'unknown config key'),
    ('', 'unknown config key'),
    ('x' * LONG, 'unknown config key'),
    ('data.__class__', 'unknown config key'),
    ('data.extras.a.b', "data.extras.a is 'float', which has no keys"),
  ],
)
def test_a_name_that_no_key_can_have(key, told):
  config = config_lib.retrieval()
  with pytest.raises(config_lib.ConfigError, match=told) as error:
    apply_overrides(config, ['data.extras.a=float', f'{key}=1'])
  assert len(str(error.value)) < 400


@pytest.mark.parametrize('value', [..., 1, ('a',), ('x' * LONG,), 'x' * LONG])
def test_pairs_that_are_none_are_told_in_short(value):
  config = config_lib.retrieval()
  with config.ignore_type():
    config.tables = (value,)
  with pytest.raises(config_lib.ConfigError, match='must be pairs') as error:
    table_settings(config)
  assert len(str(error.value)) < 400
  with pytest.raises(ValueError, match='it must hold pairs') as error:
    policy.check_rule(value)
  assert len(str(error.value)) < 400


def test_a_number_that_no_float_can_be_is_refused():
  for key in ('eval.ks', 'loss.task_weights'):
    rule = find_rule(key, 'ranking') or find_rule(key, 'retrieval')
    assert rule.explain((10**400,))


def test_the_opinion_of_python_of_a_text_does_not_count():
  with warnings.catch_warnings():
    warnings.simplefilter('error')  # of \d, which is no escape
    assert parse_value('no.key', "'\\d+'", None) == '\\d+'
