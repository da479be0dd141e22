"""The compute of generative rankers, the fit to it, its budget, its picture."""

import argparse
import doctest
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from benchmarks import gr_flops, gr_runs, gr_scaling
from genrec_jax import config as config_lib
from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests.streaming import generate_requests

SVG = '{http://www.w3.org/2000/svg}'
SIZES = dict(
  dim=16, blocks=1, heads=2, dqk=6, dv=10, token_hidden=24, head_hidden=40
)


@pytest.fixture(scope='module')
def dataset():
  options = StreamOptions(
    users=6, items=400, categories=8, steps=4, train_steps=3, events=8,
    deviation=2, train_candidates=4, inference_events=8,
    inference_candidates=4,
  )  # fmt: skip
  return generate_requests(options)


def load(**sizes):
  changed = (f'model.{k}={v}' for k, v in (SIZES | sizes).items())
  return config_lib.load(
    'gr_streaming:stu',
    [*changed, 'data.max_history=20', 'data.max_candidates=3'],
  )


def see(query, key):
  """Whether a token sees another, by what they are: (kind, place)."""
  (kind, place), (other, at) = query, key
  if kind == 'context':
    return other != 'candidate'
  if kind == 'event':
    return other == 'context' or (other == 'event' and at <= place)
  return other != 'candidate' or at == place


@pytest.mark.parametrize('shape', [(0, 3, 2), (1, 5, 4), (3, 0, 2), (2, 4, 0)])
def test_pairs_are_counted_one_by_one(shape):
  tokens = [
    (kind, place)
    for kind, count in zip(
      ('context', 'event', 'candidate'), shape, strict=True
    )
    for place in range(count)
  ]
  wanted = sum(see(a, b) for a in tokens for b in tokens)
  assert gr_flops.count_pairs(*shape) == wanted


def test_examples():
  for module in (gr_flops, gr_runs):
    tested = doctest.testmod(module)
    assert tested.attempted and not tested.failed


def test_dense_products_are_those_of_the_matrices(dataset):
  one = gr_flops.count_dense(load(), dataset)
  two = gr_flops.count_dense(load(blocks=2), dataset)
  # u and v have 2 x 10 numbers, q and k 2 x 6; three of u's width go back.
  layer = 16 * 2 * (2 * 10 + 2 * 6) + 3 * 20 * 16
  # The context is one token, the user's.
  assert np.subtract(two, one) == pytest.approx([layer] * 3)
  wider = gr_flops.count_dense(load(head_hidden=41), dataset)
  # The tower reads item and category; only candidates have one.
  assert wider[1] == one[1] and wider[2] > one[2]


def test_training_costs_what_its_requests_cost(dataset):
  config, train = load(blocks=2), dataset.splits['train']
  of_request, of_event, of_candidate = gr_flops.count_dense(config, dataset)
  total = 0
  for number in range(len(train)):
    begin = dataset.events.offsets[train.user[number]]
    events = min(20, int(train.end[number] - begin))
    asked = int(train.offsets[number + 1] - train.offsets[number])
    if not asked:
      continue
    asked = min(3, asked)
    total += of_request + of_event * events + of_candidate * asked
    total += 2 * 2 * (6 + 10) * gr_flops.count_pairs(1, events, asked)
  assert gr_flops.count_training(config, dataset) == pytest.approx(6 * total)


def test_what_is_not_counted_is_refused(dataset):
  for key, value in (('layout', 'interleaved'), ('window', 4)):
    with pytest.raises(ValueError, match=f'model.{key} is'):
      gr_flops.count_training(load(**{key: value}), dataset)
  config = config_lib.load(
    'gr_streaming:stu', ['data.stochastic_length.alpha=1.8']
  )
  with pytest.raises(ValueError, match='at random'):
    gr_flops.count_training(config, dataset)


def test_sizes_span_a_decade_and_a_half(dataset):
  found = []
  for case in gr_scaling.CASES.values():
    config = config_lib.load(case.config, case.overrides)
    found.append(gr_flops.count_training(config, dataset))
  assert found == sorted(found) and found[-1] > 10**1.5 * found[0]


def make_rows(noise=0.0, seeds=3):
  rng = np.random.default_rng(0)
  return [
    {
      'case': f'{model}/seed{seed}',
      'kind': 'run',
      'model': model,
      'name': case.name,
      'seed': seed,
      'pflop': pflop,
      'dense': 10,
      'stream_steps': 91,
      'ne': 0.7 - 0.006 * math.log(pflop) + noise * rng.normal(),
      'test_ne': 0.8 - 0.004 * math.log(pflop),
      **dict.fromkeys(set(gr_runs.MEASURED) - {'ne', 'test_ne'}, 0.5),
    }
    for seed in range(seeds)
    for pflop, (model, case) in zip(
      (1e-3, 4e-3, 2e-2, 9e-2), gr_scaling.CASES.items(), strict=True
    )
  ]


def test_the_fit_recovers_a_planted_law():
  row = gr_scaling.fit(make_rows(), 'ne', 'x')
  assert (row['a'], row['b']) == (pytest.approx(0.7), pytest.approx(0.006))
  assert row['b_error'] == pytest.approx(0, abs=1e-9)
  assert row['decades'] == pytest.approx(math.log10(90))


def test_the_error_of_the_slope_is_that_of_least_squares():
  rows = make_rows(noise=1e-3)
  found = gr_scaling.fit(rows, 'ne', 'x')
  x = np.log([row['pflop'] for row in rows])
  design = np.stack([np.ones(len(x)), x], axis=1)
  y = np.array([row['ne'] for row in rows])
  solved, (left,), *_ = np.linalg.lstsq(design, y, rcond=None)
  error = left / (len(x) - 2) * np.linalg.inv(design.T @ design)[1, 1]
  assert found['b'] == pytest.approx(-solved[1])
  assert found['b_error'] == pytest.approx(error**0.5)


def test_rows_and_the_picture():
  rows = gr_scaling.report(make_rows(noise=1e-3))
  kinds = [row['kind'] for row in rows]
  assert kinds == ['mean'] * 4 + ['fit'] * 3
  assert rows[0]['ne_std'] > 0 and rows[-1]['b'] == 0.0053
  root = ET.fromstring(gr_scaling.draw(rows))
  drawn = [p.get('class') for p in root.iter(f'{SVG}path')]
  assert drawn.count('curve blue') >= 2
  # A line of the fit has two ends; the paper's is another.
  lines = [
    p.get('d') for p in root.iter(f'{SVG}path') if 'dashes' in p.get('class')
  ]
  assert {d.count('L') for d in lines} == {0, 1}
  # One size has no fit, and is drawn nevertheless.
  assert len(gr_scaling.report(make_rows()[:1])) == 1


def test_a_run_beyond_the_budget_is_not_begun(tmp_path, monkeypatch, capsys):
  begun = []

  def sweep(args, name, cases, *, may_start, **rest):
    del args, name, rest
    rows = []
    for case in cases:
      if may_start(case, rows):
        begun.append(case)
        rows.append({'model': case, 'pflop': cost[case], 'core_s': 1000.0})

  cost = dict(zip(gr_scaling.CASES, (1.0, 1.5, 3.0, 12.0), strict=True))
  monkeypatch.setattr(gr_runs, 'sweep', sweep)
  monkeypatch.setattr(gr_scaling, 'count_compute', lambda *_: cost)
  # 1,000 and then 1,500, 2,000, 4,000 expected: the last is too much.
  gr_scaling.main(['--runs', str(tmp_path), '--budget', f'{6000 / 3600}'])
  assert begun == ['dim16', 'dim32', 'dim64']
  assert 'dim128: not begun, 3,000 core-seconds' in capsys.readouterr().out


def test_a_run_costs_what_another_seed_did():
  rows = [
    {'model': 'dim16', 'core_s': 7.0, 'pflop': 1.0},
    {'model': 'dim16', 'core_s': 9.0, 'pflop': 1.0},
  ]
  cost = {'dim16': 1.0, 'dim64': 4.0}
  assert gr_scaling.expect_cost('dim16', rows, cost) == 9.0
  assert gr_scaling.expect_cost('dim64', rows[:1], cost) == 28.0
  assert gr_scaling.expect_cost('dim64', [], cost) == 0.0


def test_only_runs_that_are_finished_need_no_budget(tmp_path):
  args = argparse.Namespace(
    runs=tmp_path, only=[], finished=True, smoke=False, results=str(tmp_path)
  )
  gr_runs.sweep(
    args, 'gr_scaling', gr_scaling.CASES, measure=None, report=None,
    columns=(), notes=(),
  )  # fmt: skip
  assert not [*tmp_path.glob('*/*.json')]
