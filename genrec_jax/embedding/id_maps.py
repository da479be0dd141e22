"""From the ids of a batch to rows of a table; the first stage of a lookup.

| name          | row of an id; 0 stays 0                                     |
|---------------|-------------------------------------------------------------|
| 'identity'    | the id itself                                               |
| 'hash'        | 1 + hash of the id, modulo the rows behind row 0            |
| 'permutation' | 1 + place of the id in a drawn order, modulo those rows     |
| 'ordered'     | 1 + id - 1, modulo those rows                               |
| 'frequency'   | the id itself up to `private`; of others a hash modulo the  |
|               | rows behind those                                           |
| 'double'      | the sum of two rows, by two hashes; one row of its own up   |
|               | to `private`                                                |
| 'qr'          | two rows, of the quotient and of the remainder of the id    |
| 'learned'     | what the file of `map_file` says                            |

Vocabularies of the library give ids in the order of frequency, the most
frequent value first. So 'ordered' keeps as many of those apart from one another
as there are rows, and 'frequency' gives the `private` most frequent ones a row
of their own. 'hash' is the hashing trick, which knows nothing of frequency;
'permutation' does not either, but the rows have equally many ids.

Where an id has two rows, a feature reads the table twice (`several_rows`).

A map may have a state, such as which ids have been admitted: it goes from the
routing of one batch to the routing of the next, never through what is learned,
so that a batch can be routed ahead. A checkpoint holds the state behind the
batch that was trained last.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.contracts import IdMap
from genrec_jax.embedding.computed_maps import (
  DoubleIdMap,
  HashIdMap,
  OrderedIdMap,
  PermutedIdMap,
  QuotientIdMap,
)
from genrec_jax.embedding.learned_map import LearnedIdMap
from genrec_jax.embedding.lookup import find_real_ids
from genrec_jax.embedding.several_rows import has_two
from genrec_jax.features import PAD, UNREAD, Read, TableSpec

# Name -> (spec, ids) -> map, where ids are not rows.
KINDS = {
  'hash': lambda spec, ids: HashIdMap(spec.name, ids, spec.rows),
  'permutation': lambda spec, ids: PermutedIdMap(spec.name, ids, spec.rows),
  'ordered': lambda spec, ids: OrderedIdMap(ids, spec.rows),
  'frequency': lambda spec, ids: HashIdMap(
    spec.name, ids, spec.rows, spec.private
  ),
  'double': lambda spec, ids: DoubleIdMap(
    spec.name, ids, spec.rows, spec.private
  ),
  'qr': lambda spec, ids: QuotientIdMap(spec.name, ids, spec.rows),
  'learned': lambda spec, ids: LearnedIdMap(
    spec.name, ids, spec.rows, spec.map_file
  ),
}
WITH_PRIVATE = ('frequency', 'double')
_MOST = 2**31 - 1  # numbers of rows have 32 bits


def build_map(spec: TableSpec) -> IdMap | None:
  """The map that a table asks for; None where ids are rows."""
  if spec.private and spec.id_map not in WITH_PRIVATE:
    raise ValueError(
      f'table {spec.name!r} has private={spec.private:,}, which is for '
      f"id_map='frequency' and 'double', and its id_map is {spec.id_map!r}"
    )
  if spec.combine != 'sum' and spec.id_map != 'qr':
    raise ValueError(
      f'table {spec.name!r} has combine={spec.combine!r}, which is for '
      f"id_map='qr', and its id_map is {spec.id_map!r}"
    )
  if bool(spec.map_file) != (spec.id_map == 'learned'):
    raise ValueError(
      f'table {spec.name!r} has id_map={spec.id_map!r} and '
      f'map={spec.map_file!r}: a file of rows (map) is for '
      "id_map='learned', which needs one"
    )
  if spec.id_map == 'identity':
    return None
  if spec.id_map not in KINDS:
    raise ValueError(
      f'table {spec.name!r} has id_map={spec.id_map!r}, must be one of '
      f'{("identity", *KINDS)}'
    )
  ids = spec.ids or spec.rows
  if has_two(spec) and 2 * ids > _MOST:
    raise ValueError(
      f'table {spec.name!r} has {ids:,} ids: id_map={spec.id_map!r} '
      f'numbers two rows of each, and there is room for {_MOST // 2:,}'
    )
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

  def load(self, states: Mapping[str, Any]) -> dict[str, Any]:
    """The states before the first batch, with what lies in files.

    Called on the host, once, before a run begins: a checkpoint has the states
    of a run that goes on.

    Args:
      states: of `init`, on their devices.
    """
    loaded = dict(states)
    for table, state in states.items():
      if read := getattr(self.maps[table], 'load', None):
        loaded[table] = jax.tree.map(
          lambda x, like: jax.device_put(x, like.sharding), read(), state
        )
    return loaded

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
