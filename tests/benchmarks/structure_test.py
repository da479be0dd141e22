"""Tests of the counts of places, lines and frames."""

import doctest
import textwrap

import pytest

from benchmarks import structure, structure_trace, structure_walks


def test_every_place_of_a_walk_is_there():
  structure.check_walks()


def test_a_place_that_is_gone_is_named(tmp_path):
  with pytest.raises(ValueError, match='a ranking model.*no file'):
    structure.check_walks(tmp_path)
  file, *_ = structure_walks.WALKS[0].after
  (tmp_path / file).parent.mkdir(parents=True)
  (tmp_path / file).write_text('')
  with pytest.raises(ValueError, match="no 'class FinalMLP' in"):
    structure.check_walks(tmp_path)


def test_what_came_with_the_library_is_there():
  for names in structure.LIBRARY.values():
    for name in names:
      assert (structure.ROOT / 'genrec_jax' / name).exists()


def test_comments_docstrings_and_blank_lines_do_not_count():
  source = '''
    """Of a module,
    of two lines."""

    X = """a value
    of two lines"""  # 2


    class A:  # 3
      """Of a class."""

      # Why.
      def f(self):  # 4
        """Of a function."""
        return (  # 5

          1,  # 6
        )  # 7
  '''
  assert structure.count_lines(textwrap.dedent(source)) == 7


def test_lines_are_counted_by_package(tmp_path):
  for name, text in {
    'genrec_jax/main.py': 'x = 1\n',
    'genrec_jax/data/ranking/a.py': 'x = 1\ny = 2\n',
    'genrec_jax/data/b.py': '# nothing\n',
    'pallas_kernels/c.py': 'x = 1\n',
  }.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  assert structure.count_packages(tmp_path) == {
    'genrec_jax': (1, 1),
    'genrec_jax.data': (2, 2),
    'pallas_kernels': (1, 1),
  }
  with pytest.raises(SystemExit, match='is not a checkout'):
    structure.count_packages(tmp_path / 'genrec_jax')


def test_own_frames_alone_are_counted(tmp_path):
  path = tmp_path / 'own.py'
  source = 'def outer(f):\n  return f(inner)\ndef inner():\n  return [0]\n'
  path.write_text(source)
  own = {}
  exec(compile(source, str(path), 'exec'), own)

  def other(inner):
    return inner() and inner()

  with structure_trace.Tracer([tmp_path]) as tracer:
    own['outer'](other)
  assert tracer.depth == 2
  assert tracer.deepest == ['own.py:outer', 'own.py:inner']
  assert {name for *_, name in tracer.functions} == {'outer', 'inner'}
  assert tracer.files == {str(path)}


def test_smoke_counts_this_checkout(tmp_path, rows):
  structure.main(['--smoke', '--results', str(tmp_path)])
  found = rows('structure')
  assert found['all']['lines'] > found['pallas_kernels.jagged']['lines'] > 50
  assert found['a task, from outside']['files'] == 2


def test_the_lines_of_a_checkout_are_printed(tmp_path, capsys):
  (tmp_path / 'pallas_kernels').mkdir()
  (tmp_path / 'pallas_kernels' / 'a.py').write_text('x = 1\n')
  structure.main(['--root', str(tmp_path)])
  printed = capsys.readouterr().out.split()
  assert printed[:3] == ['case', 'files', 'lines']
  assert printed[-3:] == ['all', '1', '1']


def test_examples_in_docstrings():
  assert doctest.testmod(structure).failed == 0
  assert doctest.testmod(structure_trace).failed == 0
