"""What messages show of the values and names in a user's files: never much."""

import reprlib
from collections.abc import Sequence

LONGEST = 200  # characters of a value, or of a list of names

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple = 2, 50, 50
_SHORT.maxdict = _SHORT.maxset = 20
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 4 * LONGEST


def escape(text: str, keep: str = '') -> str:
  r"""Text from a file as it may be printed: it could command a terminal.

  >>> print(escape('kernel\x1b[2J\n'))
  kernel\x1b[2J\n

  Args:
    text: from anywhere.
    keep: characters to leave as they are, such as a newline.

  Returns:
    The text with what cannot be printed written as Python writes it.
  """
  return ''.join(
    c if c.isprintable() or c in keep else c.encode('unicode_escape').decode()
    for c in text
  )


def quote(value: object) -> str:
  """`repr(value)`, or its beginning where it is long.

  >>> quote('7 ')
  "'7 '"
  >>> len(quote('x' * 10**6))
  228
  """
  if isinstance(value, str):
    if len(value) <= LONGEST:
      return repr(str(value))
    return f'{value[:LONGEST]!r}... ({len(value):,} characters)'
  try:
    text = _SHORT.repr(value)  # knows deep nesting and loops
  except ValueError:  # Python writes no number of more than 4,300 digits
    text = f'a very large {type(value).__name__}'
  return text if len(text) <= LONGEST else f'{text[:LONGEST]}...'


def list_names(names: Sequence[str]) -> str:
  """The names, or the first of them and their number where they are long.

  >>> list_names(['user', 'item'])
  'user, item'
  >>> list_names([f'column{i}' for i in range(10**5)])[-30:]
  'umn19, column20, ... (100,000)'
  """
  text = ', '.join(escape(name[: LONGEST + 1]) for name in names[:LONGEST])
  if len(text) <= LONGEST and len(names) <= LONGEST:
    return text
  text = text[:LONGEST]
  # Whole names, unless the first one alone is too long.
  return f'{text.rpartition(", ")[0] or text}, ... ({len(names):,})'
