"""What a command line asks for is checked before anything starts."""

import doctest
import subprocess
import sys
import time

import numpy as np
import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.sweep import record, variants


def test_examples():
  assert doctest.testmod(variants).failed == 0


def test_every_value_with_every_other():
  found = variants.read_variants('quickstart', [], ['seed=0..1', 'model.dim=8'])
  assert found == [
    (('seed', '0'), ('model.dim', '8')), (('seed', '1'), ('model.dim', '8')),
  ]  # fmt: skip


@pytest.mark.parametrize(
  'sets, message',
  [
    (['seed'], 'takes KEY=VALUE,VALUE'),
    (['=1'], 'takes KEY=VALUE,VALUE'),
    (['seed='], 'takes KEY=VALUE,VALUE'),
    (['seed=1,,2'], 'a value is empty'),
    (['eval.ks=(1,2'], 'a bracket is open'),
    (['seed=4..0'], 'must go upwards'),
    (['seed=0..99999'], 'at most'),
    (['seed=1,2,1'], 'variants 0 and 2 are one and the same: seed=1'),
    ([], 'sets no key'),
    (['seed=0..999', 'model.dim=1,2,3,4,5,6,7,8,9,10,11'], 'more than 10,000'),
  ],
)
def test_mistakes_of_sets(sets, message):
  with pytest.raises(ConfigError, match=message):
    variants.read_variants('quickstart', [], sets)


@pytest.mark.parametrize(
  'value, text',
  [
    (np.float32(0.5), '0.5'), (np.int64(3), '3'), (None, 'None'), ('x', 'x'),
    (((64,), [32]), '((64,), (32,))'), (False, 'false'),
  ],
)  # fmt: skip
def test_values_as_a_command_line_has_them(value, text):
  assert variants.write_value('key', value) == text


def test_values_that_no_key_has():
  with pytest.raises(ConfigError, match='which is a dict'):
    variants.write_value('key', {})


@pytest.mark.parametrize(
  'variant, overrides, message',
  [
    ({'optimizer.rate': '1'}, [], 'variant 1 .* unknown config key'),
    ({'train.steps': 'many'}, [], 'variant 1 .*train.steps=many'),
    ({'seed': '1'}, ['seed=3'], 'sets a key of all runs'),
  ],
)
def test_every_variant_is_loaded_before_the_first_one_starts(
  variant, overrides, message
):
  good = (('train.steps', '3'),)
  with pytest.raises(ConfigError, match=message):
    variants.check_variants(
      'quickstart', overrides, [good, tuple(variant.items())]
    )


def test_names_are_paths_that_stay_below_the_sweep():
  odd = (('data.path', '../../etc/passwd'), ('seed', '1'))
  long = (('data.path', 'x' * 500),)
  found = variants.name_variants([odd, long])
  assert found[0].name == '000_path=..-..-etc-passwd_seed=1'
  assert len(found[1].name) <= 100 and '/' not in found[0].name


def test_two_hundred_variants_are_printed_within_seconds(tmp_path):
  """The benchmark measures it on a quiet machine."""
  began = time.process_time()
  sets = ['seed=0..19', 'model.dim=8,9,10,11,12,13,14,15,16,17']
  found = variants.read_variants('quickstart', [], sets)
  variants.check_variants('quickstart', [], found)
  sweep, wanted = record.extend_sweep(
    tmp_path / 'root', 'quickstart', (), found
  )
  assert len(wanted) == len(sweep.variants) == 200
  assert time.process_time() - began < 15


def test_the_launcher_does_not_import_jax():
  code = (
    'import sys; from genrec_jax.sweep import __main__, xm, slurm, page; '
    'sys.exit("jax" in sys.modules or "flax" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
