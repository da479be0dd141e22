"""Charts of predicted probabilities as inline SVG, as those of report_svg."""

import html
import math
from collections.abc import Mapping, Sequence

from genrec_jax.train import report_svg as svg

# Where labels go, the first that find room: decades, then what is between.
_SHARES = (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 0.3, 0.2, 0.4, 0.05, 0.02)
_TICKS = (0.5, *(p for share in _SHARES for p in (share, 1 - share)))
_TICK_ROOM = 46  # between two labels
_BOTTOM = svg.HEIGHT - svg.BOTTOM
_RIGHT = svg.WIDTH - svg.RIGHT


def calibration(title: str, curve: Sequence[Mapping]) -> str:
  """What happened against what was predicted, bin by bin: a `<figure>`.

  Args:
    title: of the figure.
    curve: as `ranking_metrics.calibration_curve` gives it, not empty.
  """
  top = max(max(b['prediction'], b['rate_high']) for b in curve)
  top = min(1.0, top * 1.04) or 1.0
  at_x, at_y = (
    _scale(0, top, svg.LEFT, _RIGHT),
    _scale(0, top, _BOTTOM, svg.TOP),
  )
  ticks = svg.ticks(0, top, 5)
  out = svg.axes(ticks, ticks, at_x, at_y, 'predicted')
  out += (
    f'<path class="ref" d="M{at_x(0):.1f} {at_y(0):.1f}L{at_x(top):.1f}'
    f' {at_y(top):.1f}"/>'
  )
  edges = {b['low'] for b in curve} | {b['high'] for b in curve}
  out += '<path class="rug" d="{}"/>'.format(
    ''.join(f'M{at_x(min(x, top)):.1f} {_BOTTOM}v-5' for x in sorted(edges))
  )
  points = [(at_x(b['prediction']), at_y(b['rate'])) for b in curve]
  for b, (x, _) in zip(curve, points, strict=True):
    out += (
      f'<path class="whisker" d="M{x:.1f} {at_y(b["rate_low"]):.1f}'
      f'V{at_y(b["rate_high"]):.1f}"/>'
    )
  line = 'L'.join(f'{x:.1f} {y:.1f}' for x, y in points)
  out += f'<path class="curve test" d="M{line}"/>'
  for x, y in points:
    out += f'<circle class="dot test" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
  texts = [
    f'predicted {_share(b["prediction"])}, happened {_share(b["rate"])}'
    f' ({_share(b["rate_low"])} to {_share(b["rate_high"])}),'
    f' {b["weight"]:,.0f} examples'
    for b in curve
  ]
  out += _strips([x for x, _ in points], texts)
  keys = (
    '<span class="key test"><i></i>happened</span>'
    '<span class="key ref"><i class="dash"></i>as predicted</span>'
  )
  return _figure(title, keys, out)


def histogram(title: str, found: Mapping) -> str:
  """Where the scores of both labels lie: a `<figure>`.

  Args:
    title: of the figure.
    found: as `ranking_metrics.score_histogram` gives it, not empty.
  """
  edges = found['edges']
  heights = {}
  for name in ('negative', 'positive'):
    total = sum(found[name])
    heights[name] = [w / total if total else 0.0 for w in found[name]]
  top = max(max(h) for h in heights.values()) * 1.08 or 1.0
  at_x = _scale(edges[0], edges[-1], svg.LEFT, _RIGHT)
  at_y = _scale(0, top, _BOTTOM, svg.TOP)
  ticks, labels = _probability_ticks(edges[0], edges[-1], at_x)
  out = svg.axes(ticks, svg.ticks(0, top, 4), at_x, at_y, 'predicted', labels)
  for name, kind in (('negative', 'valid'), ('positive', 'test')):
    steps = ''.join(
      f'V{at_y(h):.1f}H{at_x(x):.1f}'
      for h, x in zip(heights[name], edges[1:], strict=True)
    )
    path = f'M{at_x(edges[0]):.1f} {_BOTTOM}{steps}V{_BOTTOM}'
    out += f'<path class="area {kind}" d="{path}Z"/>'
    out += f'<path class="outline {kind}" d="{path}"/>'
  middles, texts = [], []
  for i, (a, b) in enumerate(zip(edges, edges[1:], strict=False)):
    middles.append((at_x(a) + at_x(b)) / 2)
    texts.append(
      f'{_share(_sigmoid(a), 3)} to {_share(_sigmoid(b), 3)}:'
      f' {found["positive"][i]:,.0f} positive,'
      f' {found["negative"][i]:,.0f} negative'
    )
  out += _strips(middles, texts)
  keys = (
    f'<span class="key test"><i></i>{sum(found["positive"]):,.0f} positive'
    '</span>'
    f'<span class="key valid"><i></i>{sum(found["negative"]):,.0f} negative'
    '</span>'
  )
  return _figure(title, keys, out)


def _figure(title: str, keys: str, drawn: str) -> str:
  title = html.escape(title)
  return (
    f'<figure><figcaption><b>{title}</b>{keys}</figcaption><svg class="chart"'
    f' viewBox="0 0 {svg.WIDTH} {svg.HEIGHT}" role="img" aria-label="{title}">'
    f'{drawn}</svg></figure>'
  )


def _scale(low: float, high: float, start: float, end: float):
  """Values low .. high -> places start .. end."""
  return lambda v: start + (v - low) / (high - low) * (end - start)


def _probability_ticks(low: float, high: float, at_x):
  """(logits, texts) of round probabilities that fit between two logits."""
  found = []
  for p in _TICKS:
    logit = math.log(p / (1 - p))
    near = any(abs(at_x(logit) - at_x(x)) < _TICK_ROOM for x, _ in found)
    if low <= logit <= high and not near:
      found.append((logit, _share(p)))
  if not found:
    middle = (low + high) / 2
    found = [(middle, _share(_sigmoid(middle)))]
  return zip(*sorted(found), strict=True)


def _strips(xs: Sequence[float], texts: Sequence[str]) -> str:
  """Vertical strips that show a text under the pointer."""
  edges = [svg.LEFT, *((a + b) / 2 for a, b in zip(xs, xs[1:], strict=False))]
  edges.append(_RIGHT)
  out = ''
  for x, left, right, text in zip(xs, edges, edges[1:], texts, strict=False):
    text = html.escape(text)
    out += (
      f'<g class="band"><title>{text}</title><rect x="{left:.1f}" y="0"'
      f' width="{max(right - left, 0):.1f}" height="{_BOTTOM}"/>'
      f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{svg.TOP}" y2="{_BOTTOM}"/>'
      f'<text x="{_RIGHT}" y="14" text-anchor="end">{text}</text></g>'
    )
  return out


def _share(p: float, exact: int = 2) -> str:
  """A probability in percent, to `exact` digits of what is left to 0 or 1."""
  distance = 100 * min(p, 1 - p)
  if distance <= 0:
    return '100%' if p > 0.5 else '0%'
  digits = min(max(0, exact - 1 - math.floor(math.log10(distance) + 1e-9)), 8)
  text = f'{100 * p:.{digits}f}'
  return f'{text.rstrip("0").rstrip(".") if "." in text else text}%'


def _sigmoid(x: float) -> float:
  small = math.exp(-min(abs(x), 745.0))
  return (1.0 if x >= 0 else small) / (1.0 + small)
