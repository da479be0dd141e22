"""Which implementations of an op there are, and which of them runs here."""

from pallas_kernels.hstu_attention import api as attention
from pallas_kernels.jagged_embedding import api as embedding
from pallas_kernels.jagged_embedding import scores

_BACKENDS = {
  'hstu_attention': attention.BACKENDS,
  'jagged_embedding': embedding.BACKENDS,
  'score_rows': scores.BACKENDS,
}


def list_backends(op: str) -> dict[str, str]:
  """Says of each implementation of an op whether it runs on this machine.

  >>> list_backends('hstu_attention')['xla']
  'runs without being asked for'

  Args:
    op: 'hstu_attention', 'score_rows', or 'jagged_embedding', which is all
      other ops that take a table or rows of one.

  Returns:
    Name, as the argument `implementation` takes it -> what becomes of it.

  Raises:
    ValueError: there is no such op.
  """
  if op not in _BACKENDS:
    raise ValueError(f'op is {op!r}, must be one of {", ".join(_BACKENDS)}.')
  found, chosen = {}, False
  for name, backend in _BACKENDS[op].items():
    if reason := backend.why_not():
      found[name] = f'cannot run: {reason}'
    elif backend.automatic and not chosen:
      chosen, found[name] = True, 'runs without being asked for'
    else:
      found[name] = 'runs if it is asked for'
  return found
