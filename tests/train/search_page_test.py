"""The worked example of docs/dnas.md: a space of one's own."""

import json
import pathlib
import re

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax import extensions as extensions_lib
from genrec_jax.search.table_space import TableSpace
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import search, search_results

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'dnas.md'


@pytest.fixture(scope='module', autouse=True)
def mixed_dtypes():
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


def test_formats_of_rows_are_searched(tmp_path, monkeypatch):
  page = PAGE.read_text()
  (code,) = re.findall(r'```python\n# my_spaces.py\n(.*?)```', page, re.DOTALL)
  (tmp_path / 'my_spaces.py').write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  name = re.search(r'--config.extensions=(\S+)', page)[1]
  spaces = re.search(r'--config.search.spaces="(.*?)"', page)[1]
  rows = re.search(r'--config.optimizer.rows.name=(\S+)', page)[1]
  given = [f'extensions={name}', f'search.spaces={spaces}']
  given += [f'optimizer.rows.name={rows}']
  config = config_lib.load('dnas_clicks:smoke', given)
  # So dear that rows take half of the bytes wherever the data would not.
  config.search.update(
    cost='bytes', cost_weight=1e4, learning_rate=1.0, samples=1
  )
  config.train.steps, config.search.share = 40, 0.5
  extensions = extensions_lib.load_extensions(name)
  search.search_models(config, tmp_path / 'run', TASK_KINDS, extensions)
  found = json.loads((tmp_path / 'run' / search_results.RESULT).read_text())
  (candidate,) = found['candidates']
  formats = candidate['architecture']['extra']['formats']
  assert set(formats.values()) == {'bfloat16'}
  own = config_lib.load(str(tmp_path / 'run' / 'found' / 'best.py'), [])
  assert {settings['dtype'] for _, settings in own.tables} == {'bfloat16'}
  parameters = candidate['costs']['parameters']
  tables = sum(
    candidate['architecture']['dims'][t] * rows
    for t, rows in candidate['architecture']['rows'].items()
  )
  assert candidate['costs']['bytes'] == 4 * parameters - 2 * tables


def test_spaces_that_say_too_little_are_refused():
  with pytest.raises(ValueError, match="scales 'flops'"):
    TableSpace((1, 2), lambda x, w: x, {'flops': (1.0, 0.5)})
  with pytest.raises(ValueError, match='2 options and 1 scales of bytes'):
    TableSpace((1, 2), lambda x, w: x, {'bytes': (1.0,)})
