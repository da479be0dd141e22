"""Arrays of Slurm, submitted to programs that do as Slurm does."""

import doctest
import os
import subprocess
import sys

import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.sweep import notes, slurm
from tests.sweep.conftest import fake_command

# Runs the script once a task, as slurmd does: without the variables of a step.
SBATCH = """#!/bin/bash
array=$(sed -n 's/^#SBATCH --array=//p' "$1")
for task in $(python3 -c "
import sys
for part in sys.argv[1].partition('%')[0].split(','):
  first, _, last = part.partition('-')
  print(*range(int(first), int(last or first) + 1))
" "$array"); do
  SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_JOB_ID=7 \\
    bash "$1" >> "$SLURM_LOG" 2>&1
  echo "task $task: $?" >> "$SLURM_LOG"
done
echo "Submitted batch job 7"
"""
SRUN = """#!/bin/bash
export SLURM_STEP_NODELIST=here SLURM_PROCID=0
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> "$SLURM_LOG"
"""
# Stands for the installed package, whose runs are fake ones.
PYTHON = """#!{python}
import sys
sys.path[:0] = {paths!r}
from tests.sweep.conftest import FAKE
from genrec_jax.sweep import __main__ as sweep, children
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
    ('fake_python', python),
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
  assert [notes.find_state(sweep, v)[0] for v in wanted] == [
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
  assert notes.find_state(sweep, wanted[0])[0] == notes.FAILED


def test_a_preempted_task_is_put_back_and_goes_on(
  cluster, make_sweep, tmp_path, monkeypatch
):
  sweep, wanted = make_sweep('seed=0')
  # The task is sent SIGTERM while it runs, as at the end of its time.
  monkeypatch.setenv('FAKE_STEP_S', '0.4')
  srun = tmp_path / 'bin/srun'
  begun = sweep.workdir(wanted[0]) / 'metrics.jsonl'
  srun.write_text(
    f'#!/bin/bash\n"$@" &\nuntil [ -e "{begun}" ]; do sleep 0.05; done\n'
    'kill -TERM $!; wait $!\n'
  )
  slurm.submit(sweep, wanted)
  assert 'requeue 7_0' in cluster.read_text()
  assert notes.find_state(sweep, wanted[0])[0] == notes.STOPPED
  srun.write_text(SRUN)
  slurm.submit(sweep, wanted)
  assert notes.find_state(sweep, wanted[0])[0] == notes.DONE
  lines = (sweep.workdir(wanted[0]) / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 4  # nothing twice


@pytest.mark.parametrize(
  'options, message',
  [
    ({'options': ['partition=gpu']}, 'takes an option of sbatch'),
    ({'options': ['--x\nrm']}, 'takes an option of sbatch'),
    ({'jobs': 0}, 'at least 1'),
  ],
)
def test_options_that_cannot_be(options, message, make_sweep):
  sweep, wanted = make_sweep('seed=0')
  with pytest.raises(ConfigError, match=message):
    slurm.submit(sweep, wanted, **options)


def test_no_slurm_here(make_sweep, monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  sweep, wanted = make_sweep('seed=0')
  with pytest.raises(ConfigError, match='there is no sbatch here; .* written'):
    slurm.submit(sweep, wanted)
  assert fake_command([])
