"""Tables that are trained on the levels of few bits, and those packed later.

  python -m benchmarks.trained_rows --runs DIR --data DIR

DLRM on Frappe whose tables move by lazy Adam, trained with float32 rows, and
with `optimizer.rows.packed_as`: rounded by chance (`stochastic_rounding`) and
to the nearest level. Each run is tested with its rows packed in its format, as
a service reads them. `minus` is the mean over seeds of the difference from the
float32 run of the same seed in float32, `minus_packed` from that run with its
rows packed in the same format after training; *_se are standard errors.

Runs that have ended are not trained again, and each writes its row: the same
command continues. The settings are those of the published dense tables, but
that their regulariser, which moves whole tables, is a decay of the rows that a
step reads.
"""

import argparse
import pathlib

from benchmarks import cli, runs, serving_rows
from benchmarks.dmt_quality import make_frappe, train_to_the_end

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'minus', 'minus_se', 'minus_packed',
  'minus_packed_se', 'logloss', 'core_s',
)  # fmt: skip
PLAIN = serving_rows.PLAIN
# (format, whether it is rounded by chance), the most wanted first.
CASES = (
  (PLAIN, True),
  ('tbe_int4', True), ('tbe_int2', True), ('tbe_int8', True),
  ('tbe_int4', False), ('tbe_int2', False),
)  # fmt: skip
SEEDS = (1, 2, 3)
ROWS = dict(name='adam', learning_rate=1e-3, decay='l2', weight_decay=0.1)
NOTES = ('minus, minus_packed: means of differences between equal seeds.',)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('trained_rows', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--data', help='directory of the CSVs of Frappe')
  parser.add_argument('--train-file', help='of --data, if not the usual one')
  parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS)
  parser.add_argument('--formats', nargs='+', help='these alone')
  args = parser.parse_args(argv)
  if not (args.data or args.smoke):
    parser.error('--data DIR is needed, with the files of Frappe')
  seeds = args.seeds[:1] if args.smoke else args.seeds
  for seed in seeds:
    for name, by_chance in CASES[: 2 if args.smoke else None]:
      if args.formats and name not in (PLAIN, *args.formats):
        continue
      workdir = find_workdir(args, name, by_chance, seed)
      case = f'{describe(name, by_chance)}/seed{seed}'
      new = {}
      if case not in cli.read_rows(args, 'trained_rows'):
        train(args, workdir, name, by_chance, seed)
        found = measure(args, workdir, name, seed)
        new[case] = {
          'case': case,
          'kind': 'run',
          'of': describe(name, by_chance),
          'format': name,
          'rounding': '' if name == PLAIN else way_of(by_chance),
          'seed': seed,
          **found,
        }
      # Read again: other processes have trained other seeds meanwhile.
      rows = cli.read_rows(args, 'trained_rows') | new
      own = [row for row in rows.values() if row['kind'] == 'run']
      cli.finish(args, 'trained_rows', [*own, *average(own)], COLUMNS, NOTES)


def way_of(by_chance: bool) -> str:
  return 'by chance' if by_chance else 'to the nearest'


def describe(name: str, by_chance: bool) -> str:
  """What rows call a way of training.

  >>> describe('tbe_int4', False)
  'tbe_int4, to the nearest'
  """
  return name if name == PLAIN else f'{name}, {way_of(by_chance)}'


def find_workdir(
  args: argparse.Namespace, name: str, by_chance: bool, seed: int
) -> pathlib.Path:
  """Where a run is, or will be."""
  case = describe(name, by_chance).replace(', ', '_').replace(' ', '_')
  return pathlib.Path(args.runs) / f'frappe_dlrm_rows_{case}_seed{seed}'


def train(args, workdir: pathlib.Path, name: str, by_chance: bool, seed: int):
  """Trains a run unless it has ended."""
  if runs.ended(workdir):
    return
  config = make_frappe(args, 'dlrm', seed)
  config.loss.table_l2 = 0.0
  config.optimizer.rows.update(ROWS)
  if name != PLAIN:
    config.optimizer.rows.update(packed_as=name, stochastic_rounding=by_chance)
  train_to_the_end(config, workdir)


def measure(args, workdir: pathlib.Path, name: str, seed: int) -> dict:
  """Test metrics of a run as it is served, and of float32 packed later."""
  metrics, _ = serving_rows.evaluate(str(workdir), name)
  report = runs.read_report(workdir)
  row = {
    'auc': metrics['auc'],
    'logloss': metrics['logloss'],
    'unpacked_auc': report['metrics']['test']['auc'],
    'valid_auc': report['metrics']['valid']['auc'],
    'core_s': report['core_s'],
  }
  if name != PLAIN:
    plain = find_workdir(args, PLAIN, True, seed)
    later, _ = serving_rows.evaluate(str(plain), name)
    row |= {'later_auc': later['auc'], 'later_logloss': later['logloss']}
  return row


def average(rows: list[dict]) -> list[dict]:
  """A mean over seeds for each way of training."""
  by_case = runs.group_by_seed(rows)
  found = []
  for case, of_seed in by_case.items():
    first = next(iter(of_seed.values()))
    mean = {'case': case, 'kind': 'mean', 'seeds': len(of_seed)}
    mean |= {key: first[key] for key in ('format', 'rounding')}
    for key in ('auc', 'logloss', 'core_s'):
      mean |= runs.over_seeds(key, [row[key] for row in of_seed.values()])
    if case != PLAIN:
      plain = by_case[PLAIN]
      mean |= runs.mean_difference(
        'minus', [r['auc'] - plain[s]['auc'] for s, r in of_seed.items()]
      )
      mean |= runs.mean_difference(
        'minus_packed', [r['auc'] - r['later_auc'] for r in of_seed.values()]
      )
    found.append(mean)
  return found


if __name__ == '__main__':
  main()
