"""A learned map of ids to rows: its file, and its form on devices.

The row of each id has just as many bits as the number of rows needs, 17 for
100,000 rows: 32 rows lie in 17 words, and no row lies in more than two. The map
of a run is a state, as that of a map that admits ids: it lies in checkpoints
beside the rows that it gives, and readers of a checkpoint need no file.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.data import npz_members
from genrec_jax.embedding.computed_maps import FixedIdMap, keep_ids
from genrec_jax.processes.whole_files import replace_file

FORMAT = 1
_WORD = 32  # bits, and rows that lie side by side in whole words


def count_bits(rows: int) -> int:
  """Bits of a row's number.

  >>> count_bits(2), count_bits(256), count_bits(257)
  (1, 8, 9)
  """
  return max(1, (rows - 1).bit_length())


def count_words(ids: int, rows: int) -> int:
  """Words of a packed map of `ids` to `rows`: 4 bytes each."""
  return -(-ids // _WORD) * count_bits(rows) + 1


def pack_rows(rows: np.ndarray, count: int) -> np.ndarray:
  """Packs rows into words.

  >>> words = pack_rows(np.array([0, 3, 1, 2]), count=4)
  >>> words.tolist(), unpack_rows(words, np.arange(4), count=4).tolist()
  ([156, 0, 0], [0, 3, 1, 2])

  Args:
    rows: `[ids]` numbers below `count`.
    count: of the rows that there are.

  Returns:
    `[count_words(ids, count)]` uint32.
  """
  bits = count_bits(count)
  groups = -(-len(rows) // _WORD)
  values = np.zeros(groups * _WORD, np.uint64)
  values[: len(rows)] = rows
  values = values.reshape(groups, _WORD)
  words = np.zeros((groups, bits + 1), np.uint32)
  for place in range(_WORD):
    word, shift = divmod(place * bits, _WORD)
    value = values[:, place] << np.uint64(shift)
    words[:, word] |= (value & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    words[:, word + 1] |= (value >> np.uint64(32)).astype(np.uint32)
  # One more at the end: whoever reads takes a word and the next one.
  return np.append(words[:, :bits].ravel(), np.uint32(0))


def unpack_rows(words, ids, count: int):
  """The rows of ids, by NumPy or JAX as the ids are.

  Args:
    words: of `pack_rows`.
    ids: of any shape, each an id of the map.
    count: of the rows that there are.

  Returns:
    int32 in the shape of `ids`.
  """
  xp = jnp if isinstance(ids, jax.Array) else np
  bits, u32 = count_bits(count), xp.uint32
  ids = ids.astype(u32)
  begin = ids % u32(_WORD) * u32(bits)
  word = (ids // u32(_WORD) * u32(bits) + begin // u32(_WORD)).astype(xp.int32)
  shift = begin % u32(_WORD)
  low = words[word] >> shift
  # A shift by 32 bits is not defined: two shifts, of which one is by one bit.
  high = words[word + 1] << u32(1) << (u32(_WORD - 1) - shift)
  mask = u32((1 << bits) - 1)
  return ((low | high) & mask).astype(xp.int32)


@dataclasses.dataclass(frozen=True)
class MapFile:
  """Rows of all ids of a table, and where they come from.

  Attributes:
    table: its name.
    rows: `[ids]` int32, that of padding is 0 and no other one.
    count: of the rows that there are.
    vocabulary: fingerprint of the vocabulary that gives the ids.
    about: how it was made, for people: numbers and texts by name.
    counts: `[ids]` how often each id had been seen; None where nobody says.
  """

  table: str
  rows: np.ndarray
  count: int
  vocabulary: str = ''
  about: dict[str, Any] = dataclasses.field(default_factory=dict)
  counts: np.ndarray | None = None

  def __post_init__(self):
    rows = self.rows
    if not len(rows) or rows[0] != 0:
      raise ValueError(f'the map of table {self.table!r} moves padding')
    if len(rows) > 1 and not 0 < rows[1:].min() <= rows[1:].max() < self.count:
      raise ValueError(
        f'the map of table {self.table!r} has rows {rows[1:].min():,} to '
        f'{rows[1:].max():,}, and the table has rows 1 to {self.count - 1:,}'
      )
    if self.counts is not None and len(self.counts) != len(rows):
      raise ValueError(
        f'the map of table {self.table!r} has {len(rows):,} ids, and there are '
        f'counts of {len(self.counts):,}'
      )

  @property
  def nbytes(self) -> int:
    """Of the packed map."""
    return 4 * count_words(len(self.rows), self.count)

  def fingerprint(self) -> str:
    """A short name of the map."""
    digest = hashlib.sha256(f'{self.count}/{self.vocabulary}/'.encode())
    digest.update(np.ascontiguousarray(self.rows, np.int32).data)
    return digest.hexdigest()[:16]

  def save(self, path: str | os.PathLike) -> None:
    """Writes the map, whole or not at all."""
    about = {
      'format': FORMAT, 'table': self.table, 'ids': len(self.rows),
      'rows': self.count, 'vocabulary': self.vocabulary, 'about': self.about,
    }  # fmt: skip
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays = {'about': text, 'words': pack_rows(self.rows, self.count)}
    if self.counts is not None:
      arrays['counts'] = np.asarray(self.counts, np.int64)
    np.savez(file, **arrays)
    replace_file(path, file.getvalue())

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'MapFile':
    """Reads what `save` wrote.

    Raises:
      ValueError: it is not that; the message names the file.
    """
    raw = _read(path)
    try:
      about = _parse_about(raw)
      members = npz_members.read_members(raw)
      ids, count, words = about['ids'], about['rows'], members['words']
      if len(words) != count_words(ids, count) or words.dtype != np.uint32:
        raise ValueError(f'{len(words)} words are no map of {ids:,} ids')
      rows = unpack_rows(words, np.arange(ids, dtype=np.uint32), count)
      return cls(
        about['table'],
        rows,
        count,
        about['vocabulary'],
        about['about'],
        members.get('counts'),
      )
    except Exception as e:  # zipfile, zlib, json and numpy each have their own
      raise ValueError(_say_damage(path, e)) from None


def _say_damage(path: str | os.PathLike, error: Exception) -> str:
  return (
    f'{path} holds no learned map: {error}. Remove it: `genrec learn_hash` '
    'writes maps anew that are not there'
  )


def read_vocabulary(path: str | os.PathLike) -> str:
  """The fingerprint of the vocabulary of a file, whose rows are not unpacked.

  Raises:
    ValueError: it is no file of `MapFile.save`; the message names it.
  """
  raw = _read(path)
  try:
    return _parse_about(raw)['vocabulary']
  except Exception as e:
    raise ValueError(_say_damage(path, e)) from None


def _read(path: str | os.PathLike) -> bytes:
  try:
    return pathlib.Path(path).read_bytes()
  except OSError as e:
    raise ValueError(f'the learned map {path} cannot be read: {e}') from None


def _parse_about(raw: bytes) -> dict[str, Any]:
  members = npz_members.read_members(raw, only='about')
  about = json.loads(members['about'].tobytes())
  if about['format'] > FORMAT:
    raise ValueError('it is of a later version of the library')
  return about


@dataclasses.dataclass(frozen=True)
class LearnedIdMap(FixedIdMap):
  """The rows that a file says.

  Attributes:
    table: name of the table.
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
    path: of the file, which is read before a run begins and never again.
  """

  table: str
  ids: int
  rows: int
  path: str

  def init(self) -> dict:
    # Zeros have the shape; a constant of a compiled program would be the map.
    words = jnp.zeros(count_words(self.ids, self.rows), jnp.uint32)
    return {'words': words}

  def read_file(self) -> MapFile:
    """The map of the file.

    Raises:
      ValueError: it is the map of another table.
    """
    found = MapFile.load(self.path)
    if (len(found.rows), found.count) != (self.ids, self.rows):
      raise ValueError(
        f'table {self.table!r} has {self.ids:,} ids and {self.rows:,} rows, '
        f'and its learned map {self.path} is of {len(found.rows):,} ids and '
        f"{found.count:,} rows: set 'rows' to that, or learn a map of these "
        'ids (genrec learn_hash)'
      )
    return found

  def load(self) -> dict[str, np.ndarray]:
    """The state of the file; see `read_file`."""
    return {'words': pack_rows(self.read_file().rows, self.rows)}

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    is_id = (ids >= 0) & (ids < self.ids)
    rows = unpack_rows(state['words'], jnp.where(is_id, ids, 0), self.rows)
    return keep_ids(ids, rows, self.ids)
