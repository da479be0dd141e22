"""What a server that scores imports, read from the sources."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
SERVER = ('genrec_jax.serve.weights', 'genrec_jax.serve.scorer')
# What reads, splits and shuffles the data of a training, and what reports.
NOT_NEEDED = (
  'grain', 'genrec_jax.data.pipeline', 'genrec_jax.data.ranking.batches',
  'genrec_jax.data.ranking.store', 'genrec_jax.data.text',
  'genrec_jax.data.splits', 'genrec_jax.train', 'genrec_jax.report',
  'genrec_jax.planner',
)  # fmt: skip


def find_file(name):
  path = ROOT.joinpath(*name.split('.'))
  files = path.with_suffix('.py'), path / '__init__.py'
  return next((file for file in files if file.is_file()), None)


def list_imports(file):
  """The modules that a file imports when it is imported itself."""
  for node in ast.parse(file.read_text()).body:
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      names = (f'{node.module}.{alias.name}' for alias in node.names)
      yield from (n if find_file(n) else node.module for n in names)


def test_a_server_imports_nothing_that_only_training_needs():
  found, waiting = set(), list(SERVER)
  while waiting:
    parts = waiting.pop().split('.')
    for n in range(1, len(parts) + 1):  # packages, too
      name = '.'.join(parts[:n])
      if name not in found:
        found.add(name)
        file = find_file(name)
        waiting += list_imports(file) if file else ()
  assert {'genrec_jax.tasks.ranking', 'genrec_jax.checkpoint.manager'} < found
  assert found.isdisjoint(NOT_NEEDED)
