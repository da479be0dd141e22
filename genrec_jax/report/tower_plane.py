"""A picture of features as points, colored by tower, as an SVG file."""

import colorsys
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from genrec_jax.report import charts

SIDE, MARGIN, TOP, LINE = 560, 40, 52, 20
_LONGEST = 78  # letters of a line of the legend
_STYLE = pathlib.Path(charts.__file__).with_name('templates') / 'charts.css'
_FILE = Markup(
  '<svg xmlns="http://www.w3.org/2000/svg" class="chart file" width="{width}"'
  ' height="{height}" viewBox="0 0 {width} {height}"><style>{style}</style>'
  '<rect class="page" width="{width}" height="{height}" rx="8"/>'
  '<text class="title" x="{x}" y="24">{title}</text>{drawn}</svg>\n'
)
_POINT = Markup(
  '<g><title>{name}, tower {tower}</title>'
  '<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{color}"/>'
  '<text x="{x:.1f}" y="{number:.1f}" text-anchor="middle" style="fill: #fff">'
  '{tower}</text><text x="{side:.1f}" y="{text:.1f}" text-anchor="{anchor}">'
  '{name}</text></g>'
)
_KEY = Markup(
  '<circle cx="{x}" cy="{y}" r="9" fill="{color}"/><text x="{x}" y="{text}"'
  ' text-anchor="middle" style="fill: #fff">{tower}</text>'
  '<text x="{after}" y="{text}">{names}</text>'
)


def draw_plane(
  points: Mapping[str, Sequence[float]],
  towers: Sequence[Sequence[str]],
  title: str,
) -> str:
  """Returns an SVG document.

  >>> draw_plane({'a': (0, 0), 'b': (1, 0)}, [['a'], ['b']], 'Towers')[:38]
  '<svg xmlns="http://www.w3.org/2000/svg'

  Args:
    points: feature -> its place, (x, y).
    towers: the names of the features of each tower.
    title: a line above.
  """
  places = np.array([points[name] for name in points], np.float64)
  low, high = places.min(axis=0), places.max(axis=0)
  # One scale for both sides: distances are what the picture shows.
  span = max(float((high - low).max()), 1e-9)
  middle = (low + high) / 2
  room = SIDE - 2 * MARGIN
  drawn = []
  for number, tower in enumerate(towers):
    for name in tower:
      x, y = 0.5 + (np.asarray(points[name]) - middle) / span
      x, y = MARGIN + x * room, TOP + (1 - y) * room
      left = x > SIDE / 2  # a name must not leave the page
      drawn.append(
        _POINT.format(
          name=name,
          tower=number,
          color=pick_tower_color(number, len(towers)),
          x=x,
          y=y,
          number=y + 4,
          text=y + 4,
          side=x - 13 if left else x + 13,
          anchor='end' if left else 'start',
        )
      )
  below = TOP + room + 2 * LINE
  for number, tower in enumerate(towers):
    names = ', '.join(tower)
    if len(names) > _LONGEST:
      names = f'{names[: _LONGEST - 3]}...'
    y = below + number * LINE
    drawn.append(
      _KEY.format(
        x=MARGIN,
        y=y,
        text=y + 4,
        after=MARGIN + 16,
        tower=number,
        color=pick_tower_color(number, len(towers)),
        names=names,
      )
    )
  return str(
    _FILE.format(
      width=SIDE,
      height=below + len(towers) * LINE,
      style=Markup(_STYLE.read_text(encoding='utf-8')),
      x=MARGIN - 9,
      title=title,
      drawn=Markup('').join(drawn),
    )
  )


def pick_tower_color(number: int, towers: int) -> str:
  """Returns a color for a tower, dark enough for a white number.

  >>> pick_tower_color(0, 4)
  '#3658b0'
  """
  hue = (0.62 + number / max(1, towers)) % 1
  rgb = colorsys.hls_to_rgb(hue, 0.45, 0.53)
  return '#' + ''.join(f'{round(255 * x):02x}' for x in rgb)
