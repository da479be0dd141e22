"""Chooses the backend of an operator, and refuses aloud what cannot run."""

from collections.abc import Callable, Mapping


def choose(op: str, backends: Mapping[str, Callable], implementation=None):
  """Returns the backend named `implementation`.

  Args:
    op: name of the operator, for the error message.
    backends: name -> function, the best one for this machine first.
    implementation: a name, or None for the first of `backends`.

  Raises:
    NotImplementedError: no backend of that name exists for this operator.
  """
  if implementation is None:
    return next(iter(backends.values()))
  if implementation not in backends:
    raise NotImplementedError(
      f'{op} has no implementation {implementation!r} here; available: '
      f'{", ".join(backends)} (or None for the best of them).'
    )
  return backends[implementation]
