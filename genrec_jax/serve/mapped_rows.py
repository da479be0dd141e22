"""Rows of a serving copy by the ids of values, where a map gives ids rows."""

import os
import pathlib
import re
import time

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.trees import shape_of
from genrec_jax.embedding.learned_map import (
  count_bits,
  count_words,
  unpack_rows,
)

_WORDS = 'id_states/{}/words'


def _read_settings(path: pathlib.Path) -> list[tuple[str, dict]]:
  """`config.tables` of the run that publishes; nothing where it is unknown."""
  if not path.exists():
    return []
  return [tuple(entry) for entry in config_lib.read_config(path)['tables']]


class MappedRows:
  """Reads a serving copy with the learned map of the step that it holds.

  A run may learn its maps anew (`hash.renew_every`). What is published has a
  map and the rows that belong to it, and so has every answer of this reader.
  """

  def __init__(self, source: str | os.PathLike, copy: str | os.PathLike):
    """Opens both.

    Args:
      source: the directory that a follower reads: WORKDIR/published. The
        config beside it says which tables have a map that is not published;
        without it, ids of such tables would be taken for rows.
      copy: what the follower writes.
    """
    source = pathlib.Path(source)
    self._steps = CheckpointManager(source, log=lambda *_: None)
    self._settings = _read_settings(source.parent / 'config.json')
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
      TimeoutError: no whole step was there in that time; the message says why.
      ValueError: an id is none of the map, or the map is none that is
        published.
    """
    deadline = time.monotonic() + wait_s
    while True:
      step, why = self._copy.step, 'the copy was between two steps'
      try:
        rows = self._map(table, np.asarray(ids), step)
        values, found = self._copy.read(table, rows)
        if found == step:
          return values, step
      except (CheckpointError, FileNotFoundError) as e:
        why = str(e)  # perhaps a newer base has taken the place of this step
      if time.monotonic() >= deadline:
        raise TimeoutError(f'table {table!r}, for {wait_s} s: {why}')
      time.sleep(0.001)

  def _map(self, table: str, ids: np.ndarray, step: int) -> np.ndarray:
    """The rows of ids at a step."""
    if step != self._step:
      self._words, self._step = {}, step
    if table not in self._words:
      path, manifest = _WORDS.format(table), self._steps.read_manifest(step)
      if path not in manifest['tree']:
        self._check_plain(table)
        return ids  # which are rows
      wanted = {path: shape_of(manifest['tree'][path])}
      _, found, _ = self._steps.restore(wanted, step=step, partial=True)
      self._words[table] = np.asarray(found[path])
    words, count = self._words[table], len(self._copy.table(table))
    # Words have room for a few ids more than there are, on row 0.
    least = count_words(0, count)
    most = 32 * (len(words) - least) // count_bits(count)
    known = (ids >= 0) & (ids < most)
    rows = unpack_rows(words, np.where(known, ids, 0), count)
    if (wrong := ids[(ids != 0) & (rows == 0)]).size:
      raise ValueError(f'table {table!r} has no id {wrong.flat[0]}')
    return rows

  def _check_plain(self, table: str) -> None:
    """Refuses a table whose rows are computed from ids as they are read."""
    for pattern, settings in self._settings:
      if re.fullmatch(pattern, table):
        kind = settings.get('id_map', 'identity')
        if kind != 'identity':
          raise ValueError(
            f'table {table!r} has id_map={kind!r}, whose rows are computed: '
            'learned maps alone are published with the rows. `Scorer` reads '
            'all of them; embedding.computed_maps has the rows of ids'
          )
        return

  def close(self) -> None:
    """Lets go of the directory."""
    self._steps.close()
