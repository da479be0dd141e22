"""Numbers, moments, durations and rates as a person reads them."""

import datetime
import math
import numbers
import shutil


def format_duration(seconds: float) -> str:
  """Returns seconds as a person says them.

  >>> [format_duration(s) for s in (0.8, 42, 185, 7810, 273_600)]
  ['0.8s', '42s', '3m 05s', '2h 10m', '3d 4h']
  """
  if seconds < 9.95:
    return f'{seconds:.1f}s'
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f'{days}d {h}h'
  if hours:
    return f'{hours}h {m:02d}m'
  return f'{minutes}m {s:02d}s' if minutes else f'{s}s'


def format_moment(seconds: float) -> str:
  """Returns the date and time of seconds since 1970.

  Numbers too small to be such times are a clock of their own, and too large
  ones are beyond all calendars.

  >>> format_moment(1_700_032_760), format_moment(1_699_920_000)
  ('2023-11-15 07:19:20 UTC', '2023-11-14 UTC')
  >>> format_moment(12)
  't=12'
  """
  try:
    if seconds > 1e8:
      moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
      text = moment.strftime('%Y-%m-%d %H:%M:%S').removesuffix(' 00:00:00')
      return f'{text} UTC'
  except (OverflowError, ValueError, OSError):
    pass
  return f't={format_number(seconds)}'


def format_compact(number: float) -> str:
  """Returns three digits and a suffix.

  >>> [format_compact(n) for n in (0.254, 12.34, 987, 14_530, 2_310_000)]
  ['0.25', '12.3', '987', '14.5k', '2.31M']
  """
  for suffix in ('', 'k', 'M', 'G', 'T'):
    if abs(number) < 999.5 or suffix == 'T':
      break
    number /= 1000
  size = abs(number)
  digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
  return f'{number:.{digits}f}{suffix}'


def format_bytes(size: float) -> str:
  """Returns bytes in three digits.

  >>> [format_bytes(n) for n in (21, 4130, 117e9, 2.5e15)]
  ['21 B', '4.13 kB', '117 GB', '2500 TB']
  """
  for unit in ('B', 'kB', 'MB', 'GB', 'TB'):
    if abs(size) < 999.5 or unit == 'TB':
      break
    size /= 1000
  large = abs(size)
  digits = 0 if unit == 'B' or large >= 99.95 else 1 if large >= 9.995 else 2
  return f'{size:.{digits}f} {unit}'


def format_number(value: object) -> str:
  """Returns four digits of a number, all of an integer, a dash for None.

  >>> [format_number(v) for v in (0.123456, 1234.5, 12345, None)]
  ['0.1235', '1,234', '12,345', '–']
  """
  if value is None:
    return '–'
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    return str(value)
  whole = isinstance(value, numbers.Integral)
  if whole or abs(value) >= 1000 and math.isfinite(value):
    return f'{value:,.0f}'
  return 'NaN' if math.isnan(value) else f'{value:.4g}'


def format_rate(per_second: float, unit: str) -> str:
  """Returns a rate, or its inverse where that is the larger number.

  >>> format_rate(12.34, 'step'), format_rate(0.05, 'step')
  ('12.3 steps/s', '20.0 s/step')
  """
  if per_second < 1:
    return f'{format_compact(1 / per_second)} s/{unit}'
  return f'{format_compact(per_second)} {unit}s/s'


def format_bar(share: float, room: int) -> str:
  """Returns a bar of 8 to 24 characters and a space, '' where none fits.

  >>> format_bar(0.25, room=8)
  '━━────── '
  """
  if room < 8:
    return ''
  size = min(room, 24)
  done = round(min(max(share, 0.0), 1.0) * size)
  return '━' * done + '─' * (size - done) + ' '


def is_finite(value: object) -> bool:
  """Whether `value` is a number, and neither infinite nor NaN."""
  return isinstance(value, numbers.Real) and math.isfinite(value)


def format_value(value: object) -> str:
  """A number in four digits; text as it is.

  >>> format_value(0.123456), format_value('12:00')
  ('0.1235', '12:00')
  """
  return value if isinstance(value, str) else f'{float(value):.4g}'


def fit_encoding(line: str, stream) -> str:
  """A line in characters that the encoding of a stream has."""
  encoding = getattr(stream, 'encoding', None) or 'utf-8'
  if encoding.lower().startswith('utf'):
    return line
  return line.replace(' · ', ', ').replace('━', '=').replace('─', '-')


def terminal_columns() -> int:
  """Characters of a line that fit on the terminal."""
  # A character in the last column would move the cursor to the next line.
  return shutil.get_terminal_size().columns - 1
