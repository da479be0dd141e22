"""Workdirs of finished runs, written by hand."""

import json

import jax
import pytest

from benchmarks import runs
from genrec_jax import config as config_lib

METRICS = ('hr@10', 'ndcg@10', 'hr@50', 'ndcg@50', 'hr@200', 'ndcg@200')


@pytest.fixture(autouse=True)
def standard_promotion():
  """Training steps contain optax, which promotes its step count."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture
def finished(tmp_path):
  """Writes the workdir of a run: `finished('configs/hstu_ml1m.py')`."""

  def write(config, name='run', *, level=0.3, parts=('test',), **overrides):
    config = config_lib.load(
      str(runs.ROOT / config),
      [f'{k.replace("__", ".")}={v}' for k, v in overrides.items()],
    )
    workdir = tmp_path / name
    workdir.mkdir(parents=True)
    steps = 100
    # The curve peaks before its end.
    curve = [(25, 0.8), (50, 0.9), (75, 1.0), (100, 0.95)]
    lines = [
      {'step': step} | {f'{part}/{m}': level * share for m in METRICS}
      for step, share in curve
      for part in parts
    ]
    lines.insert(0, {'step': 10, 'train/loss': 3.0})
    (workdir / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in lines)
    )
    last = {p: dict.fromkeys(METRICS, level * 0.95) for p in parts}
    best = {p: dict.fromkeys(METRICS, level) for p in parts}
    validated = 'valid' in parts
    popular = {p: dict.fromkeys(METRICS, 0.01) for p in parts}
    report = {
      'config': json.loads(config_lib.to_json(config)),
      'seed': config.seed,
      'metrics': best if validated else last,
      'last_epoch': last,
      'baselines': {'popularity': popular},
      'best_step': 75 if validated else steps,
      'steps': steps,
      'wall_s': 60.0,
      'core_s': 110.0,
      'train_core_s': 100.0,
      'eval_core_s': 10.0,
      'devices': '1 x cpu',
    }
    (workdir / 'report.json').write_text(json.dumps(report))
    return workdir

  return write


@pytest.fixture
def rows(tmp_path):
  """Rows of the result file a benchmark wrote to `tmp_path`, by case."""

  def read(name):
    (path,) = tmp_path.glob(f'*/{name}.json')
    return {r['case']: r for r in json.loads(path.read_text())['rows']}

  return read
