"""Sweeps are iterators of dictionaries; mistakes are said."""

import doctest

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import sweeps
from genrec_jax.config.errors import ConfigError


def test_examples():
  assert doctest.testmod(sweeps).failed == 0


def test_combinations():
  rates, seeds = (1e-3, 3e-3), range(2)
  found = list(
    sweeps.product(sweeps.vary('rate', rates), sweeps.vary('seed', seeds))
  )
  assert found == [{'rate': r, 'seed': s} for r in rates for s in seeds]
  assert list(sweeps.chain(found[:1], found[3:])) == [found[0], found[3]]
  assert list(sweeps.product()) == [{}]
  assert list(sweeps.product(found, [])) == []


@pytest.mark.parametrize(
  'make, message',
  [
    (
      lambda: sweeps.zipit(sweeps.vary('a', 'xyz'), sweeps.vary('b', 'xy')),
      'unequal lengths: 3 and 2',
    ),
    (
      lambda: sweeps.product(sweeps.fixed('a', 1), sweeps.fixed('a', 2)),
      'two sweeps set a, to 1 and to 2',
    ),
    (lambda: sweeps.sample(2, {'a': ()}), 'no values for a'),
    (lambda: [sweeps.Uniform(0, 1, log=True)], 'above 0 with log'),
    (lambda: [sweeps.Uniform(2, 1)], 'from a number to a greater one'),
    (lambda: [sweeps.Uniform(1.2, 1.8, whole=True)], 'has no whole number'),
    (lambda: [sweeps.Uniform(0, float('inf'))], 'finite'),
  ],
)
def test_mistakes(make, message):
  with pytest.raises(ConfigError, match=message):
    list(make())


def test_samples_have_no_variant_twice():
  found = list(sweeps.sample(20, {'blocks': (1, 2, 4), 'seed': range(2)}))
  assert len(found) == 6 and len({repr(v) for v in found}) == 6
  values = {v['x'] for v in sweeps.sample(50, {'x': sweeps.Uniform(1, 1.001)})}
  assert len(values) == 50 and 1 <= min(values) < max(values) <= 1.001
  whole = sweeps.Uniform(1.2, 5.7, whole=True, log=True)
  found = {v['x'] for v in sweeps.sample(50, {'x': whole})}
  assert found == {2, 3, 4, 5}


def test_samples_lie_between_their_ends_and_grow():
  keys = {
    'rate': sweeps.Uniform(1e-4, 1e-1, log=True),
    'layers': sweeps.Uniform(1, 4, whole=True),
    'drop': sweeps.Uniform(0.1, 0.2),
    'name': ('a', 'b'),
  }
  found = list(sweeps.sample(300, keys, seed=3))
  assert found[:10] == list(sweeps.sample(10, keys, seed=3))
  assert found != list(sweeps.sample(300, keys, seed=4))
  assert all(1e-4 <= v['rate'] <= 1e-1 for v in found)
  assert {v['layers'] for v in found} == {1, 2, 3, 4}
  assert all(0.1 <= v['drop'] <= 0.2 for v in found)
  # As many below the geometric mean as above.
  below = sum(v['rate'] < 10**-2.5 for v in found)
  assert 110 < below < 190


CONFIG = """
from genrec_jax import config as config_lib
from genrec_jax.config import sweeps

def get_config(arg=None):
  return config_lib.retrieval()

def sweep():
  return sweeps.vary('seed', range(3))

def sweep_odd():
  yield 'seed'

def sweep_broken():
  return 1 / 0

def sweep_ends():
  raise SystemExit(3)
"""


@pytest.fixture
def config(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(CONFIG)
  return str(path)


def test_sweeps_of_a_config(config):
  assert config_lib.load_sweep(f'{config}:smoke') == [
    {'seed': n} for n in range(3)
  ]


@pytest.mark.parametrize(
  'name, message',
  [
    ('none', 'has no sweep_none\\(\\); it has sweep, sweep_odd, sweep_broken'),
    ('odd', "yields 'seed', must yield dictionaries"),
    ('broken', 'line 15: ZeroDivisionError'),
    ('ends', 'line 18: SystemExit: 3'),
  ],
)
def test_sweeps_that_are_none(config, name, message):
  with pytest.raises(ConfigError, match=message):
    config_lib.load_sweep(config, name)


def test_a_config_without_sweeps():
  with pytest.raises(ConfigError, match='has no sweep\\(\\); .*so say what'):
    config_lib.load_sweep('quickstart')
