"""How far floating-point results may lie apart: the one table of the tests.

An error is measured twice. Against the largest magnitude of all that is
expected: sums cancel, and an element near zero carries the rounding of its
large summands. And against the largest of its own row, for rows differ in size
by many orders: a cold row of a table or a rare bucket of a bias may be all
wrong and yet small beside the largest. Below the second scale lies a floor,
again a share of the largest of all, which is the rounding of summands that
large. An element of a vector is a row of its own.
"""

import numpy as np

TOLERANCE = {
  'float32': 1e-5,
  'bfloat16': 2e-2,
  # Sums of a few gradients of rows, from several devices, in another order;
  # and the rows that they move by less than their own size.
  'exchanged': 1e-6,
  # Rows of bfloat16 or float16 that were rounded once, after such a sum: the
  # step of bfloat16 is 2^-7 of the smallest number that has its exponent.
  '16_bit_rows': 2.0**-7,
  # Of the distance moved from the start, by rounded gradients.
  'bfloat16_steps': 2e-2,
  # Of the distance moved from the start, in float32: Adam divides each element
  # by the size of its gradient, and with it whatever rounding that carries.
  'ten_adam_steps': 1e-3,
  # Of a loss or a norm, in float32, up to a dozen steps from the start: sums of
  # the same numbers in another order.
  'curve': 2e-6,
}

# Rounding of the largest, in float32 at most 2^-24 of it, in bfloat16 2^-9.
# (of a row, whose largest element rarely is what is left of a cancellation; of
# an element of a vector, which may be.)
FLOOR = {
  # Four roundings. An element of a vector is a sum over up to thousands of
  # pairs of tokens, or what Adam makes of 1 - b2^step: sixteen. The reference
  # attention alone, given the same sequences in another order, moves elements
  # of its time bias by six and a half beyond their own tolerance.
  'float32': (2.0**-22, 2.0**-20),
  # One: products are rounded, sums are not.
  'bfloat16': (2.0**-9, 2.0**-9),
  'exchanged': (2.0**-22, 2.0**-22),
  '16_bit_rows': (0.0, 0.0),
  # Eight: four steps, in each the sums of the devices are rounded before they
  # are added up, and once more after it.
  'bfloat16_steps': (2.0**-6, 2.0**-6),
  # As in float32: a distance carries the rounding of both its ends. Adam makes
  # the steps of all elements equally long, whatever their gradients.
  'ten_adam_steps': (2.0**-22, 2.0**-20),
  # The losses of a run are of one size.
  'curve': (0.0, 0.0),
}


def assert_close(
  actual,
  expected,
  dtype: str = 'float32',
  name: str = '',
  axis: int | None = 0,
  summands=None,
):
  """Fails where `actual` is off by more than the dtype's tolerance.

  Args:
    actual: what was computed, anything that NumPy makes an array of.
    expected: what it should be, of the same shape.
    dtype: key of `TOLERANCE`.
    name: of the values, for the message.
    axis: along which rows are told apart; None if they are all of one scale.
    summands: sizes of what each element is a sum of, of the shape of
      `expected`, where the test can say them.
  """
  actual = np.asarray(actual, np.float64)
  expected = np.asarray(expected, np.float64)
  assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
  if not expected.size:
    return
  bound = bounds(expected, dtype, axis, summands)
  bound = np.broadcast_to(bound, expected.shape)
  error = np.abs(actual - expected)
  # `not <=` rather than `>`: NaN must fail.
  wrong = np.argwhere(~(error <= bound))
  if len(wrong):
    places = [tuple(int(i) for i in place) for place in wrong]
    at = max(places, key=lambda place: error[place] - bound[place])
    raise AssertionError(
      f'{name or "values"} are off by {error[at]:.3g} at {at}, allowed '
      f'{bound[at]:.3g} ({dtype}, largest expected '
      f'{np.max(np.abs(expected)):.3g}), and wrong in {len(wrong)} places of '
      f'{expected.size}'
    )


def bounds(
  expected, dtype: str = 'float32', axis: int | None = 0, summands=None
):
  """How far each element may be off.

  Args:
    expected: array of what is expected, not empty.
    dtype: key of `TOLERANCE`.
    axis: as in `assert_close`.
    summands: as in `assert_close`.

  Returns:
    An array that can be broadcast to the shape of `expected`.
  """
  size = np.abs(np.asarray(expected, np.float64))
  largest, tolerance = np.max(size), TOLERANCE[dtype]
  if axis is None or not size.ndim:
    return tolerance * largest
  others = tuple(i for i in range(size.ndim) if i != axis % size.ndim)
  row = np.max(size, axis=others, keepdims=True)
  floor = FLOOR[dtype][size.ndim == 1] * largest
  if summands is not None:
    # Their rounding itself, where the largest result only stands for it: sums
    # of which all cancel have summands larger than any result.
    floor = np.maximum(floor, FLOOR[dtype][size.ndim == 1] * summands)
  return np.minimum(tolerance * row + floor, tolerance * largest)
