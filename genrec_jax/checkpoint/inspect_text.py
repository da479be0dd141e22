"""Tables and counts as `inspect` prints them."""

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


def format_count(number: int, what: str) -> str:
  """'1 file', '2,000 files'."""
  return f'{number:,} {what}{"" if number == 1 else "s"}'
