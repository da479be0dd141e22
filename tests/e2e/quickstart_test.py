"""Every config of the project trains as `:smoke`, evaluates and reports."""

import json
import pathlib

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.train import loop
from tests.train import tiny_run

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / 'configs').glob('*.py'))


@pytest.fixture(scope='module', autouse=True)
def quick(tmp_path_factory):
  with tiny_run.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_smoke(path, tmp_path):
  config = config_lib.load(f'{path}:smoke')
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(config, tmp_path)
  assert report['steps'] == config.train.steps
  saved = json.loads((tmp_path / 'report.json').read_text())
  assert saved['metrics'].keys() >= {'test'}
  assert '<html' in (tmp_path / 'report.html').read_text()
