"""Columns of text fields -> typed columns, with a mask of valid values."""

import datetime
import decimal
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genrec_jax.data import text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.quoting import quote

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_BILLION = 10**9
UNITS = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': _BILLION}
WANTED = {
  'user': 'a user id',
  'item': 'an item id',
  'time': 'a time (seconds since 1970, zero or more, or an ISO date)',
  'rating': 'a finite number',
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EXACT = 2.0**53  # beyond, floats skip whole numbers
# As many digits as a time has, and cut off, so that a second is never begun.
_CUT_OFF = decimal.Context(prec=40, rounding=decimal.ROUND_DOWN)
# As BigQuery, Postgres and others write the zone of UTC.
_UTC = re.compile(r'(?<=\d)\s*(?:UTC|GMT|Z)$')
# A day, month and year in one of the orders that ISO 8601 is not.
_OTHER_DATE = re.compile(
  r'([0-9]{1,2}([./-])[0-9]{1,2}\2[0-9]{4}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}|'
  r'[0-9]{4}([./])[0-9]{1,2}\3[0-9]{1,2})([ T,].*)?'
)
_BEYOND_MICROSECONDS = re.compile(r'[.,]\d{6}(\d{1,3})')


def parse_ids(words: Sequence[str], kind: str) -> tuple[np.ndarray, np.ndarray]:
  """Ids `[N]` of kind 'int' or 'str' and which of them are good."""
  if kind == 'int':
    return vocab_lib.parse_ints(words)
  lengths = text_arrays.measure(words)
  if lengths.max(initial=0) > text_arrays.LONGEST_ID:
    # An error follows; the array would only ask for memory.
    good = (lengths > 0) & (lengths <= text_arrays.LONGEST_ID)
    return np.full(len(words), ''), good
  text = text_arrays.make_text_array(words, lengths)
  return text, text != ''


def is_plain(text: str) -> bool:
  """Whether Python's int() and float() read the text as others would.

  They also take digits of any script, `_` between digits and every kind of
  white space around them.

  >>> is_plain('1e9'), is_plain('1_000'), is_plain('٣'), is_plain('7\\x0b')
  (True, False, False, False)
  """
  return text.isascii() and '_' not in text and text.isprintable()


def _blank_odd(words: Sequence[str]) -> Sequence[str]:
  """The words; those that are not plain as '', which is no number."""
  text = ''.join(words)
  if text.isascii() and '_' not in text:
    codes = np.frombuffer(text.encode(), np.uint8)  # isprintable() is slow
    if codes.min(initial=127) >= 32 and codes.max(initial=32) < 127:
      return words
  return [word if is_plain(word) else '' for word in words]


class Times(NamedTuple):
  """N times since 1970, as exactly as they were given.

  Attributes:
    seconds: `[N]` int64, whole ones.
    fraction: `[N]` int32, the nanoseconds after them, by which events of one
      second are sorted; None where all are 0.
  """

  seconds: np.ndarray
  fraction: np.ndarray | None = None


def parse_times(words: Sequence[str], unit: str) -> tuple[Times, np.ndarray]:
  """Times of N texts and which of them are good.

  A column is numbers in `unit` or ISO dates; dates without a zone are UTC. A
  word is read alike whatever stands beside it.

  >>> times, good = parse_times(['1700000000123', '-5'], 'ms')
  >>> times.seconds[0].item(), times.fraction[0].item(), good.tolist()
  (1700000000, 123000000, [True, False])
  """
  words = _blank_odd(words)
  try:
    values = np.fromiter(map(int, words), np.int64, len(words))
    return from_integers(values, unit)
  except (ValueError, OverflowError):
    pass
  try:
    values, billionths = _parse_decimals(words)
    return from_integers(values, unit, billionths)
  except (ValueError, OverflowError):
    pass
  # Dates, numbers of many digits, or a damaged one: field by field.
  exact = [_parse_time(word, unit) for word in words]
  seconds, fraction = np.array(exact, np.int64).reshape(-1, 2).T
  return _combine(seconds, fraction), seconds >= 0


def from_integers(
  values: np.ndarray, unit: str, billionths: np.ndarray | int = 0
) -> tuple[Times, np.ndarray]:
  """Times `[N]` of whole numbers, and which of them are good.

  Args:
    values: `[N]` int64.
    unit: of them.
    billionths: `[N]` of a unit, to be added.
  """
  scale = UNITS[unit]
  seconds, rest = (values, 0) if scale == 1 else np.divmod(values, scale)
  fraction = rest * (_BILLION // scale) + billionths // scale
  return _combine(seconds, fraction), values >= 0


def from_seconds(seconds: Sequence | Times) -> Times:
  """Times of numbers in seconds; those that are times already stay so.

  >>> from_seconds([3, 4.5]).fraction.tolist()
  [0, 500000000]
  """
  if isinstance(seconds, Times):
    return seconds
  seconds = np.asarray(seconds)
  if seconds.dtype.kind != 'f':
    return Times(seconds.astype(np.int64))
  times, good = from_floats(seconds, 's')
  if not good.all():
    bad = int(np.argmin(good))
    raise ValueError(f'event {bad}: {seconds[bad]} is not {WANTED["time"]}')
  return times


def from_floats(values: np.ndarray, unit: str) -> tuple[Times, np.ndarray]:
  """Times `[N]` of floats in `unit`, and which of them are good.

  >>> times, good = from_floats(np.array([2.5, np.nan]), 's')
  >>> times.fraction.tolist(), good.tolist()
  ([500000000, 0], [True, False])
  """
  scale = float(UNITS[unit])
  good = (values >= 0) & (values < scale * 2.0**62)  # NaN is not
  seconds, rest = np.divmod(np.where(good, values, 0), scale)
  # The nearest, for 0.3 is a little less than 300 ms; but in the same second.
  fraction = np.minimum(np.rint(rest * (_BILLION / scale)), _BILLION - 1)
  return _combine(seconds.astype(np.int64), fraction), good


def from_dates(values: np.ndarray) -> tuple[Times, np.ndarray]:
  """Times `[N]` of datetime64 of any unit, and which of them are good."""
  seconds = values.astype('datetime64[s]')
  rest = (values - seconds).astype('timedelta64[ns]')
  seconds = seconds.astype(np.int64)  # NaT is the least of them
  return _combine(seconds, rest.astype(np.int64)), seconds >= 0


def join_times(parts: Sequence[Times]) -> Times:
  """The times of all parts, one behind the other."""
  none = np.zeros(0, np.int64)
  seconds = np.concatenate([none, *(part.seconds for part in parts)])
  if all(part.fraction is None for part in parts):
    return Times(seconds)
  fractions = [
    np.zeros(len(part.seconds), np.int32)
    if part.fraction is None
    else part.fraction
    for part in parts
  ]
  return Times(seconds, np.concatenate(fractions))


def _combine(seconds: np.ndarray, fraction: np.ndarray | int) -> Times:
  if not np.any(fraction):
    return Times(seconds)
  return Times(seconds, fraction.astype(np.int32))


def _parse_decimals(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Wholes `[N]` int64 and billionths of words such as '17.25'.

  Raises:
    ValueError: one is no such word, or has more than nine digits behind.
    OverflowError: one has too many digits.
  """
  # All at once: a million words in a loop would take as long as the rest.
  text = '\n'.join(words).encode()
  if text.translate(None, b'0123456789.\n'):
    raise ValueError
  digits = text.replace(b'.', b'').split(b'\n')
  values = np.fromiter(map(int, digits), np.int64, len(words))
  codes = np.frombuffer(text, np.uint8)
  points = np.flatnonzero(codes == ord('.'))
  ends = np.append(np.flatnonzero(codes == ord('\n')), len(text))
  rows = np.searchsorted(ends, points)
  places = np.zeros(len(words), np.int64)
  places[rows] = ends[rows] - points - 1
  if places.max() > 9 or (np.diff(rows) == 0).any():
    raise ValueError
  wholes, rest = np.divmod(values, 10**places)
  return wholes, rest * 10 ** (9 - places)


def _parse_time(word: str, unit: str) -> tuple[int, int]:
  """Seconds and nanoseconds; (-1, 0) for what is no time."""
  # No number but a rare one holds a '-', and a date without one may be one.
  readers = (_parse_number_time, _parse_date)
  for read in readers[::-1] if '-' in word else readers:
    try:
      seconds, fraction = divmod(read(word, unit), _BILLION)
    except (ValueError, decimal.InvalidOperation):
      continue
    return (seconds, fraction) if 0 <= seconds < 2**62 else (-1, 0)
  return -1, 0


def _parse_number_time(word: str, unit: str) -> int:
  """Nanoseconds of a number in `unit`."""
  number = decimal.Decimal(word)
  if not 0 <= number < UNITS[unit] << 62:  # 1e999999 has as many digits
    return -1
  return int(_CUT_OFF.multiply(number, _BILLION // UNITS[unit]))


def _parse_date(word: str, unit: str) -> int:
  """Nanoseconds of an ISO date, which has no unit."""
  word = _UTC.sub('+00:00', word.strip().upper())
  moment = datetime.datetime.fromisoformat(word)
  if moment.tzinfo is None:
    moment = moment.replace(tzinfo=datetime.UTC)
  microseconds = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
  finer = _BEYOND_MICROSECONDS.search(word)
  return 1000 * microseconds + int(f'{finer[1]:0<3}' if finer else 0)


def is_other_date(value: object) -> bool:
  """Whether a text is a date in another form than that of ISO 8601.

  >>> [is_other_date(x) for x in ('24.12.2023', '12/24/23 18:30', '2023-12-24')]
  [True, True, False]
  """
  return isinstance(value, str) and bool(_OTHER_DATE.fullmatch(value.strip()))


def explain_date(value: object) -> str:
  """What is wrong with a date in another form, and the remedy; '' if none."""
  if not is_other_date(value):
    return ''
  return (
    f'{quote(value)} is a date in another form than 2023-12-24, the one that '
    'is read because it leaves no doubt which number is the month; convert the '
    'column'
  )


def parse_ratings(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Numbers `[N]` float32 and which of them are finite."""
  words = _blank_odd(words)
  try:
    values = np.fromiter(map(float, words), np.float64, len(words))
  except ValueError:
    values = np.array([_parse_number(word) for word in words])
  with np.errstate(over='ignore'):  # too large becomes inf, which is not good
    values = values.astype(np.float32)
  return values, np.isfinite(values)


def whole_numbers(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Whole numbers `[N]` int64 and which words are such; 3.0 is one too."""
  words = _blank_odd(words)
  try:
    values = np.fromiter(map(int, words), np.int64, len(words))
    return values, np.ones(len(words), bool)
  except (ValueError, OverflowError):
    pass
  numbers = [_whole_number(word) for word in words]
  good = np.array([value is not None for value in numbers], bool)
  return np.array([value or 0 for value in numbers], np.int64), good


def read_whole_floats(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Floats `[N]` as int64, and which of them are whole numbers.

  Whole numbers beside missing ones become floats in many files and frames.

  >>> values, are_whole = read_whole_floats(np.array([7.0, 0.5, np.nan, 1e16]))
  >>> values.tolist(), are_whole.tolist()
  ([7, 0, 0, 0], [True, False, False, False])
  """
  # Larger floats stand for many whole numbers; infinity and NaN for none.
  good = (np.abs(values) < _EXACT) & (values == np.trunc(values))
  return np.where(good, values, 0).astype(np.int64), good


def _whole_number(word: str) -> int | None:
  try:
    value = int(word)
  except ValueError:
    number = _parse_number(word)
    if not abs(number) < _EXACT or number != int(number):
      return None
    value = int(number)
  return value if -(2**63) <= value < 2**63 else None


def _parse_number(word: str) -> float:
  try:
    return float(word)
  except ValueError:
    return float('nan')
