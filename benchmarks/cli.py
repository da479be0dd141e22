"""The command line that all benchmarks share: options, table, result file."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks import result


def parser(name: str, doc: str) -> argparse.ArgumentParser:
  """A parser for `python -m benchmarks.<name>`, with the shared options."""
  p = argparse.ArgumentParser(
    prog=f'python -m benchmarks.{name}',
    description=doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  p.add_argument(
    '--smoke',
    action='store_true',
    help='tiny sizes, seconds; writes nothing unless --results is given',
  )
  p.add_argument(
    '--results', help='directory of results (benchmarks/results)', default=''
  )
  return p


def finish(
  args: argparse.Namespace,
  name: str,
  rows: Sequence[Mapping],
  columns: Sequence[str],
  notes: Sequence[str] = (),
  merge: bool = True,
  digits: int = 5,
) -> None:
  """Prints `columns` of the rows, and writes the rows, in so many digits.

  With `merge` a row replaces the one of the same `case` in the file and the
  others stay, so that one case can be measured again.
  """
  print(table(rows, columns))
  if args.smoke and not args.results:
    print('smoke: nothing is written')
    return
  path = result.write(
    name,
    [_short(row, digits) for row in rows],
    notes=list(notes),
    merge=merge,
    results=args.results or result.RESULTS,
  )
  print(os.path.relpath(path))


def measure_missing(
  rows: dict[str, dict],
  wanted: Iterable[tuple[str, Callable[[], Mapping]]],
  save: Callable[[], None],
) -> None:
  """Measures the rows that are not there, and saves after each; or fails.

  Args:
    rows: by case, of `read_rows`; gets the new ones.
    wanted: (case, function that measures it), in their order.
    save: writes all rows.
  """
  try:
    for name, measure in wanted:
      if name not in rows:
        rows[name] = {'case': name} | measure()
        save()
    save()
  except (ValueError, OSError, RuntimeError) as error:
    fail(str(error))


def read_rows(
  args: argparse.Namespace, name: str, machine: str = ''
) -> dict[str, dict]:
  """The rows that a result file has already, by case; none of a smoke run.

  Without `machine`, JAX says what kind of machine this is.
  """
  kind = machine or result.machine_kind()
  path = pathlib.Path(args.results or result.RESULTS, kind, f'{name}.json')
  if (args.smoke and not args.results) or not path.exists():
    return {}
  return {row['case']: row for row in json.loads(path.read_text())['rows']}


def table(rows: Sequence[Mapping], columns: Sequence[str]) -> str:
  """Rows as aligned text; a column nobody has is left out."""
  columns = [c for c in columns if any(c in row for row in rows)]
  lines = [columns, *([_text(row.get(c)) for c in columns] for row in rows)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.rjust(w) if i else cell.ljust(w)
      for i, (cell, w) in enumerate(zip(line, widths, strict=True))
    )
    for line in lines
  )


def fail(message: str) -> None:
  """Ends the program with a message, without a traceback."""
  sys.exit(f'error: {message}')


def _text(value: object) -> str:
  if value is None:
    return '-'
  if isinstance(value, float):
    return f'{value:.4g}' if abs(value) < 1e4 else f'{value:,.0f}'
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:,}'
  return str(value)


def _short(row: Mapping, digits: int) -> dict:
  """Measured numbers with a few digits: more would be noise."""
  return {
    k: float(f'{v:.{digits}g}') if isinstance(v, float) else v
    for k, v in row.items()
  }
