"""Optimizers that read and write only the rows a step has touched.

Each is a pair: `init(table) -> slots` and
`update(table, slots, ids, grads, learning_rate) -> (table, slots)`, where `ids`
are distinct and sorted, with out-of-range fill, and `grads` are their merged
gradients (see `lookup.TouchedRows`). The arithmetic and the way to the rows are
those of `pallas_kernels.update_rows`.
"""

import dataclasses
from collections.abc import Callable

import jax

import pallas_kernels

EPS = 1e-8


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
  init: Callable[[jax.Array], dict[str, jax.Array]]
  update: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


def _row_optimizer(optimizer: str) -> RowOptimizer:
  def init(table):
    return pallas_kernels.init_slots(table, optimizer)

  def update(table, slots, ids, grads, learning_rate):
    return pallas_kernels.update_rows(
      table,
      slots,
      ids,
      grads,
      learning_rate=learning_rate,
      optimizer=optimizer,
      eps=EPS,
    )

  return RowOptimizer(init, update)


ROW_OPTIMIZERS = {
  'row_sgd': _row_optimizer('sgd'),
  'row_adagrad': _row_optimizer('row_adagrad'),
}
