"""Tables and amounts as `inspect` prints them."""

from collections.abc import Sequence


def format_columns(
  head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
  """A table as lines.

  Args:
    head: titles, each after '<' or '>': to which side its column is set.
    rows: cells, as many as titles.
  """
  titles = [title[1:] for title in head]
  widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
  return [
    '  '.join(
      f'{cell:{title[0]}{width}}'
      for cell, title, width in zip(row, head, widths, strict=True)
    ).rstrip()
    for row in (titles, *rows)
  ]


def format_bytes(size: float) -> str:
  """Bytes in three digits: '21 B', '4.13 kB', '117 GB'."""
  for unit in ('B', 'kB', 'MB', 'GB', 'TB'):
    if size < 999.5:
      break
    size /= 1000
  else:
    unit, size = 'TB', size * 1000
  digits = 0 if unit == 'B' or size >= 99.95 else 1 if size >= 9.995 else 2
  return f'{size:.{digits}f} {unit}'


def format_count(number: int, what: str) -> str:
  """'1 file', '2,000 files'."""
  return f'{number:,} {what}{"" if number == 1 else "s"}'
