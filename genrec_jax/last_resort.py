"""What a command says of an error, and with which status it ends."""

import datetime
import errno
import os
import pathlib
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from genrec_jax import interruption, provenance
from genrec_jax.interruption import BUG, FAILED

# ImportError: of an optional package; the message says which to install.
USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, limit
LOG_NAME = 'error.log'
# What they raise is a mistake of ours, or one that we should have seen.
LIBRARIES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
_LONGEST = 200  # characters of a message that is not ours
_UNWRITTEN: list[OSError] = []  # the last error of standard output


def explain_error(
  error: BaseException, doing: str, directory, expected=USER_ERRORS
) -> tuple[int, str]:
  """What a user reads of an error, and the exit status.

  >>> explain_error(ValueError('no such key'), 'training', None)
  (1, 'error: no such key')

  Args:
    error: what was raised.
    doing: what the command was doing: 'training'.
    directory: where the traceback of a bug goes; None is a temporary file.
    expected: errors whose message is for users.

  Returns:
    (exit status, words).
  """
  kind, text = type(error).__name__, str(error)
  if isinstance(error, MemoryError):
    return FAILED, f'error: not enough memory while {doing}' + (
      f': {_shorten(text)}' if text else ''
    )
  # By its name: JAX need not be there.
  if kind in ('JaxRuntimeError', 'XlaRuntimeError') and (
    'RESOURCE_EXHAUSTED' in text or 'Out of memory' in text
  ):
    return FAILED, (
      f'error: the device has not enough memory while {doing}: '
      f'{_shorten(text)}. Use a smaller batch (train.batch_size, '
      'eval.batch_size) or more devices (docs/parallel.md)'
    )
  if isinstance(error, OSError) and error.errno in FULL:
    return FAILED, (
      f'error: {error}. Make space; the same command then continues from the '
      'last checkpoint.'
    )
  if is_for_users(error, expected):
    return FAILED, f'error: {error}'
  path = _write_log(error, directory)
  where = f'the traceback is in {path}' if path else 'no log could be written'
  return BUG, (
    f'this looks like a bug in genrec_jax: {kind}: {_shorten(text)}; {where}'
  )


def is_for_users(error: BaseException, expected=USER_ERRORS) -> bool:
  """Whether the message of an error tells users what they can do.

  That of a ValueError does unless a library below this one has raised it.

  Args:
    error: what was raised.
    expected: errors whose message is for users.
  """
  trace, module = error.__traceback__, ''
  while trace:
    module, trace = trace.tb_frame.f_globals.get('__name__', ''), trace.tb_next
  is_theirs = (
    isinstance(error, ValueError) and module.partition('.')[0] in LIBRARIES
  )
  return isinstance(error, expected) and not is_theirs


def hush_late_errors() -> None:
  """Keeps threads of libraries from telling of an end that is told anyway.

  When a checkpoint cannot be written, its event loop is closed while the
  C++ threads that wrote the other arrays still report to it. Python shows each
  of their errors with a traceback, around the sentence that says what is wrong.
  """
  tell = sys.unraisablehook

  def tell_unless_late(unraisable):
    last = unraisable.exc_traceback
    while last and last.tb_next:
      last = last.tb_next
    if not (
      unraisable.exc_type is RuntimeError
      and str(unraisable.exc_value) == 'Event loop is closed'
      and last
      and last.tb_frame.f_globals.get('__name__') == 'asyncio.base_events'
      and threading.get_ident() != threading.main_thread().ident
    ):
      tell(unraisable)

  sys.unraisablehook = tell_unless_late


def print_result(text: str) -> None:
  """Prints what a command was asked for; `end_output` tells of a failure.

  Whatever comes after it is done nevertheless.

  >>> print_result('all is well')
  all is well

  Args:
    text: the result.
  """
  try:
    print(text, flush=True)
  except OSError as error:  # a closed pipe, a full disk
    _UNWRITTEN[:] = [error]


def end_output() -> tuple[int, str]:
  """Exit status and words of a command that has done everything else."""
  try:
    sys.stdout.flush()
  except OSError as error:
    _UNWRITTEN[:] = [error]
  if not _UNWRITTEN:
    return interruption.DONE, ''
  reason = _UNWRITTEN[0].strerror or _UNWRITTEN[0]
  return FAILED, (
    f'error: standard output could not be written ({reason}); all else is done'
  )


def run_command(main: Callable[[], int | None], doing: str = '') -> NoReturn:
  """Runs a command to its end, which is that of the process.

  Args:
    main: returns the exit status; None is 0.
    doing: what it does, for messages.
  """
  interruption.install()
  try:
    status, words = main() or interruption.DONE, ''
    if not status:
      status, words = end_output()
  except SystemExit as end:  # of argparse, or with a message
    status, words = end.code or interruption.DONE, ''
    if isinstance(status, str):
      status, words = FAILED, status
  except Exception as error:
    status, words = explain_error(error, doing, None)
  interruption.leave(status, words)


def _shorten(text: str) -> str:
  """One line of a text that may be pages."""
  line = ' '.join(text.split())
  return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + '...'


def _write_log(error: BaseException, directory) -> pathlib.Path | None:
  """Appends the traceback to the log; returns its path, None without one."""
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  version = sys.modules['genrec_jax'].__version__  # nobody imports from it
  text = (
    f'{now}, genrec_jax {version}, {sys.argv}\n'
    + ''.join(traceback.format_exception(error))
    + '\n'
  )
  text = provenance.mask_secrets(text)
  directories = [tempfile.gettempdir()]
  if directory is not None and os.path.isdir(directory):
    directories.insert(0, directory)
  for place in directories:
    try:
      if place == directories[-1]:
        file, path = tempfile.mkstemp('.log', 'genrec_jax-', place)
      else:
        path = os.path.join(place, LOG_NAME)
        # A link could lead anywhere, and a pipe would keep us for ever.
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        how |= os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(path, how, 0o600)
      with open(file, 'w', encoding='utf-8', errors='backslashreplace') as log:
        log.write(text)
      return pathlib.Path(path)
    except OSError:
      continue
  return None
