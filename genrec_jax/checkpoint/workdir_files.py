"""What stands in a workdir, and which settings may change with it.

Nothing here needs JAX: a launcher of runs looks at workdirs, too.
"""

import os
import pathlib

from genrec_jax.config import ConfigError

# Keys a continued run may change; anything else belongs to the workdir.
FREE_KEYS = (
  'checkpoint',  # nor does how it is saved
  'parallel',  # how a run lies on devices does not change what it computes
  'compile_cache',  # nor where its programs are kept
  'predict',
  'report',
  'train.epochs',
  'train.steps',
  'train.keep_checkpoints',
  'train.profile_steps',
  'data.path',
  'data.cache',
)
SERIES = 'series.json'  # marks the directory of several runs
TRACES = ('checkpoints', 'best', 'metrics.jsonl')  # of steps


def make_workdir(workdir: pathlib.Path) -> None:
  """Makes the directory of a run, or says why the workdir cannot be one."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    reason = '' if os.access(workdir, os.W_OK | os.X_OK) else 'is not writable'
  except FileExistsError:
    reason = 'is a file'
  except NotADirectoryError:
    reason = 'would lie in a file'
  except OSError as error:
    reason = f'cannot be made ({error.strerror})'
  if reason:
    raise ConfigError(
      f'the workdir {str(workdir)!r} {reason}; give --workdir a directory that '
      'can be made and written, such as workdir/run_1'
    )


def refuse_series(workdir: pathlib.Path) -> None:
  """Refuses the directory of a series of runs, which is none of a run."""
  if not (workdir / SERIES).exists():
    return
  runs = sorted(
    str(path.parent.relative_to(workdir))
    for pattern in ('*/config.json', 'candidates/*/config.json')
    for path in workdir.glob(pattern)
    if path.parent.name != 'supernet'  # all models at once, and none to use
  )
  raise ConfigError(
    f'{workdir} is the directory of several runs, made by `genrec learn_hash` '
    f'or `genrec search`. Take one of them ({", ".join(runs) or "none yet"}), '
    'or another --workdir'
  )


def list_traces(workdir: pathlib.Path) -> list[str]:
  """What is there of steps."""
  return [name for name in TRACES if (workdir / name).exists()]
