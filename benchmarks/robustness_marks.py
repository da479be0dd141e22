"""The command line, which says in which phase it is.

  python -m benchmarks.robustness_marks MODULE ARGUMENTS...

runs `python -m MODULE ARGUMENTS`, and nothing of it is changed but this: each
time a phase begins, its name is written to the descriptor that the variable
ROBUSTNESS_MARKS holds. So a signal from outside can be aimed at a phase. The
first begins with the first line of the command; before, for some hundredths of
a second, Python itself starts.
"""

import contextlib
import os
import runpy
import sys

from genrec_jax import interruption, progress

PHASES = (
  'start', 'compile', 'step', 'save', 'publish', 'evaluate', 'report',
  'predict', 'follow',
)  # fmt: skip
PAUSES = {'saving': 'save', 'publishing': 'publish', 'evaluating': 'evaluate'}
VARIABLE = 'ROBUSTNESS_MARKS'


def mark(phase: str) -> None:
  with contextlib.suppress(OSError):  # nobody listens any more
    os.write(int(os.environ[VARIABLE]), f'{phase}\n'.encode())


def mark_first(phase: str) -> None:
  """Has the first thing that a command does, `install`, tell its phase."""
  own = interruption.install

  def install(*args, **kwargs):
    own(*args, **kwargs)
    interruption.install = own  # the second call does nothing
    mark(phase)

  interruption.install = install


def mark_phases(predicts: bool) -> None:
  """Has `Progress`, which knows what is under way, tell it."""
  own, cls = {}, progress.Progress
  for name in ('__enter__', '__exit__', 'update', 'pause'):
    own[name] = getattr(cls, name)
  begun = []

  def enter(self):
    begun.clear()
    mark('predict' if predicts else 'compile')
    return own['__enter__'](self)

  def update(self, *args, **kwargs):
    if not begun and not predicts:
      begun.append(True)
      mark('step')
    return own['update'](self, *args, **kwargs)

  @contextlib.contextmanager
  def pause(self, label):
    mark(PAUSES.get(label, label))
    try:
      with own['pause'](self, label):
        yield
    finally:
      mark('step')

  def leave(self, *exc_info):
    mark('report')
    return own['__exit__'](self, *exc_info)

  cls.__enter__, cls.update, cls.pause, cls.__exit__ = (
    enter, update, pause, leave
  )  # fmt: skip


def main() -> None:
  _, module, *arguments = sys.argv
  if module == 'genrec_jax.main':
    mark_phases('--mode=predict' in arguments)
  sys.argv = [module, *arguments]
  mark_first('follow' if module.endswith('.follow') else 'start')
  runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
