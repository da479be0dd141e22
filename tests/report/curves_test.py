"""Tests of the charts of measurements over steps."""

import math
import re

import pytest

from genrec_jax.report.charts import Frame, Series, reference_level
from genrec_jax.report.comparison import Comparison
from genrec_jax.report.curves import chart_curves, chart_steps, describe_single
from genrec_jax.report.pages import load_template
from tests.report.page_parser import parse


def draw(*args, **named):
  """The figure of a chart over steps."""
  chart = chart_steps(*args, **named)
  return load_template('chart.html.j2').render(chart=chart)


def test_a_curve_goes_from_one_side_to_the_other():
  text = draw('Loss', [Series('train', [(10, 1.0), (20, 2.0)], 'purple')])
  (curve,) = re.findall(r'class="curve purple" d="([^"]*)"', text)
  x = [float(point.split()[0]) for point in re.split('[ML]', curve)[1:]]
  assert x == [Frame().left, Frame().end]


def test_charts_break_where_a_value_is_not_finite():
  points = [(0, 1.0), (1, math.nan), (2, 3.0), (3, 4.0), (4, math.inf)]
  text = draw('Loss', [Series('train', points, 'purple')])
  page = parse(text)
  (path,) = [a['d'] for t, a in page.tags if a.get('class') == 'curve purple']
  assert path.count('M') == 2 and path.count('L') == 1
  assert '2 not finite' in page.text
  assert 'step 1 · train NaN' in page.text
  nothing = draw('Loss', [Series('train', [(0, math.nan)], 'purple')])
  assert 'no finite value' in parse(nothing).text
  assert 'no finite value' in parse(draw('Loss', [])).text


def test_a_curve_breaks_where_lines_are_missing():
  points = [(x, 1.0 * x) for x in (2, 4, 10, 12)]
  hole = {'step': 8, 'after': 4, 'missing': 2, 'unreadable': 0}
  chart = chart_steps('x', [Series('a', points, 'blue')], holes=[hole])
  assert [x for x, y in chart.series[0].points if math.isnan(y)] == [6.0]
  assert chart.warning == 'lines missing up to step 8'
  assert not any('nan' in readout.text for readout in chart.readouts)
  somewhere = {**hole, 'after': None}
  chart = chart_steps('x', [Series('a', points, 'blue')], holes=[somewhere])
  assert chart.series[0].points == points and 'missing' in chart.warning


@pytest.mark.parametrize(
  'points', [[(0, 0.0)], [(5, 2.0)], [(3, -1.0), (9, -1.0)], [(1, 1e-30)]]
)
@pytest.mark.parametrize('from_zero', [False, True])
def test_charts_of_one_value(points, from_zero):
  text = draw('x', [Series('x', points, 'green')], from_zero=from_zero)
  assert 'class="dot green"' in text
  parse(text)


def test_long_curves_are_averaged_and_keep_their_ends():
  xs = range(10_000)
  series = Series('x', [(x, float(x % 2)) for x in xs], 'purple')
  text = draw('x', [series], [reference_level('one', 1.0)], from_zero=True)
  page = parse(text)
  assert len(text) < 60_000
  assert 'step 9,999' in page.text
  (path,) = [a['d'] for t, a in page.tags if a.get('class') == 'curve purple']
  heights = {float(p.split()[1].partition('h')[0]) for p in path[1:].split('L')}
  assert max(heights) - min(heights) < 10


def test_every_evaluation_answers_to_the_pointer():
  train = [(x, 1.0) for x in range(1000)]
  valid = [(x, x / 1000) for x in range(100, 1000, 100)]
  text = parse(
    draw(
      'x', [Series('train', train, 'purple'), Series('valid', valid, 'blue')]
    )
  ).text
  for x, y in valid:
    assert f'step {x} · train 1 · valid {y:.4g}' in text


@pytest.mark.parametrize(
  'value', [math.inf, 1e308, pytest.param(10**299, id='integer')]
)
def test_values_beyond_all_others_are_not_drawn(value):
  rows = [
    {'step': step, 'train/loss': x}
    for step, x in enumerate([1.0, value, -value, 2.0], 1)
  ]
  (chart,), _ = chart_curves({}, Comparison('test', (), ()), rows)
  text = load_template('chart.html.j2').render(chart=chart)
  assert '2 not finite' in parse(text).text


def test_the_test_split_is_shown_at_the_chosen_step_alone():
  """Its curve would invite to choose by it."""
  rows = [
    {'step': s, 'valid/mrr': 0.1 * s, 'test/mrr': 0.2 * s} for s in (1, 2, 3)
  ]
  (chart,), _ = chart_curves({'best_step': 2}, Comparison('test', (), ()), rows)
  points = {s.name: s.points for s in chart.series if s.shape == 'curve'}
  assert points['valid'] == [(s, 0.1 * s) for s in (1, 2, 3)]
  assert points['test, at the best step'] == [(2, 0.4)]
  assert [label for _, label in chart.x.ticks] == ['0', '1', '2', '3']
  for row in rows:
    del row['valid/mrr']
  (chart,), _ = chart_curves({'best_step': 2}, Comparison('test', (), ()), rows)
  (curve,) = [s for s in chart.series if s.shape == 'curve']
  assert len(curve.points) == 3  # nothing was chosen


def test_what_was_measured_once_is_no_chart():
  row = {'step': 44, 'train/loss': 0.7, 'valid/ndcg@10': 0.125, 'perf/x': 1.0}
  assert chart_curves({}, Comparison('test', (), ()), [row]) == ([], [])
  assert describe_single([row]) == (
    'Measured once, at step 44: mean train loss 0.7, valid NDCG@10 0.125.'
  )
  many = {'step': 44} | {f'valid/hr@{k}': 0.1 for k in range(9)}
  assert '3 more' in describe_single([many])
  assert describe_single([row, {**row, 'step': 45}]) == ''
