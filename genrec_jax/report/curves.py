"""Charts of the measurements of a run over time: the lines of metrics.jsonl."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence

from genrec_jax.formatting import format_number, is_finite
from genrec_jax.report import charts
from genrec_jax.report.axes import linear_axis
from genrec_jax.report.charts import Chart, Readout, Series
from genrec_jax.report.comparison import (
  METRICS,
  Comparison,
  metric_family,
  name_metric,
)

_FIRST = 'loss ndcg@10 hr@10 tokens_per_s auc logloss examples_per_s'.split()
_SPLITS = {
  'train': 'purple',
  'valid': 'blue',
  'next': 'blue',  # of a stream, whose 'valid' is measured once
  'test': 'orange',
  'perf': 'green',
}
_MOST_SINGLE = 6  # values that one sentence names
_LARGEST = 1e290
_MOST_POINTS = 300  # drawn of one series; further ones are averaged
_MOST_READOUTS = 60  # of a dense series that answer to the pointer

Point = tuple[float, float]


def chart_curves(
  report: Mapping, comparison: Comparison, rows: Sequence[Mapping]
) -> tuple[list[Chart], list[Chart]]:
  """Returns the charts that matter most, and the others.

  What was measured once makes no curve, see `describe_single`.

  Args:
    report: see `summary`.
    comparison: its metrics beside baselines, which are levels of the charts.
    rows: the lines of metrics.jsonl, {'step': 12, 'train/loss': ...}.
  """
  charts = {
    what: _chart_measurement(what, by_split, report, comparison)
    for what, by_split in _collect_points(rows).items()
    if len(_list_steps(by_split)) > 1
  }
  first = [w for w in _FIRST if w in charts] or list(charts)[:2]
  return (
    [charts[what] for what in first],
    [chart for what, chart in charts.items() if what not in first],
  )


def describe_single(rows: Sequence[Mapping]) -> str:
  """What was measured once, in a sentence; '' if nothing was.

  The loss is a mean over steps, other than that of the last batch, which the
  terminal shows as `batch loss`.

  >>> describe_single([{'step': 44, 'train/loss': 0.6931, 'valid/auc': 0.5}])
  'Measured once, at step 44: mean train loss 0.6931, valid AUC 0.5.'
  """
  texts, at = [], set()
  for what, by_split in _collect_points(rows).items():
    steps = _list_steps(by_split)
    if len(steps) != 1 or set(by_split) == {'perf'}:
      continue
    at |= steps
    title = what.replace('_', ' ')
    if metric_family(what) in METRICS or '@' in what:
      title = name_metric(what)
    mean = 'mean ' * (what == 'loss')
    texts += [
      f'{mean}{split} {title} {format_number(points[0][1])}'.lstrip()
      for split, points in by_split.items()
    ]
  if not texts:
    return ''
  if len(texts) > _MOST_SINGLE:
    texts[_MOST_SINGLE:] = [f'{len(texts) - _MOST_SINGLE} more']
  steps = ', '.join(f'{step:,}' for step in sorted(at))
  return f'Measured once, at step {steps}: {", ".join(texts)}.'


def _list_steps(by_split: Mapping) -> set[int]:
  return {step for points in by_split.values() for step, _ in points}


def _collect_points(rows: Sequence[Mapping]) -> dict[str, dict]:
  """'ndcg@10' -> 'valid' -> points."""
  measured = {}
  for row in rows:
    for name, value in row.items():
      if name != 'step' and isinstance(value, numbers.Real):
        split, slash, what = name.partition('/')
        by_split = measured.setdefault(what if slash else name, {})
        points = by_split.setdefault(split if slash else '', [])
        value = float(value)
        # Sums and differences of larger ones would be infinite.
        value = value if abs(value) <= _LARGEST else value * math.inf
        points.append((row['step'], value))
  return measured


def chart_steps(
  title: str,
  series: Sequence[Series],
  references: Sequence[Series] = (),
  from_zero: bool = False,
  holes: Sequence[Mapping] = (),
  axis: str = 'step',
) -> Chart:
  """Returns curves over the steps of a run.

  Args:
    title: heading of the chart.
    series: the curves, which answer to the pointer.
    references: levels and marks, drawn below them.
    from_zero: the vertical axis starts at zero, so that heights compare.
    holes: where lines are missing, see `metric_writers.describe_hole`.
    axis: what the steps are.
  """
  every = [point for s in series for point in s.points]
  levels = [y for s in references for _, y in s.points]
  heights = [y for _, y in every] + levels
  heights = [y for y in heights if math.isfinite(y)]
  broken = sum(not math.isfinite(y) for _, y in every)
  warnings = [f'{broken:,} not finite'] if broken else []
  warnings += [f'lines missing up to step {h["step"]:,}' for h in holes]
  warning = '; '.join(warnings)
  if not every or not heights:
    nothing = linear_axis(0, 1)
    return Chart(title, nothing, nothing, [], warning=warning)
  low, high = min(x for x, _ in every), max(x for x, _ in every)
  low = 0 if 0 <= low < high / 2 else low
  if low == high:
    low, high = low - 1, high + 1
  bottom, top = min(heights), max(heights)
  bottom = min(bottom, 0) if from_zero else bottom
  margin = (top - bottom) / 20 or abs(bottom) / 10 or 1.0
  bottom -= 0 if from_zero and bottom == 0 else margin
  series = [
    dataclasses.replace(s, points=_thin_points(s.points)) for s in series
  ]
  return Chart(
    title,
    linear_axis(low, high, axis, whole=True),
    linear_axis(bottom, top + margin),
    [*references, *(_break_curve(s, holes) for s in series)],
    _read_out(series),
    warning,
  )


def _chart_measurement(
  what: str, by_split: Mapping, report: Mapping, comparison: Comparison
) -> Chart:
  """The same measurement of all splits."""
  timing = set(by_split) == {'perf'}
  is_metric = what in (name for name, _ in comparison.rows)
  is_ranking = metric_family(what) in METRICS
  words = what.replace('_per_s', ' per second').replace('_', ' ')
  title = name_metric(what) if is_metric or is_ranking else words.capitalize()
  best = report.get('best_step')
  known = [split for split in _SPLITS if split in by_split]
  series = []
  for split in known + [split for split in by_split if split not in known]:
    name, points = title.lower() if timing else split or what, by_split[split]
    if split == 'test' and 'valid' in by_split and best is not None:
      # A curve would invite to choose by it what validation is to choose.
      points = [point for point in points if point[0] == best]
      name = 'test, at the best step'
    if points:
      series.append(Series(name, points, _SPLITS.get(split, 'green')))
  references = []
  # A baseline far below would flatten the curves of ranking models.
  shown = is_metric and not is_ranking
  for name in report.get('baselines', {}) if shown else ():
    level = comparison.value(what, name)
    if is_finite(level):
      text = f'{name} ({comparison.split})'
      references.append(charts.reference_level(text, level))
  if best is not None and not timing:
    name = f'best step {format_number(best)}'
    references.append(charts.reference_mark(name, best))
  holes = report.get('curve_holes', ())
  return chart_steps(title, series, references, timing or shown, holes)


def _break_curve(series: Series, holes: Sequence[Mapping]) -> Series:
  """The same with a gap where lines are missing."""
  breaks = [
    ((h['after'] + h['step']) / 2, math.nan)
    for h in holes
    if h['after'] is not None
  ]
  points = sorted([*series.points, *breaks], key=lambda point: point[0])
  return dataclasses.replace(series, points=points) if breaks else series


def _thin_points(points: Sequence[Point]) -> list[Point]:
  """At most _MOST_POINTS points; each is the mean of its neighbourhood."""
  if len(points) <= _MOST_POINTS:
    return list(points)
  thin = []
  for i in range(_MOST_POINTS):
    begin = i * len(points) // _MOST_POINTS
    chunk = points[begin : (i + 1) * len(points) // _MOST_POINTS]
    finite = [p for p in chunk if math.isfinite(p[1])]
    finite = finite or [(chunk[0][0], math.nan)]
    # The last point keeps its place: a curve goes on to its end.
    x = chunk[-1][0] if i == _MOST_POINTS - 1 else finite[len(finite) // 2][0]
    thin.append((x, sum(y for _, y in finite) / len(finite)))
  return thin


def _read_out(series: Sequence[Series]) -> list[Readout]:
  """The values of all curves at steps that are close enough together."""
  steps = set()
  for s in series:
    last = len(s.points) - 1
    count = min(last + 1, _MOST_READOUTS)
    # The first and the last point are among them.
    picked = {round(i * last / max(count - 1, 1)) for i in range(count)}
    steps.update(s.points[i][0] for i in picked)
  steps = sorted(steps)
  middles = [(a + b) / 2 for a, b in zip(steps, steps[1:], strict=False)]
  edges = [-math.inf, *middles, math.inf]
  readouts = []
  for step, low, high in zip(steps, edges, edges[1:], strict=False):
    texts, dots = [f'step {format_number(step)}'], []
    for s in series:
      near = [p for p in s.points if low <= p[0] < high]
      if near:
        x, y = min(near, key=lambda p: abs(p[0] - step))
        texts.append(f'{s.name} {format_number(y)}')
        if math.isfinite(y):
          dots.append((x, y, s.color))
    readouts.append(Readout(step, ' · '.join(texts), dots))
  return readouts
