"""What a command line asks for is checked before anything starts."""

import doctest
import subprocess
import sys
import time

import numpy as np
import pytest

from genrec_jax import notebook
from genrec_jax.config.errors import ConfigError
from genrec_jax.sweep import record, variants
from genrec_jax.sweep.__main__ import main


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
    ([], 'sets no key'),
    (['seed=0..999', 'model.dim=1,2,3,4,5,6,7,8,9,10,11'], 'more than 10,000'),
  ],
)
def test_mistakes_of_sets(sets, message):
  with pytest.raises(ConfigError, match=message):
    variants.read_variants('quickstart', [], sets)


@pytest.mark.parametrize(
  'word, twice',
  [
    ('seed=1,2,1', 2),
    ('optimizer.learning_rate=1e-3,3e-3,0.001', 2),
    ('train.shuffle=true,True', 1),
    ('eval.ks=(1,10),[1, 10]', 1),
    ('numerics.products=(),()', 1),
  ],
)
def test_a_value_in_another_spelling_is_no_other_variant(word, twice):
  found = variants.read_variants('quickstart', [], [word])
  message = f'variants 0 and {twice} are one and the same'
  with pytest.raises(ConfigError, match=message):
    variants.check_variants('quickstart', [], found)


def test_variants_that_are_there_keep_their_runs(tmp_path):
  def extend(*texts):
    asked = [(('optimizer.learning_rate', text),) for text in texts]
    sweep, wanted = record.extend_sweep(tmp_path, 'quickstart', (), asked)
    record.write_sweep(sweep)
    return [v.name for v in wanted]

  first = extend('1e-3', '3e-3')
  assert first == ['000_learning_rate=1e-3', '001_learning_rate=3e-3']
  assert extend('0.0030', '0.005', '0.001') == [
    first[1], '002_learning_rate=0.005', first[0],
  ]  # fmt: skip


def test_a_config_that_has_become_another_one_is_refused(tmp_path):
  config = tmp_path / 'mine.py'
  text = (
    'from genrec_jax import config as config_lib\n'
    'def get_config(arg=None):\n'
    '  c = config_lib.retrieval()\n'
    '  c.optimizer.learning_rate = 0.25\n'
    '  return c\n'
  )
  config.write_text(text)
  root = tmp_path / 'root'
  asked = [(('seed', '1'),)]
  sweep, _ = record.extend_sweep(root, str(config), (), asked)
  record.write_sweep(sweep)
  assert main([str(root), '--dry_run']) == 0
  config.write_text(text.replace('0.25', '0.5'))
  for words in (['--dry_run'], ['--run=0']):
    with pytest.raises(ConfigError, match='learning_rate: saved 0.25, now 0.5'):
      main([str(root), *words])
  assert main([str(root), '--collect']) == 0


def test_a_directory_may_have_the_name_of_the_config(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  words = ['quickstart', '--workdir=quickstart', '--set', 'seed=1', '--dry_run']
  (tmp_path / 'quickstart').mkdir()
  assert main(words) == 0
  assert '--config.seed=1' in capsys.readouterr().out


@pytest.mark.parametrize('flag', ['--sbatch=--time=1:00', '--xm_gpu=a100=8'])
def test_flags_of_other_backends(flag, tmp_path):
  words = ['quickstart:smoke', f'--workdir={tmp_path}/x', '--set', 'seed=1']
  with pytest.raises(ConfigError, match=f'{flag[:5]}.* is for --backend='):
    main([*words, flag])


def test_what_is_refused_leaves_no_sweep_behind(tmp_path):
  words = ['quickstart:smoke', f'--workdir={tmp_path}/x', '--set', 'seed=1']
  for flag in ('--jobs=0', '--retries=-1', '--grace_s=-1'):
    with pytest.raises(ConfigError, match='must be at least'):
      main([*words, flag])
  assert not (tmp_path / 'x').exists()


def test_a_directory_that_is_not_there():
  with pytest.raises(ConfigError, match='nowhere is no directory, so not that'):
    main(['nowhere'])


@pytest.mark.parametrize(
  'variants_of, message',
  [
    ([], 'has no variants'), ([{}], 'sets no key'), ([3], 'must be a dict'),
    ([{'seed': 1}, {'seed': 1}], 'one and the same'),
  ],
)  # fmt: skip
def test_sweeps_from_a_notebook_are_checked_alike(variants_of, message):
  with pytest.raises(ConfigError, match=message):
    notebook.run_sweep('quickstart:smoke', variants_of)


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
