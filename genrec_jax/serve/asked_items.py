"""What is asked of a predictor: item ids in lists, and how many items."""

import numbers
from collections.abc import Sequence

import numpy as np

from genrec_jax.data import text_arrays


def check_count(k) -> int:
  """How many items are asked for."""
  if isinstance(k, bool) or not isinstance(k, numbers.Integral):
    raise ValueError(f'k is {k!r}, must be a whole number (predict.top_k)')
  if k < 1:
    raise ValueError(f'k is {k}, must be positive (predict.top_k)')
  return int(k)


def join_lists(lists: Sequence[Sequence], dtype) -> np.ndarray:
  """The lists behind each other; `dtype` is that of nothing at all."""
  flat = [x for each in lists for x in each]
  if flat and all(isinstance(x, str) for x in flat):
    return text_arrays.make_text_array(flat)
  joined = np.asarray(flat)
  return joined if joined.size else joined.astype(dtype)
