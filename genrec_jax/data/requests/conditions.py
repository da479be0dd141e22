"""Conditions on the rows of a log, such as 'click' or 'liked: rating >= 4'."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from genrec_jax.data import decimals
from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking import forms, raw, transform

_FORM = re.compile(
  r'(?:(?P<name>[^:=>]+?)\s*:)?\s*(?P<column>[^=>]+?)\s*'
  r'(?:(?P<sign>>=|==)\s*(?P<value>\S.*?))?\s*'
)


@dataclasses.dataclass(frozen=True)
class Condition:
  """What a row may fulfil.

  Attributes:
    key: of the config, for messages.
    name: what is called so, such as an action.
    column: of the log.
    sign: '' for a column of 0 and 1, '>=' or '=='.
    value: behind the sign.
  """

  key: str
  name: str
  column: str
  sign: str = ''
  value: str = ''

  def find(self, chunk: raw.RawChunk) -> tuple[np.ndarray, np.ndarray]:
    """Which rows `[N]` fulfil it, and in which `[N]` it can be told.

    Raises:
      ValueError: a cell is neither empty nor what the condition is about.
    """
    if self.sign == '==':
      wanted, texts = (
        forms.canonicalize(self.value),
        list_texts(chunk, self.column),
      )
      holds = np.fromiter((x == wanted for x in texts), bool, len(texts))
      return holds, np.ones(len(chunk), bool)  # an empty cell is no such text
    example = f"config.{self.key}='{self.column} >= 4'"
    if self.sign == '>=':
      numbers, present = read_numbers(chunk, self.column, self.key)
      return present & (numbers >= float(self.value)), present
    numbers, present = read_numbers(
      chunk,
      self.column,
      self.key,
      'neither 0 nor 1; write one of them, or say from which number on it '
      f'counts, as in --{example}',
      are_flags=True,
    )
    bad = present & (numbers != 0) & (numbers != 1)
    if bad.any():
      at = int(np.argmax(bad))
      raise ValueError(
        f'{chunk.quote_cell(at, self.column, f"{numbers[at]:g}")} is neither 0 '
        'nor 1; write one of them, or say from which number on it counts, as '
        f'in --{example}'
      )
    return present & (numbers == 1), present


def parse_conditions(key: str, texts: Sequence[str]) -> tuple[Condition, ...]:
  """The conditions that a key of the config names.

  >>> [x.name for x in parse_conditions('k', ['click', 'liked: stars >= 4'])]
  ['click', 'liked']
  >>> parse_conditions('k', ['bought: event == buy'])[0].value
  'buy'

  Args:
    key: of the config.
    texts: a condition each; without a name it is called as its column, or as
      the text behind '=='.

  Raises:
    ValueError: one is in another form, or two have one name.
  """
  found = []
  for text in texts:
    match = _FORM.fullmatch(text)
    if not match:
      raise ValueError(
        f'{key}: {quote(text)} is no condition; give the column of 0 and 1, '
        "'COLUMN >= NUMBER' or 'COLUMN == TEXT', maybe with 'NAME: ' in front"
      )
    name, column, sign, value = match.group('name', 'column', 'sign', 'value')
    if sign == '>=':
      number, good = _read_number(value)
      if not good:
        raise ValueError(
          f'{key}: {quote(value)} in {quote(text)} is not a number; compare '
          "texts with '=='"
        )
      value = str(number)
    usual = value if sign == '==' else column
    found.append(Condition(key, name or usual, column, sign or '', value or ''))
  names = [x.name for x in found]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(
        f"{key}: two are called {name!r}; give one of them another name, as in "
        f"'other: {texts[names.index(name)]}'"
      )
  return tuple(found)


def _read_number(text: str) -> tuple[float, bool]:
  try:
    numbers = transform.parse_numbers([text])
  except transform.NumberError:
    return 0.0, False
  return float(numbers.values[0]), numbers.present is None


def list_texts(chunk: raw.RawChunk, name: str) -> list[str]:
  """The canonical texts of a column, '' where there is none."""
  column = refuse_lists(chunk, name)
  if isinstance(column, raw.NumberColumn):
    return column.list_texts()
  known = {value: forms.canonicalize(value) for value in dict.fromkeys(column)}
  return [known[value] for value in column]


def refuse_lists(chunk: raw.RawChunk, name: str) -> raw.Column:
  """A column of a file, which holds no lists."""
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    raise ValueError(
      f'{chunk.where(0)}, column {name!r}: holds lists; write each value into '
      'a row of its own, or leave the column out'
    )
  return column


def read_numbers(
  chunk: raw.RawChunk,
  name: str,
  key: str,
  wanted: str = 'no finite number; mend it, or leave the cell empty',
  *,
  are_flags: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """Numbers `[N]` float64 of a column, and in which rows `[N]` there are any.

  Args:
    chunk: some rows.
    name: of the column.
    key: of the config, which names the column.
    wanted: what is said of a cell that is no number.
    are_flags: whether words for yes and no are 1 and 0.
  """
  column = refuse_lists(chunk, name)
  if are_flags and not isinstance(column, raw.NumberColumn):
    words = {x: forms.read_label_word(x) for x in dict.fromkeys(column)}
    column = [words[x] for x in column]
  try:
    numbers = transform.parse_numbers(column)
  except transform.NumberError as e:
    raise ValueError(
      f'{chunk.quote_cell(e.at, name, e.value)} ({key}) is {wanted}'
      f'{decimals.hint_comma(e.value)}'
    ) from None
  present = numbers.present
  if present is None:
    present = np.ones(len(chunk), bool)
  return numbers.values, present
