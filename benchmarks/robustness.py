"""Signals, damage, hostile input, endless polls: what a user is told, or not.

  python -m benchmarks.robustness --parts signals damage inputs manifests polls

- signals: signals of all kinds to the real command line, in every phase and
  for every kind of run, with a warm compile cache. Each chain of lives ends in
  results that are compared, to the last bit, with an undisturbed run's. A row a
  chain; chains that are in the result file already are not run again.
- damage: one bit, a cut, a deleted, doubled or added file, in every file of a
  workdir, a data cache, a saved run and a serving copy.
- inputs: fuzzed raw files for every reader, against Python's csv module.
- manifests: manifests that somebody else has written.
- polls: memory and descriptors of a growing directory, looked at 10,000 times.

Ends with status 1 if anything is wrong, silent, a crash, a traceback, a hang or
was caught by the last-resort handler alone.
"""

import collections
import concurrent.futures
import json
import pathlib
import signal
import tempfile
import time
from collections.abc import Mapping

from benchmarks import cli, result
from benchmarks import robustness_copies as copies_lib
from benchmarks import robustness_damage as damage_lib
from benchmarks import robustness_inputs as inputs_lib
from benchmarks import robustness_manifests as manifests_lib
from benchmarks import robustness_polls as polls_lib
from benchmarks import robustness_signals as signals_lib
from benchmarks import robustness_verdicts as verdicts
from benchmarks.result import RESULTS

PARTS = 'manifests', 'inputs', 'damage', 'polls', 'signals'
# Chains of each kind, and lives of a chain: 504 signals at the least, and 40 in
# each phase.
CHAINS = {
  'retrieval': 18,
  'retrieval, deltas': 20,
  'ranking': 14,
  'two processes': 8,
  'predict': 10,
  'follow': 6,
}
LIVES = 9
# What none of the trials may end in.
BAD = (
  'wrong', 'silent', 'crash', 'traceback', 'last resort', 'hang', 'grown',
)  # fmt: skip
COLUMNS = ('case', 'signals', *verdicts.OUTCOMES, 'slowest_s')


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('robustness', __doc__)
  parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
  parser.add_argument(
    '--minutes', type=float, default=1e9, help='no chain begins after these'
  )
  parser.add_argument('--kinds', nargs='+', default=list(CHAINS))
  parser.add_argument('--jobs', type=int, default=2, help='lives at once')
  parser.add_argument(
    '--root', help='directory that keeps reference runs and programs'
  )
  args = parser.parse_args(argv)
  # What this process ignores, as in the background, those it starts ignore too.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(
    signal.SIGHUP, lambda *_: None
  )  # nohup; a handler is not handed on
  runs = {
    'signals': run_signals,
    'damage': run_damage,
    'inputs': run_inputs,
    'manifests': run_manifests,
    'polls': run_polls,
  }
  bad = 0
  for part in args.parts:
    bad += runs[part](args)
  if bad:
    raise SystemExit(f'{bad} outcomes are what none may be')


def run_signals(args) -> int:
  """Runs the chains that are missing; the number of bad outcomes."""
  name = 'robustness_signals'
  where = pathlib.Path(args.results or result.RESULTS)
  path = where / result.machine_kind() / f'{name}.json'
  rows = json.loads(path.read_text())['rows'] if path.exists() else []
  rows = [] if args.smoke else rows
  finished, until = (
    {row['case'] for row in rows},
    time.time() + 60 * args.minutes,
  )
  todo = [
    (kind, seed)
    for seed in range(max(CHAINS.values()))
    for kind in args.kinds
    if seed < CHAINS[kind] and f'{kind} {seed}' not in finished
  ]
  if args.smoke:
    todo = [('retrieval', 0)]
  with tempfile.TemporaryDirectory(prefix='robustness-') as temporary:
    root = pathlib.Path(args.root or temporary)
    env = {
      'XDG_CACHE_HOME': str(root / 'cache'),
      'JAX_COMPILATION_CACHE_DIR': '',
      'PYTHONPATH': str(signals_lib.ROOT),
    }
    for kind in dict.fromkeys(kind for kind, _ in todo):
      (root / 'reference').mkdir(parents=True, exist_ok=True)
      signals_lib.Place(root, kind, env).reference()

    def run(kind: str, seed: int) -> dict | None:
      if time.time() > until:
        return None
      lives = 2 if args.smoke else LIVES
      return signals_lib.run_chain(root, kind, seed, lives, env)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
      futures = [pool.submit(run, *chain) for chain in todo]
      for future in concurrent.futures.as_completed(futures):
        row = future.result()
        if row is None:
          continue
        rows.append(row)
        words = ', '.join(f'{p} {s}: {o}' for p, s, o, *_ in row['lives'])
        print(f'{row["case"]}: {row["result"]}; {words}', flush=True)
        for detail in row['details']:
          print(f'  {detail}', flush=True)
        if not args.smoke:  # what there is, should this be interrupted
          result.write(name, [row], merge=True, results=where)
  table = list(verdicts.count_outcomes(rows))
  print(cli.table(table, COLUMNS))
  lives = [life for row in rows for life in row['lives']]
  counts = collections.Counter(outcome for _, _, outcome, *_ in lives)
  counts['wrong'] = sum(row['result'] != 'equal' for row in rows)
  if not args.smoke:
    result.write('robustness_phases', table, merge=True, results=where)
  signals = len(lives) - counts['ended before']
  return summarize(args, 'signals', signals, counts)


def run_damage(args) -> int:
  """Damaged files, opened by the functions of commands and by commands."""
  rows = copies_lib.measure_damage(30 if args.smoke else 1000)
  if not args.smoke:
    table = damage_lib.summarize(rows)
    result.write('robustness_damage', table, results=args.results or RESULTS)
  counts = collections.Counter(row['outcome'] for row in rows)
  return summarize(args, 'damage', len(rows), counts)


def run_inputs(args) -> int:
  """Fuzzed files, for every reader."""
  rows = inputs_lib.run(40 if args.smoke else 10_000, 0, print)
  if not args.smoke:
    result.write('robustness_inputs', rows, results=args.results or RESULTS)
  counts = collections.Counter()
  for row in rows:
    counts.update({k: n for k, n in row.items() if k not in ('case', 'cases')})
  return summarize(args, 'inputs', sum(row['cases'] for row in rows), counts)


def run_manifests(args) -> int:
  """Manifests, chunks and copies that somebody else has written."""
  rows = manifests_lib.run(10 if args.smoke else None)
  for row in rows:
    if row['outcome'] not in manifests_lib.GOOD:
      print(row, flush=True)
  counts = collections.Counter(row['outcome'] for row in rows)
  return summarize(args, 'manifests', len(rows), counts)


def summarize(args, part: str, trials: int, counts: Mapping[str, int]) -> int:
  """Writes the row of a part; returns how many of its outcomes are bad."""
  row = {'case': part, 'trials': trials}
  row |= {name: counts.get(name, 0) for name in BAD}
  cli.finish(args, 'robustness', [row], ('case', 'trials', *BAD))
  return sum(row[name] for name in BAD)


def run_polls(args) -> int:
  with tempfile.TemporaryDirectory() as directory:
    polls = 200 if args.smoke else 10_000
    rows = polls_lib.measure_polls(pathlib.Path(directory), polls)
  columns = tuple(rows[0])
  cli.finish(args, 'robustness_polls', rows, columns, merge=False)
  # The second half; in the first, caches are filled.
  grown = rows[-1]['rss_mb'] - rows[len(rows) // 2]['rss_mb']
  leaks = grown > 2 or rows[-1]['descriptors'] > rows[0]['descriptors']
  return summarize(args, 'polls', polls, {'grown': int(leaks)})


if __name__ == '__main__':
  main()
