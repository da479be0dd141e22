"""The ML-1M runs beside the published figures.

  python -m benchmarks.ml1m --run hstu_ml1m=DIR --run hstu_ml1m:validated=DIR
  python -m benchmarks.ml1m --train --data DIR/ml-1m --run sasrec_ml1m=DIR

NAME is a config with its variant; DIR is the workdir of a finished run, or with
`--train` of one that is started, or continued, here. The reference protocol has
no validation split: `metrics` are those of the last epoch. `best_on_test` is
chosen on the test split itself and therefore optimistic; it is how figures of
this protocol are often quoted. A row is a run; the rows of kind 'mean' are over
the seeds of a config, those that the result file has already among them. So
the seeds of a sweep can be trained one after the other, on different days:

  python -m benchmarks.ml1m --train --set seed=1 --run hstu_ml1m=DIR/seed1
"""

import json
import pathlib
from collections.abc import Sequence

from benchmarks import cli, result, runs
from genrec_jax import config as config_lib

KS = (10, 50, 200)
METRICS = tuple(f'{name}@{k}' for k in KS for name in ('hr', 'ndcg'))
# Config -> figures of the papers' own README files.
PUBLISHED = {
  'sasrec_ml1m': (0.2853, 0.1603, 0.5474, 0.2185, 0.7528, 0.2498),
  'hstu_ml1m': (0.3097, 0.1720, 0.5754, 0.2307, 0.7716, 0.2606),
  'hstu_large_ml1m': (0.3294, 0.1893, 0.5935, 0.2481, 0.7839, 0.2771),
  'gsasrec_ml1m': (0.3003, 0.1726),
}
NAMES = {
  'sasrec_ml1m': 'SASRec',
  'hstu_ml1m': 'HSTU',
  'hstu_large_ml1m': 'HSTU-large',
  'gsasrec_ml1m': 'gSASRec',
}
COLUMNS = (
  'case', 'hr@10', 'hr@10_std', 'published_hr@10', 'ndcg@10', 'ndcg@10_std',
  'published_ndcg@10', 'hr@50', 'hr@200', 'last_hr@10',
  'best_on_test_hr@10', 'best_step', 'steps', 'core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('ml1m', __doc__)
  parser.add_argument(
    '--run', action='append', required=True, metavar='CONFIG[:VARIANT]=WORKDIR'
  )
  parser.add_argument('--train', action='store_true', help='run them first')
  parser.add_argument('--data', help='data.path of the runs, for --train')
  parser.add_argument(
    '--set', action='append', default=[], metavar='KEY=VALUE',
    help='override of the config, for --train, as seed=1',
  )  # fmt: skip
  args = parser.parse_args(argv)
  rows = []
  try:
    for text in args.run:
      name, workdir = runs.named(text)
      config = config_file(name)
      if args.train:
        overrides = list(args.set)
        if args.data:
          overrides.append(f'data.path={pathlib.Path(args.data).resolve()}')
        runs.train(config, workdir, overrides)
      rows.append(row(name, workdir, smoke=args.smoke))
    rows += mean_rows(rows, read_rows(args.results or result.RESULTS))
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  notes = [
    'hr and ndcg: of the epoch that is best on the validation item where the '
    'protocol has one, else of the last epoch; last_*: of the last epoch.',
    'best_on_test_*: best epoch by test ndcg@10, chosen on what it measures.',
    'Timestamps of the data here: 28 % official, the others interpolated in '
    'the official order. The time bias of HSTU learns from them.',
    'std is over seeds, with n - 1.',
  ]
  cli.finish(args, 'ml1m', rows, COLUMNS, notes)


def config_file(name: str) -> str:
  """'hstu_ml1m:validated' -> 'configs/hstu_ml1m.py:validated'."""
  base, colon, variant = name.partition(':')
  if base not in PUBLISHED:
    raise ValueError(f'no config {base!r} here; {", ".join(PUBLISHED)}')
  return f'configs/{base}.py{colon}{variant}'


def row(name: str, workdir: pathlib.Path, *, smoke: bool = False) -> dict:
  """The result row of a finished run."""
  report = runs.read_report(workdir)
  config, base = report['config'], name.partition(':')[0]
  saved_model = config['model']['name']
  expected = config_lib.load(str(runs.ROOT / config_file(name))).model.name
  if saved_model != expected:
    raise ValueError(f'{workdir} is a run of {saved_model}, not of {name}')
  chosen, last = report['metrics']['test'], report['last_epoch']['test']
  validated = 'valid' in report['metrics']
  curve = runs.evaluations(workdir)
  best = max(curve, key=lambda r: r['ndcg@10'])
  found = {
    'case': f'{name}/seed{report["seed"]}',
    'kind': 'run',
    'config': name,
    'protocol': 'validated' if validated else 'reference',
    'chosen_by': 'validation' if validated else 'last epoch',
    'data': config['data']['name'],
    'seed': report['seed'],
    'best_step': report['best_step'],
    'steps': report['steps'],
    'core_s': report['core_s'],
    'train_core_s': report['train_core_s'],
    'eval_core_s': report['eval_core_s'],
    'devices': report['devices'],
    'best_on_test_step': best['step'],
    'differs': [] if smoke else runs.differences(report, config_file(name)),
  }
  for prefix, values in (('', chosen), ('last_', last),
                         ('best_on_test_', best)):  # fmt: skip
    found |= {f'{prefix}{m}': values[m] for m in METRICS if m in values}
  published = zip(METRICS, PUBLISHED[base], strict=False)
  return found | {f'published_{m}': value for m, value in published}


def read_rows(results: str | pathlib.Path) -> list[dict]:
  """The rows that are in the result file of this machine."""
  path = pathlib.Path(results) / result.machine_kind() / 'ml1m.json'
  return json.loads(path.read_text())['rows'] if path.exists() else []


def mean_rows(new: Sequence[dict], old: Sequence[dict]) -> list[dict]:
  """A mean over seeds for each config of the new rows.

  Args:
    new: rows of runs.
    old: rows of the result file; those of the same cases count no more.
  """
  by_case = {r['case']: r for r in [*old, *new] if 'seed' in r}
  found = []
  for name in dict.fromkeys(r['config'] for r in new):
    seeds = [r for r in by_case.values() if r['config'] == name]
    mean = {
      'case': name,
      'kind': 'mean',
      'seeds': len(seeds),
      'differs': sorted({d for r in seeds for d in r['differs']}),
    }
    same = ('config', 'protocol', 'chosen_by', 'data', 'steps', 'devices')
    mean |= {key: seeds[0][key] for key in same}
    for key, value in seeds[0].items():
      if key.startswith('published_'):
        mean[key] = value
      elif '@' in key or key.endswith('core_s'):
        mean |= runs.over_seeds(key, [r[key] for r in seeds])
    found.append(mean)
  return found


if __name__ == '__main__':
  main()
