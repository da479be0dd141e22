"""The files with the rows of a step: rows/<table>/<process>-<number>.npz.

This is separate from the code that writes them, so a reader needs no JAX.
"""

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from genrec_jax.checkpoint import chunks
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.manifest import DamagedError
from genrec_jax.numerics.formats import FORMATS, Formats

NAME = 'rows'
BASE, DELTA = 'base', 'delta'


def file_name(table: str) -> str:
  """The name of a table's directory, without characters files cannot have."""
  characters = [
    c if c.isalnum() or c in '-_' else f'%{ord(c):02x}' for c in table
  ]
  return ''.join(characters)


def file_names(body: dict, table: str) -> list[str]:
  """Files of a table in a step: those of its manifest, and no others."""
  start = f'{NAME}/{file_name(table)}/'
  return [name for name in body['files'] if name.startswith(start)]


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
      verify_file(step_dir, name, body)
  for name, table in of_tables(body, tables):
    raw = verify_file(step_dir, name, body)
    yield name, raw, decode_chunk(raw, table, tables, formats)


def verify_file(step_dir, name: str, body: dict) -> bytes:
  """A file of a step; DamagedError unless it is what the manifest says."""
  size, checksum = body['files'][name]
  try:
    raw = (step_dir / name).read_bytes()
  except FileNotFoundError:
    raise DamagedError(f'damaged: {name} is missing') from None
  except OSError as e:
    raise DamagedError(
      f'damaged: {name} cannot be read ({e.strerror or e})'
    ) from e
  if len(raw) != size:
    raise DamagedError(
      f'damaged: {name} has {len(raw)} bytes instead of {size}'
    )
  if zlib.crc32(raw) != checksum:
    raise DamagedError(f'damaged: the contents of {name} have changed')
  return raw


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
    chunk = chunks.from_bytes(raw, formats)
  except Exception as e:  # it is as it was written: by another version?
    raise DamagedError(
      f'damaged: rows of table {table!r} cannot be read ({e})'
    ) from e
  end = chunk.first_column + chunk.values.shape[1]
  fits = (
    chunk.table == table
    and chunk.values.dtype == np.dtype(about['dtype'])
    and 0 <= chunk.first_column < end <= about['dim']
    and len(chunk.ids) == len(chunk.values) > 0
    and 0 <= chunk.ids.min() <= chunk.ids.max() < about['rows']
  )
  if not fits:
    raise DamagedError(f'damaged: it has rows that do not fit table {table!r}')
  return chunk
