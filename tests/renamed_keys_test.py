"""Former names of config keys, by each way in which somebody says them."""

import doctest
import json
import logging

import pytest
from ml_collections import ConfigDict

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.config import ConfigError, renamed
from genrec_jax.config.loading import flatten
from genrec_jax.library.settings import apply_settings
from tests.golden import kinds

# Former key -> (a value under it, the key now, the value now).
FORMER = {
  'checkpoint.slots': ('float16', 'checkpoint.row_state_dtype', 'float16'),
  'data.ids': ('str', 'data.id_type', 'str'),
  'data.table_dtype': ('bfloat16', 'optimizer.rows.dtype', 'bfloat16'),
  'data.table_update': ('adam', 'optimizer.rows.name', 'adam'),
  'eval.parts': (('test',), 'eval.splits', ('test',)),
  'numerics.products': (
    (('.*', 'bfloat16'),),
    'numerics.policy',
    (('.*', 'bfloat16'),),
  ),
  'optimizer.row_learning_rate': (0.5, 'optimizer.rows.learning_rate', 0.5),
  'optimizer.row_schedule': ('linear', 'optimizer.rows.schedule', 'linear'),
  'parallel.accumulate': (4, 'parallel.microbatches', 4),
  'parallel.blocks': (16, 'parallel.reduction_blocks', 16),
  'parallel.determinism': ('order', 'parallel.determinism', 'mesh_invariant'),
  'parallel.exchange.overflow': (
    'gather',
    'parallel.exchange.overflow',
    'rounds',
  ),
  'predict.ids': ('int', 'predict.id_type', 'int'),
}
every_former_key = pytest.mark.parametrize('old', FORMER)
FILE = """
from genrec_jax import config as config_lib

def get_config(arg=None):
  config = config_lib.retrieval()
  {line}
  return config
"""


@pytest.fixture(autouse=True)
def sentences():
  """What is logged, as if nobody had used a former name before."""
  renamed._tell.cache_clear()
  renamed._tell_of_file.cache_clear()
  lines = []
  handler = logging.Handler()
  handler.emit = lambda record: lines.append(record.getMessage())
  logger = logging.getLogger('genrec_jax')
  level = logger.level
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  yield lines
  logger.removeHandler(handler)
  logger.setLevel(level)


def set_key(tree, key: str, value):
  *parents, last = key.split('.')
  for name in parents:
    tree = tree.setdefault(name, {}) if isinstance(tree, dict) else tree[name]
  tree[last] = value


def renamed_config(*keys: str) -> ConfigDict:
  """The config of somebody who set `keys` under the names they have now."""
  config = config_lib.retrieval()
  for old in keys:
    _, key, value = FORMER[old]
    set_key(config, key, value)
  return config


def former_json() -> dict:
  """What an earlier version saved of every key above."""
  saved = json.loads(config_lib.to_json(config_lib.retrieval()))
  for old, (value, key, _) in FORMER.items():
    *parents, last = key.split('.')
    section = saved
    for name in parents:
      section = section[name]
    section.pop(last, None)
    set_key(saved, old, value)
  return json.loads(json.dumps(saved))


def write_file(tmp_path, line: str) -> str:
  path = tmp_path / 'mine.py'
  path.write_text(FILE.format(line=line))
  return str(path)


def assert_told_once(lines: list[str], old: str):
  _, key, _ = FORMER[old]
  (line,) = lines
  assert f'config.{old}' in line and f'is now config.{key}' in line
  assert 'until version 0.2.0' in line


def test_every_entry_is_tested_and_leads_to_a_key():
  assert FORMER.keys() == renamed.RENAMED.keys()
  now = flatten(config_lib.retrieval().to_dict())
  for old, (key, values, _) in renamed.RENAMED.items():
    assert key in now and (old == key or old not in now)
    for value, new in values.items():
      assert renamed.translate(old, value) == (key, new)


def test_the_examples():
  assert doctest.testmod(renamed).failed == 0


def test_no_former_name_works_longer_than_promised():
  """Once the version has come, write '' in its place in the entry."""
  for *_, until in renamed.RENAMED.values():
    assert not until or genrec_jax.__version__ < until


# --- The ways


@every_former_key
def test_the_command_line(tmp_path, sentences, old):
  value, _, _ = FORMER[old]
  path = write_file(tmp_path, 'pass')
  overrides = [f'{old}={value}'] * 2
  config = config_lib.load(path, overrides)
  assert config.to_dict() == renamed_config(old).to_dict()
  assert_told_once(sentences, old)


@every_former_key
def test_a_config_file(tmp_path, sentences, old):
  value, _, _ = FORMER[old]
  path = write_file(tmp_path, f'config.{old} = {value!r}')
  for _ in range(2):
    config = config_lib.load(path)
    assert config.to_dict() == renamed_config(old).to_dict()
    assert config.is_locked
  assert_told_once(sentences, old)


@every_former_key
def test_settings_of_fit(sentences, old):
  config = config_lib.retrieval()
  for _ in range(2):
    apply_settings(config, {old: FORMER[old][0]})
  assert config.to_dict() == renamed_config(old).to_dict()
  assert_told_once(sentences, old)


def test_a_saved_config(tmp_path, sentences):
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(former_json()))
  config = renamed_config(*FORMER)
  for _ in range(2):
    saved = config_lib.read_config(path)
  assert saved == json.loads(config_lib.to_json(config))
  assert config_lib.describe_differences(former_json(), config) == []
  (line,) = sentences
  assert all(f'{old} -> ' in line for old in FORMER if FORMER[old][1] != old)


def test_a_workdir_continues_under_the_names_of_now(tmp_path, sentences):
  (tmp_path / 'config.json').write_text(json.dumps(former_json()))
  (tmp_path / 'metrics.jsonl').touch()
  for config in (renamed_config(*FORMER), ConfigDict(former_json())):
    workdir_lib.check_trained(tmp_path, config)
  other = config_lib.retrieval()
  with pytest.raises(ConfigError, match="rows.name: saved 'adam', now 'dense'"):
    workdir_lib.check_trained(tmp_path, other)
  with workdir_lib.own_workdir(tmp_path, ConfigDict(former_json()).lock()):
    pass
  saved = json.loads((tmp_path / 'config.json').read_text())
  assert saved == json.loads(config_lib.to_json(renamed_config(*FORMER)))
  assert len(sentences) == len(FORMER) + 1  # and one of the file


@pytest.mark.parametrize('name', kinds.KINDS)
def test_old_workdirs_have_keys_of_now(tmp_path, name):
  with kinds.open_workdir(name) as archive:
    archive.extract('workdir/config.json', tmp_path)
  saved = config_lib.read_config(tmp_path / 'workdir/config.json')
  now = flatten(getattr(config_lib, saved['task'])().to_dict())
  unknown = {key for key in flatten(saved) if not key.startswith('model.')}
  assert unknown - now.keys() == set()


# --- Errors


def test_two_values_under_two_names(tmp_path):
  told = 'config.eval.parts=.* and config.eval.splits=.* set the same key twice'
  both = ['eval.parts=test', 'eval.splits=valid']
  path = write_file(tmp_path, 'pass')
  for given in (both, both[::-1]):
    with pytest.raises(ConfigError, match='set the same key twice; remove the'):
      config_lib.load(path, given)
  config_lib.load(path, ['eval.parts=test', 'eval.splits=test'])
  with pytest.raises(ConfigError, match=told):
    apply_settings(
      config_lib.retrieval(), {'eval.parts': 'test', 'eval.splits': 'valid'}
    )
  line = "config.eval.parts, config.eval.splits = ('test',), ('valid',)"
  path = write_file(tmp_path, line)
  with pytest.raises(ConfigError, match=told):
    config_lib.load(path)
  saved = {'task': 'retrieval', 'eval': {'parts': ['test'], 'splits': []}}
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  with pytest.raises(ConfigError, match=told):
    workdir_lib.check_trained(tmp_path, config_lib.retrieval())


def test_a_command_line_outweighs_a_file(tmp_path):
  path = write_file(tmp_path, "config.eval.parts = ('test',)")
  assert config_lib.load(path, ['eval.splits=valid']).eval.splits == ('valid',)


def test_a_file_that_reads_a_former_name(tmp_path):
  path = write_file(tmp_path, "config.eval.parts += ('train',)")
  with pytest.raises(ConfigError, match='parts is now config.eval.splits'):
    config_lib.load(path)
  path = write_file(tmp_path, 'config.eval.nothing')
  with pytest.raises(ConfigError, match="line 6: no key 'nothing'"):
    config_lib.load(path)


def test_a_former_name_whose_time_is_over(tmp_path, monkeypatch):
  monkeypatch.setitem(renamed.RENAMED, 'eval.parts', ('eval.splits', {}, ''))
  told = "unknown config key 'eval.parts'; it is now --config.eval.splits"
  with pytest.raises(ConfigError, match=told):
    config_lib.load(write_file(tmp_path, 'pass'), ['eval.parts=test'])
  with pytest.raises(ConfigError, match=told):
    config_lib.load(write_file(tmp_path, "config.eval.parts = ('test',)"))
  (tmp_path / 'config.json').write_text(json.dumps(former_json()))
  assert config_lib.read_config(tmp_path / 'config.json')['eval']['splits'] == [
    'test'
  ]
