"""The benchmark of request times, without its trainings."""

import json

import pytest

from benchmarks import request_time, runs


def test_rows_are_means_over_seeds(tmp_path, monkeypatch, rows):
  asked = []

  def train(config, workdir, overrides):
    workdir.mkdir(parents=True)
    return {'core_s': 10.0}

  def start(checkout, config, workdir, overrides, *, mode):
    [way] = [x for x in overrides if x.startswith('eval.request_time=')]
    asked.append((workdir.name, way, mode))
    value = 0.2 if way.endswith('target') else 0.1
    value += 0.02 * (workdir.name == 'seed1')
    metrics = dict.fromkeys(request_time.METRICS, value)
    text = json.dumps({'metrics': {'test': metrics}})
    (workdir / 'eval.json').write_text(text)

  monkeypatch.setattr(runs, 'train_once', train)
  monkeypatch.setattr(runs, 'start', start)
  request_time.main(
    [
      *('--data', 'x', '--runs', str(tmp_path / 'runs'), '--seeds', '0,1'),
      *('--results', str(tmp_path)),
    ]
  )
  measured = rows('request_time')
  assert measured['target']['hr@10'] == pytest.approx(0.21)
  assert measured['last_event']['of_target_x'] == pytest.approx(
    0.11 / 0.21, 1e-3
  )
  assert measured['last_event']['mrr_std'] == pytest.approx(0.01414, 1e-2)
  assert len(asked) == 4 and {mode for *_, mode in asked} == {'eval'}
