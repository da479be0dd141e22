"""Charts as self-contained SVG files, such as those of docs/.

>>> from genrec_jax.report.axes import linear_axis
>>> line = Series('loss', [(1, 0.5), (2, 0.25)], 'blue')
>>> chart = Chart('Loss', linear_axis(0, 2, 'epoch'), linear_axis(0, 1), [line])
>>> draw_file([chart])[:38]
'<svg xmlns="http://www.w3.org/2000/svg'
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from genrec_jax.report import charts as charts_lib
from genrec_jax.report.axes import Axis
from genrec_jax.report.charts import (
  COLORS,
  PATH,
  TEXT,
  Chart,
  Frame,
  Series,
  draw_plot,
)

PANEL = Frame(470, 330, 52, 16, 58, 42)  # one of `draw_file`
_STYLE = pathlib.Path(charts_lib.__file__).with_name('templates') / 'charts.css'
_LETTER = 6.6  # width of one in a legend, about
_FILE = Markup(
  '<svg xmlns="http://www.w3.org/2000/svg" class="chart file" width="{width}"'
  ' height="{height}" viewBox="0 0 {width} {height}"><style>{style}</style>'
  '<rect class="page" width="{width}" height="{height}" rx="8"/>{panels}'
  '</svg>\n'
)
_PANEL = Markup(
  '<g transform="translate({} 0)"><text class="title" x="{}" y="22">{}</text>'
)


def draw_file(charts: Sequence[Chart], panel: Frame = PANEL) -> str:
  """Returns charts side by side as one SVG document, with their legends.

  Args:
    charts: from left to right.
    panel: the size of each.
  """
  legends = [_place_legend(chart.legend, panel) for chart in charts]
  # A legend of several rows moves all plots down, so that they stay in line.
  more = max((y for legend in legends for _, _, y in legend), default=0)
  frame = dataclasses.replace(
    panel, height=panel.height + more, top=panel.top + more
  )
  panels = [
    _PANEL.format(i * frame.width, frame.left, chart.title)
    + _draw_legend(legend)
    + draw_plot(chart, frame)
    + Markup('</g>')
    for i, (chart, legend) in enumerate(zip(charts, legends, strict=True))
  ]
  size = {'width': frame.width * len(charts), 'height': frame.height}
  style = Markup(_STYLE.read_text(encoding='utf-8'))
  panels = Markup('').join(panels)
  return str(_FILE.format(style=style, panels=panels, **size))


def log_axis(values: Iterable[float], name: str = '') -> Axis:
  """Returns a logarithmic axis around positive values.

  >>> [label for _, label in log_axis([1, 30]).ticks]
  ['1', '2', '5', '10', '20']
  """
  values = list(values)
  low, high = math.log10(min(values)), math.log10(max(values)) + 0.05
  low -= 0.5 * (high - low < 0.2)
  # Over more than three decades there is room for powers of ten alone.
  factors = (1, 2, 5) if high - low < 3 else (1,)
  powers = range(math.floor(low), math.ceil(high) + 1)
  marks = (factor * 10.0**power for power in powers for factor in factors)
  ticks = [(x, f'{x:,.7g}') for x in marks if low <= math.log10(x) <= high]
  return Axis(10**low, 10**high, ticks, name, logarithmic=True)


def pick_color(index: int) -> str:
  """Returns the color of the curve with this number, from 0."""
  return COLORS[index % len(COLORS)]


def shaded_range(name: str, low: float, high: float) -> Series:
  """Returns an area between two heights, from side to side."""
  band = [(-math.inf, low, high), (math.inf, low, high)]
  return Series(name, [], 'muted', 'range', band)


def _place_legend(
  legend: Sequence[Series], panel: Frame
) -> list[tuple[Series, float, float]]:
  """Returns (series, x, y), in rows as wide as a panel."""
  places, x, y = [], panel.left, 0
  for series in legend:
    width = 36 + _LETTER * len(series.name)
    if x > panel.left and x + width > panel.width:
      x, y = panel.left, y + 17
    places.append((series, x, y))
    x += width
  return places


def _draw_legend(places: Iterable[tuple[Series, float, float]]) -> Markup:
  drawn = []
  for series, x, y in places:
    shape, line = series.shape, f'M{x:.1f} {y + 40}h15'
    if shape in ('range', 'area'):
      shape, line = 'band', f'M{x:.1f} {y + 35}h15v10h-15Z'
    elif shape == 'dots':
      line = f'M{x + 8:.1f} {y + 40}h0'
    drawn.append(PATH.format(shape, series.color, line))
    drawn.append(TEXT.format(x + 20, y + 44, 'start', series.name))
  return Markup('').join(drawn)
