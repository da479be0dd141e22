"""Tables on a disk that services map and one follower keeps up to date.

    copy = ServingCopy('/var/tables')
    rows, step = copy.read('item', ids)

    COPY/
      POSITION.json      which step it holds, and in which files
      generation.npy     int64 [2]: odd while rows change, else even; the step
      1200-3/item.npy    [rows, dim], with checksums beside it, table_file.py;
                         or rows packed in 8, 4 or 2 bits a number
      incoming/1400/     a delta on its way into the tables
      LOCK               held by the follower, see copy_writer.py

Nothing here imports JAX.
"""

import dataclasses
import json
import os
import pathlib
import re
import time
import zlib
from collections.abc import Mapping

import numpy as np

from genrec_jax.checkpoint import manifest_rules, row_files, storage, table_file
from genrec_jax.checkpoint.errors import CheckpointError, DamagedError
from genrec_jax.checkpoint.table_file import TableFile
from genrec_jax.data.quoting import quote
from genrec_jax.numerics.packed_formats import PACKED_FORMATS

FORMAT = 1
POSITION, GENERATION = 'POSITION.json', 'generation.npy'
INCOMING = 'incoming'
TABLES = re.compile(r'\d+-(\d+)')  # directories of tables
WHOLE_BYTES = 256 << 20  # a copy of up to this size is compared when opened
_MOST_BYTES = 64 << 20  # of a position
_KEYS = ('rows', 'dim', 'dtype')
_HEAL = 'start its follower again, which builds it anew'


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
    tables: name -> {'rows', 'dim', 'dtype', 'file', 'checksums'}, the files in
      the copy; of packed rows 'packed', too, their format.
  """

  source: str
  step: int
  identity: int
  base: int
  directory: str
  every: bool
  tables: dict[str, dict]

  def to_bytes(self) -> bytes:
    return _encode({'format': FORMAT} | dataclasses.asdict(self))

  def check(self) -> None:
    """Raises ValueError for values that no follower writes."""
    for name in ('step', 'identity', 'base'):
      value = getattr(self, name)
      if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f'{name} is {str(value)[:100]!r}')
    if not isinstance(self.directory, str) or not TABLES.fullmatch(
      self.directory
    ):
      raise ValueError(f'directory is {str(self.directory)[:100]!r}')
    if type(self.every) is not bool or not isinstance(self.source, str):
      raise ValueError('source or every is of another type')
    manifest_rules.check_tables(self.tables)
    for name, about in self.tables.items():
      given = {key: about[key] for key in _KEYS}
      if 'packed' in about:
        given['packed'] = about['packed']
        if about['packed'] not in PACKED_FORMATS:
          raise ValueError(f'table {name!r} is packed in an unknown format')
      # Those of earlier versions have no checksums, or other names.
      files = [
        f'{self.directory}/{escape(name)}.npy'
        for escape in (row_files.file_name, row_files.former_file_name)
      ]
      known = [given | {'file': file} for file in files]
      known += [x | {'checksums': name_sums(x['file'])} for x in known]
      if about not in known:
        raise ValueError(f'the files of table {name!r} are not its own')


def name_files(directory: str, table: str) -> dict[str, str]:
  """The files of a table, in the copy.

  >>> name_files('1200-3', 'item')
  {'file': '1200-3/item.npy', 'checksums': '1200-3/item.crc32.npy'}
  """
  file = f'{directory}/{row_files.file_name(table)}.npy'
  return {'file': file, 'checksums': name_sums(file)}


def name_sums(file: str) -> str:
  """The file of the checksums of a table."""
  return f'{file.removesuffix(".npy")}.crc32.npy'


def read_position(copy: pathlib.Path) -> CopyPosition:
  """Raises FileNotFoundError where nothing is built yet."""
  path = copy / POSITION
  try:
    raw = storage.read_file(copy, POSITION, _MOST_BYTES)
    body = json.loads(raw)
    checksum = body.pop('crc32', None)
    if checksum is not None and _encode(body) != raw:
      raise ValueError('it is damaged')
    version = body.pop('format')
    if version == FORMAT:
      position = CopyPosition(**body)
      position.check()
      if checksum is None and any(
        'checksums' in about for about in position.tables.values()
      ):
        raise ValueError('it is damaged')
      return position
  except FileNotFoundError:
    raise FileNotFoundError(
      f'{copy} holds no tables yet: its follower has not built any'
    ) from None
  except OSError as e:
    raise CheckpointError(f'{path} cannot be read ({e.strerror or e})') from e
  except (
    ValueError, LookupError, AttributeError, TypeError, RecursionError,
    MemoryError,
  ) as e:  # fmt: skip
    raise CheckpointError(f'{path} is damaged ({str(e)[:200]}); {_HEAL}') from e
  raise CheckpointError(
    f'{copy} is of format {str(version)[:20]}; this version reads format '
    f'{FORMAT}'
  )


def _encode(body: dict) -> bytes:
  text = json.dumps(body, indent=1).encode()
  return json.dumps(body | {'crc32': zlib.crc32(text)}, indent=1).encode()


def open_generation(copy: pathlib.Path, mode: str) -> np.ndarray:
  """The counter of changes and the step, int64 `[2]`, mapped."""
  _, generation = table_file.map_array(copy, GENERATION, mode)
  if generation.shape != (2,) or generation.dtype != np.int64:
    raise DamagedError(f'{copy / GENERATION} is damaged')
  return generation


class ServingCopy:
  """A copy as a service sees it: it maps the tables and changes nothing."""

  def __init__(self, copy: str | os.PathLike, *, verify: bool = False):
    """Maps the tables.

    Args:
      copy: the directory.
      verify: read all tables and compare them with their checksums, however
        large they are. Otherwise those of a copy of more than `WHOLE_BYTES` are
        compared as `read` meets them.

    Raises:
      FileNotFoundError: nothing is built yet.
      CheckpointError: something is damaged; the follower mends it when it is
        started again.
    """
    self._copy, self._verify = pathlib.Path(copy), verify
    self._position = read_position(self._copy)
    try:
      self._generation = open_generation(self._copy, 'r')
    except DamagedError as e:
      raise DamagedError(f'{e}; {_HEAL}') from e
    self._seen, self._files, self._compared = None, {}, set()
    self._refresh_maps()

  @property
  def step(self) -> int:
    """The newest step whose rows are all there."""
    return int(self._generation[1])

  @property
  def tables(self) -> dict[str, dict]:
    """Name -> {'rows', 'dim', 'dtype', 'file', 'checksums'}, and 'packed'."""
    self._refresh_maps()
    return self._position.tables

  def table(self, name: str) -> np.ndarray:
    """The rows `[rows, dim]`, mapped; they change as deltas are applied.

    Of a table that is packed, the bytes of its rows: uint8 `[rows, bytes]`, for
    `packed_formats.split_parts` or the operators of FBGEMM.

    Ask again from time to time: tables that were built anew are other arrays.
    The first time, a table of a copy of more than `WHOLE_BYTES` is read and
    compared with its checksums, about a second for a gigabyte; `read` compares
    no more than it gives.

    Raises:
      CheckpointError: the table is damaged.
    """
    self._refresh_maps()
    table = find_table(self._files, name)
    if name not in self._compared:
      self._require_whole(table, None)
      self._compared.add(name)
    return table.array

  def read(
    self, name: str, ids: np.ndarray, *, wait_s: float = 0.0
  ) -> tuple[np.ndarray, int | None]:
    """Copies rows, and says whether all are of one step.

    Args:
      name: of the table.
      ids: `[n]` whole numbers from 0 to the last row.
      wait_s: how long to try again while a delta is being applied.

    Returns:
      Rows `[n, dim]`, those of a packed table as float32, and their step; None
      where they may be of two steps.

    Raises:
      CheckpointError: the rows are damaged.
      ValueError: an id is no row of the table.
    """
    deadline = time.monotonic() + wait_s
    while True:
      self._refresh_maps()
      table = find_table(self._files, name)
      ids = check_ids(ids, name, len(table.array))
      rows = np.asarray(table.array[ids])
      self._require_whole(table, table.find_blocks(ids))
      step, after = self.step, int(self._generation[0])
      if after == self._seen and after % 2 == 0:
        return table.unpack_rows(rows), step
      if time.monotonic() >= deadline:
        return table.unpack_rows(rows), None
      time.sleep(0.001)

  def _refresh_maps(self) -> None:
    """Maps the tables that the position names, when it may have changed."""
    while (now := int(self._generation[0])) != self._seen:
      try:
        position = read_position(self._copy)
      except FileNotFoundError:
        if not self._files:
          raise
        self._seen = now  # what was mapped serves until there are new tables
        break
      try:
        if not self._files or position.directory != self._position.directory:
          self._files = map_tables(self._copy, position.tables, 'r')
          self._compared = set()
      except FileNotFoundError:
        if read_position(self._copy) == position:
          raise
        continue  # built anew once more
      self._position, self._seen = position, now
      self._check_tables()

  def _check_tables(self) -> None:
    """Compares what is to be compared at once, of a copy at rest."""
    step = self.step
    # A delta counts as applied before the position says so.
    if step != self._position.step and self._is_at_rest():
      under_way = (self._copy / INCOMING / str(step)).is_dir()
      if not under_way and not self._is_settled() and self._is_at_rest():
        raise DamagedError(f'{self._copy / GENERATION} is damaged; {_HEAL}')
    size = sum(table.nbytes for table in self._files.values())
    if self._verify or size <= WHOLE_BYTES:
      for name, table in self._files.items():
        self._require_whole(table, None)
        self._compared.add(name)

  def _is_at_rest(self) -> bool:
    return self._seen % 2 == 0 and int(self._generation[0]) == self._seen

  def _is_settled(self) -> bool:
    """Whether the position names the step whose rows are there."""
    try:
      return read_position(self._copy).step == self.step
    except FileNotFoundError:
      return False

  def _require_whole(self, table: TableFile, blocks) -> None:
    """Raises DamagedError for damage that is not a delta being applied."""
    if not self._is_at_rest() or not _find_damage(table, blocks):
      return
    # The follower writes checksums after the rows, and then the position. So
    # the second look counts: at checksums that the position vouches for.
    settled = self._is_settled()
    error = _find_damage(table, blocks)
    if error and settled and self._is_at_rest():
      raise DamagedError(f'{error}; {_HEAL}, with --verify if it is large')


def _find_damage(table: TableFile, blocks) -> DamagedError | None:
  try:
    table.check(blocks)
  except DamagedError as e:
    return e
  return None


def map_tables(
  copy: pathlib.Path, tables: Mapping[str, dict], mode: str
) -> dict[str, TableFile]:
  """The tables of a position, mapped in some mode of `np.load`."""
  return {name: TableFile(copy, about, mode) for name, about in tables.items()}


def find_table(files: Mapping[str, TableFile], name: str) -> TableFile:
  """A table; CheckpointError for one that is not there."""
  if name not in files:
    there = ', '.join(files) or 'none yet'
    raise CheckpointError(f'the copy has no table {name!r}; there are: {there}')
  return files[name]


def check_ids(ids: np.ndarray, name: str, rows: int) -> np.ndarray:
  """The ids of rows of a table.

  NumPy would take -1 for the last row.

  >>> check_ids([3, -1], 'item', 20)
  Traceback (most recent call last):
  ValueError: table 'item' has no row -1; ids are whole numbers from 0 to 19

  Args:
    ids: of rows.
    name: of the table.
    rows: how many it has.

  Raises:
    ValueError: an id is not that of a row.
  """
  ids = np.asarray(ids)
  if not ids.size:
    return ids.astype(np.int64)
  good = np.zeros(ids.shape, bool)
  if ids.dtype.kind in 'iu':
    good = (ids >= 0) & (ids < rows)
  if not good.all():
    bad = quote(ids.flat[np.argmin(good)].item())
    raise ValueError(
      f'table {name!r} has no row {bad}; ids are whole numbers from 0 to '
      f'{rows - 1}'
    )
  return ids
