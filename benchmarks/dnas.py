"""Search of widths, depth and tables: does it find what is there?

  python -m benchmarks.dnas --runs DIR --data DIR
  python -m benchmarks.dnas --runs DIR --only planted/published

DIR of the data holds frappe.

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
                  over all 192, and of those within the budget.

published     four models are drawn and trained.
tried         64 are drawn and tried in the supernet, the best four are trained.
per batch     all examples of a batch draw alike.
hard          an example takes one option of each choice.
skips dropped the cost leaves out what flows through skips.
sgd           SGD for weights and choices, each its own.
sgd, shared   the optimizer of the weights moves the choices, too, at 500 times
              their rate.

planted/known/BUDGET  what is known without a search. `regret` and `on_front`
                  of a model by chance; `regret_all` of the best of all, trained
                  once; `curse` of the best by three seeds, judged by the other
                  two: the best of noisy means is partly luck. `spearman_size`
                  of the rule that larger is better, `spearman_halves` of two
                  seeds with the other three.
planted/random/BUDGET  as many models by chance as cost what the search has
                  cost; the one that validates best. `on_front` is a share.

rows/whole        `dnas_clicks:rows` with a row for each value.
rows/uniform      each table with the same number of rows, by a hash, so that
                  all have the bytes of the budget.
rows/search       `genrec search` for the rows of each table: mean rows of those
                  that tell (`telling_rows`) and of those that do not. Of the
                  supernet, parameters as a factor of the model with all rows.
rows/found        what it chose, from scratch with three seeds.

frappe/hand-made  the DLRM of configs/frappe.py, five seeds.
frappe/search/SHARE  `dnas_frappe` with no more operations and bytes than the
                  hand-made model (`full`), or a quarter of both: three
                  supernets, and the model that each has chosen by validation.
frappe/found/SHARE  these models, each from scratch with three other seeds.
frappe/chosen/SHARE  that of the search that validated best, with five other
                  seeds; `auc_diff` from the hand-made model of the same seed,
                  `auc_ci` half of its 95 % interval.
frappe/random/N   models drawn from those that keep the budgets and take half of
                  one at least, one seed each.
frappe/random search/N  as many of them as cost what one search costs, beside
                  `found`, and three, beside `chosen`; validation chooses, and
                  the figure is of the very run that was chosen. Means over
                  draws of so many.
frappe/scaled/N   the hand-made model with narrower layers and tables, one seed.
frappe/ranking    `spearman`: of the supernet's loss and the validation loss of
                  the 30 random models trained alone; one seed of those.
frappe/supernet/FACTOR  the mixture of a supernet with another factor of L2
                  (`search.table_l2_factor`), and its `spearman`; one seed.

Rows of kind 'mean' are over seeds. `core_s` is the supernet's training,
`trained_s` that of a model. Rows that a result file has are not measured again,
and what has been trained stays in DIR: the same command continues.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import cli, dnas_frappe, dnas_planted, dnas_rows, runs, tbsm

COLUMNS = (
  'case', 'seeds', 'models', 'trained', 'flops', 'bytes', 'auc', 'auc_std',
  'auc_diff', 'auc_ci', 'logloss', 'ne', 'ne_std', 'telling_rows',
  'silent_rows', 'supernet_x', 'valid_auc', 'floor', 'excess',
  'excess_alone', 'excess_std', 'regret', 'regret_ci', 'regret_likeliest',
  'regret_std', 'regret_all', 'curse', 'spearman_size', 'spearman_halves',
  'noise', 'on_front', 'place', 'silent_wide', 'telling_wide', 'widest',
  'spearman', 'spearman_low', 'spearman_high', 'spearman_within', 'core_s',
  'trained_s',
  'run_core_s',
)  # fmt: skip
_MEANS = (
  'telling_rows', 'silent_rows', 'supernet_x', 'rows', 'flops', 'bytes',
  'valid_auc', 'excess', 'regret', 'regret_likeliest', 'noise', 'on_front',
  'place', 'models', 'silent_wide', 'telling_wide', 'widest', 'spearman',
  'spearman_within', 'core_s', 'trained_s', 'trained', 'run_core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('dnas', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--data', default='', help='directory with frappe')
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
    for part in (dnas_planted, dnas_rows, dnas_frappe)
    for case in part.list_rows(args)
    if case[0].startswith(tuple(args.only))
  ]
  if not wanted:
    cli.fail(f'there is no case that begins with {args.only}')
  cli.measure_missing(rows, wanted, lambda: save(args, rows))


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes all rows, those over seeds made anew."""
  own = [row for row in rows.values() if row.get('kind') != 'mean']
  cli.finish(args, 'dnas', [*own, *average(own)], COLUMNS, merge=False)


def average(rows: Sequence[Mapping]) -> list[dict]:
  """Rows over seeds."""
  groups = {}
  for row in rows:
    if 'of' in row:
      groups.setdefault(row['of'], []).append(row)
  return [_average_group(of, own) for of, own in groups.items()]


def _average_group(of: str, rows: Sequence[Mapping]) -> dict:
  found = {'case': of, 'kind': 'mean', 'seeds': len(rows)}
  for key in ('variant', 'budget'):
    if key in rows[0]:
      found[key] = rows[0][key]
  for key in _MEANS:
    if key in rows[0]:
      found[key] = float(np.mean([row[key] for row in rows]))
  for key in ('auc', 'logloss', 'ne'):
    if key in rows[0]:
      found |= runs.over_seeds(key, [row[key] for row in rows])
    if f'{key}_diff' in rows[0]:
      found |= tbsm.compare(key, [row[f'{key}_diff'] for row in rows])
  if 'regret' in rows[0]:
    interval = tbsm.compare('regret', [row['regret'] for row in rows])
    del interval['regret_diff']  # a mean that is there already
    found |= interval
  return found


if __name__ == '__main__':
  main()
