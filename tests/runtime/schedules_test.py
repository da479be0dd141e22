"""Learning rates by the step, against their formulas."""

import doctest
import math

import pytest

from genrec_jax.config import ConfigError
from genrec_jax.runtime import schedules

pytestmark = pytest.mark.usefixtures('optax_promotes')

RATE, WARM, END, LEAST = 0.2, 4, 12, 0.25


def fall(name, step):
  """The rate after the warm-up."""
  share = min((step - WARM) / (END - WARM), 1)
  return (
    RATE
    * {
      'constant': 1,
      'linear': 1 + (LEAST - 1) * share,
      'cosine': LEAST + (1 - LEAST) * (1 + math.cos(math.pi * share)) / 2,
      'inverse_sqrt': max(LEAST, math.sqrt(WARM / min(step, END))),
      'exponential': LEAST**share,
    }[name]
  )


@pytest.mark.parametrize('name', schedules.SCHEDULES)
def test_every_step_of_a_schedule(name):
  rate = schedules.build_schedule(
    RATE, name, warmup_steps=WARM, decay_steps=END, end_factor=LEAST
  )
  rise = [RATE * (i + 1) / WARM for i in range(WARM)]
  expected = rise + [fall(name, step) for step in range(WARM, 20)]
  found = [float(rate(step)) for step in range(20)]
  assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('name', schedules.SCHEDULES)
def test_without_a_warm_up_the_first_step_has_the_whole_rate(name):
  rate = schedules.build_schedule(
    RATE, name, decay_steps=8, end_factor=LEAST * (name == 'exponential')
  )
  assert float(rate(0)) == pytest.approx(RATE)
  assert 0 <= float(rate(8)) <= RATE == pytest.approx(float(rate(0)))
  assert float(rate(8)) == float(rate(100))


@pytest.mark.parametrize('steps', [1, 2, 7])
def test_the_last_step_of_a_warm_up_has_the_whole_rate(steps):
  rate = schedules.build_schedule(RATE, warmup_steps=steps)
  found = [float(rate(step)) for step in range(steps + 2)]
  expected = [RATE * min(1, (i + 1) / steps) for i in range(steps + 2)]
  assert found == pytest.approx(expected, rel=1e-6)


def test_a_factor_that_leaves_nothing_is_refused():
  with pytest.raises(ConfigError, match='end_factor is 0'):
    schedules.build_schedule(RATE, 'exponential', decay_steps=8)


def test_the_root_has_a_least_value_and_needs_no_end():
  rate = schedules.build_schedule(
    1.0, 'inverse_sqrt', warmup_steps=4, end_factor=0.1
  )
  assert float(rate(36)) == pytest.approx(1 / 3)
  assert float(rate(10_000)) == pytest.approx(0.1)


@pytest.mark.parametrize(
  'fields, words',
  [
    (
      dict(schedule='cosin'),
      "optimizer.schedule is 'cosin', must be one of co",
    ),
    (
      dict(schedule='linear'),
      "decay_steps is 0, the length.*schedule='linear'",
    ),
    (dict(end_factor=1.5), r'optimizer.end_factor is 1.5, must be in \[0, 1\]'),
    (dict(warmup_steps=-1), 'optimizer.warmup_steps is -1, must not be neg'),
    (dict(decay_steps=-1), 'optimizer.decay_steps is -1, must not be neg'),
    (
      dict(schedule='cosine', decay_steps=5, warmup_steps=5),
      'decay_steps is 5 .* must be more than warmup_steps, which are 5',
    ),
  ],
)
def test_what_makes_no_schedule(fields, words):
  with pytest.raises(ConfigError, match=words):
    schedules.build_schedule(1.0, **fields)


def test_a_fall_of_a_single_step():
  rate = schedules.build_schedule(
    1.0, schedule='linear', decay_steps=6, warmup_steps=5
  )
  assert [float(rate(step)) for step in (5, 6)] == [1.0, 0.0]


def test_the_examples_of_the_module():
  assert doctest.testmod(schedules).failed == 0
