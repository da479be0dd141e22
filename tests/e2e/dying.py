"""`python -m tests.e2e.dying POINT ARGUMENTS`: genrec_jax.main that dies there.

The process sends itself a signal, SIGKILL unless said otherwise, at one of the
POINTS below; everything up to that moment is what any run does.
"""

import os
import signal
import sys
import time

from genrec_jax import main
from genrec_jax.checkpoint import manager, manifest, retention
from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from genrec_jax.progress import Progress
from genrec_jax.report import summary
from genrec_jax.report.metric_writers import MetricWriters
from genrec_jax.runtime import single_device


def die(number=signal.SIGKILL):
  os.kill(os.getpid(), number)
  time.sleep(0.5)  # a thread acts upon it


def before(owner, name, nth=1, when=lambda *args: True, number=signal.SIGKILL):
  """Dies at the nth call for which `when` holds, before it does anything."""
  original, calls = getattr(owner, name), 0

  def wrapper(*args, **kwargs):
    nonlocal calls
    calls += bool(when(*args))
    if calls == nth:
      die(number)
    return original(*args, **kwargs)

  setattr(owner, name, wrapper)


def in_the_middle_of_a_line():
  original, calls = MetricWriters.scalars, 0

  def half(self, step, values):
    nonlocal calls
    calls += 1
    if calls == 3:
      self._jsonl.write(f'{{"step": {step}, "train/lo')
      self._jsonl.flush()
      die()
    original(self, step, values)

  MetricWriters.scalars = half


def while_orbax_writes():
  original, calls = manager.ocp.save_checkpointables_async, 0

  def started(path, items):
    nonlocal calls
    calls += 'checkpoints' in str(path)
    response = original(path, items)
    if calls == 2:
      die()
    return response

  manager.ocp.save_checkpointables_async = started


def after_step(step, number=signal.SIGKILL):
  before(Progress, 'update', 1, lambda self, at, *_: at == step, number)


def of(which):
  """Whether a call is about a directory of checkpoints of this name."""
  return lambda first, *_: (
    which in str(getattr(first, 'directory', first)).split('/')[-2:]
  )


# In an order in which one run can die of all, each time a little further on.
POINTS = {
  'before anything is written': lambda: before(single_device, 'make_step'),
  'after the first step': lambda: after_step(1),
  'before the first checkpoint': lambda: after_step(3),
  'in the middle of a line': in_the_middle_of_a_line,
  'before the best is saved': lambda: before(
    manager.CheckpointManager, 'save', 1, of('best')
  ),
  'after the best, before its checkpoint': lambda: before(
    manager.CheckpointManager, 'save', 1, of('checkpoints')
  ),
  'while Orbax writes': while_orbax_writes,
  'before the manifest': lambda: before(
    manifest, 'write', 2, of('checkpoints')
  ),
  'before old ones are removed': lambda: before(
    retention, 'remove_superfluous', 2, of('checkpoints')
  ),
  'during an evaluation': lambda: before(RetrievalEvaluator, 'run', 2),
  'after step 41': lambda: after_step(41),
  'before the report': lambda: before(summary, 'write_report'),
  'between report.json and report.html': lambda: before(
    summary, 'write_atomically', 2
  ),
  'SIGTERM after step 5': lambda: after_step(5, signal.SIGTERM),
  'SIGTERM during an evaluation': lambda: before(
    RetrievalEvaluator, 'run', 2, number=signal.SIGTERM
  ),
  'Ctrl-C after step 6': lambda: after_step(6, signal.SIGINT),
  'from outside': lambda: None,
}

if __name__ == '__main__':
  # A background job of a shell is born deaf to Ctrl-C.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  POINTS[sys.argv.pop(1)]()
  main.run()
