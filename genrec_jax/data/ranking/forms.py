"""The canonical text of a value: one for all the ways in which it is given.

A category is a text. The same value comes as a cell of a CSV file, as a number
of a Parquet file or a DataFrame, or as an object of a record; 7, 7.0 and '7.0'
are one value. docs/ranking_data.md has the table.
"""

import decimal
import math
import numbers
import re
from collections.abc import Iterable

import numpy as np

_WHOLE = re.compile(r'(-?(?:0|[1-9][0-9]*))(?:\.0+)?')
# Where a column has nothing else, they are what typed booleans are.
_BOOLS = {
  **dict.fromkeys(('1', 'True', 'true', 'TRUE'), '1'),
  **dict.fromkeys(('0', 'False', 'false', 'FALSE'), '0'),
}
# What a label may say beside 1 and 0, in small letters.
_LABEL_WORDS = {
  **dict.fromkeys(('yes', 'y', 'true', 't'), '1'),
  **dict.fromkeys(('no', 'n', 'false', 'f'), '0'),
}
_MISSING = ('NoneType', 'NAType', 'NaTType')  # the latter two are of pandas


def canonicalize(text: str) -> str:
  """The canonical form of a text.

  >>> [canonicalize(x) for x in ('7.0', '-3.00', '-0', '007', '1e5', '0.50')]
  ['7', '-3', '0', '007', '1e5', '0.50']
  """
  if text[-1:] == '0' and (match := _WHOLE.fullmatch(text)):
    text = match[1]
    return '0' if text == '-0' else text
  return text


def read_bools(texts: Iterable[str]) -> dict[str, str]:
  """Text -> '1' or '0', if all the canonical texts are booleans; {} if not.

  >>> read_bools(['True', '0'])['false'], read_bools(['True', 'maybe'])
  ('0', {})
  """
  return _BOOLS if all(text in _BOOLS for text in texts) else {}


def read_bool(text: str) -> float | None:
  """What a word for a boolean is as a number; None for other texts.

  >>> read_bool('True'), read_bool('FALSE'), read_bool('yes')
  (1.0, 0.0, None)
  """
  return float(_BOOLS[text]) if text in _BOOLS else None


def read_label_word(text: str) -> str:
  """'1' or '0' for a word that says yes or no; other texts as they are.

  >>> [read_label_word(x) for x in ('Yes', 'f', '0.5', 'maybe')]
  ['1', '0', '0.5', 'maybe']
  """
  return _LABEL_WORDS.get(text.lower(), text)


def is_missing(value: object) -> bool:
  """Whether an object stands for no value.

  >>> [is_missing(x) for x in (None, float('nan'), np.datetime64('NaT'), '', 0)]
  [True, True, True, True, False]
  """
  if type(value).__name__ in _MISSING:
    return True
  if isinstance(value, float | np.floating | np.datetime64 | decimal.Decimal):
    return bool(value != value)
  return isinstance(value, str) and value == ''


def format_number(value: object) -> str:
  """The canonical text of a number that has a type.

  >>> [format_number(x) for x in (True, 7.0, -0.0, np.float32(0.1), 0.5)]
  ['1', '7', '0', '0.1', '0.5']
  >>> format_number(decimal.Decimal('7.50')), format_number(1e16)
  ('7.5', '10000000000000000')
  """
  if isinstance(value, numbers.Integral | np.bool_):
    return str(int(value))
  is_decimal = isinstance(value, decimal.Decimal)
  if is_decimal and abs(value.adjusted()) > 400:  # beyond all floats
    return str(value)
  if not math.isfinite(value):
    return str(float(value))
  if value == (whole := int(value)):
    return str(whole)
  text = str(float(value)) if is_decimal else str(value)
  if is_decimal and decimal.Decimal(text) != value:
    return f'{value:f}'.rstrip('0')
  return text


def find_distinct(
  values: np.ndarray, present: np.ndarray | None
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Texts of the distinct numbers, the place of each value's, their counts.

  >>> found = find_distinct(np.array([7.0, 0, 7.0]), np.array([1, 0, 1], bool))
  >>> [x if isinstance(x, list) else x.tolist() for x in found]
  [['7', ''], [0, 1, 0], [2, 1]]

  Args:
    values: `[N]` integers or floats.
    present: `[N]` bool; None when nothing is missing.

  Returns:
    The texts, the last of which is '' for what is missing; `[N]` places; and
    the counts.
  """
  some = values if present is None else values[present]
  unique, places, counts = np.unique(
    some, return_inverse=True, return_counts=True
  )
  if values.dtype.kind == 'f':
    texts = [format_number(x) for x in unique]
  else:
    texts = list(map(str, unique.tolist()))
  if present is not None:
    some, places = places, np.full(len(values), len(texts))
    places[present] = some
  absent = len(values) - int(counts.sum())
  return [*texts, ''], places, np.append(counts, absent)
