"""Curves over intervals beside a published band, as panels of a `curve_svg`."""

import html
from collections.abc import Mapping, Sequence

from benchmarks.curve_svg import page
from genrec_jax.train import report_svg

__all__ = ['page', 'panel']
_WIDTH, _HEIGHT = 470, 330  # of a panel of the page
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 58, 42


def panel(
  title: str,
  x_name: str,
  curves: Mapping[str, Sequence[float]],
  band: tuple[str, float, float],
) -> str:
  """One chart, from zero. The last curve is dashed: what it hides shows.

  Args:
    title: its heading.
    x_name: what the horizontal axis counts.
    curves: name -> values at 0, 1, 2, ...; shares, told in per cent.
    band: (text, low, high), an area behind all curves.
  """
  name, low, high = band
  last = max(len(values) for values in curves.values()) - 1
  top = 1.06 * max(high, *(max(values) for values in curves.values()))
  right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

  def at(x, y):
    return (
      round(_LEFT + 10 + x / max(last, 1) * (right - _LEFT - 20), 1),
      round(bottom - y / top * (bottom - _TOP), 1),
    )

  out = f'<text class="title" x="{_LEFT}" y="22">{html.escape(title)}</text>'
  above, below = at(0, high)[1], at(0, low)[1]
  # A grey that shows on light and on dark pages.
  out += (
    f'<rect x="{_LEFT}" y="{above}" width="{right - _LEFT}" '
    f'height="{round(below - above, 1)}" fill="#848c99" opacity=".2"/>'
    f'<text x="{right - 6}" y="{round(0.7 * above + 0.3 * below)}" '
    f'text-anchor="end">{html.escape(name)}</text>'
  )
  for y in report_svg.ticks(0.0, top, 5):
    place = at(0, y)[1]
    out += f'<path class="grid" d="M{_LEFT} {place}H{right}"/>'
    out += f'<text x="{_LEFT - 7}" y="{place + 4}" text-anchor="end">'
    out += f'{100 * y:g} %</text>'
  out += f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
  for x in range(0, last + 1, 1 + last // 16):
    place = at(x, 0)[0]
    out += f'<path class="axis" d="M{place} {bottom}v4"/>'
    out += (
      f'<text x="{place}" y="{bottom + 17}" text-anchor="middle">{x}</text>'
    )
  out += f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" '
  out += f'text-anchor="middle">{html.escape(x_name)}</text>'
  left = _LEFT
  for i, (name, values) in enumerate(curves.items()):
    places = [at(*p) for p in enumerate(values)]
    path = 'M' + 'L'.join(f'{x} {y}' for x, y in places)
    dots = ''.join(f'M{x} {y}h0' for x, y in places)
    dash = ' stroke-dasharray="7 6"' if 0 < i == len(curves) - 1 else ''
    out += f'<path class="curve c{i}"{dash} d="{path}"/>'
    out += f'<path class="dot c{i}" d="{dots}"/>'
    out += f'<path class="curve c{i}" d="M{left} 40h14"/>'
    out += f'<text x="{left + 19}" y="44">{html.escape(name)}</text>'
    left += 36 + 6 * len(name)
  return out
