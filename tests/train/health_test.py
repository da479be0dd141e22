"""A run that has diverged is told, and neither published nor best."""

import json

import numpy as np
import pytest

from genrec_jax.checkpoint import manifest
from genrec_jax.train.health import Health
from tests.train.tiny_run import train

ROWS = ('optimizer.rows.name=row_adagrad', 'loss.sampler=shared')


def test_a_rate_that_explodes(tmp_path, said):
  """Nothing is NaN, and all items tie."""
  overrides = (
    'optimizer.learning_rate=1e30',
    'optimizer.rows.learning_rate=1e30',
    'train.steps=12',
    'checkpoint.publish.every=2',
    *ROWS,
  )
  report = train(tmp_path, *overrides)
  assert report['diverged']['step'] == 2
  assert 'This run diverged at step 2: ' in said()
  assert 'diverged at step 2: ' in report['notes'][0]
  assert 'No step is the best by ndcg@10' in report['notes'][1]
  for name in ('best', 'published'):
    assert manifest.list_steps(tmp_path / name) == [], name
  assert manifest.list_steps(tmp_path / 'checkpoints') == [8, 12]
  assert json.loads((tmp_path / 'report.json').read_text())['diverged']
  assert 'diverged at step 2' in (tmp_path / 'report.html').read_text()
  # A run that continues still knows it.
  (tmp_path / 'report.json').unlink()
  again = train(tmp_path, *overrides[1:], overrides[0])
  assert again['diverged'] == report['diverged']


@pytest.mark.parametrize(
  'lines, step',
  [
    ([(2.8, 1.0), (2.8, 0.0), (2.7, 0.0), (2.9, 0.0)], 4),
    ([(0.0, 0.0)] * 9, None),  # there is nothing left to learn
    ([(2.8, 0.1 * n) for n in range(9)], 5),
    ([(2.8, 0.0), (2.8, 1.0)] * 2, None),
    ([(0.69, 1.0), *[(0.59, 1e-8)] * 9], None),  # full batches, converged
    ([(1e-5, 1.0), *[(0.02 + n / 1e4, 1.0) for n in range(5)]], None),
    ([(1.0, 1.0), *[(1e4 + n, 1.0) for n in range(5)]], 4),
    ([(1.0, 1.0), (1e4, 1.0), (1.1, 1.0), (1e4, 1.0), (1e5, 1.0)], None),
    ([(-1.0, 1.0), *[(1e4 + n, 1.0) for n in range(5)]], None),
    ([(1.0, 1.0), (np.nan, np.nan), (1.0, 1.0)], None),
  ],
)
def test_lines_of_the_log(lines, step):
  """A run that is continued anywhere sees the same."""
  health = Health()
  for number, (loss, norm) in enumerate(lines, 1):
    health = Health(json.loads(json.dumps(health.values)))
    health.observe_line(number, {'loss': loss, 'grad_norm': norm})
  assert (health.diverged and health.diverged['step']) == step
