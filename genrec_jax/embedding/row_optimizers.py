"""Optimizers that read and write only the rows a step has touched.

    optimizer = ROW_OPTIMIZERS['adam']
    optimizer = dataclasses.replace(optimizer, decay='l2', weight_decay=1e-4)
    slots = optimizer.init(table)
    table, slots = optimizer.update(table, slots, ids, grads, learning_rate)

`ids` are distinct and sorted, with out-of-range fill, and `grads` are their
merged gradients (see `lookup.TouchedRows`). The arithmetic, told in
`pallas_kernels.jagged_embedding.rules`, and the way to the rows are those of
`pallas_kernels.update_rows`.

| name         | optimizer                                     | floats a row |
|--------------|-----------------------------------------------|--------------|
| sgd, row_sgd | SGD                                           | 0            |
| momentum     | SGD with momentum                             | D            |
| lars         | momentum of steps in proportion to their rows | D            |
| row_adagrad  | row-wise AdaGrad: one mean square a row       | 1            |
| adagrad      | AdaGrad                                       | D            |
| row_adam     | partial row-wise Adam: one mean square a row  | D + 1        |
| adam         | Adam                                          | 2 D          |
| row_lamb     | row_adam with steps in proportion to the rows | D + 1        |
| lamb         | adam with steps in proportion to the rows     | 2 D          |

All are lazy: a row that a step does not touch gets no weight decay, no
momentum, no decay of its means. So all but SGD and AdaGrad without decay differ
from optax on the whole table. A touched row whose gradient is zero, such as the
padding row, does get them.

Determinism: the same call gives the same bits, whatever the number of threads.
A row's gradient is summed by whoever merges, `pallas_kernels.merge_rows` in the
order in which the occurrences stand; so results that must not depend on how a
batch is spread over devices need them merged in their global order. The update
itself works row by row: it does not matter where a row lies, and with
`row_numbers`, which chance depends on, not for stochastic rounding either.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from pallas_kernels.hashing import mix
from pallas_kernels.jagged_embedding import rounding, spec


@dataclasses.dataclass(frozen=True)
class RowOptimizer(spec.Rule):
  """An optimizer of rows and its options, most of them those of `Rule`.

  Attributes:
    stochastic_rounding: rows of bfloat16 and float16 tables are rounded by
      chance, without bias, so that steps too small for their last bit count.
  """

  stochastic_rounding: bool = False

  def init(self, table: jax.Array) -> dict[str, jax.Array]:
    """The slots before the first step: `[rows, ...]` arrays and scalars."""
    return spec.init_slots(table, self)

  def update(
    self,
    table: jax.Array,
    slots: dict[str, jax.Array],
    ids: jax.Array,
    grads: jax.Array,
    learning_rate: float | jax.Array,
    *,
    step: jax.Array | int | None = None,
    seed: jax.Array | int = 0,
    row_numbers: jax.Array | None = None,
    first_column: jax.Array | int = 0,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Moves the rows `ids` by their gradients.

    Args:
      table: `[rows, D]` float32, bfloat16 or float16; donate it.
      slots: as from `init`; donate them.
      ids: `[N]` int32, sorted and distinct; fill behind them holds `rows`.
      grads: `[N, D]`.
      learning_rate: factor of the step.
      step: number of the training step; stochastic rounding needs it.
      seed: tells tables, and runs, apart: with equal numbers, equal elements
        are rounded by the same random bits.
      row_numbers: `[N]` what a row of a shard is called in the whole table. It
        and `first_column` matter for stochastic rounding alone.
      first_column: number of the table's first column, or `[N]` of each row's.
    """
    chance = None
    if self.stochastic_rounding and table.dtype != jnp.float32:
      if step is None:
        raise ValueError(
          f'stochastic rounding to {table.dtype} needs step=, the number of '
          'the training step: the same chance at every step would be a bias.'
        )
      chance = mix(rounding.uint32(step) ^ mix(rounding.uint32(seed)))
    return pallas_kernels.update_rows(
      table,
      slots,
      ids,
      grads,
      learning_rate=learning_rate,
      optimizer=self,
      stochastic_rounding_seed=chance,
      row_numbers=row_numbers,
      first_column=first_column,
    )

  def slot_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each slot of a table `[rows, dim]`; () is a scalar."""
    return spec.slot_shapes(self, rows, dim)

  def slot_floats(self, dim: int) -> int:
    """Float32 numbers kept for each row of width `dim`."""
    width = {'element': dim, 'row': 1, 'scalar': 0}
    return sum(width[kind] for kind in spec.slot_kinds(self).values())


ROW_OPTIMIZERS = {
  'sgd': RowOptimizer('sgd'),
  'row_sgd': RowOptimizer('sgd'),
  'momentum': RowOptimizer('momentum'),
  'lars': RowOptimizer('lars'),
  'row_adagrad': RowOptimizer('row_adagrad'),
  'adagrad': RowOptimizer('adagrad'),
  'row_adam': RowOptimizer('row_adam'),
  'adam': RowOptimizer('adam'),
  'row_lamb': RowOptimizer('row_lamb'),
  'lamb': RowOptimizer('lamb'),
}


def by_name(name: str, **options) -> RowOptimizer:
  """The optimizer `name` of `ROW_OPTIMIZERS`, with options of its own."""
  if name not in ROW_OPTIMIZERS:
    raise ValueError(
      f'there is no row optimizer {name!r}; there are '
      f'{", ".join(ROW_OPTIMIZERS)}.'
    )
  known = [f.name for f in dataclasses.fields(RowOptimizer)][1:]
  if unknown := set(options) - set(known):
    raise ValueError(
      f'row optimizer {name!r} has no option {sorted(unknown)}; there are '
      f'{", ".join(known)}.'
    )
  return dataclasses.replace(ROW_OPTIMIZERS[name], **options)
