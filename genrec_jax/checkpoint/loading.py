"""Loads a part of a step in all processes, or in none of them."""

from collections.abc import Callable
from typing import TypeVar

from genrec_jax.checkpoint.errors import (
  CheckpointError,
  DamagedError,
  UnrestorableError,
)
from genrec_jax.checkpoint.group import ProcessGroup

_T = TypeVar('_T')


def load_together(group: ProcessGroup, step: int, load: Callable[[], _T]) -> _T:
  """What `load` returns; if it fails in one process, it has failed in all.

  Args:
    group: the processes, each of which makes this call.
    step: what is loaded, for messages.
    load: loads this process's part.

  Raises:
    CheckpointError: what was asked for does not suit the checkpoint.
    UnrestorableError: the checkpoint does not load.
  """
  error = loaded = None
  try:
    loaded = load()
  except Exception as e:  # of Orbax, of JAX, or because memory is short
    if isinstance(e, CheckpointError) and not isinstance(e, DamagedError):
      raise
    error = e

  def raise_first(reasons: list[str | None]) -> None:
    for process, reason in enumerate(reasons):
      if reason:
        where = f' in process {process}' if group.size > 1 else ''
        raise UnrestorableError(
          f'step {step} cannot be restored{where} ({reason})'
        ) from error

  group.decide_together(
    f'restoring step {step}', raise_first, error and _shorten(error)
  )
  return loaded


def _shorten(error: Exception) -> str:
  """The first line of an error; those of Orbax fill a page."""
  lines = str(error).strip().splitlines() or ['']
  text = lines[0][:300].rstrip(' :.')
  if isinstance(error, CheckpointError):
    return text
  name = type(error).__name__
  return f'{name}: {text}' if text else name
