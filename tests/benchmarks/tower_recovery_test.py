"""The benchmark of the tower partitioner, and how it scores."""

import doctest
import itertools

import numpy as np
import pytest

from benchmarks import tower_recovery as bench


def plain_adjusted_rand(a, b):
  """By counting pairs of members one by one."""
  pairs = list(itertools.combinations(range(len(a)), 2))
  first = np.array([a[i] == a[j] for i, j in pairs], float)
  second = np.array([b[i] == b[j] for i, j in pairs], float)
  chance = first.sum() * second.sum() / len(pairs)
  most = (first.sum() + second.sum()) / 2
  return ((first * second).sum() - chance) / (most - chance)


def test_the_score_is_that_of_counted_pairs():
  rng = np.random.default_rng(0)
  for _ in range(20):
    a, b = rng.integers(4, size=(2, 15)).tolist()
    found = bench.adjusted_rand(a, b)
    np.testing.assert_allclose(found, plain_adjusted_rand(a, b), atol=1e-12)
    assert bench.adjusted_rand(a, [f't{3 - x}' for x in a]) == 1
  scores = [
    bench.adjusted_rand(*rng.permuted([np.arange(16) % 4] * 2, axis=1))
    for _ in range(300)
  ]
  assert abs(np.mean(scores)) < 0.02
  assert bench.adjusted_rand('abc', 'xyz') == 1
  assert doctest.testmod(bench).failed == 0


@pytest.mark.slow
def test_smoke_trains_and_judges_every_strategy(tmp_path, rows):
  bench.main(
    ['--smoke', '--results', str(tmp_path), '--runs', str(tmp_path / 'runs')]
  )
  found = rows('tower_recovery')
  assert {f'2k/{strategy}' for strategy in bench.STRATEGIES} <= set(found)
  assert {'16 samples/2k', 'as above/coherent'} <= set(found)
  for row in found.values():
    assert -0.5 <= row['ari_least'] <= row['ari'] <= 1
    assert ('stress' in row) == (
      row['strategy'] not in ('round_robin', 'random')
    )


@pytest.mark.parametrize('name', bench.SETTINGS)
def test_settings_are_logs_and_models_that_there_are(name):
  log, model = bench.SETTINGS[name]
  config = bench.make_config(1_000, 0, 8, log, model)
  assert config.data.clicks.blocks == (log.get('blocks') or 4)
  assert config.model.interaction == model.get('interaction', 'dot')
