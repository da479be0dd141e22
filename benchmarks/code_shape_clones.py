"""Runs of statements that stand twice in a package, for code_shape."""

import builtins
import collections
import dataclasses
import itertools
import keyword
import tokenize
from collections.abc import Sequence

from benchmarks.code_shape_source import Source

STATEMENTS = 6  # in a run
SHAPES = 4  # different ones among them: a list of fields is not a clone
_KEPT = frozenset((*keyword.kwlist, *dir(builtins), 'self', 'cls'))
_LITERALS = {
  tokenize.NUMBER: '0',
  tokenize.STRING: "''",
  getattr(tokenize, 'FSTRING_MIDDLE', None): "''",  # from Python 3.12 on
}


@dataclasses.dataclass(frozen=True)
class Clone:
  """A run of statements and its double; lines are counted from 1."""

  path: str
  first: int
  last: int
  other_path: str
  other_first: int
  other_last: int


@dataclasses.dataclass(frozen=True)
class _Statement:
  file: int
  number: int  # within the file, imports left out
  first: int  # line
  last: int
  shape: tuple[str, ...]  # names replaced by 'n'
  words: tuple[str, ...]  # names as they are, marked by a leading space


def find_clones(sources: Sequence[Source]) -> list[Clone]:
  """All pairs of runs that are alike, each as long as it can be.

  Two runs are alike when they differ in literals and by a renaming only: the
  same name on one side is always the same name on the other.

  Args:
    sources: of the package.

  Returns:
    The pairs, in the order of the files; those within one file do not overlap.
  """
  files = [_statements(i, source) for i, source in enumerate(sources)]
  windows = collections.defaultdict(list)
  for file in files:
    for start in range(len(file) - STATEMENTS + 1):
      window = file[start : start + STATEMENTS]
      shape = tuple(statement.shape for statement in window)
      if len({_form(statement) for statement in window}) >= SHAPES:
        windows[hash(shape)].append(window)
  # Runs that continue each other lie on one diagonal: the distance between a
  # statement and its double stays the same.
  diagonals = collections.defaultdict(set)
  for group in windows.values():
    if len(group) > 1:
      for a, b in _alike(group):
        i, j = a[0], b[0]
        if i.file != j.file or j.number - i.number >= STATEMENTS:
          diagonals[i.file, j.file, j.number - i.number].add(i.number)
  clones = []
  for (file, other, distance), starts in sorted(diagonals.items()):
    for first, last in _runs(starts):
      a, b = files[file][first : last + 1], files[other]
      b = b[first + distance : last + distance + 1]
      clones.append(
        Clone(
          sources[file].path,
          a[0].first,
          a[-1].last,
          sources[other].path,
          b[0].first,
          b[-1].last,
        )  # fmt: skip
      )
  return clones


def measure_clones(sources: Sequence[Source]) -> dict:
  """How many pairs there are, and how many lines of code stand in one."""
  code = {source.path: source.code for source in sources}
  lines = set()
  clones = find_clones(sources)
  for c in clones:
    lines |= {(c.path, n) for n in range(c.first, c.last + 1)}
    lines |= {(c.other_path, n) for n in range(c.other_first, c.other_last + 1)}
  cloned = sum(number in code[path] for path, number in lines)
  return {
    'clone_pairs': len(clones),
    'clone_lines': cloned,
    'clone_share': cloned / sum(map(len, code.values())),
  }


def _statements(file: int, source: Source) -> list[_Statement]:
  statements = []
  for tokens in source.statements:
    if tokens[0].string in ('import', 'from'):
      continue
    words, shape, before = [], [], ''
    for token in tokens:
      word = _LITERALS.get(token.type, token.string)
      # A name after a dot is an attribute's, which a renaming leaves alone.
      named = token.type == tokenize.NAME and before != '.'
      named = named and word not in _KEPT
      words.append(f' {word}' if named else word)
      shape.append('n' if named else word)
      before = word
    statements.append(
      _Statement(
        file,
        len(statements),
        tokens[0].start[0],
        tokens[-1].end[0],
        tuple(shape),
        tuple(words),
      )
    )
  return statements


def _form(statement: _Statement) -> tuple[str, ...]:
  # All fields are of one form, whatever their types.
  return ('field',) if statement.shape[:2] == ('n', ':') else statement.shape


def _alike(windows: Sequence[Sequence[_Statement]]) -> list[tuple]:
  """Pairs of windows with the same words but for a renaming."""
  groups = collections.defaultdict(list)
  for window in windows:
    numbers, words = {}, []
    for word in itertools.chain.from_iterable(s.words for s in window):
      if word.startswith(' '):
        word = numbers.setdefault(word, len(numbers))
      words.append(word)
    groups[tuple(words)].append(window)
  return [
    pair for g in groups.values() for pair in itertools.combinations(g, 2)
  ]


def _runs(starts: set[int]) -> list[tuple[int, int]]:
  """First and last statements of windows that follow each other."""
  runs = []
  for start in sorted(starts):
    if runs and start == runs[-1][1] - STATEMENTS + 2:
      runs[-1][1] = start + STATEMENTS - 1
    else:
      runs.append([start, start + STATEMENTS - 1])
  return [tuple(run) for run in runs]
