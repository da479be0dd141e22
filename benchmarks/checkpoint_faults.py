"""Does a checkpoint ever become a silently wrong table?

  python -m benchmarks.checkpoint_faults          # some 30 minutes of a core
  python -m benchmarks.checkpoint_faults --smoke

Injects faults into the saves of a training by rows (checkpoint_faults_run.py),
at 32 bits, with every policy, and restores after each. Processes are killed
(checkpoint_faults_kill.py): in a phase of a save or a restore, before a call to
the files that is drawn at random, and at any moment, by the clock. Files are
damaged and disks are full (checkpoint_faults_disk.py).

A row is a fault; `trials` of it ended

  last       in the last committed state, to the bit
  earlier    in an earlier whole one, to the bit
  refused    in a CheckpointError
  wrong      in anything else that was restored
  otherwise  in another error
"""

import collections
import json
import multiprocessing
import pathlib
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from benchmarks import checkpoint_faults_disk as disk
from benchmarks import checkpoint_faults_kill as kill
from benchmarks import cli, result
from benchmarks.checkpoint_faults_kill import OTHERWISE, OUTCOMES, WRONG

PRELOADED = ['grain', 'benchmarks.checkpoint_faults_disk']
PARTS = 'kill', 'follow', 'damage', 'full', 'writers'
BAD = WRONG, OTHERWISE
ALL = 'all'
COLUMNS = ('case', 'trials', *OUTCOMES, 'failed_saves')
KEPT = ('fault', 'policy', *COLUMNS)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('checkpoint_faults', __doc__)
  parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
  parser.add_argument(
    '--policies',
    nargs='+',
    choices=kill.POLICIES,
    default=list(kill.POLICIES),
  )
  parser.add_argument('--trials', type=int, default=24, help='of each kind')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args(argv)
  if args.smoke:
    args.trials, args.policies = 1, args.policies[-1:]
  outcomes, failures = [], collections.Counter()
  for found, failed in measure(args):
    outcomes += found
    failures.update(failed)
    print(f'{len(outcomes):,} trials; the last: {found[-1].fault}', flush=True)
    for one in found:
      if one.outcome in BAD:
        print(one)
    if not args.smoke:  # what there is, should this be interrupted
      write(args, table(outcomes, failures))
  rows = table(outcomes, failures)
  print(cli.table(rows, COLUMNS))
  if args.results:
    write(args, rows)
  if bad := sum(one.outcome in BAD for one in outcomes):
    raise SystemExit(f'{bad} trials ended as none may')


def write(args, rows: list[dict]) -> None:
  """Adds rows to the result file; those of all policies are summed anew."""
  where = args.results or result.RESULTS
  path = result.write('checkpoint_faults', rows, merge=True, results=where)
  rows = [
    {key: x for key, x in row.items() if key in KEPT}
    for row in json.loads(path.read_text())['rows']
    if row['policy'] != ALL
  ]
  result.write('checkpoint_faults', totals(rows), merge=True, results=where)


def measure(
  args,
) -> Iterator[tuple[list[kill.Outcome], Mapping[tuple[str, str], int]]]:
  """(outcomes, (fault, policy) -> saves that failed), as they come."""
  processes = multiprocessing.get_context('forkserver')
  processes.set_forkserver_preload(PRELOADED)
  with tempfile.TemporaryDirectory(prefix='checkpoint_faults') as root:
    root = pathlib.Path(root)
    for part in args.parts:
      rng = random.Random(f'{args.seed} {part}')
      if part == 'follow':
        yield kill.follower_trials(processes, root, 4 * args.trials, rng), {}
        continue
      for policy in args.policies:
        if part == 'kill':
          yield kill.Kills(processes, root, policy, rng).run(args.trials), {}
        elif part == 'writers':
          count = max(args.trials // 2, 1)
          yield kill.writers_trials(processes, root, policy, count, rng)
        elif part == 'full':
          yield disk.full_trials(processes, root, policy, args.trials, rng)
        else:
          share = 0.05 if args.smoke else 1.0
          yield disk.damage_trials(root, policy, rng, share), {}
          yield disk.between_trials(root, policy, rng, args.trials), {}


def table(
  outcomes: list[kill.Outcome], failures: Mapping[tuple[str, str], int]
) -> list[dict]:
  """A row for each fault and policy, then one for each fault."""
  rows = {}
  for one in outcomes:
    key = one.fault, one.policy
    row = rows.setdefault(key, _row(*key))
    row['trials'] += 1
    row[one.outcome] += 1
  for key, count in failures.items():
    rows[key]['failed_saves'] = count
  return list(rows.values()) + totals(rows.values())


def totals(rows: Iterable[dict]) -> list[dict]:
  """The sum over all policies, of each fault."""
  found = {}
  for row in rows:
    fault = row['fault']
    total = found.setdefault(fault, _row(fault, ALL))
    for key in ('trials', *OUTCOMES, 'failed_saves'):
      if key in row:
        total[key] = total.get(key, 0) + row[key]
  return list(found.values())


def _row(fault: str, policy: str) -> dict:
  return {
    'case': fault if policy == ALL else f'{fault}/{policy}',
    'fault': fault,
    'policy': policy,
    'trials': 0,
    **dict.fromkeys(OUTCOMES, 0),
  }


if __name__ == '__main__':
  main()
