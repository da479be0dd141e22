"""What the backends of jagged_embedding are given, and what they give back.

A backend is a module with the functions below. `ids` `[K]` are int32, packed
bag behind bag; `lengths` `[B]` says how many belong to each, and is None where
every id is a bag of its own. What is added up is float32.

  bag(table, ids, lengths, weights) -> [B, D] sums; NaN where an id is no row
  gather(table, ids, count, spare) -> [K, D]; NaN where an id is no row, zeros
    behind the first `count` and, with `spare`, where an id is table.shape[0]
  weight_gradient(table, ids, lengths, grads) -> [K]
  merge(ids, lengths, weights, grads, rows) -> MergedRows
  update(rule, scalars, seed, table, slots, ids, grads) -> table, slots
  bag_update(rule, scalars, seed, table, slots, ids, lengths, weights, grads)
    -> table, slots

`scalars` is float32 (learning rate, the two corrections of Adam's means),
`seed` a uint32 scalar or None, `slots` a tuple of arrays in the order of SLOTS.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Optimizer -> its arrays: 'row' has one number a row, 'element' one an element.
SLOTS = {
  'sgd': {},
  'row_adagrad': {'sum': 'row'},
  'adagrad': {'sum': 'element'},
  'adam': {'mean': 'element', 'variance': 'element'},
}


class MergedRows(NamedTuple):
  """Gradients of distinct rows.

  Attributes:
    ids: `[N]` int32, sorted; spare places at the end hold the number of rows.
    grads: `[N, D]` float32, zeros in spare places.
  """

  ids: jax.Array
  grads: jax.Array


@dataclasses.dataclass(frozen=True)
class Rule:
  """How a row moves: the static part of `update_rows`'s options."""

  optimizer: str
  eps: float
  beta1: float
  beta2: float


def init_slots(table: jax.Array, optimizer: str) -> dict[str, jax.Array]:
  """The arrays of an optimizer before the first step."""
  slots = {}
  for name, kind in SLOTS[optimizer].items():
    shape = table.shape if kind == 'element' else table.shape[:1]
    slots[name] = jnp.zeros(shape, jnp.float32)
  if optimizer == 'adam':
    slots['count'] = jnp.int32(0)
  return slots
