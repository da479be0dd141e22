"""The paper's synthetic stream: does HSTU > softmax-HSTU > Transformer hold?

  python -m benchmarks.synthetic_stream --workdir DIR --seeds 0,1,2 --jobs 2

Runs configs/synthetic_stream.py for each model and seed (of the model and of
the data), each in a process with one thread. Runs that have ended are not
repeated, runs that were cut off go on. Every seed's figures are written, then
mean and standard deviation, with the popularity baseline beside them.
"""

import concurrent.futures
import pathlib
import statistics

import numpy as np

from benchmarks import cli, runs
from genrec_jax.data import synthetic

CONFIG = 'configs/synthetic_stream.py'
MODELS = ('hstu', 'softmax', 'sasrec')  # in the order the paper finds
NAMES = {
  'hstu': 'HSTU',
  'softmax': 'HSTU with softmax',
  'sasrec': 'Transformer (SASRec)',
  'popularity': 'popularity',
  'ceiling': 'oracle (true categories)',
}
METRICS = ('hr@10', 'hr@50', 'ndcg@10')
PAPER = {  # table 2, at twenty times the records: HR@10, HR@50
  'hstu': (0.0893, 0.3170),
  'softmax': (0.0617, 0.2496),
  'sasrec': (0.0442, 0.2025),
}
ONE_THREAD = {
  'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=false',
  'OMP_NUM_THREADS': '1',
  'OPENBLAS_NUM_THREADS': '1',
}
COLUMNS = (
  'case', 'hr@10', 'hr@10_std', 'hr@50', 'hr@50_std', 'ndcg@10', 'ndcg@10_std',
  'above_next', 'core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('synthetic_stream', __doc__)
  parser.add_argument('--workdir', required=True, help='of all runs')
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--jobs', type=int, default=2, help='at a time (2)')
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument(
    '--set', action='append', default=[], metavar='KEY=VALUE',
    help='override of the config, for all runs',
  )  # fmt: skip
  args = parser.parse_args(argv)
  seeds = [int(seed) for seed in args.seeds.split(',')]
  root = pathlib.Path(args.workdir)
  # Seed by seed, so that an early stop leaves whole comparisons.
  wanted = [(model, seed) for seed in seeds for model in args.models]
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    found = [
      pool.submit(run, root, model, seed, args.smoke, args.set)
      for model, seed in wanted
    ]
    try:
      reports = dict(zip(wanted, [f.result() for f in found], strict=True))
    except (ValueError, OSError, RuntimeError) as error:
      pool.shutdown(cancel_futures=True)
      cli.fail(str(error))
  rows = table(reports)
  size = next(iter(reports.values()))['config']['data']['synthetic']
  notes = [
    f'{size["records"]:,} records of {size["length"]} events, {size["items"]:,}'
    ' items (the paper: 1,000,000 and 20,000); one pass in order, the last '
    '10 % of the records test.',
    'Mean and standard deviation over seeds of data and model; above_next: '
    'seeds in which the model has a higher hr@10 than the one below it.',
    'oracle (true categories): expected hit rates of a ranker that knows the '
    'category of every item and counts them in the history.',
    'paper_*: table 2 of the HSTU paper at its full size, whose model sizes '
    'are not given: compare the order, not the figures.',
  ]
  cli.finish(args, 'synthetic_stream', rows, COLUMNS, notes)


def run(root, model: str, seed: int, smoke: bool, overrides) -> dict:
  """Trains one model, unless its workdir has a report; returns the report."""
  workdir = root / f'{model}_seed{seed}'
  variant = f'smoke,{model}' if smoke else model
  seeds = (f'seed={seed}', f'data.synthetic.seed={seed}')
  report = runs.train_once(
    f'{CONFIG}:{variant}', workdir, (*seeds, *overrides), ONE_THREAD
  )
  config = report['config']
  if (report['seed'], config['data']['synthetic']['seed']) != (seed, seed):
    raise ValueError(f'{workdir} is a run of another seed')
  different = runs.differences(report, f'{CONFIG}:{variant}')
  if different and not overrides:
    raise ValueError(
      f'{workdir} was run with another config; remove it: {different}'
    )
  return report


def table(reports: dict[tuple[str, int], dict]) -> list[dict]:
  """Rows: each (model, seed), then each model over its seeds."""
  values, rows = {}, []
  for (model, seed), report in reports.items():
    test, costs = report['metrics']['test'], {'core_s': report['core_s']}
    entries = [(model, test, costs)]
    if ('popularity', seed) not in values:
      popular = report['baselines']['popularity']['test']
      entries.append(('popularity', popular, {}))
      data = report['config']['data']['synthetic']
      entries.append(('ceiling', ceiling(data), {}))
    for name, metrics, extra in entries:
      values[name, seed] = {m: metrics[m] for m in METRICS if m in metrics}
      rows.append(
        {
          'case': f'{name}/seed{seed}',
          'kind': 'run',
          'model': NAMES[name],
          'seed': seed,
          **values[name, seed],
          **extra,
        }
      )
  order = [m for m in (*MODELS, 'popularity') if any(m == k[0] for k in values)]
  for name, below in zip(order, [*order[1:], None], strict=True):
    rows.append(_mean(name, below, values))
  rows.append(_mean('ceiling', None, values))
  return rows


def ceiling(data: dict, test_fraction: float = 0.1) -> dict[str, float]:
  """Expected hit rates of a ranker that is told each item's category.

  It counts the categories of a test record's history and ranks the open items
  by (count of the category) / (open items of it). Items of a category are
  drawn alike, so that no model can do better but by chance.
  """
  histories = synthetic.generate_stream(**data)
  length, records = data['length'], data['records']
  items = np.asarray(histories.items).reshape(records, length) - 1
  category = synthetic.item_categories(
    data['items'], data['categories'], data['seed']
  )
  limits = synthetic.opening_limits(records, data['items'], (0.4, 1.0))
  hits = {10: [], 50: []}
  for record in range(records - round(test_fraction * records), records):
    open_items = np.bincount(
      category[: limits[record]], minlength=data['categories']
    )
    drawn = category[items[record]]
    seen = np.bincount(drawn[:-1], minlength=data['categories'])
    worth = np.where(open_items > 0, seen / np.maximum(open_items, 1), 0.0)
    target = drawn[-1]
    before = open_items[worth > worth[target]].sum()
    size = open_items[worth == worth[target]].sum()
    for k, found in hits.items():
      found.append(np.clip(k - before, 0, size) / size)
  return {f'hr@{k}': float(np.mean(found)) for k, found in hits.items()}


def _mean(name: str, below: str | None, values) -> dict:
  seeds = sorted(seed for model, seed in values if model == name)
  row = {
    'case': f'{name}/mean',
    'kind': 'mean',
    'model': NAMES[name],
    'seeds': len(seeds),
  }
  for metric in METRICS:
    each = [values[name, s][metric] for s in seeds if metric in values[name, s]]
    if each:
      row[metric] = statistics.fmean(each)
      row[f'{metric}_std'] = statistics.stdev(each) if len(each) > 1 else 0.0
  if below:
    both = [s for s in seeds if (below, s) in values]
    above = sum(
      values[name, s]['hr@10'] > values[below, s]['hr@10'] for s in both
    )
    row['above_next'] = f'{above} of {len(both)}'
  if name in PAPER:
    row['paper_hr@10'], row['paper_hr@50'] = PAPER[name]
  return row


if __name__ == '__main__':
  main()
