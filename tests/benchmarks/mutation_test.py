"""The mutation benchmark, on a library of two functions."""

import ast
import json
import pathlib
import subprocess

import pytest

from benchmarks import mutation, mutation_checkout
from benchmarks.mutation_equivalents import EQUIVALENT
from benchmarks.mutation_sites import find

LIBRARY = '''"""A library."""

LEAST = 2


def clip(x, least=LEAST):
  return max(x, least)


def total(values):
  result = 0
  for value in values:
    result += value
  return result


def unseen(x):
  return x + 1
'''
TESTS = """import pytest
from toy import sums


@pytest.fixture(scope='module')
def made():
  return sums.total([1, 2])


def test_of_the_fixture(made):
  assert made == 3


def test_that_looks_at_nothing(made):
  sums.clip(5)
"""


@pytest.fixture
def root(tmp_path):
  root = tmp_path / 'root'
  for name, text in (('toy/sums.py', LIBRARY), ('tests/toy_test.py', TESTS)):
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(text)
  subprocess.run(['git', 'init', '-q', root], check=True)
  return root


@pytest.fixture
def run(root, tmp_path):
  def run(*more):
    arguments = ['--only', 'toy', '--tests', 'tests/toy_test.py', *more]
    arguments += ['--results', str(tmp_path), '--work', str(tmp_path / 'work')]
    mutation.main(arguments, root)

  return run


def test_mutants_are_killed_or_listed(run, rows, root, capsys):
  run('--mutants', '99')
  found = rows('mutation')
  score = found.pop('score')
  changed = {row['diff'].partition('\n+ ')[2]: row for row in found.values()}
  killed = changed['result -= value']
  assert killed['outcome'] == 'killed'
  assert killed['by'] == 'tests/toy_test.py::test_of_the_fixture'
  # What a fixture runs counts for both tests, though it runs once.
  assert killed['covering'] == 2
  assert changed['return min(x, least)']['outcome'] == 'survived'
  assert changed['LEAST = 3']['covering'] == 2  # run by the import alone
  assert 'return x - 1' not in changed
  assert score['mutants'] == len(found)
  assert score['score'] == score['killed'] / len(found) < 1
  survivor = 'toy/sums.py:7\n- return max(x, least)\n+ return min(x, least)'
  assert survivor in capsys.readouterr().out
  assert (root / 'toy/sums.py').read_text() == LIBRARY


@pytest.fixture
def judged(monkeypatch):
  """The cases that were to be run; instead of that they survive."""
  cases, judge = [], mutation.judge

  def pretend(checkout, mutant, *more):
    cases.append(mutation.case_of(mutant))
    monkeypatch.setattr(checkout, 'pytest', lambda *_: (0, {}, ''))
    return judge(checkout, mutant, *more)

  monkeypatch.setattr(mutation, 'judge', pretend)
  return cases


def test_a_later_call_continues(run, judged, rows, root):
  run('--mutants', '2')
  assert len(judged) == 2
  run('--mutants', '4')
  assert len(judged) == len(set(judged)) == 4  # the first two, and two more
  assert rows('mutation').keys() == {'score', *judged}
  run('--mutants', '4', '--hours', '0')
  assert len(judged) == 4
  run('--mutants', '4', '--again')
  assert sorted(judged[4:]) == sorted(judged[:4])  # whatever is drawn now
  (root / 'toy/sums.py').write_text(LIBRARY + '\n\n# changed\n')
  run('--mutants', '1')
  assert len(judged) == 9 and rows('mutation')['score']['mutants'] == 1


@pytest.mark.parametrize('later', [False, True])
def test_what_is_argued_equivalent_does_not_count(
  run, judged, rows, monkeypatch, later
):
  if later:
    run('--mutants', '99')
  argument = 'Nobody is below it.'
  monkeypatch.setattr(
    mutation,
    'EQUIVALENT',
    {('toy/sums.py', 'LEAST = 2', 'LEAST = 3'): argument},
  )
  run('--mutants', '99')
  found = rows('mutation')
  assert [r['argument'] for r in found.values() if 'argument' in r] == [
    argument
  ]
  assert found['score']['equivalent'] == 1 and found['score']['score'] == 0
  assert found['score']['survived'] == found['score']['mutants'] - 1


def test_what_never_ends_is_stopped(root, tmp_path):
  (root / 'tests/toy_test.py').write_text(
    'def test_for_ever():\n  while True:\n    pass\n'
  )
  with mutation_checkout.copied(root, tmp_path / 'work') as checkout:
    name = 'tests/toy_test.py::test_for_ever'
    status, _, _ = checkout.pytest(
      {'select': [name]}, ['tests/toy_test.py'], limit_s=3
    )
  assert status is None


def test_the_quickest_that_fit_run_by_file(monkeypatch):
  monkeypatch.setattr(mutation, 'TESTS_S', 10.0)
  tests = {'b::1': 5.0, 'a::1': 0.5, 'b::2': 1.0, 'a::2': 2.0, 'c::1': 7.0}
  assert mutation.choose(tests) == ['a::1', 'a::2', 'b::2', 'b::1']
  assert mutation.choose({'c::1': 99.0}) == ['c::1']


@pytest.mark.parametrize(
  'source, mutants',
  [
    ('x = a + b', ['x = a - b']),
    ('x = (a) * (b)', ['x = (a) / (b)']),
    ('x -= 2', ['x += 2', 'x -= 3', 'pass']),
    ('x = a < b <= c', ['x = a <= b <= c', 'x = a < b < c']),
    ('x = a not in b', ['x = a in b']),
    ('x = not a', ['x = a']),
    ('x = a and b', ['x = a or b']),
    ('x = True', ['x = False']),
    ('x = 0.5', ['x = 1.0']),
    ('x = jnp.minimum(a, b)', ['x = jnp.maximum(a, b)']),
    ('x = jnp.where(c, a, b)', ['x = jnp.where(c, b, a)']),
    ('f(a, k=b, l=c)', ['f(a, l=c)', 'f(a, k=b)', 'pass']),
    ('x = f(x)', ['pass']),
    ("raise ValueError('1')", ['pass']),
    ('def f():\n  return a', ['return None']),
    ('def f():\n  return', []),
    ('x = "ä" + y, a - b', ['x = "ä" + y, a + b']),
    ('"""1 + 2."""', []),
    ('def f(x: a | b, y=1): ...', ['def f(x: a | b, y=2): ...']),
    ('@f(k=1)\ndef g(): ...', []),
    ("LOG.info('%d', 1)", []),
  ],
)
def test_mistakes_that_can_be_made(source, mutants):
  found = [m.diff(source).partition('\n+ ')[2] for m in find('f.py', source)]
  assert sorted(found) == sorted(mutants)


def test_mutants_of_the_targets_are_python_and_differ():
  for file in mutation.python_files(mutation.ROOT, mutation.TARGETS):
    source = (mutation.ROOT / file).read_text()
    for m in find(file, source)[::25]:
      ast.parse(m.apply(source))
      assert m.diff(source), m


def test_arguments_are_of_code_that_is_there():
  for (file, before, _), argument in EQUIVALENT.items():
    lines = {s.strip() for s in (mutation.ROOT / file).read_text().split('\n')}
    assert lines.issuperset(before.split('\n')), (file, before)
    assert argument.endswith('.')


def test_the_default_tests_are_there():
  for path in mutation.TESTS:
    assert (mutation.ROOT / path).exists(), path


def test_smoke_writes_nothing(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
    mutation, 'judge', lambda c, m, *_: {'case': 'x', 'outcome': 'killed'}
  )
  mutation.main(['--smoke', '--work', str(tmp_path)])
  assert 'score' in capsys.readouterr().out
  texts = [p.read_text() for p in pathlib.Path(tmp_path).glob('*.json')]
  (known,) = map(json.loads, texts)
  assert any('plan_test' in test for test in known['tests'])
