"""Writes the tables of README.md and docs/*.md from benchmarks/results.

  python -m benchmarks.tables           # rewrites what differs
  python -m benchmarks.tables --check   # exit status 1 when something differs

A page says where table NAME goes:

  <!-- table:NAME -->
  <!-- /table -->

Everything between the two lines is generated; do not edit it by hand.
"""

import argparse
import difflib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ('README.md', 'docs/*.md')

# NAME -> files: results it reads, `machine/name`, in the order of the rows;
#         columns: (header, key, format). The key is one of a row or of the
#           file (machine, command, date). The format is a format spec such as
#           ',.0f' or '.4f', or '' for text; a row without the key shows a dash.
#         where: optional, key -> value or tuple of values of the rows shown.
TABLES = {}

_MARKED = re.compile(
  r'^<!-- table:(?P<name>\S+) -->\n(?P<body>.*?)^<!-- /table -->$',
  re.MULTILINE | re.DOTALL,
)


def main(argv: list[str] | None = None) -> int:
  """Writes or, with --check, compares every page; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.tables',
    description=__doc__.partition('\n')[0],
  )
  parser.add_argument(
    '--check', action='store_true', help='write nothing; exit 1 if needed'
  )
  check = parser.parse_args(argv).check
  try:
    stale = update(write=not check)
  except ValueError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  for page in stale:
    print(f'{page}: {"out of date" if check else "written"}')
  if check and stale:
    print('Run python -m benchmarks.tables.')
  return int(check and bool(stale))


def update(
  *,
  write: bool,
  tables: dict | None = None,
  root: pathlib.Path | None = None,
) -> list[str]:
  """Returns the pages whose tables are out of date, written anew if asked."""
  tables = TABLES if tables is None else tables
  root = root or ROOT
  stale = []
  for path in sorted(p for pattern in PAGES for p in root.glob(pattern)):
    page = str(path.relative_to(root))
    old = path.read_text()
    if len(_MARKED.findall(old)) != len(re.findall(r'<!-- /?table\b', old)) / 2:
      raise ValueError(
        f'{page}: each table needs a line <!-- table:NAME --> and, below it, a'
        ' line <!-- /table -->.'
      )
    try:
      new = _MARKED.sub(
        lambda m: (
          f'<!-- table:{m["name"]} -->\n'
          f'{render(m["name"], tables, root)}'
          '<!-- /table -->'
        ),
        old,
      )
    except ValueError as e:
      raise ValueError(f'{page}: {e}') from e
    if new != old:
      stale.append(page)
      if write:
        path.write_text(new)
  return stale


def render(name: str, tables: dict, root: pathlib.Path) -> str:
  """Returns table `name` as Markdown, with the commands that measured it."""
  if name not in tables:
    near = difflib.get_close_matches(name, tables, n=1)
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(f'There is no table {name!r} in TABLES.{hint}')
  table = tables[name]
  rows = [
    row
    for file in table['files']
    for row in _rows(name, file, root)
    if _wanted(row, table.get('where', {}))
  ]
  if not rows:
    raise ValueError(f'Table {name!r} has no rows.')
  for header, key, _ in table['columns']:
    if not any(key in row for row in rows):
      known = ', '.join(sorted(set().union(*rows)))
      raise ValueError(
        f'No row of table {name!r} has the key {key!r} of column {header!r};'
        f' there are {known}.'
      )
  lines = [
    [header for header, _, _ in table['columns']],
    ['---:' if form else '---' for _, _, form in table['columns']],
    *([_cell(r.get(k), f) for _, k, f in table['columns']] for r in rows),
  ]
  text = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
  sources = dict.fromkeys(
    f'<code>{row["command"]}</code> on {row["machine"]}, {row["date"]}'
    for row in rows
  )
  return f'{text}\n<sub>Measured by {"; ".join(sources)}.</sub>\n'


def _rows(name: str, file: str, root: pathlib.Path) -> list[dict]:
  """The rows of a result file, each with the keys of the file."""
  path = root / 'benchmarks' / 'results' / f'{file}.json'
  if not path.exists():
    raise ValueError(
      f'Table {name!r} reads {path.relative_to(root)}, which is not there. Run'
      ' the benchmark, or take the file out of TABLES.'
    )
  result = json.loads(path.read_text())
  rows = result.pop('rows')
  return [{**result, **row} for row in rows]


def _wanted(row: dict, where: dict) -> bool:
  for key, values in where.items():
    values = values if isinstance(values, tuple) else (values,)
    if row.get(key) not in values:
      return False
  return True


def _cell(value: object, form: str) -> str:
  if value is None:
    return '–'
  text = format(value, '' if isinstance(value, str) else form)
  return text.replace('|', '\\|').replace('\n', ' ')


if __name__ == '__main__':
  sys.exit(main())
