"""The lists of versions and of portable tests belong to what there is."""

import doctest
import pathlib
import re

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
