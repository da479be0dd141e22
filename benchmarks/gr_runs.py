"""Sweeps of models of requests: what is trained, measured, averaged, written.

A benchmark says its cases; each of them is trained with some seeds, one seed
after the other, so that whatever ends a sweep early leaves all cases of a seed.
A run that has ended is not repeated, one that was stopped goes on, and each
finished row is written at once.
"""

import argparse
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks import cli, runs

# Fewer candidates of the same test of the stream: 256 of 2,048 that a step
# draws.
TEST = ('data.streaming.inference_candidates=256',)
FIRST_TEST_STEP = 90  # of the whole stream
# The last steps of training: two periods of the share of likes, so that all of
# its values count alike.
WINDOW = 16
# A stream of seconds; the models stay as large as they are.
SMOKE = (
  'data.streaming.users=24', 'data.streaming.categories=8',
  'data.streaming.steps=6', 'data.streaming.train_steps=5',
  'data.streaming.events=12', 'data.streaming.deviation=3',
  'data.streaming.train_candidates=6', 'data.streaming.inference_events=16',
  'data.streaming.inference_candidates=12', 'data.max_history=32',
  'data.max_candidates=6', 'train.batch_size=8',
)  # fmt: skip
MEASURED = (
  'ne', 'auc', 'ne_all', 'auc_all', 'test_ne', 'test_auc', 'test_gauc',
  'test_calibration', 'tokens', 'train_core_s', 'core_s',
)  # fmt: skip
# First steps of windows that end where the training does; the very first window
# is shorter. NE of each, of the whole stream alone.
STARTS = 1, *range(FIRST_TEST_STEP % WINDOW, FIRST_TEST_STEP, WINDOW)
BY_WINDOW = tuple(f'ne@{n}' for n in STARTS)
STREAM_NOTES = (
  'ne, auc: of the last 16 steps of training, each evaluated before it is '
  'learned from; *_all: of all of them. NE of several steps is that of all '
  'their candidates together, AUC the mean over steps.',
  'test_*: the 10 steps behind the last one of training, with the weights of '
  'its end.',
  'A test request has 256 of its 2,048 candidates.',
  'tokens: events and candidates that were trained on, each once for every '
  'request that reads it.',
  'std is over seeds, with n - 1.',
)


class Case(NamedTuple):
  """What is trained.

  Attributes:
    config: 'configs/FILE.py:variant'.
    overrides: 'a.b=value' each.
    seeds: how many seeds there are, from 0.
    name: in tables.
  """

  config: str
  overrides: tuple[str, ...]
  seeds: int
  name: str


def make_parser(name: str, doc: str) -> argparse.ArgumentParser:
  """The shared options and those of a sweep."""
  parser = cli.parser(name, doc)
  add_options(parser)
  return parser


def add_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
  """The options of a sweep."""
  parser.add_argument('--runs', required=required, help='directory of the runs')
  parser.add_argument(
    '--only', nargs='+', default=[], metavar='CASE/seedN', help='these alone'
  )
  parser.add_argument('--finished', action='store_true', help='train nothing')


def list_runs(
  cases: Mapping[str, Case], only: Sequence[str] = ()
) -> list[tuple[str, int]]:
  """(case, seed) of all runs, or of those that are asked for.

  >>> list_runs({'a': Case('x', (), 2, 'A'), 'b': Case('x', (), 1, 'B')})
  [('a', 0), ('b', 0), ('a', 1)]
  """
  wanted = [
    (case, seed)
    for seed in range(max(c.seeds for c in cases.values()))
    for case, c in cases.items()
    if seed < c.seeds and (not only or f'{case}/seed{seed}' in only)
  ]
  if unknown := {*only} - {f'{c}/seed{s}' for c, s in wanted}:
    cli.fail(f'no case {sorted(unknown)[0]!r}; cases are {", ".join(cases)}')
  return wanted


def sweep(
  args: argparse.Namespace,
  name: str,
  cases: Mapping[str, Case],
  *,
  measure: Callable[[str, pathlib.Path], dict],
  report: Callable[[list[dict]], list[dict]],
  columns: Sequence[str],
  notes: Sequence[str],
  overrides: Sequence[str] = (),
  may_start: Callable[[str, list[dict]], bool] = lambda case, rows: True,
) -> None:
  """Trains what has not ended, and writes a row for each run when it ends.

  Args:
    args: of a parser with `add_options`.
    name: of the result file.
    cases: by name.
    measure: case and workdir -> the row of a finished run; 'case' and 'kind'
      are added here, and what all rows of runs have.
    report: all rows of runs, those of the result file among them, the latest
      of each case -> further rows, such as means.
    columns: that are printed.
    notes: of the result file.
    overrides: of all runs, behind those of their case.
    may_start: case and rows of runs so far -> whether another run may begin.
  """
  rows: dict[str, dict] = {}
  before = {
    case: row
    for case, row in cli.read_rows(args, name).items()
    if row['kind'] == 'run'
  }

  def write() -> None:
    every = [*(before | rows).values()]
    cli.finish(args, name, [*rows.values(), *report(every)], columns, notes)

  for case, seed in list_runs(cases, args.only):
    workdir = pathlib.Path(args.runs) / f'{case}_seed{seed}'
    if not runs.ended(workdir) and (
      args.finished or not may_start(case, [*(before | rows).values()])
    ):
      continue
    try:
      runs.train_once(
        cases[case].config,
        workdir,
        [*cases[case].overrides, f'seed={seed}', *overrides],
      )
      row = describe_run(workdir) | measure(case, workdir)
    except (ValueError, OSError, RuntimeError) as error:
      cli.fail(str(error))
    label = f'{case}/seed{seed}'
    rows[label] = {
      'case': label, 'kind': 'run', 'model': case, 'name': cases[case].name,
      **row,
    }  # fmt: skip
    if not args.finished:
      write()
  if args.finished and rows:
    write()


def describe_run(workdir: pathlib.Path) -> dict:
  """What rows of all sweeps say of a finished run."""
  report = runs.read_report(workdir)
  found = {'seed': report['seed'], 'steps': report['steps']}
  if 'tokens_per_s' in report:  # other tasks count examples
    found['tokens'] = count_tokens(report)
  for key in ('core_s', 'train_core_s', 'parameters'):
    found[key] = report[key]
  test = report['metrics']['test']
  return found | {f'test_{key}': value for key, value in test.items()}


def measure_stream(workdir: pathlib.Path) -> dict:
  """The metrics of the steps of a stream, each before it is learned from."""
  steps = runs.evaluations(workdir, 'next')
  found = {
    'stream_steps': len(steps),
    'by_step': {
      key: [round(step[key], 5) for step in steps]
      for key in ('ne', 'auc', 'rate', 'candidates')
    },
  }
  for suffix, window in (('', steps[-WINDOW:]), ('_all', steps)):
    found[f'ne{suffix}'] = total_ne(window)
    found[f'auc{suffix}'] = sum(s['auc'] for s in window) / len(window)
  if len(steps) == FIRST_TEST_STEP - 1:  # the first one is of step 1
    ends = *STARTS[1:], FIRST_TEST_STEP
    for key, start, end in zip(BY_WINDOW, STARTS, ends, strict=True):
      found[key] = total_ne(steps[start - 1 : end - 1])
  return found


def total_ne(steps: Sequence[Mapping]) -> float:
  """Normalised entropy of the candidates of several steps together.

  >>> round(total_ne([{'candidates': 4, 'rate': .5, 'logloss': .6}]), 4)
  0.8656
  """
  weight = sum(s['candidates'] for s in steps)
  loss = sum(s['candidates'] * s['logloss'] for s in steps) / weight
  rate = sum(s['candidates'] * s['rate'] for s in steps) / weight
  return loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def count_tokens(report: Mapping) -> int:
  """Tokens that a run has trained on, which its report says as a speed."""
  return round(report['tokens_per_s'] * report['train_s'])


def average_seeds(
  rows: Iterable[Mapping],
  measured: Sequence[str] = MEASURED + BY_WINDOW,
  same: Sequence[str] = ('name', 'stream_steps'),
) -> list[dict]:
  """A mean over seeds for each model.

  Args:
    rows: of runs.
    measured: keys that are averaged, where the runs have them.
    same: keys whose values all seeds of a model share.
  """
  by_model = {}
  for row in rows:
    by_model.setdefault(row['model'], []).append(row)
  found = []
  for model, seeds in by_model.items():
    mean = {'case': model, 'kind': 'mean', 'model': model, 'seeds': len(seeds)}
    mean |= {key: seeds[0][key] for key in same}
    for key in measured:
      if key in seeds[0]:
        mean |= runs.over_seeds(key, [r[key] for r in seeds])
    found.append(mean)
  return found
