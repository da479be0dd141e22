"""Files, functions, names and docstrings of a package, for code_shape."""

import ast
import math
import re
from collections.abc import Iterator, Sequence

from benchmarks.code_shape_clones import measure_clones
from benchmarks.code_shape_imports import measure_imports
from benchmarks.code_shape_source import Source, documented

LONG_FILE = 500  # lines
SEVERAL = 3  # parameters, from which on they want a sentence each
_ARGS = re.compile(r'^\W*(Args|Arguments|Parameters|Params)\W*$|^\s*:param ')
_EXAMPLE = re.compile(r'^\s*>>> ', re.MULTILINE)
_BLOCK = re.compile(r'^\s*(```|\.\. code|(?!\.\.)\S.*::$)', re.MULTILINE)
_WORD = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^A-Za-z_]+')
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(sources: Sequence[Source], of_tests: bool = False) -> dict:
  """All measures of a package, as a row.

  Args:
    sources: the files of the package.
    of_tests: leave out what tests have no use for: public names, docstrings,
      types.
  """
  row = _measure_lines(sources) | _measure_functions(sources)
  if not of_tests:
    row |= _measure_public(sources)
  return row | measure_imports(sources) | measure_clones(sources)


def rank(values: Sequence[int], share: float) -> int:
  """The smallest value that at least `share` of all do not exceed.

  >>> rank([4, 1, 3, 2], 0.5), rank([4, 1, 3, 2], 0.9)
  (2, 4)
  """
  return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def words_of(name: str) -> list[str]:
  """Words of a name.

  >>> words_of('_read_rows'), words_of('addHTTPServer'), words_of('relu2')
  (['read', 'rows'], ['add', 'HTTP', 'Server'], ['relu', '2'])
  """
  return _WORD.findall(name)


def _measure_lines(sources: Sequence[Source]) -> dict:
  lines = [source.lines for source in sources]
  code = sum(len(s.code) for s in sources)
  commented = sum(len(s.comments) for s in sources)
  alone = sum(len(s.comments - s.code) for s in sources)
  return {
    'files': len(sources),
    'lines': sum(lines),
    'code_lines': code,
    'comment_lines': alone,
    'docstring_lines': sum(len(s.docstrings) for s in sources),
    'comment_share': commented / (code + alone),
    'file_p50': rank(lines, 0.5),
    'file_p90': rank(lines, 0.9),
    'file_max': max(lines),
    'long_files': sum(n > LONG_FILE for n in lines),
  }


def _measure_functions(sources: Sequence[Source]) -> dict:
  functions = [node for s in sources for node in _functions(s.tree)]
  # A name with two underscores on both sides is Python's choice.
  names = [f.name.strip('_') for f in functions if not _is_special(f.name)]
  lengths = [f.end_lineno - f.lineno + 1 for f in functions]
  if not names:
    return {'functions': len(functions)}
  return {
    'functions': len(functions),
    'function_p50': rank(lengths, 0.5),
    'function_p90': rank(lengths, 0.9),
    'function_max': max(lengths),
    'one_word_share': sum(len(words_of(n)) < 2 for n in names) / len(names),
    'name_p50': rank([len(name) for name in names], 0.5),
  }


def _measure_public(sources: Sequence[Source]) -> dict:
  names = [len(_public_names(s.tree)) for s in sources]
  texts = {n: t for s in sources for n, t in documented(s.tree)}
  public = [node for s in sources for node in _public(s.tree)]
  several = [
    node
    for node in public
    if isinstance(node, _Function) and len(_parameters(node)) >= SEVERAL
  ]
  explained = sum(
    any(map(_ARGS.match, texts.get(node, '').splitlines())) for node in several
  )
  parameters = [
    p for s in sources for f in _functions(s.tree) for p in _parameters(f)
  ]
  lengths = [len(texts[n].splitlines()) for n in public if n in texts]
  row = {
    'public_p50': rank(names, 0.5),
    'public_p90': rank(names, 0.9),
    'public': len(public),
    'several': len(several),
    'examples': sum(bool(_EXAMPLE.search(t)) for t in texts.values()),
    'blocks': sum(bool(_BLOCK.search(t)) for t in texts.values()),
  }
  if public:
    row['documented_share'] = len(lengths) / len(public)
  if lengths:
    row['docstring_p50'] = rank(lengths, 0.5)
  if several:
    row['args_share'] = explained / len(several)
  if parameters:
    typed = sum(p.annotation is not None for p in parameters)
    row['typed_share'] = typed / len(parameters)
  return row


def _functions(tree: ast.AST) -> Iterator[_Function]:
  return (node for node in ast.walk(tree) if isinstance(node, _Function))


def _public(node: ast.AST) -> Iterator[ast.AST]:
  """Public classes and functions, and the public methods of the former."""
  for child in _top(node.body):
    if isinstance(child, ast.ClassDef | _Function) and child.name[0] != '_':
      yield child
      if isinstance(child, ast.ClassDef):
        yield from _public(child)


def _public_names(tree: ast.Module) -> set[str]:
  """Names without an underscore that a file defines at its top level."""
  names = set()
  for node in _top(tree.body):
    if isinstance(node, ast.ClassDef | _Function):
      names.add(node.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      names |= {
        n.id
        for target in targets
        for n in ast.walk(target)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
      }
  return {name for name in names if name[0] != '_'}


def _top(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
  """Statements of a body, also those under `if` and `try`."""
  for node in body:
    yield node
    if isinstance(node, ast.If | ast.Try):
      yield from _top(node.body)
      yield from _top(node.orelse)


def _parameters(function: _Function) -> list[ast.arg]:
  """Parameters but for `self`, `cls`, `*args` and `**kwargs`."""
  a = function.args
  every = [*a.posonlyargs, *a.args, *a.kwonlyargs]
  return every[every[:1] != [] and every[0].arg in ('self', 'cls') :]


def _is_special(name: str) -> bool:
  return name.startswith('__') and name.endswith('__')
