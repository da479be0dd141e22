"""Which small mistakes can be made in a source file: the sites of mutations.

A mutation replaces a piece of the text, so that all other lines keep their
numbers and their form. Left alone are annotations, decorators, docstrings, the
texts of errors, and what only writes a log.
"""

import ast
import dataclasses
import difflib
import re
from collections.abc import Iterator

ARITHMETIC = {
  ast.Add: ('+', '-'),
  ast.Sub: ('-', '+'),
  ast.Mult: ('*', '/'),
  ast.Div: ('/', '*'),
  ast.FloorDiv: ('//', '/'),
  ast.Mod: ('%', '//'),
  ast.Pow: ('**', '*'),
  ast.BitAnd: ('&', '|'),
  ast.BitOr: ('|', '&'),
  ast.LShift: ('<<', '>>'),
  ast.RShift: ('>>', '<<'),
}
COMPARISONS = {
  ast.Lt: ('<', '<='),
  ast.LtE: ('<=', '<'),
  ast.Gt: ('>', '>='),
  ast.GtE: ('>=', '>'),
  ast.Eq: ('==', '!='),
  ast.NotEq: ('!=', '=='),
  ast.In: ('in', 'not in'),
  ast.NotIn: ('not in', 'in'),
  ast.Is: ('is', 'is not'),
  ast.IsNot: ('is not', 'is'),
}
LOGIC = {ast.And: ('and', 'or'), ast.Or: ('or', 'and')}
# The arguments of `min` commute: what is exchanged there is the function.
OPPOSITES = {
  'min': 'max',
  'max': 'min',
  'minimum': 'maximum',
  'maximum': 'minimum',
  'argmin': 'argmax',
  'argmax': 'argmin',
}
LOGGERS = ('LOG', 'log', 'logging', 'warnings', 'print')
KINDS = (
  'arithmetic', 'comparison', 'logic', 'constant', 'not', 'arguments',
  'statement', 'bool', 'keyword', 'return',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutation:
  """One mistake at one place.

  Attributes:
    file: path below the root, with slashes.
    kind: one of `KINDS`.
    start: offset in bytes of what is replaced.
    end: offset behind it.
    text: what stands there instead.
    lines: first and last line of the mutated expression.
    within: first and last line of the statement (or head of one) around it.
    imported: whether importing the file runs it, rather than a call.
  """

  file: str
  kind: str
  start: int
  end: int
  text: str
  lines: tuple[int, int]
  within: tuple[int, int]
  imported: bool

  def apply(self, source: str) -> str:
    """The mutated source."""
    data = source.encode()
    return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

  def diff(self, source: str) -> str:
    """The lines that change, '- old' before '+ new', without their indent."""
    changed = difflib.unified_diff(
      source.splitlines(), self.apply(source).splitlines(), n=0, lineterm=''
    )
    lines = [line for line in list(changed)[2:] if line[0] in '-+']
    return '\n'.join(f'{line[0]} {line[1:].strip()}' for line in lines)


def find(file: str, source: str) -> list[Mutation]:
  """Every mutation of a file, in the order of the text.

  Args:
    file: path below the root.
    source: its text.

  Returns:
    Mutations, without repeats.

  >>> [m.diff('x = min(a, 2)') for m in find('a.py', 'x = min(a, 2)')]
  ['- x = min(a, 2)\\n+ x = max(a, 2)', '- x = min(a, 2)\\n+ x = min(a, 3)']
  """
  found = {}
  for mutation in _Finder(file, source).walk():
    found.setdefault((mutation.start, mutation.end, mutation.text), mutation)
  return sorted(found.values(), key=lambda m: (m.start, m.end, m.text))


class _Finder:
  """Walks the statements of a file, and the expressions of each."""

  def __init__(self, file: str, source: str):
    self._file, self._tree = file, ast.parse(source)
    self._data = source.encode()
    starts, at = [0], 0
    for line in source.splitlines(keepends=True):
      at += len(line.encode())
      starts.append(at)
    self._starts = starts  # of the lines, in bytes
    self._within = (1, 1)
    self._functions = 0  # around the statement

  def walk(self) -> Iterator[Mutation]:
    yield from self._body(self._tree.body)

  def _body(self, statements) -> Iterator[Mutation]:
    for statement in statements:
      yield from self._statement(statement)

  def _statement(self, node: ast.stmt) -> Iterator[Mutation]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
      return  # a docstring
    blocks = [
      getattr(node, name, [])
      for name in ('body', 'handlers', 'orelse', 'finalbody')
    ]
    inner = [s for block in blocks for s in block]
    # The head of a loop or of a condition is what stands above its body.
    last = min((s.lineno - 1 for s in inner), default=node.end_lineno)
    self._within = (node.lineno, max(node.lineno, last))
    yield from self._whole(node)
    if not isinstance(node, ast.Raise):  # whose text nobody need repeat
      for expression in _expressions(node):
        yield from self._expression(expression)
    function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    self._functions += function
    for child in inner:
      if isinstance(child, ast.ExceptHandler):
        yield from self._body(child.body)
      else:
        yield from self._statement(child)
    self._functions -= function

  def _whole(self, node: ast.stmt) -> Iterator[Mutation]:
    """Statements that are left out, and returns of nothing."""
    removed = isinstance(node, (ast.AugAssign, ast.Raise))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
      removed = not _logs(node.value)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
      # `x = f(x)`: without it x is what it was.
      name = ast.unparse(node.targets[0])
      reads = (ast.Name, ast.Attribute, ast.Subscript)
      removed = any(
        isinstance(n, reads) and ast.unparse(n) == name
        for n in ast.walk(node.value)
      )
    if removed:
      yield self._replace('statement', node, 'pass')
    if isinstance(node, ast.AugAssign):
      yield from self._operator(
        'arithmetic', ARITHMETIC, node.op, node, node.target, node.value
      )
    if isinstance(node, ast.Return) and not _is_none(node.value):
      yield self._replace('return', node.value, 'None')

  def _expression(self, node: ast.expr) -> Iterator[Mutation]:
    if isinstance(node, ast.JoinedStr):
      return
    if isinstance(node, ast.Call) and _logs(node):
      return
    if isinstance(node, ast.BinOp) and not (_text(node.left, node.right)):
      yield from self._operator(
        'arithmetic', ARITHMETIC, node.op, node, node.left, node.right
      )
    elif isinstance(node, ast.Compare):
      sides = [node.left, *node.comparators]
      for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
        yield from self._operator(
          'comparison', COMPARISONS, op, node, left, right
        )
    elif isinstance(node, ast.BoolOp):
      for left, right in zip(node.values, node.values[1:], strict=False):
        yield from self._operator('logic', LOGIC, node.op, node, left, right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
      yield self._replace('not', node, self._source(node.operand))
    elif isinstance(node, ast.Constant):
      yield from self._constant(node)
    elif isinstance(node, ast.Call):
      yield from self._call(node)
    for child in ast.iter_child_nodes(node):
      if isinstance(child, ast.expr):
        yield from self._expression(child)
      elif isinstance(child, (ast.keyword, ast.comprehension, ast.arguments)):
        for below in _expressions(child):
          yield from self._expression(below)

  def _constant(self, node: ast.Constant) -> Iterator[Mutation]:
    value = node.value
    if isinstance(value, bool):
      yield self._replace('bool', node, str(not value))
    elif isinstance(value, int):
      yield self._replace('constant', node, str(value + 1))
    elif isinstance(value, float):
      changed = 2 * value if value and value * 2 != value else value + 1
      yield self._replace('constant', node, repr(changed))

  def _call(self, node: ast.Call) -> Iterator[Mutation]:
    function = node.func
    name = getattr(function, 'attr', getattr(function, 'id', ''))
    if name in OPPOSITES:
      start, end = self._span(function)
      text = self._data[start:end].decode().removesuffix(name)
      yield self._at('arguments', node, start, end, text + OPPOSITES[name])
    if name in ('where', 'select') and len(node.args) == 3:
      _, first, second = node.args
      between = self._data[self._span(first)[1] : self._span(second)[0]]
      yield self._at(
        'arguments',
        node,
        self._span(first)[0],
        self._span(second)[1],
        self._source(second) + between.decode() + self._source(first),
      )
    arguments = sorted(
      [*node.args, *node.keywords], key=lambda a: self._span(a)[0]
    )
    for number, keyword in enumerate(arguments):
      if isinstance(keyword, ast.keyword) and keyword.arg:
        start, end = self._span(keyword)
        if number + 1 < len(arguments):
          end = self._span(arguments[number + 1])[0]
        elif number:
          start = self._span(arguments[number - 1])[1]
        yield self._at('keyword', keyword, start, end, '')

  def _operator(self, kind, names, op, node, left, right) -> Iterator[Mutation]:
    """The operator between two expressions, with its opposite."""
    if type(op) not in names:
      return
    old, new = names[type(op)]
    start, end = self._span(left)[1], self._span(right)[0]
    gap = self._data[start:end].decode()
    words = r'\s+'.join(map(re.escape, old.split()))
    match = re.search(rf'\b{words}\b' if old[0].isalpha() else words, gap)
    if match and '#' not in gap:
      at = start + len(gap[: match.start()].encode())
      yield self._at(kind, node, at, at + len(match[0].encode()), new)

  def _replace(self, kind: str, node, text: str) -> Mutation:
    return self._at(kind, node, *self._span(node), text)

  def _at(self, kind: str, node, start: int, end: int, text: str) -> Mutation:
    lines = (node.lineno, node.end_lineno)
    return Mutation(
      self._file,
      kind,
      start,
      end,
      text,
      lines,
      self._within,
      not self._functions,
    )

  def _span(self, node) -> tuple[int, int]:
    """Offsets of a node in bytes, which is what its columns count."""
    return (
      self._starts[node.lineno - 1] + node.col_offset,
      self._starts[node.end_lineno - 1] + node.end_col_offset,
    )

  def _source(self, node) -> str:
    start, end = self._span(node)
    return self._data[start:end].decode()


def _expressions(node) -> Iterator[ast.expr]:
  """What a node computes itself: no statements below it, no annotations."""
  skipped = ('annotation', 'returns', 'decorator_list', 'bases', 'type_params')
  for name, value in ast.iter_fields(node):
    if name in skipped or isinstance(node, ast.Assert) and name == 'msg':
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.expr):
        yield child
      elif isinstance(child, (ast.arguments, ast.withitem, ast.keyword)):
        yield from _expressions(child)


def _logs(call: ast.Call) -> bool:
  root = call.func
  while isinstance(root, ast.Attribute):
    root = root.value
  return isinstance(root, ast.Name) and root.id in LOGGERS


def _text(*nodes) -> bool:
  """Whether strings are joined or formatted."""
  return any(
    isinstance(n, ast.JoinedStr)
    or isinstance(n, ast.Constant)
    and isinstance(n.value, (str, bytes))
    for n in nodes
  )


def _is_none(node) -> bool:
  return node is None or isinstance(node, ast.Constant) and node.value is None
