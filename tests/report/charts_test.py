"""Tests of charts as files, as benchmarks draw them."""

import xml.etree.ElementTree as ET

import pytest

from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

SVG = '{http://www.w3.org/2000/svg}'


def draw(*series, title='Title', names=('x', '')):
  x, y = linear_axis(0, 2, names[0]), linear_axis(0, 1, names[1])
  chart = charts.Chart(title, x, y, series)
  return ET.fromstring(chart_files.draw_file([chart]))


def paths(root, kind):
  drawn = [p for p in root.iter(f'{SVG}path') if p.get('class') == kind]
  return [p.get('d') for p in drawn if 'h15' not in p.get('d')]  # no legend


def test_markup_in_a_name_is_escaped():
  level = charts.reference_level('<d>', 0.5)
  curve = charts.Series('b&c', [(1.0, 0.5)], 'blue')
  root = draw(level, curve, title='<a>', names=('<script>', ''))
  texts = [t.text for t in root.iter(f'{SVG}text')]
  assert {'<a>', 'b&c', '<d>', '<script>'} <= set(texts)


def test_a_range_lies_between_its_bounds_from_side_to_side():
  curve = charts.Series('a', [(0, 1.0), (2, 0.5)], 'blue')
  root = draw(chart_files.shaded_range('b', 0.25, 0.5), curve)
  (band,) = paths(root, 'band muted')
  places = [tuple(map(float, p.split())) for p in band[1:-1].split('L')]
  plot = chart_files.PANEL
  height = plot.base - plot.top
  low, high = plot.base - 0.25 * height, plot.base - 0.5 * height
  xs, ys = zip(*places, strict=True)
  assert xs == (plot.left, plot.end, plot.end, plot.left)
  assert ys == pytest.approx((low, low, high, high))


def test_a_mark_goes_from_bottom_to_top():
  curve = charts.Series('a', [(0, 1.0), (2, 0.5)], 'blue')
  root = draw(charts.reference_mark('here', 1), curve)
  (line,) = paths(root, 'reference ink')
  assert line == 'M253.0 288.0L253.0 58.0'


def test_a_long_legend_takes_another_row_and_moves_the_plot():
  names = ['a name of some letters'] * 4
  few, many = (
    draw(*(charts.Series(name, [(0, 1)], 'blue') for name in names[:count]))
    for count in (2, 4)
  )
  assert int(many.get('height')) == int(few.get('height')) + 17
  heights = {t.get('y') for t in many.iter(f'{SVG}text') if t.text == names[0]}
  assert heights == {'44.0', '61.0'}


def test_whiskers_and_bands_show_the_same_interval():
  band = [(0, 0.0, 0.5), (1, 0.5, 1.0)]
  points = [(0, 0.2), (1, 0.7)]
  area = charts.Series('', points, 'blue', band=band)
  (drawn,) = paths(draw(area), 'band blue')
  assert drawn.count('L') == 3
  lines = charts.Series('', points, 'blue', band=band, whiskers=True)
  (drawn,) = paths(draw(lines), 'whisker blue')
  assert drawn.count('M') == drawn.count('L') == 2
