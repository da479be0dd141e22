"""Values of a column -> rows of a table, fitted on the training split.

Row 0 is padding and what is missing, 1 .. K are the known values from the most
frequent on, the last row (or the last `hash_rows`) is what is not known.
"""

import collections
import dataclasses
import hashlib
import pathlib
import zlib
from collections.abc import Sequence

import numpy as np

from genrec_jax import features
from genrec_jax.data import npz_members, text_arrays
from genrec_jax.data.ranking import forms, raw
from genrec_jax.data.ranking import schema as schema_lib
from genrec_jax.data.ranking.mixing import mix_bits

_UNSEEN = -1


class UnseenError(ValueError):
  """A value that the vocabulary lacks, under oov='error'."""

  def __init__(self, value: str, at: int):
    super().__init__(value)
    self.value, self.at = value, at


class ValueCounts:
  """Counts the values of a table; memory holds each distinct one once."""

  def __init__(self):
    self._counts = collections.Counter()

  def add(self, values: Sequence[str] | raw.NumberColumn) -> None:
    if isinstance(values, raw.NumberColumn):
      texts, _, counts = forms.find_distinct(values.values, values.present)
      self._counts.update(dict(zip(texts, counts.tolist(), strict=True)))
    else:
      self._counts.update(values)

  def _merge_forms(self) -> None:
    """Counts what is one value in several forms under the canonical one."""
    self._rename(lambda value: value[-1:] == '0', forms.canonicalize)
    if bools := forms.read_bools(value for value in self._counts if value):
      self._rename(bools.__contains__, bools.__getitem__)

  def _rename(self, is_concerned, rename) -> None:
    for value in list(filter(is_concerned, self._counts)):
      count = self._counts.pop(value)
      self._counts[rename(value)] += count

  def ordered(self, min_count: int) -> list[tuple[str, int]]:
    """(value, count) from the most frequent on, ties by the value."""
    self._merge_forms()
    frequent = [(v, n) for v, n in self._counts.items() if v and n >= min_count]
    return sorted(frequent, key=lambda pair: (-pair[1], pair[0]))


class _Rows(dict):
  """Value -> row, also of another form of a value; `unseen` for any other.

  A value is looked up as it is, and only then by its canonical form: rows of
  earlier versions are of texts of any form.
  """

  def __init__(self, values: Sequence[str], unseen: int):
    super().__init__(zip(values, range(1, len(values) + 1), strict=True))
    # Read up to the first that is none.
    bools = forms.read_bools(map(forms.canonicalize, values))
    self._bools = bools if values else {}
    self._others = {}  # canonical form -> row of a value in another form
    if not self._bools:
      values = [value for value in values if value[-1:] == '0']
    for value in values:
      canonical = self.canonicalize(value)
      if canonical not in self:
        self._others.setdefault(canonical, self[value])
    self[''], self.unseen = features.PAD, unseen
    self._most = 2 * len(self)

  def canonicalize(self, value: str) -> str:
    """The form that rows are looked up by, and hashed."""
    value = forms.canonicalize(value)
    return self._bools.get(value, value)

  def __missing__(self, value: str) -> int:
    if value[-1:] != '0' and not self._bools and not self._others:
      return self.unseen
    canonical = self.canonicalize(value)
    row = self.get(canonical)
    row = self._others.get(canonical) if row is None else row
    if row is None:
      return self.unseen
    if len(self) < self._most:  # the same form comes again
      self[value] = row
    return row


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """See the head of this file.

  Attributes:
    table: its name; it salts the hash.
    values: the K known values in the order of their rows.
    counts: `[K]` int64, how often each stood in the training split.
    oov: 'row', 'hash' or 'error'.
    hash_rows: rows of what is not known, for 'hash'.
    hashes_canonical: whether the canonical forms are hashed, and not the texts
      as they are, as vocabularies of earlier versions do.
  """

  table: str
  values: tuple[str, ...]
  counts: np.ndarray
  oov: str = 'row'
  hash_rows: int = 0
  hashes_canonical: bool = False
  _rows: dict[str, int] = dataclasses.field(
    init=False, repr=False, compare=False
  )

  def __post_init__(self):
    unseen = self.rows - 1 if self.oov == 'row' else _UNSEEN
    object.__setattr__(self, '_rows', _Rows(self.values, unseen))

  @property
  def rows(self) -> int:
    """Rows of the table."""
    return 1 + len(self.values) + max(1, self.hash_rows)

  def encode(self, values: Sequence[str] | raw.NumberColumn) -> np.ndarray:
    """`[N]` int32 rows; raises `UnseenError` where that is asked for."""
    if isinstance(values, raw.NumberColumn):
      texts, inverse, _ = forms.find_distinct(values.values, values.present)
      try:
        return self.encode(texts)[inverse]
      except UnseenError as e:
        at = int(np.flatnonzero(inverse == e.at)[0])
        raise UnseenError(e.value, at) from None
    get = self._rows.__getitem__
    rows = np.fromiter(map(get, values), np.int32, len(values))
    if self.oov != 'row' and len(rows) and rows.min() < 0:
      at = np.flatnonzero(rows < 0)
      if self.oov == 'error':
        raise UnseenError(values[at[0]], int(at[0]))
      rows[at] = self._hash_values([values[i] for i in at.tolist()])
    return rows

  def _hash_values(self, values: list[str]) -> np.ndarray:
    read = self._rows.canonicalize if self.hashes_canonical else str
    known = {v: zlib.crc32(read(v).encode()) for v in dict.fromkeys(values)}
    crc = np.fromiter((known[v] for v in values), np.uint64, len(values))
    salt = np.uint64(zlib.crc32(self.table.encode()))
    # A CRC alone keeps patterns of the text.
    x = mix_bits(crc + (salt << np.uint64(32)) + np.uint64(0x9E3779B97F4A7C15))
    first = 1 + len(self.values)
    return (first + x % np.uint64(self.hash_rows)).astype(np.int32)

  def decode(self, rows: np.ndarray) -> list[str]:
    """The values of `rows`; '' is missing, '?' what is not known."""
    names = ['', *self.values, *['?'] * (self.rows - 1 - len(self.values))]
    return [names[row] for row in np.asarray(rows).tolist()]

  def fingerprint(self) -> str:
    """A short name of the content."""
    blob, ends = text_arrays.pack_texts(self.values)
    digest = hashlib.sha256(
      f'{self.table}/{self.oov}/{self.hash_rows}'.encode()
    )
    digest.update(blob.data)
    digest.update(ends.data)
    return digest.hexdigest()[:16]

  def save(self, path: pathlib.Path) -> None:
    blob, ends = text_arrays.pack_texts(self.values)
    with open(path, 'wb') as f:
      np.savez(f, text=blob, ends=ends, counts=self.counts)

  @classmethod
  def from_bytes(
    cls, raw: bytes, table, oov, hash_rows, hashes_canonical=False
  ) -> 'Vocabulary':
    """Reads what `save` wrote.

    Raises:
      ValueError: it is not that.
    """
    try:
      f = npz_members.read_members(raw)
      blob, ends, counts = f['text'].tobytes(), f['ends'], f['counts']
      at = [0, *ends.tolist()]
      if at != sorted(at) or at[-1] != len(blob):
        raise ValueError('its texts overlap')
      values = tuple(
        blob[a:b].decode() for a, b in zip(at[:-1], at[1:], strict=True)
      )
    except Exception as e:  # zipfile, zlib and numpy each have their own
      raise ValueError(f'it holds no vocabulary: {e}') from None
    return cls(table, values, counts, oov, hash_rows, hashes_canonical)


def fit_vocabulary(
  column: schema_lib.Column, counts: ValueCounts
) -> Vocabulary:
  """The vocabulary of a table, as a feature that reads it asks for."""
  pairs = counts.ordered(column.min_count)
  hashed = column.vocabulary == 'hashed'
  return Vocabulary(
    column.table_name,
    () if hashed else tuple(value for value, _ in pairs),
    np.array([] if hashed else [n for _, n in pairs], np.int64),
    'hash' if hashed else column.oov,
    column.hash_rows if hashed or column.oov == 'hash' else 0,
    hashes_canonical=True,
  )
