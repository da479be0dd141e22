"""Learning rates that fall where the results no longer rise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.train.plateau import lower_rate
from tests.train import tiny_run
from tests.train.tiny_run import train


@dataclasses.dataclass(frozen=True)
class State:
  lr_scale: jax.Array


def test_rates_fall_after_every_evaluation_that_is_not_better(
  scripted, tmp_path, said
):
  """And a run that is continued knows it; nothing falls below the least."""
  overrides = (
    'optimizer.plateau_factor=0.5',
    'optimizer.plateau_min=0.2',
    'train.keep_checkpoints=99',
    'train.eval_every=2',
    'train.checkpoint_every=2',
  )
  results = (0.3, 0.3, 0.4, 0.1, 0.2, 0.3)  # at steps 2, 4, ..., 12
  scripted(*results)
  train(tmp_path, 'train.steps=8', *overrides)
  scripted(*results[4:])
  train(tmp_path, 'train.steps=12', *overrides)
  scales = {2: 1, 4: 0.5, 6: 0.5, 8: 0.25, 10: 0.2, 12: 0.2}
  for step, scale in scales.items():
    found = tiny_run.weights(tmp_path, step=step)['lr_scale']
    assert found == np.float32(scale), step
  assert said().count('learning rates are now times 0.2') == 2  # .25, .2


def test_a_floor_in_units_of_the_rate():
  """FuxiCTR's: a rate of 5e-4 falls to 1e-6 and no further."""
  config = tiny_run.config(
    'optimizer.learning_rate=5e-4',
    'optimizer.plateau_factor=0.1',
    'optimizer.plateau_min=0',
    'optimizer.plateau_min_rate=1e-6',
  )
  state = State(jnp.float32(1.0))
  rates = []
  for _ in range(4):
    state = lower_rate(state, config.optimizer)
    rates.append(float(state.lr_scale) * config.optimizer.learning_rate)
  assert rates == pytest.approx([5e-5, 5e-6, 1e-6, 1e-6])


def test_at_a_rate_of_zero_weights_and_rows_stand_still(scripted, tmp_path):
  scripted(0.3, 0.2, 0.1)
  overrides = (
    'optimizer.rows.name=row_sgd',
    'loss.sampler=shared',
    'optimizer.name=sgd',
    'optimizer.plateau_factor=0',
    'optimizer.plateau_min=0',
    'train.steps=9',
    'train.keep_checkpoints=3',
    'train.checkpoint_every=1',
  )
  train(tmp_path, *overrides)
  # Step 8 is the first whose evaluation is not better.
  before, at, after = (
    tiny_run.weights(tmp_path, step=step, overrides=overrides)
    for step in (7, 8, 9)
  )
  learnt = [n for n in at if n.startswith(('params/', 'tables/'))]
  moved = {n.partition('/')[0] for n in learnt if np.any(before[n] != at[n])}
  assert moved == {'params', 'tables'}
  tiny_run.assert_same_bits(
    {n: after[n] for n in learnt}, {n: at[n] for n in learnt}
  )
