"""The command `genrec` of an installed package, in a directory without a
checkout: one run, and all that is done with it.

The package is what a wheel holds: that of GENREC_INSTALLED, the directory of an
installed wheel, or what setup.py would put into one.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
  'data.path=events.csv',
  'data.columns.user=who',
  'data.columns.item=what',
  'data.columns.time=when',
  'split.name=leave_last_out',
  'model.dim=8',
  'model.dqk=8',
  'model.dv=8',
  'model.blocks=1',
  'model.max_len=8',
  'eval.ks=1,10',
  'eval.splits=test',
  'train.batch_size=8',
  'train.steps=4',
  'train.patience=0',
  'train.log_every=2',
  'train.checkpoint_every=4',
  'report.users=1',
  # A part from outside, which the workdir remembers by its name.
  'extensions=parts:EXTENSIONS',
  "tables=(('.*', {'optimizer': 'sign_sgd'}),)",
)


@pytest.fixture(scope='module')
def installed(tmp_path_factory) -> str:
  """A directory that holds the package as an installation does."""
  if directory := os.environ.get('GENREC_INSTALLED'):
    return directory
  pytest.importorskip('setuptools')
  directory = tmp_path_factory.mktemp('installed')
  source = tmp_path_factory.mktemp('source')
  shutil.copy(ROOT / 'setup.py', source)
  for name in ('genrec_jax', 'pallas_kernels', 'configs'):
    shutil.copytree(ROOT / name, source / name)
  subprocess.run(
    [sys.executable, 'setup.py', '-q', 'build_py', f'--build-lib={directory}'],
    cwd=source,
    check=True,
    capture_output=True,
  )
  return str(directory)


@pytest.fixture(scope='module')
def directory(tmp_path_factory) -> pathlib.Path:
  """Where a user works: two logs and a module, no checkout."""
  path = tmp_path_factory.mktemp('user')
  shutil.copy(ROOT / 'tests/own_parts.py', path / 'parts.py')
  for name, users in (('events.csv', 24), ('new.csv', 3)):
    rows = [
      f'u{user},item {(user + turn) % 12},{1_700_000_000 + 60 * turn}'
      for user in range(users)
      for turn in range(6)
    ]
    (path / name).write_text('\n'.join(['who,what,when', *rows]) + '\n')
  return path


@pytest.fixture(scope='module')
def genrec(installed, directory):
  """Starts `genrec WORDS`; returns the process."""
  env = os.environ | {'PYTHONPATH': installed}
  env['PYTHONDONTWRITEBYTECODE'] = '1'  # of the module of the user
  for name in ('JAX_NUM_CPU_DEVICES', 'NPROC'):  # those of the tests
    env.pop(name, None)
  script = pathlib.Path(installed) / 'bin/genrec'
  words = [script] if script.exists() else ['-m', 'genrec_jax']

  def start(*arguments):
    return subprocess.Popen(
      [sys.executable, '-P', *words, *arguments],
      cwd=directory,
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  return start


@pytest.fixture(scope='module')
def run(genrec):
  """Runs `genrec WORDS`; returns what it printed and what it said."""

  def run(*arguments, status=0):
    process = genrec(*arguments)
    out, err = process.communicate(timeout=500)
    assert process.returncode == status, err
    assert 'Traceback' not in err
    return out, err

  return run


@pytest.fixture(scope='module')
def table(run) -> str:
  """What the training of the shared workdir printed."""
  overrides = (f'--config.{override}' for override in SMALL)
  return run('train', 'own_csv', '--workdir=W', *overrides)[0]


def read(path: pathlib.Path) -> dict:
  return json.loads(path.read_text())


def test_the_configs_are_those_of_the_package(installed, run):
  out, _ = run('configs')
  names = [line.split()[0] for line in out.splitlines()[1:]]
  assert names == sorted(p.stem for p in (ROOT / 'configs').glob('*.py'))
  assert (pathlib.Path(installed) / 'genrec_jax/configs').is_dir()


def test_a_run_is_all_that_a_training_leaves(directory, table):
  assert 'popularity' in table
  assert sorted(p.name for p in directory.iterdir()) == [
    'W',
    'events.csv',
    'new.csv',
    'parts.py',
  ]


def test_a_workdir_is_evaluated(directory, table, run):
  out, _ = run('eval', 'W')
  assert 'popularity' in out
  measured, reported = (
    read(directory / 'W' / name)['metrics']['test']
    for name in ('eval.json', 'report.json')
  )
  assert measured == reported


def test_keys_that_make_another_model_are_refused(table, run):
  _, err = run('eval', 'W', '--config.model.dim=16', status=1)
  assert 'W belongs to another config' in err
  assert err.endswith('\n  model.dim: saved 8, now 16\n')


def test_a_file_is_predicted_for(directory, table, run):
  run('predict', 'W', 'new.csv', '--output=top.csv', '--config.predict.top_k=2')
  header, *rows = (directory / 'top.csv').read_text().splitlines()
  assert header.startswith('user,rank,item,score')
  assert [row.split(',')[0] for row in rows] == ['u0'] * 2 + ['u1'] * 2 + [
    'u2'
  ] * 2
  (directory / 'top.csv').unlink()


def test_a_page_is_made_again(directory, table, run):
  page = directory / 'W/report.html'
  before = page.read_text(), (directory / 'W/report.json').read_bytes()
  page.unlink()
  assert run('report', 'W')[0] == table
  assert page.read_text() == before[0]
  assert (directory / 'W/report.json').read_bytes() == before[1]


def test_a_run_is_continued(directory, table, run):
  _, err = run('train', '--workdir=W', '--config.train.steps=6')
  assert 'continuing the run of W with its config' in err
  assert 'continuing from the checkpoint of step 4' in err
  assert read(directory / 'W/report.json')['steps'] == 6
  assert read(directory / 'W/config.json')['train']['steps'] == 6


def test_ctrl_c(directory, genrec):
  """As good as of `python -m genrec_jax.main`; see signals_test.py."""
  # Tests that a shell has started in the background ignore the signal, and
  # what they start would, too.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  process = genrec('train', 'quickstart:smoke', '--workdir=stopped')
  signal.signal(signal.SIGINT, before)
  while process.poll() is None:
    if (directory / 'stopped/config.json').exists():
      process.send_signal(signal.SIGINT)
      break
    time.sleep(0.01)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 130, err
  assert err.endswith('the same command starts again\n')


def test_signals_are_read_before_anything_else_is_imported(installed):
  code = 'import genrec_jax.__main__, sys; print(*sys.modules)'
  loaded = subprocess.check_output(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': installed},
    text=True,
  ).split()
  assert {x for x in loaded if x.startswith('genrec_jax.')} == {
    'genrec_jax.__main__',
    'genrec_jax.interruption',
  }
  assert not {'absl', 'ml_collections', 'jax'} & set(loaded)
