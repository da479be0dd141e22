"""Draws the study of TBSM: as it is trained, and as it was published."""

import math
from collections.abc import Mapping

from benchmarks import tbsm_study
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import Axis, linear_axis

# Case -> its name and its color; dashes are as published.
PAPER = {
  'paper/def, 1 head': ('TBSM, 1 head', 'blue'),
  'paper/attention, 8 heads': ('attention', 'orange'),
  'paper/dot': ('products without A', 'green'),
  'published/def, 1 head': ('TBSM as published, 1 head', 'blue'),
  'published/def, 8 heads': ('8 heads', 'purple'),
  'published/attention, 8 heads': ('attention', 'orange'),
}
PLANTED = {
  'ind, 4 heads': ('A (ind)', 'blue'),
  'def, 4 heads': ('AᵀA (def)', 'purple'),
  'attention, 4 heads': ('attention', 'orange'),
  'concat MLP': ('concat MLP', 'green'),
  'dot': ('products without A', 'muted'),
}
TARGETS = {
  'rank 1, same signs': 'rank 1',
  'rank 2, same signs': 'rank 2',
  'rank 5, same signs': 'rank 5',
  'rank 1, signs by place': '1, signs',
  'rank 2, signs by place': '2, signs',
  'rank 5, signs by place': '5, signs',
  'recall': 'recall',
}


def draw(rows: list[Mapping]) -> str:
  """Returns the picture of the rows of benchmarks/tbsm_study.py."""
  by_case = {row['case']: row for row in rows}
  return chart_files.draw_file([_draw_paper(by_case), _draw_planted(by_case)])


def _draw_paper(by_case: Mapping[str, Mapping]) -> charts.Chart:
  series = []
  for case, (name, color) in PAPER.items():
    kind, net = case.split('/')
    found = [(k, by_case.get(f'{kind}/K={k}/{net}')) for k in tbsm_study.KS]
    points = [(k, row['auc']) for k, row in found if row]
    band = [
      (
        k,
        row['auc'] - row.get('auc_std', 0),
        row['auc'] + row.get('auc_std', 0),
      )
      for k, row in found
      if row
    ]
    shape = 'dashes' if kind == 'published' else 'curve'
    series.append(charts.Series(name, points, color, shape, band))
  return charts.Chart(
    "The paper's study: AUC, %; dashed: not trained in all parts",
    linear_axis(0, max(tbsm_study.KS), 'K, permutations of the target'),
    linear_axis(48, 101),
    series,
  )


def _draw_planted(by_case: Mapping[str, Mapping]) -> charts.Chart:
  """Below the AUC of true probabilities, by target."""
  series = []
  for i, (net, (name, color)) in enumerate(PLANTED.items()):
    points, band = [], []
    for place, target in enumerate(TARGETS):
      if row := by_case.get(f'planted/{target}/{net}'):
        # Beside each other, so that one does not hide another.
        x, y = place + 0.1 * (i - 2), row['auc'] - row['ceiling']
        points += [(x, y), (x, math.nan)]  # no line from target to target
        spread = row.get('auc_std', 0)
        band.append((x, y - spread, y + spread))
    series.append(
      charts.Series(name, points, color, 'curve', band, whiskers=True)
    )
  lowest = min((low for s in series for _, low, _ in s.band), default=-10)
  ticks = [(i, name) for i, name in enumerate(TARGETS.values())]
  return charts.Chart(
    'Planted targets, nets of one size: AUC below the ceiling',
    Axis(-0.5, len(TARGETS) - 0.5, ticks, 'what the label depends on'),
    linear_axis(lowest - 1, 1),
    [*series, charts.reference_level('', 0.0)],
  )
