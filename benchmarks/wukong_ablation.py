"""What are the parts of a Wukong layer worth?

  python -m benchmarks.wukong_ablation --runs DIR
  python -m benchmarks.wukong_ablation --runs DIR --data DIR/frappe

Trains configs/wukong_synthetic.py, and with `--data` configs/wukong_frappe.py,
with parts of every layer replaced by zeros (`model.zero`), with several seeds,
in workdirs below `--runs`; what has ended is not run again. `auc_less` is by
how much test AUC is below that of the whole model, `loss_more` by how much test
log loss is above it, in percent: the paper has, on its own data, much for the
factorisation machines, little for linear compression or residuals alone, more
for both. On Frappe AUC chooses the epoch, and log loss follows the calibration
of that epoch: it differs more between seeds than between cases.
"""

import pathlib

import numpy as np

from benchmarks import cli, runs
from benchmarks.frappe import REBUILT

CONFIGS = {
  'clicks': 'configs/wukong_synthetic.py',
  'frappe': 'configs/wukong_frappe.py',
}
CASES = {
  'whole': (),
  'no FMB': ('fmb',),
  'no LCB': ('lcb',),
  'no residual': ('residual',),
  'no LCB, no residual': ('lcb', 'residual'),
}
COLUMNS = (
  'case', 'auc', 'auc_std', 'auc_less', 'logloss', 'logloss_std', 'loss_more',
  'seeds', 'core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('wukong_ablation', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--data', help='directory of the CSVs of Frappe')
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument('--only', choices=CONFIGS, help='one of the data sets')
  args = parser.parse_args(argv)
  rows = []
  try:
    for data in CONFIGS:
      if args.only in (None, data) and (data != 'frappe' or args.data):
        rows += measure(data, args)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  notes = ['std is over seeds, with n - 1; loss_more compares means.']
  if args.data:
    notes.append(REBUILT)
  cli.finish(args, 'wukong_ablation', rows, COLUMNS, notes)


def measure(data: str, args) -> list[dict]:
  """A row for each case."""
  rows = []
  for case, zero in CASES.items():
    reports = [train(data, zero, seed, args) for seed in args.seeds]
    found = {'case': f'{data}/{case}', 'data': data, 'without': case}
    found |= {'seeds': len(reports)}
    for metric in ('logloss', 'auc'):
      values = [r['metrics']['test'][metric] for r in reports]
      found |= runs.over_seeds(metric, values)
    found['core_s'] = float(np.mean([r['core_s'] for r in reports]))
    whole = rows[0] if rows else found
    found['loss_more'] = 100 * (found['logloss'] / whole['logloss'] - 1)
    found['auc_less'] = whole['auc'] - found['auc']
    rows.append(found)
    print(cli.table([found], COLUMNS), flush=True)
  return rows


def train(data: str, zero: tuple[str, ...], seed: int, args) -> dict:
  """The report of a run, which is started if it has not ended."""
  name = '_'.join((data, *(f'no_{part}' for part in zero)))
  workdir = pathlib.Path(args.runs) / f'{name}_seed{seed}'
  overrides = [f'model.zero={",".join(zero)}'] if zero else []
  overrides += [f'seed={seed}', 'report.importance_rows=0']
  if data == 'frappe' and not args.smoke:
    overrides.append(f'data.path={pathlib.Path(args.data).resolve()}')
  config = CONFIGS[data] + (':smoke' if args.smoke else '')
  return runs.train_once(config, workdir, overrides)


if __name__ == '__main__':
  main()
