"""The dense optimizers against their formulas, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding import row_optimizers
from genrec_jax.parallel.single_device import SingleDeviceLayout
from genrec_jax.runtime import optimizer
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures('optax_promotes')


def settings(**fields):
  config = config_lib.retrieval().optimizer
  config.update(learning_rate=0.1, **fields)
  return config


def adam(config, x, grads):
  mean, square = 0.0 * x, 0.0 * x
  for step, grad in enumerate(grads, 1):
    mean = config.b1 * mean + (1 - config.b1) * grad
    square = config.b2 * square + (1 - config.b2) * grad**2
    mean_hat = mean / (1 - config.b1**step)
    square_hat = square / (1 - config.b2**step)
    decay = config.weight_decay if config.name == 'adamw' else 0.0
    direction = mean_hat / (np.sqrt(square_hat) + config.eps) + decay * x
    x = x - config.learning_rate * direction
  return x


def sgd(config, x, grads):
  return x - config.learning_rate * sum(grads)


def adagrad(config, x, grads):
  squares = 0.0 * x
  for grad in grads:
    squares = squares + grad**2
    x = x - config.learning_rate * grad / np.sqrt(squares + config.eps)
  return x


def clipped(config, grads):
  """Every gradient scaled to the norm that is allowed."""
  norms = [np.linalg.norm(g) for g in grads]
  assert min(norms) < config.clip_norm < max(norms)
  return [
    g * min(1.0, config.clip_norm / n)
    for g, n in zip(grads, norms, strict=True)
  ]


@pytest.mark.parametrize(
  'fields, oracle',
  [
    (dict(name='adamw', weight_decay=0.3), adam),
    (dict(name='adamw', clip_norm=3.0), adam),
    (dict(name='adam', weight_decay=0.3, b2=0.999), adam),
    (dict(name='adamw', b1=0.5, weight_decay=0.3), adam),
    (dict(name='adam', b1=0.5, eps=0.1), adam),
    (dict(name='adamw', eps=0.1), adam),
    (dict(name='sgd'), sgd),
    (dict(name='sgd', clip_norm=3.0), sgd),
    (dict(name='adagrad'), adagrad),
    (dict(name='adagrad', eps=0.1), adagrad),
  ],
)
def test_steps_against_the_formula(fields, oracle):
  config = settings(**fields)
  rng = np.random.default_rng(0)
  x = rng.standard_normal(9)
  grads = [scale * rng.standard_normal(9) for scale in (0.1, 1, 3, 0.5)]
  tx = optimizer.build_optimizer(config)
  alone = SingleDeviceLayout(config.clip_norm)
  found = jnp.float32(x)
  state = tx.init(found)
  for grad in grads:
    grad = jnp.float32(grad)
    grad = alone.clip(grad, alone.norm(grad))
    found, state = alone.apply(tx, grad, state, found)
  if config.clip_norm:
    grads = clipped(config, grads)
  assert_close(found, oracle(config, x, grads))


def test_the_norm_is_that_of_all_gradients_together():
  alone = SingleDeviceLayout(clip_norm=1.0)
  grads = {'a': jnp.float32([3.0]), 'b': {'c': jnp.float32([[4.0]])}}
  assert jax.tree.map(jnp.sum, alone.clip(grads, alone.norm(grads))) == {
    'a': pytest.approx(0.6, rel=1e-5),
    'b': {'c': pytest.approx(0.8, rel=1e-5)},
  }


def test_warm_up_is_a_line_and_then_constant():
  rate = optimizer.learning_rate(settings(warmup_steps=4))
  found = [float(rate(step)) for step in range(7)]
  assert found == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1])


def test_rows_warm_up_like_everything_else():
  """Their rate is another, the line has as many steps."""
  config = settings(warmup_steps=4, rows={'learning_rate': 0.3})
  dense, rows = optimizer.learning_rate(config), optimizer.row_rate(config)
  for step in range(7):
    assert float(rows(step)) == pytest.approx(3 * float(dense(step)))


def test_running_statistics_go_a_tenth_of_the_way_at_any_rate():
  x = {'norm': {'running_mean': jnp.float32([4.0]), 'scale': jnp.ones(1)}}
  off = jax.tree.map(lambda leaf: leaf - 2.0, x)
  for lr_scale in (1.0, 0.0):
    tx = optimizer.build_optimizer(settings(name='adam'))
    updates, _ = tx.update(off, tx.init(x), x, lr_scale=lr_scale)
    assert_close(updates['norm']['running_mean'], [-0.2])
    assert np.any(updates['norm']['scale']) == bool(lr_scale)


def test_no_warm_up():
  rate = optimizer.learning_rate(settings())
  assert [float(rate(step)) for step in (0, 5)] == pytest.approx([0.1, 0.1])


def test_an_unknown_name():
  with pytest.raises(ValueError, match="optimizer.name is 'adamax'.*'adamw'"):
    optimizer.build_optimizer(settings(name='adamax'))


# --- Schedules and row optimizers


def schedule(rate, steps=10):
  return [float(rate(step)) for step in range(steps)]


def test_rows_follow_the_dense_schedule_from_their_own_rate():
  config = settings(schedule='cosine', warmup_steps=2, decay_steps=8)
  config.rows.learning_rate = 0.3
  dense = np.array(schedule(optimizer.learning_rate(config)))
  rows = schedule(optimizer.row_rate(config))
  assert rows == pytest.approx(3 * dense, rel=1e-6)
  config.rows.schedule = 'constant'
  rows = schedule(optimizer.row_rate(config))
  assert rows[2:] == pytest.approx([0.3] * 8)
  assert schedule(optimizer.learning_rate(config)) == dense.tolist()


def test_an_unknown_schedule_of_rows():
  with pytest.raises(
    ValueError, match="optimizer.rows.schedule is 'line', must"
  ):
    optimizer.row_rate(settings(rows={'schedule': 'line'}))


def test_row_options_are_those_of_the_row_optimizers():
  config = settings()
  plain = {'stochastic_rounding': True}
  for name in row_optimizers.ROW_OPTIMIZERS:
    made = row_optimizers.find_optimizer(name, **optimizer.row_options(config))
    assert made == row_optimizers.find_optimizer(name, **plain)
  config.rows.update(b1=0.5, b2=0.6, momentum=0.7)
  made = row_optimizers.find_optimizer('adam', **optimizer.row_options(config))
  assert (made.beta1, made.beta2, made.momentum) == (0.5, 0.6, 0.7)


@pytest.mark.parametrize(
  'fields, needed',
  [
    (dict(), False),
    (dict(schedule='inverse_sqrt'), False),
    (dict(schedule='linear'), True),
    (dict(schedule='linear', decay_steps=5), False),
    (dict(rows={'schedule': 'cosine'}), True),
    (dict(groups=(('.*', {'schedule': 'cosine'}),)), True),
    (dict(groups=(('.*', {'schedule': 'cosine', 'b1': 0}),), decay_steps=5), 0),
    (
      dict(
        schedule='linear', groups=(('a', {'decay_steps': 0}),), decay_steps=5
      ),
      True,
    ),
    (dict(groups=('no pair',)), False),
  ],
)
def test_when_the_length_of_the_run_is_needed(fields, needed):
  assert optimizer.needs_total(settings(**fields)) == needed


def test_a_decay_of_the_whole_run_ends_with_it():
  config = config_lib.retrieval()
  groups = (('.*/a', {'decay_steps': 0}), ['.*/b', {'decay_steps': 3}])
  config.optimizer = settings(schedule='linear', groups=groups)
  found = optimizer.resolve_decay(config.lock(), 50).optimizer
  assert found.decay_steps == 50 and config.optimizer.decay_steps == 0
  assert [o['decay_steps'] for _, o in found.groups] == [50, 3]
  assert groups[0][1] == {'decay_steps': 0}
  assert float(optimizer.learning_rate(found)(25)) == pytest.approx(0.05)
