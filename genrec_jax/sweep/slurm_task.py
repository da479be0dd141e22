"""What a task of an array of Slurm does: it becomes one run of a sweep.

All processes of a task come here. The first keeps the note and the log, and
decides whether there is anything to do; the others learn it from a file, as
what they see of a shared disk may be older than what the first has seen.
"""

import contextlib
import os
import pathlib
import signal
import time

from genrec_jax import interruption
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import children, notes
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.sweep import live_table, local, run_states
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant

# More than 75, as srun returns the highest status of its processes.
STUCK = 76
_GO, _END, _WAIT = 'go', 'end', 'wait'
_POLL_S, _TELL_S = 0.2, 30.0
_LOST_S = 600.0  # a first process that says nothing for so long is lost


def become_run(sweep: Sweep, variant: Variant) -> int:
  """Runs one variant in this task; returns the exit status.

  Args:
    sweep: in its directory.
    variant: which.
  """
  count = os.environ.get('SLURM_STEP_NUM_TASKS')
  count = int(count or os.environ.get('SLURM_NTASKS') or 1)
  if int(os.environ.get('SLURM_PROCID', '0')) > 0:
    if await_decision(_decision_path(sweep, variant)) != _GO:
      return interruption.DONE
    os.chdir(sweep.directory)
    command = children.command_of(sweep.words(variant))
    os.execv(command[0], command)
  if count > 1:
    state = _decide(sweep, variant)
  else:
    state, _ = run_states.find_state(sweep, variant)
  if state in (notes.DONE, notes.BAD):
    print(f'{variant.name}: {state}')
    return interruption.DONE
  before = _read_progress(sweep, variant)
  with live_table.LiveTable() as table:
    launcher = local.Launcher(sweep, [variant], local.LocalOptions(), table)
    try:
      counts = launcher.run()
    except interruption.Stopped as stopped:
      if stopped.number != signal.SIGTERM:
        raise
      counts = {notes.STOPPED: 1}
  # Sent by Slurm to all processes of the step, the signal may reach the run
  # first, so that the launcher has seen none.
  if counts[notes.STOPPED]:
    return _judge_stop(variant, before == _read_progress(sweep, variant))
  return interruption.DONE if counts[notes.DONE] else interruption.FAILED


def await_decision(path: pathlib.Path, lost_s: float = _LOST_S) -> str:
  """What the first process has decided, in the others.

  Args:
    path: where it says so.
    lost_s: how long it may say nothing.

  Raises:
    ConfigError: it has said nothing for too long.
  """
  heard, last = '', time.monotonic()
  while time.monotonic() < last + lost_s:
    with contextlib.suppress(OSError, IndexError):
      text = path.read_text()
      step, _, rest = text.partition(' ')
      if step == _name_step() and text != heard:
        heard, last = text, time.monotonic()
        word = rest.split()[0]
        if word != _WAIT:
          return word
    time.sleep(_POLL_S)
  raise ConfigError(
    f'the first process of this run has said nothing for {lost_s:.0f} s in '
    f'{path}; all processes must see the directory of the sweep'
  )


def _decide(sweep: Sweep, variant: Variant) -> str:
  """Waits while the run goes on elsewhere; tells the others; its state."""
  path, told, number = _decision_path(sweep, variant), 0.0, 0
  path.parent.mkdir(exist_ok=True)

  def tell(word: str) -> None:
    replace_file(path, f'{_name_step()} {word}')

  word = _END  # whatever happens here, the others must not wait
  try:
    while (state := run_states.find_state(sweep, variant)[0]) == notes.RUNNING:
      if not number:
        print(f'{variant.name}: runs already; waiting for its end')
      if not number or time.monotonic() > told + _TELL_S:
        told, number = time.monotonic(), number + 1
        tell(f'{_WAIT} {number}')
      time.sleep(_POLL_S)
    word = _END if state in (notes.DONE, notes.BAD) else _GO
  finally:
    tell(word)
  return state


def _decision_path(sweep: Sweep, variant: Variant) -> pathlib.Path:
  return sweep.root / 'logs' / f'{variant.name}.step'


def _name_step() -> str:
  """Of the step of Slurm that this process belongs to; never used again."""
  names = 'SLURM_JOB_ID', 'SLURM_RESTART_COUNT', 'SLURM_STEP_ID'
  return '.'.join(os.environ.get(name) or '0' for name in names)


def _read_progress(sweep: Sweep, variant: Variant) -> dict[str, float]:
  """What is saved of a run: checkpoint -> when it was written."""
  found = {}
  with contextlib.suppress(OSError):
    for path in (sweep.workdir(variant) / 'checkpoints').iterdir():
      with contextlib.suppress(OSError):  # removed meanwhile
        found[path.name] = path.stat().st_mtime
  return found


def _judge_stop(variant: Variant, is_same: bool) -> int:
  """The exit status of a task that was asked to end.

  A task that has got nowhere the second time would be put back for ever.

  Args:
    variant: its run.
    is_same: whether this try has saved nothing new.
  """
  if is_same and int(os.environ.get('SLURM_RESTART_COUNT') or 0) > 0:
    print(
      f'{variant.name}: stopped before it had saved anything new, and is not '
      'put back into the queue; it needs a longer --sbatch=--time'
    )
    return STUCK
  return interruption.STATUSES[signal.SIGTERM]
