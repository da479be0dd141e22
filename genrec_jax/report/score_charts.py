"""Charts of predicted probabilities: calibration, and scores by label."""

import math
from collections.abc import Mapping, Sequence

from genrec_jax.report.axes import (
  Axis,
  label_ticks,
  linear_axis,
  round_ticks,
)
from genrec_jax.report.charts import Chart, Readout, Series

# Where labels go, the first that find room: decades, then what is between.
_SHARES = (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 0.3, 0.2, 0.4, 0.05, 0.02)
_TICKS = (0.5, *(p for share in _SHARES for p in (share, 1 - share)))
_TICK_ROOM = 0.123  # between two labels, of the axis


def chart_calibration(title: str, curve: Sequence[Mapping]) -> Chart:
  """Returns what happened against what was predicted, bin by bin.

  Args:
    title: its heading.
    curve: as `ranking_metrics.calibration_curve` gives it, not empty.
  """
  top = max(max(b['prediction'], b['rate_high']) for b in curve)
  top = min(1.0, top * 1.04) or 1.0
  # An edge beyond the last prediction lies on the frame.
  edges = sorted({b['low'] for b in curve} | {b['high'] for b in curve})
  happened = Series(
    'happened',
    [(b['prediction'], b['rate']) for b in curve],
    'orange',
    band=[(b['prediction'], b['rate_low'], b['rate_high']) for b in curve],
    whiskers=True,
  )
  diagonal = Series('as predicted', [(0, 0), (top, top)], 'muted', 'reference')
  readouts = [
    Readout(
      b['prediction'],
      f'predicted {format_share(b["prediction"])}, happened'
      f' {format_share(b["rate"])} ({format_share(b["rate_low"])} to'
      f' {format_share(b["rate_high"])}), {b["weight"]:,.0f} examples',
    )
    for b in curve
  ]
  x = linear_axis(0, top, 'predicted', minor=edges)
  return Chart(title, x, linear_axis(0, top), [diagonal, happened], readouts)


def chart_scores(title: str, histogram: Mapping) -> Chart:
  """Returns where the scores of both labels lie.

  Args:
    title: its heading.
    histogram: as `ranking_metrics.score_histogram` gives it, not empty.
  """
  edges = histogram['edges']
  series, top = [], 0.0
  for name, color in (('negative', 'blue'), ('positive', 'orange')):
    weights = histogram[name]
    heights = [w / (sum(weights) or 1.0) for w in weights]
    top = max(top, *heights)
    # Up and down at every edge, from the ground and back to it.
    xs = [edge for edge in edges for _ in range(2)]
    ys = [0.0, *(h for h in heights for _ in range(2)), 0.0]
    label, points = f'{sum(weights):,.0f} {name}', zip(xs, ys, strict=True)
    series.append(Series(label, list(points), color, 'area'))
  readouts = [
    Readout(
      (low + high) / 2,
      f'{format_share(_apply_sigmoid(low), 3)} to '
      f'{format_share(_apply_sigmoid(high), 3)}:'
      f' {positive:,.0f} positive, {negative:,.0f} negative',
    )
    for low, high, positive, negative in zip(
      edges, edges[1:], histogram['positive'], histogram['negative'],
      strict=False,
    )
  ]  # fmt: skip
  x, y = _logit_axis(edges[0], edges[-1]), linear_axis(0, 1.08 * top or 1.0)
  return Chart(title, x, y, series, readouts)


def _logit_axis(low: float, high: float) -> Axis:
  """Logits, labelled by the round probabilities that fit between two."""
  axis, ticks = Axis(low, high, (), 'predicted'), []
  for p in _TICKS:
    x = math.log(p / (1 - p))
    gaps = (abs(axis.place(x) - axis.place(other)) for other, _ in ticks)
    if low <= x <= high and min(gaps, default=1.0) >= _TICK_ROOM:
      ticks.append((x, format_share(p)))
  if len(ticks) < 2:
    ticks = _list_narrow_ticks(low, high)
  return Axis(low, high, sorted(ticks), 'predicted')


def _list_narrow_ticks(low: float, high: float) -> list[tuple[float, str]]:
  """Round probabilities of a range between two that are rounder.

  >>> [text for _, text in _list_narrow_ticks(-0.05, 0.01)]
  ['49.0%', '49.5%', '50.0%']
  """
  ends = _apply_sigmoid(low), _apply_sigmoid(high)
  if ends[1] - ends[0] > 1e-9:
    shares = round_ticks(*ends, 3)
    shares = [p for p in shares if 0 < p < 1]
    if len(shares) > 1:
      texts = label_ticks([100 * p for p in shares])
      # A share at the end of the range may lie behind it by rounding.
      places = [min(max(math.log(p / (1 - p)), low), high) for p in shares]
      return [(x, f'{t}%') for x, t in zip(places, texts, strict=True)]
  # So narrow that no round number is in it.
  return [(x, format_share(_apply_sigmoid(x), 6)) for x in (low, high)]


def format_share(p: float, digits: int = 2) -> str:
  """Returns a probability in percent.

  Args:
    p: the probability.
    digits: significant ones, of the distance to 0 or 1, whichever is nearer.

  >>> format_share(0.0312), format_share(0.99912)
  ('3.1%', '99.912%')
  """
  distance = 100 * min(p, 1 - p)
  if distance <= 0:
    return '100%' if p > 0.5 else '0%'
  places = max(0, digits - 1 - math.floor(math.log10(distance) + 1e-9))
  text = f'{100 * p:.{min(places, 8)}f}'
  return f'{text.rstrip("0").rstrip(".") if "." in text else text}%'


def _apply_sigmoid(x: float) -> float:
  """The logistic function, without overflow."""
  small = math.exp(-min(abs(x), 745.0))
  return (1.0 if x >= 0 else small) / (1.0 + small)
