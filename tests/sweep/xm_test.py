"""XManager: what it is handed, and real runs by its local executor."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from genrec_jax import command_line, interruption
from genrec_jax import config as config_lib
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.sweep import record, run_states
from genrec_jax.sweep import xm as ours
from tests.sweep.slurm_test import PYTHON

# Google's libraries warn of their own ways.
pytestmark = pytest.mark.filterwarnings('default')
SETS = ('eval.ks=(1, 5, 10)', 'split.valid_from=None,0.9')
SWITCH = 'train.eval_first=true'


def make_args(**flags):
  values = dict.fromkeys((*ours._OF_HERE, *ours._OF_CLOUDS, *ours._OF_OTHERS))
  values |= {'xm_executor': 'local', 'xm_flag': [], 'xm_base_image': None}
  return argparse.Namespace(**values | flags)


def cloud_args(**flags):
  flags = {'xm_executor': 'vertex', 'xm_workdir': '/gcs/bucket/dir', **flags}
  return make_args(**flags)


@pytest.fixture
def xm(tmp_path, monkeypatch):
  """The API of XManager, which keeps its records in the test's directory."""
  api = pytest.importorskip('xmanager.xm')
  from xmanager.xm_local.storage import database

  monkeypatch.setenv('HOME', str(tmp_path))
  for cached in (database.database, database.db_settings):
    cached.cache_clear()
  return api


@pytest.fixture
def mock(xm, monkeypatch):
  """An experiment that remembers its jobs, in the place of a real one."""
  from xmanager import xm_local, xm_mock

  experiment = xm_mock.MockExperiment()
  monkeypatch.setattr(xm_local, 'create_experiment', lambda title: experiment)
  return experiment


@pytest.fixture
def fake_runs(tmp_path, monkeypatch):
  """Runs of the sweep are fake ones."""
  python = tmp_path / 'fake_python'
  text = PYTHON.format(python=sys.executable, paths=[os.getcwd()])
  python.write_text(text)
  python.chmod(0o755)
  monkeypatch.setattr(ours.sys, 'executable', str(python))


def states_of(sweep, wanted):
  return [run_states.find_state(sweep, variant)[0] for variant in wanted]


def load_as_a_run_does(words):
  """The config that a run makes of its command line."""
  rest, overrides = command_line.split_overrides(list(words))
  assert not command_line.find_repeated(overrides)
  flags = dict(word.removeprefix('--').split('=', 1) for word in rest)
  return config_lib.load(flags['config'], overrides), flags['workdir']


def test_values_are_text_and_come_back_as_they_were(make_sweep):
  sweep, wanted = make_sweep(*SETS, overrides=[SWITCH])
  jobs = ours.plan_jobs(sweep, wanted, '/gcs/b/d/', 'quickstart:smoke')
  assert [name for name, _ in jobs] == ['run-1', 'run-2']
  for (_, flags), valid_from in zip(jobs, (None, 0.9), strict=True):
    assert all(isinstance(text, str) for text in flags.values())
    words = [f'--{flag}={text}' for flag, text in flags.items()]
    config, workdir = load_as_a_run_does(words)
    assert config.eval.ks == (1, 5, 10) and config.train.eval_first is True
    assert config.split.valid_from == valid_from
  assert workdir == '/gcs/b/d/2'


@pytest.mark.parametrize(
  'workdir, expected',
  [
    ('/gcs/b/d', '/gcs/b/d/3'),
    ('/gcs/b/{wid}/run', '/gcs/b/3/run'),
    ('/gcs/b/{name}', '/gcs/b/002_seed=2'),
  ],
)
def test_a_second_launch_goes_on_in_the_same_workdirs(
  workdir, expected, make_sweep
):
  sweep, wanted = make_sweep('seed=0..2')
  for left in (wanted, wanted[2:]):
    jobs = ours.plan_jobs(sweep, left, workdir, 'quickstart:smoke')
    assert jobs[-1][1]['workdir'] == expected


@pytest.mark.parametrize(
  'args, message',
  [
    (make_args(xm_gpu='a100=8'), 'local has no --xm_gpu'),
    (make_args(retries=2), 'has no --retries'),
    (cloud_args(jobs=2), 'vertex has no --jobs'),
    (cloud_args(xm_workdir=None), '--xm_workdir must be a path'),
    (cloud_args(xm_workdir='gs://bucket/dir'), 'is /gcs/BUCKET/DIR'),
    (cloud_args(xm_executor='kubernetes', xm_tpu='v3=8'), 'no TPU'),
  ],
)
def test_flags_that_nobody_would_heed(args, message, make_sweep):
  with pytest.raises(ConfigError, match=message):
    ours.launch_sweep(*make_sweep('seed=0'), args)


def test_without_xmanager(make_sweep, monkeypatch):
  monkeypatch.setitem(sys.modules, 'xmanager', None)
  with pytest.raises(ConfigError, match=r"pip install 'genrec_jax\[xm\]'"):
    ours.launch_sweep(*make_sweep('seed=0'), make_args())


def test_what_an_image_holds(tmp_path):
  mine = tmp_path / 'mine.py'
  mine.write_text(
    'from genrec_jax import config\n'
    'def get_config(arg):\n  return config.load("quickstart:smoke")\n'
  )
  image = tmp_path / 'image'
  name = ours.copy_project(image, f'{mine}:smoke', {'gcs', 'cuda12'})
  assert name == 'sweep_config/mine.py:smoke'
  required = (image / 'requirements.txt').read_text().splitlines()
  wanted = [line for line in required if 'extra' not in line]
  assert any(line.startswith('jax[cuda12]') for line in wanted)
  assert any(line.startswith('gcsfs') for line in wanted)
  assert not any(line.startswith(('pytest', 'jax[tpu]')) for line in wanted)
  code = 'import genrec_jax; print(genrec_jax.__file__)'
  flags = [f'--config={name}', '--config.eval.ks=(1, 5)', '--print_config']
  for words in (['-c', code], ['-m', 'genrec_jax.main', *flags]):
    done = subprocess.run(
      [sys.executable, *words], cwd=image, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if '-c' in words:
      assert pathlib.Path(done.stdout.strip()).is_relative_to(image)
  assert json.loads(done.stdout)['eval']['ks'] == [1, 5]
  assert ours.copy_project(tmp_path / 'b', 'quickstart:smoke', set()) == (
    'quickstart:smoke'
  )


def test_a_launcher_needs_no_jax():
  code = 'import sys, genrec_jax.sweep.xm; assert "jax" not in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True)


def test_what_xmanager_does_to_values(xm):
  args = {'ks': (1, 10), 'none': None, 'on': True, 'off': False}
  words = xm.merge_args(args).to_list()
  assert words == ['--ks=1', '--ks=10', '--on', '--nooff']
  args = {'ks': '(1, 10)', 'none': 'None', 'on': 'true'}
  words = xm.merge_args(args).to_list(str)
  assert words == ['--ks=(1, 10)', '--none=None', '--on=true']


@pytest.mark.parametrize('executor', ['vertex', 'kubernetes'])
def test_jobs_of_a_cloud(executor, mock, make_sweep, capsys):
  from xmanager.xm import utils

  sweep, wanted = make_sweep(*SETS, overrides=[SWITCH])
  args = cloud_args(
    xm_executor=executor, xm_gpu='A100=8', xm_cpu=96.0, xm_ram_gb=1000.0,
    xm_push='registry.example/genrec:1',
  )  # fmt: skip
  assert ours.launch_sweep(sweep, wanted, args) == interruption.DONE
  assert 'run-2: /gcs/bucket/dir/2' in capsys.readouterr().out
  assert [*mock.work_units] == [1, 2]  # the numbers in the workdirs
  for wid, job in enumerate(mock.launched_jobs, 1):
    assert type(job.executor).__name__.lower() == executor
    needs = job.executor.requirements
    assert needs.accelerator.name == 'A100' and needs.topology.chip_count == 8
    config, workdir = load_as_a_run_does(job.args.to_list(utils.ARGV_ESCAPER))
    assert config.eval.ks == (1, 5, 10) and config.train.eval_first is True
    assert config.split.valid_from == (None, 0.9)[wid - 1]
    assert workdir == f'/gcs/bucket/dir/{wid}'


def test_what_is_done_is_not_launched(mock, make_sweep):
  sweep, wanted = make_sweep('seed=0,1')
  sweep.workdir(wanted[0]).mkdir()
  (sweep.workdir(wanted[0]) / 'report.json').write_text('{}')
  args = cloud_args(xm_image='gcr.io/p/genrec')
  ours.launch_sweep(sweep, wanted, args)
  [job] = mock.launched_jobs
  assert job.name == 'run-2'


@pytest.mark.parametrize(
  'flags, message',
  [
    ({'xm_gpu': 'h100=8'}, 'no machine of Vertex has h100'),
    ({'xm_gpu': 'gtx=8'}, 'gtx'),
    ({'xm_gpu': 'cpu=8'}, 'cpu is no accelerator'),
    ({'xm_gpu': '8'}, 'KIND=N'),
    ({'xm_tpu': 'v4=8'}, 'no such machine'),
    ({'xm_tpu': 'v3=8', 'xm_gpu': 'a100=1'}, 'ccelerator already set'),
    ({'xm_flag': ['--xm_no_such']}, '--xm_flag'),
    ({'xm_flag': ['--xm_use_multiplexer']}, 'multiplexer'),
  ],
)
def test_what_xmanager_cannot_give(flags, message, mock, make_sweep):
  try:
    with pytest.raises(ConfigError, match=message):
      ours.launch_sweep(*make_sweep('seed=0'), cloud_args(**flags))
  finally:
    ours.parse_own_flags(['--noxm_use_multiplexer'])
  assert not mock.launched_jobs


def test_machines(xm):
  from xmanager.cloud import kubernetes, vertex

  def find_machine(**flags):
    executor = ours.make_executor(cloud_args(**flags))
    return vertex.get_machine_spec(xm.Job(None, executor))['machine_type']

  assert find_machine(xm_gpu='a100=8') == 'a2-highgpu-8g'
  assert find_machine(xm_gpu='l4=1', xm_cpu=8.0) == 'g2-standard-8'
  assert find_machine(xm_tpu='v3=8') == 'cloud-tpu'
  assert find_machine(xm_tpu='tpu_v2=8') == 'cloud-tpu'
  for kind, label in ('t4', {'nvidia-tesla-t4'}), ('h100', set()):
    executor = ours.make_executor(
      cloud_args(xm_executor='kubernetes', xm_gpu=f'{kind}=2')
    )
    limits = kubernetes.requirements_from_executor(executor).limits
    assert limits == {'nvidia.com/gpu': '2'}
    labels = kubernetes.node_selector_from_executor(executor)
    assert {*labels.values()} == label


def test_an_image_passes_words_on(xm, make_sweep, tmp_path, monkeypatch):
  from xmanager.cloud import build_image

  sweep, _ = make_sweep('seed=0')
  args = cloud_args(xm_tpu='v3=8', xm_base_image='python:3.12')
  with ours.stage_image(sweep, args) as (packageable, config):
    spec, place = packageable.executable_spec, packageable.executor_spec
    assert type(place).__name__ == 'VertexSpec'
    assert config == 'quickstart:smoke'
    required = pathlib.Path(spec.path, 'requirements.txt').read_text()
    assert 'jax[tpu]>=0.10.2\n' in required
    docker = build_image._create_dockerfile(
      spec, packageable.args, packageable.env_vars
    )
    entry = build_image._create_entrypoint(spec)
  text = pathlib.Path(docker).read_text()
  assert 'FROM python:3.12\n' in text and 'ENV PYTHONUNBUFFERED="1"' in text
  assert 'COPY genrec/ .' in text and 'ENTRYPOINT ["./entrypoint.sh"]' in text
  # What stands for python shows its words, and that it has become the process
  # which a signal to the container reaches.
  python = tmp_path / 'python'
  python.write_text('#!/bin/sh\necho $$\nprintf "%s\\n" "$@"\n')
  python.chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  words = ['--config.eval.ks=(1, 10)', '--config.x=None', "--config.y=a'b $z"]
  process = subprocess.Popen(
    ['bash', entry, *words], stdout=subprocess.PIPE, text=True
  )
  pid, *seen = process.communicate()[0].splitlines()
  assert (int(pid), seen) == (process.pid, ['-m', 'genrec_jax.main', *words])


def test_words_pass_the_shell_of_the_local_executor(xm, make_sweep, capfd):
  from xmanager import xm_local

  sweep, wanted = make_sweep(SETS[0], 'split.valid_from=None')
  [(name, flags)] = ours.plan_jobs(sweep, wanted, '/a b', 'quickstart:smoke')
  with xm_local.create_experiment('words') as experiment:
    main = ['-m', 'genrec_jax.main', '--print_config']
    spec = xm.binary(xm_local.Local.Spec(), sys.executable, args=main)
    [executable] = experiment.package([spec])
    experiment.add(xm.Job(executable, xm_local.Local(), name, flags))
  experiment._event_loop.close()  # XManager leaves it open
  lines = capfd.readouterr().out.splitlines()
  shown = [line[8:] for line in lines if line.startswith('[run-1] ')]
  config = json.loads('\n'.join(shown))
  assert config['eval']['ks'] == [1, 5, 10]
  assert config['split']['valid_from'] is None


def test_runs_here_and_failures(xm, fake_runs, make_sweep, capfd):
  sweep, wanted = make_sweep('data.path=fine,once,fails', 'seed=0,1')
  status = ours.launch_sweep(sweep, wanted, make_args(jobs=3, threads=2))
  assert status == interruption.FAILED
  done, failed = [notes.DONE] * 2, [notes.FAILED] * 2
  assert states_of(sweep, wanted) == [*done, *failed, *failed]
  out = capfd.readouterr().out
  assert '[000] 000_path=fine_seed=0: done' in out
  assert '4 runs failed' in out and 'Traceback' not in out
  assert (sweep.root / 'sweep.html').exists()
  note = notes.read_note(sweep.note(wanted[0]))
  assert note.peak_bytes > 1e6 and note.status == 0
  starts = (sweep.workdir(wanted[0]) / 'starts').read_text()
  assert starts.split()[2] == '2'  # threads
  assert sweep.log(wanted[0]).read_text().startswith('step 1/4')

  ours.launch_sweep(sweep, wanted, make_args())
  assert states_of(sweep, wanted) == [*done, *done, *failed]
  assert (sweep.workdir(wanted[0]) / 'starts').read_text() == starts


def test_a_signal_saves_and_the_next_launch_goes_on(
  xm, fake_runs, make_sweep, monkeypatch
):
  sweep, wanted = make_sweep('seed=0..2')
  monkeypatch.setenv('FAKE_STEP_S', '2')
  begun = [sweep.workdir(v) / 'metrics.jsonl' for v in wanted[:2]]

  def interrupt():
    while not all(path.exists() for path in begun):
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=interrupt, daemon=True).start()
  with pytest.raises(interruption.Stopped):
    ours.launch_sweep(sweep, wanted, make_args(jobs=2, threads=0))
  stopped = [notes.STOPPED, notes.STOPPED, notes.WAITING]
  assert states_of(sweep, wanted) == stopped
  monkeypatch.setenv('FAKE_STEP_S', '0.02')
  assert ours.launch_sweep(sweep, wanted, make_args(jobs=3)) == 0
  assert states_of(sweep, wanted) == [notes.DONE] * 3
  for path in begun:
    assert len(path.read_text().splitlines()) == 4  # no step twice


@pytest.mark.slow
def test_two_real_trainings_here(xm, make_sweep):
  sweep, wanted = make_sweep(*SETS, overrides=[SWITCH])
  assert ours.launch_sweep(sweep, wanted, make_args()) == interruption.DONE
  for variant, valid_from in zip(wanted, (None, 0.9), strict=True):
    workdir = sweep.workdir(variant)
    config = json.loads((workdir / 'config.json').read_text())
    assert config['eval']['ks'] == [1, 5, 10]
    assert config['split']['valid_from'] == valid_from
    assert config['train']['eval_first'] is True
    report = json.loads((workdir / 'report.json').read_text())
    assert 0 <= report['metrics']['test']['ndcg@5'] <= 1
  assert record.require_sweep(sweep.root).variants == tuple(wanted)
