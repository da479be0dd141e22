"""Tables on a disk that services map and one follower keeps up to date.

    copy = ServingCopy('/var/tables')
    rows, step = copy.read('item', ids)

    COPY/
      POSITION.json      which step it holds, and in which files
      generation.npy     int64 [2]: odd while rows change, else even; the step
      1200-3/item.npy    [rows, dim]; bfloat16 as uint16
      incoming/1400/     a delta on its way into the tables
      LOCK               held by the follower, see copy_writer.py

Nothing here imports JAX.
"""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping

import ml_dtypes  # noqa: F401, tells NumPy of bfloat16
import numpy as np

from genrec_jax.checkpoint.manifest import CheckpointError

FORMAT = 1
POSITION, GENERATION = 'POSITION.json', 'generation.npy'


@dataclasses.dataclass(frozen=True)
class CopyPosition:
  """What a copy holds.

  Attributes:
    source: the directory it comes from.
    step: what is applied, to the last row.
    identity: which checkpoint of that step, see `chain.read_identity`.
    base: the step that its tables were built from.
    directory: of the tables, in the copy.
    every: whether they are all of the source.
    tables: name -> {'rows', 'dim', 'dtype', 'file'}, the file in the copy.
  """

  source: str
  step: int
  identity: int
  base: int
  directory: str
  every: bool
  tables: dict[str, dict]

  def to_bytes(self) -> bytes:
    body = {'format': FORMAT} | dataclasses.asdict(self)
    return json.dumps(body, indent=1).encode()


def read_position(copy: pathlib.Path) -> CopyPosition:
  """Raises FileNotFoundError where nothing is built yet."""
  path = copy / POSITION
  try:
    body = json.loads(path.read_bytes())
    version = body.pop('format')
    if version == FORMAT:
      return CopyPosition(**body)
  except FileNotFoundError:
    raise FileNotFoundError(
      f'{copy} holds no tables yet: its follower has not built any'
    ) from None
  except (ValueError, LookupError, AttributeError, TypeError) as e:
    raise CheckpointError(f'{path} cannot be read: {e}') from e
  raise CheckpointError(
    f'{copy} is of format {version}; this version reads format {FORMAT}'
  )


class ServingCopy:
  """A copy as a service sees it: it maps the tables and changes nothing."""

  def __init__(self, copy: str | os.PathLike):
    self._copy = pathlib.Path(copy)
    self._position = read_position(self._copy)
    self._generation = np.load(self._copy / GENERATION, mmap_mode='r')
    self._seen, self._arrays = None, {}
    self._refresh_maps()

  @property
  def step(self) -> int:
    """The newest step whose rows are all there."""
    return int(self._generation[1])

  @property
  def tables(self) -> dict[str, dict]:
    """Name -> {'rows', 'dim', 'dtype', 'file'}."""
    self._refresh_maps()
    return self._position.tables

  def table(self, name: str) -> np.ndarray:
    """The rows `[rows, dim]`, mapped; they change as deltas are applied.

    Ask again from time to time: tables that were built anew are other arrays.
    """
    self._refresh_maps()
    return find_table(self._arrays, name)

  def read(
    self, name: str, ids: np.ndarray, *, wait_s: float = 0.0
  ) -> tuple[np.ndarray, int | None]:
    """Copies rows, and says whether all are of one step.

    Args:
      name: of the table.
      ids: `[n]`.
      wait_s: how long to try again while a delta is being applied.

    Returns:
      Rows `[n, dim]`, and their step; None where they may be of two steps.
    """
    deadline = time.monotonic() + wait_s
    while True:
      rows = np.asarray(self.table(name)[ids])
      step, after = self.step, int(self._generation[0])
      if after == self._seen and after % 2 == 0:
        return rows, step
      if time.monotonic() >= deadline:
        return rows, None
      time.sleep(0.001)

  def _refresh_maps(self) -> None:
    """Maps the tables that the position names, when it may have changed."""
    while (now := int(self._generation[0])) != self._seen:
      try:
        position = read_position(self._copy)
      except FileNotFoundError:
        if not self._arrays:
          raise
        self._seen = now  # what was mapped serves until there are new tables
        break
      try:
        if not self._arrays or position.directory != self._position.directory:
          self._arrays = map_tables(self._copy, position.tables, 'r')
      except FileNotFoundError:
        if read_position(self._copy) == position:
          raise
        continue  # built anew once more
      self._position, self._seen = position, now


def map_tables(
  copy: pathlib.Path, tables: Mapping[str, dict], mode: str
) -> dict[str, np.ndarray]:
  """The tables of a position, as `np.load` maps them in some mode."""
  maps = {}
  for name, about in tables.items():
    path = copy / about['file']
    array = np.load(path, mmap_mode='r')
    if array.shape != (about['rows'], about['dim']):
      raise CheckpointError(f'{path} has another shape than {POSITION} says')
    if mode != 'r':  # which would have made a file longer that was cut short
      array = np.load(path, mmap_mode=mode)
    dtype = np.dtype(about['dtype'])
    maps[name] = array if array.dtype == dtype else array.view(dtype)
  return maps


def find_table(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
  """A table; CheckpointError for one that is not there."""
  if name not in arrays:
    there = ', '.join(arrays) or 'none yet'
    raise CheckpointError(f'the copy has no table {name!r}; there are: {there}')
  return arrays[name]
