"""Makes files of benchmarks/results from the rows of this folder's modules.

  python -m benchmarks.gpu.rows DIR --commit f00ba12 [--date 2026-11-26]

For each DIR/<name>.jsonl a file results/<machine>/gpu_<name>.json. A row of the
same case and commit takes the place of the one that is there, unless it failed.
"""

import argparse
import datetime
import json
import pathlib

from benchmarks import result

NAMES = ('smoke', 'kernels', 'tune', 'peers', 'embedding', 'training')
NOTES = {
  'kernels': (
    'Calls in a loop of one program; bfloat16, 262,144 padded tokens, 512 '
    'numbers a token, causal. FLOPs are those of the causal half of the real '
    'tokens: forward 2 products, with backward 7, a kernel alone those it does.'
  ),
  'embedding': (
    '2,097,152 ids in 65,536 bags over 1,000,000 rows of float32. gbs is the '
    'least traffic over the time.'
  ),
}
NOTES['training'] = (
  'Whole steps. FLOPs of real tokens by the sizes: matrices, causal attention '
  'and scores, forward once and backward twice; mfu is their share of 989 '
  'TFLOP/s.'
)
NOTES |= dict.fromkeys(('tune', 'peers'), NOTES['kernels'])


def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.gpu.rows',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--commit', required=True, help='what was measured')
  parser.add_argument(
    '--date', default=datetime.date.today().isoformat(), help='(today)'
  )
  parser.add_argument('--machine', help='such as h100 (told by the rows)')
  parser.add_argument('--results', type=pathlib.Path, default=result.RESULTS)
  args = parser.parse_args(argv)
  found = {name: _read(args.folder / f'{name}.jsonl') for name in NAMES}
  machine = args.machine or _machine(found)
  for name, rows in found.items():
    if rows:
      path = args.results / machine / f'gpu_{name}.json'
      print(write(path, name, rows, args.commit, args.date))


def write(path: pathlib.Path, name, rows, commit: str, date: str) -> str:
  """Adds rows to a file of results; says what it holds then."""
  if path.exists():
    document = json.loads(path.read_text())
  else:
    document = dict(
      name=f'gpu_{name}',
      command=f'python -m benchmarks.gpu.{name} --out DIR',
      date=date,
      machine=path.parent.name,
      rows=[],
    )
  document['date'] = max(document['date'], date)
  if name in NOTES:
    document['notes'] = [NOTES[name]]
  kept = {(row['case'], row['commit']): row for row in document['rows']}
  for row in rows:
    row.pop('case_s', None)
    if not row.get('tflops', 1):
      del row['tflops']  # nobody counted them
    if 'versions' in row:
      document['versions'] = row['versions']
    key = row['case'], commit
    if key not in kept or 'error' not in row:
      kept[key] = row | dict(commit=commit, date=date)
  measured = path.with_name('gpu_kernels.json')
  others = json.loads(measured.read_text())['rows'] if measured.exists() else []
  # Commits in the order they came, and the cases of each by name.
  commits = list(dict.fromkeys(commit for _, commit in kept))
  order = sorted(kept, key=lambda key: (commits.index(key[1]), key[0]))
  document['rows'] = _shares([kept[key] for key in order], others)
  path.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(document, indent=1, ensure_ascii=False)
  path.write_text(text + '\n')
  good = sum('error' not in row for row in kept.values())
  return f'{path}: {len(kept)} rows, {len(kept) - good} of them failed'


def _shares(rows: list[dict], others: list[dict]) -> list[dict]:
  """Adds what share of the matmul, or the copy, of this machine a row reaches.

  Args:
    rows: of a file.
    others: rows in which the measure may be, if it is not in those.
  """
  both = [*others, *rows]
  measures = {row['case']: row for row in both if 'error' not in row}
  matmul, copy = measures.get('matmul'), measures.get('copy')
  best = {}
  for row in rows:
    if matmul and row.get('tflops'):
      row['matmul_share'] = row['tflops'] / matmul['tflops']
    if copy and row.get('gbs'):
      row['copy_share'] = row['gbs'] / copy['gbs']
    if 'sizes' in row and 'ms' in row:
      row['shown_sizes'] = ' '.join(map(str, row['sizes']))
      key = row['commit'], row['bias'], row['width'], row['what']
      best[key] = min(best.get(key, row['ms']), row['ms'])
  for row in rows:
    if 'shown_sizes' in row:
      key = row['commit'], row['bias'], row['width'], row['what']
      row['best'] = row['ms'] == best[key]
  return rows


def _read(path: pathlib.Path) -> list[dict]:
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def _machine(found: dict[str, list[dict]]) -> str:
  """The kind of machine by the device that the rows name."""
  rows = [row for name in NAMES for row in found[name]]
  kinds = {r.get('device') or r.get('kind') for r in rows} - {None, 'cpu'}
  kinds = {result.accelerator_kind(kind) for kind in kinds}
  if len(kinds) != 1:
    raise SystemExit(f'rows of {sorted(kinds) or "no device"}: give --machine')
  return kinds.pop()


if __name__ == '__main__':
  main()
