"""Optimizers that read and write only the rows a step has touched.

Each is a pair: `init(table) -> slots` and
`update(table, slots, ids, grads, learning_rate) -> (table, slots)`, where `ids`
are distinct and sorted, with out-of-range fill, and `grads` are their merged
gradients (see `lookup.TouchedRows`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

EPS = 1e-8


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
  init: Callable[[jax.Array], dict[str, jax.Array]]
  update: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


_WRITE = dict(mode='drop', indices_are_sorted=True, unique_indices=True)


def _sgd_update(table, slots, ids, grads, learning_rate):
  table = table.at[ids].add(
    (-learning_rate * grads).astype(table.dtype), **_WRITE
  )
  return table, slots


def _adagrad_update(table, slots, ids, grads, learning_rate):
  """Row-wise AdaGrad: one accumulator a row, the mean squared gradient."""
  before = slots['sum'].at[ids].get(mode='fill', fill_value=0)
  after = before + jnp.mean(jnp.square(grads), axis=-1)
  step = -learning_rate * grads / (jnp.sqrt(after) + EPS)[:, None]
  table = table.at[ids].add(step.astype(table.dtype), **_WRITE)
  return table, {'sum': slots['sum'].at[ids].set(after, **_WRITE)}


ROW_OPTIMIZERS = {
  'row_sgd': RowOptimizer(lambda table: {}, _sgd_update),
  'row_adagrad': RowOptimizer(
    lambda table: {'sum': jnp.zeros(table.shape[0], jnp.float32)},
    _adagrad_update,
  ),
}
