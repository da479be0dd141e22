"""What it costs to ask a time-biased model at the wrong time.

  python -m benchmarks.request_time --data DIR/ml-100k --runs DIR

Trains HSTU with its time bias on MovieLens-100K, whose timestamps are official,
with a validation and a test item for each user, and evaluates the best weights
twice: asked at the time of the target, as published, and at that of the last
event before it, as a prediction without `predict.request_time` is.
"""

import json
import pathlib

from benchmarks import cli, runs

CONFIG = 'configs/hstu_ml1m.py:validated'
WAYS = ('target', 'last_event')
METRICS = ('hr@10', 'ndcg@10', 'mrr')
COLUMNS = (
  'case',
  'seeds',
  *METRICS,
  *(f'{m}_std' for m in METRICS),
  'of_target_x',
)
SETTINGS = (
  'data.name=ml100k',
  'train.batch_size=32',
  'train.epochs=60',
  'train.eval_every=60',
  'train.checkpoint_every=60',
  'train.patience=10',
  'eval.miss_rank=0',
  'eval.ks=1,10,50,200',
)
SMOKE = ('model.dim=8', 'model.dqk=8', 'model.dv=8', 'train.steps=8')


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('request_time', __doc__)
  parser.add_argument('--data', required=True, help='data.path of the runs')
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--seeds', default='0,1,2', help='0,1,2')
  args = parser.parse_args(argv)
  settings = [*SETTINGS, f'data.path={pathlib.Path(args.data).resolve()}']
  settings += SMOKE if args.smoke else ()
  reports, measured = [], {way: [] for way in WAYS}
  for seed in args.seeds.split(','):
    workdir = pathlib.Path(args.runs) / f'seed{seed}'
    own = [*settings, f'seed={seed}']
    reports.append(runs.train_once(CONFIG, workdir, own))
    for way in WAYS:
      asked = [*own, f'eval.request_time={way}', 'eval.splits=test']
      runs.start(runs.ROOT, CONFIG, workdir, asked, mode='eval')
      evaluation = json.loads((workdir / 'eval.json').read_text())
      measured[way].append(evaluation['metrics']['test'])
  rows = []
  for way, metrics in measured.items():
    row = {'case': way, 'seeds': len(metrics)}
    for name in METRICS:
      row |= runs.over_seeds(name, [m[name] for m in metrics])
    first = rows[0] if rows else row
    row['of_target_x'] = row['ndcg@10'] / first['ndcg@10']
    costs = [r['core_s'] for r in reports]
    rows.append(row | runs.over_seeds('train_core_s', costs))
  notes = [
    'test: best weights by validation ndcg@10, asked at the time of the target.'
  ]
  cli.finish(args, 'request_time', rows, COLUMNS, notes)


if __name__ == '__main__':
  main()
