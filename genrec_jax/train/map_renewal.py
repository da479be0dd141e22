"""Gives a run that goes on the learned maps that its config names now.

A checkpoint has the map of its rows. If the file of a table (`map` in
`config.tables`) is another map by then, the rows move: `embedding.row_moves`
says what each begins with. Nothing is written: whoever is interrupted before
the next checkpoint does the same again, and each checkpoint, each delta and
each publication has a map and the rows that belong to it.

All of a table lies on the host for that moment, one array after the other.
"""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from genrec_jax.embedding import dirty_rows, id_maps
from genrec_jax.embedding.layout import Stack
from genrec_jax.embedding.learned_map import (
  LearnedIdMap,
  MapFile,
  pack_rows,
  unpack_rows,
)
from genrec_jax.embedding.row_moves import NEW, RowMoves, plan_moves
from genrec_jax.parallel import job

LOG = logging.getLogger('genrec_jax')
# Of an id that was never seen: rows that only such ids have go on, too.
_NEVER_SEEN = 0.5


def renew_maps(state, task, runtime):
  """The state with the maps of the files, and its rows moved to them.

  A file that is not there any more changes nothing, and a warning says so.

  Args:
    state: of a checkpoint, which is given away.
    task: whose tables.
    runtime: where the state lies.

  Returns:
    The state itself where no map is another one.
  """
  moves, words = {}, {}
  with job.fail_together('reading the learned maps'):
    for table, id_map in find_learned_maps(task, runtime).items():
      if not pathlib.Path(id_map.path).exists():
        LOG.warning(
          'table %s keeps the map of the checkpoint: the file %s is not there',
          table,
          id_map.path,
        )
        continue
      found = id_map.read_file()
      before = unpack_rows(
        np.asarray(state.id_states[table]['words']),
        np.arange(id_map.ids, dtype=np.uint32),
        id_map.rows,
      )
      if not np.array_equal(found.rows, before):
        moves[table] = _plan(before, found)
        words[table] = pack_rows(found.rows, found.count)
  return _move_rows(state, runtime.stacks, moves, words) if moves else state


def find_learned_maps(task, runtime) -> dict[str, LearnedIdMap]:
  """Table -> its map, of those that a file says."""
  maps = id_maps.collect_maps(task, runtime.maps).maps
  return {n: m for n, m in maps.items() if isinstance(m, LearnedIdMap)}


def _plan(before: np.ndarray, found: MapFile) -> RowMoves:
  old, new = before[1:], found.rows[1:]
  seen = np.zeros(len(before)) if found.counts is None else found.counts
  seen = np.asarray(seen[1:], np.float64)
  counts = np.maximum(seen, _NEVER_SEEN)
  moves = plan_moves(old, new, counts, found.count, found.count)
  goes_on = moves.kept[new] == old
  LOG.info(
    'table %s has another map: %s of %s rows go on with the weights that they '
    'had, the others begin with the mean of their ids; %.1f%% of the '
    'occurrences stay on their row',
    found.table,
    f'{np.count_nonzero(moves.kept != NEW) - 1:,}',
    f'{found.count - 1:,}',
    100 * seen[goes_on].sum() / max(seen.sum(), 1.0),
  )
  return moves


def _move_rows(
  state,
  stacks: Mapping[str, Stack],
  moves: Mapping[str, RowMoves],
  words: Mapping[str, np.ndarray],
):
  """The state with rows of the tables in `moves` moved."""
  tables, slots = dict(state.tables), dict(state.row_opt_state)
  marks = dict(state.dirty_rows)
  for name, stack in stacks.items():
    pieces = [p for p in stack.pieces if p.table in moves]
    if not pieces:
      continue
    places = [
      (moves[p.table], stack.index(p, np.arange(p.rows))) for p in pieces
    ]
    # Replica groups lie one behind the other, each with rows of its own.
    move = functools.partial(_move_pieces, places, stack.devices * stack.depth)
    tables[name] = move(tables[name], lambda move, x: move.move_weights(x, x))
    for slot, value in slots[name].items():
      if value.ndim:  # a count of updates is one number
        own = functools.partial(_move_slot, slot)
        slots[name] = slots[name] | {slot: move(value, own)}
    if name in marks:
      marks[name] = move(marks[name], lambda _, x: x | np.uint8(dirty_rows.ALL))
  for name in moves.keys() & (state.tables.keys() - stacks.keys()):
    tables[name] = _change(
      tables[name], lambda x, name=name: moves[name].move_weights(x, x)
    )

  def move_dense_slots(path, leaf):
    # Optax keeps trees like that of the weights: {slot}/tables/{name}.
    keys = [str(getattr(k, 'name', getattr(k, 'key', k))) for k in path]
    if keys[-2:-1] != ['tables'] or keys[-1] not in moves or not leaf.ndim:
      return leaf
    if leaf.shape[0] != len(moves[keys[-1]].kept):
      return leaf  # not of rows
    slot = keys[-3] if len(keys) > 2 else ''
    return _change(leaf, lambda x: _move_slot(slot, moves[keys[-1]], x))

  id_states = dict(state.id_states)
  for table, loaded in words.items():
    like = id_states[table]['words']
    id_states[table] = {'words': _put(loaded, like)}
  return dataclasses.replace(
    state,
    tables=tables,
    row_opt_state=slots,
    dirty_rows=marks,
    id_states=id_states,
    opt_state=jax.tree_util.tree_map_with_path(
      move_dense_slots, state.opt_state
    ),
  )


def _move_pieces(places, size: int, array: jax.Array, change: Callable):
  """An array with some of its rows moved.

  Args:
    places: (moves, `[R]` places of the rows) of each piece.
    size: rows of a replica group.
    array: of all groups.
    change: (moves, rows) -> rows.
  """

  def of_groups(rows: np.ndarray) -> np.ndarray:
    for first in range(0, len(rows), size):
      for move, at in places:
        rows[first + at] = change(move, rows[first + at])
    return rows

  return _change(array, of_groups)


def _move_slot(name: str, move: RowMoves, rows: np.ndarray) -> np.ndarray:
  return move.move_slots(name, rows, rows)


def _change(array: jax.Array, change: Callable) -> jax.Array:
  """What `change` makes of an array on the host, where the array lay."""
  if array.is_fully_addressable:
    host = np.array(array)
  else:
    host = np.array(multihost_utils.process_allgather(array, tiled=True))
  return _put(change(host), array)


def _put(values: np.ndarray, like: jax.Array) -> jax.Array:
  return jax.make_array_from_callback(
    like.shape, like.sharding, lambda index: values[index]
  )
