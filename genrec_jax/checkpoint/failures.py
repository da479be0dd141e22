"""Turns failures of a save in Orbax into messages that people can read."""

import contextlib
import logging
import threading
import time

from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.errors import CheckpointError


@contextlib.contextmanager
def raise_once():
  """Raises the first error of a failed Orbax save and mutes its repetitions.

  Every thread of Orbax that meets a failure logs it with its trace, which would
  bury the error under hundreds of lines. The others go on for a moment.
  """

  def is_new_error(record):
    return '_SignalingThread' not in str(record.msg)

  logger = logging.getLogger('absl')
  logger.addFilter(is_new_error)
  try:
    yield
  except Exception:
    deadline = time.monotonic() + 5.0
    for thread in threading.enumerate():
      if type(thread).__name__ == '_SignalingThread':
        thread.join(max(0.0, deadline - time.monotonic()))
    raise
  finally:
    logger.removeFilter(is_new_error)


def is_of_disk(error: Exception) -> bool:
  """Whether the operating system reports the error; a trace would not help."""
  return isinstance(error, OSError) or 'os_error_code' in str(error)


def explain_failure(error: Exception, directory) -> str:
  text = str(error) or type(error).__name__
  if 'No space left' in text and storage.is_disk(directory):
    free = storage.free_bytes(directory)
    return f'the disk is full ({free:,} bytes left). {text}'
  return text


def raise_first(reasons: list[str | None]) -> None:
  """Raises what the first of several processes has to report, if any has.

  >>> raise_first([None, None])
  """
  for process, reason in enumerate(reasons):
    if reason:
      raise CheckpointError(f'process {process}: {reason}')
