"""What `import genrec_jax` offers, and what it does not load."""

import ast
import doctest
import importlib
import pathlib
import subprocess
import sys

import jax
import pytest

import genrec_jax

ROOT = pathlib.Path(genrec_jax.__file__).parent.parent
NAMES = [
  'EmbeddingTable',
  'Lookup',
  'RankingRun',
  'RetrievalRun',
  'ShardedEmbedding',
  'fit',
  'load',
]
BLOCKED = ('absl', 'flax', 'jax', 'jaxlib', 'ml_collections', 'numpy', 'optax')


def test_the_import_by_itself_loads_nothing_heavy():
  code = f'''
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {BLOCKED!r}:
      raise ImportError('the import of ' + name)

sys.meta_path.insert(0, Blocked())
import genrec_jax
assert genrec_jax.__version__
assert 'fit' in dir(genrec_jax)
try:
  genrec_jax.fit
except ImportError as error:
  assert 'the import of' in str(error)
else:
  raise AssertionError('fit came from nowhere')
'''
  subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)


def test_the_names_that_are_public():
  assert genrec_jax.__all__ == NAMES
  for name in NAMES:
    assert getattr(genrec_jax, name).__name__ == name
    assert name in dir(genrec_jax)
  with pytest.raises(AttributeError, match="has no 'predict'; it offers Embed"):
    genrec_jax.predict  # noqa: B018
  assert not hasattr(genrec_jax, 'main_')


def test_type_checkers_are_told_the_same():
  """The block that they read imports each name from where it is found."""
  tree = ast.parse((ROOT / 'genrec_jax/__init__.py').read_text())
  block = next(x for x in tree.body if isinstance(x, ast.If))
  homes = {
    alias.name: line.module for line in block.body for alias in line.names
  }
  assert homes == genrec_jax._HOMES
  assert sorted(homes) == NAMES
  assert (ROOT / 'genrec_jax/py.typed').exists()
  assert "'genrec_jax': ['py.typed']" in (ROOT / 'setup.py').read_text()


def test_dir_shows_what_is_offered():
  names = [name for name in dir(genrec_jax) if not name.startswith('__')]
  assert names == NAMES


@pytest.mark.parametrize('name', NAMES)
def test_the_examples_are_true(name):
  item = getattr(genrec_jax, name)
  assert '>>>' in item.__doc__
  module = importlib.import_module(genrec_jax._HOMES[name])
  items = [item]
  if name == 'RetrievalRun':  # of which the examples of the base class are
    items.append(module.Run)
  # The example of a class makes what those of its methods use.
  shared = vars(module).copy()
  runner = doctest.DocTestRunner()
  with jax.numpy_dtype_promotion('standard'):  # for optax
    for item in items:
      for test in doctest.DocTestFinder().find(item, module=module):
        test.globs = shared
        runner.run(test, clear_globs=False)
  assert runner.failures == 0


@pytest.mark.parametrize('name', ['RankingRun', 'RetrievalRun', 'fit', 'load'])
def test_every_function_says_what_it_takes_and_returns(name):
  item = getattr(genrec_jax, name)
  functions = [item]
  if isinstance(item, type):
    own = item.recommend if name == 'RetrievalRun' else item.score
    functions = [own, item.save]
  for function in functions:
    for title in ('Args:', 'Returns:', 'Raises:'):
      assert title in function.__doc__
