"""The table of a sweep: what is known of each run, however far it is."""

import csv
import doctest
import json
import math
import time

import pytest

from genrec_jax.processes import notes
from genrec_jax.report import sweep_pictures
from genrec_jax.sweep import collect, curves, page, results
from tests.sweep.conftest import fake_command
from tests.sweep.fake_run import main as run_fake


def write_run(sweep, variant, values, steps=(5, 10), done=True, **report):
  """A run that has measured `values` at `steps`."""
  workdir = sweep.workdir(variant)
  workdir.mkdir(parents=True)
  rows = [
    {'step': step, 'valid/ndcg@10': v, 'valid/mrr': v / 2}
    for step, v in zip(steps, values, strict=True)
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (workdir / 'metrics.jsonl').write_text(text)
  if done:
    best = max(values)
    body = {
      'metrics': {
        'valid': {'ndcg@10': best, 'mrr': best / 2},
        'test': {'ndcg@10': best + 1},
      },
      'last_epoch': {'valid': {'ndcg@10': values[-1]}},
      'best_step': steps[values.index(best)],
      'core_s': 2.0,
      'wall_s': 3.0,
      'directions': {'ndcg': 'higher', 'mrr': 'higher'},
      'users': ['x'] * 1000,
    }
    (workdir / 'report.json').write_text(json.dumps(body | report))
  else:
    (workdir / 'checkpoints').mkdir()


short_of = {'optimizer.learning_rate': 'rate', 'seed': 'seed'}


@pytest.fixture
def sweep(make_sweep):
  """Two rates, two seeds; the last run has not begun, one goes on."""
  sweep, wanted = make_sweep('optimizer.learning_rate=1e-3,3e-3', 'seed=0,1')
  write_run(sweep, wanted[0], (0.2, 0.1))
  write_run(sweep, wanted[1], (0.3, 0.4))
  write_run(sweep, wanted[2], (0.5, 0.25), done=False)
  return sweep


def test_examples():
  for module in (results, sweep_pictures, curves):
    assert doctest.testmod(module).failed == 0


def test_what_is_known_of_each_run(sweep):
  found = results.read_results(sweep)
  assert found.metric == 'valid/ndcg@10'
  rows = collect.list_rows(found)
  assert [r['state'] for r in rows] == ['done', 'done', 'stopped', 'waiting']
  first, _, third, last = rows
  assert first['optimizer.learning_rate'] == 0.001 and first['seed'] == 0
  assert first['valid/ndcg@10'] == 0.2 and first['last valid/ndcg@10'] == 0.1
  assert first['test/ndcg@10'] == 1.2 and first['best_step'] == 5
  # Of a run without a report, the best evaluation so far.
  assert third['valid/ndcg@10'] == 0.5 and third['last valid/ndcg@10'] == 0.25
  assert third['last_step'] == 10 and third['test/ndcg@10'] is None
  assert last['valid/ndcg@10'] is None
  assert [r.variant.number for r in found.rank()] == [2, 1, 0]


def test_lower_is_better_where_it_is(make_sweep):
  sweep, wanted = make_sweep(
    'seed=0,1', config='wukong_synthetic:smoke',
    overrides=['train.monitor=logloss'],
  )  # fmt: skip
  for variant, value in zip(wanted, (0.5, 0.4), strict=True):
    workdir = sweep.workdir(variant)
    workdir.mkdir(parents=True)
    row = {'step': 3, 'valid/logloss': value, 'valid/auc': value}
    (workdir / 'metrics.jsonl').write_text(json.dumps(row) + '\n{"step"')
  found = results.read_results(sweep)
  assert [r.variant.number for r in found.rank()] == [1, 0]


def test_files(sweep):
  text = collect.collect_sweep(sweep)
  assert '2 done, 1 stopped, 1 waiting' in text
  with open(sweep.root / 'sweep.csv') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 4 and rows[0]['valid/ndcg@10'] == '0.2'
  assert rows[2]['best_step'] == '5' and rows[3]['best_step'] == ''
  assert rows[3]['valid/ndcg@10'] == ''
  pq = pytest.importorskip('pyarrow.parquet')
  table = pq.read_table(sweep.root / 'sweep.parquet').to_pylist()
  assert table == collect.list_rows(results.read_results(sweep))


def test_means_over_seeds(sweep):
  found = results.read_results(sweep)
  groups = results.group_seeds(found)
  assert [len(runs) for _, runs in groups] == [2, 2]
  mean, spread = results.mean_and_deviation([0.2, 0.4])
  assert mean == pytest.approx(0.3) and spread == pytest.approx(0.1 * 2**0.5)
  assert math.isnan(results.mean_and_deviation([0.2, None])[1])
  # Of the other rate, one run goes on and one has not begun.
  (row,) = page._list_means(found, ['valid/ndcg@10', 'test/ndcg@10'], short_of)
  assert row['keys'] == 'rate=0.001' and row['runs'] == 2
  assert row['cells'][0] == ('0.3', '± 0.14')
  assert 'rate=0.001' in page.render_sweep(found)


def test_means_say_how_many_they_are_of(sweep):
  third = sweep.variants[2]
  (sweep.workdir(third) / 'report.json').write_text(
    json.dumps({'metrics': {'valid': {'ndcg@10': 0.5}}, 'best_step': 5})
  )
  found = results.read_results(sweep)
  rows = list(page._list_means(found, ['valid/ndcg@10'], short_of))
  assert [row['runs'] for row in rows] == [2, '1 of 2']
  assert rows[1]['cells'] == [('0.5', '')]


def test_costs_are_those_of_all_tries(sweep):
  done, _, stopped, waiting = sweep.variants
  for variant, state in ((done, notes.DONE), (stopped, notes.BAD)):
    sweep.note(variant).parent.mkdir(exist_ok=True)
    note = notes.Note(state, tries=2, wall_s=8.0, core_s=7.0)
    notes.write_note(sweep.note(variant), note)
  found = results.read_results(sweep)
  # Of a run without a note, what its report says.
  assert [r.cost('core_s') for r in found.results] == [7.0, 2.0, 7.0, None]
  assert [r.cost('wall_s') for r in found.results] == [8.0, 3.0, 8.0, None]


def test_a_monitor_of_several_metrics(make_sweep):
  sweep, wanted = make_sweep(
    'seed=0,1', overrides=['train.monitor=ndcg@10:1,mrr:2']
  )
  for variant, value in zip(wanted, (0.2, 0.4), strict=True):
    write_run(sweep, variant, (value, value))
  found = results.read_results(sweep)
  assert [r['monitored'] for r in collect.list_rows(found)] == [0.4, 0.8]
  assert 'monitored' in collect.summarize(found)
  assert 'Parallel' in page.render_sweep(found)


def test_a_page_escapes_names_and_asks_for_nothing(make_sweep):
  sweep, wanted = make_sweep('data.path=<script>alert(1)</script>,b')
  write_run(sweep, wanted[0], (0.2, 0.1))
  text = page.render_sweep(results.read_results(sweep))
  assert '<script>alert' not in text
  assert 'http' not in text.replace('http-equiv', '')


def test_a_page_of_runs_that_have_not_begun(make_sweep):
  sweep, _ = make_sweep('seed=0..2')
  text = page.render_sweep(results.read_results(sweep))
  assert '3 waiting' in text and 'Parallel' not in text


def test_runs_with_odd_reports(make_sweep):
  sweep, wanted = make_sweep('seed=0..3')
  write_run(sweep, wanted[0], (math.nan, 0.1))
  write_run(sweep, wanted[1], (0.2, 0.3), metrics={'valid': None})
  for variant, text in zip(wanted[2:], ('[1]', '{"metrics"'), strict=True):
    sweep.workdir(variant).mkdir()
    (sweep.workdir(variant) / 'report.json').write_text(text)
  found = results.read_results(sweep)
  assert len(collect.list_rows(found)) == 4
  assert page.render_sweep(found)


def test_a_curve_is_read_in_pieces(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  reader = curves.CurveReader(path, 'ndcg@10')
  assert reader.read() == curves.Curve()
  path.write_text('{"step": 1, "valid/ndcg@10": 0.5}\n{"step": 2, "valid/n')
  assert reader.read().steps == (1,)
  with open(path, 'a') as file:
    file.write('dcg@10": 0.6}\n{"step": 3, "train/loss": 1}\n')
  curve = reader.read()
  assert (curve.steps, curve.values, curve.last_step) == ((1, 2), (0.5, 0.6), 3)
  with open(path, 'a') as file:  # nothing that a run writes
    file.write('{"step": 1e999}\n{"step": "<b>"}\n[]\n')
  assert reader.read() == curve
  with open(path, 'a') as file:  # a run that went back
    file.write('{"step": 2, "valid/ndcg@10": 0.7}\n')
  assert reader.read().values == (0.5, 0.7)


def curve(*values):
  return curves.Curve(tuple(range(1, len(values) + 1)), values)


@pytest.mark.parametrize(
  'own, falls',
  [
    ((0.1, 0.2), True), ((0.1, 0.5), False), ((0.1,), False),
    ((0.3, 0.1), False),
  ],
)  # fmt: skip
def test_the_median_rule(own, falls):
  """Means of the others at step 2 are .2, .3 and .4."""
  others = [curve(0.1, 0.3, 9.0), curve(0.2, 0.4), curve(0.4, 0.4), curve(1.0)]
  monitor = curves.make_monitor('ndcg@10', {'ndcg@10': 0.1})
  assert curves.falls_behind(curve(*own), others, monitor) == falls
  assert not curves.falls_behind(curve(*own), others[:2], monitor)


def test_collecting_many_runs_takes_seconds(make_sweep, monkeypatch):
  """The benchmark measures it on a quiet machine."""
  sweep, wanted = make_sweep('seed=0..99')
  for variant in wanted:
    write_run(sweep, variant, tuple(i / 50 for i in range(50)), range(50))
  began = time.process_time()
  collect.collect_sweep(sweep)
  assert time.process_time() - began < 10


def test_the_fake_run_is_one(tmp_path, monkeypatch):
  """What other tests rely on."""
  words = fake_command([f'--workdir={tmp_path}/run', '--config.train.steps=2'])
  monkeypatch.setattr('sys.argv', words[1:])
  run_fake()
  assert (tmp_path / 'run/report.json').exists()
  assert notes.DONE == 'done'
