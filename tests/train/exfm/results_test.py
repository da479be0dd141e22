"""The numbers of the page beside a plain computation from the files."""

import json
import math

import numpy as np
import pytest

from genrec_jax.data.parquet import pq
from genrec_jax.data.ranking import drift
from genrec_jax.distill.teacher_store import TeacherStore
from genrec_jax.processes import notes
from genrec_jax.train.exfm import page, results
from tests.report.page_parser import parse
from tests.train.exfm import made_system

# Of eight windows the last half, but two whose labels may not have come.
MEASURED = [4, 5]


@pytest.fixture(scope='module')
def layout(tmp_path_factory):
  return made_system.make(
    tmp_path_factory.mktemp('made') / 'system', '--compare', 'none', 'head'
  )


@pytest.fixture(scope='module')
def numbers(layout):
  found = results.measure_system(layout)
  assert json.loads(json.dumps(found)) == found  # no NaN, no tuples
  return found


def entropy(p):
  return -(p * np.log(p) + (1 - p) * np.log(1 - p))


def read_part(layout, stream, k):
  return pq.read_table(layout.annotated / stream / f'window-{k:010d}.parquet')


def read_lines(workdir):
  lines = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  return [line for line in lines if 'train/ne' in line]


def test_the_last_half_is_measured_but_what_waits_for_labels(numbers):
  assert numbers['windows'] == list(range(8))
  assert numbers['measured_windows'] == MEASURED


def test_ne_has_one_base_rate_for_all_methods(layout, numbers):
  for student, found in zip(
    layout.settings.students, numbers['students'], strict=True
  ):
    tables = [read_part(layout, student.name, k) for k in MEASURED]
    labels = [table['label'].to_numpy().astype(float) for table in tables]
    every = np.concatenate(labels)
    assert found['rate'] == pytest.approx(every.mean())
    assert found['measured_examples'] == len(every)
    for method, run in found['methods'].items():
      lines = read_lines(layout.student(student, method))
      total = sum(
        lines[k]['train/logloss'] * len(y)
        for k, y in zip(MEASURED, labels, strict=True)
      )
      expected = total / len(every) / entropy(every.mean())
      assert run['ne'] == pytest.approx(expected)


def test_gains_are_paired_with_no_teacher(layout, numbers):
  for student, found in zip(
    layout.settings.students, numbers['students'], strict=True
  ):
    runs = found['methods']
    assert runs['none']['gain'] == 0
    head = runs['head']
    assert head['gain'] == pytest.approx(
      100 * (1 - head['ne'] / runs['none']['ne'])
    )
    one, none = (
      [line['train/logloss'] for line in read_lines(layout.student(student, m))]
      for m in ('head', 'none')
    )
    gains = [100 * (1 - one[k] / none[k]) for k in MEASURED]
    assert head['gain_spread'] == pytest.approx(np.std(gains, ddof=1))
    assert [x['gain'] for x in head['windows']][4:6] == pytest.approx(gains)


def test_the_teacher_is_measured_on_the_examples_of_each_student(
  layout, numbers
):
  store = TeacherStore.open_existing(layout.annotated / 'scores')
  for found in numbers['students']:
    loss, every = 0.0, []
    for k in MEASURED:
      table = read_part(layout, found['name'], k)
      p = store.lookup(table['example_id'].to_numpy()).values[:, 0]
      p = p.astype(float)
      y = table['label'].to_numpy()
      each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
      loss, every = loss + each.sum(), [*every, *y]
      window = found['windows'][k]
      assert window['ne'] == pytest.approx(each.mean() / entropy(y.mean()))
      assert window['calibration'] == pytest.approx(p.sum() / y.sum())
      assert window['snapshot_step'] == 10 * k
      assert window['snapshot_window'] == k - 1
    expected = loss / len(every) / entropy(np.mean(every))
    assert found['teacher_ne'] == pytest.approx(expected)
    assert found['windows'][0]['ne'] is None  # nobody was old enough


def test_calibration_of_the_heads(layout, numbers):
  student, found = layout.settings.students[0], numbers['students'][0]
  run = found['methods']['adapter']
  lines = read_lines(layout.student(student, 'adapter'))
  clicks, served, head, adapted = 0.0, 0.0, 0.0, 0.0
  for k in MEASURED:
    y = read_part(layout, student.name, k)['label'].to_numpy()
    clicks += y.sum()
    served += lines[k]['train/calibration'] * y.sum()
    head += lines[k]['train/teacher/learned'] * len(y) / made_system.SCALE
    adapted += lines[k]['train/teacher/adapted'] * len(y)
  assert run['calibration'] == pytest.approx(served / clicks)
  assert run['head_calibration'] == pytest.approx(head / clicks)
  assert run['adapter_calibration'] == pytest.approx(adapted / clicks)
  assert run['windows'][0]['head_calibration'] is None  # not annotated


def test_the_truth_of_a_generated_stream(layout, numbers):
  stream = drift.DriftStream(layout.settings.stream)
  found = numbers['students'][0]
  each, every, true = [], [], []
  for k in MEASURED:
    window = stream.window(k)
    keep = np.isin(window.segment, found['segments'])
    p = window.probability[keep]
    y = read_part(layout, 'feed', k)['label'].to_numpy()
    each += [*-(y * np.log(p) + (1 - y) * np.log(1 - p))]
    every, true = [*every, *y], [*true, *p]
  assert found['true_ne'] == pytest.approx(
    np.mean(each) / entropy(np.mean(every))
  )
  true = np.array(true)
  floor = entropy(true).mean() / entropy(true.mean())
  assert found['floor'] == pytest.approx(floor)


def test_shared_examples_and_calls(layout, numbers):
  feed, video, search = numbers['students']
  # Video has one of the segments of feed.
  assert feed['shared'] == video['shared'] == video['examples']
  assert search['shared'] == 0
  service = numbers['service']
  assert service['calls_saved'] == video['examples']
  assert service['examples'] == 8 * 150 and service['scored'] == 7 * 150


def test_costs_are_those_of_the_notes(layout, numbers):
  costs = {cost['process']: cost for cost in numbers['costs']}
  assert len(costs) == 3 + 9
  note = notes.read_note(layout.note('teacher'))
  assert costs['teacher']['core_s'] == note.core_s
  assert costs['teacher']['examples'] == 1200
  assert costs['search-head']['us_per_example'] == pytest.approx(
    1e6
    * notes.read_note(layout.note('search-head')).core_s
    / numbers['students'][2]['examples']
  )
  service = costs['service']['core_s']
  assert page.cost_score(numbers) == pytest.approx(1e6 * service / 1050)


def test_rows_are_placed_by_parts_and_not_by_their_order():
  parts = [
    results.PartLabels(k, np.arange(n), np.zeros(n))
    for k, n in ((0, 5), (1, 0), (2, 8), (3, 9))
  ]
  rows = [
    {'step': s, results.PROGRESSIVE: s, results.PART: n}
    for s, n in ((2, 1), (4, 3), (7, 4))
  ]
  rows.insert(1, {'step': 3, 'train/loss': 1.0})
  rows.append(
    {'step': 8, results.PROGRESSIVE: 1.0}
  )  # within a part, at the end
  found = results.place_rows(rows, parts)
  assert {k: row['step'] for k, row in found.items()} == {0: 2, 2: 4, 3: 7}
  del rows[0]  # of a window of which nothing is learned from
  assert {*results.place_rows(rows, parts)} == {2, 3}


def test_an_ne_without_one_of_its_windows_is_none():
  parts = [
    results.PartLabels(k, np.arange(4), np.array([0.0, 1.0, 0.0, 0.0]))
    for k in range(2)
  ]
  assert math.isnan(results.pin_ne({0: 0.5}, parts))
  both = results.pin_ne({0: 0.5, 1: 0.7}, parts)
  assert both == pytest.approx(0.6 / entropy(0.25))


def test_the_page_is_well_formed_and_has_the_numbers(layout, numbers):
  said = page.write_page(layout)
  assert 'exfm.html' in said and 'exfm_results.json' in said
  read = json.loads((layout.root / page.NUMBERS).read_text())
  assert read == numbers
  checker = parse((layout.root / page.PAGE).read_text())
  text = checker.text
  for student in numbers['students']:
    assert f'{student["floor"]:.5f}' in text
    assert f'{student["teacher_ne"]:.5f}' in text
    for run in student['methods'].values():
      assert f'{run["ne"]:.5f}' in text
      assert f'± {run["gain_spread"]:.2f}' in text or run['gain'] == 0
  gain = next(page.list_gains(numbers))
  assert gain['method'] == 'adapter'
  assert f'{gain["gain"]:+.2f} %'.replace('-', '−') in text
  # Three students: NE, gain and calibration; the teacher; who feeds whom.
  assert sum(tag == 'svg' for tag, _ in checker.tags) == 3 * 3 + 1 + 1
  rows = [attrs for tag, attrs in checker.tags if tag == 'tr']
  assert len(rows) > 8 + 12


def test_a_page_without_comparison_says_so(tmp_path):
  layout = made_system.make(tmp_path / 'system', '--compare')
  page.write_page(layout)
  text = parse((layout.root / page.PAGE).read_text()).text
  assert 'no run without a teacher to compare with' in text
  assert 'What the teacher gives' not in text
