"""Draws gains of students over windows, and over the lag of their teacher."""

from collections.abc import Mapping

import numpy as np

from benchmarks import runs
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

WINDOWS = {
  'one_head': 'one head',
  'one_head_w': 'one head, searched',
  'adapter': 'AH + SA',
  'teacher_alone': 'scores alone',
}
LAGS = {'one_head': 'one head', 'head': 'AH', 'adapter': 'AH + SA'}
STREAMS = {
  'calibration': 'Late scores, base rates drift',
  'effects': 'Late scores, effects drift',
}
COARSE = 4  # windows of a point


def draw(rows: list[Mapping]) -> str:
  """Returns the picture; charts whose rows are not there are left out."""
  drawn = [_draw_windows(rows), *(_draw_lags(rows, s) for s in STREAMS)]
  return chart_files.draw_file([chart for chart in drawn if chart.series])


def _draw_windows(rows: list[Mapping]) -> charts.Chart:
  """Mean gains of the students of the ladder, and the deviation over seeds."""
  ladder = [r for r in rows if r['kind'] == 'run' and r.get('part') == 'ladder']
  by_case = runs.group_by_seed(ladder)
  students = {r['student'] for r in ladder}
  series = []
  for i, (method, name) in enumerate(WINDOWS.items()):
    gains = {}
    for student in students:
      of = by_case.get(f'ladder/usual/{student}/{method}', {})
      plain = by_case.get(f'ladder/usual/{student}/none', {})
      for seed in of.keys() & plain.keys():
        gains.setdefault(seed, []).append(
          _gain(_list_windows(of[seed]), _list_windows(plain[seed]))
        )
    if gains:
      by_seed = np.array([np.mean(of, axis=0) for of in gains.values()])
      x = COARSE * (np.arange(by_seed.shape[1]) + 0.5)
      series.append(_make_curve(name, x, by_seed, i))
  end = COARSE * len(series[0].points) if series else 1
  return charts.Chart(
    'NE below that of labels alone, %',
    linear_axis(0, end, 'windows of the stream'),
    _make_height(series),
    _mark_zero(series),
  )


def _list_windows(row: Mapping) -> list[float]:
  return [*row['early_ne'], *row['windows_ne']]


def _gain(of: list[float], plain: list[float]) -> np.ndarray:
  """Per cent, in steps of COARSE windows."""
  both = np.array([of, plain])
  both = both[:, : both.shape[1] // COARSE * COARSE]
  of, plain = both.reshape(2, -1, COARSE).mean(-1)
  return 100 * (1 - of / plain)


def _draw_lags(rows: list[Mapping], stream: str) -> charts.Chart:
  series = []
  for i, (method, name) in enumerate(LAGS.items()):
    found = [
      r
      for r in rows
      if r['kind'] == 'mean'
      and r.get('part') == 'lag'
      and (r['stream'], r['method']) == (stream, method)
    ]
    found.sort(key=lambda r: r['lag'])
    # Beside each other, so that one interval does not hide another.
    points = [(r['lag'] + 0.06 * (i - 1), r['gain_%']) for r in found]
    widths = [r.get('gain_ci', 0.0) for r in found]
    band = [
      (x, y - ci, y + ci) for (x, y), ci in zip(points, widths, strict=True)
    ]
    if points:
      color = chart_files.pick_color(i)
      series.append(
        charts.Series(name, points, color, band=band, whiskers=True)
      )
  return charts.Chart(
    f'{STREAMS[stream]}: gain, %',
    linear_axis(-0.2, 3.2, 'windows that the teacher is late', whole=True),
    _make_height(series),
    _mark_zero(series),
  )


def _make_curve(name, x, by_seed: np.ndarray, index: int) -> charts.Series:
  mean = by_seed.mean(0)
  spread = by_seed.std(0, ddof=1) if len(by_seed) > 1 else 0 * mean
  points = [*zip(x.tolist(), mean.tolist(), strict=True)]
  low, high = (mean - spread).tolist(), (mean + spread).tolist()
  band = [*zip(x.tolist(), low, high, strict=True)]
  return charts.Series(name, points, chart_files.pick_color(index), band=band)


def _make_height(series: list[charts.Series]):
  ends = [y for s in series for _, *ends in s.band for y in ends] or [0, 1]
  low, high = min(0.0, *ends), max(0.0, *ends)
  room = 0.05 * (high - low)
  return linear_axis(low - room, high + room)


def _mark_zero(series: list[charts.Series]) -> list[charts.Series]:
  return series and [*series, charts.reference_level('', 0.0)]
