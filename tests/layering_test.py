"""Who may import whom, and how files may be named and grow."""

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = (
  'benchmarks',
  'configs',
  'constraints',
  'examples',
  'genrec_jax',
  'launch',
  'pallas_kernels',
  'tests',
)

# A layer imports its own tier and those above it in this list.
TIERS = (
  ('pallas_kernels',),
  (
    'event_history',
    'features',
    'config',
    'contracts',
    'compat',
    'formatting',
    'interruption',
    'last_resort',
    'progress',
    'provenance',
    'sealed',
    'throughput',
  ),
  ('processes',),
  ('extensions',),
  ('numerics',),
  ('parallel', 'memory'),
  ('data',),
  ('embedding',),
  ('planner',),
  ('models',),
  ('tasks',),
  ('distill', 'search', 'checkpoint'),
  ('weights',),
  ('runtime',),
  ('evaluators',),
  ('serve',),
  ('report',),
  ('train',),
  ('task_kinds',),
  ('command_line', 'library'),
  ('sweep',),
  ('notebook',),
  ('main',),
  ('__main__',),
  ('__init__',),  # what `import genrec_jax` offers; nobody imports from it
)
TIER = {layer: tier for tier, layers in enumerate(TIERS) for layer in layers}

# (layer, target): the one module of the target that the layer may import.
DOORS = {('serve', 'runtime'): 'genrec_jax.runtime.state'}
# Stands for a module whose name a call of import_module computes.
COMPUTED = '<computed>'
# JAX moves its private modules; one file has to follow.
MAY_USE_PRIVATE_JAX = 'genrec_jax.parallel.jax_internals'
# The public names, which are lazy, and what a config names.
MAY_COMPUTE = ('genrec_jax.__init__', 'genrec_jax.extensions')

# What nobody imports but the folder itself, and the tests.
LEAVES = (
  'benchmarks', 'configs', 'constraints', 'examples', 'launch', 'tests',
)  # fmt: skip
HEAVY = ('keras', 'pandas', 'tensorflow', 'torch')
# Named in pallas_kernels/**/triton_*.py alone, and imported when used.
OPTIONAL_IN_TRITON_FILES = {'triton', 'jax_triton'}
FORBIDDEN_NAMES = ('common', 'core', 'helpers', 'misc', 'util', 'utils')
MAX_LINES = 500


def python_files() -> list[pathlib.Path]:
  """Every source file of the project, relative to its root."""
  found = [p for folder in FOLDERS for p in (ROOT / folder).rglob('*.py')]
  return sorted(
    [*(p.relative_to(ROOT) for p in found), pathlib.Path('setup.py')]
  )


@functools.cache  # several tests look at all files
def imported(source: str) -> tuple[str, ...]:
  """Every 'package.module.name' a file imports, wherever and however."""
  return tuple(_find_imports(source))


def _find_imports(source: str) -> Iterator[str]:
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      start = '.' * node.level + (node.module or '')
      yield from (f'{start}.{alias.name}' for alias in node.names)
    elif isinstance(node, ast.Call):
      called = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
      if called in ('import_module', '__import__'):
        value = getattr(node.args[0], 'value', None) if node.args else None
        yield value if isinstance(value, str) else COMPUTED


def layer_of(module: str) -> str:
  """'genrec_jax.data.vocab' -> 'data'; the package itself for others."""
  package, _, rest = module.partition('.')
  if package == 'genrec_jax' and rest:
    return rest.split('.')[0]
  return package


def complaints(path: str, source: str) -> list[str]:
  """What `source`, standing in the file `path`, imports against the rules."""
  here = path.removesuffix('.py').replace('/', '.')
  layer, out = layer_of(here), []
  for name in sorted(set(imported(source))):
    package = name.split('.')[0]
    if problem := _complaint(here, layer, package, name):
      out.append(f'{path} imports {name}: {problem}')
  return out


def _complaint(here: str, layer: str, package: str, name: str) -> str:
  folder = here.split('.')[0]
  if f'{name}.'.startswith('jax._src.') and here != MAY_USE_PRIVATE_JAX:
    return f'{MAY_USE_PRIVATE_JAX} alone imports what JAX does not publish'
  if name == COMPUTED:
    free = folder not in ('genrec_jax', 'pallas_kernels') or here in MAY_COMPUTE
    return '' if free else 'write the name of the module'
  if not package:
    return 'relative imports hide the layer, write the whole name'
  if package in LEAVES and folder not in (package, 'tests'):
    return f'nobody imports {package}/'
  if folder == 'configs' and layer_of(name) != 'config':
    return 'a config imports genrec_jax.config alone'
  if folder == 'pallas_kernels':
    allowed = {'jax', 'numpy', 'pallas_kernels', *sys.stdlib_module_names}
    if here.rpartition('.')[2].startswith('triton_'):
      allowed |= OPTIONAL_IN_TRITON_FILES
    return '' if package in allowed else 'pallas_kernels knows jax and numpy'
  if folder != 'genrec_jax':
    return ''
  if package in HEAVY:
    return 'not in the core'
  if package not in ('genrec_jax', 'pallas_kernels'):
    return ''
  target = layer_of(name)
  for known in (layer, target):
    if known not in TIER:
      return f'{known!r} has no place in TIERS of {pathlib.Path(__file__).name}'
  if TIER[target] > TIER[layer]:
    return f'{layer} stands above {target}'
  door = DOORS.get((layer, target), name)
  if not f'{name}.'.startswith(f'{door}.'):
    return f'{layer} may import {door} alone'
  return ''


def test_every_import_follows_the_layers():
  found = []
  for path in python_files():
    source = (ROOT / path).read_text()
    found += complaints(path.as_posix(), source)
  assert not found, '\n'.join(found)


@pytest.mark.parametrize(
  'path, line, allowed',
  [
    ('genrec_jax/models/x.py', 'from genrec_jax.tasks import losses', False),
    ('genrec_jax/models/x.py', 'from genrec_jax import tasks', False),
    ('genrec_jax/models/x.py', 'import genrec_jax.tasks.losses', False),
    (
      'genrec_jax/models/x.py',
      'def f():\n  from genrec_jax import main',
      False,
    ),
    (
      'genrec_jax/models/x.py',
      'from genrec_jax.features import Examples',
      True,
    ),
    ('genrec_jax/models/x.py', 'import pallas_kernels', True),
    ('genrec_jax/models/x.py', 'import torch', False),
    ('genrec_jax/models/x.py', 'from . import layers', False),
    ('genrec_jax/models/x.py', 'from genrec_jax.spells import cast', False),
    (
      'genrec_jax/spells/x.py',
      'from genrec_jax.features import Examples',
      False,
    ),
    ('genrec_jax/embedding/x.py', 'from genrec_jax import planner', False),
    ('genrec_jax/planner/x.py', 'from genrec_jax import embedding', True),
    ('genrec_jax/train/x.py', 'from genrec_jax.serve import weights', True),
    ('genrec_jax/train/x.py', 'from genrec_jax.report import pages', True),
    ('genrec_jax/report/x.py', 'from genrec_jax.serve import weights', True),
    ('genrec_jax/report/x.py', 'from genrec_jax.train import loop', False),
    ('genrec_jax/serve/x.py', 'from genrec_jax.report import pages', False),
    ('genrec_jax/serve/x.py', 'from genrec_jax.train import loop', False),
    ('genrec_jax/serve/x.py', 'from genrec_jax.runtime import state', True),
    (
      'genrec_jax/serve/x.py',
      'from genrec_jax.runtime.state import TrainState',
      True,
    ),
    ('genrec_jax/serve/x.py', 'from genrec_jax.runtime import mesh', False),
    ('genrec_jax/serve/x.py', 'import genrec_jax.runtime', False),
    ('genrec_jax/serve/x.py', 'import genrec_jax.runtime.state_x', False),
    ('genrec_jax/runtime/x.py', 'from genrec_jax.serve import score', False),
    ('genrec_jax/models/x.py', "import_module('genrec_jax.train')", False),
    ('genrec_jax/train/x.py', "import_module('genrec_jax.models')", True),
    (
      'genrec_jax/models/x.py',
      "importlib.import_module('genrec_jax.tasks.losses')",
      False,
    ),
    ('genrec_jax/models/x.py', "__import__('genrec_jax.main')", False),
    ('genrec_jax/train/x.py', "import_module('.loop', __package__)", False),
    ('genrec_jax/train/x.py', "import_module(f'genrec_jax.{name}')", False),
    ('genrec_jax/train/x.py', 'import_module(name=module)', False),
    ('pallas_kernels/x/api.py', "import_module('flax')", False),
    ('pallas_kernels/x/api.py', 'import_module(module)', False),
    ('genrec_jax/extensions.py', 'importlib.import_module(module)', True),
    ('genrec_jax/__init__.py', 'importlib.import_module(module)', True),
    ('genrec_jax/extensions.py', "import_module('genrec_jax.train')", False),
    ('benchmarks/x.py', 'importlib.import_module(module)', True),
    ('genrec_jax/train/x.py', 'import benchmarks.result', False),
    ('genrec_jax/config.py', 'from genrec_jax.data import vocab', False),
    ('pallas_kernels/x/api.py', 'from genrec_jax import features', False),
    ('pallas_kernels/x/api.py', 'import flax', False),
    ('pallas_kernels/x/api.py', 'from jax.experimental import pallas', True),
    ('pallas_kernels/x/api.py', 'import functools', True),
    ('pallas_kernels/x/api.py', 'import triton', False),
    ('pallas_kernels/x/triton_x.py', 'import triton', True),
    ('configs/x.py', 'from genrec_jax import config as config_lib', True),
    ('configs/x.py', 'import ml_collections', False),
    ('configs/x.py', 'from genrec_jax.models import hstu', False),
    ('benchmarks/x.py', 'from benchmarks import result', True),
    ('benchmarks/x.py', 'from tests import sequences', False),
    ('tests/x_test.py', 'import torch', True),
    ('tests/x_test.py', 'from jax._src import distributed', False),
    ('genrec_jax/parallel/x.py', 'import jax._src.core', False),
    ('pallas_kernels/x/api.py', 'from jax import _src', False),
    (
      'genrec_jax/parallel/jax_internals.py',
      'from jax._src import distributed',
      True,
    ),
  ],
)
def test_the_rules_themselves(path, line, allowed):
  assert (not complaints(path, line)) == allowed


def test_files_do_not_import_each_other_in_circles():
  modules = {}
  for path in python_files():
    name = path.with_suffix('').as_posix().replace('/', '.')
    modules[name.removesuffix('.__init__')] = (ROOT / path).read_text()
  edges = {}
  for name, source in modules.items():
    targets = set()
    for target in imported(source):
      whole = target if target in modules else target.rpartition('.')[0]
      targets.add(whole)
    edges[name] = sorted(targets & set(modules) - {name})

  done, open_ = set(), []

  def visit(name):
    assert name not in open_, ' -> '.join([*open_[open_.index(name) :], name])
    if name not in done:
      open_.append(name)
      for target in edges[name]:
        visit(target)
      open_.pop()
      done.add(name)

  for name in edges:
    visit(name)


def draws_elsewhere(path: str, source: str) -> bool:
  """Whether a file writes SVG beside the charts that all reports share."""
  drawing = ('genrec_jax/report/', 'tests/')
  return '<svg' in source and not path.startswith(drawing)


def test_charts_are_drawn_in_report_alone():
  assert draws_elsewhere('benchmarks/x.py', "write('<svg>')")
  assert not draws_elsewhere('genrec_jax/report/x.py', "write('<svg>')")
  for path in python_files():
    assert not draws_elsewhere(path.as_posix(), (ROOT / path).read_text()), (
      f'{path} draws: use genrec_jax.report.charts'
    )


def test_names_say_what_a_file_is_for():
  for path in python_files():
    for part in path.with_suffix('').parts:
      stem = part.removesuffix('_test')
      assert stem not in FORBIDDEN_NAMES, f'{path}: name it after its purpose'


def test_no_file_is_too_long():
  for path in python_files():
    lines = len((ROOT / path).read_text().splitlines())
    assert lines <= MAX_LINES, f'{path} has {lines} lines: split it by purpose'


# Prints what is loaded behind each of two groups of imports.
LOADED = """
import importlib, pkgutil, sys
import genrec_jax.config, genrec_jax.main
print(*sys.modules)
import genrec_jax.serve
for module in pkgutil.walk_packages(
  genrec_jax.serve.__path__, 'genrec_jax.serve.'
):
  importlib.import_module(module.name)
print(*sys.modules)
"""


@pytest.fixture(scope='module')
def loaded() -> list[set[str]]:
  """Modules of a process with main and config, then with all of serve too."""
  command = [sys.executable, '-c', LOADED]
  output = subprocess.check_output(command, text=True, cwd=ROOT)
  return [set(line.split()) for line in output.splitlines()]


def test_a_config_does_not_wait_for_jax(loaded):
  """`--help` and errors in a config come before JAX is loaded."""
  assert 'genrec_jax.main' in loaded[0] and 'jax' not in loaded[0]


def test_serving_loads_nothing_of_training(loaded):
  layers = {layer_of(x) for x in loaded[1] if x.startswith('genrec_jax.')}
  assert {'serve', 'checkpoint', 'models'} <= layers
  assert not layers & {'planner', 'report', 'train'}
  inside = {x for x in loaded[1] if x.startswith('genrec_jax.runtime.')}
  assert inside == {'genrec_jax.runtime.state'}
