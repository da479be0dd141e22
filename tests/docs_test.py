"""Names and paths in the documents are those of the code.

Backticked text is compared with the source, which is read and not imported:

- a path of a source file exists, as it is or below some directory;
- a dotted name that begins with a section of a config, a module or a class is a
  key, or a name in that module or class;
- any other compound name (`snake_case`, `CamelCase`) occurs in the source.

Python fences can be parsed. What they import from the packages exists, and so
do the names that they take from modules. So do the names in `:::` lines, of
which the site makes its reference.
"""

import ast
import functools
import itertools
import pathlib
import re
import textwrap

import pytest

from docs import config_keys

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
  str(path.relative_to(ROOT))
  for pattern in ('README.md', 'benchmarks/README.md', 'docs/**/*.md')
  for path in ROOT.glob(pattern)
)
# Endings of files that a run reads or writes: `report.json` is not a key.
DATA = ('csv', 'html', 'json', 'jsonl', 'npy', 'npz', 'pt', 'txt')
# Names of other programs, and one that stands for any key.
FOREIGN = {
  'AxisType',
  'DefaultCredentialsError',
  'KEY',
  'EmbeddingBag',
  'no_sync',
  'research/modeling/sequential/hstu.py',
  'softmax_rel_bias',
  'state.step.is_deleted()',
  'quickstart.ipynb',
  'sweep.parquet',
  'sweep.sbatch',
  'launch/notebooks/tpu.ipynb',
  'launch/notebooks/quickstart.ipynb',
}

_GENERATED = re.compile(
  r'<!-- (?:table:.*?<!-- /table|config:renamed.*?<!-- /config) -->', re.DOTALL
)
_FENCE = re.compile(r'^( *)(```|~~~).*?^\1\2', re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r'^ *```python\n(.*?)^ *```', re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r'^::: ([\w.]+)$', re.MULTILINE)
_CODE = re.compile(r'`([^`\n]+)`')
_PATH = re.compile(r'[\w./*-]+\.(?:py|h|cc|md|svg)')
_DOTTED = re.compile(
  r'(?:--config\.)?([A-Za-z]\w*(?:\.\w+)+)(?:$|\.\*|[(=\[ ])'
)
_WORD = re.compile(
  r'([a-z][a-z0-9]*(?:_[a-z0-9]+)+|(?:[A-Z][a-z0-9]+){2,})(?:$|[(= ])'
)


@pytest.mark.parametrize('page', PAGES)
def test_names_in_a_page_exist(page):
  text = _FENCE.sub('', _GENERATED.sub('', (ROOT / page).read_text()))
  names = {name for code in _CODE.findall(text) for name in _expand(code)}
  assert not [name for name in sorted(names) if not _exists(name)]


@pytest.mark.parametrize('page', PAGES)
def test_code_in_a_page_uses_names_that_exist(page):
  assert not _missing_names((ROOT / page).read_text())


@pytest.mark.parametrize(
  ('text', 'missing'),
  (
    (
      '::: genrec_jax.fit\n::: genrec_jax.config.gone',
      'genrec_jax.config.gone',
    ),
    ('from genrec_jax.planner import gone', 'genrec_jax.planner.gone'),
    ('import genrec_jax\ngenrec_jax.gone(1)', 'genrec_jax.gone'),
    ('import genrec_jax.gone', 'genrec_jax.gone'),
    ('from genrec_jax.parallel import mesh as m\nm.gone()', 'mesh.gone'),
    ('x = dense.gone(dense.make_layout)', 'dense.gone'),
  ),
)
def test_code_with_a_name_that_is_gone_is_noticed(text, missing):
  fence = text if text.startswith(':::') else f'```python\n{text}\n```\n'
  assert _missing_names(fence) == [missing]


@pytest.mark.parametrize(
  'name',
  (
    'genrec_jax/models/wukong_gone.py',
    'models/{hstu,gone}.py',
    'genrec_jax.models.gone',
    'splits.gone(rows)',
    'TaskKind.gone',
    'Gone.data',
    'optimizer.warmup_gone',
    '--config.train.gone=3',
    'gone_with_the_wind',
    'GoneWith(x)',
  ),
)
def test_a_name_that_is_gone_is_noticed(name):
  assert not all(_exists(one) for one in _expand(name))


def _missing_names(text: str) -> list[str]:
  """The names in the code of a page, and in its `:::` lines, that are gone."""
  names = set(_REFERENCE.findall(text))
  trees = [ast.parse(textwrap.dedent(code)) for code in _PYTHON.findall(text)]
  nodes = [node for tree in trees for node in ast.walk(tree)]
  # Without an import, a fence means the module of a name that it does not bind;
  # but `config` is a config.
  bound = {'config'} | {n.arg for n in nodes if isinstance(n, ast.arg)}
  bound |= {
    n.id
    for n in nodes
    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
  }
  modules = {last: last for last in _modules() - bound}
  for node in nodes:
    match node:
      case ast.Import(names=aliases):
        names |= {alias.name for alias in aliases}
      case ast.ImportFrom(module=str(module), names=aliases):
        for alias in aliases:
          names.add(f'{module}.{alias.name}')
          if f'{module}.{alias.name}' in _trees():
            modules[alias.asname or alias.name] = alias.name
  names = {n for n in names if n.startswith(('genrec_jax', 'pallas_kernels'))}
  for node in nodes:
    match node:
      case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in modules:
        names.add(f'{modules[name]}.{attr}')
  return sorted(names - _names())


def _expand(code: str) -> list[str]:
  """`a/{b,c}.py` -> `a/b.py`, `a/c.py`."""
  parts = re.split(r'\{([\w,]+)\}', code)
  options = [p.split(',') if i % 2 else [p] for i, p in enumerate(parts)]
  return [''.join(choice) for choice in itertools.product(*options)]


def _exists(name: str) -> bool:
  if name in FOREIGN:
    return True
  if _PATH.fullmatch(name):
    return any(path.match(name) for path in _files())
  if match := _DOTTED.match(name):
    dotted = match[1].removeprefix('config.').removesuffix('.NAME')
    first = dotted.partition('.')[0]
    if dotted.endswith(DATA):
      return True
    if first not in _roots():
      return first[0].islower() or first in FOREIGN
    free = (key[:-1] for key in _keys() if key.endswith('.*'))
    return dotted in _names() or dotted.startswith(tuple(free))
  if match := _WORD.match(name):
    return match[1] in _words() | FOREIGN
  return True


@functools.cache
def _keys() -> list[str]:
  """Every key of a config; `data.extras.*` has names of the user's below it."""
  blocks = [b for b in config_keys.BLOCKS if b != 'renamed']
  return [k for b in blocks for k, *_ in config_keys.list_keys(b)]


@functools.cache
def _trees() -> dict[str, ast.Module]:
  """Dotted path of a module -> its syntax tree."""
  return {
    str(path.relative_to(ROOT).with_suffix(''))
    .removesuffix('/__init__')
    .replace('/', '.'): ast.parse(path.read_text())
    for package in ('genrec_jax', 'pallas_kernels')
    for path in (ROOT / package).rglob('*.py')
  }


@functools.cache
def _roots() -> set[str]:
  """What a dotted name of this project begins with."""
  sections = {key.partition('.')[0] for key in _keys() if '.' in key}
  classes = {node.name for tree in _trees().values() for node in _classes(tree)}
  return {'config'} | sections | _modules() | classes


def _modules() -> set[str]:
  return {part for module in _trees() for part in module.split('.')}


@functools.cache
def _names() -> set[str]:
  """Keys and their sections, and names of the code from each of their dots."""
  names = {key[:dot] for key in _keys() for dot in _find_dots(f'{key}.')}
  names |= {key[dot + 1 :] for key in _keys() for dot in _find_dots(key)}
  for module, tree in _trees().items():
    own = {name for node in tree.body for name in _list_names(node)}
    for node in _classes(tree):
      inner = {name for child in ast.walk(node) for name in _list_names(child)}
      # Documents write `histories.extras` for a `histories.Histories`, too.
      own |= inner | {f'{node.name}.{name}' for name in inner}
    for full in (module, *(f'{module}.{name}' for name in own)):
      names |= {full, *(full[dot + 1 :] for dot in _find_dots(full))}
  return names


def _find_dots(text: str) -> list[int]:
  return [i for i, letter in enumerate(text) if letter == '.']


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
  return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _list_names(node: ast.AST) -> list[str]:
  """The names that a statement gives, attributes of `self` included."""
  match node:
    case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
      return [name]
    case ast.Import(names=names) | ast.ImportFrom(names=names):
      return [alias.asname or alias.name for alias in names]
    case ast.Assign(targets=targets):
      nodes = [node for target in targets for node in ast.walk(target)]
      return [getattr(n, 'id', None) or getattr(n, 'attr', '') for n in nodes]
    case ast.AnnAssign(target=target):
      return [getattr(target, 'id', None) or getattr(target, 'attr', '')]
    case ast.If(body=body):  # imports for type checkers
      return [name for child in body for name in _list_names(child)]
  return []


@functools.cache
def _files() -> list[pathlib.Path]:
  folders = ('genrec_jax', 'pallas_kernels', 'benchmarks', 'configs')
  folders += ('docs', 'examples', 'tests')
  below = (path for folder in folders for path in (ROOT / folder).rglob('*.*'))
  return [*ROOT.glob('*.md'), *below]


@functools.cache
def _words() -> set[str]:
  here = pathlib.Path(__file__)
  files = [
    p for p in _files() if p.suffix in ('.py', '.h', '.cc') and p != here
  ]
  return {word for p in files for word in re.findall(r'\w+', p.read_text())}
