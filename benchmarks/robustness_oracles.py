"""What files of every layout hold, said plainly and field by field.

The statements that `robustness_inputs` compares the readers with. Text goes
through Python's csv module and `str.split`, Parquet through pyarrow's
`to_pylist`. A file that is not to be read is a `Refusal`.
"""

import csv
import datetime
import decimal
import gzip
import io
import itertools
import re

import numpy as np

LONGEST_ID = 4096
csv.field_size_limit(1 << 24)


class Refusal(Exception):
  """The file, or a value in it, is not what the layout says."""


def decode(content: bytes, encoding: str, packed: bool) -> str:
  try:
    content = gzip.decompress(content) if packed else content
    text = content.decode(encoding)
  except (OSError, EOFError, ValueError, gzip.zlib.error) as e:
    raise Refusal(str(e)) from None
  if '\0' in text:
    raise Refusal('zero bytes')
  return text


def split_csv(text: str, delimiter: str) -> list[list[str]]:
  reader = csv.reader(
    io.StringIO(text, newline=''), delimiter=delimiter, strict=True
  )
  try:
    return [row for row in reader if row]
  except csv.Error as e:
    raise Refusal(str(e)) from None


def _first_rows(text: str, delimiter: str, most: int) -> list[list[str]]:
  rows = csv.reader(
    io.StringIO(text, newline=''), delimiter=delimiter, strict=True
  )
  try:
    return list(itertools.islice(filter(None, rows), most))
  except csv.Error:
    return []


def find_mark(text: str, names: list[str]) -> str:
  """The delimiter with which the header has all names; a comma if it may be."""
  there = [
    mark
    for mark in ',\t;|'
    if (rows := _first_rows(text, mark, 1))
    and {*names} <= {name.strip() for name in rows[0]}
  ]
  if not there or (there[0] != ',' and len(there) > 1):
    raise Refusal('delimiter')
  return there[0]


def find_regular_mark(text: str, least: int) -> str:
  """The only one that cuts each of the first 20 rows into as many fields."""
  there = [
    mark
    for mark in ',\t;|'
    if (rows := _first_rows(text, mark, 20))
    and {*map(len, rows)} == {len(rows[0])}
    and len(rows[0]) >= least
  ]
  if len(there) != 1:
    raise Refusal('delimiter')
  return there[0]


def split_plain(text: str, delimiter: str) -> list[list[str]]:
  rows = []
  for line in re.split('\r\n|\r|\n', text):
    if delimiter == ' ':
      rows.append(re.sub('[ \t]+', ' ', line).strip(' ').split(' '))
      if rows[-1] == ['']:
        rows.pop()
    elif delimiter in line or line.strip():
      rows.append(line.split(delimiter))
  return rows


def check_widths(rows: list[list[str]], width: int) -> list[list[str]]:
  if any(len(row) != width for row in rows):
    raise Refusal('fields')
  if not rows:
    raise Refusal('no rows')
  return rows


def by_names(rows, names: list[str]) -> list[tuple]:
  """The named columns of a table whose first row is its header."""
  if not rows:
    raise Refusal('no header')
  header = [name.strip() for name in rows[0]]
  if any(header.count(name) != 1 for name in names):
    raise Refusal('columns')
  rows = check_widths(rows[1:], len(header))
  places = [header.index(name) for name in names]
  return [tuple(row[i] for i in places) for row in rows]


def named_events(rows) -> list[tuple]:
  """(user, item, time) of each row below the header u, i, t."""
  return [
    (text_id(u), text_id(i), moment(t))
    for u, i, t in by_names(rows, ['u', 'i', 't'])
  ]


def whole_id(word: str) -> int:
  if not re.fullmatch('0|-?[1-9][0-9]{0,18}', word, re.ASCII):
    raise Refusal('id')
  if not -(2**63) < int(word) < 2**63:
    raise Refusal('id')
  return int(word)


def text_id(word: str) -> str:
  if not 0 < len(word) <= LONGEST_ID or '\0' in word:
    raise Refusal('id')
  return word


def number(word: str) -> float:
  """A decimal number in ASCII, maybe between blanks."""
  pattern = r' *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *'
  if not re.fullmatch(pattern, word, re.ASCII):
    raise Refusal('number')
  return float(word)


def rating(word: str) -> float:
  with np.errstate(over='ignore'):
    value = np.float32(number(word))
  if not np.isfinite(value):
    raise Refusal('number')
  return float(value)


def moment(word: str) -> int:
  """Seconds since 1970."""
  try:
    number(word)
    exact = decimal.Decimal(word.strip())
    if re.fullmatch(' *[+-]?[0-9]+ *', word):
      exact = int(word) if len(word) < 1000 else 2**64
  except Refusal:
    if not re.fullmatch('[ -~]*', word, re.ASCII):
      raise
    try:
      date = datetime.datetime.fromisoformat(_offset(word.strip()))
    except ValueError:
      raise Refusal('time') from None
    if date.tzinfo is None:
      date = date.replace(tzinfo=datetime.UTC)
    exact = date.timestamp()
  if not 0 <= exact < (2**63 if isinstance(exact, int) else 2**62):
    raise Refusal('time')
  return int(exact)


def _offset(word: str) -> str:
  """The zones Z, UTC and GMT as an offset."""
  word = word.upper()
  for zone in ('Z', 'UTC', 'GMT'):
    head = word.removesuffix(zone).rstrip()
    if head != word and word.endswith(zone) and head[-1:].isdigit():
      return f'{head}+00:00'
  return word


LABEL_WORDS = ('no', 'yes', 'n', 'y', 'false', 'true', 'f', 't')


def label(word: str) -> int:
  if word.lower() in LABEL_WORDS:
    return LABEL_WORDS.index(word.lower()) % 2
  if number(word) not in (0, 1):
    raise Refusal('label')
  return int(number(word))


def feature_number(word: str) -> float:
  """Of a numeric feature: an empty cell and NaN are missing and read as 0."""
  is_missing = re.fullmatch('( *[+-]?nan *)?', word, re.ASCII | re.IGNORECASE)
  value = 0.0 if is_missing else number(word)
  if not abs(value) <= float(np.finfo(np.float32).max):
    raise Refusal('number')
  return float(np.float32(value))


def libsvm(text: str) -> list[tuple]:
  """(label or None, [(index, value), ...]) of each line."""
  rows = [row[0].partition('#')[0] for row in split_plain(text, '\x01')]
  rows = [row for row in rows if row.strip()]
  if any('\x01' in line for line in re.split('\r\n|\r|\n', text)):
    raise Refusal('fields')
  if not rows:
    raise Refusal('no rows')
  is_labelled = ':' not in rows[0].split()[0]
  signs = {'-1': '0', '+1': '1', '-1.0': '0', '+1.0': '1'}
  out = []
  for line in rows:
    words = line.split()
    first = words.pop(0) if is_labelled else None
    pairs = [tuple(word.split(':')) for word in words]
    if any(len(p) != 2 or not all(p) for p in pairs) or ':' in (first or ''):
      raise Refusal('pairs')
    out.append((signs.get(first, first), pairs))
  return out


def cell(value: object) -> str:
  """The text of a value of a record."""
  if value is None or value != value:
    return ''
  if isinstance(value, float) and value.is_integer():
    return str(int(value))
  if isinstance(value, bool):
    return str(int(value))
  if isinstance(value, str | int | float):
    return str(value)
  raise Refusal('cell')


def record_column(values: list) -> list:
  if not any(isinstance(value, list | tuple) for value in values):
    return [cell(value) for value in values]
  out = []
  for value in values:
    value = [] if value is None or value != value else value
    if not isinstance(value, list | tuple):
      raise Refusal('lists and others')
    out.append([cell(x) for x in value])
  return out
