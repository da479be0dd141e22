"""64-bit ids of examples as words of 32 bits, in which devices count."""

import numpy as np


def split_words(ids: np.ndarray) -> np.ndarray:
  """`[N]` int64 -> `[N, 2]` int32.

  >>> join_words(split_words(np.array([-7, 1 << 40]))).tolist()
  [-7, 1099511627776]
  """
  return np.ascontiguousarray(ids, '<i8').view('<i4').reshape(-1, 2)


def join_words(words: np.ndarray) -> np.ndarray:
  """The inverse of `split_words`."""
  return np.ascontiguousarray(words, '<i4').view('<i8').reshape(-1)
