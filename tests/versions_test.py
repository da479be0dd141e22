"""The lists of versions and of portable tests belong to what there is."""

import doctest
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from constraints import make

ROOT = pathlib.Path(__file__).parent.parent
LOWEST = ROOT / 'constraints/py311-lowest.txt'


def read_pins(path: pathlib.Path) -> dict[str, str]:
  """The version of every distribution, whose names are in one spelling."""
  lines = path.read_text().lower().replace('_', '-').splitlines()
  return dict(line.split('==') for line in lines if not line.startswith('#'))


def test_the_lowest_versions_are_the_bounds_of_setup():
  users, _ = (ROOT / 'setup.py').read_text().split("'docs': [")
  bounds = re.findall(r"'([\w-]+)(?:\[\w+\])?>=([\d.]+)'", users)
  pins = read_pins(LOWEST)
  checked = {
    name.replace('_', '-'): bound
    for name, bound in bounds
    if name.replace('_', '-') in pins
  }
  assert len(checked) > 10
  for name, bound in checked.items():
    assert f'{pins[name]}.'.startswith(f'{bound}.'), name


def test_every_file_pins_what_a_run_needs():
  files = sorted(LOWEST.parent.glob('*.txt'))
  assert LOWEST in files
  for file in files:
    assert {'jax', 'jaxlib', 'flax', 'numpy', 'pytest'} <= set(read_pins(file))


def test_the_examples_of_the_docstrings_are_true():
  assert doctest.testmod(make) == doctest.TestResults(failed=0, attempted=3)


def test_portable_tests_are_there_and_named_once():
  names = (ROOT / 'tests/portable.txt').read_text().splitlines()
  assert names == sorted(set(names))
  assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.fixture
def portable(tmp_path):
  """Runs .ci/portable where no Python at all is on the PATH."""
  for name in ('bash', 'dirname'):
    (tmp_path / name).symlink_to(shutil.which(name))

  def run(*arguments):
    return subprocess.run(
      ['bash', ROOT / '.ci/portable', *arguments],
      env={'PATH': str(tmp_path)},
      capture_output=True,
      text=True,
    )

  return run


def test_a_python_that_is_not_there_is_skipped_only_if_nobody_named_it(
  portable,
):
  done = portable()
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout == 'skipped: a Python newer than 3.11 is not on PATH\n'
  done = portable('python3.99', 'constraints/py311-lowest.txt')
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr.endswith('portable: python3.99 is not on PATH\n')


@pytest.mark.parametrize('module', ['setuptools.command.bdist_wheel', 'jax'])
def test_a_prebuilt_library_needs_tools_that_setup_names(module):
  """An old setuptools, or no JAX, is a sentence and no traceback."""
  pytest.importorskip('setuptools')
  code = (
    f'import runpy, sys; sys.modules[{module!r}] = None; '
    'sys.argv[:] = ["setup.py", "--version"]; runpy.run_path("setup.py")'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=ROOT,
    env=os.environ | {'GENREC_PREBUILT': '1'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  (sentence,) = done.stderr.splitlines()
  assert sentence.startswith('GENREC_PREBUILT=1 needs setuptools>=70.1 and jax')
  assert sentence.endswith(f'there is no module {module}')
