"""The command line: words, flags, help, and how errors end it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import genrec_jax
from genrec_jax import command_line

ROOT = pathlib.Path(__file__).parents[1]
QUICK = '--config=quickstart:smoke'


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
  rest, found = command_line.split_overrides(argv)
  assert rest == ['prog', '--workdir=w', '--config', 'f.py', '--help']
  assert found == overrides


def test_no_overrides():
  argv = ['prog', '--config=f.py', '--mode', 'train', 'config.a=1']
  assert command_line.split_overrides(argv) == (argv, [])


@pytest.mark.parametrize(
  'words, values',
  [
    ('', {}),
    ('train own_csv:smoke', {'mode': 'train', 'config': 'own_csv:smoke'}),
    ('train', {'mode': 'train'}),
    ('eval W', {'mode': 'eval', 'workdir': 'W'}),
    ('predict W', {'mode': 'predict', 'workdir': 'W'}),
    (
      'predict W new.csv',
      {'mode': 'predict', 'workdir': 'W', 'config.predict.input': 'new.csv'},
    ),
    ('report W', {'mode': 'report', 'workdir': 'W'}),
    ('plan own.py', {'mode': 'plan', 'config': 'own.py'}),
    ('config own.py', {'print_config': True, 'config': 'own.py'}),
  ],
)
def test_a_command_stands_for_flags(words, values):
  assert command_line.translate(words.split()) == values


def run(*arguments, module='genrec_jax.main', cwd=ROOT):
  return subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=cwd,
    capture_output=True,
    text=True,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
  )


@pytest.mark.parametrize('module', ['genrec_jax.main', 'genrec_jax'])
def test_the_resolved_config_is_printed(module, tmp_path):
  done = run(
    *('config', 'quickstart:smoke', '--config.loss.logq'),
    *('--config.train.steps', '9'),
    module=module,
    cwd=tmp_path,
  )
  assert done.returncode == 0
  config = json.loads(done.stdout)
  assert config['train']['steps'] == 9 and config['loss']['logq'] is True


def test_flags_say_the_same_as_a_command(tmp_path):
  flags = run('--config=quickstart:smoke', '--print_config', cwd=tmp_path)
  assert flags.stdout == run('config', 'quickstart:smoke', cwd=tmp_path).stdout


def test_help_begins_with_a_working_example():
  done = run('--help')
  assert done.returncode == 0 and not done.stderr
  places = [
    done.stdout.index(text)
    for text in (
      ' train quickstart --workdir=quickstart\n',
      '\nCommands',
      *(f'\n  {name}' for name in command_line.COMMANDS),
      *(f'\n  {name}' for name in command_line.LISTS),
      '\nFlags',
      '\n  --config=',
      '\n  --workdir=',
      '\n  --mode=',
      '\n  --coordinator=',
    )
  ]
  assert places == sorted(places) and places[0] < 200
  assert 'absl' not in done.stdout and '<train|' not in done.stdout
  assert max(map(len, done.stdout.splitlines())) < 80
  assert run('train', '-h').stdout == done.stdout


def test_without_a_word_the_usage_is_shown():
  done = run()
  assert done.returncode == 2 and not done.stdout
  assert ' train quickstart --workdir=quickstart\n' in done.stderr
  assert len(done.stderr.splitlines()) < 8


def test_the_version():
  done = run('--version')
  assert done.returncode == 0
  assert done.stdout == f'genrec_jax {genrec_jax.__version__}\n'


def test_configs_and_models_are_listed():
  done = run('configs')
  assert done.returncode == 0
  assert done.stdout.startswith('name ')
  frappe = [x for x in done.stdout.splitlines() if x.startswith('frappe ')]
  assert frappe[0].split()[1:4] == ['smoke', 'lr', 'fm']
  done = run('models')
  assert done.returncode == 0
  rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
  kinds = {name: kind for name, kind, _ in rows}
  assert kinds['sasrec'] == 'retrieval' and kinds['stu'] == 'request_ranking'
  assert kinds['dlrm'] == 'ranking,request_ranking'


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      ['--workdir=w', '--config.trian.steps=1', QUICK],
      'did you mean --config.t',
    ),
    (
      ['--workdir=w'],
      '--config is missing and --workdir=w holds no run to go on with',
    ),
    (['train'], '--config is missing; try --config=quickstart'),
    (['eval'], '--workdir is missing, the directory of a run'),
    (['predict', 'w'], '--workdir=w is not the workdir of a run'),
    ([QUICK], '--workdir is missing'),
    ([QUICK, '--workdir=w', '--mode=tran'], 'train|eval|predict'),
    ([QUICK, '--workdir=w', 'trian'], "no command; did you mean 'train'?"),
    (['eval', 'w', 'more'], 'unexpected arguments: more; the command is: '),
    (['eval', 'w', '--mode=train'], 'says --mode=eval already; leave --mode'),
    ([QUICK, '--wrkdir=w'], 'workdir'),
    (
      [QUICK, '--workdir=/proc/nope'],
      "the workdir '/proc/nope' cannot be made",
    ),
    ([QUICK, '--workdir=w', '--compile_for=here'], 'belongs to `genrec plan`'),
    (['report', 'README.md'], '--workdir=README.md is not the workdir of'),
  ],
)
def test_a_mistake_ends_in_a_line_and_no_traceback(arguments, message):
  done = run(*arguments)
  understood = ('did you mean --', 'be made', 'is not the')
  status = 1 if any(words in message for words in understood) else 2
  assert done.returncode == status, done.stderr
  assert message in done.stderr + done.stdout
  assert 'Traceback' not in done.stderr
  assert not (ROOT / 'w').exists()
