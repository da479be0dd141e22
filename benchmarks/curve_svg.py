"""Curves over a logarithmic axis as an SVG file, for light and dark pages."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax.train import report_svg

_WIDTH, _HEIGHT = 470, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 58, 42
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#646b78}
.title{font-size:14px;font-weight:600;fill:#1a1d23}
.grid{stroke:#e4e5e9}.axis{stroke:#646b78;fill:none}
.page{fill:#fff}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.ref{stroke-width:1.3;stroke-dasharray:5 4;opacity:.8}
.mark{stroke:#646b78;stroke-width:1.3;stroke-dasharray:2 3}
.band{opacity:.15;stroke:none}.dot{stroke-width:6;stroke-linecap:round}
.f0{fill:#2563d9}.f1{fill:#d9650b}.f2{fill:#0f8f7d}.f3{fill:#8461cf}
.c0{stroke:#2563d9}.c1{stroke:#d9650b}.c2{stroke:#0f8f7d}.c3{stroke:#8461cf}
@media(prefers-color-scheme:dark){text{fill:#9ba3b0}.title{fill:#e9ebef}
.page{fill:#1a1d23}.grid{stroke:#2d323b}.axis,.mark{stroke:#9ba3b0}
.f0{fill:#74abff}.f1{fill:#f7a353}.f2{fill:#3fcfb6}.f3{fill:#b095f5}
.c0{stroke:#74abff}.c1{stroke:#f7a353}.c2{stroke:#3fcfb6}.c3{stroke:#b095f5}}
"""
_COLOURS = 4


def page(panels: Sequence[str]) -> str:
  """Panels side by side as one SVG document."""
  width = _WIDTH * len(panels)
  body = ''.join(
    f'<g transform="translate({i * _WIDTH} 0)">{panel}</g>'
    for i, panel in enumerate(panels)
  )
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}"'
    f' width="{width}" height="{_HEIGHT}"><style>{_STYLE}</style>'
    f'<rect class="page" width="{width}" height="{_HEIGHT}" rx="8"/>'
    f'{body}</svg>\n'
  )


def panel(
  title: str,
  x_name: str,
  curves: Mapping[str, Sequence[tuple[float, float]]],
  levels: Mapping[str, float],
  mark: tuple[str, float] | None = None,
  bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> str:
  """One chart.

  Args:
    title: its heading.
    x_name: what the logarithmic axis counts.
    curves: name -> (x, y) with x > 0, in the order of x.
    levels: name of a curve -> height of its dashed line.
    mark: text and place of a vertical dashed line.
    bands: name of a curve -> (x, low, high), an area behind it; its points are
      then drawn as dots.
  """
  bands = bands or {}
  points = [p for curve in curves.values() for p in curve]
  xs = [x for x, _ in points] + ([mark[1]] if mark else [])
  ys = [y for _, y in points] + list(levels.values())
  ys += [high for band in bands.values() for _, _, high in band]
  low, high = math.log10(min(xs)), math.log10(max(xs)) + 0.05
  low, high = (low - 0.5, high) if high - low < 0.2 else (low, high)
  top = max(ys) * 1.05 or 1.0

  def at(x, y):
    across = (math.log10(x) - low) / (high - low)
    return (
      round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1),
      round(_HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM), 1),
    )

  out = f'<text class="title" x="{_LEFT}" y="22">{html.escape(title)}</text>'
  out += _axes(x_name, low, high, top, at)
  right = _WIDTH - _RIGHT
  left = _LEFT
  for i, (name, curve) in enumerate(curves.items()):
    colour = f'c{i % _COLOURS}'
    path = _path(at(*p) for p in curve)
    if name in bands:
      edge = [at(x, high) for x, _, high in bands[name]]
      edge += [at(x, max(low, 0.0)) for x, low, _ in reversed(bands[name])]
      out += f'<path class="band f{i % _COLOURS}" d="{_path(edge)}Z"/>'
      dots = ''.join(f'M{x} {y}h0' for x, y in (at(*p) for p in curve))
      out += f'<path class="dot {colour}" d="{dots}"/>'
    out += f'<path class="curve {colour}" d="{path}"/>'
    out += f'<path class="curve {colour}" d="M{left} 40h14"/>'
    out += f'<text x="{left + 19}" y="44">{html.escape(name)}</text>'
    left += 34 + 7 * len(name)
    if name in levels:
      y = at(curve[0][0], levels[name])[1]
      out += f'<path class="ref {colour}" d="M{_LEFT} {y}H{right}"/>'
  if mark:
    x = at(mark[1], 0)[0]
    bottom = _HEIGHT - _BOTTOM
    out += f'<path class="mark" d="M{x} {_TOP}V{bottom}"/>'
    out += (
      f'<text transform="translate({x - 5} {bottom - 8}) rotate(-90)">'
      f'{html.escape(mark[0])}</text>'
    )
  return out


def _path(places: Iterable[tuple[float, float]]) -> str:
  return 'M' + 'L'.join(f'{x} {y}' for x, y in places)


def _axes(x_name: str, low: float, high: float, top: float, at) -> str:
  out, right, bottom = '', _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
  heights = report_svg.ticks(0.0, top, 5)
  for y, label in zip(heights, report_svg.tick_labels(heights), strict=True):
    place = at(10**low, y)[1]
    out += f'<path class="grid" d="M{_LEFT} {place}H{right}"/>'
    out += f'<text x="{_LEFT - 7}" y="{place + 4}" text-anchor="end">{label}'
    out += '</text>'
  out += f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
  for power in range(math.floor(low), math.ceil(high) + 1):
    # Over more than three decades there is room for powers of ten alone.
    for factor in (1, 2, 5) if high - low < 3 else (1,):
      x = factor * 10.0**power
      if not low <= math.log10(x) <= high:
        continue
      place = at(x, 0)[0]
      out += f'<path class="axis" d="M{place} {bottom}v4"/>'
      out += f'<text x="{place}" y="{bottom + 17}" text-anchor="middle">'
      out += f'{x:,.7g}</text>'
  middle = (_LEFT + right) / 2
  return out + (
    f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">'
    f'{html.escape(x_name)}</text>'
  )
