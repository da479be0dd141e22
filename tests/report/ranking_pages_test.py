"""The report of a ranking model, on made-up scores."""

import json
import math
import re

import numpy as np
import pytest

from genrec_jax.report import score_charts
from genrec_jax.report.charts import Frame, draw_plot
from genrec_jax.report.comparison import compare_metrics
from genrec_jax.report.pages import render_page
from genrec_jax.report.summary import format_table
from genrec_jax.tasks import ranking_metrics as rm
from tests.report.page_parser import parse
from tests.report.pages_test import parse_page

FEATURES = [f'feature {i}' for i in range(20)]


def details(labels=('label',), count=3000, shift=-1.0):
  """What `Evaluator.details` would say of plausible scores."""
  rng = np.random.default_rng(0)
  found = {'part': 'test', 'examples': count, 'labels': {}}
  for label in labels:
    x = rng.normal(shift, 2, count)
    y = rng.random(count) < 1 / (1 + np.exp(-x))
    curve = rm.calibration_curve(x, y)
    found['labels'][label] = {
      'calibration': curve,
      'calibration_error': rm.calibration_error(curve),
      'histogram': rm.score_histogram(x, y),
    }
  drops = np.sort(rng.exponential(0.03, len(FEATURES)))[::-1]
  found['importance'] = {
    'examples': 1000,
    'repeats': 3,
    'features': [
      {
        'feature': name,
        'kind': 'multi_hot',
        'auc_drop': float(drop),
        'auc_drop_std': 0.001,
        'logloss_rise': float(-drop if i == 3 else 2 * drop),
        'logloss_rise_std': 0.002,
      }
      for i, (name, drop) in enumerate(zip(FEATURES, drops, strict=True))
    ],
  }
  return found


def metrics(auc=0.8, logloss=0.4):
  return {
    'auc': auc,
    'gauc': auc - 0.1,
    'logloss': logloss,
    'ne': 2 * logloss,
    'calibration': 1.01,
  }


def fake_report(**fields):
  mean = {'auc': 0.5, 'gauc': 0.5, 'logloss': 0.5, 'ne': 1.0}
  return {
    'config': {'model': {'name': 'dcn'}, 'data': {'name': 'frappe'}},
    'metrics': {'valid': metrics(0.81), 'test': metrics()},
    'baselines': {'mean': {'test': {**mean, 'calibration': 0.97}}},
    'best_step': 30,
    'steps': 40,
    'examples_per_s': 40_000.0,
    'ranking': details(),
    **fields,
  }


def fake_curves():
  return [
    {
      'step': step,
      'train/loss': 0.5,
      'train/auc': 0.7,
      'train/lifetime_auc': 0.6,
      'valid/auc': 0.8,
      'test/auc': 0.79,
      'valid/logloss': 0.4,
      'valid/auc/click': 0.75,
      'test/auc/click': 0.74,
      'perf/examples_per_s': 40_000.0,
      'step_only': 1.0,
    }
    for step in range(10, 50, 10)
  ]


def test_a_whole_report(tmp_path):
  data = fake_report()
  page = parse_page(tmp_path, data, fake_curves())
  saved = json.loads((tmp_path / 'report.json').read_text())
  assert saved == json.loads(json.dumps(data))
  for text in (
    'DCN-V2 on frappe', 'Log loss', 'gAUC', 'Normalised entropy',
    'in 80.0% of all cases', 'log loss is 20.0% better than',
    '1.010 times', '0.3000 better than mean', '20.0% better',
    'Measured on the 3,000 test examples',
    '20 bins of about 150 examples', 'Scores by label', 'Drop in AUC',
    'Rise in log loss', '5 more features', '1,000 of them, 3 times',
    'Examples per second', 'AUC of click', 'Lifetime auc',
  ):  # fmt: skip
    assert text in page.text, text
  assert 'User' not in page.text and '<script' not in page.text
  # Parts of one measurement share a chart, also where a label follows.
  (figure,) = re.findall(
    r'<b>AUC of click.*?</figure>',
    (tmp_path / 'report.html').read_text(),
    re.DOTALL,
  )
  assert 'curve blue' in figure and 'curve orange' in figure


def test_the_table_of_a_terminal():
  text = format_table(fake_report())
  assert text == (
    '               test    mean        vs mean   valid\n'
    'auc          0.8000  0.5000  0.3000 better  0.8100\n'
    'gauc         0.7000  0.5000  0.2000 better  0.7100\n'
    'logloss      0.4000  0.5000   20.0% better  0.4000\n'
    'ne           0.8000  1.0000   20.0% better  0.8000\n'
    'calibration  1.0100  0.9700  0.0200 better  1.0100\n'
    'step 30 of 40, 40.0k examples/s'
  )


def test_labels_stand_together():
  values = {
    f'{name}{label}': value
    for label in ('', '/buy', '/click')
    for name, value in metrics().items()
  }
  c = compare_metrics({'metrics': {'test': values}})
  assert [name for name, _ in c.rows] == list(values)


def test_several_labels(tmp_path):
  page = parse_page(
    tmp_path, fake_report(ranking=details(('click', 'buy'))), fake_curves()
  )
  for text in ('Calibration of click', 'Scores by label of buy'):
    assert text in page.text


@pytest.mark.parametrize(
  'ranking',
  [
    None,
    {},
    {'labels': {}},
    {'labels': {'label': {}}},
    {'labels': {'label': {'calibration': [], 'calibration_error': math.nan}}},
    {'labels': {'label': {'histogram': {'edges': []}}}},
    {**details(), 'importance': {'features': []}},
    {k: v for k, v in details().items() if k != 'part'},
    {k: v for k, v in details().items() if k != 'labels'},
  ],
)
def test_parts_may_be_missing(tmp_path, ranking):
  parse_page(tmp_path, fake_report(ranking=ranking), fake_curves())


@pytest.mark.parametrize(
  'logits, labels',
  [
    ([0.0], [1]),
    ([-800.0, 800.0], [0, 1]),
    ([-20.0, -20.0, -20.5], [0, 0, 0]),
    ([3e38, -3e38], [1, 0]),
    ([5.0] * 40, [1, 0] * 20),
  ],
)
def test_charts_of_odd_scores(tmp_path, logits, labels):
  curve = rm.calibration_curve(logits, labels)
  parse(draw_plot(score_charts.chart_calibration('x', curve)))
  parse(
    draw_plot(
      score_charts.chart_scores('x', rm.score_histogram(logits, labels))
    )
  )


def render_importance(features):
  """The section about features, of a page without anything else in bars."""
  ranking = {'importance': {'features': features}}
  data = fake_report(baselines={}, ranking=ranking)
  page = render_page(data, compare_metrics(data), [])
  (section,) = re.findall(
    r'<h2>Feature importance.*?(?=</section>)', page, re.S
  )
  return section


def test_bars_stay_within_their_track():
  rows = [
    {'feature': 'a', 'auc_drop': 0.2, 'auc_drop_std': 0.1},
    {'feature': 'b', 'auc_drop': -0.1, 'auc_drop_std': 0.02},
    {'feature': 'c', 'auc_drop': 0.05, 'auc_drop_std': 0.1},
    {'feature': 'd', 'auc_drop': math.nan, 'logloss_rise': -0.1},
  ]
  text = render_importance(rows)
  page = parse(text)
  assert 'c' in page.text and page.text.count('−0.1000') == 2
  for style in re.findall(r'style="([^"]*)"', text):
    numbers = [float(x) for x in re.findall(r'(-?[\d.]+)%', style)]
    assert min(numbers) >= 0 and sum(numbers) <= 100.1, style


def test_bars_without_deviations_fill_their_track():
  rows = [
    {'feature': 'a', 'auc_drop': 0.2, 'auc_drop_std': None},
    {'feature': 'b', 'auc_drop': 0.1},
  ]
  text = render_importance(rows)
  widths = re.findall(r'width:([\d.]+)%', text)
  assert [float(w) for w in widths] == [100.0, 50.0]


def paths(page, kind):
  return [a['d'] for _, a in page.tags if a.get('class') == kind]


def test_the_points_of_the_calibration_curve():
  curve = [
    {'low': 0.0, 'high': 0.4, 'prediction': 0.25, 'rate': 0.5,
     'rate_low': 0.3, 'rate_high': 0.7, 'weight': 100.0},
    {'low': 0.5, 'high': 1.0, 'prediction': 0.75, 'rate': 0.75,
     'rate_low': 0.6, 'rate_high': 1.0, 'weight': 100.0},
  ]  # fmt: skip
  page = parse(draw_plot(score_charts.chart_calibration('x', curve)))
  dots = [a for t, a in page.tags if t == 'circle']
  (x1, y1), (x2, y2) = [(float(a['cx']), float(a['cy'])) for a in dots]
  assert x1 < x2 and y1 > y2
  (diagonal,) = paths(page, 'reference muted')
  a, b, c, d = map(float, re.findall(r'[\d.]+', diagonal))
  # The second point lies on the diagonal, the first above it.
  assert (x2 - a) / (c - a) == pytest.approx((b - y2) / (b - d), abs=1e-3)
  assert (x1 - a) / (c - a) < (b - y1) / (b - d)
  assert 'predicted 25%, happened 50% (30% to 70%), 100 examples' in page.text
  (rug,) = paths(page, 'axis minor')
  assert rug.count('M') == 4  # an edge of a bin each


@pytest.mark.parametrize(
  'low, high', [(-0.05, 0.01), (0.1, 0.101), (-3.2, -3.0), (-12.0, -11.9)]
)
def test_scores_of_a_narrow_range_have_ticks_that_tell_them_apart(low, high):
  histogram = {'edges': [low, high], 'negative': [3.0], 'positive': [2.0]}
  ticks = score_charts.chart_scores('x', histogram).x.ticks
  assert len({text for _, text in ticks}) == len(ticks) >= 2
  for place, text in ticks:
    assert low <= place <= high
    share = 1 / (1 + math.exp(-place))
    assert float(text.removesuffix('%')) == pytest.approx(100 * share, rel=1e-6)


@pytest.mark.parametrize('most', [0.5, 0.0])
def test_room_above_the_calibration_curve(most):
  """Rare events fill the chart, and nothing touches its frame."""
  curve = [
    {'low': 0.0, 'high': most, 'prediction': most / 2, 'rate': most / 2,
     'rate_low': 0.0, 'rate_high': most, 'weight': 9.0},
  ]  # fmt: skip
  page = parse(draw_plot(score_charts.chart_calibration('x', curve)))
  (whisker,) = paths(page, 'whisker orange')
  highest = float(whisker.split()[-1])
  room = (highest - Frame().top) / Frame().height
  assert 0.01 < room < (0.1 if most else 1.0)


@pytest.mark.parametrize(
  'p, text',
  [(0, '0%'), (1, '100%'), (0.5, '50%'), (0.0312, '3.1%'), (0.001, '0.1%'),
   (0.999, '99.9%'), (1e-6, '0.0001%'), (0.123, '12%'), (1e-300, '0%')],
)  # fmt: skip
def test_shares(p, text):
  assert score_charts.format_share(p) == text


def test_nothing_from_outside_is_markup(tmp_path):
  evil = '<script>alert("x")</script>&amp;\'"'
  ranking = details((evil, 'b'))
  ranking['part'] = evil
  for row in ranking['importance']['features']:
    row['feature'] = row['kind'] = evil
  data = fake_report(ranking=ranking)
  data['metrics']['test'][f'auc/{evil}'] = 0.5
  page = parse_page(tmp_path, data, [{'step': 1, f'test/auc/{evil}': 0.5}] * 2)
  assert page.text.count(evil) > 40
