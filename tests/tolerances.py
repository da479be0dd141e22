"""How far floating-point results may lie apart: the one table of the tests.

An error is measured against the largest magnitude of what is expected, since
sums cancel: an element near zero carries the rounding of its large summands.
"""

import numpy as np

TOLERANCE = {
  'float32': 1e-5,
  'bfloat16': 2e-2,
  # Of the distance moved from the start, in float32: Adam divides each element
  # by the size of its gradient, and with it whatever rounding that carries.
  'ten_adam_steps': 1e-3,
  # Of a loss or a norm, in float32, up to a dozen steps from the start: sums of
  # the same numbers in another order.
  'curve': 2e-6,
}


def assert_close(actual, expected, dtype: str = 'float32', name: str = ''):
  """Fails where `actual` is off by more than the dtype's tolerance."""
  actual = np.asarray(actual, np.float64)
  expected = np.asarray(expected, np.float64)
  assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
  if not expected.size:
    return
  scale = np.max(np.abs(expected))
  error = np.max(np.abs(actual - expected))
  bound = TOLERANCE[dtype] * scale
  # `not <=` rather than `>`: NaN must fail.
  assert error <= bound, (
    f'{name or "values"} are off by {error:.3g}, allowed {bound:.3g} '
    f'({dtype}, largest expected {scale:.3g})'
  )
