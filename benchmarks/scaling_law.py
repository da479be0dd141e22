"""Does a ranking model get better by being made larger, and how fast?

  python -m benchmarks.scaling_law
  python -m benchmarks.scaling_law --families wukong dlrm --seeds 0 1

Families of models (Wukong, DLRM, DCN-V2, an MLP), each in sizes over two orders
of magnitude of operations per example, learn from one pass over a generated
click log with planted interactions, and are measured on rows behind it. What
the best possible model would tell is known for each row, so that the excess of
the log loss over that of the truth can be told without the noise of labels: it
is the mean divergence of the prediction from the true probability.

The seed draws the initial weights and the order of the training rows; the log
is the same for all. The rate of Adam is chosen by the log loss on validation
rows, for each family from the same rates at the same places of its ladder
(`TUNED`), with another seed; the largest size takes the rate of the one below.
All else is the same for all: width of vectors, their initial deviation, batch,
clipping, warm-up and decay of the rate. Each finished run is a file in `--runs`
and is not run again. docs/scaling_law.md tells what came of it.
"""

import dataclasses
import pathlib

import numpy as np
from scipy import stats

from benchmarks import cli
from benchmarks.scaling_law_runs import (
  DEEP,
  LOG,
  NAMES,
  TESTED,
  TOLD,
  Bench,
  size_name,
)
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
TUNED = (0, 1, 2, 3, 4)  # sizes of a ladder whose rate is chosen
TUNING_SEED = 1000
# What the paper measured (table 5): GFLOP per example and log loss of the first
# task relative to the smallest DLRM, %. Its 720 features are not public.
PAPER = {
  'wukong': (
    (0.53, -0.35), (1.25, -0.45), (2.12, -0.53), (5.6, -0.60), (22.23, -0.67),
    (61, -0.70), (108, -0.76),
  ),
  'dlrm': (
    (1.37, 0.0), (3.85, -0.23), (7.29, -0.28), (14.61, -0.32), (31, -0.37),
    (71.23, -0.36),
  ),
  'dcn': ((3, -0.27), (4.67, -0.29), (17.85, -0.38), (43.88, -0.43)),
}  # fmt: skip
RUNS = 'workdir_scaling_law'
COLUMNS = (
  'case', 'mflop', 'mflop_total', 'params', 'rate', 'seeds', 'logloss',
  'excess', 'excess_t95', 'relative', 'auc', 'exponent', 'exponent_t95', 'gain',
  'gain_t95', 'core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('scaling_law', __doc__)
  parser.add_argument(
    '--families', nargs='+', choices=NAMES, default=list(NAMES)
  )
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument(
    '--sizes', nargs='+', type=int, default=list(range(len(DEEP)))
  )
  parser.add_argument('--runs', default=RUNS, help=f'finished runs ({RUNS})')
  args = parser.parse_args(argv)
  log, tested, store = LOG, TESTED, pathlib.Path(args.runs)
  if args.smoke:
    log, tested = dataclasses.replace(log, rows=2_048), TOLD
    args.families, args.sizes = ['dlrm'], [0, 1]
    args.seeds, store = args.seeds[:2], None
  bench = Bench(log, tested, store)
  rates = {family: tune(bench, family, args) for family in args.families}
  # One seed after the other: whatever ends it early leaves whole ladders.
  for seed in args.seeds:
    for family in args.families:
      for size in args.sizes:
        bench.run(family, size, nearest(rates[family], size), seed)
  rows = report(bench, rates, args)
  notes = [
    'mflop: 6 x multiply-accumulates of dense layers per example, mflop_total: '
    'of all matrix products; params: without tables.',
    'excess: mean divergence of the predicted from the true probability, nats; '
    '*_t95: half the width of a 95 % t-interval over seeds.',
    'relative: log loss against the smallest DLRM, %.',
  ]
  cli.finish(args, 'scaling_law', rows, COLUMNS, notes, merge=False)


def tune(bench: Bench, family: str, args) -> dict[int, float]:
  """Size -> the rate with the least log loss on validation rows."""
  sizes, rates = (TUNED[:1], RATES[-2:]) if args.smoke else (TUNED, RATES)
  found = {}
  for size in sizes:
    tried = {
      rate: bench.run(family, size, rate, TUNING_SEED, 'valid')['logloss']
      for rate in rates
    }
    found[size] = min(tried, key=tried.get)
  return found


def nearest(rates: dict[int, float], size: int) -> float:
  """The rate of the nearest size that was tuned, of two the smaller."""
  return rates[min(rates, key=lambda tuned: abs(tuned - size))]


def report(bench: Bench, rates: dict[str, dict], args) -> list[dict]:
  """Rows of every run, means over seeds and fits; all runs are there."""
  found = {
    (family, size): [
      bench.run(family, size, nearest(rates[family], size), seed)
      for seed in args.seeds
    ]
    for family in args.families
    for size in args.sizes
  }
  first = 'dlrm' if 'dlrm' in args.families else args.families[0]
  base = np.mean([run['logloss'] for run in found[first, min(args.sizes)]])
  for group in found.values():
    for run in group:
      run['relative'] = 100 * (run['logloss'] / base - 1)
  means = [mean(group) for group in found.values()]
  bayes = bench.bayes('test')
  fits = [
    fit_row(family, found, bayes)
    for family in args.families
    if len(args.sizes) > 1
  ]
  tuned = [
    bench.run(family, size, rate, TUNING_SEED, 'valid')
    for family in args.families
    for size in rates[family]
    for rate in (RATES[-2:] if args.smoke else RATES)
  ]
  each = [run for group in found.values() for run in group]
  return [
    *means,
    *fits,
    *map(published, PAPER),
    *(run | {'kind': 'run'} for run in each),
    *(run | {'kind': 'tuning', 'case': f'tune/{run["case"]}'} for run in tuned),
  ]


def mean(group: list[dict]) -> dict:
  """A row for the runs of one size, that differ by their seeds."""
  first = group[0]
  keep = ('family', 'size', 'rate', 'mflop', 'mflop_total', 'params', 'steps')
  row = {
    'case': f'{first["family"]}/{first["size"]}',
    'kind': 'mean',
    'model': NAMES[first['family']],
    'shape': size_name(first['family'], first['size']),
    'seeds': len(group),
    **{key: first[key] for key in keep},
  }
  for key in ('logloss', 'excess', 'relative', 'auc'):
    row |= interval(key, [run[key] for run in group])
  return row | {'core_s': float(np.mean([run['core_s'] for run in group]))}


def interval(key: str, values: list[float]) -> dict[str, float]:
  """Mean, and half the width of its 95 % t-interval, of two values or more."""
  found = {key: float(np.mean(values))}
  if len(values) > 1:
    t = stats.t.ppf(0.975, len(values) - 1)
    error = np.std(values, ddof=1) / len(values) ** 0.5
    found[f'{key}_t95'] = float(t * error)
  return found


def fit(x, y, floor: float) -> tuple[float, float]:
  """(b, c) of y = floor + b x^c, by least squares in logarithms."""
  slope, height = np.polyfit(np.log(x), np.log(np.asarray(y) - floor), 1)
  return float(np.exp(height)), float(slope)


def fit_row(family: str, found: dict, bayes: float) -> dict:
  """The laws of a family: fitted to each seed's ladder, then averaged.

  `exponent` is the paper's, of y = -100 + b x^c for the log loss relative to
  the base in %; `floor_exponent` that of the excess, y = b x^c, whose floor is
  the truth; `late_exponent` the same of the last three sizes. `gain` is what
  the relative log loss falls by over these. x is in GFLOP per example.
  """
  groups = [group for (of, _), group in found.items() if of == family]
  values = {}
  for ladder in zip(*groups, strict=True):
    x = [run['mflop_total'] / 1000 for run in ladder]
    relative = [run['relative'] for run in ladder]
    excess = [run['excess'] for run in ladder]
    laws = {
      '': fit(x, relative, -100.0),
      'floor_': fit(x, excess, 0.0),
      'late_': fit(x[-3:], excess[-3:], 0.0),
    }
    row = {
      'gain': relative[-3:][0] - relative[-1],
      'excess_share': excess[-1] / excess[0],
    }
    for name, (b, c) in laws.items():
      row |= {f'{name}factor': b, f'{name}exponent': c}
    for key, value in row.items():
      values.setdefault(key, []).append(value)
  row = {
    'case': f'fit/{family}',
    'kind': 'fit',
    'model': NAMES[family],
    'family': family,
    'seeds': len(groups[0]),
    'range_x': x[-1] / x[0],
    'gain_range_x': x[-1] / x[-3:][0],
    'bayes': bayes,
  }
  for key, each in values.items():
    row |= interval(key, each)
  return row


def published(family: str) -> dict:
  """The law of a family in the paper, fitted to what it measured."""
  x, y = zip(*PAPER[family], strict=True)
  factor, exponent = fit(x, y, -100.0)
  return {
    'case': f'fit/{family}/paper',
    'kind': 'fit',
    'model': f'{NAMES[family]}, as published',
    'family': family,
    'range_x': x[-1] / x[0],
    'exponent': exponent,
    'factor': factor,
    'gain': y[-3:][0] - y[-1],
    'gain_range_x': x[-1] / x[-3:][0],
  }


def draw(rows: list[dict]) -> str:
  """Returns the picture: excess against operations, and against parameters."""
  panels = []
  for key, x_name in (
    ('mflop_total', 'MFLOP per example, forward and backward'),
    ('params', 'dense parameters'),
  ):
    series = []
    for row in (row for row in rows if row['kind'] == 'mean'):
      x, y, half = row[key], row['excess'], row.get('excess_t95', 0.0)
      if not series or series[-1].name != row['model']:
        color = chart_files.pick_color(len(series))
        series.append(charts.Series(row['model'], [], color, band=[]))
      series[-1].points.append((x, y))
      series[-1].band.append((x, max(y - half, 0.0), y + half))
    points = [point for s in series for point in s.band]
    x = chart_files.log_axis([x for x, _, _ in points], x_name)
    y = linear_axis(0, 1.05 * max(high for _, _, high in points))
    title = 'Log loss above the best possible, nats'
    panels.append(charts.Chart(title, x, y, series))
  return chart_files.draw_file(panels)


if __name__ == '__main__':
  main()
