"""A worse figure is never shown as a gain, wherever it is shown."""

import itertools
import math

import pytest

from genrec_jax.report.comparison import compare_metrics, compare_value
from genrec_jax.report.pages import render_page
from genrec_jax.report.shortfall import find_shortfalls
from genrec_jax.report.summary import format_table
from tests.report.page_parser import parse

NAN = math.nan
# direction -> (metric, directions that an evaluator says, score of a value)
DIRECTIONS = {
  'higher': ('hr@10', {}, lambda x: x),
  'area': ('auc', {}, lambda x: x),
  'lower': ('logloss', {}, lambda x: -x),
  'said higher': ('lift', {'lift': 'higher'}, lambda x: x),
  'said lower': ('rmse', {'rmse': 'lower'}, lambda x: -x),
  'near one': ('calibration', {}, lambda x: -abs(x - 1)),
  'near zero': ('bias', {'bias': 0.0}, lambda x: -abs(x)),
}
VALUES = (-2.0, -0.1, 0.0, 1e-9, 0.02, 0.5, 0.500001, 0.9, 1.0, 1.1, 37.0)


def make_report(metric, value, baselines, directions):
  return {
    'config': {'train': {'monitor': metric}},
    'metrics': {'test': {metric: value}},
    'baselines': {n: {metric: b} for n, b in baselines.items()},
    'directions': directions,
  }


@pytest.mark.parametrize('direction', DIRECTIONS)
def test_the_word_is_that_of_the_direction(direction):
  metric, directions, score = DIRECTIONS[direction]
  for value, base in itertools.product(VALUES, repeat=2):
    report = make_report(metric, value, {'base': base}, directions)
    c = compare_metrics(report)
    verdict = c.verdict(metric)
    ahead = score(value) - score(base)
    assert verdict.word == (
      'equal' if ahead == 0 else 'better' if ahead > 0 else 'worse'
    ), (value, base)
    # An amount has no sign that could say otherwise, and is not nothing.
    assert not verdict.amount.startswith(('+', '-', '−'))
    amount = verdict.amount.rstrip('x%')
    assert (float(amount) > 0) if amount else ahead == 0
    is_judged = metric != 'calibration'
    assert bool(find_shortfalls(report, c)) == (ahead < 0 and is_judged)


@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('outcome', ['better', 'equal', 'worse'])
def test_tables_and_pages_say_the_same(direction, outcome):
  metric, directions, score = DIRECTIONS[direction]
  values = sorted((0.9, 0.3), key=score)
  base = values[1 if outcome == 'worse' else 0]
  value = base if outcome == 'equal' else values[outcome == 'better']
  report = make_report(metric, value, {'base': base}, directions)
  words = {'better', 'equal', 'worse'}
  first, *_ = text = format_table(report).splitlines()
  (row,) = [line for line in text if line.startswith(metric)]
  assert set(row.split()) & words == {outcome}
  assert any('vs base' in line for line in text)
  is_below = outcome == 'worse' and metric != 'calibration'
  assert first.startswith('Below the baseline') == is_below
  page = parse(render_page(report, compare_metrics(report), []))
  pills = {a['class'] for _, a in page.tags if 'pill' in a.get('class', '')}
  kind = {'better': 'good', 'equal': 'even', 'worse': 'bad'}[outcome]
  assert pills == {f'pill {kind}'}
  assert any('alarm' in a.get('class', '') for _, a in page.tags) == is_below
  for word in words - {outcome, 'worse'}:
    assert f' {word}' not in page.text


@pytest.mark.parametrize(
  'metric, own, baselines, directions',
  [
    ('logloss', NAN, [0.4], {}),
    ('logloss', 0.4, [NAN], {}),
    ('logloss', math.inf, [0.4], {}),
    ('logloss', None, [0.4], {}),
    ('logloss', 0.4, [None], {}),
    ('logloss', 0.4, [], {}),
    ('users', 4.0, [2.0], {'users': 'none'}),
    # Of which nothing is said: of errors a larger one would be no gain.
    ('rmse', 0.9, [0.4], {}),
    ('rmse', 0.4, [0.9], {'mae': 'lower'}),
  ],
)
def test_what_cannot_be_compared_has_no_verdict(
  metric, own, baselines, directions
):
  named = {f'b{i}': b for i, b in enumerate(baselines)}
  report = make_report(metric, own, named, directions)
  c = compare_metrics(report)
  assert c.verdict(metric) is None and not find_shortfalls(report, c)
  text = format_table(report)
  page = parse(render_page(report, c, [])).text
  for word in ('Below', 'better', 'worse', 'equal'):
    assert word not in text and f' {word}' not in page


@pytest.mark.parametrize(
  'metric, own, baselines, text, best',
  [
    ('auc', 0.6, {'a': 0.5, 'b': 0.7}, '0.1000 worse', 'b'),
    ('gauc/click', 0.8, {'a': 0.5, 'b': None}, '0.3000 better', 'a'),
    ('logloss', 0.3, {'a': 0.4, 'b': 0.6}, '25.0% better', 'a'),
    ('logloss', 0.7124, {'mean': 0.6855}, '3.9% worse', 'mean'),
    ('ne', 1.2, {'a': 1.0, 'b': NAN}, '20.0% worse', 'a'),
    ('logloss', 0.2, {'a': 0.0}, '0.2000 worse', 'a'),
    ('hr@10', 0.17, {'a': 0.0}, '0.1700 better', 'a'),
    ('hr@10', 0.3097, {'a': 0.0812}, '3.81x better', 'a'),
    ('hr@10', 0.0367, {'a': 0.0385}, '4.7% worse', 'a'),
    ('hr@10', 0.50001, {'a': 0.5}, '0.002% better', 'a'),
    ('auc', 0.500001, {'a': 0.5}, '1.0e-06 better', 'a'),
    ('calibration', 1.2, {'a': 0.9, 'b': 2.0}, '0.1000 worse', 'a'),
    ('mrr', 0.2, {'a': 0.1, 'b': 0.2}, 'equal', 'b'),
  ],
)
def test_amounts(metric, own, baselines, text, best):
  verdict = compare_value(metric, own, baselines)
  assert (str(verdict), verdict.baseline) == (text, best)


def ranking_run(**test):
  mean = {'auc': 0.5, 'logloss': 0.6855, 'calibration': 1.0}
  return {
    'config': {'task': 'ranking', 'train': {'monitor': 'auc:1,ne:-1'}},
    'metrics': {'test': {'auc': 0.6557, 'logloss': 0.7124, **test}},
    'baselines': {'mean': mean},
  }


def test_log_loss_is_told_although_auc_is_better():
  first, hint, *_ = format_table(ranking_run(calibration=0.7)).splitlines()
  assert first == (
    'Below the baseline on the test split: Log loss is 0.7124, mean has 0.6855.'
  )
  assert 'better order' in hint and 'docs/training.md#' in hint
  _, hint, *_ = format_table(ranking_run(auc=0.4)).splitlines()
  assert 'better order' not in hint and 'table_l2' in hint


def test_a_baseline_within_the_interval_is_told():
  report = make_report('hr@10', 0.0367, {'popularity': 0.0385}, {})
  report['intervals'] = {'test': {'hr@10': [0.027, 0.05]}}
  report['config']['task'] = 'retrieval'
  first, hint, *_ = format_table(report).splitlines()
  assert '(within the 95% interval, 0.0270 to 0.0500)' in first
  assert 'train.epochs' in hint


def test_many_shortfalls_are_counted():
  metrics = ('ndcg@10', 'hr@10', 'mrr', 'auc', 'logloss')
  report = {
    'metrics': {'valid': dict.fromkeys(metrics, 0.4) | {'logloss': 0.9}},
    'baselines': {'b': dict.fromkeys(metrics, 0.5)},
  }
  first, *_ = format_table(report).splitlines()
  assert 'on the validation split' in first and '2 more' in first
