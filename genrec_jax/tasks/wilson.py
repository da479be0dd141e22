"""Wilson's interval of a share, which holds near 0 and 1 too."""

import numpy as np

Z = 1.959964  # of 95 % of a normal distribution


def center_interval(share, count, z: float = Z) -> tuple:
  """The center of the interval of a share, and half of its width.

  >>> center, half = center_interval(0.0, 100)
  >>> round(float(center - half), 3), round(float(center + half), 3)
  (0.0, 0.037)

  Args:
    share: of the examples, a number or an array.
    count: of the examples.
    z: deviations of a normal distribution on either side.
  """
  center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
  half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
  return center, half / (1 + z**2 / count)
