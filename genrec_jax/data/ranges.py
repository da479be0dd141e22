"""Places in an array that lie in runs."""

import numpy as np


def expand_ranges(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """begin[0], begin[0] + 1, ... (lengths[0] of them), begin[1], ... int64."""
  shift = begin - (np.cumsum(lengths) - lengths)
  return np.repeat(shift, lengths) + np.arange(lengths.sum())
