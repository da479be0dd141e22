"""Draws what a search finds, from the rows of benchmarks/dnas*.py."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import result
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

_MOST = 0.04  # models above it hang in one of their seeds
_LEAST_AUC = 0.979  # of Frappe; below, models would press the others together
SIZE = charts.Frame(760, 420, 64, 18, 60, 46)


def draw(rows: Sequence[Mapping]) -> str:
  """Returns the picture of all models of the planted space, and of searches.

  Args:
    rows: of benchmarks/dnas.py; those of dnas_models.json lie beside them.
  """
  path = result.RESULTS / 'cpu2' / 'dnas_models.json'
  models = json.loads(path.read_text())['rows']
  points = sorted((m['flops'], 1e3 * m['excess']) for m in models)
  series = [
    charts.scatter(
      'each of 192 models, five seeds',
      [p for p in points if p[1] <= 1e3 * _MOST],
      'muted',
    )
  ]
  front, least = [], float('inf')
  for flops, excess in points:
    if excess < least:
      front += [(flops, least), (flops, excess)] if front else [(flops, excess)]
      least = excess
  front.append((points[-1][0], least))
  series.append(charts.Series('the best so far', front, 'muted', 'dashes'))
  for variant, name, color in (
    ('published', 'found, four models drawn', 'blue'),
    ('tried', 'found, 64 tried in the supernet', 'orange'),
  ):
    found = [
      (row['flops'], 1e3 * row['excess'])
      for row in rows
      if row['kind'] == 'search' and row.get('variant') == variant
    ]
    series.append(charts.scatter(name, found, color))
  chart = charts.Chart(
    'Expected log loss above that of the true chances, in thousandths',
    chart_files.log_axis([p[0] for p in points], 'operations of an example'),
    linear_axis(0.0, 1e3 * _MOST),
    series,
  )
  return chart_files.draw_file([chart], SIZE)


def draw_frappe(rows: Sequence[Mapping]) -> str:
  """Returns the pictures of models of Frappe, by operations and by bytes.

  Args:
    rows: of benchmarks/dnas.py.
  """
  groups = {
    'models by chance, one seed': ('muted', []),
    'the hand-made one, narrower, one seed': ('green', []),
    'found, one of each search, three seeds': ('blue', []),
    'the hand-made one, five seeds': ('orange', []),
  }
  chance, narrower, found, by_hand = (own for _, own in groups.values())
  models = {}
  for row in rows:
    if row['kind'] == 'random model':
      chance.append(row)
    elif row['kind'] == 'scaled model':
      narrower.append(row)
    elif row['case'] == 'frappe/hand-made':
      by_hand.append(row)
    elif row.get('of') == 'frappe/found/full':
      models.setdefault(row['supernet'], []).append(row)
  for own in models.values():
    found.append({**own[0], 'auc': float(np.mean([r['auc'] for r in own]))})
  aucs = [row['auc'] for _, own in groups.values() for row in own]
  below = sum(auc < _LEAST_AUC for auc in aucs)
  pictures = []
  for cost, name in (
    ('flops', 'operations of an example'),
    ('bytes', 'bytes of all parameters'),
  ):
    series = [
      charts.scatter(
        title,
        [(row[cost], row['auc']) for row in own if row['auc'] >= _LEAST_AUC],
        color,
      )
      for title, (color, own) in groups.items()
    ]
    costs = [row[cost] for _, own in groups.values() for row in own]
    pictures.append(
      charts.Chart(
        f'AUC of the test split ({below} models by chance lie below)',
        chart_files.log_axis(costs, name),
        linear_axis(_LEAST_AUC, max(aucs)),
        series,
      )
    )
  return chart_files.draw_file(pictures, SIZE)
