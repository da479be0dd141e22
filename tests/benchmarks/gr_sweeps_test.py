"""Sweeps of models of requests, on workdirs that are written by hand."""

import json
import math

import numpy as np
import pytest

from benchmarks import (
  gr_runs,
  gr_streaming,
  runs,
  stochastic_length,
  stochastic_length_runs,
)
from genrec_jax import config as config_lib


@pytest.fixture
def training(monkeypatch):
  """Replaces training; says what is trained, in order.

  NE is .8, .01 more for each seed, and less what `gains` says of a case.
  """
  trained, gains, tokens = [], {}, {}

  def train(config, workdir, overrides, env=None):
    trained.append(workdir.name)
    case, _, seed = workdir.name.rpartition('_seed')
    loaded = config_lib.load(str(runs.ROOT / config), overrides)
    workdir.mkdir(parents=True)
    ne = 0.8 + 0.01 * int(seed) - gains.get(case, 0.0)
    # Half of the candidates are liked: log loss is NE times ln 2.
    lines = [
      {'step': 10 * i}
      | {
        f'next/{key}': value
        for key, value in dict(
          ne=ne + extra,
          logloss=(ne + extra) * math.log(2),
          auc=1 - ne / 2,
          rate=0.5,
          candidates=100.0,
        ).items()
      }
      for i, extra in enumerate([0.1] * 3 + [0.0] * 16)
    ]
    (workdir / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    test = dict(auc=0.7, gauc=0.6, logloss=0.5, ne=ne + 0.1, calibration=1.0)
    report = {
      'config': json.loads(config_lib.to_json(loaded)),
      'seed': int(seed),
      'metrics': {'test': test},
      'steps': 130,
      'tokens_per_s': tokens.get(case, 1000) / 7,
      'train_s': 7.0,
      'core_s': 20.0,
      'train_core_s': 10.0,
      'parameters': {'model': 5, 'tables': 6},
    }
    (workdir / 'report.json').write_text(json.dumps(report))

  monkeypatch.setattr(runs, 'train', train)
  trained_by = type('Training', (), {})()
  trained_by.trained, trained_by.gains = trained, gains
  trained_by.tokens = tokens
  return trained_by


def test_a_sweep_trains_what_has_not_ended(tmp_path, rows, training):
  results = ['--results', str(tmp_path)]
  options = ['--runs', str(tmp_path / 'runs'), *results]
  only = ['--only', 'stu/seed0', 'dlrm/seed1']
  gr_streaming.main([*options, *only])
  assert training.trained == ['stu_seed0', 'dlrm_seed1']
  gr_streaming.main([*options, *only])
  assert len(training.trained) == 2
  gr_streaming.main([*options, '--only', 'stu/seed1'])
  found = rows('gr_streaming')
  assert found['stu']['seeds'] == 2 and found['dlrm']['seeds'] == 1
  # The last 16 steps, and all 19 of equally many candidates.
  assert found['stu/seed1']['ne'] == pytest.approx(0.81, abs=1e-4)
  assert found['stu/seed1']['ne_all'] == pytest.approx(
    0.81 + 0.1 * 3 / 19, abs=1e-4
  )
  assert found['stu']['ne'] == pytest.approx(0.805, abs=1e-4)
  assert found['stu']['ne_std'] == pytest.approx(0.01 / 2**0.5, rel=1e-2)
  assert found['stu']['users'] == 400 and found['stu']['tokens'] == 1000
  with pytest.raises(SystemExit, match='no case'):
    gr_streaming.main([*options, '--only', 'sttu/seed0'])


def test_a_row_is_written_before_the_next_run_begins(
  tmp_path, rows, training, monkeypatch
):
  train, seen = runs.train, []

  def watch(config, workdir, *args):
    seen.append([*tmp_path.glob('*/gr_streaming.json')] and len(rows(
      'gr_streaming'
    )))  # fmt: skip
    train(config, workdir, *args)

  monkeypatch.setattr(runs, 'train', watch)
  gr_streaming.main(
    ['--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
    + ['--only', 'stu/seed0', 'stu/seed1']
  )
  assert seen == [[], 2]


def test_finished_runs_alone(tmp_path, training, rows):
  results = ['--results', str(tmp_path), '--runs', str(tmp_path / 'runs')]
  gr_streaming.main([*results, '--only', 'wukong/seed2'])
  (path,) = tmp_path.glob('*/gr_streaming.json')
  path.unlink()
  gr_streaming.main([*results, '--finished'])
  assert training.trained == ['wukong_seed2']
  assert [r for r in rows('gr_streaming')] == ['wukong/seed2', 'wukong']


def test_entropy_of_steps_together_is_that_of_their_candidates():
  rng = np.random.default_rng(0)
  steps, labels, losses = [], [], []
  for count in (10, 40):
    label = rng.integers(0, 2, count)
    loss = rng.uniform(0.2, 1.0, count)
    steps.append(
      {'candidates': count, 'rate': label.mean(), 'logloss': loss.mean()}
    )
    labels.append(label)
    losses.append(loss)
  rate = np.concatenate(labels).mean()
  entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
  assert gr_runs.total_ne(steps) == pytest.approx(
    np.concatenate(losses).mean() / entropy
  )


def test_cuts_are_compared_seed_by_seed(tmp_path, rows, training):
  training.gains |= {'alpha_1.6': -0.002, 'alpha_1.8': -0.001}
  training.tokens |= {'alpha_1.6': 300, 'alpha_1.8': 600}
  stochastic_length.main(
    ['--train', '--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
  )
  assert len(training.trained) == 12
  found = rows(stochastic_length_runs.NAME)
  row = found['alpha_1.6']
  # Seeds differ by .01, the differences from whole histories do not.
  assert row['ne_std'] == pytest.approx(0.01, rel=1e-2)
  assert row['ne_gain'] == pytest.approx(0.002, abs=2e-5)
  assert row['ne_gain_std'] < 2e-5 and row['pairs'] == 3
  assert row['ne_gain_text'] == '+0.0020' and row['as_whole'] == 'no'
  assert row['saved'] == pytest.approx(0.7) and row['saved_text'] == '70.0%'
  assert found['alpha_2']['as_whole'] == 'yes'
  assert 'ne_gain' not in found['whole'] and found['paper']
  assert found['alpha_1.8/seed2']['alpha'] == 1.8


def test_a_cut_wants_a_directory():
  with pytest.raises(SystemExit):
    stochastic_length.main(['--train'])


def test_alpha_of_two_reads_as_many_tokens_as_none():
  # By the code that packs batches, of histories around and above N.
  from genrec_jax.data.requests import batches, streaming
  from genrec_jax.data.requests.stochastic_length import StochasticLength

  options = streaming.StreamOptions(
    users=8, items=2_000, steps=20, train_steps=18, inference_events=16,
    inference_candidates=8,
  )  # fmt: skip
  dataset = streaming.generate_requests(options)
  counts = {}
  for name, how in (
    ('none', None), (2.0, StochasticLength(2.0)), (1.6, StochasticLength(1.6)),
  ):  # fmt: skip
    made = batches.train_batches(
      dataset, dataset.splits['train'], batch_size=8, max_history=512,
      max_candidates=8, seed=3, order='stream', stochastic=how, prefetch=0,
    )  # fmt: skip
    some = [next(it) for it in [iter(made)] for _ in range(18)]
    counts[name] = [batch.jagged['history'].lengths.tolist() for batch in some]
  assert counts['none'] == counts[2.0]
  assert np.max(counts['none']) == 512
  assert np.sum(counts[1.6]) < np.sum(counts['none'])
