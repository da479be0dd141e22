"""Draws what parts of TBSM are worth, and AUC against the length of histories.

`draw_differences` is of the rows of benchmarks/tbsm.py: how each case differs
from `def` in AUC, with its 95 % interval over seeds. `draw_lengths` is of those
of benchmarks/tbsm_cost.py: AUC against T, with the deviation between seeds.
"""

from collections.abc import Mapping, Sequence

from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import Axis, linear_axis

# Case -> its name below the picture, which has room for eight letters. `concat`
# would need five times the height.
CASES = {
  'ind': 'ind',
  'dot': 'dot',
  'mul': 'mul',
  'heads 2': '2 heads',
  'heads 4': '4 heads',
  'heads 8': '8 heads',
  'k-sequences': 'k-seq',
  'no age': 'no age',
  'no place': 'no place',
  'no time': 'no time',
  'no projection': 'no proj',
  'dot tower': 'dot tow',
  'user id': 'user id',
  'mean': 'mean',
  'attention': 'attent.',
  'gru': 'GRU',
  'lstm': 'LSTM',
  'din': 'DIN',
}
GROUPS = {
  'interests': 'generated stream',
  'movielens/1m': 'MovieLens 1M',
  'movielens/100k': '100K',
  'movielens/latest': 'latest-small',
}
LENGTHS = {
  'interests': 'The generated stream',
  'movielens/100k': 'MovieLens 100K',
}
# Without `concat`, which stands still in some seeds: its band would be all.
MECHANISMS = {
  'def': ('TBSM (def)', 'blue', 'curve'),
  'attention': ('attention', 'orange', 'curve'),
  'din': ('DIN', 'green', 'curve'),
  'gru': ('GRU', 'purple', 'curve'),
  'lstm': ('LSTM', 'purple', 'dashes'),
  'mean': ('mean', 'muted', 'curve'),
}
LEAST, MOST = -12.0, 3.0  # % of AUC; intervals end there
WIDE = charts.Frame(1060, 380, 58, 16, 58, 42)


def draw_differences(rows: Sequence[Mapping]) -> str:
  """Returns the picture of the rows of benchmarks/tbsm.py."""
  found = {
    (row['group'], row['variant']): row for row in rows if 'auc_diff' in row
  }
  series = []
  for i, (group, name) in enumerate(GROUPS.items()):
    points, band = [], []
    for place, case in enumerate(CASES):
      if row := found.get((group, case)):
        # Beside each other, so that one interval does not hide another.
        x, y = place + 0.16 * (i - 1.5), 100 * row['auc_diff']
        points += [(x, y), (x, float('nan'))]  # no line from case to case
        width = 100 * row.get('auc_ci', 0.0)
        band.append((x, max(y - width, LEAST), min(y + width, MOST)))
    if points:
      color = chart_files.pick_color(i)
      series.append(
        charts.Series(name, points, color, band=band, whiskers=True)
      )
  ticks = [(i, name) for i, name in enumerate(CASES.values())]
  chart = charts.Chart(
    'AUC, % above that of def with one head',
    Axis(-0.5, len(CASES) - 0.5, ticks),
    linear_axis(LEAST, MOST),
    [*series, charts.reference_level('', 0.0)],
  )
  return chart_files.draw_file([chart], WIDE)


def draw_lengths(rows: Sequence[Mapping]) -> str:
  """Returns the picture of the rows of benchmarks/tbsm_cost.py."""
  drawn = [_draw_lengths(rows, data) for data in LENGTHS]
  return chart_files.draw_file([chart for chart in drawn if chart.series])


def _draw_lengths(rows: Sequence[Mapping], data: str) -> charts.Chart:
  series, lengths = [], {1}
  for mechanism, (name, color, shape) in MECHANISMS.items():
    own = [
      row
      for row in rows
      if row['kind'] == 'mean'
      and (row['data'], row['mechanism']) == (data, mechanism)
    ]
    own.sort(key=lambda row: row['T'])
    if not own:
      continue
    lengths |= {row['T'] for row in own}
    points = [(row['T'], 100 * row['auc']) for row in own]
    spread = [100 * row.get('auc_std', 0.0) for row in own]
    band = [
      (x, y - wide, y + wide)
      for (x, y), wide in zip(points, spread, strict=True)
    ]
    series.append(charts.Series(name, points, color, shape, band))
  return charts.Chart(
    f'{LENGTHS[data]}: AUC, %; trained with 20 events',
    chart_files.log_axis(lengths, 'latest events that the model is given'),
    _make_height(series),
    series and [*series, charts.reference_mark('trained', 20.0)],
  )


def _make_height(series: Sequence[charts.Series]) -> Axis:
  """Around all intervals."""
  ends = [y for s in series for _, *ends in s.band for y in ends]
  ends = ends or [0.0]
  room = 0.05 * (max(ends) - min(ends)) or 1.0
  return linear_axis(min(ends) - room, max(ends) + room)
