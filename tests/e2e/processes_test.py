"""Trainings of several real processes: the lines of one, and what kills them.

Two processes have two devices each, four have one: the same four places.
"""

import json
import os
import pathlib
import signal

import jax
import pytest

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import kind_of
from genrec_jax.parallel import job as job_lib
from genrec_jax.progress import Progress
from genrec_jax.runtime.build import plan_eval_runtime
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment
from tests import processes
from tests.e2e import spread_runs
from tests.e2e.spread_runs import EVERY, ROWS, STEPS, assert_same_curve
from tests.train import tiny_run

TIMEOUT = 400.0  # of machines that are busy
FSDP = 'parallel.dense=fsdp'


def mesh(hosts: int, devices: int) -> tuple[str, str]:
  return f'parallel.hosts={hosts}', f'parallel.devices={devices}'


def train(workdir, overrides, fault=None):
  """In a process of a job; `fault` is (process, step, what is done then)."""
  jax.config.update('jax_numpy_dtype_promotion', 'strict')
  if fault and jax.process_index() == fault[0]:
    _after(*fault[1:])
  return spread_runs.train(workdir, 'hstu', ROWS, *overrides)


def _after(step: int, happen) -> None:
  update = Progress.update

  def wrapped(self, at, **shown):
    update(self, at, **shown)
    if at == step:
      happen()

  Progress.update = wrapped


def die():
  os.kill(os.getpid(), signal.SIGKILL)


def terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def interrupt():
  os.kill(os.getpid(), signal.SIGINT)


def fail():
  raise ValueError('a broken part of the data')


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """The workdir of a run of one process on one device."""
  workdir = tmp_path_factory.mktemp('alone')
  spread_runs.train(workdir, 'hstu', ROWS)
  return workdir


def job(
  workdir, *overrides, processes_=2, devices=2, fault=None, as_command=False
):
  """Trains in several processes; returns what each did (see `processes`)."""
  return processes.outcomes(
    train,
    str(workdir),
    (*mesh(processes_, devices), *overrides),
    fault,
    processes=processes_,
    devices=devices,
    timeout=TIMEOUT,
    grace=60.0 if fault else 0.0,
    as_command=as_command,
  )


def reports(outcomes) -> list[dict]:
  for number, one in enumerate(outcomes):
    assert one.exitcode == 0, f'process {number}:\n{one.output[-4000:]}'
  return [one.value for one in outcomes]


def assert_written_once(workdir: pathlib.Path, outcomes) -> None:
  """One process spoke and wrote; nothing half made is left."""
  lead, *others = outcomes
  assert lead.output.count('vs popularity') == 1  # the table of the report
  for one in others:
    assert 'step 1/' not in one.output and 'popularity' not in one.output
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  logged = [json.loads(x)['step'] for x in lines if 'train/loss' in x]
  assert logged == list(range(1, STEPS + 1))
  assert len([p for p in workdir.iterdir() if p.name.startswith('events')]) == 1
  assert (workdir / 'report.html').stat().st_size > 10_000
  assert json.loads((workdir / 'report.json').read_text())['steps'] == STEPS
  left = [p for p in workdir.rglob('*') if 'tmp' in p.name or 'part' in p.name]
  assert not left


@pytest.fixture(scope='module')
def two(tmp_path_factory):
  """(workdir, outcomes) of two processes with two devices each."""
  workdir = tmp_path_factory.mktemp('two')
  return workdir, job(workdir, FSDP)


def test_two_processes_train_as_one(two, alone):
  workdir, outcomes = two
  first, second = reports(outcomes)
  assert first['metrics'] == second['metrics']
  assert_same_curve(workdir, alone)
  assert_written_once(workdir, outcomes)


def kill(workdir, process) -> None:
  """A process dies behind the first checkpoint, and with it the job."""
  died = job(workdir, FSDP, fault=(process, EVERY + 2, die), as_command=True)
  assert died[process].exitcode == -signal.SIGKILL
  assert died[1 - process].exitcode == 1
  said = died[1 - process].output
  assert f'error: process {process} of 2 (host ' in said, said
  assert 'it died or was killed; ' in said and 'the same command' in said
  assert 'Traceback' not in said and 'Check failure' not in said
  assert not (workdir / 'report.json').exists()


def stop(workdir, act, process, at, status) -> None:
  """A process is sent a signal, and all of the job stop at one step."""
  stopped = job(workdir, FSDP, fault=(process, at, act), as_command=True)
  assert [one.exitcode for one in stopped] == [status, status]
  step = manifest.list_steps(workdir / 'checkpoints')[-1]
  assert at <= step <= at + 2
  assert f' at step {step} of {STEPS}; the same command' in stopped[0].output
  assert 'stopped' not in stopped[1].output


def test_killed_then_stopped_then_run_to_its_end(two, tmp_path):
  """One run that meets both, since every start of a job costs seconds."""
  kill(tmp_path, 1)
  stop(tmp_path, terminate, 1, 2 * EVERY + 1, 75)
  reports(job(tmp_path, FSDP, as_command=True))
  assert tiny_run.curve(tmp_path) == tiny_run.curve(two[0])  # to the last bit


@pytest.mark.slow
def test_the_first_process_is_killed(tmp_path):
  kill(tmp_path, 0)


@pytest.mark.slow
def test_the_first_process_is_interrupted(tmp_path):
  stop(tmp_path, interrupt, 0, EVERY + 1, 130)


def start(workdir, log):
  """What each process meets when it starts; nothing is compiled."""
  me, met, lines = jax.process_index(), [], []

  def meet(*overrides):
    config = spread_runs.config('hstu', *mesh(2, 1), *overrides)
    try:
      with workdir_lib.own_workdir(workdir, config):
        experiment.build_experiment(config, workdir, TASK_KINDS, lines.append)
    except (ValueError, OSError) as error:
      met.append(str(error))

  meet(f'seed={me}')
  csv = ('data.name=csv', 'split.name=leave_last_out')
  meet(*csv, f'data.path={log}')
  other = log.with_name('other.csv')
  if me == 1:  # another file of the same layout
    other.write_text(log.read_text().replace('u1,', 'v1,'))
  meet(*csv, f'data.path={other if me == 1 else log}')
  meet(*csv, f'data.path={log.with_name("none.csv") if me == 1 else log}')
  return met, sum('converted' in line for line in lines)


def test_processes_that_disagree_end_before_the_first_step(tmp_path):
  log = tmp_path / 'log.csv'
  rows = [
    f'u{user},{item},{user + item}' for user in range(9) for item in range(5)
  ]
  log.write_text('\n'.join(['user,item,time', *rows]))
  found = processes.run(start, tmp_path / 'run', log, processes=2, devices=1)
  (first, by_lead), (second, by_other) = found
  assert first[0].startswith('taking the workdir: process 1: the processes of')
  assert 'seed: saved 0, now 1' in second[0]
  assert first[1].startswith('comparing the data of the processes: process 1')
  assert 'give all processes the same files in data.path' in second[1]
  assert first[2].startswith('reading the data: process 1: ')
  assert 'none.csv: no such file' in second[2]
  assert len(first) == len(second) == 3
  assert (by_lead, by_other) == (1, 1)  # its own other file
  assert len(list((tmp_path / 'run' / 'data').iterdir())) == 2


def predict(workdir, output, *overrides):
  """In a process of a job, or alone; the lines that process 0 has written."""
  config = spread_runs.config(
    'hstu', ROWS, f'predict.output={output}', 'predict.top_k=3', *overrides
  )
  make_runtime = plan_eval_runtime(config)
  kind_of(config, TASK_KINDS).predict(
    config, workdir, None, make_runtime=make_runtime
  )
  if job_lib.is_leader():
    return pathlib.Path(output).read_text().splitlines()
  return None


def predict_twice(workdir, output, *overrides):
  """Without a mesh, which is refused; and on one."""
  with pytest.raises(ConfigError) as refused:
    predict(workdir, output)
  return str(refused.value), predict(workdir, output, *overrides)


def test_two_processes_predict_as_one(two, tmp_path):
  """Each has a part of the table; one of them writes."""
  workdir, _ = two
  (said, lines), (_, nothing) = processes.run(
    predict_twice,
    str(workdir),
    str(tmp_path / 'two.csv'),
    *mesh(2, 2),
    processes=2,
    devices=2,
    timeout=TIMEOUT,
  )
  assert '2 processes have been started' in said
  assert 'set parallel.hosts=2' in said
  wanted = predict(workdir, tmp_path / 'one.csv')
  assert nothing is None and len(lines) == len(wanted) > 20
  for line, other in zip(lines, wanted, strict=True):
    for value, other_value in zip(
      line.split(','), other.split(','), strict=True
    ):
      if value != other_value:  # a score, rounded elsewhere
        assert float(value) == pytest.approx(float(other_value), rel=1e-5)
  assert {p.name for p in tmp_path.iterdir()} == {'one.csv', 'two.csv'}


@pytest.mark.slow
def test_four_processes_train_as_one(alone, tmp_path):
  outcomes = job(tmp_path, processes_=4, devices=1)
  reports(outcomes)
  assert_same_curve(tmp_path, alone)
  assert_written_once(tmp_path, outcomes)


@pytest.mark.slow
def test_two_processes_then_four_then_one(alone, tmp_path):
  """Checkpoints do not know how many processes made them."""
  steps = f'train.steps={EVERY}'
  reports(job(tmp_path, FSDP, steps))
  steps = f'train.steps={2 * EVERY}'
  reports(job(tmp_path, steps, processes_=4, devices=1))
  spread_runs.train(tmp_path, 'hstu', ROWS)
  assert_same_curve(tmp_path, alone)


def test_an_error_in_one_process_ends_the_other(tmp_path):
  failed = job(tmp_path, FSDP, fault=(1, EVERY + 2, fail))
  assert [one.exitcode for one in failed] == [1, 1]
  said = failed[0].output
  assert 'training: process 1: a broken part of the data' in said, said


@pytest.mark.slow
@pytest.mark.parametrize('process', [0, 1])
@pytest.mark.parametrize('step', [2, EVERY + 1, 2 * EVERY + 3])
def test_any_process_killed_anywhere(two, tmp_path, process, step):
  died = job(tmp_path, FSDP, fault=(process, step, die), as_command=True)
  assert died[process].exitcode == -signal.SIGKILL
  assert died[1 - process].exitcode == 1
  reports(job(tmp_path, FSDP))
  assert tiny_run.curve(tmp_path) == tiny_run.curve(two[0])
