"""Predictors that count, against loops; MovieLens and Yambda by them."""

import collections
import json

import numpy as np
import pytest

from benchmarks import gr_counts, gr_ml1m, gr_yambda, runs, yambda_log
from genrec_jax import config as config_lib
from genrec_jax.data.requests import datasets
from genrec_jax.data.requests.yambda import YambdaOptions

pytest.importorskip('pyarrow')


def bound(chance):
  return min(max(chance, gr_counts.LEAST), 1 - gr_counts.LEAST)


def count_slowly(dataset, listens, positive):
  """Popularity and biases of the test, candidate by candidate."""
  (label,), (item,) = dataset.splits['train'].labels, dataset.spec.items
  train, test = dataset.splits['train'], dataset.splits['test']
  seen = collections.defaultdict(list)
  for film, liked in zip(
    train.items[item.name], train.labels[label], strict=True
  ):
    seen[int(film)].append(float(liked))
  mean = np.mean([y for values in seen.values() for y in values])
  popular, biased = [], []
  for number, user in enumerate(test.user):
    first, last = dataset.events.offsets[user], test.end[number]
    total, count = 0.0, 0
    for place in range(first, last):
      action = int(dataset.events.action[place])
      if action & listens:
        film = seen[int(dataset.events.items[item.name][place])]
        above = sum(y - mean for y in film) / (len(film) + 10)
        total += bool(action & positive) - mean - above
        count += 1
    for place in range(test.offsets[number], test.offsets[number + 1]):
      film = seen[int(test.items[item.name][place])]
      popular.append((sum(film) + 10 * mean) / (len(film) + 10))
      above = sum(y - mean for y in film) / (len(film) + 10)
      biased.append(bound(mean + above + total / (count + 10)))
  return popular, biased


@pytest.mark.parametrize('edition', gr_ml1m.EDITIONS)
def test_likes_are_counted_one_by_one(tmp_path, edition):
  gr_ml1m.write_ratings(tmp_path / edition, edition)
  dataset = datasets.DATASETS['movielens'](tmp_path / edition)
  popular, biased = count_slowly(dataset, 31, 8 + 16)
  found = gr_counts.predict_popularity(dataset, 'test')
  np.testing.assert_allclose(found, popular)
  found = gr_counts.predict_biases(
    dataset, 'test', lambda action: (action & gr_ml1m.LIKED) > 0
  )
  np.testing.assert_allclose(found, biased)


def write_log(folder, users=20, days=5):
  rows = yambda_log.generate_rows(users, days)
  return yambda_log.write(folder, rows), rows


def test_listens_are_counted_one_by_one(tmp_path):
  folder, _ = write_log(tmp_path)
  dataset = datasets.DATASETS['yambda'](folder, YambdaOptions(valid_s=0))
  popular, biased = count_slowly(dataset, 1 + 4, 1)
  np.testing.assert_allclose(
    gr_counts.predict_popularity(dataset, 'test'), popular
  )
  found = gr_counts.predict_biases(
    dataset, 'test', lambda a: (a & 1) > 0, lambda a: (a & 5) > 0
  )
  np.testing.assert_allclose(found, biased)


def test_counts_are_measured_as_models_are(tmp_path):
  folder, _ = write_log(tmp_path)
  dataset = datasets.DATASETS['yambda'](folder, YambdaOptions(valid_s=0))
  labels = dataset.splits['test'].labels['listen_plus']
  rate = labels.mean()
  found = gr_counts.measure(dataset, 'test', np.full(len(labels), rate))
  assert found['ne'] == pytest.approx(1, abs=1e-6)
  assert found['calibration'] == pytest.approx(1, abs=1e-6)
  assert found['auc'] == pytest.approx(0.5)
  found = gr_counts.measure(dataset, 'test', 0.1 + 0.8 * labels)
  assert found['auc'] == 1 and found['ne'] < 1


def test_the_log_has_the_published_layout(tmp_path):
  import pyarrow.parquet as pq

  folder, rows = write_log(tmp_path)
  table = pq.read_table(folder / 'multi_event.parquet')
  kinds = {field.name: str(field.type) for field in table.schema}
  assert kinds == yambda_log.KINDS
  moments = [(row['uid'], row['timestamp']) for row in table.to_pylist()]
  assert moments == sorted(moments) and len({*moments}) < len(moments)
  assert all(time % 5 == 0 for _, time in moments)
  listens = [
    (row['uid'], row['timestamp'])
    for row in rows
    if row['event_type'] == 'listen'
  ]
  assert len({*listens}) < 0.99 * len(listens)
  first, last = min(t for _, t in moments), max(t for _, t in moments)
  assert 26_000_000 - 5 * 86_400 <= first and last < 26_000_000
  for row in table.to_pylist():
    is_listen = row['event_type'] == 'listen'
    assert (row['played_ratio_pct'] is None) != is_listen
  # All users are known in training, and every day has listens.
  assert len({uid for uid, _ in moments}) == 20
  assert rows == yambda_log.generate_rows(20, 5)


def test_what_the_log_was_drawn_with_cannot_be_beaten(tmp_path):
  rows = yambda_log.generate_rows(300, 3)
  found = gr_yambda.measure_truth(rows, 'x')
  asked = [
    row
    for row in rows
    if row['event_type'] == 'listen' and row['timestamp'] >= 25_913_600
  ]
  assert found['candidates'] == len(asked) > 1000
  assert found['test_calibration'] == pytest.approx(1, abs=0.05)
  assert 0.8 < found['test_auc'] < 0.9 and found['test_ne'] < 0.8
  # The reader finds the same listens, and the same labels.
  folder = yambda_log.write(tmp_path, rows)
  dataset = datasets.DATASETS['yambda'](folder, YambdaOptions(valid_s=0))
  test = dataset.splits['test']  # in order of time; the rows go by user
  by_user = np.argsort(
    np.repeat(test.user, np.diff(test.offsets)), kind='stable'
  )
  labels = test.labels['listen_plus'][by_user]
  assert labels.tolist() == [row['played_ratio_pct'] >= 50 for row in asked]


@pytest.fixture
def training(monkeypatch):
  """Replaces training by a curve of the held-out day."""

  def train(config, workdir, overrides, env=None):
    loaded = config_lib.load(str(runs.ROOT / config), overrides)
    seed = loaded.seed
    workdir.mkdir(parents=True)
    # Seed 2 never reaches the target.
    curve = [(20, 0.7), (40, 0.76 - 0.03 * (seed == 2)), (60, 0.74)]
    test = dict(auc=0.74, gauc=0.6, logloss=0.5, ne=0.9, calibration=1.0)
    lines = [
      {'step': s, 'test/auc': auc, 'test/ne': 0.9, 'valid/ne': 1 - auc}
      for s, auc in curve
    ]
    (workdir / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    report = {
      'config': json.loads(config_lib.to_json(loaded)),
      'seed': seed,
      'metrics': {'test': test},
      'baselines': {'popularity': {'test': {'ne': 0.95}}},
      'splits': {'train': {'requests': 477}},
      'best_step': 40,
      'steps': 60,
      'tokens_per_s': 10.0,
      'train_s': 7.0,
      'core_s': 20.0,
      'train_core_s': 10.0,
      'parameters': {'model': 5, 'tables': 6},
    }
    (workdir / 'report.json').write_text(json.dumps(report))

  monkeypatch.setattr(runs, 'train', train)


def test_samples_until_the_target(tmp_path, rows, training):
  gr_yambda.main(
    ['--smoke', '--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
  )
  found = rows('gr_yambda')
  # Batches of 8; the last one of the pass is not full.
  assert found['generated/stu/seed0']['samples_to_target'] == 320
  assert found['generated/stu/seed0']['curve'][-1][0] == 477
  assert found['generated/stu/seed2']['samples_to_target'] is None
  mean = found['generated/stu']
  assert mean['reached'] == '2 of 3' and mean['samples_to_target'] == 320
  # 2e-3 for batches of 8, where the rules have 8e-6 / 8,192.
  assert mean['rate_x'] == pytest.approx(2e-3 / (8e-6 / 8192), rel=1e-4)
  assert {row['data'] for row in found.values()} == {
    'generated, 40 users, 5 days'
  }
  assert found['generated/chances']['test_auc'] > 0.8
  assert found['generated/popularity']['test_ne'] > 0.8


def test_the_rules_of_real_files(tmp_path, rows, training):
  write_log(tmp_path / '50m')
  gr_yambda.main(
    ['--data', str(tmp_path / '50m'), '--batch', '1024', '--only']
    + ['50m/stu/seed0', '--runs', str(tmp_path / 'runs')]
    + ['--results', str(tmp_path)]
  )
  found = rows('gr_yambda')
  assert found['50m/stu/seed0']['rate_x'] == pytest.approx(1)
  assert found['50m/stu']['data'] == '50m'
  assert not any('generated' in case for case in found)


def test_rows_of_movielens(tmp_path, rows, training):
  gr_ml1m.main(
    ['--smoke', '--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
    + ['--only', 'ml-1m/stu/seed0', 'ml-1m/stu/seed1', 'ml-100k/dlrm/seed0']
  )
  found = rows('gr_ml1m')
  assert found['ml-1m/stu']['seeds'] == 2 and found['ml-1m/stu']['epoch'] == 2
  assert found['ml-100k/dlrm']['edition'] == 'ml-100k'
  counted = [case for case, row in found.items() if row['kind'] == 'count']
  assert counted == [
    f'{edition}/{name}'
    for edition in ('ml-1m', 'ml-100k')
    for name in ('popularity', 'biases')
  ]
  with pytest.raises(SystemExit):
    gr_ml1m.main(['--runs', str(tmp_path)])


@pytest.mark.slow
def test_a_run_says_the_popularity_that_is_counted(tmp_path, rows):
  gr_ml1m.main(
    ['--smoke', '--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
    + ['--only', 'ml-100k/dlrm/seed0']
  )
  found = rows('gr_ml1m')
  assert found['ml-100k/popularity']['test_ne'] == pytest.approx(
    found['ml-100k/dlrm/seed0']['popularity_ne'], rel=1e-4
  )


def test_the_variant_follows_the_rules():
  config = config_lib.load('gr_yambda:mlperf')
  data, rates = config.data, config.optimizer
  assert (data.yambda.test_s, data.yambda.gap_s) == (86_400, 1_800)
  assert (data.yambda.valid_s, data.yambda.candidates) == (0, 1)
  assert data.yambda.threshold == 50 and config.model.dtype == 'bfloat16'
  assert (rates.name, rates.rows.name) == ('adam', 'row_adagrad')
  assert rates.learning_rate == rates.rows.learning_rate
  assert rates.learning_rate == 1e-6 * config.train.batch_size / 8192
  assert not config.train.shuffle and config.train.epochs == 1
  with pytest.raises(config_lib.ConfigError, match='exclude each other'):
    config_lib.load('gr_yambda:mlperf,dlrm')
