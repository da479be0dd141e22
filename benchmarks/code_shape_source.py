"""Reads Python files for code_shape: their statements and kinds of lines."""

import ast
import dataclasses
import io
import pathlib
import re
import tokenize
from collections.abc import Sequence

from benchmarks import cli

# Tokens that are not code. NEWLINE ends a statement on a line of code anyway.
_LAYOUT = (
  tokenize.NL,
  tokenize.NEWLINE,
  tokenize.INDENT,
  tokenize.DEDENT,
  tokenize.ENCODING,
  tokenize.ENDMARKER,
)
_LICENCE = re.compile(r'copyright|licen[cs]e|spdx', re.IGNORECASE)
# What a comment says to a program alone: to a linter, a type checker, a shell.
_DIRECTIVE = re.compile(
  r'#!|#\s*(-\*-|coding[:=]|noqa|type:|fmt:|isort:|ruff:|flake8|pylint:|pytype:'
  r'|pyre-|pyformat:|pyright:|mypy:|yapf:|nosec|pragma:)'
)
_TEST_FILE = re.compile(r'(test_.*|.*_test|tests|conftest)\.py')
_TEST_FOLDERS = frozenset(('test', 'tests'))


@dataclasses.dataclass(frozen=True)
class Source:
  """One file."""

  module: str  # its whole name: 'package.folder.file'
  path: str  # below the folder that holds the package
  is_package: bool  # an __init__.py, whose module is its folder's
  tree: ast.Module
  statements: list[list[tokenize.TokenInfo]]
  lines: int  # all of them but those of the licence
  code: frozenset[int]  # numbers of lines, as the next two
  comments: frozenset[int]
  docstrings: frozenset[int]


def read_package(
  folder: pathlib.Path, with_tests: bool = False
) -> tuple[list[Source], list[str]]:
  """Reads the files of a package that hold code.

  Args:
    folder: of the package; its name is the package's.
    with_tests: also `test_*.py`, `*_test.py`, `conftest.py` and what is in
      folders called `test` or `tests`.

  Returns:
    The files, in the order of their paths, and the paths of those in which
    this Python cannot parse something.
  """
  sources, unreadable = [], []
  for path in sorted(folder.rglob('*.py')):
    below = path.relative_to(folder)
    if not with_tests and _is_test(below):
      continue
    name = str(folder.name / below)
    try:
      source = read_source(path.read_text(encoding='utf-8'), name)
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
      unreadable.append(name)
      continue
    if source.code:
      sources.append(source)
  if not sources:
    cli.fail(f'{folder} holds no Python file with code in it')
  return sources, unreadable


def read_source(text: str, path: str = 'file.py') -> Source:
  """Parses one file.

  >>> source = read_source('X = 1  # why' + chr(10) + '# more')
  >>> sorted(source.code), sorted(source.comments)
  ([1], [1, 2])
  """
  tree = ast.parse(text)
  tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
  docstrings = _docstring_lines(tree)
  licence = _licence_lines(tokens)
  comments, statements = set(), [[]]
  for token in tokens:
    line = token.start[0]
    if token.type == tokenize.COMMENT:
      if line not in licence and not _DIRECTIVE.match(token.string):
        comments.add(line)
    elif token.type == tokenize.NEWLINE:
      statements.append([])
    elif token.type not in _LAYOUT and line not in docstrings:
      statements[-1].append(token)
  words = path.removesuffix('.py').split('/')
  is_package = words[-1] == '__init__'
  return Source(
    module='.'.join(words[:-1] if is_package else words),
    path=path,
    is_package=is_package,
    tree=tree,
    statements=[statement for statement in statements if statement],
    lines=len(text.splitlines()) - len(licence),
    code=frozenset(
      line
      for statement in statements
      for token in statement
      for line in range(token.start[0], token.end[0] + 1)
    ),
    comments=frozenset(comments),
    docstrings=frozenset(docstrings),
  )


def documented(tree: ast.AST) -> list[tuple[ast.AST, str]]:
  """Modules, classes and functions with a docstring, and the docstrings."""
  nodes = (
    (node, ast.get_docstring(node))
    for node in ast.walk(tree)
    if isinstance(
      node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    )
  )
  return [(node, text) for node, text in nodes if text]


def _is_test(below: pathlib.Path) -> bool:
  return bool(
    _TEST_FILE.fullmatch(below.name) or _TEST_FOLDERS & set(below.parts[:-1])
  )


def _docstring_lines(tree: ast.Module) -> set[int]:
  return {
    line
    for node, _ in documented(tree)
    for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
  }


def _licence_lines(tokens: Sequence[tokenize.TokenInfo]) -> set[int]:
  """Lines of the comments above the first statement, if they are a licence."""
  header = []
  for token in tokens:
    if token.type == tokenize.COMMENT:
      header.append(token)
    elif token.type not in _LAYOUT:
      break
  if not any(_LICENCE.search(token.string) for token in header):
    return set()
  return {token.start[0] for token in header}
