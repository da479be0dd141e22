"""Says what a training that ends before its time has kept."""

import math
import pathlib
import signal

from genrec_jax import interruption
from genrec_jax.checkpoint import manifest
from genrec_jax.interruption import NAMES, PROCESS, SafePoints

_PART_S = 5.0  # for the other processes to have saved, too


def describe_kept(workdir: pathlib.Path) -> str:
  """From where the same command would continue now."""
  directory = workdir / 'checkpoints'
  for step in reversed(manifest.list_steps(directory)):
    if (directory / str(step) / manifest.NAME).exists():
      return f'the same command continues from the checkpoint of step {step}'
  return 'nothing is saved yet, and the same command starts again'


def end_training(points: SafePoints, step: int, total_steps, log) -> None:
  """Ends a command whose training a signal has stopped and that has saved.

  Args:
    points: where it stopped.
    step: the last one, which is saved.
    total_steps: of the whole run; infinite for a stream without an end.
    log: receives the sentence where there is no command.

  Raises:
    KeyboardInterrupt: Ctrl-C in a notebook, say; SIGTERM there just returns.
  """
  number = signal.Signals(points.number)
  of_all = f' of {total_steps}' if math.isfinite(total_steps) else ''
  words = (
    f'stopped by {NAMES[number]} at step {step}{of_all}; the same command '
    'continues from there'
  )
  if PROCESS.peers and PROCESS.peers.close(_PART_S):
    PROCESS.peers = None  # all have stopped here
  if PROCESS.statuses:
    interruption.end_by_signal(number, words=words)
  if number == signal.SIGINT:
    raise KeyboardInterrupt(words)
  log(words)
