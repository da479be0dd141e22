"""Is this checkout slower than an earlier commit, or does it need more memory?

  git worktree add /tmp/base COMMIT
  python -m benchmarks.both_commits --base /tmp/base --runs DIR
  python -m benchmarks.both_commits --base /tmp/base --runs DIR --turns 5
  NPROC=1 taskset -c 0 python -m benchmarks.both_commits ...     # one thread

The benchmarks of single steps are run with the code of `--base` and with the
code of this checkout, in turns, each in a process of its own. Both measure the
same cases; a case that only one of them has is left out.

  base_ms, this_ms   processor time of the least step, the least over the turns
  time_x             this / base: the median over the turns of the ratio of two
                     runs that followed each other, with the least and the most
  peak_x             the same of the peak memory of a whole process, which runs
                     all cases of a benchmark (rows `.../process`)

Rows `.../all` are the geometric mean of all cases of a benchmark.

What a process has measured lies below `--runs`, by commit and turn, and is not
measured again: the same command continues, and `--turns` may grow.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from benchmarks import cli, runs
from benchmarks.same_curves import commit

# Name of a benchmark -> what it is asked for: steps alone, minutes each.
BENCHMARKS = {
  'train_step': ('--models', 'hstu', 'sasrec', '--steps', '15'),
  'ranking_step': ('--models', 'dlrm', 'wukong'),
  'row_update': ('--sizes', '1000000'),
  'jagged_embedding': ('--shapes', 'million_uniform', 'million_zipf'),
}
TIMES = {'min_core_s': 1000.0, 'min_core_ms': 1.0}  # key -> milliseconds
COLUMNS = (
  'case', 'turns', 'base_ms', 'this_ms', 'time_x', 'least_x', 'most_x',
  'base_peak_mb', 'this_peak_mb', 'peak_x',
)  # fmt: skip
NOTES = (
  'time_x is this / base, the median over turns; a turn is one process of each '
  'commit, one after the other.',
  'Of a step the least processor time counts: other programs on the machine '
  'add to it and never take away.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('both_commits', __doc__)
  parser.add_argument('--base', required=True, help='checkout to compare with')
  parser.add_argument('--runs', required=True, help='directory of the results')
  parser.add_argument('--turns', type=int, default=3, help='of each (3)')
  parser.add_argument(
    '--benchmarks', nargs='+', choices=BENCHMARKS, default=list(BENCHMARKS)
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.turns, args.benchmarks = 1, ['jagged_embedding']
  base = pathlib.Path(args.base).resolve()
  if not (base / 'genrec_jax').is_dir():
    cli.fail(f'--base={args.base}: no checkout, genrec_jax is not in it')
  directory = pathlib.Path(args.runs).resolve()
  for name in args.benchmarks:
    turns = []
    for turn in range(args.turns):
      measured = [
        measure(name, checkout, directory / str(turn) / commit(checkout), args)
        for checkout in (base, runs.ROOT)
      ]
      turns.append(measured)
      print(f'{name}: turn {turn + 1} of {args.turns}', flush=True)
    rows = [
      {**row, 'base': commit(base), 'commit': commit(runs.ROOT)}
      for row in compare(name, turns)
    ]
    cli.finish(args, 'both_commits', rows, COLUMNS, NOTES)


def measure(name: str, checkout, directory: pathlib.Path, args) -> dict:
  """Runs a benchmark of a checkout; case -> milliseconds, and peak memory."""
  done = directory / f'{name}.json'
  if not done.exists():
    directory.mkdir(parents=True, exist_ok=True)
    options = ['--smoke'] if args.smoke else BENCHMARKS[name]
    command = [sys.executable, '-m', f'benchmarks.{name}', *options]
    command += ['--results', str(directory / name)]
    log = directory / f'{name}.log'
    with log.open('w') as out:
      process = subprocess.Popen(
        command,
        cwd=checkout,
        env=os.environ | {'PYTHONPATH': str(checkout)},
        stdout=out,
        stderr=subprocess.STDOUT,
      )
      # Not `wait`: the system's account of this one child has its peak memory.
      _, status, usage = os.wait4(process.pid, 0)
      process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
      cli.fail(f'{" ".join(command)} in {checkout} failed; see {log}')
    (file,) = (directory / name).glob(f'*/{name}.json')
    times = {
      row['case']: row[key] * milliseconds
      for row in json.loads(file.read_text())['rows']
      for key, milliseconds in TIMES.items()
      if key in row
    }
    record = {'times': times, 'peak_mb': usage.ru_maxrss / 1024}
    done.write_text(json.dumps(record))
  return json.loads(done.read_text())


def compare(name: str, turns: list[list[dict]]) -> list[dict]:
  """Rows of a benchmark, from (base, this) of each turn.

  >>> turn = [
  ...   {'times': {'a': 2.0, 'gone': 1.0}, 'peak_mb': 100.0},
  ...   {'times': {'a': 3.0}, 'peak_mb': 50.0},
  ... ]
  >>> of_a, of_all, of_process = compare('step', [turn])
  >>> of_a['case'], of_a['time_x'], of_all['time_x'], of_process['peak_x']
  ('step/a', 1.5, 1.5, 0.5)
  """
  rows = []
  for case in turns[0][0]['times']:
    if not all(case in side['times'] for turn in turns for side in turn):
      continue
    pairs = [[side['times'][case] for side in turn] for turn in turns]
    ratios = [this / base for base, this in pairs]
    rows.append(
      {
        'case': f'{name}/{case}',
        # Of a whole step, or of a part of one.
        'kind': 'step' if '/' not in case or case.endswith('/step') else 'part',
        'turns': len(turns),
        'base_ms': min(base for base, _ in pairs),
        'this_ms': min(this for _, this in pairs),
        'time_x': statistics.median(ratios),
        'least_x': min(ratios),
        'most_x': max(ratios),
      }
    )
  rows.append(
    {
      'case': f'{name}/all',
      'kind': 'all',
      'turns': len(turns),
      'cases': len(rows),
      **{
        key: statistics.geometric_mean(row[key] for row in rows)
        for key in ('base_ms', 'this_ms', 'time_x', 'least_x', 'most_x')
      },
    }
  )
  peaks = [[side['peak_mb'] for side in turn] for turn in turns]
  rows.append(
    {
      'case': f'{name}/process',
      'kind': 'process',
      'turns': len(turns),
      'base_peak_mb': statistics.median(base for base, _ in peaks),
      'this_peak_mb': statistics.median(this for _, this in peaks),
      'peak_x': statistics.median(this / base for base, this in peaks),
    }
  )
  return rows


if __name__ == '__main__':
  main()
