"""Values of features of requests -> rows of tables.

Row 0 is padding and what is missing, 1 .. V are the values that training knows,
and the last row, V + 1, is of every other value: what comes into being later,
or is too rare. That row is trained only where `min_count` leaves values of the
training split out.
"""

import numpy as np

from genrec_jax import features
from genrec_jax.data import text_arrays
from genrec_jax.data.vocab import Vocab

_PIECE = 1 << 22  # values that are looked up at once
_COUNTED = 1 << 27  # ids below this are counted by an array of that size


def fit_vocab(values: np.ndarray, min_count: int = 1) -> Vocab:
  """The distinct values, in their order, that stand there often enough.

  >>> fit_vocab(np.array([7, 3, 7, 9, 9]), 2).ids.tolist()
  [7, 9]

  Args:
    values: `[N]` int64 or text, of the training split; '' is no value.
    min_count: how often a value must stand there, at least.
  """
  if min_count < 1:
    raise ValueError(f'min_count is {min_count}, must be 1 or more')
  is_text = text_arrays.is_text(values)
  if (
    len(values) and not is_text and 0 <= values.min() <= values.max() < _COUNTED
  ):
    counts = _count_ids(values)
    return Vocab(np.flatnonzero(counts >= min_count).astype(np.int64))
  distinct, counts = np.unique(values, return_counts=True)
  kept = counts >= min_count
  if is_text:
    kept &= distinct != ''
  return Vocab(distinct[kept])


def _count_ids(values: np.ndarray) -> np.ndarray:
  """In pieces: bincount wants them as int64."""
  counts = np.zeros(int(values.max()) + 1, np.int64)
  for first in range(0, len(values), _PIECE):
    piece = np.bincount(values[first : first + _PIECE].astype(np.int64))
    counts[: len(piece)] += piece
  return counts


def encode_rows(vocab: Vocab, values: np.ndarray) -> np.ndarray:
  """Rows `[N]` int32 of values `[N]`.

  >>> vocab = Vocab(np.array(['M', 'F']))
  >>> encode_rows(vocab, np.array(['F', '', 'X'])).tolist()
  [2, 0, 3]
  """
  is_text = text_arrays.is_text(values)
  rows = np.empty(len(values), np.int32)
  for first in range(0, len(values), _PIECE):
    piece = values[first : first + _PIECE]
    found = vocab.encode(piece if is_text else piece.astype(np.int64))
    unknown = found == features.PAD
    if is_text:
      unknown &= piece != ''
    found[unknown] = len(vocab) + 1
    rows[first : first + _PIECE] = found
  return rows


def describe_feature(name: str, vocab: Vocab) -> features.FeatureSpec:
  """The feature of a column, whose table has its name."""
  return features.FeatureSpec(name, rows=len(vocab) + 2)
