"""What is wrong with the names and shapes of a file, in a few lines."""

import difflib
from collections.abc import Callable, Mapping

from genrec_jax.data.quoting import escape

LISTED = 8  # of a kind


def list_differences(
  saved: Mapping,
  expected: Mapping,
  fits: Callable = lambda saved, expected: saved == expected,
) -> list[str]:
  """Names that are missing or left over, and what is of another shape.

  Args:
    saved: name -> what a file has, printable.
    expected: name -> what it should have.
    fits: whether the one will do for the other.

  Returns:
    Readable lines; none where all is well.

  >>> list_differences({'a': '[2]', 'kernels': '[3]'},
  ...                  {'a': '[4]', 'kernel': '[3]'})
  ... # doctest: +NORMALIZE_WHITESPACE
  ['missing in the file: kernel',
   'left over in the file: kernels (perhaps meant as kernel)',
   'a is [2] in the file and must be [4]']
  """
  missing = [n for n in expected if n not in saved]
  extra = [n for n in saved if n not in expected]
  lines = []
  if missing:
    lines.append(f'missing in the file: {_list_few(missing)}')
  if extra:
    near = difflib.get_close_matches(extra[0], missing, n=1, cutoff=0.8)
    hint = f' (perhaps meant as {near[0]})' if near else ''
    lines.append(f'left over in the file: {_list_few(extra)}{hint}')
  other = [
    f'{n} is {saved[n]} in the file and must be {expected[n]}'
    for n in expected
    if n in saved and not fits(saved[n], expected[n])
  ]
  lines += other[:LISTED]
  if len(other) > LISTED:
    lines.append(f'and {len(other) - LISTED:,} more of another shape')
  return lines


def _list_few(names: list[str]) -> str:
  more = len(names) - LISTED
  few = ', '.join(map(escape, names[:LISTED]))
  return few + (f' and {more:,} more' if more > 0 else '')
