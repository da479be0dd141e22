"""Writes the tables of docs/config_reference.md from the code.

  python -m docs.config_keys           # rewrites the page
  python -m docs.config_keys --check   # exit status 1 when it is out of date

The page says where the keys of a section go:

  <!-- config:train -->
  <!-- /config -->

What stands between the two lines is generated. A key, its default and its
sentence are declared once: in genrec_jax/config/, where the sentence is the
comment above or behind the key, or, for the fields of models and losses and for
options of data sets (models.py, request_models.py, losses.py, request_sets.py
there), in the docstring of their class. The source is
read and not imported, but for the rules of the values, in key_rules.py there,
and for the names of the models.
"""

import argparse
import ast
import io
import pathlib
import re
import sys
import tokenize

from genrec_jax.config.key_rules import find_rule
from genrec_jax.config.sections import MODEL_CLASSES

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'config_reference.md'
PACKAGE = ROOT / 'genrec_jax'

# The blocks of the page: 'retrieval.data' is the section `data` of what the
# function `retrieval` in config/retrieval.py returns, and 'retrieval' are its
# keys outside of all sections.
SHARED = (
  'optimizer',
  'train',
  'checkpoint',
  'numerics',
  'parallel',
  'compile_cache',
)
RETRIEVAL = ('data', 'split', 'loss', 'eval', 'predict', 'report')
RANKING = ('data', 'loss', 'distill', 'search', 'eval', 'predict', 'report')
# Data set of requests -> the class of its options in config/request_sets.py.
REQUEST_SETS = {
  'streaming': 'StreamOptions',
  'movielens': 'MovielensOptions',
  'kuairand': 'KuairandOptions',
  'yambda': 'YambdaOptions',
  'log': 'LogOptions',
}
MODELS = {  # name -> its class
  name: made.__name__ for name, made in MODEL_CLASSES.items()
}
BLOCKS = (
  'retrieval',
  *(f'retrieval.{section}' for section in RETRIEVAL),
  'ranking',
  *(f'ranking.{section}' for section in RANKING),
  'request_ranking',
  *(
    f'request_ranking.{section}'
    for section in (*RANKING, *REQUEST_SETS)
    if section not in ('distill', 'search')
  ),
  *SHARED,
  *MODELS,
  'pooled',  # what ranking models have in addition where they rank requests
  'renamed',
)

_SHARED_FIELDS = {'Towers': 'model_fields'}  # class -> its file
_LOSSES = {
  'retrieval': 'RetrievalLossConfig',
  'ranking': 'RankingLossConfig',
  'request_ranking': 'RequestLossConfig',
}
# Kind of task -> how a sentence names it that tells of another default.
_OTHERS = {'ranking': 'in ranking', 'request_ranking': 'with requests'}
_MARKED = re.compile(
  r'^<!-- config:(?P<name>\S+) -->\n(?P<body>.*?)^<!-- /config -->$',
  re.MULTILINE | re.DOTALL,
)
_TYPED = re.compile(r'(int|float|str): (.*)', re.DOTALL)


def main(argv: list[str] | None = None) -> int:
  """Writes or, with --check, compares the page; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m docs.config_keys',
    description=__doc__.partition('\n')[0],
  )
  parser.add_argument(
    '--check', action='store_true', help='write nothing; exit 1 if needed'
  )
  check = parser.parse_args(argv).check
  old = PAGE.read_text()
  try:
    new = fill_page(old)
  except ValueError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  if new == old:
    return 0
  if not check:
    PAGE.write_text(new)
  print(f'docs/config_reference.md: {"out of date" if check else "written"}')
  return int(check)


def fill_page(text: str) -> str:
  """Returns the page with the table of each of its blocks.

  Args:
    text: the page.

  Raises:
    ValueError: a key has no sentence, or the page lacks a block.
  """
  names = [match['name'] for match in _MARKED.finditer(text)]
  if sorted(names) != sorted(BLOCKS):
    differing = ', '.join(sorted(set(names) ^ set(BLOCKS)))
    raise ValueError(f'docs/config_reference.md and BLOCKS differ: {differing}')
  return _MARKED.sub(
    lambda match: (
      f'<!-- config:{match["name"]} -->\n'
      f'{render_block(match["name"])}<!-- /config -->'
    ),
    text,
  )


def render_block(name: str) -> str:
  """Returns the table of a block: key, type, default and sentence."""
  if name == 'renamed':
    return _render_renamed()
  lines = [
    '| key | type | range | default | meaning |\n',
    '|---|---|---|---|---|\n',
  ]
  task = name.partition('.')[0]
  task = task if task in _LOSSES else 'retrieval'
  for key, kind, default, sentence in list_keys(name):
    rule = find_rule(key, task)
    bounds = rule.describe_bounds() if rule and default else ''
    cells = (f'`{key}`', kind, bounds, default and f'`{default}`', sentence)
    lines.append(
      f'| {" | ".join(c.replace("|", chr(92) + "|") for c in cells)}'
    )
    lines[-1] += ' |\n'
  return ''.join(lines)


def _render_renamed() -> str:
  """The table of former names."""
  for node in ast.parse((PACKAGE / 'config' / 'renamed.py').read_text()).body:
    if isinstance(node, ast.AnnAssign) and node.target.id == 'RENAMED':
      renamed = ast.literal_eval(node.value)
  lines = ['| former name | name now | until version |\n', '|---|---|---|\n']
  for old, (new, values, until) in renamed.items():
    pairs = [(f'{old}={a}', f'{new}={b}') for a, b in values.items()]
    for former, now in pairs or [(old, new)]:
      lines.append(f'| `{former}` | `{now}` | {until} |\n')
  return ''.join(lines)


def list_keys(name: str) -> list[tuple[str, str, str, str]]:
  """Returns (key, type, default, sentence) of the keys of a block.

  A section within the block has a line of its own, without a default.
  """
  task, _, section = name.partition('.')
  if name in MODELS:
    chosen = _as_sentence(
      'model.name', 'The model; see docs/training.md#models-by-name'
    )
    file = MODEL_CLASSES[name].__module__.rpartition('.')[2]
    fields = _read_class(file, MODELS[name], 'model.')
    if file == 'request_models':  # of which the data say the sizes
      fields = [f for f in fields if not f[0].startswith('model.max_')]
    return [('model.name', 'str', repr(name), chosen), *fields]
  if name == 'pooled':
    return _read_class('request_models', 'PooledRequests', 'model.history.')
  if section in REQUEST_SETS:
    options = REQUEST_SETS[section]
    return _read_class('request_sets', options, f'data.{section}.')
  if section == 'loss':
    return _read_class('losses', _LOSSES[task], 'loss.')
  if section == 'search':
    rows = _read_function('search_section', section)
    return [_typed(f'{section}.{key}', *row) for key, *row in rows]
  if name in SHARED:
    rows = _read_function('sections', name)
    rows = [_typed(f'{name}.{key}', *row) for key, *row in rows]
    return [_tell_others(name, row) for row in rows]
  rows = _read_function(task, task)
  if not section:
    sections = ('model', 'distill', *SHARED, *RETRIEVAL)
    own = [row for row in rows if row[0].partition('.')[0] not in sections]
    return [_typed(*row) for row in own]
  return [_typed(*row) for row in rows if row[0].startswith(f'{section}.')]


def _typed(key: str, default, sentence: str) -> tuple[str, str, str, str]:
  if default is _SECTION:
    return f'{key}.*', '', '', _as_sentence(key, sentence)
  kind = type(default).__name__
  if default is None:
    typed = _TYPED.fullmatch(sentence)
    if not typed:
      raise ValueError(
        f'{key} is None by default: its comment must begin with the type of a'
        f" value, as in 'float: ...', and not {sentence!r}."
      )
    kind, sentence = f'{typed[1]} or None', typed[2]
  return key, kind, repr(default), _as_sentence(key, sentence)


def _as_sentence(key: str, text: str) -> str:
  """`text` as Markdown: a capital, a full stop, code and links."""
  if not text:
    raise ValueError(f'The config key {key} has no sentence.')
  text = text[0].upper() + text[1:]
  text = re.sub(r"(?<![\w=`])'([\w./*:-]*)'", r'`\1`', text).replace(
    '``', "`''`"
  )
  text = re.sub(
    r'docs/(\w+\.md)(#[\w-]+)?',
    lambda match: f'[{match[1]}]({match[1]}{match[2] or ""})',
    text,
  )
  return text if text.endswith('.') else f'{text}.'


_SECTION = object()  # in place of a default


def _read_function(file: str, function: str) -> list[tuple]:
  """(dotted key, default, comment) of what a function of config/ returns."""
  path = PACKAGE / 'config' / f'{file}.py'
  source = path.read_text()
  comments = _Comments(source)
  for node in ast.parse(source).body:
    if isinstance(node, ast.FunctionDef) and node.name == function:
      # ConfigDict(DICT) or section(DICT, fields)
      return list(_walk(node.body[-1].value.args[0], '', comments))
  raise ValueError(f'{path} has no function {function!r}.')


def _walk(node: ast.expr, prefix: str, comments: '_Comments'):
  """The keys of {...} or dict(...), and of those within it."""
  for key, line, value in _items(node):
    comment = comments.of(line)
    if isinstance(value, ast.Dict) and value.keys or _is_dict_call(value):
      # Sections without a comment need no line: their keys say it.
      if comment and not comment.startswith('See '):
        yield prefix + key, _SECTION, comment
      yield from _walk(value, f'{prefix}{key}.', comments)
    elif not isinstance(value, ast.Call):  # such as sections.train()
      yield prefix + key, ast.literal_eval(value), comment


def _is_dict_call(node: ast.expr) -> bool:
  return isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict'


def _items(node: ast.expr):
  """(key, line, value) of {...} or dict(...)."""
  if isinstance(node, ast.Dict):
    for key, value in zip(node.keys, node.values, strict=True):
      yield key.value, key.lineno, value
  else:
    for keyword in node.keywords:
      yield keyword.arg, keyword.lineno, keyword.value


def _tell_others(section: str, row: tuple) -> tuple:
  """A row of a shared section with the defaults of other kinds of tasks."""
  key, kind, default, sentence = row
  others = {}  # default -> where
  for task, where in _OTHERS.items():
    value = _find_defaults(task, section).get(key, default)
    if value != default:
      others.setdefault(value, []).append(where)
  for value, places in others.items():
    where = ' and '.join(places)
    sentence += f' {where[0].upper()}{where[1:]} the default is `{value}`.'
  return key, kind, default, sentence


def _find_defaults(task: str, section: str) -> dict[str, str]:
  """Dotted keys of a shared section that a task gives a default of its own."""
  source = (PACKAGE / 'config' / f'{task}.py').read_text()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Call):
      if ast.unparse(node.func) == f'sections.{section}':
        return {
          f'{section}.{keyword.arg}': repr(ast.literal_eval(keyword.value))
          for keyword in node.keywords
        }
  return {}


class _Comments:
  """The comments of a file, found by the line of what they explain."""

  def __init__(self, source: str):
    self._behind = {}
    self._alone = {}
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
      if token.type == tokenize.COMMENT:
        row, column = token.start
        alone = not lines[row - 1][:column].strip()
        into = self._alone if alone else self._behind
        into[row] = token.string.removeprefix('#').strip()

  def of(self, line: int) -> str:
    """The comment behind `line`, or the lines of comment above it."""
    if line in self._behind:
      return self._behind[line]
    above = []
    while line - 1 in self._alone:
      line -= 1
      above.append(self._alone[line])
    return ' '.join(reversed(above))


def _read_class(file: str, name: str, prefix: str) -> list[tuple]:
  """(key, type, default, sentence) of the fields of a class of config/.

  Those of its base class, in the same file or of `_SHARED_FIELDS`, come first.
  """
  path = PACKAGE / 'config' / f'{file}.py'
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.ClassDef) and node.name == name:
      _, _, attributes = ast.get_docstring(node).partition('Attributes:\n')
      sentences = {
        match[1]: ' '.join(match[2].split())
        for match in re.finditer(
          r'^  (\w+): (.*?)(?=^  \w|\Z)', attributes, re.MULTILINE | re.DOTALL
        )
      }
      inherited = [
        _read_class(_SHARED_FIELDS.get(base.id, file), base.id, prefix)
        for base in node.bases
      ]
      return sum(inherited, []) + [
        (
          (key := f'{prefix}{field.target.id}'),
          ast.unparse(field.annotation).replace(' | ', ' or '),
          _read_default(field.value),
          _as_sentence(key, sentences.get(field.target.id, '')),
        )
        for field in node.body
        if isinstance(field, ast.AnnAssign)
      ]
  raise ValueError(f'{path} has no class {name!r}.')


def _read_default(value: ast.expr) -> str:
  if ast.unparse(value) == 'dataclasses.field(default_factory=dict)':
    return '{}'
  return repr(ast.literal_eval(value))


if __name__ == '__main__':
  sys.exit(main())
