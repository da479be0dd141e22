"""Rows of a serving copy by the ids of values, where a map gives ids rows."""

import os
import pathlib
import time

import numpy as np

from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.trees import shape_of
from genrec_jax.embedding.learned_map import unpack_rows

_WORDS = 'id_states/{}/words'


class MappedRows:
  """Reads a serving copy with the learned map of the step that it holds.

  A run may learn its maps anew (`hash.renew_every`). What is published has a
  map and the rows that belong to it, and so has every answer of this reader.
  """

  def __init__(self, source: str | os.PathLike, copy: str | os.PathLike):
    """Opens both.

    Args:
      source: the directory that a follower reads: WORKDIR/published.
      copy: what the follower writes.
    """
    self._steps = CheckpointManager(pathlib.Path(source), log=lambda *_: None)
    self._copy = ServingCopy(copy)
    self._words: dict[str, np.ndarray] = {}
    self._step = None

  def read(
    self, table: str, ids: np.ndarray, *, wait_s: float = 1.0
  ) -> tuple[np.ndarray, int]:
    """Copies the rows of ids, all of one step and by the map of that step.

    Args:
      table: its name.
      ids: `[n]` of the vocabulary of the run.
      wait_s: how long to try while the copy changes.

    Returns:
      Rows `[n, dim]` and their step.

    Raises:
      TimeoutError: the copy changed all the time.
    """
    deadline = time.monotonic() + wait_s
    while True:
      step = self._copy.step
      rows = self._map(table, np.asarray(ids), step)
      if rows is not None:
        values, found = self._copy.read(table, rows)
        if found == step:
          return values, step
      if time.monotonic() >= deadline:
        raise TimeoutError(
          f'table {table!r} was between two steps for {wait_s} s'
        )
      time.sleep(0.001)

  def _map(self, table: str, ids: np.ndarray, step: int) -> np.ndarray | None:
    """The rows of ids at a step; None where that is gone."""
    if step != self._step:
      self._words, self._step = {}, step
    if table not in self._words:
      try:
        path, manifest = _WORDS.format(table), self._steps.read_manifest(step)
        if path not in manifest['tree']:
          return ids  # which are rows
        wanted = {path: shape_of(manifest['tree'][path])}
        _, found, _ = self._steps.restore(wanted, step=step, partial=True)
      except (CheckpointError, FileNotFoundError):
        return None  # a newer base has taken its place
      self._words[table] = np.asarray(found[path])
    return unpack_rows(self._words[table], ids, len(self._copy.table(table)))

  def close(self) -> None:
    """Lets go of the directory."""
    self._steps.close()
