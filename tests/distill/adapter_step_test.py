"""The step of the adapter on parts of a batch, priors, what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.distill import heads as heads_lib
from genrec_jax.embedding import lookup
from genrec_jax.runtime import measurements, optimizer
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.step import make_step
from tests.distill import heads_test
from tests.tolerances import assert_close

SIZE = heads_test.SIZE


def move_adapter(task, b, **options):
  """(the adapter before, after) one step of plain descent at rate 1."""
  names = measurements.measurement_names(task, on_mesh=False)
  tx = optax.sgd(1.0)
  state = state_lib.create_state(task, tx, heads_test.SEED, names)
  before = jax.tree.map(np.asarray, state.aux['adapter'])
  after, _ = jax.jit(make_step(task, tx, seed=0, **options))(state, b)
  return state, before, jax.tree.map(np.asarray, after.aux['adapter'])


def gradient_of_mean(task, state, b, rows) -> dict:
  """Of the mean of -h over some rows, by a plain statement."""
  y = jnp.asarray(np.asarray(b.labels['a'])[rows])
  scores = jnp.asarray(np.asarray(b.extra('teacher'))[rows])[:, None]

  def loss(adapter):
    net = task._merge_heads({**state.aux, 'adapter': adapter}).adapter
    z = net(scores)[:, 0]
    return jnp.mean(jax.nn.softplus(z) - y * z)

  return jax.grad(loss)(state.aux['adapter'])


@pytest.mark.usefixtures('optax_promotes')
@pytest.mark.parametrize('microbatches', [1, 2])
def test_the_adapter_moves_by_the_mean_over_annotated_examples(microbatches):
  """Not over all of them, and over all microbatches."""
  task, b = heads_test.task_of('adapter'), heads_test.batch(annotated=5)
  state, before, after = move_adapter(task, b, microbatches=microbatches)
  grads = gradient_of_mean(task, state, b, np.arange(5))
  wanted = jax.tree.map(lambda x, g: x - np.asarray(g), before, grads)
  jax.tree.map(assert_close, after, wanted)


@pytest.mark.usefixtures('optax_promotes')
def test_the_student_sees_the_adapter_as_it_is_after_a_lowered_rate():
  task, b = heads_test.task_of('adapter'), heads_test.batch()
  config = config_lib.ranking().optimizer
  config.update(name='sgd', learning_rate=1.0)
  tx = optimizer.build_optimizer(config)
  names = measurements.measurement_names(task, on_mesh=False)
  state = state_lib.create_state(task, tx, heads_test.SEED, names)
  state = dataclasses.replace(state, lr_scale=jnp.float32(0.25))
  after, _ = jax.jit(make_step(task, tx, seed=0))(state, b)
  scores, _ = task._read_teacher(b)
  logits = task._adapt(task._merge_heads(after.aux), scores)
  value, weight = after.metric_sums['teacher/adapted']
  assert_close(value / weight, jax.nn.sigmoid(logits).mean())


@pytest.mark.usefixtures('optax_promotes')
def test_microbatches_of_a_mesh_move_it_alike():
  task, b = heads_test.task_of('adapter'), heads_test.batch(annotated=5)
  state, _, one = move_adapter(task, b)
  del state
  config = config_lib.ranking()
  config.seed = heads_test.SEED
  config.parallel.devices = 2
  config.parallel.microbatches = 2
  runtime = MeshRuntime(config, task, optax.sgd(1.0))
  first = np.arange(0, SIZE, SIZE // runtime.shards, dtype=np.int32)
  b = runtime.put_on_devices(dataclasses.replace(b, first=first))
  after, _ = runtime.step()(runtime.fresh_state(), b)
  jax.tree.map(assert_close, jax.device_get(after.aux['adapter']), one)


def with_prior(task, prior=0.02):
  return type(task)(
    'dlrm',
    task.model_config.__dict__,
    {'prior': (prior,)},
    features=task.features,
    labels=task.labels,
    teacher=task.teacher,
    init_std=0.5,
  )


@pytest.mark.parametrize('kind', heads_lib.INPUTS)
def test_heads_and_adapter_begin_with_the_prior(kind):
  plain = heads_test.task_of('adapter', adapter_input=kind)
  task, b = with_prior(plain), heads_test.batch()
  params, tables, aux = heads_test.parts_of(plain)
  rows = lookup.view_tables(tables, plain.reads(b))
  key, shift = jax.random.key(0), np.log(0.02 / 0.98)
  found = task.loss(params, rows, b, key, aux=aux)
  net = plain.merge_model(params)
  hidden = net.read_backbone(plain.inputs(rows, b)).hidden
  z = np.asarray(hidden @ aux['head']['kernel'])[:, 0]
  z = z + float(aux['head']['bias'][0]) + shift
  learned, _ = found['teacher/learned']
  assert_close(learned, np.sum(1 / (1 + np.exp(-z))))
  scores, _ = plain._read_teacher(b)
  z = np.asarray(plain._merge_heads(aux).adapter(scores))
  z = z + (0.0 if kind == 'residual' else shift)
  adapted, _ = found['teacher/adapted']
  assert_close(adapted, np.sum(1 / (1 + np.exp(-z))))
  # The adapter learns what the student sees of it.
  value, _ = task.aux_losses['adapter'](aux, b)
  y = np.asarray(b.labels['a'])
  assert_close(value, np.sum(np.logaddexp(0, z[:, 0]) - y * z[:, 0]))


def test_beta_is_of_one_head_and_the_other_has_its_own():
  def grads(**options):
    task = heads_test.task_of('adapter', **options)
    b = heads_test.batch()
    return [
      optax.tree.norm(heads_test.gradient_of(task, only, b)[1])
      for only in ('loss/teacher', 'loss/adapted')
    ]

  one = np.array(grads())
  assert_close(grads(gradient_scale=4.0), one * [4, 1])
  assert_close(grads(adapter_gradient_scale=4.0), one * [1, 4])


def test_small_scores_have_logits_of_their_own():
  scores = np.array([1e-5, 1e-3, 0.02, 0.5, 0.999])
  assert_close(
    heads_lib.to_logit(jnp.asarray(scores, jnp.float32)),
    np.log(scores / (1 - scores)),
  )


@pytest.mark.parametrize('kept', [0.1, 1.0])
def test_scores_are_thinned_as_labels_are(kept):
  """With the true probabilities as scores, nothing is left to be learned."""
  task = heads_test.task_of('one_head')
  task = type(task)(
    'dlrm', task.model_config.__dict__, {}, features=task.features,
    labels=task.labels, teacher=task.teacher, kept=kept, init_std=0.5,
  )  # fmt: skip
  b = heads_test.batch()
  scores, _ = task._read_teacher(b)
  p = np.asarray(b.extra('teacher'), np.float64)
  # Of a click or a kept negative, how likely is the click?
  assert_close(scores[:, 0], p / (p + kept * (1 - p)))


@pytest.mark.parametrize('wrong', [1.5, -0.25, np.inf])
def test_what_is_no_probability_stops_a_run(wrong):
  task, b = heads_test.task_of('head'), heads_test.batch()
  values = np.array(b.extras.values)
  values[2, 0] = wrong
  b = dataclasses.replace(
    b, extras=dataclasses.replace(b.extras, values=values)
  )
  params, tables, aux = heads_test.parts_of(task)
  rows = lookup.view_tables(tables, task.reads(b))
  found = task.loss(params, rows, b, jax.random.key(0), aux=aux)
  assert np.isnan(found['teacher/score'][0])
  assert np.isnan(found['loss'][0])


@pytest.mark.parametrize('model', ['lr', 'fm'])
def test_models_without_a_hidden_layer_take_no_head(model):
  with pytest.raises(ValueError, match=f"model.name='{model}' has none"):
    heads_test.task_of('head', model)
  assert heads_test.task_of('one_head', model).init_aux(jax.random.key(0)) == {}
