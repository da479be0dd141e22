"""The command line: words, modes, and how errors end it."""

import json
import pathlib
import subprocess
import sys

import pytest

from genrec_jax import main

ROOT = pathlib.Path(__file__).parents[1]
QUICK = '--config=configs/quickstart.py:smoke'


@pytest.mark.parametrize(
  'words, overrides',
  [
    ('--config.a.b=1', ['a.b=1']),
    ('-config.a.b=1', ['a.b=1']),
    ('--config.a.b 1', ['a.b=1']),
    ('--config.a -3', ['a=-3']),
    ('--config.a=', ['a=']),
    ('--config.a=b=c', ['a=b=c']),
    ('--config.flag', ['flag']),
    ('--config.flag --config.a=1', ['flag', 'a=1']),
    (
      '--config.one --config.two --noconfig.three',
      ['one', 'two', 'three=false'],
    ),
    ('--noconfig.a.flag', ['a.flag=false']),
  ],
)
def test_overrides_are_taken_out(words, overrides):
  argv = ['prog', '--workdir=w', *words.split(), '--config', 'f.py', '--help']
  rest, found = main.split_overrides(argv)
  assert rest == ['prog', '--workdir=w', '--config', 'f.py', '--help']
  assert found == overrides


def test_no_overrides():
  argv = ['prog', '--config=f.py', '--mode', 'train', 'config.a=1']
  assert main.split_overrides(argv) == (argv, [])


def run(*arguments):
  return subprocess.run(
    [sys.executable, '-m', 'genrec_jax.main', *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )


def test_the_resolved_config_is_printed():
  done = run(
    QUICK, '--print_config', '--config.loss.logq', '--config.train.steps', '9'
  )
  assert done.returncode == 0
  config = json.loads(done.stdout)
  assert config['train']['steps'] == 9 and config['loss']['logq'] is True


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      ['--workdir=w', '--config.trian.steps=1', QUICK],
      'did you mean --config.t',
    ),
    (['--workdir=w'], '--config is missing'),
    ([QUICK], '--workdir is missing'),
    ([QUICK, '--workdir=w', '--mode=tran'], 'train|eval|predict'),
    ([QUICK, '--workdir=w', 'extra'], 'unexpected arguments: extra'),
    ([QUICK, '--wrkdir=w'], 'workdir'),
  ],
)
def test_a_mistake_ends_in_a_line_and_no_traceback(arguments, message):
  done = run(*arguments)
  assert done.returncode == (1 if 'did you mean' in message else 2)
  assert message in done.stderr + done.stdout
  assert 'Traceback' not in done.stderr
  assert not (ROOT / 'w').exists()
