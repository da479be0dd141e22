"""The report of a run on a stream of requests: one short run for all tests."""

import csv
import json
import math
import pathlib
import re

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.requests import stream_ceilings, streaming
from genrec_jax.report import request_panel, stream_panel
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.report.summary import rebuild_report
from genrec_jax.serve import score_requests
from genrec_jax.serve.request_scorer import RequestScorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.tolerances import assert_close

CONFIG = f'{pathlib.Path(__file__).parents[2]}/configs/gr_streaming.py:smoke'
# Users take part in each of the steps 0 to 3, which train, and 4 and 5.
OVERRIDES = (
  'data.streaming.train_steps=4',
  'data.streaming.true_time=True',
  'model.blocks=1',
  'eval.progressive=window',
  'report.users=2',
  'report.history=4',
  'report.candidates=3',
)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(config, workdir, what report.json holds)."""
  config = config_lib.load(CONFIG, list(OVERRIDES))
  workdir = tmp_path_factory.mktemp('stream') / 'run'
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  return config, workdir, json.loads((workdir / 'report.json').read_text())


@pytest.fixture(scope='module')
def dataset(run):
  """The stream once more, from its options alone."""
  options = dict(run[0].data.streaming.to_dict())
  return streaming.generate_requests(streaming.StreamOptions(**options))


def measure_plainly(scores, labels) -> dict[str, float]:
  """AUC by comparing every pair; log loss and NE by their definitions."""
  up = [s for s, y in zip(scores, labels, strict=True) if y]
  down = [s for s, y in zip(scores, labels, strict=True) if not y]
  wins = sum((a > b) + (a == b) / 2 for a in up for b in down)
  loss = -sum(math.log(s) for s in up) - sum(math.log(1 - s) for s in down)
  rate = len(up) / len(scores)
  entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
  return {
    'auc': wins / (len(up) * len(down)),
    'logloss': loss / len(scores),
    'ne': loss / len(scores) / entropy,
    'calibration': sum(scores) / len(up),
  }


def test_metrics_are_those_of_the_predictions(run, dataset, tmp_path):
  config, workdir, report = run
  with config.unlocked():
    config.predict.output = str(tmp_path / 'scores.csv')
  told = score_requests.write_request_scores(config, workdir)
  with open(told['output'], newline='') as f:
    rows = list(csv.DictReader(f))
  split = dataset.splits['test']
  assert [int(row['item']) + 1 for row in rows] == split.items['item'].tolist()
  labels = split.labels[streaming.LABEL].tolist()
  scores = [float(row['score']) for row in rows]
  found = measure_plainly(scores, labels)
  for name, value in found.items():
    # Unequal logits may be one float32 as probabilities, half a pair then.
    within = dict(abs=1e-4) if name == 'auc' else dict(rel=1e-5)
    assert report['metrics']['test'][name] == pytest.approx(value, **within)
  # Step by step, and all steps together.
  stream = report['ranking']['stream']
  assert [step['step'] for step in stream['test']] == [4, 5]
  for step in stream['test']:
    some = [i for i, row in enumerate(rows) if int(row['step']) == step['step']]
    part = measure_plainly([scores[i] for i in some], [labels[i] for i in some])
    assert step['auc'] == pytest.approx(part['auc'], abs=1e-4)
    assert step['ne'] == pytest.approx(part['ne'], rel=1e-5)
    assert step['candidates'] == len(some)
    rate = sum(labels[i] for i in some) / len(some)
    assert step['rate'] == pytest.approx(rate)
  total = stream['totals']['test'][streaming.LABEL]
  assert total['ne'] == pytest.approx(found['ne'], rel=1e-5)
  assert total['candidates'] == len(rows) and total['steps'] == 2
  curve = report['ranking']['labels'][streaming.LABEL]['calibration']
  assert sum(b['weight'] for b in curve) == len(rows)
  happened = sum(b['weight'] * b['rate'] for b in curve)
  assert happened == pytest.approx(sum(labels))
  assert report['ranking']['unit'] == 'candidates'


def test_what_comes_next_is_placed_by_the_step_of_the_stream(run, dataset):
  _, workdir, report = run
  lines = read_jsonl(workdir / 'metrics.jsonl')
  measured = [row for row in lines if 'next/auc' in row]
  stream = report['ranking']['stream']
  # Step 0 is measured before the first batch alone if `eval_first` is set.
  assert [step['step'] for step in stream['next']] == [1, 2, 3]
  train = dataset.splits['train']
  for step, row in zip(stream['next'], measured, strict=True):
    assert step['auc'] == row['next/auc'] and step['ne'] == row['next/ne']
    of_step = np.repeat(train.step, np.diff(train.offsets)) == step['step']
    assert step['candidates'] == of_step.sum()
    labels = train.labels[streaming.LABEL][of_step]
    assert step['rate'] == pytest.approx(labels.mean())
  loss = sum(s['logloss'] * s['candidates'] for s in stream['next'])
  count = sum(s['candidates'] for s in stream['next'])
  rate = sum(s['rate'] * s['candidates'] for s in stream['next']) / count
  entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
  total = stream['totals']['next'][streaming.LABEL]
  assert total['ne'] == pytest.approx(loss / count / entropy)
  # And it is no mean of the steps' own.
  mean = sum(s['ne'] * s['candidates'] for s in stream['next']) / count
  assert abs(total['ne'] - mean) > 1e-6
  windows = [row for row in lines if 'train/auc' in row]
  assert [w['auc'] for w in stream['windows']] == [
    row['train/auc'] for row in windows
  ]
  assert stream['windows'][-1]['step'] == 3.5  # the end of the last step
  assert stream['windows'][0]['step'] <= 0.5  # within the first step


def test_the_ceilings_are_those_of_the_steps_and_options_of_the_run(run):
  config, _, report = run
  options = streaming.StreamOptions(**config.data.streaming.to_dict())
  stream = report['ranking']['stream']
  expected = stream_ceilings.measure_steps(options)
  assert stream['ceilings'] == {
    told: [row for row in rows if row['step'] > 0]  # 0 is not measured
    for told, rows in expected.items()
  }
  charts = stream_panel._chart_label(stream, streaming.LABEL)
  for chart, name in zip(charts, ('ne', 'auc'), strict=False):
    lines = {series.name: series.points for series in chart.series}
    for told, rows in stream['ceilings'].items():
      assert lines[told] == [(row['step'], row[name]) for row in rows]
  assert not any('told' in series.name for series in charts[2].series)


def test_a_page_of_an_earlier_version_has_no_ceilings(run):
  stream = dict(run[2]['ranking']['stream'])
  del stream['ceilings']
  page = stream_panel.draw_requests({'stream': stream | {'auc_ceilings': {}}})
  assert 'Step by step' in page and 'told the rating' not in page


def test_windows_lie_between_the_steps():
  rows = [
    {'step': 1, 'train/auc': 0.5, 'train/ne': 1.1},
    {'step': 2, 'train/loss': 0.7, 'next/auc': 0.6},
    {'step': 6, 'train/auc': 0.7},
    {'step': 2, 'next/auc': 0.65},  # again, of a run that was continued
    {'step': 10, 'next/auc': 0.9},  # of another run
  ]
  found = stream_panel._place_rows(rows, {3: 2, 5: 6})
  assert found == {
    'next': [{'step': 5, 'auc': 0.65}],
    'windows': [
      {'step': 3.0, 'auc': 0.5, 'ne': 1.1},
      {'step': 5.5, 'auc': 0.7},
    ],
  }


def test_changes_are_those_of_real_passes(run, dataset):
  """Of the score, with and without an event: by raw ids, one at a time."""
  config, workdir, report = run
  scorer = RequestScorer.load(workdir, config)
  names = dict((bit, name) for name, bit in streaming.ACTIONS)
  events = dataset.events
  for request in report['requests']:
    user = request['user']
    split = dataset.splits['test']
    (number,) = np.flatnonzero(
      (split.user == user) & (split.step == request['step'])
    )
    end = split.end[number]
    read = range(max(events.offsets[user], end - config.data.max_history), end)
    assert request['events'] == len(read)

    def tell(places):
      return {
        'item': [int(events.items['item'][i]) - 1 for i in places],
        'category': [int(events.items['category'][i]) - 1 for i in places],
        'action': [names[int(events.action[i])] for i in places],
        'time': [int(events.time[i]) for i in places],
      }

    asked = {
      'item': [c['item'] for c in request['candidates']],
      'category': [c['features']['category'] for c in request['candidates']],
    }
    known = dict(user=user, time=int(split.time[number]))
    whole = scorer.score(tell(read), asked, **known)[:, 0]
    scores = [c['scores'][streaming.LABEL] for c in request['candidates']]
    assert_close(np.array(scores), whole)
    assert sorted(scores, reverse=True) == scores
    assert [e['event'] for e in request['history']] == [4, 3, 2, 1]
    for event in request['history']:
      left_out = end - event['event']
      assert event['item'] == str(events.items['item'][left_out] - 1)
      assert event['actions'] == [names[int(events.action[left_out])]]
      assert event['age'] == split.time[number] - events.time[left_out]
    for event in (1, 4):
      rest = [i for i in read if i != end - event]
      less = scorer.score(tell(rest), asked, **known)[:, 0]
      found = [
        next(m['change'] for m in c['moved'] if m['event'] == event)
        for c in request['candidates']
      ]
      assert np.abs(found).max() > 1e-7  # it moves something
      np.testing.assert_allclose(found, whole - less, atol=2e-7)
    for candidate in request['candidates']:
      sizes = [abs(m['change']) for m in candidate['moved']]
      assert sizes == sorted(sizes, reverse=True) and len(sizes) == 4
      (at,) = [
        i
        for i in range(split.offsets[number], split.offsets[number + 1])
        if str(split.items['item'][i] - 1) == candidate['item']
        and candidate['labels'][streaming.LABEL]
        == split.labels[streaming.LABEL][i]
      ][:1]
      assert (
        str(split.items['category'][at] - 1)
        == (candidate['features']['category'])
      )


def test_requests_are_not_the_best_ones_alone(run):
  places = [request['place'] for request in run[2]['requests']]
  assert places == [1, run[2]['requests'][0]['of']] and places[1] > 10


def test_the_page_has_the_sections(run, caplog):
  _, workdir, report = run
  caplog.set_level('INFO')
  page = (workdir / 'report.html').read_text()
  headings = re.findall(r'<h2>(.*?)</h2>', page)
  for heading in (
    'Predicted probabilities', 'Step by step', 'What some requests get',
  ):  # fmt: skip
    assert headings.count(heading) == 1, heading
  for text in (
    'told the rating of the item',
    'told the rating of the item and the place of the category',
    "each step's own",
    'step of the stream', 'Base rate', 'All steps together',
    'all steps so far', 'each batch before its step', 'test candidates.',
    f'User {report["requests"][0]["user"]} ', 'event 1</span>',
  ):  # fmt: skip
    assert text in page, text
  again = rebuild_report(workdir, TASK_KINDS['request_ranking'].panels)
  assert 'no best checkpoint' not in caplog.text  # a stream has none
  assert again['ranking'] == report['ranking']
  # A candidate is an example of a split; what a batch has are requests.
  assert report['requests_per_s'] > 0 and 'examples_per_s' not in report
  assert (workdir / 'report.html').read_text() == page


def test_what_is_no_stream_has_no_section():
  assert stream_panel.draw_requests({'labels': {}}) == ''
  assert stream_panel.draw_requests({}) == ''
  assert request_panel.draw_explained([]) == ''


def test_several_labels_have_charts_each():
  steps = [
    {'step': t, 'candidates': 5, **{
      f'{name}/{label}': 0.1 * t + 0.1
      for name in ('ne', 'auc', 'logloss', 'rate') for label in ('a<b', 'c')
    }}
    for t in (1, 2, 3)
  ]  # fmt: skip
  totals = {
    label: stream_panel.total_steps(steps, f'/{label}')
    for label in ('a<b', 'c')
  }
  page = stream_panel.draw_requests({'stream': {
    'labels': ['a<b', 'c'], 'next': steps, 'test': [], 'windows': [],
    'totals': {'next': totals}, 'ceilings': {},
  }})  # fmt: skip
  assert page.count('<svg') == 6 and '<h3>a&lt;b</h3>' in page
  assert 'told the rating' not in page


def test_a_number_that_is_no_chance_has_a_bar_of_its_own():
  request = {
    'user': 'ü<', 'place': 1, 'of': 1, 'step': None, 'events': 1,
    'history': [
      {'event': 1, 'item': '7', 'features': {}, 'actions': [], 'age': None}
    ],
    'candidates': [
      {'item': str(i), 'features': {}, 'scores': {'stars': s, 'b': 0.5},
       'labels': {'stars': 3.0, 'b': 1.0},
       'moved': [{'event': 1, 'change': -0.25}]}
      for i, s in enumerate((4.5, 2.5))
    ],
  }  # fmt: skip
  page = request_panel.draw_explained([request])
  assert '4.500' in page and 'b 0.500 (1)' in page and '−0.2500' in page
  assert 'width:100%' in page and 'ü&lt;' in page and 'ago' not in page


def test_bars_of_all_requests_have_one_scale():
  def make(place, change):
    return {
      'user': place, 'place': place, 'of': 2, 'step': None, 'events': 50,
      'history': [
        {'event': 1, 'item': '7', 'features': {}, 'actions': [], 'age': None}
      ],
      'candidates': [
        {'item': '1', 'features': {}, 'scores': {'b': 0.5},
         'labels': {'b': 1.0}, 'moved': [{'event': 1, 'change': change}]}
      ],
    }  # fmt: skip

  page = request_panel.draw_explained([make(1, 0.4), make(2, -0.1)])
  bars = re.findall(r'left:([\d.]+)%;width:([\d.]+)%', page)
  assert bars == [('50.0', '50.0'), ('37.5', '12.5')]
  assert 'Earlier events are read as well, and are not tried' in page
  assert 'the longest of this page is 0.4000' in page
