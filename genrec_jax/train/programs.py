"""Counts the programs of the training step, one for each shape of a batch."""

import jax
import numpy as np


class ProgramCounter:
  """Knows which batches have the step compiled anew.

  >>> import numpy as np
  >>> counter = ProgramCounter(1)
  >>> [counter.note(np.zeros(size)) for size in (8, 8, 6)]
  ['compiling program 1 of 1', None, 'compiling program 2']
  """

  def __init__(self, expected: int | None):
    """Begins; `expected` is how many there will be, None where unknown."""
    self._shapes, self._expected = set(), expected

  def note(self, batch) -> str | None:
    """What is about to be compiled for a batch; None where nothing is."""
    shapes = tuple(np.shape(x) for x in jax.tree.leaves(batch))
    if shapes in self._shapes:
      return None
    self._shapes.add(shapes)
    number, expected = len(self._shapes), self._expected or 0
    of = f' of {expected}' if number <= expected else ''
    return f'compiling program {number}{of}'
