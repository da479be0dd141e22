"""Search of widths, depth and tables: does it find what is there?

  python -m benchmarks.dnas --runs DIR
  python -m benchmarks.dnas --runs DIR --only planted/published

planted/models    `dnas_clicks:planted`: all 192 models of the space, five seeds
                  each, by a program of its own (benchmarks/dnas_every.py). What
                  they come to is in dnas_models.json. `excess` is the expected
                  log loss of the test examples above that of the true chances,
                  `floor` the latter.
planted/road      six of them by the library, beside it (`excess_alone`).
planted/VARIANT/BUDGET  `genrec search` with at most so many operations.
                  `regret` is the mean excess of the model that it chose beyond
                  that of the best one within the budget, `place` its rank among
                  those. `on_front`: the regret is no larger than `noise`, half
                  of the 95 % interval of the difference between two models
                  whose seeds differ as much as in the median.
                  `regret_likeliest` is that of its first candidate.
                  `silent_wide` counts the fields that say nothing and have a
                  wide table, of two. `spearman`: of the supernet's loss with
                  the options of one model alone, and the excess of that model,
                  over all 192.

published     four models are drawn and trained.
tried         64 are drawn and tried in the supernet, the best four are trained.
per batch     all examples of a batch draw alike.
hard          an example takes one option of each choice.
skips dropped the cost leaves out what flows through skips.
sgd           SGD for weights and choices, each its own.
sgd, shared   the optimizer of the weights moves the choices, too.

planted/random/BUDGET  as many models by chance as cost what the search has
                  cost; the one that validates best. `on_front` is a share.

Rows of kind 'mean' are over seeds. `core_s` is the supernet's training,
`trained_s` that of a model. Rows that a result file has are not measured again,
and what has been trained stays in DIR: the same command continues.
"""

import argparse
from collections.abc import Mapping

import numpy as np

from benchmarks import cli, dnas_planted

COLUMNS = (
  'case', 'seeds', 'models', 'trained', 'flops', 'floor', 'excess',
  'excess_alone', 'excess_std', 'regret', 'regret_likeliest', 'regret_std',
  'noise', 'on_front', 'place', 'silent_wide', 'telling_wide', 'widest',
  'spearman', 'spearman_low', 'spearman_high', 'core_s', 'trained_s',
  'run_core_s',
)  # fmt: skip
_MEANS = (
  'flops', 'excess', 'regret', 'regret_likeliest', 'noise', 'on_front', 'place',
  'models', 'silent_wide', 'telling_wide', 'widest', 'spearman', 'core_s',
  'trained_s', 'trained', 'run_core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('dnas', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if args.smoke and not args.results:
    args.results = args.runs  # later cases read what earlier ones have written
  rows = cli.read_rows(args, 'dnas')
  wanted = [
    case
    for case in dnas_planted.list_rows(args)
    if case[0].startswith(tuple(args.only))
  ]
  if not wanted:
    cli.fail(f'there is no case that begins with {args.only}')
  cli.measure_missing(rows, wanted, lambda: save(args, rows))


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes all rows, those over seeds made anew."""
  own = [row for row in rows.values() if row.get('kind') != 'mean']
  cli.finish(args, 'dnas', [*own, *average(own)], COLUMNS, merge=False)


def average(rows: list[Mapping]) -> list[dict]:
  """Rows over seeds."""
  groups = {}
  for row in rows:
    if 'of' in row:
      groups.setdefault(row['of'], []).append(row)
  return [
    {
      'case': of, 'kind': 'mean', 'seeds': len(own),
      'variant': own[0]['variant'], 'budget': own[0]['budget'],
      **{key: float(np.mean([r[key] for r in own])) for key in _MEANS},
    }
    for of, own in groups.items()
  ]  # fmt: skip


if __name__ == '__main__':
  main()
