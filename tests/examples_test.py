"""Every example ends well, run as a user does: by itself, from anywhere.

The fast ones are in the usual suite; `python -m pytest -m slow
tests/examples_test.py` runs the others. With GENREC_INSTALLED, the directory of
an installed wheel, all of them run against it, and compile as users do;
`.ci/run` does that.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
INSTALLED = os.environ.get('GENREC_INSTALLED')
# What is of the tests and not of a user.
SETTINGS = ['JAX_NUM_CPU_DEVICES', 'NPROC']
if INSTALLED:
  SETTINGS += ['JAX_COMPILATION_CACHE_DIR', 'JAX_DISABLE_MOST_OPTIMIZATIONS']
  SETTINGS += ['XLA_FLAGS']
FILES = sorted((ROOT / 'examples').glob('*.py'))
# More than a few seconds of compiling sequence models.
SLOW = set() if INSTALLED else {'follow_and_serve.py', 'own_csv.py'}
PRINTED = {
  'dataframe_ranking.py': r'test AUC 0\.[789]',
  'follow_and_serve.py': r'step 400: items like 34 are \[3\d, 3\d, 3\d\]',
  'own_csv.py': r'after 0-03 0-04 0-05 0-06 come 0-07',
  'own_row_optimizer.py': r'test AUC with RowLion 0\.[789]',
  'own_task.py': r'step 300: 0\.[89]\d* in right order',
  'sharded_embedding.py': r'with one to spare: \[751, 751, 751, 751\]',
}


def run_example(file: pathlib.Path, directory: pathlib.Path) -> str:
  """Runs one from another directory, on the devices that it asks for."""
  env = {name: v for name, v in os.environ.items() if name not in SETTINGS}
  done = subprocess.run(
    [sys.executable, file],
    cwd=directory,
    env=env | {'PYTHONPATH': INSTALLED or str(ROOT)},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.parametrize(
  'file',
  [
    pytest.param(f, marks=pytest.mark.slow if f.name in SLOW else (), id=f.stem)
    for f in FILES
  ],
)
def test_an_example_ends_well(file, tmp_path):
  assert re.search(PRINTED[file.name], run_example(file, tmp_path))
  assert not list(tmp_path.iterdir()), 'it leaves files behind'


def test_what_is_printed_is_known_of_every_example():
  assert sorted(PRINTED) == [f.name for f in FILES]


@pytest.mark.parametrize('file', FILES, ids=lambda f: f.stem)
def test_a_docstring_says_what_to_run_and_how_long_it_takes(file):
  text = ast.get_docstring(ast.parse(file.read_text()))
  assert f'\n    python examples/{file.name}\n' in text
  assert re.search(r'about \d+\s+seconds', text, re.IGNORECASE)
  assert re.search(r'^Prints ', text, re.MULTILINE)


@pytest.mark.parametrize('file', FILES, ids=lambda f: f.stem)
def test_an_example_is_short_and_imports_nothing_of_the_checkout(file):
  source = file.read_text()
  assert source.count('\n') <= 115
  for node in ast.walk(ast.parse(source)):
    names = [getattr(node, 'module', None)] if hasattr(node, 'module') else []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    for name in names:
      package = name.split('.')[0]
      assert package not in ('tests', 'benchmarks', 'configs', 'examples')
