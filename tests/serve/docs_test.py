"""The examples of docs/serving.md run."""

import pathlib
import re

from genrec_jax import config as config_lib

DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'serving.md'


def test_python_examples(untimed, trained, capsys):
  examples = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  *examples, kept = examples
  assert len(examples) == 2
  for example in examples:
    assert "'workdir/quickstart'" in example
    source = example.replace("'workdir/quickstart'", repr(str(untimed[1])))
    exec(compile(source, str(DOCS), 'exec'), {})
  # Of a model with times, whose items are text.
  kept = kept.replace("'workdir/quickstart'", repr(str(trained[1])))
  kept = kept.replace('[12, 7, 30]', "['sku-12', 'sku-07', 'sku-30']")
  kept = kept.replace('[5]', "['sku-05']").replace('1e9', '1e6')
  found = {}
  exec(compile(kept, str(DOCS), 'exec'), found)
  assert found['users'].work.questions == 3
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 3 + 2
  assert lines[3].startswith('ann [') and lines[4].startswith('bob [')


def test_every_key_is_named():
  """Of the sections that only these modes read."""
  text = DOCS.read_text()
  for section in ('predict', 'eval'):
    for key in config_lib.retrieval()[section]:
      assert key in text, f'{section}.{key}'
