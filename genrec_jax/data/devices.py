"""Batches of NumPy arrays -> arrays of a mesh, a few batches ahead."""

import collections
import concurrent.futures
import contextlib
from collections.abc import Iterator

import jax

from genrec_jax import features
from genrec_jax.parallel import mesh as mesh_lib


def own_shards(mesh: jax.sharding.Mesh) -> range:
  """The shards of a batch that lie on this process's devices."""
  me = jax.process_index()
  own = [k for k, d in enumerate(mesh.devices.flat) if d.process_index == me]
  if not own:
    raise ValueError(f'process {me} has no device in the mesh')
  shards = range(own[0], own[-1] + 1)
  if len(shards) != len(own):
    raise ValueError(
      f'the devices of process {me} are {own} in the mesh, not next to each '
      'other; make the mesh with genrec_jax.parallel.mesh.make_mesh'
    )
  return shards


def to_global(
  batch: features.Examples, mesh: jax.sharding.Mesh
) -> features.Examples:
  """Puts this process's shards of a batch on its devices.

  Nothing is exchanged: the processes need not call this at the same time.

  Args:
    batch: of NumPy arrays, the shards `own_shards(mesh)` one behind the other.
    mesh: its devices, all of them, share the batch.

  Returns:
    The whole batch as `jax.Array`s, split over all axes of the mesh.
  """
  sharding = mesh_lib.batch_sharding(mesh)
  own, shards = len(own_shards(mesh)), mesh_lib.count_shards(mesh)

  def put_local(local):
    if len(local) % own:
      raise ValueError(f'an array of {len(local)} is not of {own} shards')
    shape = (len(local) // own * shards, *local.shape[1:])
    return jax.make_array_from_process_local_data(sharding, local, shape)

  return jax.tree.map(put_local, batch)


class DeviceBatches(contextlib.AbstractContextManager):
  """Iterator that puts the batches to come on the devices in the background.

      batches = DeviceBatches(iter(train_batches(...)), mesh)

  While a step runs on one batch, the next ones are made and copied. The source
  therefore stands further on than what was handed out; `get_state` is where it
  stood just behind the batch handed out last, and goes into a checkpoint as if
  nothing ran ahead. Close it, or use it as a context manager.
  """

  def __init__(self, source, mesh: jax.sharding.Mesh, *, ahead: int = 2):
    """Wraps an iterator.

    Args:
      source: iterator of `Examples` with `get_state` and `set_state`, as grain
        has them; nobody else may use it from now on.
      mesh: where the batches go.
      ahead: batches on the devices beyond the one handed out, at least 1.
    """
    if ahead < 1:
      raise ValueError(f'ahead must be at least 1, not {ahead}')
    self._source, self._mesh, self._ahead = source, mesh, ahead
    self._state = source.get_state()
    self._coming = collections.deque()
    self._stopped = False  # the source has ended or failed
    # One thread: the batches must be taken in order.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'batches')

  def __iter__(self) -> Iterator[features.Examples]:
    return self

  def __next__(self) -> features.Examples:
    self._fill_queue(self._ahead)
    concurrent.futures.wait([self._coming[0]])  # a Ctrl-C here loses nothing
    try:
      entry = self._coming.popleft().result()
    except Exception:
      self._drop_queue()
      raise
    if entry is None:
      self._drop_queue()  # a source that grows may go on later
      raise StopIteration
    batch, self._state = entry
    self._fill_queue(self._ahead)
    return batch

  def get_state(self) -> dict:
    return self._state

  def set_state(self, state: dict) -> None:
    self._drop_queue()
    self._source.set_state(state)
    self._state = self._source.get_state()

  def close(self) -> None:
    """Drops what was made ahead and closes the source."""
    for future in self._coming:
      future.cancel()
    if hasattr(self._source, 'close'):
      self._source.close()  # before waiting: the source may be waiting too
    self._drop_queue()
    self._thread.shutdown()

  def __exit__(self, *exc_info):
    self.close()

  def _fill_queue(self, count: int) -> None:
    while len(self._coming) < count:
      self._coming.append(self._thread.submit(self._make_batch))

  def _make_batch(self):
    if self._stopped:  # what follows would be handed out in the wrong place
      return None
    self._stopped = True
    batch = next(self._source, None)
    if batch is None:
      return None
    # Asked before the next batch is: the state behind exactly this one.
    entry = to_global(batch, self._mesh), self._source.get_state()
    self._stopped = False
    return entry

  def _drop_queue(self) -> None:
    """Forgets the batches made ahead, those under way included."""
    for future in self._coming:
      future.cancel()
    concurrent.futures.wait(self._coming)
    self._coming.clear()
    self._stopped = False
