"""Tests of the measures of code, against figures counted by hand."""

import doctest
import subprocess
import sys

import pytest

from benchmarks import (
  code_shape,
  code_shape_clones,
  code_shape_imports,
  code_shape_measures,
  code_shape_source,
  result,
)

MATHS = '''\
"""Sums.

Of numbers.
"""

import os  # noqa: F401

# Why it is two.
LIMIT = 2
_HIDDEN = 3


def add(a: int, b: int, c=0):
  """Adds up.

  >>> add(1, 2)
  3

  Args:
    a: one.
  """
  # In this order.
  return a + b + c  # for rounding


def addAll(x, y, z, *rest):
  return x


class Sum:
  """A sum.

  ```
  Sum()
  ```
  """

  def __init__(self, value: int):
    self.value = value
'''
PACKAGE = {
  '__init__.py': '''\
# Copyright: nobody.
# Use it as you like.
"""A toy."""

from toy.maths import add  # for users
''',
  'maths.py': MATHS,
  'main_loop.py': '''\
from toy.deep import ui


def run_loop():
  return ui
''',
  'deep/__init__.py': '# Nothing but a comment.\n',
  'deep/ui.py': '''\
from .. import maths
from ..deep import store


def show():
  from toy import main_loop
  return maths, main_loop, store
''',
  'deep/store.py': '''\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from toy.deep.ui import show
X = Y = 1
''',
  'broken.py': 'def\n',
  'maths_test.py': 'x = 1\n',
  'conftest.py': 'x = 1\n',
  'tests/cases.py': 'x = 1\n',
}


@pytest.fixture
def toy(tmp_path):
  for name, text in PACKAGE.items():
    path = tmp_path / 'toy' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path / 'toy'


@pytest.fixture
def row(toy):
  return code_shape.shape_row('toy', toy, 'abc')


def _check(row, **expected):
  assert {key: row[key] for key in expected} == expected


def test_files_and_their_lines(row):
  # __init__ (without its licence), deep/store, deep/ui, main_loop, maths.
  _check(
    row,
    files=5,
    unreadable=['toy/broken.py'],
    lines=3 + 5 + 7 + 5 + 39,
    code_lines=1 + 4 + 5 + 3 + 10,
    comment_lines=2,
    docstring_lines=1 + 4 + 8 + 6,
    comment_share=4 / (23 + 2),
    file_p50=5,
    file_p90=39,
    file_max=39,
    long_files=0,
  )


def test_a_file_of_501_lines_is_long():
  sources = [
    code_shape_source.read_source('x = 1\n' * n, f'toy/{n}.py')
    for n in (500, 501)
  ]
  assert code_shape_measures.measure(sources)['long_files'] == 1


def test_functions_and_their_names(row):
  # add, addAll, __init__, show, run_loop; __init__ is not a chosen name.
  _check(
    row,
    functions=5,
    function_p50=2,
    function_p90=11,
    function_max=11,
    one_word_share=2 / 4,
    name_p50=4,
  )


def test_public_names_and_docstrings(row):
  # Public names a file: none; X, Y; show; run_loop; LIMIT, add, addAll, Sum.
  _check(
    row,
    public_p50=1,
    public_p90=4,
    public=5,
    documented_share=2 / 5,
    docstring_p50=5,
    several=2,
    args_share=1 / 2,
    examples=1,
    blocks=1,
    typed_share=3 / 7,
  )


@pytest.mark.parametrize(
  'text, blocks',
  [
    ('Says.\n\nExample::\n\n  f(1)', 1),
    ('Says.\n\n.. code-block:: python\n\n  f(1)', 1),
    ('Says.\n\n.. math::\n\n  x^2', 0),
    ('Says `a::b`, twice ``x``.', 0),
  ],
)
def test_blocks_of_code_in_docstrings(text, blocks):
  (source,) = _sources(f'def f():\n  {text!r}\n')
  row = code_shape_measures.measure([source])
  assert (row['blocks'], row['examples']) == (blocks, 0)


def test_imports(row):
  _check(
    row,
    fan_in=2,
    fan_in_of='toy.deep.ui',
    fan_out=3,
    fan_out_of='toy.deep.ui',
    cycles=1,
    cycles_at_import=0,
    depth=3,
  )


def test_a_circle_counts_as_one_in_the_depth():
  graph = {'a': {'b'}, 'b': {'c'}, 'c': {'b', 'd'}, 'd': set(), 'e': {'d'}}
  assert code_shape_imports.components(graph) == [
    ['d'],
    ['b', 'c'],
    ['a'],
    ['e'],
  ]
  assert code_shape_imports.import_depth(graph) == 3


def test_depth_of_many_modules_needs_no_recursion():
  chain = {str(i): {str(i + 1)} for i in range(5000)} | {'5000': set()}
  assert code_shape_imports.import_depth(chain) == 5001


RUN = """
def {name}({a}, {b}):
  if {a} > {number}:
    return {b}
  {a}.field = len({b})
  for x in {b}:
    print({a}, x, {text!r})
"""


def _sources(*texts):
  return [
    code_shape_source.read_source(text, f'toy/{i}.py')
    for i, text in enumerate(texts)
  ]


def test_a_renamed_run_is_a_double():
  first = RUN.format(name='f', a='a', b='b', number=1, text='one')
  second = RUN.format(name='g', a='u', b='v', number=2.5, text='two')
  sources = _sources('import os\n' + first, 'x = 1\n# Why.\n' + second)
  (clone,) = code_shape_clones.find_clones(sources)
  assert (clone.path, clone.first, clone.last) == ('toy/0.py', 3, 8)
  assert (clone.other_path, clone.other_first) == ('toy/1.py', 4)
  assert code_shape_clones.measure_clones(sources) == {
    'clone_pairs': 1,
    'clone_lines': 12,
    'clone_share': 12 / 14,
  }


def test_a_longer_run_is_one_pair():
  text = RUN.format(name='f', a='a', b='b', number=1, text='one')
  sources = _sources(text + '  y = a\n' + '  return y\n', text * 2)
  clones = code_shape_clones.find_clones(sources)
  found = [(c.path, c.first, c.other_path, c.other_first) for c in clones]
  assert found == [
    ('toy/0.py', 2, 'toy/1.py', 2),
    ('toy/0.py', 2, 'toy/1.py', 9),
    ('toy/1.py', 2, 'toy/1.py', 9),
  ]
  again = code_shape_clones.find_clones([*sources[:1], *sources[:1]])
  assert [(c.first, c.last) for c in again] == [(2, 9)]


@pytest.mark.parametrize(
  'old, new',
  [
    ('print(a', 'print(b'),  # the same name would stand for two
    ('.field', '.other'),
    ('len(', 'sum('),
    ('a > ', 'a < '),
    ('  a.field = len(b)\n', ''),
  ],
)
def test_what_differs_in_more_than_names_is_no_double(old, new):
  text = RUN.format(name='f', a='a', b='b', number=1, text='one')
  assert old in text
  sources = _sources(text, text.replace(old, new))
  assert not code_shape_clones.find_clones(sources)


def test_lists_are_no_doubles():
  types = ('int', 'float', 'str', 'bytes', 'list[int]', 'dict[str, int]')
  fields = ''.join(f'  f{i}: {name}\n' for i, name in enumerate(types * 2))
  imports = ''.join(f'from a.b{i} import c\n' for i in range(20))
  text = imports + 'class A:\n' + fields
  assert not code_shape_clones.find_clones(_sources(text, text))


def test_other_packages_stand_beside_ours(toy, tmp_path, rows, capsys):
  code_shape.main(
    ['--smoke', '--results', str(tmp_path), '--beside', f'theirs={toy}@abc']
  )
  measured = rows('code_shape')
  assert list(measured) == ['pallas_kernels', 'theirs']
  assert measured['theirs']['commit'] == 'abc'
  assert measured['theirs']['files'] == 5
  assert measured['pallas_kernels']['cycles'] == 0
  assert 'theirs' in capsys.readouterr().out


def test_tests_are_measured_without_what_only_a_library_has(toy):
  (toy / 'tests' / 'add_test.py').write_text('def test_sums_add_up(): pass\n')
  row = code_shape.shape_row('tests', toy / 'tests')
  _check(row, files=2, one_word_share=0.0)
  assert 'args_share' not in row


@pytest.mark.parametrize('text', ['toy', '=.', 'toy=nowhere@abc'])
def test_a_wrong_other_package_is_refused(text):
  with pytest.raises(SystemExit, match=f'--beside {text}: .* is not a folder'):
    code_shape.main(['--smoke', '--beside', text])


def test_a_folder_without_code_is_refused(tmp_path):
  with pytest.raises(SystemExit, match='no Python file with code'):
    code_shape.shape_row('empty', tmp_path)


def test_the_library_of_an_earlier_commit_is_measured(tmp_path, monkeypatch):
  for name in ('genrec_jax', 'pallas_kernels'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'a.py').write_text('x = 1\n')
  git = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', '-C', tmp_path]
  for words in (['init'], ['add', '.'], ['commit', '-m', 'x']):
    subprocess.run([*git, *words], check=True, capture_output=True)
  monkeypatch.setattr(code_shape.structure, 'ROOT', tmp_path)
  rows = code_shape._rows_before('HEAD')
  assert [row['case'] for row in rows] == [
    'genrec_jax, before',
    'pallas_kernels, before',
  ]
  assert all(row['code_lines'] == 1 for row in rows)


def test_doubles_are_printed(toy, monkeypatch, capsys):
  text = RUN.format(name='f', a='a', b='b', number=1, text='one')
  for name in ('one.py', 'two.py'):
    (toy / name).write_text(text)
  monkeypatch.setattr(code_shape, 'ROOT', toy.parent)
  monkeypatch.setattr(code_shape, 'PACKAGES', ('toy',))
  code_shape.main(['--clones'])
  assert capsys.readouterr().out == 'toy/one.py:2-7  toy/two.py:2-7\n'


def test_import_and_help_are_timed(tmp_path, rows):
  code_shape.main(['--smoke', '--times', '--results', str(tmp_path)])
  measured = rows('code_shape')
  assert set(measured) == set(code_shape.TIMED)
  row = measured['genrec_jax.main --help']
  assert 0 < row['core_s'] and row['target_core_s'] == 0.3


def test_the_machine_is_known_without_jax(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jax', None)
  assert result.machine_kind().startswith('cpu')


def test_a_program_that_fails_is_told():
  with pytest.raises(SystemExit, match='no_such_module'):
    code_shape._run(('-c', 'import no_such_module'))


def test_examples_in_docstrings():
  for module in (code_shape_imports, code_shape_measures, code_shape_source):
    tested = doctest.testmod(module)
    assert tested.attempted and not tested.failed
