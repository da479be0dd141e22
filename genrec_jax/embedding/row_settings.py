"""How the rows of each table move: optimizer, options and rate by table.

Tables of one width, dtype and kind of optimizer share an array. Their rates and
options may differ all the same: one update moves all rows of the array, and
each row knows the settings of its table.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from genrec_jax.embedding import row_optimizers
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.scheme import PlanError
from genrec_jax.features import TableSpec
from pallas_kernels import MergedRows


def optimizer_of(
  spec: TableSpec,
  options: Mapping,
  extra: Mapping[str, RowOptimizerLike] | None = None,
) -> RowOptimizerLike:
  """The row optimizer of a table, with its own options before the general ones.

  >>> spec = TableSpec('t', 9, 4, update='adam', options=(('beta1', 0.5),))
  >>> rule = optimizer_of(spec, {'beta1': 0.9, 'eps': 1e-6})
  >>> rule.beta1, rule.eps
  (0.5, 1e-06)

  Args:
    spec: of the table.
    options: for every table whose optimizer is of this library; one from
      outside has options of its own.
    extra: optimizers from outside, by name.
  """
  general = {} if spec.update in (extra or {}) else dict(options)
  found = row_optimizers.find_optimizer(
    spec.update, extra=extra, **{**general, **dict(spec.options)}
  )
  # Before anything is compiled: its update would refuse it only then.
  if getattr(found, 'packed_as', '') and spec.dtype != 'float32':
    raise ValueError(
      f'packed_as is {found.packed_as!r} and the dtype {spec.dtype}: only '
      'float32 holds the numbers of such rows'
    )
  return found


def check_placement(
  table: str,
  optimizer: RowOptimizerLike,
  kind: str,
  *,
  pieces: int,
  replicas: int,
) -> None:
  """Refuses a place for a table where its rows cannot be updated.

  Args:
    table: its name.
    optimizer: that of the table.
    kind: what a config calls it.
    pieces: how many devices share a row.
    replicas: groups of devices with a copy each.

  Raises:
    PlanError: the optimizer needs whole rows, or rows that no mean changes.
  """
  if pieces > 1 and not optimizer.takes_pieces:
    packed = getattr(optimizer, 'packed_as', '')
    why = f'packed_as={packed!r}' if packed else 'these options'
    raise PlanError(
      f'table {table!r} is cut into {pieces} pieces of a row, and {kind} with '
      f'{why} needs whole rows; use row_adagrad, adagrad, adam, '
      'momentum or sgd without max_norm, l2 decay or packed_as, or a scheme '
      'that leaves rows whole'
    )
  packed_as = getattr(optimizer, 'packed_as', '')
  if packed_as and replicas > 1:
    raise PlanError(
      f'the rows of table {table!r} are kept in the numbers of {packed_as} '
      f'(packed_as), and means over {replicas} replicas lie between these: use '
      'parallel.replicas=1, with more hosts or devices'
    )


def rate_of(table: str, rates) -> jax.Array | float:
  """The rate of a table: `rates` are one number, or one for each table."""
  return rates[table] if isinstance(rates, Mapping) else rates


def move_rows(
  array: jax.Array,
  slots: dict[str, jax.Array],
  merged: MergedRows,
  optimizers: Sequence[RowOptimizerLike],
  rates: Sequence,
  groups: jax.Array | None,
  **more,
):
  """Moves rows of an array that several tables may share.

  Args:
    array: `[rows, D]`.
    slots: of its optimizer.
    merged: rows and the sums of their gradients.
    optimizers: of each table in the array; all of one kind.
    rates: of each table.
    groups: `[N]` number of the table of each row, negative for none; None for
      one table.
    **more: further arguments of `RowOptimizer.update`.

  Returns:
    (array, slots), both new.
  """
  first = optimizers[0]
  alike = all(optimizer == first for optimizer in optimizers)
  # The same number, not merely an equal one: a traced value has no equals.
  if alike and all(rate is rates[0] for rate in rates):
    return first.update(array, slots, *merged, rates[0], **more)
  return first.update(
    array,
    slots,
    *merged,
    jnp.stack([jnp.asarray(rate, jnp.float32) for rate in rates]),
    groups=jnp.maximum(groups, 0),
    settings=None if alike else list(optimizers),
    **more,
  )
