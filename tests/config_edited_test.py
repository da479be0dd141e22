"""A config.json that somebody has changed by hand ends in one sentence."""

import copy
import json

import pytest

from genrec_jax import config as config_lib

REMEDY = 'correct it, or put back a copy, or what --print_config prints'
CONFIGS = {name: config_lib.load(name) for name in ('own_csv', 'own_clicks')}
SAVED = {
  name: json.loads(config_lib.to_json(config))
  for name, config in CONFIGS.items()
}
# Type of what a key holds -> what it cannot hold.
WRONG = {
  dict: (None, [], 'x', 3, True),
  bool: ('x', 1, {}),
  int: ('x', 1.5, True, [1]),
  float: ('x', True, {}, [0.5]),
  str: (3, [], {}, True),
  list: ('x', 3, {}),
  type(None): ({}, [[1]]),
}


def read(saved, tmp_path, **options):
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(saved))
  return config_lib.load_saved(path, **options)


def explain(saved, tmp_path, **options):
  with pytest.raises(ValueError) as error:
    read(saved, tmp_path, **options)
  return str(error.value)


def list_places(tree, place=()):
  """(names, value) of every section and every key."""
  for name, value in tree.items():
    yield (*place, name), value
    if isinstance(value, dict):
      yield from list_places(value, (*place, name))


def put(saved, place, value):
  """A copy of a config with another value in a place."""
  saved = tree = copy.deepcopy(saved)
  for name in place[:-1]:
    tree = tree[name]
  tree[place[-1]] = value
  return saved


@pytest.mark.parametrize('name', SAVED)
def test_wrong_types_are_told_with_the_key_and_the_file(name, tmp_path):
  places = list(list_places(SAVED[name]))
  assert len(places) > 150
  for number, (place, held) in enumerate(places):
    wrong = WRONG[type(held)]
    value, key = wrong[number % len(wrong)], '.'.join(place)
    text = explain(put(SAVED[name], place, value), tmp_path)
    assert text.startswith(f'{tmp_path}/config.json is damaged ({key} is '), key
    assert REMEDY in text, (key, text)


@pytest.mark.parametrize(
  'place, value, told',
  [
    (('train',), [], 'train is [], must be a section'),
    (('parallel',), None, 'parallel is null, must be a section'),
    (('data', 'columns'), 'x', 'data.columns is "x", must be a section'),
    (('task',), 3, 'task is 3, must be some text'),
    (('model', 'name'), {}, 'model.name is {}, must be some text'),
    (('model', 'name'), 'hstv', "those that rank are dcn, deepfm, dlrm, dnn"),
    (('train', 'steps'), '10', 'train.steps is "10", must be a whole number'),
    (('train', 'steps'), 1.5, 'train.steps is 1.5, must be a whole number'),
    (('train', 'shuffle'), 1, 'train.shuffle is 1, must be True or False'),
    (('eval', 'ks'), [1, '5'], 'eval.ks is [1, "5"], must be a whole number'),
    (('eval', 'ks'), 5, 'eval.ks is 5, must be several values, each a whole'),
    (('data', 'path'), ['x' * 5000], 'xxx..., must be text'),
    (('data', 'min_rating'), '3', 'data.min_rating is "3", must be a number'),
    (('model', 'dims'), 3, "unknown key 'model.dims'; did you mean 'dim'?"),
    (('loss', 'nme'), 3, "unknown key 'loss.nme'; did you mean 'name'?"),
    (('a.b',), 3, "'a.b', which is no name of a key"),
    (('train', '__class__'), 3, "'__class__', which is no name of a key"),
    (('data', 'extras'), {'a': [[[]]] * 2}, ''),
  ],
)  # fmt: skip
def test_what_is_said(place, value, told, tmp_path):
  if not told:
    for _ in range(30):
      value = {'a': value}
    told = 'values that are nested too deeply'
  text = explain(put(SAVED['own_csv'], place, value), tmp_path)
  assert told in text and len(text) < 700
  assert f'config.json is damaged ({text.partition("(")[2]}' in text


@pytest.mark.parametrize('saved', [None, [], 3, 'x', {}, {'task': 'ranking'}])
def test_what_is_no_config(saved, tmp_path):
  told = 'it holds no keys'
  if isinstance(saved, dict):
    told = f'{"model.name" if saved else "task"} is missing'
  assert f'config.json is damaged ({told}' in explain(saved, tmp_path)


def test_a_sealed_file_says_what_to_do_about_the_seal(tmp_path):
  path = tmp_path / 'config.json'
  config_lib.save(CONFIGS['own_csv'], path)
  path.write_text(path.read_text().replace('"seed": 0', '"seed": "a"'))
  with pytest.raises(ValueError, match='remove .config.json.seal beside it'):
    config_lib.load_saved(path)
  (tmp_path / '.config.json.seal').unlink()
  with pytest.raises(ValueError, match='seed is "a", must be .*; correct it'):
    config_lib.load_saved(path)


def test_a_task_from_outside_has_the_sections_of_all(tmp_path):
  saved = SAVED['own_clicks'] | {'task': 'minutes'}
  assert read(saved, tmp_path).task == 'minutes'
  assert 'optimizer is [], must be a section' in explain(
    saved | {'optimizer': []}, tmp_path
  )
  assert 'report is 3, must be a section' in explain(
    saved | {'report': 3}, tmp_path, defaults=config_lib.ranking
  )
  del saved['parallel']
  assert 'parallel is missing' in explain(saved, tmp_path)


@pytest.mark.parametrize('name', SAVED)
def test_values_that_are_only_out_of_range_are_read(name, tmp_path):
  """A run of an earlier version is evaluated with what it began with."""
  saved = put(SAVED[name], ('model', 'dropout'), 7)
  saved['train'] |= {'batch_size': -1, 'monitor': 'no such', 'old_key': []}
  del saved['report'], saved['numerics']
  config = read(saved, tmp_path)
  assert config.model.dropout == 7 and config.train.batch_size == -1
  assert config.report == CONFIGS[name].report
