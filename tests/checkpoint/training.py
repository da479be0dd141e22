"""A training that moves rows and saves them, and whose state is known."""

import errno

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint import delta, manifest
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout
from genrec_jax.features import TableSpec

SPECS = {
  'user': TableSpec('user', 60, 8, 0.5, 'row_adagrad'),
  'item': TableSpec('item', 40, 4, 0.5, 'adam'),
}
STACKS = relayout.sources_of_whole(SPECS)
TOUCHED = 15  # rows of each table, a step


class Training:
  """State, saver and checkpoints of a run that moves some rows a step."""

  def __init__(
    self, directory, log=print, *, keep=2, published=False, **options
  ):
    self.checkpoints = CheckpointManager(directory, keep=keep, log=log)
    self.saver = delta.RowSaver(
      self.checkpoints,
      STACKS,
      delta.DeltaOptions(**options),
      published=published,
      log=log,
    )
    self.step = 0
    rng = np.random.default_rng(0)
    self.arrays, self.slots = {}, {}
    for name, spec in SPECS.items():
      shape = (spec.rows, spec.dim)
      self.arrays[name] = jnp.asarray(rng.normal(size=shape), jnp.float32)
      self.slots[name] = (
        {'sum': jnp.zeros(spec.rows)}
        if spec.update == 'row_adagrad'
        else {
          'm': jnp.zeros(shape),
          'v': jnp.zeros(shape),
          'count': jnp.int32(0),
        }
      )
    self.dirty_rows = dirty_lib.init_dirty_rows(self.arrays)

  def train(self, steps=1):
    """Moves rows that depend on the step alone."""
    for _ in range(steps):
      self.step += 1
      rng = np.random.default_rng(self.step)
      rows = {}
      for name, spec in SPECS.items():
        ids = np.sort(rng.choice(spec.rows, TOUCHED, replace=False))
        rows[name] = jnp.asarray(ids)
        self.arrays[name] = self.arrays[name].at[ids].multiply(1.5)
        self.slots[name] = {
          slot: x.at[ids].add(self.step) if x.ndim else x + 1
          for slot, x in self.slots[name].items()
        }
      self.dirty_rows = dirty_lib.mark_rows(self.dirty_rows, rows)
    return self

  def save(self, **more):
    self.dirty_rows = self.saver.save(
      self.step,
      {'step': jnp.int32(self.step)},
      delta.RowTables(self.arrays, self.slots, self.dirty_rows),
      **more,
    )

  def restore(self, step=None):
    """Makes the state that of a checkpoint."""
    found, dense, _ = self.checkpoints.restore(
      {'step': jax.ShapeDtypeStruct((), jnp.int32)}, step=step
    )
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
      (self.arrays, self.slots),
    )
    rows = self.checkpoints.restore_rows(found, STACKS, *like)
    self.step = int(dense['step'])
    assert self.step == found
    self.arrays, self.slots = dict(rows.arrays), dict(rows.slots)
    self.dirty_rows = dict(rows.dirty_rows)
    self.saver.note_restore(found)
    return self

  def assert_same(self, other):
    assert self.step == other.step
    jax.tree.map(
      np.testing.assert_array_equal,
      (self.arrays, self.slots),
      (other.arrays, other.slots),
    )


def steps(checkpoints):
  """Directories of a place of checkpoints, whatever they hold."""
  return manifest.list_steps(checkpoints.directory)


def disk_full(*args, **kwargs):
  raise OSError(errno.ENOSPC, 'No space left on device')
