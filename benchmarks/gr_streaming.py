"""Models on the generated stream: each step is evaluated, then learned from.

  python -m benchmarks.gr_streaming --runs DIR
  python -m benchmarks.gr_streaming --runs DIR --only stu/seed0 dlrm/seed0
  python -m benchmarks.gr_streaming --runs DIR --finished

400 users and 200 items for each of them, histories of the latest 1,024 events,
all 100 steps. The ranking models see the same features: the vectors of item,
category and user, and histories pooled for each action. A run that has ended is
not repeated, one that was stopped goes on, and each finished row is written at
once. `--finished` reads the runs that have ended and trains nothing. Beside the
rows stand what predictors reach that know the stream (`gr_stream_ceilings`).
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import cli, result, runs

# Case -> (variant of configs/gr_streaming.py, overrides, seeds).
CASES = {
  'stu': ('stu', (), 3),
  'dlrm': ('dlrm', (), 3),
  'wukong': ('wukong', (), 3),
  'stu_interleaved': ('stu,interleaved', (), 1),
  'stu_no_actions': ('stu,no_actions', (), 1),
  'stu_stochastic': ('stu,stochastic', (), 1),
  'stu_2000': ('stu', ('data.streaming.users=2000',), 1),
}
NAMES = {
  'stu': 'STU, actions summed',
  'stu_interleaved': 'STU, interleaved',
  'stu_no_actions': 'STU, no actions',
  'stu_stochastic': 'STU, stochastic length (alpha 1.8)',
  'stu_2000': 'STU, actions summed, 2,000 users',
  'dlrm': 'DLRM, pooled history',
  'wukong': 'Wukong, pooled history',
}
# Fewer candidates of the same test: 256 of 2,048 that a step draws.
TEST = ('data.streaming.inference_candidates=256',)
FIRST_TEST_STEP = 90
WINDOW = 10  # the last steps of training, and as many test
SMOKE = (
  'data.streaming.users=24', 'data.streaming.categories=8',
  'data.streaming.steps=6', 'data.streaming.train_steps=5',
  'data.streaming.events=12', 'data.streaming.deviation=3',
  'data.streaming.train_candidates=6', 'data.streaming.inference_events=16',
  'data.streaming.inference_candidates=12', 'data.max_history=32',
  'data.max_candidates=6', 'train.batch_size=8',
)  # fmt: skip
COLUMNS = (
  'case', 'seeds', 'ne', 'ne_std', 'auc', 'auc_std', 'test_ne', 'test_ne_std',
  'test_auc', 'test_auc_std', 'tokens', 'train_core_s',
)  # fmt: skip
MEASURED = (
  'ne', 'auc', 'ne_all', 'auc_all', 'test_ne', 'test_auc', 'test_gauc',
  'test_calibration', 'tokens', 'train_core_s', 'core_s',
  *(f'ne@{first}' for first in range(0, FIRST_TEST_STEP, WINDOW)),
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gr_streaming', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the runs')
  parser.add_argument(
    '--only', nargs='+', default=[], metavar='CASE/seedN', help='these alone'
  )
  parser.add_argument('--finished', action='store_true', help='train nothing')
  args = parser.parse_args(argv)
  wanted = [
    (case, seed)
    for seed in range(max(seeds for *_, seeds in CASES.values()))
    for case, (_, _, seeds) in CASES.items()
    if seed < seeds and (not args.only or f'{case}/seed{seed}' in args.only)
  ]
  if unknown := {*args.only} - {f'{c}/seed{s}' for c, s in wanted}:
    cli.fail(f'no case {sorted(unknown)[0]!r}; cases are {", ".join(CASES)}')
  rows = []
  for case, seed in wanted:
    workdir = pathlib.Path(args.runs) / f'{case}_seed{seed}'
    if args.finished and not runs.ended(workdir):
      continue
    variant, overrides, _ = CASES[case]
    try:
      runs.train_once(
        f'configs/gr_streaming.py:{variant}',
        workdir,
        [*TEST, *overrides, f'seed={seed}', *(SMOKE if args.smoke else ())],
      )
      rows.append(measure_run(case, workdir))
    except (ValueError, OSError, RuntimeError) as error:
      cli.fail(str(error))
    both = [*read_rows(args.results or result.RESULTS), *rows]
    cli.finish(
      args,
      'gr_streaming',
      [*rows, *average_seeds(rows, both)],
      COLUMNS,
      NOTES,
    )


NOTES = (
  'ne, auc: of the last 10 steps of training, each evaluated before it is '
  'learned from; *_all: of all of them. NE of several steps is that of all '
  'their candidates together, AUC the mean over steps.',
  'test_*: the 10 steps behind the last one of training, with the weights of '
  'its end.',
  'A test request has 256 of its 2,048 candidates.',
  'tokens: events and candidates that were trained on, each once for every '
  'request that reads it.',
  'std is over seeds, with n - 1.',
)


def measure_run(case: str, workdir: pathlib.Path) -> dict:
  """The result row of a finished run."""
  report = runs.read_report(workdir)
  steps = runs.evaluations(workdir, 'next')
  test = report['metrics']['test']
  found = {
    'case': f'{case}/seed{report["seed"]}',
    'kind': 'run',
    'model': case,
    'name': NAMES[case],
    'seed': report['seed'],
    'users': report['config']['data']['streaming']['users'],
    'steps': report['steps'],
    'stream_steps': len(steps),
    'tokens': count_tokens(workdir),
    'core_s': report['core_s'],
    'train_core_s': report['train_core_s'],
    'parameters': report['parameters'],
    'by_step': {
      key: [round(step[key], 5) for step in steps]
      for key in ('ne', 'auc', 'rate', 'candidates')
    },
  }
  for suffix, window in (('', steps[-WINDOW:]), ('_all', steps)):
    found[f'ne{suffix}'] = total_ne(window)
    found[f'auc{suffix}'] = sum(s['auc'] for s in window) / len(window)
  for first in range(0, FIRST_TEST_STEP, WINDOW):
    # The first evaluation is of step 1.
    if window := steps[max(first - 1, 0) : first + WINDOW - 1]:
      found[f'ne@{first}'] = total_ne(window)
  return found | {f'test_{k}': test[k] for k in test}


def total_ne(steps: Sequence[Mapping]) -> float:
  """Normalised entropy of the candidates of several steps together.

  >>> round(total_ne([{'candidates': 4, 'rate': .5, 'logloss': .6}]), 4)
  0.8656
  """
  weight = sum(s['candidates'] for s in steps)
  loss = sum(s['candidates'] * s['logloss'] for s in steps) / weight
  rate = sum(s['candidates'] * s['rate'] for s in steps) / weight
  return loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def count_tokens(workdir: pathlib.Path) -> int:
  """Tokens that a run has trained on."""
  report = runs.read_report(workdir)
  return round(report['tokens_per_s'] * report['train_s'])


def read_rows(results: str | pathlib.Path) -> list[dict]:
  """The rows that are in the result file of this machine."""
  path = pathlib.Path(results) / result.machine_kind() / 'gr_streaming.json'
  return json.loads(path.read_text())['rows'] if path.exists() else []


def average_seeds(new: Sequence[dict], every: Sequence[dict]) -> list[dict]:
  """A mean over seeds for each model of the new rows.

  Args:
    new: rows of runs.
    every: they and those of the result file; of one case the last one counts.
  """
  by_case = {r['case']: r for r in every if r['kind'] == 'run'}
  found = []
  for model in dict.fromkeys(r['model'] for r in new):
    seeds = [r for r in by_case.values() if r['model'] == model]
    mean = {'case': model, 'kind': 'mean', 'seeds': len(seeds)}
    mean |= {key: seeds[0][key] for key in ('name', 'users', 'stream_steps')}
    for key in MEASURED:
      if key in seeds[0]:  # a smoke run has few steps
        mean |= runs.over_seeds(key, [r[key] for r in seeds])
    found.append(mean)
  return found


if __name__ == '__main__':
  main()
