"""Bad input ends in one line that says what to do, and loses nothing.

The command line runs in this process, up to the first training step: whoever
gets there had nothing to complain about.
"""

import gzip
import pathlib
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from genrec_jax import config as config_lib
from genrec_jax import main
from genrec_jax.checkpoint import workdir
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.runtime import single_device
from genrec_jax.runtime.state import flatten_state
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment

ROOT = pathlib.Path(__file__).parents[2]
T = 1_700_000_000
CONFIG = '''
from genrec_jax import config as config_lib
from genrec_jax.task_kinds import TASK_KINDS

def get_config(arg=None):
  config = config_lib.retrieval()
  config.data.name = 'csv'
  config.model.update(dim=8, dqk=8, dv=8, blocks=1, max_len=6)
  return config
'''
HEADER = 'user,item,time,stars'
ROWS = [
  f'u{n % 5},i{n % 7},{T + n},{n % 5 + 1}' for n in range(40)
]  # lines 2 to 41


class FirstStep(BaseException):
  """Everything was accepted; a training would begin."""


class Left(BaseException):
  """The command has ended, with a status and its last words."""


@pytest.fixture
def command(tmp_path, monkeypatch):
  """command('--mode=eval', ...) -> the error message, or None at step one."""
  (tmp_path / 'config.py').write_text(CONFIG)
  monkeypatch.setattr(main, 'start_logging', lambda: None)
  monkeypatch.setattr(
    main.app, 'run', lambda function, argv, **_: function(flags.FLAGS(argv))
  )
  monkeypatch.setattr(main.interruption, 'install', lambda: None)

  def leave(status, words=''):
    raise Left(status, words)

  monkeypatch.setattr(main.interruption, 'leave', leave)

  def no_step(*args, **kwargs):
    raise FirstStep

  monkeypatch.setattr(single_device, 'make_step', no_step)

  def run(*arguments):
    argv = [
      'main.py',
      f'--config={tmp_path}/config.py',
      f'--workdir={tmp_path}/run',
      *arguments,
    ]
    monkeypatch.setattr(sys, 'argv', argv)
    try:
      with flagsaver.flagsaver():
        main.run()
    except FirstStep:
      return None
    except Left as end:
      status, words = end.args
      assert status == 1 and words.startswith('error: ')
      return words.removeprefix('error: ')
    raise AssertionError('the command did not end')

  return run


def log(path: pathlib.Path, rows=ROWS, header=HEADER) -> str:
  path.write_text('\n'.join([header, *rows]) + '\n')
  return f'--config.data.path={path}'


def with_row(number: int, row: str) -> list[str]:
  """The rows with another one on line `number` of the file."""
  rows = list(ROWS)
  rows[number - 2] = row
  return rows


def nothing_is_left(directory: pathlib.Path) -> None:
  """No half conversion, and nothing that looks like a run."""
  found = {p.name for p in directory.iterdir()}
  assert found <= {'.lock', '.config.json.seal', 'config.json', 'data'}
  assert not list((directory / 'data').glob('*'))


def test_a_good_log_gets_to_the_first_step(command, tmp_path):
  assert command(log(tmp_path / 'log.csv')) is None


@pytest.mark.parametrize(
  'line, row, message',
  [
    (20, 'u1,i1,17', "3 fields instead of 4: ['u1', 'i1', '17']; mend or"),
    (20, f'u1,i1,{T},5,6', '5 fields instead of 4'),
    (2, f'u1,,{T},5', "'' is not an item id; mend or remove the line"),
    (41, ',i1,7,5', "'' is not a user id"),
    (20, 'u1,i1,yesterday,5', "'yesterday' is not a time (seconds since"),
    (20, 'u1,i1,-1,5', "'-1' is not a time"),
    (20, 'u1,i1,,5', "'' is not a time"),
    (20, 'u1,i1,nan,5', "'nan' is not a time"),
    (20, f'u1,i1,{T},nan', "'nan' is not a finite number"),
    (20, f'u1,i1,{T},inf', "'inf' is not a finite number"),
    (20, f'u1,i1,{T},', "'' is not a finite number"),
    (20, f'u1,i1,{T},good', "'good' is not a finite number"),
    (20, f'u1,i\x001,{T},5', 'zero bytes; it is damaged'),
    (20, f'"u1,i1,{T},5', 'the row that begins here is damaged'),
  ],
)
def test_a_damaged_row_is_named(command, tmp_path, line, row, message):
  given = log(tmp_path / 'log.csv', with_row(line, row))
  told = command(given, '--config.data.columns.rating=stars')
  assert told.startswith(f'{tmp_path}/log.csv, line {line}: ')
  assert message in told
  nothing_is_left(tmp_path / 'run')


def test_a_row_that_is_not_text(command, tmp_path):
  given = log(tmp_path / 'log.csv')
  raw = (tmp_path / 'log.csv').read_bytes().split(b'\n')
  raw[19] = b'u1,\xff\xfe,17,5'
  (tmp_path / 'log.csv').write_bytes(b'\n'.join(raw))
  assert 'log.csv, line 20: not utf-8' in command(given)
  nothing_is_left(tmp_path / 'run')


def test_a_torn_archive(command, tmp_path):
  log(tmp_path / 'log.csv')
  whole = gzip.compress((tmp_path / 'log.csv').read_bytes())
  (tmp_path / 'log.csv.gz').write_bytes(whole[:-40])
  told = command(f'--config.data.path={tmp_path}/log.csv.gz')
  assert 'log.csv.gz' in told and 'damaged' in told
  nothing_is_left(tmp_path / 'run')


def test_text_among_whole_numbers(command, tmp_path):
  rows = [f'{n % 5},{n % 7},{T + n},1' for n in range(40)]
  rows[18] = f'abc,1,{T},1'
  given = log(tmp_path / 'log.csv', rows)
  assert command(given) is None  # one chunk: ids are text then
  told = command(
    given, '--config.data.id_type=int', f'--workdir={tmp_path}/other'
  )
  assert "log.csv, line 20: 'abc' is not a user id" in told
  assert "id_type='str'" in told


def test_a_missing_column(command, tmp_path):
  given = log(tmp_path / 'log.csv')
  told = command(given, '--config.data.columns.user=usr')
  assert told == (
    f"{tmp_path}/log.csv: no column 'usr' for the user; the columns are user, "
    "item, time, stars; did you mean 'user'?"
  )
  nothing_is_left(tmp_path / 'run')
  # The mended command may have the workdir: no step was taken in it.
  assert command(given) is None


@pytest.mark.parametrize(
  'content, message',
  [
    ('', 'the file is empty, it has not even a header'),
    ('\n\n', 'the file is empty'),
    (HEADER, 'the file holds no events'),
    (HEADER + '\n\n', 'the file holds no events'),
  ],
)
def test_an_empty_file(command, tmp_path, content, message):
  (tmp_path / 'log.csv').write_text(content)
  told = command(f'--config.data.path={tmp_path}/log.csv')
  assert told.startswith(f'{tmp_path}/log.csv: {message}')
  nothing_is_left(tmp_path / 'run')


def test_files_that_are_not_there(command, tmp_path):
  told = command(f'--config.data.path={tmp_path}/lost.csv')
  assert told == f'{tmp_path}/lost.csv: no such file (data.path)'
  assert 'data.path is not set' in command()
  (tmp_path / 'empty').mkdir()
  told = command(f'--config.data.path={tmp_path}/empty')
  assert 'the directory has no .csv files' in told
  told = command(f'--config.data.path={tmp_path}', '--config.data.name=ml1m')
  assert 'ratings.dat: no such file; download https://files.group' in told


def test_an_item_outside_the_catalogue(command, tmp_path):
  (tmp_path / 'movies.dat').write_text('1::A (1990)::X\n2::B (1991)::Y\n')
  ratings = [f'{n % 4 + 1}::{n % 2 + 1}::5::{T + n}' for n in range(30)]
  ratings[17] = f'1::3::5::{T}'
  (tmp_path / 'ratings.dat').write_text('\n'.join(ratings) + '\n')
  arguments = f'--config.data.path={tmp_path}', '--config.data.name=ml1m'
  told = command(*arguments)
  assert told.startswith(
    f'{tmp_path}/ratings.dat, line 18: item 3 is not in the vocabulary of 2'
  )
  ratings[17] = f'1::{10**30}::5::{T}'
  (tmp_path / 'ratings.dat').write_text('\n'.join(ratings) + '\n')
  assert f"line 18: '{10**30}' is not an item id" in command(*arguments)
  nothing_is_left(tmp_path / 'run')


def test_users_with_one_event(command, tmp_path, caplog):
  rows = [f'only{n},i{n % 7},{T + n},1' for n in range(9)]
  told = command(log(tmp_path / 'log.csv', rows))
  assert told == (
    'the train split is empty: no user has enough events for it. A user needs '
    'at least 4 events, and the longest history has 1'
  )
  caplog.set_level('INFO', 'genrec_jax')
  assert command(log(tmp_path / 'log.csv', ROWS + rows)) is None
  assert (
    '9 of 14 users have too few events for the test split and are left out'
    in caplog.text
  )


def test_times_out_of_order_are_put_in_order(command, tmp_path):
  """Not an error: lines of a log come in any order."""
  assert command(log(tmp_path / 'log.csv', ROWS[::-1])) is None


def test_times_in_another_unit(command, tmp_path):
  rows = [f'u{n % 5},i{n % 7},{(T + n) * 1000},1' for n in range(40)]
  given = log(tmp_path / 'log.csv', rows)
  told = command(given)
  assert told.startswith(f'{tmp_path}/log.csv: times reach 1700000039000 sec')
  assert 'Set --config.data.time_unit (ms, us or ns)' in told
  assert command(given, '--config.data.time_unit=ms') is None


def test_a_model_that_reads_times_needs_times(command, tmp_path):
  (tmp_path / 'sasrec.txt').write_text('1 1\n1 2\n1 3\n1 4\n1 5\n')
  told = command(
    f'--config.data.path={tmp_path}', '--config.data.name=sasrec_text'
  )
  assert '--config.model.time_bias=false' in told


@pytest.mark.parametrize(
  'override, message',
  [
    ('--config.trian.steps=3', 'did you mean --config.train.steps ?'),
    ('--config.data.column.user=u', 'did you mean --config.data.columns.user'),
    ('--config.train.steps=many', 'expected int, as in 0'),
    ('--config.train.steps=1.5', 'expected int'),
    ('--config.optimizer.learning_rate=fast', 'expected float'),
    ('--config.model.time_bias=maybe', 'expected bool'),
    ('--config.model=hstu', 'config.model is a section'),
    ('--config.data.name=cvs', "data.name is 'cvs'"),
    ('--config.split.name=last', "split.name is 'last'"),
    ('--config.model.attention=relu', "model.attention is 'relu'"),
    ('--config.loss.name=mse', "loss.name is 'mse'"),
    ('--config.eval.filter_seen=all', "eval.filter_seen is 'all'"),
  ],
)
def test_a_config_that_cannot_be(command, tmp_path, override, message):
  given = log(tmp_path / 'log.csv')
  assert message in command(given, override)


def test_a_config_that_is_not_there(command, tmp_path):
  told = command(f'--config={tmp_path}/confg.py')
  assert told.startswith(f"no config file '{tmp_path}/confg.py'; did you mean ")
  assert told.endswith("/config.py'?")


def test_a_workdir_of_another_config(command, tmp_path):
  given = log(tmp_path / 'log.csv')
  assert command(given) is None
  (tmp_path / 'run' / 'metrics.jsonl').write_text('{"step": 1}\n')
  before = (tmp_path / 'run' / 'config.json').read_bytes()
  told = command(given, '--config.model.blocks=3', '--config.seed=1')
  assert 'belongs to another config; use another --workdir, or undo:' in told
  assert told.endswith(
    '\n  model.blocks: saved 1, now 3\n  seed: saved 0, now 1'
  )
  assert (tmp_path / 'run' / 'config.json').read_bytes() == before
  (tmp_path / 'run' / 'config.json').write_text('{"model"')
  assert 'config.json is damaged' in command(given)
  (tmp_path / 'run' / 'config.json').unlink()
  assert 'but no config.json; use another --workdir' in command(given)


@pytest.mark.parametrize('mode', ['predict', 'eval'])
def test_a_workdir_that_holds_no_run(command, tmp_path, mode):
  given = log(tmp_path / 'log.csv')
  told = command(given, f'--mode={mode}')
  assert 'is not the workdir of a run (no config.json); train first' in told
  assert not (tmp_path / 'run').exists()
  assert command(given) is None  # begins to train, and is gone
  told = command(given, f'--mode={mode}')
  assert '--mode=train' in told or 'train first' in told


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A run with a checkpoint, of the config above."""
  root = tmp_path_factory.mktemp('trained')
  (root / 'config.py').write_text(CONFIG)
  given = log(root / 'log.csv').removeprefix('--config.')
  config = config_lib.load(f'{root}/config.py', [given])
  workdir.claim_workdir(root / 'run', config)
  built = experiment.build_experiment(
    config, root / 'run', TASK_KINDS, log=lambda *_: None
  )
  built.data.save_for_predicting(root / 'run')
  with CheckpointManager(
    root / 'run/checkpoints', log=lambda *_: None
  ) as saved:
    saved.save(1, flatten_state(built.runtime.fresh_state()))
  return root / 'run'


@pytest.mark.parametrize(
  'rows, options, message',
  [
    (with_row(20, 'u1,i1'), [], 'in.csv, line 20: 2 fields instead of 4'),
    (with_row(9, f'u1,,{T},1'), [], "in.csv, line 9: '' is not an item id"),
    ([f'a,i1,{T}000,1'], [], 'in.csv: times reach 1700000000000 seconds'),
    ([], [], 'in.csv: the file holds no events'),
    ([f'a,x,{T},1'], [], 'in.csv: of 1 events none is of an item the model'),
    (ROWS, ['columns.item=itm'], "in.csv: no column 'itm' for the item"),
    (ROWS, ['columns.itm=item'], 'predict.columns.item ?'),
    (ROWS, ['format=json'], "predict.format is 'json', must be one of csv"),
    (ROWS, ['top_k=0'], 'predict.top_k is 0, must be at least 1'),
    (ROWS, ['output=out.xlsx'], 'its suffix must be one of .csv, .jsonl'),
    (ROWS, ['request_time=9'], 'request_time 9 is before the last event of'),
  ],
)
def test_histories_that_cannot_be_predicted_for(
  command, trained, tmp_path, rows, options, message
):
  older = trained / 'predictions.csv'
  older.write_text('user,rank,item,score\n')
  log(tmp_path / 'in.csv', rows)
  told = command(
    f'--workdir={trained}',
    '--mode=predict',
    f'--config.predict.input={tmp_path}/in.csv',
    *(f'--config.predict.{option}' for option in options),
  )
  assert message in told
  assert older.read_text() == 'user,rank,item,score\n'
  assert not (trained / 'predict').exists()


def test_a_damaged_checkpoint_is_refused(command, trained, tmp_path):
  (path,) = trained.glob('checkpoints/1/state/d/*')
  whole = path.read_bytes()
  path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  try:
    told = command(f'--workdir={trained}', '--mode=predict')
  finally:
    path.write_bytes(whole)
  assert 'no checkpoint' in told and 'is whole' in told


@pytest.mark.parametrize('mode', ['train', 'predict'])
def test_a_process_ends_with_status_one_and_a_line(tmp_path, mode):
  (tmp_path / 'config.py').write_text(CONFIG)
  given = log(tmp_path / 'log.csv', with_row(20, 'u1'))
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'genrec_jax.main',
      f'--config={tmp_path}/config.py',
      f'--workdir={tmp_path}/run',
      f'--mode={mode}',
      given,
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert not done.stdout
  message = {
    'train': f'error: {tmp_path}/log.csv, line 20: 1 fields instead of 4',
    'predict': f'error: {tmp_path}/run is not the workdir of a run',
  }[mode]
  assert done.stderr.splitlines()[-1].startswith(message)
  assert 'Traceback' not in done.stderr
