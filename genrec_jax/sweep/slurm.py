"""Runs a sweep as an array of jobs of Slurm, one task a variant.

`submit` writes `ROOT/sweep.sbatch` and hands it to sbatch. Each task becomes
one run, which saves when Slurm asks it to end (before the time limit, or when
it is preempted) and is put back into the queue to go on.
"""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from genrec_jax import interruption
from genrec_jax.config.errors import ConfigError
from genrec_jax.sweep import children, live_table, local, notes
from genrec_jax.sweep.record import Sweep, replace_file
from genrec_jax.sweep.variants import Variant

SCRIPT = 'sweep.sbatch'
_WARN_S = 300  # before the time limit: two steps and a save
_MOST_RESTARTS = 100

_TEXT = """#!/bin/bash
# Written by `genrec sweep --backend=slurm`; `sbatch {script}` submits it again.
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output={logs}/slurm-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@{warn}
{options}
cd {directory} || exit 1
# The batch script is no step of Slurm: srun makes one, in which the processes
# of a run over several hosts find each other.
srun {python} -m genrec_jax.sweep {root} --run="$SLURM_ARRAY_TASK_ID"
status=$?
# 75: the run was asked to end, and has saved; it goes on when there is room.
if [ "$status" = 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && exit 0
fi
exit $status
"""


def write_script(
  sweep: Sweep,
  wanted: Sequence[Variant],
  jobs: int | None,
  options: Sequence[str],
) -> pathlib.Path:
  """Writes the script of an array.

  Args:
    sweep: in its directory.
    wanted: the variants that are tasks.
    jobs: how many run at a time, at most; None leaves it to Slurm.
    options: of sbatch, '--partition=gpu' each.
  """
  for option in options:
    if not option.startswith('-') or '\n' in option:
      raise ConfigError(
        f'--sbatch takes an option of sbatch, as in --sbatch=--time=2:00:00, '
        f'not {option!r}'
      )
  if jobs is not None and jobs < 1:
    raise ConfigError(f'--jobs is {jobs}, must be at least 1')
  path = sweep.root / SCRIPT
  (sweep.root / 'logs').mkdir(exist_ok=True)
  text = _TEXT.format(
    script=shlex.quote(str(path)),
    name=shlex.quote(sweep.root.name),
    array=format_array([v.number for v in wanted])
    + (f'%{jobs}' if jobs else ''),
    logs=shlex.quote(str(sweep.root / 'logs')),
    warn=_WARN_S,
    options=''.join(f'#SBATCH {option}\n' for option in options),
    directory=shlex.quote(sweep.directory),
    python=shlex.quote(sys.executable),
    root=shlex.quote(str(sweep.root)),
    restarts=_MOST_RESTARTS,
  )
  replace_file(path, text.rstrip('\n'))
  return path


def submit(
  sweep: Sweep,
  wanted: Sequence[Variant],
  *,
  jobs: int | None = None,
  options: Sequence[str] = (),
) -> str:
  """Writes the script and submits it; returns what sbatch says.

  Raises:
    ConfigError: there is no sbatch here, or it refuses.
  """
  path = write_script(sweep, wanted, jobs, options)
  if not shutil.which('sbatch'):
    raise ConfigError(
      f'there is no sbatch here; {path} is written, submit it where there is'
    )
  done = subprocess.run(['sbatch', str(path)], capture_output=True, text=True)
  if done.returncode:
    raise ConfigError(f'sbatch refuses {path}: {done.stderr.strip()}')
  return f'{done.stdout.strip()}: {len(wanted)} runs, by {path}'


def format_array(numbers: Sequence[int]) -> str:
  """Numbers as the array of Slurm has them.

  >>> format_array([0, 1, 2, 5, 7, 8])
  '0-2,5,7-8'
  """
  parts: list[list[int]] = []
  for number in sorted(numbers):
    if parts and number == parts[-1][1] + 1:
      parts[-1][1] = number
    else:
      parts.append([number, number])
  return ','.join(str(a) if a == b else f'{a}-{b}' for a, b in parts)


def become_run(sweep: Sweep, variant: Variant) -> int:
  """Runs one variant in this task; returns the exit status.

  Of the processes of a run over several hosts, the first keeps the note and the
  log; the others become the run at once.
  """
  if int(os.environ.get('SLURM_PROCID', '0')) > 0:
    os.chdir(sweep.directory)
    command = children.command_of(sweep.words(variant))
    os.execv(command[0], command)
  state, _ = notes.find_state(sweep, variant)
  if state in (notes.DONE, notes.BAD):
    print(f'{variant.name}: {state}')
    return 0
  with live_table.LiveTable() as table:
    options = local.LocalOptions()
    counts = local.Launcher(sweep, [variant], options, table).run()
  # Sent by Slurm to all processes of the step, the signal may reach the run
  # first.
  if counts[notes.STOPPED]:
    return interruption.STATUSES[signal.SIGTERM]
  return 0 if counts[notes.DONE] else 1
