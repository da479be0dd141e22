"""Numbers with a decimal comma, as spreadsheets of many countries write them.

With `data.decimal=','` a comma between two digits is a decimal point, in every
cell of a CSV file; nothing else of the cell changes.
"""

import dataclasses
import re
from typing import TypeVar

# `text.TextBlock`, which servers that import this module have no use for.
Block = TypeVar('Block')
MARKS = ('.', ',')
_REMEDY = (
  '; --config.data.decimal=, reads its comma as a decimal point (of a log of '
  'requests, data.log.decimal)'
)
_BETWEEN_DIGITS = re.compile('(?<=[0-9]),(?=[0-9])')
_NUMBER = re.compile('[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?')
_CELL_END = '\0'  # no text that is read holds it


def has_comma(value: object) -> bool:
  """Whether a text is a number with a decimal comma.

  >>> [has_comma(x) for x in ('3,14', '-0,5e3', '1,2,3', '3.14', 314)]
  [True, True, False, False, False]
  """
  return isinstance(value, str) and bool(_NUMBER.fullmatch(value))


def hint_comma(value: object) -> str:
  """What to do where a number was wanted, or '' for other values."""
  return _REMEDY if has_comma(value) else ''


def read_points(block: Block, mark: str) -> Block:
  """A block of cells in which the decimal mark is a point.

  >>> from genrec_jax.data import text
  >>> block = text.TextBlock([['3,5', 'no'], ['7,b', '1,2^0,7']], [1, 2])
  >>> read_points(block, ',').columns
  [['3.5', 'no'], ['7,b', '1.2^0.7']]

  Args:
    block: of a file.
    mark: `config.data.decimal`, one of MARKS.
  """
  if mark == '.':
    return block
  if mark != ',':
    raise ValueError(
      f"data.decimal is {mark!r}, must be '.' or ',', the decimal mark"
    )
  columns = []
  for column in block.columns:
    # All at once: a million cells in a loop would take as long as the rest.
    joined = _CELL_END.join(column)
    if ',' in joined:
      column = _BETWEEN_DIGITS.sub('.', joined).split(_CELL_END)
    columns.append(column)
  return dataclasses.replace(block, columns=columns)
