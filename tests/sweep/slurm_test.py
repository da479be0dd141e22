"""Arrays of Slurm, submitted to programs that do as Slurm does."""

import doctest
import os
import shutil
import subprocess
import sys
import time

import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.sweep import __main__ as sweep_command
from genrec_jax.sweep import run_states, slurm, slurm_task
from tests.sweep.conftest import fake_command

PROGRAM = sys.executable  # which `cluster` replaces
# Runs the script once a task, as slurmd does: without the variables of a step.
# With SLURM_HOLD all tasks stay in the queue.
SBATCH = """#!/bin/bash
script="${@: -1}"
job=$(($(cat "$SLURM_LOG.jobs" 2>/dev/null || echo 6) + 1))
echo $job > "$SLURM_LOG.jobs"
echo "sbatch $*" >> "$SLURM_LOG"
array=$(sed -n 's/^#SBATCH --array=//p' "$script")
[ -n "$SLURM_HOLD" ] || for task in $(python3 -c "
import sys
for part in sys.argv[1].partition('%')[0].split(','):
  first, _, last = part.partition('-')
  print(*range(int(first), int(last or first) + 1))
" "$array"); do
  SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$task SLURM_JOB_ID=$job \\
    bash "$script" >> "$SLURM_LOG" 2>&1
  echo "task $task: $?" >> "$SLURM_LOG"
done
echo "Submitted batch job $job"
"""
SRUN = """#!/bin/bash
shift
export SLURM_STEP_NODELIST=here SLURM_PROCID=0
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> "$SLURM_LOG"
echo "MaxArraySize            = ${SLURM_MOST:-1001}"
"""
SQUEUE = """#!/bin/bash
echo "squeue $*" >> "$SLURM_LOG"
cat "$SLURM_LOG.queue" && exit
echo 'slurm_load_jobs error: Invalid job id specified' >&2
exit 1
"""
# Stands for the installed package, whose runs are fake ones.
PYTHON = """#!{python}
import sys
sys.path[:0] = {paths!r}
from tests.sweep.conftest import FAKE
from genrec_jax.processes import children
from genrec_jax.sweep import __main__ as sweep
children.command_of = lambda words: [{python!r}, str(FAKE), *words]
from genrec_jax.sweep import local
local.Launcher.__init__.__defaults__ = (children.command_of,)
sweep.run(sys.argv[3:])
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  """Puts programs of Slurm on the path; returns the log of what they did."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  python = PYTHON.format(python=sys.executable, paths=[os.getcwd()])
  for name, text in (
    ('sbatch', SBATCH), ('srun', SRUN), ('scontrol', SCONTROL),
    ('squeue', SQUEUE), ('fake_python', python),
  ):  # fmt: skip
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')
  monkeypatch.setenv('SLURM_LOG', str(tmp_path / 'slurm.log'))
  monkeypatch.setattr(slurm.sys, 'executable', str(folder / 'fake_python'))
  return tmp_path / 'slurm.log'


def test_examples():
  assert doctest.testmod(slurm).failed == 0


def test_an_array_runs_each_variant_once(cluster, make_sweep):
  sweep, wanted = make_sweep('seed=0..3')
  said = slurm.submit(sweep, wanted[1:], jobs=2, options=['--time=1:00:00'])
  assert 'Submitted batch job 7: 3 runs' in said
  assert [run_states.find_state(sweep, v)[0] for v in wanted] == [
    'waiting', 'done', 'done', 'done',
  ]  # fmt: skip
  script = (sweep.root / slurm.SCRIPT).read_text()
  assert '#SBATCH --array=1-3%2\n' in script
  assert '#SBATCH --time=1:00:00\n' in script
  subprocess.run(['bash', '-n', sweep.root / slurm.SCRIPT], check=True)
  assert cluster.read_text().count(': 0') == 3


def test_a_task_that_fails(cluster, make_sweep):
  sweep, wanted = make_sweep('data.path=fails')
  slurm.submit(sweep, wanted)
  assert 'task 0: 1' in cluster.read_text()
  assert run_states.find_state(sweep, wanted[0])[0] == notes.FAILED


def test_a_preempted_task_is_put_back_and_goes_on(
  cluster, make_sweep, tmp_path, monkeypatch
):
  sweep, wanted = make_sweep('seed=0')
  # The task is sent SIGTERM while it runs, as at the end of its time.
  monkeypatch.setenv('FAKE_STEP_S', '0.4')
  srun = tmp_path / 'bin/srun'
  begun = sweep.workdir(wanted[0]) / 'metrics.jsonl'
  srun.write_text(
    f'#!/bin/bash\nshift\n"$@" &\nuntil [ -e "{begun}" ]; do sleep 0.05; done\n'
    'kill -TERM $!; wait $!\n'
  )
  slurm.submit(sweep, wanted)
  assert 'requeue 7_0' in cluster.read_text()
  assert run_states.find_state(sweep, wanted[0])[0] == notes.STOPPED
  srun.write_text(SRUN)
  slurm.submit(sweep, wanted)
  assert run_states.find_state(sweep, wanted[0])[0] == notes.DONE
  lines = (sweep.workdir(wanted[0]) / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 4  # nothing twice


def test_what_waits_or_runs_is_left_out(cluster, make_sweep, monkeypatch):
  sweep, wanted = make_sweep('seed=0..5')
  monkeypatch.setenv('SLURM_HOLD', '1')
  slurm.submit(sweep, wanted[:4])
  queue = cluster.with_name('slurm.log.queue')
  queue.write_text(
    '7_0|COMPLETED\n7_1|RUNNING\n7_2|PENDING\n7_3|REQUEUE_HOLD\n'
  )
  sweep.workdir(wanted[4]).mkdir()
  (sweep.workdir(wanted[4]) / 'report.json').write_text('{}')
  left, words = slurm.choose_variants(sweep, wanted)
  assert [v.number for v in left] == [0, 5]  # 0 has no report
  assert words == (
    'left out: 1 running in Slurm; 1 pending in Slurm; 1 requeue_hold in '
    'Slurm; 1 done'
  )
  slurm.submit(sweep, left)
  assert '--jobs=7 ' not in cluster.read_text().splitlines()[-1]
  assert [job.job for job in slurm.read_jobs(sweep)] == ['7', '8']
  queue.unlink()  # both are forgotten
  left, words = slurm.choose_variants(sweep, wanted)
  assert [v.number for v in left] == [0, 1, 2, 3, 5] and words
  assert not slurm.read_jobs(sweep)


def test_a_run_whose_task_is_gone_is_submitted_again(cluster, make_sweep):
  sweep, wanted = make_sweep('seed=0..1')
  (sweep.root / 'logs').mkdir()
  for variant, job in zip(wanted, ('7_0.0', '7_1.2'), strict=True):
    sweep.log(variant).touch()  # has printed just now
    notes.write_note(
      sweep.note(variant), notes.Note(notes.RUNNING, 'node1', 1, job=job)
    )
  cluster.with_name('slurm.log.queue').write_text('7_1|RUNNING\n')
  left, words = slurm.choose_variants(sweep, wanted)
  assert left == wanted[:1] and words == 'left out: 1 running'
  state, note = run_states.find_state(sweep, wanted[0])
  assert (state, note.why) == (
    'stopped',
    'the task 7_0 of Slurm has ended without a word',
  )


def test_a_queue_that_does_not_answer(cluster, make_sweep, tmp_path):
  sweep, wanted = make_sweep('seed=0')
  (tmp_path / 'bin/squeue').write_text('#!/bin/bash\necho no way >&2; exit 1')
  assert slurm.choose_variants(sweep, wanted) == (wanted, '')  # never was there
  slurm.submit(sweep, wanted)
  with pytest.raises(ConfigError, match=r'no way.*twice.*jobs 7 have ended'):
    slurm.choose_variants(sweep, wanted)
  (sweep.root / 'logs/slurm.json').write_text('[{"job": "7; rm"}]')
  with pytest.raises(ConfigError, match=r'slurm.json cannot be read'):
    slurm.choose_variants(sweep, wanted)


@pytest.mark.parametrize(
  'words, message',
  [
    ('--threads=2', '--threads: use --sbatch=--cpus-per-task=2'),
    ('--memory_gb=4', '--memory_gb: use --sbatch=--mem=4G'),
    ('--gpus=0,1', '--gpus: use --sbatch=--gres=gpu:1'),
    ('--stop_bad', '--stop_bad: no launcher watches'),
    ('--grace_s=5', '--grace_s: the cluster sets'),
    ('--xm_gpu=a100=8', '--xm_gpu; it is of XManager'),
    ('--retries=-1', '--retries must be'),
  ],
)
def test_flags_that_nobody_heeds(words, message):
  args = sweep_command.make_parser().parse_args(['--backend=slurm', words])
  with pytest.raises(ConfigError, match=message):
    slurm.check_flags(args)


def test_flags_that_are_heeded():
  words = '--backend=slurm --jobs=2 --retries=3 --sbatch=--mem=4G'.split()
  slurm.check_flags(sweep_command.make_parser().parse_args(words))


def test_a_run_that_fails_is_tried_again(cluster, make_sweep):
  sweep, wanted = make_sweep('data.path=once')
  slurm.submit(sweep, wanted, retries=1)
  assert 'task 0: 0' in cluster.read_text()
  assert run_states.find_state(sweep, wanted[0])[0] == notes.DONE


def test_more_variants_than_an_array_takes(cluster, make_sweep, monkeypatch):
  sweep, wanted = make_sweep('seed=0..6')
  monkeypatch.setenv('SLURM_MOST', '3')
  slurm.submit(sweep, [wanted[n] for n in (1, 2, 3, 6)], jobs=2)
  states = [run_states.find_state(sweep, v)[0] for v in wanted]
  assert [n for n, s in enumerate(states) if s == notes.DONE] == [1, 2, 3, 6]
  script = (sweep.root / 'sweep_3.sbatch').read_text()
  assert '#SBATCH --array=0%2\n' in script
  # One after another: each would have two tasks at a time.
  said = cluster.read_text()
  assert 'sbatch --dependency=afterany:8 ' in said
  assert [job.first for job in slurm.read_jobs(sweep)] == [0, 3, 6]
  cluster.with_name('slurm.log.queue').write_text('8_0|RUNNING\n9_1|PENDING')
  (sweep.workdir(wanted[3]) / 'report.json').unlink()
  left, words = slurm.choose_variants(sweep, wanted[3:])
  assert [v.number for v in left] == [4, 5]
  assert words == 'left out: 1 running in Slurm; 1 done'


def test_names_that_mean_something_to_slurm(cluster, make_sweep):
  sweep, wanted = make_sweep('seed=0', root="a %j'b")
  slurm.submit(sweep, wanted)
  script = (sweep.root / slurm.SCRIPT).read_text()
  assert "a %%j'\"'\"'b/logs'/slurm-%A_%a.out\n" in script
  assert run_states.find_state(sweep, wanted[0])[0] == notes.DONE


def test_processors_reach_the_step(cluster, make_sweep, tmp_path, monkeypatch):
  sweep, wanted = make_sweep('seed=0')
  srun = tmp_path / 'bin/srun'
  srun.write_text('#!/bin/bash\necho "has $SRUN_CPUS_PER_TASK $NPROC"')
  monkeypatch.setenv('SLURM_CPUS_PER_TASK', '3')
  slurm.submit(sweep, wanted)
  assert 'has 3 3' in cluster.read_text()


@pytest.mark.parametrize(
  'option, seconds',
  [
    ('--time=5', 60),
    ('--time=0', 300),
    ('-t 10:00', 120),
    ('--time=1-0', 300),
    ('--partition=long', 300),
  ],
)
def test_the_warning_is_in_proportion(option, seconds):
  assert slurm.choose_warning([option]) == seconds


def test_a_task_that_gets_nowhere_is_not_put_back(
  cluster, make_sweep, tmp_path, monkeypatch, capsys
):
  sweep, wanted = make_sweep('seed=0')
  command = [PROGRAM, '-c', 'import sys; sys.exit(75)']
  monkeypatch.setattr(
    slurm_task.local.Launcher.__init__, '__defaults__', (lambda _: command,)
  )
  assert slurm_task.become_run(sweep, wanted[0]) == 75
  monkeypatch.setenv('SLURM_RESTART_COUNT', '1')
  assert slurm_task.become_run(sweep, wanted[0]) == slurm_task.STUCK
  assert 'before it had saved anything new' in capsys.readouterr().out
  (tmp_path / 'bin/srun').write_text('#!/bin/bash\nexit 76')
  slurm.submit(sweep, wanted)
  assert 'task 0: 76' in cluster.read_text()
  assert 'requeue' not in cluster.read_text()


def test_a_task_that_was_restarted_knows_that_it_was_dead(
  make_sweep, monkeypatch
):
  sweep, [variant] = make_sweep('seed=0')
  (sweep.root / 'logs').mkdir()
  sweep.log(variant).touch()
  notes.write_note(
    sweep.note(variant), notes.Note(notes.RUNNING, 'node1', 1, job='7_0.0')
  )
  states = []
  for task, restarts in ('1', '1'), ('0', ''), ('0', '1'):
    monkeypatch.setenv('SLURM_ARRAY_JOB_ID', '7')
    monkeypatch.setenv('SLURM_ARRAY_TASK_ID', task)
    monkeypatch.setenv('SLURM_RESTART_COUNT', restarts)
    monkeypatch.setenv('SLURM_JOB_ID', '9')
    states.append(run_states.find_state(sweep, variant)[0])
  assert states == [notes.RUNNING, notes.RUNNING, notes.STOPPED]
  assert notes.describe_this_process(notes.Note()).job == '7_0.1'


def start_processes(sweep, numbers, step):
  """Starts processes of one task, the run of variant 0."""
  words = ['-m', 'genrec_jax.sweep', str(sweep.root), '--run=0']
  env = {**os.environ, 'SLURM_NTASKS': '2', 'SLURM_JOB_ID': '9'}
  return [
    subprocess.Popen(
      [slurm.sys.executable, *words],
      env={**env, 'SLURM_PROCID': str(number), 'SLURM_STEP_ID': step},
    )
    for number in numbers
  ]


def test_all_processes_of_a_task_decide_alike(cluster, make_sweep):
  sweep, [variant] = make_sweep('seed=0')
  task = start_processes(sweep, (1, 0), '0')
  assert [process.wait(60) for process in task] == [0, 0]
  starts = sweep.workdir(variant) / 'starts'
  assert len(starts.read_text().splitlines()) == 2
  # What a former step was told is not for this one, whose run is done.
  [other] = start_processes(sweep, [1], '1')
  with pytest.raises(subprocess.TimeoutExpired):
    other.wait(3)
  [first] = start_processes(sweep, [0], '1')
  assert (first.wait(60), other.wait(60)) == (0, 0)
  assert len(starts.read_text().splitlines()) == 2


def test_a_first_process_that_is_lost(tmp_path):
  (tmp_path / 'step').write_text('0.0.0 wait 1\n')
  with pytest.raises(ConfigError, match='said nothing for 1 s'):
    slurm_task.await_decision(tmp_path / 'step', 0.6)


@pytest.fixture
def real_cluster(tmp_path, monkeypatch):
  """Skips where there is no Slurm that answers; runs are fake ones."""
  if not shutil.which('sbatch'):
    pytest.skip('no Slurm')
  # A ping does not wait for a controller that is not there.
  for command in (['scontrol', 'ping'], ['squeue']):
    if subprocess.run(command, capture_output=True, timeout=60).returncode:
      pytest.skip('Slurm does not answer')
  python = tmp_path / 'fake_python'
  python.write_text(PYTHON.format(python=sys.executable, paths=[os.getcwd()]))
  python.chmod(0o755)
  monkeypatch.setattr(slurm.sys, 'executable', str(python))


def test_a_real_slurm(real_cluster, make_sweep):
  sweep, wanted = make_sweep('seed=0..1', root="a %j'b")
  options = ['--ntasks=1', '--time=10']
  slurm.submit(sweep, wanted[:1], options=['--begin=now+1hour', *options])
  try:
    left, words = slurm.choose_variants(sweep, wanted)
    assert (left, words) == (wanted[1:], 'left out: 1 pending in Slurm')
    slurm.submit(sweep, left, options=options)
    for _ in range(300):
      if run_states.find_state(sweep, wanted[1])[0] == notes.DONE:
        break
      time.sleep(0.2)
    else:
      pytest.skip('this Slurm has no room')
    [log] = (sweep.root / 'logs').glob('slurm-*_1.out')
    assert 'seed=1: done' in log.read_text()
  finally:
    jobs = [job.job for job in slurm.read_jobs(sweep)]
    subprocess.run(['scancel', *jobs], check=True)
  assert slurm.choose_variants(sweep, wanted)[0] == wanted[:1]


@pytest.mark.parametrize(
  'options, message',
  [
    ({'options': ['partition=gpu']}, 'takes an option of sbatch'),
    ({'options': ['--x\nrm']}, 'takes an option of sbatch'),
    ({'options': ['--array=1']}, 'use --only'),
    ({'options': ['--time=1']}, 'too early'),
    ({'jobs': 0}, 'at least 1'),
  ],
)
def test_options_that_cannot_be(options, message, cluster, make_sweep):
  sweep, wanted = make_sweep('seed=0')
  with pytest.raises(ConfigError, match=message):
    slurm.submit(sweep, wanted, **options)
  assert 'sbatch' not in cluster.read_text()  # only what it is, was asked


def test_no_slurm_here(make_sweep, monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  sweep, wanted = make_sweep('seed=0')
  with pytest.raises(ConfigError, match='there is no sbatch here; .* written'):
    slurm.submit(sweep, wanted)
  assert fake_command([])
