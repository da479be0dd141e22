"""Hashes of whole numbers, for draws that depend on nothing but them."""

import numpy as np


def mix_bits(x: np.ndarray) -> np.ndarray:
  """A permutation of the numbers of 64 bits that looks random.

  It is the last step of SplitMix64. What it makes of a number is in tables of
  hashed values and in splits that were drawn, so it stays as it is.

  >>> mix_bits(np.array([0, 1], np.uint64)).tolist()
  [0, 6238072747940578789]
  """
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
