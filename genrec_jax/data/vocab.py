"""Vocabularies: original ids <-> the indices 1..V that tables are rows of."""

import functools
import hashlib
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from genrec_jax import features, sealed
from genrec_jax.data import text_arrays
from genrec_jax.data.quoting import quote

# Bytes of fixed width that a fingerprint reads; beyond, texts as they are.
_DIGESTED = 1 << 32
_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


# What is written of whole numbers beside missing ones, which become floats.
_WHOLE_FLOAT = re.compile(r'(-?[0-9]+)\.0+')


def parse_ints(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Reads decimal integers that are written in the one canonical way.

  '007' and '7' are two ids to whoever wrote them, so '007' does not count as an
  integer. '7.0' is 7.

  Args:
    words: N strings.

  Returns:
    `[N]` int64 values (0 where not an integer) and the `[N]` bool mask.
  """
  words = words.tolist() if isinstance(words, np.ndarray) else words
  try:  # the common case: all are integers
    values = np.fromiter(map(int, words), np.int64, len(words))
  except (ValueError, OverflowError):
    return _parse_one_by_one(words)
  if not ''.join(words).isascii():  # int() reads the digits of any script
    return _parse_one_by_one(words)
  # Written canonically, an integer is as long as its digits and its sign.
  digits = 1 + np.searchsorted(_POWERS, np.abs(values), side='right')
  lengths = np.fromiter(map(len, words), np.int64, len(words))
  good = lengths == digits + (values < 0)
  return np.where(good, values, 0), good


def _parse_one_by_one(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  values = np.zeros(len(words), np.int64)
  good = np.zeros(len(words), bool)
  limits = np.iinfo(np.int64)
  for i, word in enumerate(words):
    if match := _WHOLE_FLOAT.fullmatch(word):
      word = match[1]
    try:
      value = int(word)
    except ValueError:
      continue
    if str(value) == word and limits.min < value <= limits.max:
      values[i], good[i] = value, True
  return values, good


class Vocab:
  """Ordered distinct ids; id number i (from 0) has index i + 1, 0 is PAD.

  Attributes:
    ids: `[V]` int64 or text; `ids[i]` has index i + 1.
  """

  def __init__(self, ids: np.ndarray):
    ids = np.asarray(ids)
    if ids.ndim != 1:
      raise ValueError(f'ids must be a flat list, not of shape {ids.shape}')
    if ids.dtype == 'S1':  # as `save` writes them
      ids = text_arrays.unpack_array(ids)
    if ids.dtype.kind in 'iu' or not len(ids):
      ids = ids.astype(np.int64)
    elif text_arrays.is_text(ids):
      lengths = np.strings.str_len(ids)
      if lengths.max() > text_arrays.LONGEST_ID:
        long = quote(ids.item(int(np.argmax(lengths))))
        raise ValueError(
          f'id {long} is too long; ids have at most '
          f'{text_arrays.LONGEST_ID:,} characters'
        )
      ids = ids.astype(text_arrays.find_narrowest_dtype(ids), copy=False)
    else:
      raise ValueError(f'ids must be integers or strings, not {ids.dtype}')
    self.ids = ids
    if len(ids) > 1:
      ordered = ids[self._sort_order]
      twice = ordered[1:] == ordered[:-1]
      if twice.any():
        value = quote(ordered[1:][twice].item(0))
        raise ValueError(f'id {value} appears twice in the vocabulary')

  @functools.cached_property
  def _sort_order(self) -> np.ndarray:
    return np.argsort(self.ids, kind='stable')

  @functools.cached_property
  def _sorted_ids(self) -> np.ndarray:
    return self.ids[self._sort_order]

  def __len__(self) -> int:
    return len(self.ids)

  @property
  def has_texts(self) -> bool:
    """Whether the ids are texts and not whole numbers."""
    return text_arrays.is_text(self.ids)

  @property
  def rows(self) -> int:
    """Rows of a table over this vocabulary, the PAD row included."""
    return len(self.ids) + 1

  def encode(self, ids: np.ndarray) -> np.ndarray:
    """Indices `[N]` int32 of `ids [N]`; PAD where an id is not known."""
    ids = np.asarray(ids)
    if not len(self) or not len(ids):
      return np.full(len(ids), features.PAD, np.int32)
    good = None
    if self.has_texts and ids.dtype.kind in 'iu':
      ids = ids.astype(str)
    if self.has_texts and text_arrays.is_text(ids):
      ids, good = text_arrays.fit_to(ids, self.ids)
    elif text_arrays.is_text(ids):
      ids, good = parse_ints(ids)
    place = np.searchsorted(self._sorted_ids, ids)
    place = np.minimum(place, len(self) - 1)
    is_known = self._sorted_ids[place] == ids
    if good is not None:
      is_known &= good
    index = np.where(is_known, self._sort_order[place] + 1, features.PAD)
    return index.astype(np.int32)

  def decode(self, indices: np.ndarray) -> np.ndarray:
    """Original ids of `indices`, any shape, each in 1..V."""
    indices = np.asarray(indices)
    if indices.size and (indices.min() < 1 or indices.max() > len(self)):
      bad = indices[(indices < 1) | (indices > len(self))].flat[0]
      raise ValueError(
        f'item index {bad} is outside this vocabulary (1..{len(self)}); '
        'was it made with another one?'
      )
    return self.ids[indices - 1]

  def __eq__(self, other: object) -> bool:
    return (
      isinstance(other, Vocab)
      and self.has_texts == other.has_texts
      and np.array_equal(self.ids, other.ids)
    )

  __hash__ = None

  def fingerprint(self) -> str:
    """A short name of the content: equal vocabularies, equal fingerprints."""
    dtype = self.ids.dtype
    if dtype.kind == 'T':
      dtype = np.dtype(f'U{np.strings.str_len(self.ids).max()}')
    digest = hashlib.sha256(dtype.str.encode())
    if dtype.itemsize * len(self) > _DIGESTED:
      for content in text_arrays.view_content(self.ids):
        digest.update(content.data)
      return digest.hexdigest()[:16]
    # In pieces, for fixed width may be far more bytes than `ids` has.
    rows = max(1, (1 << 24) // dtype.itemsize)
    for first in range(0, len(self), rows):
      piece = self.ids[first : first + rows].astype(dtype, copy=False)
      digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()[:16]

  def save(self, path: str | pathlib.Path) -> None:
    """Writes the ids, in order, as a NumPy file.

    Texts of which few are long are written one behind the other, into a file
    that versions before 2026-11 do not read.
    """
    with open(path, 'wb') as f:
      if self.ids.dtype.kind == 'T':
        np.save(f, text_arrays.pack_array(self.ids))
      else:
        np.save(f, self.ids, allow_pickle=False)

  @classmethod
  def load(cls, path: str | pathlib.Path) -> 'Vocab':
    """Reads what `save` wrote."""
    try:
      with open(path, 'rb') as f:
        ids = np.array(sealed.map_values(f))
    except FileNotFoundError:
      raise FileNotFoundError(
        f'{path}: no such vocabulary; give the file that Vocab.save wrote '
        '(items.npy in a directory of converted histories)'
      ) from None
    except (*sealed.UNREADABLE, OSError) as e:
      raise ValueError(f'{path}: not a saved vocabulary ({e})') from None
    return cls(ids)
