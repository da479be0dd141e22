"""The files with the rows of a step: rows/<table>/<process>-<number>.npz.

This is separate from the code that writes them, so a reader needs no JAX.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from genrec_jax.checkpoint import chunks, manifest
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.manifest import DamagedError
from genrec_jax.data import npz_members
from genrec_jax.numerics.formats import FORMATS, Formats

NAME = 'rows'
BASE, DELTA = 'base', 'delta'
_MOST_SMALLER = 1000  # than its table in memory, no format makes a file
_MOST_ROW_BYTES = 4096  # of ids, scales and codebooks of one row


def file_name(table: str) -> str:
  """The name of a table's directory, without characters files cannot have.

  >>> file_name('price ac'), file_name('price€')
  ('price%20ac', 'price%e2%82%ac')
  """

  def encode(c: str) -> str:
    raw = c.encode(errors='surrogatepass')
    return ''.join(f'%{byte:02x}' for byte in raw)

  return _escape(table, encode)


def former_file_name(table: str) -> str:
  """The same in earlier versions, where two tables might have one name.

  >>> former_file_name('price ac'), former_file_name('price€')
  ('price%20ac', 'price%20ac')
  """
  return _escape(table, lambda c: f'%{ord(c):02x}')


def _escape(table: str, encode: Callable[[str], str]) -> str:
  return ''.join(c if c.isalnum() or c in '-_' else encode(c) for c in table)


def file_names(body: dict, table: str) -> list[str]:
  """Files of a table in a step: those of its manifest, and no others."""
  name, former = file_name(table), former_file_name(table)
  # Of another table, if that is there.
  if former in map(file_name, body['rows']['tables']):
    former = name
  starts = f'{NAME}/{name}/', f'{NAME}/{former}/'
  return [file for file in body['files'] if file.startswith(starts)]


def count_bytes(body: dict) -> int:
  """Bytes of the rows of a step, of its manifest."""
  return sum(
    size
    for name, (size, _) in body['files'].items()
    if name.startswith(f'{NAME}/')
  )


def of_tables(body: dict, tables: Mapping) -> list[tuple[str, str]]:
  """(file, table) of all rows of some tables in a step."""
  return [(name, table) for table in tables for name in file_names(body, table)]


def check_sizes(body: dict, tables: Mapping[str, dict]) -> None:
  """Before tables are made for a base: refuses claims that no file supports.

  Args:
    body: manifest of the base.
    tables: the entries of those that will be made.

  Raises:
    DamagedError: a table is much larger than its files, or a file than its
      table, or two tables have the same files.
  """
  files = [file for file, _ in of_tables(body, tables)]
  if len(set(files)) < len(files):
    raise DamagedError('damaged: two of its tables have the same files')
  for name, about in tables.items():
    sizes = [body['files'][file][0] for file in file_names(body, name)]
    weights = about['rows'] * about['dim']
    size = weights * np.dtype(about['dtype']).itemsize
    if size > _MOST_SMALLER * (sum(sizes) + 1):
      raise DamagedError(
        f'damaged: table {name!r} would have {size:,} bytes, but its files '
        f'have {sum(sizes):,}'
      )
    slots = 1 + len(about['slots'])
    most = 8 * slots * weights + _MOST_ROW_BYTES * about['rows'] + (1 << 20)
    if max(sizes, default=0) > most:
      raise DamagedError(
        f'damaged: a file of table {name!r} has {max(sizes):,} bytes, more '
        'than all of its rows need'
      )


def read_contents(
  step_dir, body: dict, tables, formats: Formats = FORMATS
) -> Iterator[tuple[str, bytes, RowChunk]]:
  """(file, content, rows) of some tables; everything else is compared first.

  Rows of other tables, which `manifest.verify` has found there, are not read.
  """
  for name, about in tables.items():
    entry = body['rows']['tables'].get(name, {})
    for key in ('rows', 'dim', 'dtype'):
      if entry.get(key) != about[key]:
        raise DamagedError(
          f'damaged: {key} of table {name!r} is {entry.get(key)} instead of '
          f'{about[key]}'
        )
  for name in body['files']:
    if not name.startswith(f'{NAME}/'):
      manifest.compare_file(step_dir, name, body)
  for name, table in of_tables(body, tables):
    raw = verify_file(step_dir, name, body)
    yield name, raw, decode_chunk(raw, table, tables, formats)


def verify_file(step_dir, name: str, body: dict) -> bytes:
  """A file of a step; DamagedError unless it is what the manifest says."""
  return manifest.read_file(step_dir, name, body)


def describe_file(step_dir, name: str, body: dict) -> dict:
  """`about` of a file of rows, see chunks.py; DamagedError if it has none."""
  raw = verify_file(step_dir, name, body)
  try:
    return chunks.read_description(npz_members.read_members(raw, 'about'))
  except Exception as e:
    raise DamagedError(
      f'damaged: {name} cannot be read ({str(e)[:200]})'
    ) from e


def decode_chunk(
  raw: bytes,
  table: str,
  tables: Mapping[str, dict],
  formats: Formats = FORMATS,
) -> RowChunk:
  """A chunk that fits its table.

  Args:
    raw: content of a file.
    table: whose rows it should hold.
    tables: name -> 'rows', 'dim' and 'dtype' of each.
    formats: the number formats there are.

  Returns:
    The chunk; anything else is DamagedError.
  """
  about = tables[table]
  try:
    chunk = chunks.from_bytes(raw, formats, most_rows=about['rows'])
  except Exception as e:  # it is as it was written: by another version?
    raise DamagedError(
      f'damaged: rows of table {table!r} cannot be read ({str(e)[:200]})'
    ) from e
  end = chunk.first_column + chunk.values.shape[1]
  fits = (
    chunk.table == table
    and chunk.values.dtype == np.dtype(about['dtype'])
    and 0 <= chunk.first_column < end <= about['dim']
    and len(chunk.ids) == len(chunk.values) > 0
    and (np.diff(chunk.ids) > 0).all()
    and 0 <= chunk.ids[0] <= chunk.ids[-1] < about['rows']
    and _have_slots(chunk, about.get('slots'))
  )
  if not fits:
    raise DamagedError(f'damaged: it has rows that do not fit table {table!r}')
  return chunk


def _have_slots(chunk: RowChunk, slots: Mapping[str, str] | None) -> bool:
  """Whether a chunk has the slots of its table, one number a row or a weight.

  A serving copy does not know them, and has no use for them.
  """
  if slots is None:
    return True
  shapes = {'row': chunk.ids.shape, 'element': chunk.values.shape}
  return chunk.slots.keys() == slots.keys() and all(
    x.dtype.kind in 'fiuV' and x.shape == shapes[slots[slot]]
    for slot, x in chunk.slots.items()
  )
