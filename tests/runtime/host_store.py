"""A store of the tests: rows in NumPy, some of them in a cache on the device.

The device's array has a fixed number of places. Rows that a batch needs and
that are not there take free places, then those of the rows that have not been
needed for longest, which are written back first, slots and all.
"""

import collections

import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding.stores import DeviceStore


class CachedStore(DeviceStore):
  """Rows of one table in host memory, and a cache of them on the device.

  An evaluation is refused, since only the cache lies on the device, and a
  checkpoint would hold the cache alone; `whole` is the table.

  Attributes:
    evicted: how many rows have been written back to make room.
    calls: how many batches were prepared.
  """

  on_host = True

  def __init__(self, rows, slots, places: int):
    """Begins with nothing in the cache.

    Args:
      rows: `[V, D]` of the table before the first step.
      slots: of its row optimizer, those by row `[V, ...]`.
      places: of the cache.
    """
    self._rows = np.array(rows)
    self._slots = {
      name: np.array(slot) for name, slot in slots.items() if np.ndim(slot)
    }
    self._places = places
    self._place_of = collections.OrderedDict()  # row -> place, oldest first
    self.evicted = self.calls = 0

  def init(self, spec, key):
    del key
    return jnp.zeros((self._places, spec.dim), self._rows.dtype)

  def prepare(self, array, slots, ids):
    self.calls += 1
    ids = np.asarray(ids)
    real = [int(row) for row in ids[ids < len(self._rows)]]
    if len(real) > self._places:
      raise ValueError(
        f'a batch reads {len(real)} rows and the cache has {self._places} '
        'places; make it larger or the batch smaller'
      )
    missing = [row for row in real if row not in self._place_of]
    for row in real:
      if row in self._place_of:
        self._place_of.move_to_end(row)
    free = self._places - len(self._place_of)
    places = list(range(len(self._place_of), self._places))[: len(missing)]
    if len(missing) > free:
      oldest = list(self._place_of)[: len(missing) - free]
      self._write_back(array, slots, oldest)
      places += [self._place_of.pop(row) for row in oldest]
      self.evicted += len(oldest)
    if missing:
      where, slots = np.int32(places), dict(slots)
      array = array.at[where].set(self._rows[missing])
      for name, memory in self._slots.items():
        slots[name] = slots[name].at[where].set(memory[missing])
      self._place_of.update(zip(missing, places, strict=True))
    found = np.full(ids.shape, self._places, np.int32)
    found[: len(real)] = [self._place_of[row] for row in real]
    return array, slots, jnp.asarray(found)

  def _write_back(self, array, slots, rows):
    where = np.int32([self._place_of[row] for row in rows])
    self._rows[rows] = np.asarray(array[where])
    for name, memory in self._slots.items():
      memory[rows] = np.asarray(slots[name][where])

  def whole(self, array, slots):
    """(`[V, D]`, slots by row) as they stand, with what the cache holds."""
    self._write_back(array, slots, list(self._place_of))
    return self._rows.copy(), {n: x.copy() for n, x in self._slots.items()}
