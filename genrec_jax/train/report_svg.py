"""Line charts as inline SVG: no script, readable in light and in dark.

Colours are CSS variables of the page (`--train`, `--valid`, ...); a point under
the pointer shows its values at once by CSS, and as a title to screen readers.
"""

import dataclasses
import html
import math
import numbers
from collections.abc import Sequence

WIDTH, HEIGHT = 440, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 24, 38
_MOST_POINTS = 300  # drawn of one series; further ones are averaged
_MOST_BANDS = 60  # of a dense series that answer to the pointer


@dataclasses.dataclass(frozen=True)
class Series:
  """A curve; `kind` is its colour: train, valid, test, perf, other or ref.

  Attributes:
    points: (x, y) in the order of x; a y that is not finite breaks the curve. A
      series of kind 'ref' is one value, drawn as a dashed horizontal line.
  """

  name: str
  kind: str
  points: Sequence[tuple[float, float]]


def chart(
  title: str,
  series: Sequence[Series],
  *,
  best: float | None = None,
  from_zero: bool = False,
  x_name: str = 'step',
) -> str:
  """Returns a `<figure>` with a legend and the curves.

  Args:
    title: heading of the figure.
    series: the curves and reference lines.
    best: position of a vertical mark, the step that was chosen.
    from_zero: the vertical axis starts at zero, so that heights compare.
    x_name: what x counts.
  """
  thin = [dataclasses.replace(s, points=_thin(s.points)) for s in series]
  curves = [s for s in thin if s.kind != 'ref']
  finite = [p for s in thin for p in s.points if math.isfinite(p[1])]
  caption = f'<figcaption><b>{html.escape(title)}</b>{_keys(series, best)}'
  bad = sum(not math.isfinite(y) for s in series for _, y in s.points)
  if bad:
    caption += f'<span class="key warn">{bad:,} not finite</span>'
  caption += '</figcaption>'
  xs = [x for s in curves for x, _ in s.points]
  if not finite or not xs:
    text = '<p class="muted">There is no finite value to draw.</p>'
    return f'<figure>{caption}{text}</figure>'

  x_low, x_high = min(xs), max(xs)
  x_low = 0 if 0 <= x_low < x_high / 2 else x_low
  if x_low == x_high:
    x_low, x_high = x_low - 1, x_high + 1
  y_low, y_high = min(y for _, y in finite), max(y for _, y in finite)
  y_low = min(y_low, 0) if from_zero else y_low
  margin = (y_high - y_low) / 20 or abs(y_low) / 10 or 1.0
  y_low = y_low if from_zero and y_low == 0 else y_low - margin
  y_high += margin

  def at_x(x):
    share = (x - x_low) / (x_high - x_low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)

  def at_y(y):
    share = (y - y_low) / (y_high - y_low)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

  x_ticks, y_ticks = ticks(x_low, x_high, 5), ticks(y_low, y_high, 5)
  out = axes(x_ticks, y_ticks, at_x, at_y, x_name)
  if best is not None and x_low <= best <= x_high:
    x = f'{at_x(best):.1f}'
    bottom = HEIGHT - BOTTOM
    out += f'<line class="best" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
  for s in thin:
    if s.kind == 'ref':
      y = s.points[0][1]
      if math.isfinite(y):
        out += (
          f'<line class="ref" x1="{LEFT}" x2="{WIDTH - RIGHT}"'
          f' y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>'
        )
    else:
      out += _curve(s, at_x, at_y)
  out += _bands(curves, at_x, at_y, x_name)
  return (
    f'<figure>{caption}<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}"'
    f' role="img" aria-label="{html.escape(title)}">{out}</svg></figure>'
  )


def ticks(low: float, high: float, most: int) -> list[float]:
  """Round numbers from low to high, about `most` of them.

  >>> ticks(0.0, 0.31, 5)
  [0.0, 0.1, 0.2, 0.3]
  """
  raw = (high - low) / most
  power = 10.0 ** math.floor(math.log10(raw))
  step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  slack = 1e-6  # a bound that is a tick already, but for rounding
  first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
  digits = 2 - math.floor(math.log10(step))
  return [round(i * step, digits) for i in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
  """Labels of ticks, with as many decimals as tell them apart.

  >>> tick_labels([0, 0.05, 0.1]), tick_labels([0, 25_000, 50_000])
  (['0', '0.05', '0.10'], ['0', '25k', '50k'])
  """
  largest = max(abs(v) for v in values)
  if largest < 1e-3:
    return [f'{v:.4g}' for v in values]
  scale, suffix = next(
    ((s, t) for s, t in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k'))
     if largest >= 10 * s), (1.0, '')
  )  # fmt: skip
  for digits in range(10):
    if all(abs(round(v / scale, digits) * scale - v) <= 1e-9 * largest
           for v in values):  # fmt: skip
      break
  return [f'{v / scale:,.{digits}f}{suffix}' if v else '0' for v in values]


def axes(x_ticks, y_ticks, at_x, at_y, x_name: str, x_labels=None) -> str:
  """Lines, ticks and labels of both axes.

  Args:
    x_ticks: values on the horizontal axis.
    y_ticks: values on the vertical one.
    at_x: value -> place.
    at_y: value -> place.
    x_name: what stands below.
    x_labels: texts of `x_ticks`, None for their numbers.
  """
  out = ''
  right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
  for y, label in zip(y_ticks, tick_labels(y_ticks), strict=True):
    out += (
      f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at_y(y):.1f}"'
      f' y2="{at_y(y):.1f}"/><text x="{LEFT - 7}" y="{at_y(y) + 4:.1f}"'
      f' text-anchor="end">{label}</text>'
    )
  out += f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>'
  for x, label in zip(x_ticks, x_labels or tick_labels(x_ticks), strict=True):
    out += (
      f'<path class="axis" d="M{at_x(x):.1f} {bottom}v4"/>'
      f'<text x="{at_x(x):.1f}" y="{bottom + 17}" text-anchor="middle">{label}'
      '</text>'
    )
  middle = (LEFT + right) / 2
  return out + (
    f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">'
    f'{html.escape(x_name)}</text>'
  )


def number(value: object) -> str:
  """A number as a person reads it: four digits, or all of an integer."""
  if value is None:
    return '–'
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    return str(value)
  whole = isinstance(value, numbers.Integral)
  if whole or abs(value) >= 1000 and math.isfinite(value):
    return f'{value:,.0f}'
  if math.isnan(value):
    return 'NaN'
  return f'{value:.4g}'


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
  """At most _MOST_POINTS points; each is the mean of its neighbourhood."""
  if len(points) <= _MOST_POINTS:
    return list(points)
  thin = []
  for i in range(_MOST_POINTS):
    begin = i * len(points) // _MOST_POINTS
    part = points[begin : (i + 1) * len(points) // _MOST_POINTS]
    finite = [p for p in part if math.isfinite(p[1])] or [
      (part[0][0], math.nan)
    ]
    x = part[-1][0] if i == _MOST_POINTS - 1 else finite[len(finite) // 2][0]
    thin.append((x, sum(y for _, y in finite) / len(finite)))
  return thin


def _keys(series: Sequence[Series], best: float | None) -> str:
  if best is None and len(series) == 1:
    return ''  # the title says it
  out = ''
  for s in series:
    dash = ' class="dash"' if s.kind == 'ref' else ''
    name = html.escape(s.name)
    out += f'<span class="key {s.kind}"><i{dash}></i>{name}</span>'
  if best is not None:
    out += (
      '<span class="key best"><i class="dash"></i>best step'
      f' {number(best)}</span>'
    )
  return out


def _curve(s: Series, at_x, at_y) -> str:
  path, pen = '', 'M'
  for x, y in s.points:
    if math.isfinite(y):
      # A round cap makes a dot of a point between two gaps.
      dot = 'h0' if pen == 'M' else ''
      path += f'{pen}{at_x(x):.1f} {at_y(y):.1f}{dot}'
      pen = 'L'
    else:
      pen = 'M'
  out = f'<path class="curve {s.kind}" d="{path}"/>'
  if len(s.points) <= 30:
    for x, y in s.points:
      if math.isfinite(y):
        out += (
          f'<circle class="dot {s.kind}" cx="{at_x(x):.1f}"'
          f' cy="{at_y(y):.1f}" r="3"/>'
        )
  return out


def _bands(curves: Sequence[Series], at_x, at_y, x_name: str) -> str:
  """Vertical strips that show the values at their step under the pointer."""
  centres = set()
  for s in curves:
    n = len(s.points)
    count = min(n, _MOST_BANDS)
    # The first and the last point are among them.
    picked = {round(i * (n - 1) / max(count - 1, 1)) for i in range(count)}
    centres.update(s.points[i][0] for i in picked)
  centres = sorted(centres)
  edges = [
    -math.inf,
    *((a + b) / 2 for a, b in zip(centres, centres[1:], strict=False)),
    math.inf,
  ]
  out = ''
  for centre, low, high in zip(centres, edges, edges[1:], strict=False):
    texts, dots = [f'{x_name} {number(centre)}'], ''
    for s in curves:
      near = [p for p in s.points if low <= p[0] < high]
      if near:
        x, y = min(near, key=lambda p: abs(p[0] - centre))
        texts.append(f'{s.name} {number(y)}')
        if math.isfinite(y):
          dots += (
            f'<circle class="dot {s.kind}" cx="{at_x(x):.1f}"'
            f' cy="{at_y(y):.1f}" r="4"/>'
          )
    left = LEFT if low == -math.inf else at_x(low)
    right = WIDTH - RIGHT if high == math.inf else at_x(high)
    x, bottom = f'{at_x(centre):.1f}', HEIGHT - BOTTOM
    text = html.escape(' · '.join(texts))
    out += (
      f'<g class="band"><title>{text}</title><rect x="{left:.1f}" y="0"'
      f' width="{right - left:.1f}" height="{bottom}"/>'
      f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>{dots}'
      f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end">{text}</text></g>'
    )
  return out
