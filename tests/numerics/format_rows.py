"""Rows for number formats: the same on every machine, and some bad ones.

No function of a maths library makes them, so that their bits, and with them the
bytes of any format, are the same wherever the tests run.
"""

import numpy as np

WIDTHS = (1, 2, 7, 17, 64, 129)


def plain(columns: int) -> np.ndarray:
  """Rows `[40, columns]` float32 that float16 numbers can scale."""
  rng = np.random.default_rng(columns)
  x = rng.integers(-(2**21), 2**21, size=(40, columns))
  x = x.astype(np.float32) / np.float32(2**19)
  x[8:12] *= np.float32(0.01)
  x[12:16] += np.float32(3)
  x[16:20] = x[16:20, :1]  # constant
  x[20] = 0
  x[21] = -0.0
  x[22:26] = np.rint(x[22:26])  # ties
  x[26:30, 0] *= np.float32(1000)  # an outlier
  x[30:34] = np.abs(x[30:34])
  x[34:38] = -np.abs(x[34:38])
  return x


def extreme(columns: int) -> np.ndarray:
  """`plain`, with rows that are tiny, subnormal, huge or far from zero."""
  x = plain(columns)
  x[0] *= np.float32(1e-30)
  x[1] *= np.float32(1e-34)
  x[2] *= np.float32(1e-38)
  x[3] = np.float32(1e-42)
  x[4] = np.float32(-1e-42)
  x[5] = np.float32(1e-44) * np.arange(columns, dtype=np.float32)
  x[6, 0] = np.float32(1e-42)
  x[7] *= np.float32(1e37)
  x[8] = np.float32(-1e38)
  x[9] += np.float32(1e6)
  x[10] *= np.float32(1e30)
  x[11] = 65520  # the first number that float16 takes for infinity
  x[12] = np.float32(1e-30)
  return x


def not_finite(columns: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows of which some hold NaN or an infinity, and `[n]` which ones do."""
  x = plain(columns)
  wrong = np.arange(len(x)) % 3 == 1
  for place, row in enumerate(np.flatnonzero(wrong)):
    x[row, place % columns] = (np.nan, np.inf, -np.inf)[place % 3]
  return x, wrong
