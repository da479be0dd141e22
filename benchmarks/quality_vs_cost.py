"""Test quality of ML-1M runs against the processor time spent on training.

  python -m benchmarks.quality_vs_cost --run sasrec_ml1m=DIR --run hstu_ml1m=DIR

Named as in benchmarks/ml1m.py: a config with its variant, and the workdir of a
finished run of it. A run records its core-seconds as a whole;
an evaluation at step s of S is placed at s/S of those spent on training.
Writes the curves, with RecBole's cost of one epoch beside them;
`python -m benchmarks.pictures` draws them.
"""

import pathlib

from benchmarks import cli, runs
from benchmarks.ml1m import NAMES, PUBLISHED, config_file
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

METRICS = ('hr@10', 'ndcg@10')
# RecBole's SASRec on ML-1M, one epoch on two cores: reported, not measured
# here. It encodes a window anew for each target.
RECBOLE = ('RecBole SASRec, one epoch', 14_000.0)
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)  # of a run, shown in the table
COLUMNS = ('case', 'of_run', 'step', 'train_core_s', *METRICS)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('quality_vs_cost', __doc__)
  parser.add_argument(
    '--run', action='append', required=True, metavar='CONFIG[:VARIANT]=WORKDIR'
  )
  args = parser.parse_args(argv)
  rows = []
  try:
    for text in args.run:
      rows += curve(*runs.named(text))
  except (ValueError, OSError) as error:
    cli.fail(str(error))
  rows.append(
    {
      'case': RECBOLE[0],
      'run': RECBOLE[0],
      'kind': 'shown',
      'train_core_s': RECBOLE[1],
    }
  )
  notes = [
    'train_core_s: core-seconds of training up to the evaluation (those of the '
    'whole run by the share of its steps), compilation included.',
    'RecBole re-encodes a window for every target; some 14,000 core-seconds an '
    'epoch on two cores as reported, not measured again.',
  ]
  cli.finish(args, 'quality_vs_cost', rows, COLUMNS, notes, merge=False)


def curve(name: str, workdir: pathlib.Path) -> list[dict]:
  """One row for each evaluation of a run of the config `name`."""
  config_file(name)  # refuses what is none
  base, _, variant = name.partition(':')
  label = NAMES[base] + (f', {variant}' if variant else '')
  report = runs.read_report(workdir)
  evaluations = runs.evaluations(workdir)
  steps = report['steps']
  rows = [
    {
      'case': f'{name}/{e["step"]}',
      'run': label,
      'config': base,
      'step': e['step'],
      'train_core_s': report['train_core_s'] * e['step'] / steps,
      **{m: e[m] for m in METRICS if m in e},
    }
    for e in evaluations
  ]
  for share in SHARES:
    nearest = min(rows, key=lambda r: abs(r['step'] - share * steps))
    nearest |= {'kind': 'shown', 'of_run': nearest['step'] / steps}
  return rows


def draw(rows: list[dict]) -> str:
  """Returns the picture: a panel a metric, dashed what was published."""
  panels = []
  for i, metric in enumerate(METRICS):
    curves, levels = {}, {}
    for row in rows:
      if metric in row:
        point = row['train_core_s'], row[metric]
        curves.setdefault(row['run'], []).append(point)
        levels[row['run']] = PUBLISHED[row['config']][i]
    series = [charts.reference_mark(*RECBOLE, 'muted')]
    for j, (run, points) in enumerate(curves.items()):
      color = chart_files.pick_color(j)
      series.append(charts.reference_level('', levels[run], color))
      series.append(charts.Series(run, points, color))
    every = [point for points in curves.values() for point in points]
    top = 1.05 * max([y for _, y in every] + list(levels.values()))
    title = f'Test {metric.upper()} on MovieLens-1M (dashed: published)'
    costs = [x for x, _ in every] + [RECBOLE[1]]
    x = chart_files.log_axis(costs, 'core-seconds of training')
    panels.append(charts.Chart(title, x, linear_axis(0, top), series))
  return chart_files.draw_file(panels)


if __name__ == '__main__':
  main()
