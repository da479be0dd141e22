"""The examples of docs/serving.md run."""

import pathlib
import re

from genrec_jax import config as config_lib

DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'serving.md'


def test_python_examples(untimed, capsys):
  examples = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  assert len(examples) == 2
  for example in examples:
    assert "'workdir/quickstart'" in example
    source = example.replace("'workdir/quickstart'", repr(str(untimed[1])))
    exec(compile(source, str(DOCS), 'exec'), {})
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 3 + 2
  assert lines[3].startswith('ann [') and lines[4].startswith('bob [')


def test_every_key_is_named():
  """Of the sections that only these modes read."""
  text = DOCS.read_text()
  for section in ('predict', 'eval'):
    for key in config_lib.retrieval()[section]:
      assert key in text, f'{section}.{key}'
