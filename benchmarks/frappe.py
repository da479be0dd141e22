"""Ranking models on Frappe_x1 beside the published figures.

  python -m benchmarks.frappe --data DIR/frappe --runs DIR
  python -m benchmarks.frappe --data DIR/frappe --runs DIR --models wukong

Trains (or continues) configs/frappe.py:MODEL and configs/wukong_frappe.py, each
with several seeds, in workdirs below `--runs`; what has ended is not run again.
The epoch is chosen by validation AUC alone. A row is a run; the rows of kind
'mean' are over seeds.
The official training file is not always at hand: `--train-file` names another.
"""

import pathlib

from benchmarks import cli, runs

# Model -> (config, published test AUC, log loss, their spread over runs).
MODELS = {
  'lr': ('configs/frappe.py:lr', 0.9356, 0.3076, None),
  'fm': ('configs/frappe.py:fm', 0.9671, 0.2065, None),
  'dnn': ('configs/frappe.py:dnn', 0.9833, 0.1622, None),
  'dlrm': ('configs/frappe.py:dlrm', 0.9840, 0.1444, None),
  'deepfm': ('configs/frappe.py:deepfm', 0.98395, 0.14946, 0.00016),
  'dcn': ('configs/frappe.py:dcn', 0.98382, 0.15204, 0.00043),
  'finalmlp': ('configs/frappe.py:finalmlp', 0.9861, 0.1484, None),
  'wukong': ('configs/wukong_frappe.py', 0.9868, 0.1757, None),
}
NAMES = {
  'lr': 'LR',
  'fm': 'FM',
  'dnn': 'DNN',
  'dlrm': 'DLRM',
  'deepfm': 'DeepFM',
  'dcn': 'DCN-V2',
  'finalmlp': 'FinalMLP',
  'wukong': 'Wukong',
}
COLUMNS = (
  'case', 'auc', 'auc_std', 'published_auc', 'difference', 'logloss',
  'published_logloss', 'valid_auc', 'epochs', 'core_s',
)  # fmt: skip
REBUILT = (
  'The negatives of the training file of Frappe are rebuilt: positives, users '
  'and contexts are exact, the item ids of negatives are drawn anew.'
)
NOTES = (
  REBUILT,
  'std is over seeds, with n - 1.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('frappe', __doc__)
  parser.add_argument('--data', required=True, help='directory of the CSVs')
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument(
    '--models', nargs='+', choices=MODELS, default=list(MODELS)
  )
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument('--train-file', help='of --data, if not the usual one')
  parser.add_argument(
    '--finished', action='store_true', help='read what has ended, train nothing'
  )
  args = parser.parse_args(argv)
  rows = []
  try:
    for model in args.models:
      rows += measure(model, args)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  cli.finish(args, 'frappe', rows, COLUMNS, NOTES)


def measure(model: str, args) -> list[dict]:
  """A row for each seed, and their mean."""
  config, auc, logloss, std = MODELS[model]
  overrides = [f'data.path={pathlib.Path(args.data).resolve()}']
  if args.smoke:
    config += ',smoke' if ':' in config else ':smoke'
    overrides = []
  if args.train_file:
    overrides.append(f'data.files.train={args.train_file}')
  found = []
  for seed in args.seeds:
    workdir = pathlib.Path(args.runs) / f'frappe_{model}_seed{seed}'
    if args.finished and not runs.ended(workdir):
      continue
    runs.train_once(config, workdir, [*overrides, f'seed={seed}'])
    found.append(row(model, config, workdir, args.smoke))
  if not found:
    return []
  mean = {
    'case': model,
    'kind': 'mean',
    'model': NAMES[model],
    'seeds': len(found),
    'differs': sorted({d for r in found for d in r['differs']}),
  }
  for key in ('auc', 'logloss', 'valid_auc', 'epochs', 'core_s'):
    mean |= runs.over_seeds(key, [r[key] for r in found])
  mean |= {
    'published_auc': auc,
    'published_logloss': logloss,
    'difference': mean['auc'] - auc,
  }
  if std is not None:
    mean['published_auc_std'] = std
  return [*found, mean]


def row(model: str, config: str, workdir: pathlib.Path, smoke: bool) -> dict:
  """The result row of a finished run."""
  report = runs.read_report(workdir)
  test, valid = report['metrics']['test'], report['metrics']['valid']
  return {
    'case': f'{model}/seed{report["seed"]}',
    'kind': 'run',
    'model': NAMES[model],
    'seed': report['seed'],
    'auc': test['auc'],
    'logloss': test['logloss'],
    'valid_auc': valid['auc'],
    'epochs': best_epoch(report, workdir),
    'core_s': report['core_s'],
    'train_core_s': report['train_core_s'],
    'differs': [] if smoke else runs.differences(report, config),
  }


def best_epoch(report: dict, workdir: pathlib.Path) -> float:
  """The epoch that validation chose; each ended with an evaluation."""
  evaluations = max(1, len(runs.evaluations(workdir)))
  return report['best_step'] / report['steps'] * evaluations


if __name__ == '__main__':
  main()
