"""From rows of a table to memory: the second stage of a lookup.

    ids -> id map -> rows -> store -> exchange -> pool

`DeviceStore` is what a table has unless `Extensions.stores` names another one:
the device holds every row, at the place of its own number. A store that keeps
rows elsewhere derives from it, sets `on_host`, and brings the rows of a batch
to the device in `prepare`, which runs on the host between two compiled programs
(`runtime.host_stage`).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from genrec_jax.contracts import Store
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import lookup, row_settings
from genrec_jax.features import Read, TableSpec
from pallas_kernels import MergedRows


@dataclasses.dataclass(frozen=True)
class DeviceStore:
  """Every row in an array on the device; a `contracts.Store`.

  >>> store = DeviceStore()
  >>> table = jnp.array([[1.0], [2.0], [3.0]])
  >>> store.read(table, jnp.array([0, 2, 3]))[:, 0].tolist()
  [1.0, 3.0, 0.0]
  >>> rule = row_settings.optimizer_of(TableSpec('t', 3, 1, update='sgd'), {})
  >>> merged = MergedRows(jnp.array([2, 3]), jnp.ones((2, 1)))
  >>> table, _ = store.update(table, {}, merged, [rule], [0.5], None)
  >>> table[:, 0].tolist()
  [1.0, 2.0, 2.5]
  """

  on_host = False

  def init(self, spec: TableSpec, key: jax.Array) -> jax.Array:
    """Every row of a table, fresh, `[rows, D]`."""
    return init_lib.init_table(spec, key)

  def prepare(self, array: jax.Array, slots, ids: jax.Array):
    """Nothing is to be brought: the place of a row is its number."""
    return array, slots, ids

  def read(self, array: jax.Array, places: jax.Array) -> jax.Array:
    """The rows at distinct places, `[N, D]`; zeros at spare places."""
    return lookup.fetch_rows(array, places)

  def pool(self, array: jax.Array, read: Read) -> jax.Array:
    """The sum or mean of each bag of rows, `[B, D]` float32."""
    return lookup.pool_table(array, read)

  def update(
    self,
    array: jax.Array,
    slots: dict[str, jax.Array],
    merged: MergedRows,
    optimizers: Sequence,
    rates: Sequence,
    groups: jax.Array | None,
    **more,
  ):
    """Moves rows of the array; see `row_settings.move_rows`."""
    return row_settings.move_rows(
      array, slots, merged, optimizers, rates, groups, **more
    )


DEVICE = DeviceStore()


def check_stores(
  stores: Mapping[str, Store], specs: Mapping[str, TableSpec]
) -> None:
  """Refuses stores of tables that are not updated by rows.

  >>> check_stores({'user': DEVICE}, {'item': TableSpec('item', 9, 4)})
  Traceback (most recent call last):
    ...
  ValueError: stores names user; the tables that are updated by rows are item
  """
  if unknown := sorted(set(stores) - set(specs)):
    raise ValueError(
      f'stores names {", ".join(unknown)}; the tables that are updated by rows '
      f'are {", ".join(sorted(specs)) or "none"}'
    )


def host_tables(stores: Mapping[str, Store]) -> list[str]:
  """The tables whose rows the host brings to the device, by name."""
  return sorted(name for name, store in stores.items() if store.on_host)


def sort_places(
  places: jax.Array, merged: MergedRows, row_numbers: jax.Array
) -> tuple[MergedRows, jax.Array]:
  """Gradients of rows -> gradients of their places, sorted as updates ask.

  Args:
    places: `[N]` where the rows of `merged` lie on the device.
    merged: rows and the sums of their gradients.
    row_numbers: `[N]` what chance depends on, see `RowOptimizer.update`.

  Returns:
    (the gradients by place, the numbers in that order).
  """
  order = jnp.argsort(places)
  by_place = MergedRows(places[order], merged.grads[order])
  return by_place, row_numbers[order]
