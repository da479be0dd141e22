"""Steps of a supernet: what moves in them, and by what."""

import jax
import numpy as np
import pytest

from genrec_jax.runtime.state import flatten_state
from genrec_jax.train import search
from tests.train.searches import STEPS, build, list_moved, make_config


@pytest.fixture(scope='module', autouse=True)
def mixed_dtypes():
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


def test_what_moves_in_which_steps(tmp_path):
  changes = {
    'tables': "(('c0', {'optimizer': 'row_adagrad'}), ('.*', {}))",
    'search.warmup_epochs': 1,
  }
  config, experiment = build(make_config(**changes), tmp_path)
  runtime, phases = experiment.runtime, experiment.data.supernet.phases
  assert phases.steps == STEPS
  step, state = runtime.step(), runtime.fresh_state()
  batches = iter(experiment.train_batches(config))
  turns = {True: 0, False: 0}
  for number in range(2 * STEPS):
    before = jax.device_get(flatten_state(state))
    state, _ = step(state, next(batches))
    after = jax.device_get(flatten_state(state))
    inner = bool(phases.is_choosing(number))
    turns[inner] += 1
    moved = list_moved(before, after)
    # Schedules go on in all steps.
    moved = [n for n in moved if not n.endswith('/count') or 'adam' in n]
    of_theta = [n for n in moved if 'choices/' in n or 'group_0' in n]
    rest = [n for n in moved if n not in of_theta and n != 'step']
    if inner:
      assert not rest, rest
      assert len(of_theta) >= 3 * len(experiment.task.space.choices)
    else:
      assert not of_theta, of_theta
      assert any(n.startswith('tables/c0@') for n in rest)
      assert 'tables/c1' in rest
      assert any(n.startswith('params/top') for n in rest)
  assert turns == {True: 3, False: 25}


def test_tables_of_a_supernet_have_an_l2_of_their_own(tmp_path):
  changes = {'loss.table_l2': 0.5, 'search.table_l2_factor': 0.2}
  given = make_config(**changes)
  config, experiment = build(given, tmp_path)
  assert given.loss.table_l2 == 0.5  # which models that are found have
  task = experiment.task
  strengths = {spec.l2 for spec in task.tables().values()}
  assert strengths == {0.1} == {config.loss.table_l2}


def test_both_parts_are_read_apart(tmp_path):
  config, experiment = build(make_config(), tmp_path)
  supernet = experiment.data.supernet
  whole = experiment.data.splits['train']
  assert len(supernet.weights) + len(supernet.choices) == len(whole)
  assert 0.15 < len(supernet.choices) / len(whole) < 0.25
  rows = {
    name: {tuple(row) for block in part for row in block.numbers}
    for name, part in vars(supernet).items()
    if name != 'phases'
  }
  assert not rows['weights'] & rows['choices']
  batches = iter(experiment.train_batches(config))
  for number in range(2 * STEPS):
    batch = next(batches)
    real = batch.weights > 0
    seen = {tuple(row) for row in batch.dense.values[real]}
    part = 'choices' if supernet.phases.is_choosing(number) else 'weights'
    assert seen <= rows[part]


def test_a_budget_falls_to_what_is_asked(tmp_path):
  changes = {
    'search.cost_loss': 'budget', 'search.max_flops': 150.0,
    'search.budget_epochs': 2.0, 'search.warmup_epochs': 1,
    'search.epochs': 5,
  }  # fmt: skip
  _, experiment = build(make_config(**changes), tmp_path)
  task, phases = experiment.task, experiment.data.supernet.phases
  found = [float(task.find_budgets(n)['flops']) for n in range(5 * STEPS)]
  first = float(task.space.measure(task.space.make_uniform())['flops'])
  assert found[0] == pytest.approx(first) and first > 150
  assert found[: STEPS + phases.weight_steps] == [found[0]] * (
    STEPS + phases.weight_steps
  )
  choosing = [n for n in range(5 * STEPS) if phases.is_choosing(n)]
  fallen = [found[n] for n in choosing]
  assert fallen == sorted(fallen, reverse=True)
  # In the middle of its way it has come half of it, as factors go.
  middle = choosing[phases.choice_steps]
  assert found[middle] == pytest.approx((first * 150) ** 0.5, rel=1e-5)
  assert found[choosing[2 * phases.choice_steps]] == pytest.approx(150)


def test_nothing_pushes_within_a_budget(tmp_path):
  changes = {
    'search.cost_loss': 'budget', 'search.max_flops': 150.0,
    'search.budget_epochs': 0.0,
  }  # fmt: skip
  task = build(make_config(**changes), tmp_path)[1].task
  params = task.init(jax.random.key(0))
  params['choices']['multiplier.flops'] += 0.5
  model = task.merge_model(params)

  def push(cost):
    return jax.grad(
      lambda x: task._add_cost(0.0, 2.0, {}, {'flops': x}, model, 0)
    )(cost)

  assert float(push(149.0)) == 0
  assert float(push(151.0)) == pytest.approx(2 * 0.5 / 150)


@pytest.mark.parametrize('cost_loss', ['linear', 'exponential', 'budget'])
def test_weights_do_not_know_the_cost(cost_loss, tmp_path):
  """Their steps are those of a search without one."""
  found = []
  for kind in (cost_loss, 'none'):
    changes = {
      'search.cost_loss': kind, 'search.cost_weight': 1e4,
      'search.max_flops': 150.0, 'optimizer.name': 'sgd',
      'optimizer.learning_rate': 1.0, 'search.budget_epochs': 0.0,
    }  # fmt: skip
    config, experiment = build(make_config(**changes), tmp_path / kind)
    step, state = experiment.runtime.step(), experiment.runtime.fresh_state()
    batches = iter(experiment.train_batches(config))
    choosing = experiment.data.supernet.phases.weight_steps
    for _ in range(choosing):
      state, _ = step(state, next(batches))
    weights = jax.device_get(state.params)
    weights.pop('choices')
    state, _ = step(state, next(batches))
    found.append((weights, jax.device_get(state.params)['choices']))
  (costly, theta), (plain, free) = found
  jax.tree.map(np.testing.assert_array_equal, costly, plain)
  if cost_loss == 'budget':  # which pushes from the next step on
    assert theta['multiplier.flops'] > 0
  else:
    assert any(not np.allclose(theta[name], free[name]) for name in free)


def test_a_multiplier_rises_by_what_is_exceeded(tmp_path):
  changes = {
    'search.cost_loss': 'budget', 'search.max_flops': 150.0,
    'search.budget_epochs': 0.0, 'search.warmup_epochs': 0,
    'search.budget_rate': 0.25,
  }  # fmt: skip
  config, experiment = build(make_config(**changes), tmp_path)
  phases = experiment.data.supernet.phases
  step, state = experiment.runtime.step(), experiment.runtime.fresh_state()
  task, batches = experiment.task, iter(experiment.train_batches(config))
  for number in range(STEPS):
    theta = task.merge_model(state.params).read_theta()
    expected = task.measure_costs(search.gumbel.expect_weights(theta))['flops']
    before = float(state.params['choices']['multiplier.flops'])
    state, _ = step(state, next(batches))
    after = float(state.params['choices']['multiplier.flops'])
    over = float(expected) / 150 - 1 if phases.is_choosing(number) else 0.0
    assert after - before == pytest.approx(0.25 * over, rel=1e-4, abs=1e-7)
  assert after > 0.1


def test_averages_stand_still_with_their_weights(tmp_path):
  changes = {'optimizer.average': 0.9, 'search.warmup_epochs': 0}
  config, experiment = build(make_config(**changes), tmp_path)
  step, state = experiment.runtime.step(), experiment.runtime.fresh_state()
  batches = iter(experiment.train_batches(config))
  for number in range(STEPS):
    before = jax.device_get(flatten_state(state))
    state, _ = step(state, next(batches))
    moved = list_moved(before, jax.device_get(flatten_state(state)))
    inner = bool(experiment.data.supernet.phases.is_choosing(number))
    own = [n for n in moved if n.startswith('averaged/')]
    assert own and all(('choices/' in name) == inner for name in own)
