"""The data and the command of docs/tbsm.md for histories of one's own run."""

import pathlib
import re
import shlex

import jax

from genrec_jax import config as config_lib
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop

DOCS = pathlib.Path(__file__).parents[2] / 'docs'
PAGE = (DOCS / 'tbsm.md').read_text()


def test_the_command_of_the_page_trains_what_the_page_writes(
  tmp_path, monkeypatch, caplog
):
  monkeypatch.chdir(tmp_path)
  write, *_ = re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)
  assert '20_000' in write
  exec(write.replace('20_000', '1_000'), {})
  (command,) = re.findall(
    r'```sh\n(genrec train own_clicks:tbsm .*?)```', PAGE, re.DOTALL
  )
  words = shlex.split(command.replace('\\\n', ' '))
  given = [x.removeprefix('--config.') for x in words if '--config.' in x]
  small = ('train.epochs=1', 'report.importance_rows=0')
  config = config_lib.load('own_clicks:tbsm', [*given, *small])
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(config, tmp_path / 'own', TASK_KINDS)
  assert report['steps'] == 4
  assert 'have the candidate in their own history' in caplog.text
  row = {'item': 3, 'hour': 4, 'seen': [5, 3], 'seconds': [86_400.0, 60.0]}
  weights = Scorer.load(tmp_path / 'own').weigh_events([row])
  assert weights.shape == (1, 1, 8)
  assert not weights[..., :6].any() and weights[..., 6:].all()


def test_weights_of_events_are_named_where_somebody_looks():
  for name in ('tbsm', 'ranking', 'serving'):
    text = (DOCS / f'{name}.md').read_text()
    assert 'TBSM' in text and 'weigh_events' in text, name
