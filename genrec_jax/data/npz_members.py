"""Reads the arrays of an .npz file that somebody else may have written.

`np.load` unpacks whatever a file asks for, and believes the sizes in its
headers. What `np.savez` writes is simpler: members that are not compressed, so
that no array is larger than the file.
"""

import io
import math
import zipfile

import numpy as np

_MOST_MEMBERS = 1000
_HEADER_BYTES = 4096


def read_members(raw: bytes, only: str | None = None) -> dict[str, np.ndarray]:
  """The arrays of an .npz file, which cannot be written to.

  Args:
    raw: content of the file.
    only: name of the one array to read; None for all.

  Returns:
    Name -> array, together never larger than the file.

  Raises:
    ValueError: it is not what `np.savez` writes.
  """
  arrays, left = {}, len(raw)
  try:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
      members = archive.infolist()
      if len(members) > _MOST_MEMBERS:
        raise ValueError(f'it has {len(members):,} members')
      for member in members:
        name, left = member.filename, left - member.file_size
        packed = member.compress_type != zipfile.ZIP_STORED
        # All in all, members may claim as many bytes as there are: several of
        # them might lie at the same place.
        if packed or member.compress_size != member.file_size or left < 0:
          raise ValueError(f'{name[:200]!r} is compressed or too large')
        key = name.removesuffix('.npy')
        if key == name or key in arrays:
          raise ValueError(f'{name[:200]!r} is no array, or there twice')
        if only in (None, key):
          arrays[key] = _parse_array(archive.read(member))
  except ValueError:
    raise
  except Exception as e:  # zipfile and the headers fail in many ways
    raise ValueError(f'it is no .npz file ({str(e)[:200]})') from e
  return arrays


def _parse_array(content: bytes) -> np.ndarray:
  """The array of an .npy file, of the bytes it really has."""
  file = io.BytesIO(content)
  if np.lib.format.read_magic(file) != (1, 0):
    raise ValueError('a header of another version')
  shape, by_columns, dtype = np.lib.format.read_array_header_1_0(
    file, max_header_size=_HEADER_BYTES
  )
  countable = len(shape) <= 2 and min(shape, default=0) >= 0
  plain = dtype.isnative and not dtype.hasobject and dtype.itemsize
  if not plain or not countable:
    raise ValueError(f'an array of {dtype}, shape {list(shape)}'[:200])
  start = file.tell()
  if len(content) - start != math.prod(shape) * dtype.itemsize:
    raise ValueError('an array that is longer or shorter than its header says')
  flat = np.frombuffer(content, dtype, offset=start)
  return flat.reshape(shape, order='F' if by_columns else 'C')
