"""A run that has diverged is told, and neither published nor best."""

import json
import types

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import manifest
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from genrec_jax.train.experiment import build_experiment
from genrec_jax.train.health import Health
from genrec_jax.weights.export import export_weights
from tests.train.tiny_run import config, train

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
  assert said().endswith(report['notes'][0])  # and not the path of the report
  assert 'No step is the best by ndcg@10' in report['notes'][1]
  for name in ('best', 'published'):
    assert manifest.list_steps(tmp_path / name) == [], name
  assert manifest.list_steps(tmp_path / 'checkpoints') == [8, 12]
  assert json.loads((tmp_path / 'report.json').read_text())['diverged']
  assert 'diverged at step 2' in (tmp_path / 'report.html').read_text()
  # Nor are its weights handed out without a word.
  task = build_experiment(config(*overrides), tmp_path, TASK_KINDS, print).task
  for hand_out in (
    lambda: load_weights(tmp_path, task, 'best'),
    lambda: export_weights(tmp_path, tmp_path / 'weights'),
  ):
    hand_out()
    line = said().splitlines()[-1]
    assert 'weights of step 12 in' in line and 'diverged at step 2: ' in line
  # A run that continues still knows it.
  (tmp_path / 'report.json').unlink()
  again = train(tmp_path, *overrides[1:], overrides[0])
  assert again['diverged'] == report['diverged']


def test_an_explosion_within_the_first_line(tmp_path, said):
  """The first step is the measure, and no further line is waited for."""
  wild = config_lib.ranking_smoke(config_lib.ranking())
  wild.model = config_lib.lr()
  wild.optimizer.learning_rate = 1e4
  wild.optimizer.rows.name = 'row_adagrad'
  wild.checkpoint.publish.every = 4
  wild.train.update(steps=8, log_every=4, eval_every=4)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(wild, tmp_path, TASK_KINDS)
  assert report['diverged']['step'] == 4, said()
  assert ' the loss was ' in said() and ', at first 0.' in said()
  for name in ('best', 'published'):
    assert manifest.list_steps(tmp_path / name) == [], name


FIRST = (2.8, 1.0)
EXPLODED = [(1e12 * n, 1.0) for n in range(1, 6)]


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
    ([FIRST, *[(1400.0 + n, 1.0) for n in range(5)]], 4),
    ([FIRST, *[(np.inf, 1.0)] * 3], 4),  # a sum beyond float32
    ([FIRST, *[(8.0 + n, 1e15) for n in range(5)]], 4),
    ([FIRST, *[(2.0 + n / 10, 1e15) for n in range(5)]], None),  # clipped
    ([(0.7, 1e-9), *[(0.7 - n / 99, 10.0) for n in range(5)]], None),
    ([FIRST, *[(1.9, 1e-30)] * 5], 4),
    ([FIRST, *[(0.001, 0.0)] * 9], None),  # a hinge that has learned
    ([FIRST, (2.6, 1.0), *[(2.55, 1.0)] * 5], 7),
    ([(0.69, 1.0), *[(0.65, 1e-6)] * 9], None),  # full batches, converged
    ([(1.0, 0.1), *[(0.4, 0.2)] * 9], None),  # and against a weight decay
    ([(-1.0, 1.0), *[(-1.0 - n, 1.0) for n in range(9)]], None),
    # What was a spike, a slow start or an early rest is withdrawn.
    ([FIRST, *EXPLODED, *[(2.8 - n / 9, 1.0) for n in range(3)]], None),
    ([FIRST, *EXPLODED, *[(2.8 - n / 9, 1.0) for n in range(2)]], 4),
    ([*[(2.8, 0.0)] * 6, *[(2.8 - n / 9, 1.0) for n in range(5)]], None),
  ],
)
def test_lines_of_the_log(lines, step):
  """A run that is continued anywhere sees the same."""
  health = Health()
  for number, (loss, norm) in enumerate(lines, 1):
    health = Health(json.loads(json.dumps(health.values)))
    health.observe_line(number, {'loss': loss, 'grad_norm': norm})
  assert (health.diverged and health.diverged['step']) == step


def test_a_checkpoint_of_an_earlier_version():
  """It knew of the first line alone, and kept one verdict."""
  why = {'step': 30, 'why': 'it was so'}
  lines = [[10, 2.8, 1.0], [20, 9e9, 1.0], [30, 9e9, 1.0]]
  health = Health({'first_loss': 2.8, 'lines': lines, 'diverged': why})
  health.observe_line(40, {'loss': 9e9, 'grad_norm': 1.0})
  assert health.diverged == why


def test_one_evaluation_is_no_verdict_for_ever(said):
  health, evaluator = Health(), types.SimpleNamespace(scores_are_alike=True)
  health.observe_scores(8, 'valid', evaluator)
  assert health.diverged['step'] == 8
  health.observe_scores(12, 'test', evaluator)
  evaluator.scores_are_alike = False
  health.observe_scores(12, 'test', evaluator)
  assert health.diverged['step'] == 8
  health.observe_scores(16, 'valid', evaluator)
  assert not health.diverged
  assert 'Step 12: all examples of the test split score alike' in said()
  assert 'recovered at step 16. It had diverged at step 8: all exa' in said()
