"""Search for Wukong's settings on Frappe_x1, by validation alone.

  python -m benchmarks.wukong_search --data DIR/frappe --runs DIR --trials 40
  python -m benchmarks.wukong_search --data DIR/frappe --runs DIR --finished

First the settings of `START`, then one of the `PARENTS` best so far with one or
two settings of `SPACE` changed. Each is a run of configs/wukong_frappe.py, one
seed, one thread, in a workdir below `--runs`; what has been run is not run
again, so the search goes on where it stopped. The table is ordered by
validation AUC, which alone is selected on; test AUC stands beside it. The best
few want more seeds: `--confirm 3 --seeds 0 1 2`.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import threading

import numpy as np

from benchmarks import cli, runs
from benchmarks.frappe import NOTES, best_epoch

CONFIG = 'configs/wukong_frappe.py'
PARENTS = 4
SPACE = {
  'model.dim': (16, 32, 64, 128),
  'model.layers': (1, 2, 3),
  'model.fmb': (4, 8, 16),
  'model.lcb': (4, 8, 16),
  'model.rank': (8, 16, 24),
  'model.norm_eps': (1e-8, 1e-5),
  'model.fm': ('optimised', 'triangular'),
  'model.attentive': (False, True),
  'model.fmb_hidden': ('(400,)', '(256,256)', '(512,512)', '(1024,)'),
  'model.top': ('(256,)', '(400,)', '(400,400)', '(400,400,400)', '(1024,)'),
  'model.dropout': (0.0, 0.2, 0.4, 0.6),
  'model.top_dropout': (0.0, 0.2, 0.4, 0.6),
  'model.embedding_dropout': (0.0, 0.1, 0.2, 0.3),
  'model.fmb_batch_norm': (False, True),
  'model.top_batch_norm': (False, True),
  'vectors': (1, 2, 4),  # of each user and item, `model.important`
  'data.init_std': (1e-3, 1e-2, 1e-1),
  'loss.table_l2': (0.02, 0.05, 0.1, 0.2, 0.5),
  'optimizer.learning_rate': (5e-4, 1e-3, 2e-3, 4e-3),
  'optimizer.weight_decay': (0.0, 1e-2, 1e-1),
  'train.batch_size': (1024, 2048, 4096, 8192),
}
BASE = {
  'model.dim': 16,
  'model.layers': 1,
  'model.fmb': 8,
  'model.lcb': 8,
  'model.rank': 8,
  'model.norm_eps': 1e-8,
  'model.fm': 'optimised',
  'model.attentive': False,
  'model.fmb_hidden': '(400,)',
  'model.top': '(400,)',
  'model.dropout': 0.4,
  'model.top_dropout': 0.4,
  'model.embedding_dropout': 0.0,
  'model.fmb_batch_norm': True,
  'model.top_batch_norm': True,
  'vectors': 1,
  'data.init_std': 1e-2,
  'loss.table_l2': 0.1,
  'optimizer.learning_rate': 1e-3,
  'optimizer.weight_decay': 0.0,
  'train.batch_size': 4096,
}
WIDE = {'model.dim': 64, 'loss.table_l2': 0.2, 'model.embedding_dropout': 0.2}
START = (
  {},
  {'model.attentive': True},
  {'model.layers': 2},
  {'model.dim': 64},
  WIDE,
  WIDE | {'loss.table_l2': 0.5},
  WIDE | {'model.embedding_dropout': 0.3},
  WIDE | {'optimizer.learning_rate': 5e-4},
  WIDE | {'model.dim': 128},
  WIDE | {'model.layers': 2},
)
COLUMNS = (
  'case', 'valid_auc', 'auc', 'logloss', 'seeds', 'epochs', 'parameters',
  'core_s', 'differs',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('wukong_search', __doc__)
  parser.add_argument('--data', required=True, help='directory of the CSVs')
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--trials', type=int, default=40, help='in all (40)')
  parser.add_argument('--jobs', type=int, default=1, help='at a time (1)')
  parser.add_argument('--epochs', type=int, default=30, help='at most (30)')
  parser.add_argument(
    '--confirm', type=int, default=0, help='run the best with --seeds (0)'
  )
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument(
    '--finished', action='store_true', help='read what has ended, train nothing'
  )
  args = parser.parse_args(argv)
  search = Search(args)
  try:
    if not args.finished:
      search.run()
    rows = search.rows()
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  cli.finish(args, 'wukong_search', rows, COLUMNS, NOTES, merge=False)


class Search:
  """Trials, each a directory with settings.json and a finished run or none."""

  def __init__(self, args):
    self.args = args
    self.runs = pathlib.Path(args.runs)
    self.runs.mkdir(parents=True, exist_ok=True)
    self._lock = threading.Lock()
    self._taken: set[str] = set()

  def run(self) -> None:
    with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
      for done in [pool.submit(self._next) for _ in range(self.args.trials)]:
        done.result()
      best = [json.loads(r['settings']) for r in self.rows()]
      again = [
        pool.submit(self._train, settings, seed)
        for settings in best[: self.args.confirm]
        for seed in self.args.seeds
      ]
      for done in again:
        done.result()

  def _next(self) -> None:
    with self._lock:
      settings = self._choose(len(self._taken))
      self._taken.add(name_of(settings))
    self._train(settings, 0)
    with self._lock:
      for place, row in enumerate(self.rows()):
        if row['case'] == name_of(settings):
          print(f'{len(self._taken)} trials, this is number {place + 1}:')
          print(cli.table([row], COLUMNS), flush=True)

  def _choose(self, number: int) -> dict:
    """The settings of a trial; those of an earlier search come first."""
    if number < len(START):
      return BASE | START[number]
    for row in self.rows():
      if row['case'] not in self._taken:
        return json.loads(row['settings'])
    rng = np.random.default_rng([number, 0])
    parents = [json.loads(r['settings']) for r in self.rows()[:PARENTS]]
    while True:
      child = dict(parents[rng.integers(len(parents))])
      for key in rng.permutation(list(SPACE))[: rng.integers(1, 3)]:
        others = [v for v in SPACE[key] if v != child[key]]
        child[key] = others[rng.integers(len(others))]
      if name_of(child) not in self._taken:
        return child

  def _train(self, settings: dict, seed: int) -> None:
    workdir = self.runs / name_of(settings) / f'seed{seed}'
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir.parent / 'settings.json').write_text(json.dumps(settings))
    config, overrides = CONFIG, [f'seed={seed}']
    if self.args.smoke:
      config += ':smoke'
    else:
      overrides += [
        *overrides_of(settings),
        f'train.epochs={self.args.epochs}',
        'optimizer.name=adamw',  # Adam, where nothing decays
        'report.importance_rows=0',
        f'data.path={pathlib.Path(self.args.data).resolve()}',
      ]
    runs.train_once(config, workdir, overrides, {'NPROC': '1'})

  def rows(self) -> list[dict]:
    """A row for each trial that has ended, the best first."""
    found = []
    for place in self.runs.glob('*/settings.json'):
      ended = [d for d in sorted(place.parent.glob('seed*')) if runs.ended(d)]
      if ended:
        found.append(row(json.loads(place.read_text()), ended))
    return sorted(found, key=lambda r: -r['valid_auc'])


def name_of(settings: dict) -> str:
  text = json.dumps(settings, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def overrides_of(settings: dict) -> list[str]:
  vectors = settings['vectors']
  found = [f'{k}={v}' for k, v in settings.items() if k != 'vectors']
  if vectors > 1:
    found += [f'model.important.{name}={vectors}' for name in ('user', 'item')]
  return found


def row(settings: dict, workdirs: list[pathlib.Path]) -> dict:
  """The result row of the finished runs of one setting."""
  reports = [runs.read_report(workdir) for workdir in workdirs]
  mean = lambda values: float(np.mean(list(values)))  # noqa: E731
  changed = {k: v for k, v in settings.items() if v != BASE[k]}
  found = {
    'case': name_of(settings),
    'seeds': len(reports),
    'epochs': mean(best_epoch(*r) for r in zip(reports, workdirs, strict=True)),
    'parameters': sum(reports[0]['parameters'].values()),
    'core_s': mean(r['core_s'] for r in reports),
    'differs': ', '.join(f'{k}={v}' for k, v in changed.items()) or 'the base',
    'settings': json.dumps(settings),
  }
  for part, prefix in (('valid', 'valid_'), ('test', '')):
    for metric in ('auc', 'logloss'):
      values = [r['metrics'][part][metric] for r in reports]
      found[prefix + metric] = mean(values)
      if len(values) > 1:
        found[f'{prefix}{metric}_std'] = float(np.std(values, ddof=1))
  return found


if __name__ == '__main__':
  main()
