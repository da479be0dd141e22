"""Rates and knobs of the methods of benchmarks/exfm.py, on seeds of their own.

  python -m benchmarks.exfm_search --runs DIR

A student, DLRM on its segment of the usual stream, by each method at several
rates and, under Adam, at several products of the weight of the scores and of
what flows into the model: the head of the scores itself does not feel it. `ne`
is the mean over the seeds, of the last half of the windows, scored before they
are learned from. The least of each method is what benchmarks/exfm.py takes; the
two use no seed in common.
"""

import argparse
import itertools
from collections.abc import Mapping

import numpy as np

from benchmarks import cli, exfm, exfm_worlds, runs
from benchmarks.exfm_worlds import Teacher

COLUMNS = ('case', 'seeds', 'ne', 'ne_std', 'core_s')
SEEDS = (101, 102)
RATES = (
  (1e-3, 1e-3), (1e-3, 5e-4), (1e-3, 2e-3), (3e-3, 1e-3), (3e-3, 5e-4),
  (1e-3, 2.5e-4),
)  # fmt: skip
WEIGHTS = (1.0, 4.0, 16.0)
NOTES = ('Seeds are those of this search alone.',)


def list_cases() -> list[tuple[str, tuple[float, float], dict]]:
  """(method, rates, knobs)."""
  cases = [('none', rates, {}) for rates in RATES]
  cases += [('teacher_alone', rates, {}) for rates in RATES]
  for rates, w in itertools.product(RATES, WEIGHTS):
    cases.append(('one_head', rates, dict(loss_weight=w)))
    cases.append(('head', rates, dict(gradient_scale=w)))
  several = (RATES[0], RATES[1], RATES[3], RATES[4])
  for rates, w in itertools.product(several, WEIGHTS[:2]):
    for kind in ('residual', 'probability'):
      knobs = dict(
        gradient_scale=w, adapter_gradient_scale=w, adapter_input=kind
      )
      cases.append(('adapter', rates, knobs))
    for scale in (2.0, 5.0):
      cases.append(('head', rates, dict(gradient_scale=w, label_scale=scale)))
  return cases


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm_search', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS)
  args = parser.parse_args(argv)
  rows = cli.read_rows(args, 'exfm_search')
  cases = list_cases()[:: 20 if args.smoke else 1]
  for seed in args.seeds[: 1 if args.smoke else None]:
    for method, rates, knobs in cases:
      of = describe(method, rates, knobs)
      if f'{of}/seed{seed}' not in rows:
        row = measure(args, method, rates, knobs, seed)
        rows[row['case']] = row
        save(args, rows)
  save(args, rows)


def describe(method: str, rates: tuple[float, float], knobs: Mapping) -> str:
  """What rows call a case.

  >>> describe('one_head', (1e-3, 3e-3), {'loss_weight': 4.0})
  'one_head, rates 0.001 0.003, loss_weight 4.0'
  """
  more = [f'{key} {value}' for key, value in knobs.items()]
  return ', '.join([method, f'rates {rates[0]} {rates[1]}', *more])


def measure(
  args: argparse.Namespace, method: str, rates, knobs: Mapping, seed: int
) -> dict:
  """The row of a run, trained unless that was done."""
  world = exfm.make_world(args, 'usual', seed)
  labels = exfm_worlds.read_labels(world.list_parts(0))
  parts = world.annotate(0, Teacher(), 0)
  of = describe(method, rates, knobs)
  name = 'search_' + of.replace(', ', '_').replace(' ', '_')
  workdir = world.train_student(
    name, 'dlrm', parts, seed, rates, method=method, **knobs
  )
  found = exfm_worlds.measure_student(workdir, labels)
  about = dict(method=method, rates=list(rates), knobs=dict(knobs), seed=seed)
  row = {'case': f'{of}/seed{seed}', 'kind': 'run', 'of': of} | about
  return row | {key: found[key] for key in ('ne', 'auc', 'core_s')}


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  own = [row for row in rows.values() if row['kind'] == 'run']
  means = []
  for of, by_seed in runs.group_by_seed(own).items():
    same = [*by_seed.values()]
    mean = {'case': of, 'kind': 'mean', 'seeds': len(same)}
    mean |= runs.over_seeds('ne', [row['ne'] for row in same])
    mean['method'] = same[0]['method']
    mean['core_s'] = float(np.mean([row['core_s'] for row in same]))
    means.append(mean)
  means.sort(key=lambda row: row['ne'])
  cli.finish(args, 'exfm_search', [*means, *own], COLUMNS, NOTES, digits=9)


if __name__ == '__main__':
  main()
