"""Charts as SVG: no script, readable in light and in dark.

A `Chart` is data: two axes, what is drawn between them, and the text for a
place under the pointer. `draw_plot` returns the inside of an `<svg>`, for pages
that have the style of templates/charts.css.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from genrec_jax.report.axes import Axis

COLORS = ('blue', 'orange', 'green', 'purple')  # and 'muted', 'ink'
_DOT_ROOM = 8  # pixels: points closer together than that, mostly, have no dots


@dataclasses.dataclass(frozen=True)
class Series:
  """A curve, an area or a line that others are compared with.

  Attributes:
    name: in the legend; '' for none.
    points: (x, y) in the order of x. A y that is not finite breaks a curve.
    color: one of COLORS, 'muted' or 'ink'.
    shape: 'curve', 'dashes' for a curve that must not hide another, 'area' for
      one filled down to its ends, 'reference' for a thin dashed line, whose
      infinite ends lie on the frame, 'dots' for points alone.
    band: (x, low, high), an area behind the curve, such as its interval.
    whiskers: draws `band` as a vertical line at each x.
  """

  name: str
  points: Sequence[tuple[float, float]]
  color: str
  shape: str = 'curve'
  band: Sequence[tuple[float, float, float]] = ()
  whiskers: bool = False


def reference_level(name: str, y: float, color: str = 'muted') -> Series:
  """Returns a horizontal line from side to side."""
  points = [(-math.inf, y), (math.inf, y)]
  return Series(name, points, color, 'reference')


def reference_mark(name: str, x: float, color: str = 'ink') -> Series:
  """Returns a vertical line from bottom to top."""
  points = [(x, -math.inf), (x, math.inf)]
  return Series(name, points, color, 'reference')


def scatter(
  name: str, points: Iterable[tuple[float, float]], color: str
) -> Series:
  """Returns dots that no line joins, in any order."""
  return Series(name, [*points], color, 'dots')


@dataclasses.dataclass(frozen=True)
class Readout:
  """The text that a chart shows while the pointer is at some x.

  Attributes:
    x: the place.
    text: the text.
    dots: (x, y, color) of points that are marked meanwhile.
  """

  x: float
  text: str
  dots: Sequence[tuple[float, float, str]] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
  """What one chart shows.

  Attributes:
    title: its heading.
    x: the horizontal axis.
    y: the vertical axis.
    series: what is drawn, the last one on top.
    readouts: texts for the pointer, in the order of x.
    warning: shown beside the legend.
  """

  title: str
  x: Axis
  y: Axis
  series: Sequence[Series]
  readouts: Sequence[Readout] = ()
  warning: str = ''

  @property
  def legend(self) -> list[Series]:
    """The series with a name, references last; none of a single one."""
    if len(self.series) < 2:
      return []  # the title says it
    named = [s for s in self.series if s.name]
    return sorted(named, key=lambda s: s.shape == 'reference')


@dataclasses.dataclass(frozen=True)
class Frame:
  """A drawing's size in pixels, and the margins around its plot."""

  width: int = 440
  height: int = 240
  left: int = 52
  right: int = 14
  top: int = 24
  bottom: int = 38

  @property
  def end(self) -> int:
    """The right side of the plot."""
    return self.width - self.right

  @property
  def base(self) -> int:
    """The lower side of the plot."""
    return self.height - self.bottom


def draw_plot(chart: Chart, frame: Frame | None = None) -> Markup:
  """Returns axes, series and readouts: the inside of an `<svg>`."""
  frame = frame or Frame()

  def to_pixels(x: float, y: float) -> tuple[float, float]:
    across, up = chart.x.place(x), chart.y.place(y)
    return (
      frame.left + across * (frame.end - frame.left),
      frame.base - up * (frame.base - frame.top),
    )

  drawn = [*_draw_axes(chart, frame, to_pixels)]
  for series in chart.series:  # first: a band must not hide another's curve
    drawn += _draw_band(series, to_pixels)
  for series in chart.series:
    drawn += _draw_points(series, to_pixels)
  return Markup('').join([*drawn, *_draw_readouts(chart, frame, to_pixels)])


TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
PATH = Markup('<path class="{} {}" d="{}"/>')
_DOT = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
_READOUT = Markup(
  '<g class="readout"><title>{text}</title><rect x="{left:.1f}" y="0"'
  ' width="{width:.1f}" height="{base}"/><path d="M{x:.1f} {top}V{base}"/>'
  '{dots}<text x="{end}" y="14" text-anchor="end">{text}</text></g>'
)


def _draw_axes(chart: Chart, frame: Frame, at) -> Iterable[Markup]:
  for value, label in chart.y.ticks:
    _, y = at(0, value)
    yield PATH.format('grid', '', f'M{frame.left} {y:.1f}H{frame.end}')
    yield TEXT.format(frame.left - 7, y + 4, 'end', label)
  line = f'M{frame.left} {frame.base}H{frame.end}'
  for value, label in chart.x.ticks:
    x, _ = at(value, 0)
    line += f'M{x:.1f} {frame.base}v4'
    yield TEXT.format(x, frame.base + 17, 'middle', label)
  marks = (f'M{at(v, 0)[0]:.1f} {frame.base}v-5' for v in chart.x.minor)
  yield PATH.format('axis', '', line)
  yield PATH.format('axis', 'minor', ''.join(marks))
  middle = (frame.left + frame.end) / 2
  yield TEXT.format(middle, frame.height - 4, 'middle', chart.x.name)


def _draw_band(series: Series, at) -> Iterable[Markup]:
  if not series.band:
    return
  lows = [at(x, low) for x, low, _ in series.band]
  highs = [at(x, high) for x, _, high in series.band]
  if series.whiskers:
    lines = map(_trace_path, zip(lows, highs, strict=True))
    yield PATH.format('whisker', series.color, ''.join(lines))
  else:
    yield PATH.format(
      'band', series.color, _trace_path(lows + highs[::-1]) + 'Z'
    )


def _draw_points(series: Series, at) -> Iterable[Markup]:
  def is_drawn(point: tuple[float, float]) -> bool:
    return series.shape == 'reference' or math.isfinite(point[1])

  runs = [
    [at(*point) for point in run]
    for drawn, run in itertools.groupby(series.points, is_drawn)
    if drawn
  ]
  if not runs:
    return
  if series.shape == 'dots':
    dots = (_trace_path([place]) for run in runs for place in run)
    yield PATH.format('dots', series.color, ''.join(dots))
    return
  if series.shape == 'area':
    yield PATH.format('band', series.color, f'{_trace_path(runs[0])}Z')
  yield PATH.format(series.shape, series.color, ''.join(map(_trace_path, runs)))
  places = [place for run in runs for place in run]
  gaps = sorted(b - a for (a, _), (b, _) in itertools.pairwise(places))
  apart = not gaps or gaps[len(gaps) // 2] >= _DOT_ROOM or series.whiskers
  if series.shape in ('curve', 'dashes') and apart:
    for place in places:
      yield _DOT.format(series.color, *place, 3)


def _trace_path(places: Iterable[tuple[float, float]]) -> str:
  """Returns the path through places; a point alone is a dot by its cap."""
  texts = [f'{x:.1f} {y:.1f}' for x, y in places]
  return 'M' + 'L'.join(texts) + 'h0' * (len(texts) == 1)


def _draw_readouts(chart: Chart, frame: Frame, at) -> Iterable[Markup]:
  """Strips around the readouts, each up to the middle between two."""
  xs = [at(readout.x, 0)[0] for readout in chart.readouts]
  middles = [(a + b) / 2 for a, b in itertools.pairwise(xs)]
  edges = itertools.pairwise([frame.left, *middles, frame.end])
  for readout, x, (left, right) in zip(chart.readouts, xs, edges, strict=False):
    dots = (_DOT.format(color, *at(*p), 4) for *p, color in readout.dots)
    yield _READOUT.format(
      text=readout.text,
      x=x,
      left=left,
      width=max(right - left, 0.0),
      top=frame.top,
      base=frame.base,
      end=frame.end,
      dots=Markup('').join(dots),
    )
