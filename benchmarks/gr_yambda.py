"""Yambda by the rules of MLPerf's dlrm_v4_hstu: samples to an AUC of .75.

  python -m benchmarks.gr_yambda --runs DIR
  python -m benchmarks.gr_yambda --runs DIR --data yambda/flat/50m --batch 1024

Without `--data` a file of the published layout is generated (`yambda_log`), and
everything that is measured is of these generated data. The config is
`gr_yambda:mlperf`: one pass in the order of time, the last day held out with a
gap of 30 minutes before it, every listen a request of its own. The held-out day
is evaluated every `--every` samples, and the first evaluation that reaches the
target says how many samples it took. Two predictors that count stand beside the
model, and for generated data the chances that the labels were drawn with.

The rules bind the rate to the batch, 1e-6 for 8,192 requests. So low a rate is
for billions of samples; of generated data the rate is `RATE` for all batches,
and the rows say how often it is that of the rules.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import gr_counts, gr_runs, runs, yambda_log
from genrec_jax import config as config_lib
from genrec_jax.data.requests.yambda_files import BITS, LISTEN_BITS, LISTENED
from genrec_jax.tasks import ranking_metrics

CONFIG = 'configs/gr_yambda.py:mlperf'
TARGET = 0.75
USERS, DAYS = 1_000, 20  # that are generated
BATCH, RATE, EVERY = 64, 2e-3, 6_400  # of generated data; samples
MEASURED = (
  'test_ne', 'test_auc', 'test_calibration', 'tokens', 'train_core_s', 'core_s',
)  # fmt: skip
COLUMNS = (
  'case', 'data', 'seeds', 'reached', 'samples_to_target', 'samples',
  'test_auc', 'test_auc_std', 'test_ne', 'test_ne_std', 'rate_x',
  'train_core_s',
)  # fmt: skip
NOTES = (
  'Data called generated are made up in the published layout: they tell '
  'nothing about Yambda.',
  'test_*: of the listens of the last day, with the weights of the end.',
  'samples_to_target: requests that were learned from until an evaluation of '
  'the last day had an AUC of .75 or more; mean over the seeds that reached '
  'it, of which there are as many as `reached` says.',
  'rate_x: the rate over the one that the rules have for this batch, which may '
  'be .5 to 1.5. The rules ask for ten runs.',
  'chances: what the labels of generated data were drawn with.',
)


def main(argv: list[str] | None = None) -> None:
  parser = gr_runs.make_parser('gr_yambda', __doc__)
  parser.add_argument('--data', help='a folder such as yambda/flat/50m')
  parser.add_argument('--batch', type=int, help='requests of a step')
  parser.add_argument('--rate', type=float, help='of all parameters')
  parser.add_argument('--every', type=int, help='samples between evaluations')
  args = parser.parse_args(argv)
  store = pathlib.Path(args.runs).resolve()
  truth: list[dict] = []
  if args.data:
    path = pathlib.Path(args.data).resolve()
    name = label = path.name
    published = config_lib.load(str(runs.ROOT / CONFIG))
    batch = args.batch or published.train.batch_size
    rate, every = args.rate or rule_rate(batch), args.every or 100 * batch
  else:
    users, days = (40, 5) if args.smoke else (USERS, DAYS)
    path = store / f'generated_{users}_{days}'
    label = f'generated, {users:,} users, {days} days'
    batch, rate = args.batch or (8 if args.smoke else BATCH), args.rate or RATE
    every, name = args.every or (160 if args.smoke else EVERY), 'generated'
    truth = [measure_truth(generate(path, users, days), label)]
  cases = {f'{name}/stu': make_case(path, batch, rate, every)}
  cache = store / 'requests'
  overrides = [f'data.cache={cache}']
  if args.smoke:
    overrides.append('data.max_history=32')
  counted = count_listens(cases[f'{name}/stu'], overrides, name, label)
  gr_runs.sweep(
    args,
    'gr_yambda',
    cases,
    measure=lambda case, workdir: {'data': label, **measure_run(workdir)},
    report=lambda rows: [*average_runs(rows), *counted, *truth],
    columns=COLUMNS,
    notes=NOTES,
    overrides=overrides,
  )


def rule_rate(batch: int) -> float:
  """The rate that the rules have for a global batch."""
  config = config_lib.load(str(runs.ROOT / CONFIG))
  return config.optimizer.learning_rate * batch / config.train.batch_size


def make_case(
  path: pathlib.Path, batch: int, rate: float, every: int
) -> gr_runs.Case:
  """The runs on a folder."""
  steps = max(1, every // batch)
  settings = {
    'data.path': path,
    'train.batch_size': batch,
    'train.eval_every': steps,
    'train.checkpoint_every': steps,
    'optimizer.learning_rate': rate,
    'optimizer.rows.learning_rate': rate,
  }
  return gr_runs.Case(
    CONFIG,
    tuple(f'{key}={value}' for key, value in settings.items()),
    3,
    'STU',
  )


def generate(path: pathlib.Path, users: int, days: int) -> list[dict]:
  """The rows of a generated folder, which is written unless it is there."""
  rows = yambda_log.generate_rows(users, days)
  # A new file has another time, and would be prepared again.
  if not (path / 'made.json').exists():
    path.mkdir(parents=True, exist_ok=True)
    yambda_log.write_file(
      path / 'multi_event.parquet', rows, row_group_size=1 << 16
    )
    made = {'users': users, 'days': days, 'events': len(rows)}
    (path / 'made.json').write_text(json.dumps(made))
  return rows


def measure_truth(rows: Sequence[Mapping], label: str) -> dict:
  """What the chances that were drawn with tell of the last day."""
  asked = [
    (row['chance'], row['played_ratio_pct'] >= 50)
    for row in rows
    if row['event_type'] == 'listen'
    and row['timestamp'] >= yambda_log.LAST - yambda_log.DAY
  ]
  chance, listened = np.array(asked, np.float64).T
  found = ranking_metrics.measure_labels(
    (np.log(chance) - np.log1p(-chance))[:, None], listened[:, None]
  )
  return {
    'case': 'generated/chances', 'kind': 'ceiling', 'data': label,
    'name': 'the chances of the generator', 'candidates': len(asked),
    **{f'test_{key}': value for key, value in found.items()},
  }  # fmt: skip


def count_listens(
  case: gr_runs.Case, overrides: Sequence[str], name: str, label: str
) -> list[dict]:
  """Rows of the predictors that count."""
  texts = {
    'popularity': 'share of listen+ of the track',
    'biases': "track's and user's share, added",
  }
  found = gr_counts.measure_counts(
    case,
    tuple(overrides),
    texts,
    lambda action: (action & BITS[LISTENED]) > 0,
    lambda action: (action & LISTEN_BITS) > 0,
  )
  return [
    {**row, 'case': f'{name}/{row["case"]}', 'data': label} for row in found
  ]


def measure_run(workdir: pathlib.Path) -> dict:
  """What only the rows of this benchmark have."""
  report = runs.read_report(workdir)
  batch = report['config']['train']['batch_size']
  rate = report['config']['optimizer']['learning_rate']
  total = report['splits']['train']['requests']
  curve = [
    (min(e['step'] * batch, total), e['auc'], e['ne'])
    for e in runs.evaluations(workdir)
  ]
  found = {
    'batch': batch,
    'samples': total,
    'rate_x': rate / rule_rate(batch),
    'curve': [[n, round(auc, 5), round(ne, 5)] for n, auc, ne in curve],
  }
  reached = [samples for samples, auc, _ in curve if auc >= TARGET]
  return found | {'samples_to_target': reached[0] if reached else None}


def average_runs(rows: Sequence[dict]) -> list[dict]:
  """Means over seeds; the samples of those that reached the target."""
  same = ('name', 'data', 'batch', 'samples', 'rate_x')
  means = gr_runs.average_seeds(rows, MEASURED, same)
  for mean in means:
    reached = [
      row['samples_to_target']
      for row in rows
      if row['model'] == mean['model'] and row['samples_to_target']
    ]
    mean['reached'] = f'{len(reached)} of {mean["seeds"]}'
    mean['samples_to_target'] = None  # a table wants the key
    if reached:
      mean |= runs.over_seeds('samples_to_target', reached)
  return means


if __name__ == '__main__':
  main()
