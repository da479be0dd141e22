"""docs/api.md does what it says."""

import functools
import pathlib
import re

import jax
import pytest

import genrec_jax
from tests.library import retrieval_test

TEXT = (pathlib.Path(__file__).parents[2] / 'docs/api.md').read_text()
BLOCKS = re.findall(r'```python\n(.*?)```', TEXT, re.DOTALL)
RANKING = {
  'report.importance_rows': 0,
  'train.batch_size': 16,
  'eval.batch_size': 16,
}


@pytest.fixture(scope='module')
def namespace():
  return {}


@pytest.fixture(autouse=True)
def small(tmp_path_factory, monkeypatch):
  """The same calls beside a log, of two steps on models that compile soon."""
  folder = tmp_path_factory.getbasetemp() / 'docs'
  folder.mkdir(exist_ok=True)
  monkeypatch.chdir(folder)
  lines = ['customer,product,when']
  events = retrieval_test.make_events()
  for customer, product, when in zip(*events.values(), strict=True):
    lines.append(f'{customer},sku-{product},{when}')
  pathlib.Path('events.csv').write_text('\n'.join(lines))
  fit = genrec_jax.fit

  @functools.wraps(fit)
  def fit_small(events, model, *, settings=None, epochs=0, **more):
    tiny = retrieval_test.SETTINGS
    if model != 'sasrec':
      model, tiny = 'fm', RANKING
    tiny = {**tiny, **(settings or {})}
    return fit(events, model, settings=tiny, steps=2, progress=False, **more)

  monkeypatch.setattr(genrec_jax, 'fit', fit_small)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


@pytest.mark.parametrize('number', range(len(BLOCKS)))
def test_every_example_runs(number, namespace, capsys):
  exec(
    compile(BLOCKS[number], f'docs/api.md, example {number}', 'exec'), namespace
  )
  if number == 0:
    told = capsys.readouterr().out.splitlines()
    assert "{'ann': [('sku-" in told[1] and told[2].endswith('report.html')


def test_an_own_model_takes_twenty_lines(namespace):
  [block] = [b for b in BLOCKS if 'value_and_grad' in b]
  lines = [line for line in block.splitlines() if line.strip()]
  assert len(lines) <= 20


def test_every_public_name_is_told():
  for name in genrec_jax.__all__:
    assert f'`{name}`' in TEXT
  number = {7: 'seven'}[len(genrec_jax.__all__)]
  assert f'offers {number} names' in TEXT
