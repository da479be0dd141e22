"""What docs/weights.md says is so."""

import pathlib
import re

import jax.numpy as jnp

from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.weights.published import MODELS
from tests.weights.recorded import SHAPES

DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'weights.md'


def test_python_examples(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  run = tmp_path / 'workdir' / 'quickstart'
  run.mkdir(parents=True)
  (run / 'config.json').write_text('{"task": "retrieval"}')
  with CheckpointManager(run / 'checkpoints') as checkpoints:
    checkpoints.save(3, {'params/position': jnp.ones((4, 2))})
  examples = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  assert len(examples) == 1
  for example in examples:
    exec(compile(example, str(DOCS), 'exec'), {})
  lines = capsys.readouterr().out.splitlines()
  assert lines[1:] == ['retrieval 3', 'params/position float32 (4, 2)']


def test_every_published_model_has_its_row():
  text = DOCS.read_text()
  for name in MODELS:
    assert f'| `{name}` |' in text, name


def test_every_published_array_is_in_a_table():
  text = DOCS.read_text()
  for case in SHAPES:
    for name in SHAPES[case]:
      short = re.sub(r'\.\d+\.', '.i.', name, count=1)
      parts = [p for p in short.split('.') if p not in ('weight', 'bias')]
      assert all(part in text for part in parts), name
