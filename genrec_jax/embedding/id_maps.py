"""From the ids of a batch to rows of a table; the first stage of a lookup.

| name        | row of an id; 0 stays 0                                       |
|-------------|---------------------------------------------------------------|
| 'identity'  | the id itself                                                 |
| 'hash'      | 1 + hash of the id, modulo the rows behind row 0              |
| 'ordered'   | 1 + id - 1, modulo the rows behind row 0                      |
| 'frequency' | the id itself up to `private`; of others a hash modulo the    |
|             | rows behind those                                             |

Vocabularies of the library give ids in the order of frequency, the most
frequent value first. So 'ordered' keeps as many of those apart from one another
as there are rows, and 'frequency' gives the `private` most frequent ones a row
of their own. 'hash' is the hashing trick, which knows nothing of frequency.

A map may have a state, such as which ids have been admitted: it goes from the
routing of one batch to the routing of the next, never through what is learned,
so that a batch can be routed ahead. A checkpoint holds the state behind the
batch that was trained last.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.contracts import IdMap
from genrec_jax.embedding.lookup import find_real_ids
from genrec_jax.features import PAD, UNREAD, Read, TableSpec
from pallas_kernels.hashing import mix

NO_ROW = -1


@dataclasses.dataclass(frozen=True)
class HashIdMap:
  """Many ids on few rows, by a hash that depends on the table's name.

  >>> import jax.numpy as jnp
  >>> id_map = HashIdMap('user', ids=1000, rows=8)
  >>> ids = id_map.lookup({}, jnp.array([0, 5, 1000]))
  >>> ids[0].item(), 1 <= ids[1].item() < 8, ids[2].item()
  (0, True, -1)
  >>> id_map = HashIdMap('user', ids=1000, rows=8, private=3)
  >>> rows = id_map.lookup({}, jnp.array([0, 1, 3, 4, 999])).tolist()
  >>> rows[:3], 4 <= rows[3] < 8, 4 <= rows[4] < 8
  ([0, 1, 3], True, True)

  Attributes:
    table: name of the table.
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
    private: how many of the first ids, that of padding not counted, have a row
      of their own; the others share the rest.
  """

  table: str
  ids: int
  rows: int
  private: int = 0

  def init(self) -> dict:
    return {}

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    first = self.private + 1
    shared = first + _hash_ids(self.table, ids, self.rows - first)
    return _keep_ids(ids, jnp.where(ids < first, ids, shared), self.ids)

  def assign(self, state, ids: jax.Array, real: jax.Array):
    del real
    return self.lookup(state, ids), state


@dataclasses.dataclass(frozen=True)
class OrderedIdMap:
  """Many ids on few rows, in turns: the first ids are apart from one another.

  >>> import jax.numpy as jnp
  >>> id_map = OrderedIdMap(ids=1000, rows=4)
  >>> id_map.lookup({}, jnp.array([0, 1, 2, 3, 4, 5, 1000])).tolist()
  [0, 1, 2, 3, 1, 2, -1]

  Attributes:
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
  """

  ids: int
  rows: int

  def init(self) -> dict:
    return {}

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    return _keep_ids(ids, 1 + (ids - 1) % (self.rows - 1), self.ids)

  def assign(self, state, ids: jax.Array, real: jax.Array):
    del real
    return self.lookup(state, ids), state


def _hash_ids(table: str, ids: jax.Array, size: int) -> jax.Array:
  """A number below `size` for each id, other ones for other tables."""
  seed = jnp.uint32(zlib.crc32(table.encode()))
  bits = mix(mix(ids.astype(jnp.uint32)) ^ seed)
  return (bits % jnp.uint32(size)).astype(jnp.int32)


def _keep_ids(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
  """The rows of ids: that of padding is 0, and what is no id has none."""
  rows = jnp.where(ids == PAD, 0, rows)
  return jnp.where((ids >= 0) & (ids < count), rows, NO_ROW)


# Name -> (spec, ids) -> map, where ids are not rows.
KINDS = {
  'hash': lambda spec, ids: HashIdMap(spec.name, ids, spec.rows),
  'ordered': lambda spec, ids: OrderedIdMap(ids, spec.rows),
  'frequency': lambda spec, ids: HashIdMap(
    spec.name, ids, spec.rows, spec.private
  ),
}


def build_map(spec: TableSpec) -> IdMap | None:
  """The map that a table asks for; None where ids are rows."""
  if spec.private and spec.id_map != 'frequency':
    raise ValueError(
      f'table {spec.name!r} has private={spec.private:,}, which is for '
      f"id_map='frequency', and its id_map is {spec.id_map!r}"
    )
  if spec.id_map == 'identity':
    return None
  if spec.id_map not in KINDS:
    raise ValueError(
      f'table {spec.name!r} has id_map={spec.id_map!r}, must be one of '
      f'{("identity", *KINDS)}'
    )
  ids = spec.ids or spec.rows
  # Beside the private ones, row 0 is for padding and one at least is shared.
  if spec.rows < spec.private + 2:
    private = f'{spec.private:,} private ones, ' if spec.private else ''
    raise ValueError(
      f'table {spec.name!r} has {spec.rows:,} rows: id_map={spec.id_map!r} '
      f'needs {spec.private + 2:,}, {private}one for padding and one at least '
      'that ids share'
    )
  return KINDS[spec.id_map](spec, ids)


@dataclasses.dataclass(frozen=True)
class IdMaps:
  """The maps of a task's tables; tables without one read ids as rows.

  Attributes:
    maps: table -> its map.
  """

  maps: Mapping[str, IdMap]

  def init(self) -> dict[str, Any]:
    """Table -> state of its map before the first batch, where it has any."""
    states = {table: m.init() for table, m in self.maps.items()}
    return {t: s for t, s in states.items() if jax.tree.leaves(s)}

  def assign(self, states, reads: Mapping[str, Read]):
    """Maps the reads of a training batch.

    Args:
      states: table -> state behind the batch before.
      reads: feature -> its read, `[P, ...]` of P microbatches.

    Returns:
      (feature -> rows of its ids, for tables with a map; states behind this
      batch).
    """
    states, rows = dict(states), {}
    for feature, read in self._select_mapped(reads):
      before = states.get(read.table, {})
      assigned, state = self.maps[read.table].assign(
        before, _without_unread(read), find_real_ids(read)
      )
      rows[feature] = jnp.where(read.ids == UNREAD, UNREAD, assigned)
      if _leaf_shapes(before) != _leaf_shapes(state):
        raise ValueError(
          f'the id map of table {read.table!r} was given a state of '
          f'{_leaf_shapes(before)} and returned one of {_leaf_shapes(state)}; '
          'its state keeps the shapes and dtypes that init gave it'
        )
      if read.table in states:
        states[read.table] = state
    return rows, states

  def lookup(self, states, reads: Mapping[str, Read]) -> dict[str, jax.Array]:
    """The same for reads that change nothing, as evaluations do."""
    rows = {}
    for feature, read in self._select_mapped(reads):
      state = states.get(read.table, {})
      mapped = self.maps[read.table].lookup(state, _without_unread(read))
      rows[feature] = jnp.where(read.ids == UNREAD, UNREAD, mapped)
    return rows

  def _select_mapped(self, reads: Mapping[str, Read]):
    # In one order on all devices and in all versions of a program.
    mapped = [
      (feature, read)
      for feature, read in sorted(reads.items())
      if read.table in self.maps
    ]
    for feature, read in mapped:
      if read.ids is None:
        raise ValueError(
          f'feature {feature!r} reads the whole table {read.table!r}, where an '
          'id map decides which row an id has: announce the ids, or take the '
          'map away (config.tables, Extensions.id_maps); a full_softmax loss '
          'reads the whole catalogue'
        )
    return mapped


def collect_maps(task, maps: Mapping[str, IdMap] | None = None) -> IdMaps:
  """The maps of a task's tables.

  Args:
    task: whose tables.
    maps: table -> a map of the caller's own, in place of the table's.
  """
  own = {name: build_map(spec) for name, spec in task.tables().items()}
  if unknown := sorted(set(maps or {}) - set(own)):
    raise ValueError(
      f'maps names {", ".join(unknown)}; the tables of the task are '
      f'{", ".join(sorted(own))}'
    )
  own |= maps or {}
  return IdMaps({name: m for name, m in own.items() if m is not None})


def _without_unread(read: Read) -> jax.Array:
  """The ids as a map understands them: padding for those that are nothing."""
  return jnp.where(read.ids == UNREAD, PAD, read.ids)


def _leaf_shapes(state):
  """Of the leaves of a state, in its structure."""
  return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x).name), state)
