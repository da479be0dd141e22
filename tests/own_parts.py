"""Parts of a run from outside the library, as a user's module holds them."""

import dataclasses

import jax.numpy as jnp

from genrec_jax.contracts import Extensions
from genrec_jax.embedding.scheme import ONE, Scheme
from genrec_jax.numerics.formats import FORMATS


@dataclasses.dataclass(frozen=True)
class SignSGD:
  """Steps of equal size in the direction of the gradient.

  Attributes:
    size: of a step, before the rate.
  """

  size: float = 1.0
  takes_pieces = True
  needs_row_squares = False

  def init(self, table):
    del table
    return {}

  def update(self, table, slots, ids, grads, learning_rate, **more):
    del more
    step = learning_rate * self.size * jnp.sign(grads)
    return table.at[ids].add(-step, mode='drop'), slots

  def slot_shapes(self, rows, dim):
    del rows, dim
    return {}

  def slot_floats(self, dim):
    del dim
    return 0


def place_on_last(turn, spec, hosts, devices):
  """Every table on the last device of all."""
  del turn, spec
  return (hosts * devices - 1,)


EXTENSIONS = Extensions(
  row_optimizers={'sign_sgd': SignSGD()},
  schemes={'last_device': Scheme(ONE, places=place_on_last)},
  formats={'my_int8': dataclasses.replace(FORMATS['int8'], name='my_int8')},
)
CLASHING = Extensions(row_optimizers={'adam': SignSGD()})
