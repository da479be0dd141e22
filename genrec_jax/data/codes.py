"""Provisional numbers for ids while a log is read, and counts of the ids."""

import numpy as np

from genrec_jax.data import text_arrays


class Codes:
  """Numbers ids 0, 1, 2, ... in the order in which they are met."""

  def __init__(self):
    self._ids = None  # sorted, with the code of each beside it
    self._codes = np.zeros(0, np.int32)

  def __len__(self) -> int:
    return len(self._codes)

  def encode(self, ids: np.ndarray) -> np.ndarray:
    """Codes `[N]` int32; ids not met before get the next ones."""
    unique, inverse = np.unique(ids, return_inverse=True)
    if self._ids is None:
      self._ids = unique[:0]
    if text_arrays.is_text(self._ids) and text_arrays.is_text(unique):
      dtype = text_arrays.find_common_dtype(self._ids, unique)
      self._ids = self._ids.astype(dtype, copy=False)
      unique = unique.astype(dtype, copy=False)
    elif self._ids.dtype.kind != unique.dtype.kind:
      raise ValueError(
        'the log gives ids as integers in one place and as text in another; '
        "read them with data.id_type='str'"
      )
    place = np.searchsorted(self._ids, unique)
    inside = np.minimum(place, max(len(self) - 1, 0))
    known = self._ids[inside] == unique if len(self) else unique != unique
    codes = np.empty(len(unique), np.int32)
    codes[known] = self._codes[place[known]]
    fresh = np.arange(len(self), len(self) + np.sum(~known), dtype=np.int32)
    codes[~known] = fresh
    self._ids = np.insert(self._ids, place[~known], unique[~known])
    self._codes = np.insert(self._codes, place[~known], fresh)
    return codes[inverse]

  def by_code(self) -> np.ndarray:
    """`[V]` ids in the order of their codes."""
    if self._ids is None:
      return np.zeros(0, np.int64)
    ids = np.empty_like(self._ids)
    ids[self._codes] = self._ids
    return ids


class CodeCounts:
  """A count for each code, growing with the codes."""

  def __init__(self):
    self.values = np.zeros(0, np.int64)

  def add(self, codes: np.ndarray, total: int) -> None:
    counts = np.bincount(codes, minlength=total).astype(np.int64)
    counts[: len(self.values)] += self.values
    self.values = counts
