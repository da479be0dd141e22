"""What the library says of small data, beside what it should say.

  python -m benchmarks.meaning [--parts categories metrics ...]

About a hundred cases: forms of files, types of values, parts of the data,
metrics, schedules. Each has an expected value from an independent statement: of
pandas, NumPy, scikit-learn, FuxiCTR's preprocessing (run apart, its answers are
kept in results/cpu2/peer_fuxictr.json) or by hand. What reads a table is
measured in five forms of it: CSV, Parquet, records, pandas, polars.

Ends with status 1 if any case differs. A case whose peer is not installed is
left out, with a word.
"""

import collections
import contextlib
import io
import pathlib
import tempfile
import warnings

from benchmarks import (
  cli,
  meaning_columns,
  meaning_events,
  meaning_libsvm,
  meaning_metrics,
  meaning_parts,
  meaning_peers,
  meaning_values,
)
from benchmarks.meaning_cases import Case

COLUMNS = ('case', 'part', 'against', 'expected', 'got', 'engines')
PARTS = ('case', 'cases', 'equal', 'left out')
MODULES = (
  meaning_values,
  meaning_columns,
  meaning_libsvm,
  meaning_events,
  meaning_parts,
  meaning_metrics,
)


def list_cases() -> list[Case]:
  """Every case, part by part."""
  return [case for module in MODULES for case in module.list_cases()]


def run_cases(cases: list[Case], directory: pathlib.Path, log=print):
  """The rows of some cases; `log` is told about those that differ."""
  rows = []
  for number, case in enumerate(cases):
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
      warnings.simplefilter('ignore')
      row = case.run(directory / str(number))
    if not row['equal']:
      log(f'{row["case"]}: expected {row["expected"]}; got {row["got"]}')
    rows.append(row)
  return rows


def summarize(rows: list[dict]) -> list[dict]:
  """How many cases of each part are equal."""
  parts: dict[str, collections.Counter] = {}
  for row in rows:
    counts = parts.setdefault(row['part'], collections.Counter())
    counts['cases'] += 1
    counts['equal'] += row['equal'] is True
    counts['left out'] += row['equal'] is None
  return [{'case': part, **counts} for part, counts in parts.items()]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('meaning', __doc__)
  cases = list_cases()
  parts = list(dict.fromkeys(case.part for case in cases))
  parser.add_argument('--parts', nargs='+', choices=parts, default=parts)
  parser.add_argument(
    '--peer_python', help='asks FuxiCTR again, in a Python that has it'
  )
  args = parser.parse_args(argv)
  if args.peer_python:
    meaning_peers.ask_again(args.peer_python)
  cases = [case for case in cases if case.part in args.parts]
  with tempfile.TemporaryDirectory(prefix='meaning-') as directory:
    rows = run_cases(cases[:: 10 if args.smoke else 1], pathlib.Path(directory))
  is_partial = args.parts != parts
  cli.finish(args, 'meaning', rows, COLUMNS, merge=is_partial)
  summary = summarize(rows)
  cli.finish(args, 'meaning_parts', summary, PARTS, merge=is_partial)
  if wrong := sum(row['equal'] is False for row in rows):
    raise SystemExit(f'{wrong} of {len(rows)} cases differ')


if __name__ == '__main__':
  main()
