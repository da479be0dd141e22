"""Configs by name and those of a workdir, without JAX."""

import json
import pathlib

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import files

ROOT = pathlib.Path(__file__).parents[1]
CONFIGS = config_lib.describe_configs()
CASES = [
  f'{name}:{",".join(sorted({variant, "smoke"}))}'
  for name, variants, _ in CONFIGS
  for variant in variants.split()
]


def test_every_file_has_a_name_variants_and_a_sentence():
  names = [name for name, _, _ in CONFIGS]
  assert names == sorted(p.stem for p in (ROOT / 'configs').glob('*.py'))
  for name, variants, sentence in CONFIGS:
    assert 'smoke' in variants.split(), name
    assert sentence.endswith(('.', ':')), name


def test_a_name_is_the_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  named = config_lib.load('quickstart:smoke', ['train.steps=7'])
  file = config_lib.load(
    f'{ROOT}/configs/quickstart.py:smoke', ['train.steps=7']
  )
  assert named.to_dict() == file.to_dict()


def test_an_own_file_comes_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = (ROOT / 'configs/quickstart.py').read_text()
  own = text.replace('config.train.epochs = 1', 'config.train.epochs = 3')
  (tmp_path / 'quickstart.py').write_text(own)
  assert config_lib.load('quickstart.py').train.epochs == 3
  # What is no file of Python is no config: a workdir, say.
  (tmp_path / 'quickstart').mkdir()
  assert config_lib.load('quickstart').train.epochs == 1


@pytest.mark.parametrize(
  'name, message',
  [
    (
      'quikstart',
      "no config is called 'quikstart'; did you mean 'quickstart'? `genrec "
      'configs` lists them all',
    ),
    (
      'zz:smoke',
      "no config is called 'zz'. `genrec configs` lists them all",
    ),
    # As documents of former versions have it, where there is no checkout.
    (
      'configs/quickstart.py:smoke',
      "no config file 'configs/quickstart.py'; did you mean 'quickstart'?",
    ),
  ],
)
def test_a_name_that_nothing_has(name, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(config_lib.ConfigError) as error:
    config_lib.load(name)
  assert str(error.value) == message


def test_an_installed_package_has_the_configs_inside(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text('"""Mine."""\ndef get_config(arg): pass\n')
  monkeypatch.setattr(files, '_FOLDERS', [tmp_path, ROOT / 'configs'])
  assert config_lib.describe_configs() == [('mine', '', 'Mine.')]


@pytest.mark.parametrize('case', CASES)
def test_a_saved_config_is_the_one_that_was_loaded(case, tmp_path):
  config = config_lib.load(case, ["tables=(('x', {'rate': 0.5}), ('.*', {}))"])
  config_lib.save(config, tmp_path / 'config.json')
  saved = config_lib.load_saved(tmp_path / 'config.json')
  assert_same_types(saved.to_dict(), config.to_dict())
  assert saved.is_locked


def assert_same_types(one, other):
  assert type(one) is type(other) and one == other
  if isinstance(one, dict):
    for key in one:
      assert_same_types(one[key], other[key])
  elif isinstance(one, tuple):
    for a, b in zip(one, other, strict=True):
      assert_same_types(a, b)


def test_overrides_of_a_saved_config(tmp_path):
  path = tmp_path / 'config.json'
  config_lib.save(config_lib.load('quickstart:smoke'), path)
  saved = config_lib.load_saved(path, ['predict.input=x.csv', 'eval.ks=3'])
  assert saved.predict.input == 'x.csv' and saved.eval.ks == (3,)
  with pytest.raises(config_lib.ConfigError, match='did you mean --config.tr'):
    config_lib.load_saved(path, ['trian.steps=3'])


def test_a_run_of_a_mesh_is_read_for_one_device(tmp_path):
  path = tmp_path / 'config.json'
  config_lib.save(config_lib.load('quickstart', ['parallel.hosts=2']), path)
  assert config_lib.load_saved(path).parallel.hosts == 2
  alone = config_lib.load_saved(path, forget_mesh=True)
  assert alone.parallel.to_dict() == config_lib.parallel().to_dict()
  more = config_lib.load_saved(path, ['parallel.hosts=4'], forget_mesh=True)
  assert more.parallel.hosts == 4


def test_a_config_of_a_kind_from_outside(tmp_path):
  saved = config_lib.load('wukong_synthetic').to_dict() | {'task': 'minutes'}
  del saved['train']['patience']
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(saved, default=list))
  assert 'patience' not in config_lib.load_saved(path).train
  config = config_lib.load_saved(path, defaults=config_lib.ranking)
  assert config.train.patience == config_lib.ranking().train.patience


def test_a_config_of_an_earlier_version(tmp_path):
  """Keys that it lacks have what was done before, renamed ones their names."""
  saved = config_lib.load('wukong_synthetic').to_dict()
  del saved['data']['train_unseen'], saved['data']['pairs']
  saved['data']['table_update'] = 'row_adagrad'
  del saved['optimizer']['rows']['name']
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(saved, default=list))
  config = config_lib.load_saved(path)
  assert config.data.train_unseen == 0.0 and config.data.pairs == 'by_place'
  assert config.optimizer.rows.name == 'row_adagrad'


@pytest.mark.parametrize(
  'code, told',
  [
    ('def get_config(arg):\n  return (', 'line 2: '),
    ('import nothing_of_this_name', 'line 1: ModuleNotFoundError: No module'),
    (
      'from genrec_jax import config as c\ndef get_config(arg=None):\n'
      "  config = c.retrieval()\n  config.train.steps = 'a'\n  return config\n",
      'line 4: TypeError',
    ),
    ('def get_config(arg=None):\n  return 1', 'get_config gives int, must be'),
    ('get_config = None', 'TypeError'),
  ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path, code, told):
  path = tmp_path / 'mine.py'
  path.write_text(code)
  with pytest.raises(config_lib.ConfigError, match=told) as error:
    config_lib.load(str(path))
  assert 'mine.py' in str(error.value)


def test_a_model_is_no_config_and_the_one_that_has_it_is_named():
  with pytest.raises(config_lib.ConfigError, match='it is own_csv:sasrec'):
    config_lib.load('sasrec')


@pytest.mark.parametrize(
  'saved, scheme',
  [('row_wise', ''), ('table_wise', 'table_wise'), ('', '')],
)
def test_the_scheme_that_every_run_once_had_is_none(tmp_path, saved, scheme):
  """Which '' stands for; other schemes were chosen."""
  path = tmp_path / 'config.json'
  config = config_lib.load('quickstart', [f'parallel.scheme={saved}'])
  config_lib.save(config, path)
  assert config_lib.load_saved(path).parallel.scheme == scheme
  chosen = config_lib.load_saved(path, ['parallel.scheme=row_wise'])
  assert chosen.parallel.scheme == 'row_wise'
  alone = config_lib.load_saved(path, forget_mesh=True)
  assert alone.parallel.scheme == ''
