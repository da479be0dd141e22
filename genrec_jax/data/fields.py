"""Columns of text fields -> typed columns, with a mask of valid values."""

import datetime
from collections.abc import Sequence

import numpy as np

from genrec_jax.data import text_arrays
from genrec_jax.data import vocab as vocab_lib

UNITS = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9}
WANTED = {
  'user': 'a user id',
  'item': 'an item id',
  'time': 'a time (seconds since 1970, zero or more, or an ISO date)',
  'rating': 'a finite number',
}


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


def parse_times(
  words: Sequence[str], unit: str
) -> tuple[np.ndarray, np.ndarray]:
  """Whole seconds `[N]` int64 and which of them are good.

  A column is numbers in `unit` or ISO dates; fractions of a second are cut
  off, dates without a zone are UTC.
  """
  words = _blank_odd(words)
  try:
    values = np.fromiter(map(int, words), np.int64, len(words))
    return values // UNITS[unit], values >= 0
  except (ValueError, OverflowError):
    pass
  # A whole number is read alike whatever stands beside it: divided as one.
  try:
    numbers = np.fromiter(map(float, words), np.float64, len(words))
  except ValueError:
    numbers = np.array([np.nan])
  if (np.abs(numbers) < 2.0**53).all():  # NaN is not
    seconds = numbers.astype(np.int64) // UNITS[unit]
    fractions = numbers != np.trunc(numbers)
    seconds[fractions] = (numbers[fractions] / UNITS[unit]).astype(np.int64)
    return seconds, numbers >= 0
  # Dates, very large numbers, or a damaged one: field by field.
  seconds = [_parse_seconds(word, unit) for word in words]
  good = np.array([0 <= value < 2**62 for value in seconds], bool)
  pairs = zip(seconds, good, strict=True)
  whole = (int(value) if is_good else 0 for value, is_good in pairs)
  return np.fromiter(whole, np.int64, len(words)), good


def whole_seconds(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Float seconds `[N]` -> int64, and which of them are good."""
  good = (seconds >= 0) & (seconds < 2.0**62)  # NaN is not
  return np.where(good, seconds, 0).astype(np.int64), good


def _parse_seconds(word: str, unit: str) -> float | int:
  for read in (int, float):
    try:
      value = read(word)
    except ValueError:
      continue
    return value // UNITS[unit] if read is int else value / UNITS[unit]
  try:
    moment = datetime.datetime.fromisoformat(word.strip())
  except ValueError:
    return float('nan')
  if moment.tzinfo is None:
    moment = moment.replace(tzinfo=datetime.UTC)
  return moment.timestamp()


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


def _whole_number(word: str) -> int | None:
  try:
    value = int(word)
  except ValueError:
    number = _parse_number(word)
    # Larger floats stand for many whole numbers; inf and NaN for none.
    if not abs(number) < 2.0**53 or number != int(number):
      return None
    value = int(number)
  return value if -(2**63) <= value < 2**63 else None


def _parse_number(word: str) -> float:
  try:
    return float(word)
  except ValueError:
    return float('nan')
