"""An id map with a state, as a system outside of the library has it."""

import dataclasses

import jax
import jax.numpy as jnp

from genrec_jax.parallel import collectives


@dataclasses.dataclass(frozen=True)
class Admitting:
  """Gives a row of its own to an id that was met twice, in order of the ids.

  All others share row 0. The ids of all shards are counted, so that the state
  is the same on every device, and does not depend on their number.

  Attributes:
    ids: how many there are; others are not rows.
    rows: of the table, row 0 included.
  """

  ids: int
  rows: int

  def init(self) -> dict:
    none = jnp.zeros(self.ids, jnp.int32)
    return {'met': none, 'row': none, 'used': jnp.int32(1)}

  def assign(self, state, ids: jax.Array, real: jax.Array):
    flat = jnp.where(real, ids, -1).reshape(-1)
    flat = collectives.gather(flat)
    flat = jnp.where(flat < 0, self.ids, flat)  # negative numbers would wrap
    met = state['met'].at[flat].add(1, mode='drop')
    new = (met >= 2) & (state['row'] == 0)
    number = state['used'] + jnp.cumsum(new.astype(jnp.int32)) - 1
    row = jnp.where(new & (number < self.rows), number, state['row'])
    used = jnp.maximum(state['used'], jnp.max(row) + 1)
    state = {'met': met, 'row': row, 'used': used}
    return self.lookup(state, ids), state

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    row = state['row'].at[ids].get(mode='clip')
    return jnp.where((ids >= 0) & (ids < self.ids), row, -1)
