"""Distillation heads and the adapter: gradients, and Algorithm 1 by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.distill import distilled_ranking
from genrec_jax.distill.distilled_ranking import DistilledRanking
from genrec_jax.distill.heads import DistillSettings
from genrec_jax.embedding import lookup
from genrec_jax.features import FeatureSpec, stack_columns
from genrec_jax.models import RANKERS
from genrec_jax.runtime import measurements
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.step import make_step
from genrec_jax.tasks.ranking import Ranking
from tests import ranking_examples
from tests.tolerances import assert_close

FEATURES = (
  FeatureSpec('user', rows=7),
  FeatureSpec('price', kind='numeric'),
  FeatureSpec('item', rows=9),
)
SIZE, RATE, SEED = 8, 0.05, 3
WITH_HIDDEN = sorted(set(RANKERS) - {'lr', 'fm', 'tbsm'})  # tbsm: on histories


def settings(method, **options) -> DistillSettings:
  section = config_lib.ranking().distill.to_dict()
  return DistillSettings(**{**section, 'method': method, **options})


def model_section(model: str) -> dict:
  section = getattr(config_lib, model)().to_dict()
  for key in ('hidden', 'hidden1', 'hidden2', 'top', 'bottom'):
    if section.get(key):
      section[key] = (8,)
  for key in section:
    if 'dropout' in key:
      section[key] = 0.0
  if 'batch_norm' in section:
    section['batch_norm'] = False
  if model == 'finalmlp':
    section['heads'] = 2
  return section


def task_of(method='adapter', model='dlrm', labels=('a',), **options):
  section = model_section(model)
  name = section.pop('name')
  about = dict(features=FEATURES, labels=labels, init_std=0.5)
  if method == 'none':
    return Ranking(name, section, {}, **about)
  teacher = settings(method, **options)
  return DistilledRanking(name, section, {}, teacher=teacher, **about)


def batch(seed=0, annotated=SIZE, labels=('a',)):
  rng = np.random.default_rng(seed)
  scores = rng.uniform(0.05, 0.9, (len(labels), SIZE)).astype(np.float32)
  scores[:, annotated:] = np.nan
  weight = (np.arange(SIZE) < annotated).astype(np.float32)
  names = (
    ['teacher'] if len(labels) == 1 else [f'teacher_{name}' for name in labels]
  )
  columns = dict(zip(names, scores, strict=True)) | {'teacher_weight': weight}
  return ranking_examples.make(
    labels={name: rng.integers(0, 2, SIZE) for name in labels},
    ids={'user': rng.integers(0, 7, SIZE), 'item': rng.integers(0, 9, SIZE)},
    numbers={'price': rng.normal(size=SIZE)},
    extras=stack_columns(columns, np.float32),
  )


def start(task, tx=None):
  tx = tx or optax.adam(RATE)
  step = make_step(task, tx, seed=SEED)
  names = measurements.measurement_names(task, on_mesh=False)
  return jax.jit(step), state_lib.create_state(task, tx, SEED, names)


def parts_of(task):
  """(parameters, tables, auxiliary parameters), not near zero."""
  _, state = start(task)
  rng = np.random.default_rng(5)

  def stir(tree):
    return jax.tree.map(
      lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype) / 4, tree
    )

  return stir(state.params), stir(state.tables), stir(state.aux)


def gradient_of(task, only: str, b, parts=None):
  """Of one measurement, by everything that is trained."""
  parts = parts or parts_of(task)

  def value(params, tables, aux):
    rows = lookup.view_tables(tables, task.reads(b))
    measured = task.loss(params, rows, b, jax.random.key(0), aux=aux)
    return measured[only][0]

  return jax.grad(value, argnums=(0, 1, 2))(*parts)


def is_zero(tree) -> bool:
  return all(not np.any(x) for x in jax.tree.leaves(tree))


@pytest.mark.parametrize('model', WITH_HIDDEN)
def test_a_model_is_its_backbone_and_its_head(model):
  task, b = task_of('none', model), batch()
  _, state = start(task)
  rows = lookup.view_tables(state.tables, task.reads(b))
  net, inputs = task.merge_model(state.params), task.inputs(rows, b)
  backbone = net.read_backbone(inputs)
  assert backbone.hidden.shape == (SIZE, task.hidden_width)
  scored = net.score_backbone(backbone)
  assert_close(task.predict(state.params, rows, b), scored)


@pytest.mark.parametrize('model', WITH_HIDDEN)
@pytest.mark.parametrize('method', ['head', 'adapter'])
def test_what_distils_does_not_touch_the_head_that_serves(model, method):
  task, b = task_of(method, model), batch()
  for only in ('loss/teacher', *['loss/adapted'] * (method == 'adapter')):
    params, tables, aux = gradient_of(task, only, b)
    own = [x for n, x in heads_of(model, params).items()]
    assert own and is_zero(own)
    assert not is_zero(tables) and not is_zero(aux)


def heads_of(model: str, params) -> dict:
  """Parameters of the head that serves."""
  places = {
    'finalmlp': ('fusion',),
    'dcn': ('out',),
    'dlrm': ('top', 'out'),
    'wukong': ('top', 'out'),
  }
  found = params
  for name in places.get(model, ('mlp', 'out')):
    found = found[name]
  found = {'head': found}
  if model == 'deepfm':
    found['first_order'] = params['first_order']
  return found


@pytest.mark.parametrize('method', ['head', 'adapter'])
def test_the_labels_do_not_touch_the_heads_of_the_teacher(method):
  _, tables, aux = gradient_of(task_of(method), 'loss/serving', batch())
  assert is_zero(aux) and not is_zero(tables)


def test_beta_scales_what_flows_into_the_backbone_and_nothing_else():
  found = {}
  for beta in (0.0, 1.0, 3.0):
    task = task_of('head', gradient_scale=beta)
    found[beta] = {
      only: gradient_of(task, only, batch())
      for only in ('loss/teacher', 'loss/serving')
    }
  for none, one, three in zip(
    *(jax.tree.leaves(found[b]['loss/teacher'][:2]) for b in (0.0, 1.0, 3.0)),
    strict=True,
  ):
    assert not np.any(none)
    assert_close(three, 3 * one)
  assert not is_zero(found[1.0]['loss/teacher'][1])
  for beta in (0.0, 3.0):  # the heads themselves, and the loss of the labels
    jax.tree.map(
      assert_close,
      found[beta]['loss/teacher'][2],
      found[1.0]['loss/teacher'][2],
    )
    jax.tree.map(
      assert_close, found[beta]['loss/serving'], found[1.0]['loss/serving']
    )


def test_gradients_of_adapter_and_student_never_cross():
  task, b = task_of('adapter'), batch()
  _, _, aux = gradient_of(task, 'loss', b)
  assert is_zero(aux['adapter'])
  assert not is_zero(aux['head']) and not is_zero(aux['adapter_head'])
  params, tables, aux = parts_of(task)
  grads = jax.grad(lambda aux: task.aux_losses['adapter'](aux, b)[0])(aux)
  assert not is_zero(grads['adapter'])
  assert is_zero([x for name, x in grads.items() if name != 'adapter'])


def test_scores_are_scaled_and_stay_probabilities():
  b = batch()
  task = task_of('head', label_scale=5.0)
  parts = parts_of(task)
  params, tables, aux = parts
  rows = lookup.view_tables(tables, task.reads(b))
  found = task.loss(params, rows, b, jax.random.key(0), aux=aux)
  net = task.merge_model(params)
  hidden = net.read_backbone(task.inputs(rows, b)).hidden
  z = np.asarray(hidden @ aux['head']['kernel'])[:, 0]
  z = z + float(aux['head']['bias'][0])
  target = np.minimum(5.0 * np.asarray(b.extra('teacher')), 1.0)
  assert (target == 1.0).any() and (target < 1.0).any()
  p = 1 / (1 + np.exp(-z.astype(np.float64)))
  each = -(target * np.log(p) + (1 - target) * np.log(1 - p))
  assert_close(found['loss/teacher'][0], each.sum())


@pytest.mark.parametrize('method', ['one_head', 'head', 'adapter'])
def test_examples_without_a_score_are_learned_by_their_labels(method):
  """A score of NaN reaches nothing where its weight is 0."""
  task, none = task_of(method), task_of('none')
  params, tables, aux = parts_of(task)
  b = batch(annotated=0)
  found = gradient_of(task, 'loss', b, (params, tables, aux))
  rows = lookup.view_tables(tables, none.reads(b))

  def value(params, tables):
    rows = lookup.view_tables(tables, none.reads(b))
    return none.loss(params, rows, b, jax.random.key(0))['loss'][0]

  del rows
  wanted = jax.grad(value, argnums=(0, 1))(params, tables)
  jax.tree.map(assert_close, found[:2], wanted)
  assert is_zero(found[2])
  half = batch(annotated=SIZE // 2)
  for grad in jax.tree.leaves(gradient_of(task, 'loss', half)):
    assert np.isfinite(grad).all()


def test_one_head_learns_labels_and_scores():
  b = batch()
  task = task_of('one_head', loss_weight=0.5)
  params, tables, aux = parts_of(task)
  assert aux == {}
  rows = lookup.view_tables(tables, task.reads(b))
  z = np.asarray(task.predict(params, rows, b), np.float64)[:, 0]
  y, t = np.asarray(b.labels['a']), np.asarray(b.extra('teacher'))

  def h(target):
    return np.sum(np.logaddexp(0, z) - target * z)

  found = task.loss(params, rows, b, jax.random.key(0))
  assert_close(found['loss'][0], h(y) + 0.5 * h(t))
  alone = task_of('teacher_alone')
  found = alone.loss(params, rows, b, jax.random.key(0))
  assert_close(found['loss'][0], h(t))


class Plain:
  """Adam on a dict of arrays, by its formulas."""

  def __init__(self, params):
    self.m = jax.tree.map(lambda x: np.zeros(x.shape), params)
    self.v = jax.tree.map(lambda x: np.zeros(x.shape), params)
    self.t = 0

  def move(self, params, grads):
    self.t += 1
    b1, b2, eps = 0.9, 0.999, 1e-8
    f = jax.tree.map
    self.m = f(lambda m, g: b1 * m + (1 - b1) * np.asarray(g), self.m, grads)
    self.v = f(
      lambda v, g: b2 * v + (1 - b2) * np.asarray(g) ** 2, self.v, grads
    )
    c1, c2 = 1 - b1**self.t, 1 - b2**self.t
    return f(
      lambda x, m, v: x - RATE * (m / c1) / (np.sqrt(v / c2) + eps),
      params,
      self.m,
      self.v,
    )


def run_plainly(state, task, batches, teacher: DistillSettings):
  """Algorithm 1, line by line: the adapter, then the student."""
  adapter = jax.tree.map(np.float64, state.aux['adapter'])
  student = {
    'params': state.params,
    'tables': state.tables,
    'heads': {n: state.aux[n] for n in ('head', 'adapter_head')},
  }
  student = jax.tree.map(np.asarray, student)
  of_adapter, of_student = Plain(adapter), Plain(student)

  def adapt(adapter, p):
    h = jax.nn.relu(
      p[:, None] @ adapter['linear_0']['kernel']
      + adapter['linear_0']['bias'][None]
    )
    return (h @ adapter['out']['kernel'] + adapter['out']['bias'][None])[:, 0]

  def h(logit, target):
    return -(
      target * jax.nn.log_sigmoid(logit)
      + (1 - target) * jax.nn.log_sigmoid(-logit)
    )

  curve = []
  for b in batches:
    y, p = jnp.asarray(b.labels['a']), jnp.asarray(b.extra('teacher'))
    grads = jax.grad(lambda a, y=y, p=p: jnp.mean(h(adapt(a, p), y)))(
      jax.tree.map(jnp.float32, adapter)
    )
    adapter = of_adapter.move(adapter, grads)
    fixed = jax.nn.sigmoid(adapt(jax.tree.map(jnp.float32, adapter), p))

    def loss(student, b=b, y=y, p=p, fixed=fixed):
      rows = lookup.view_tables(student['tables'], task.reads(b))
      net = task.merge_model(student['params'])
      backbone = net.read_backbone(task.inputs(rows, b))
      hidden = backbone.hidden

      def score(head, beta):
        seen = beta * hidden + (1 - beta) * jax.lax.stop_gradient(hidden)
        head = student['heads'][head]
        return (seen @ head['kernel'] + head['bias'][None])[:, 0]

      serving = jnp.mean(h(net.score_backbone(backbone)[:, 0], y))
      scaled = jnp.minimum(teacher.label_scale * p, 1.0)
      auxiliary = jnp.mean(h(score('head', teacher.gradient_scale), scaled))
      beta = teacher.adapter_gradient_scale
      second = jnp.mean(h(score('adapter_head', beta), fixed))
      return serving + teacher.loss_weight * auxiliary + second

    value, grads = jax.value_and_grad(loss)(jax.tree.map(jnp.float32, student))
    curve.append(float(value))
    student = of_student.move(student, grads)
  return student, adapter, curve


KNOBS = dict(
  label_scale=2.0,
  loss_weight=3.0,
  gradient_scale=0.5,
  adapter_gradient_scale=2.0,
)


@pytest.mark.usefixtures('optax_promotes')
@pytest.mark.parametrize(
  'where', ['one device', 'mesh', 'microbatches', 'fsdp', 'grad_op']
)
def test_ten_steps_of_algorithm_1(where):
  task = task_of('adapter', **KNOBS)
  batches = [batch(seed) for seed in range(10)]
  step, state = start(task)
  fresh = jax.tree.map(np.asarray, state)
  found, curve = run_steps(task, where, step, state, batches)
  student, adapter, wanted = run_plainly(fresh, task, batches, task.teacher)
  np.testing.assert_allclose(curve, wanted, rtol=1e-4)
  heads = {n: found.aux[n] for n in ('head', 'adapter_head')}
  tolerance = 2e-3  # ten steps of Adam divide by roots of tiny squares
  for got, want in (
    (found.params, student['params']),
    (heads, student['heads']),
    (found.aux['adapter'], adapter),
  ):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance), got, want
    )


def run_steps(task, where, step, state, batches):
  if where == 'one device':
    curve = []
    for b in batches:
      state, loss = step(state, b)
      curve.append(float(loss))
    return state, curve
  config = config_lib.ranking()
  config.seed = SEED
  config.parallel.devices = 4 if where == 'mesh' else 2
  if where in ('fsdp', 'grad_op'):
    config.parallel.dense = where
  if where == 'microbatches':
    config.parallel.update(
      determinism='mesh_invariant', reduction_blocks=4, microbatches=1
    )
  runtime = MeshRuntime(config, task, optax.adam(RATE))
  state = runtime.fresh_state()
  step, curve = runtime.step(), []
  for b in batches:
    first = np.arange(0, SIZE, SIZE // runtime.shards, dtype=np.int32)
    b = runtime.put_on_devices(dataclasses.replace(b, first=first))
    state, loss = step(state, b)
    curve.append(float(loss))
  return jax.tree.map(np.asarray, jax.device_get(state)), curve


@pytest.mark.usefixtures('optax_promotes')
def test_the_adapter_has_moved_before_the_student_sees_it():
  """With the adapter of before, the second head would learn other scores."""
  task, b = task_of('adapter'), batch()
  step, state = start(task, optax.sgd(1.0))
  after, _ = step(state, b)
  scores, counts = task._read_teacher(b)
  value, weight = after.metric_sums['teacher/adapted']
  for aux, is_it in ((after.aux, True), (state.aux, False)):
    logits = task._merge_heads(aux).adapter(scores)
    mean = float(jax.nn.sigmoid(logits).mean())
    assert (abs(mean - float(value / weight)) < 1e-6) == is_it


@pytest.mark.usefixtures('optax_promotes')
def test_a_step_that_goes_ahead_is_clipped_by_itself():
  """And moves as the optimizer moves everything else."""
  task, b = task_of('adapter', loss_weight=1e4), batch()
  tx = optax.sgd(RATE)
  names = measurements.measurement_names(task, on_mesh=False)
  state = state_lib.create_state(task, tx, SEED, names)
  for clip in (0.0, 1e-3):
    after, _ = jax.jit(make_step(task, tx, seed=SEED, clip_norm=clip))(state, b)
    moved = jax.tree.map(
      lambda a, b: np.asarray(a - b), after.aux['adapter'], state.aux['adapter']
    )
    grads = jax.grad(lambda aux: task.aux_losses['adapter'](aux, b)[0])(
      state.aux
    )['adapter']
    norm = float(optax.tree.norm(grads)) / SIZE
    factor = min(1.0, clip / norm) if clip else 1.0
    wanted = jax.tree.map(lambda g, f=factor: -RATE * f * g / SIZE, grads)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7),
      moved,
      wanted,
    )


@pytest.mark.usefixtures('optax_promotes')
@pytest.mark.parametrize('model', ['dlrm', 'deepfm'])
def test_without_weight_a_teacher_changes_nothing(model):
  task = task_of('head', model, loss_weight=0.0)
  none = task_of('none', model)
  (step, state), (plain, expected) = start(task), start(none)
  jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)
  for seed in range(5):
    state, _ = step(state, batch(seed))
    expected, _ = plain(expected, batch(seed))
  jax.tree.map(assert_close, state.params, expected.params)
  jax.tree.map(assert_close, state.tables, expected.tables)


@pytest.mark.usefixtures('optax_promotes')
def test_several_labels_have_a_score_each():
  labels = ('a', 'b')
  task, b = task_of('adapter', labels=labels), batch(labels=labels)
  step, state = start(task)
  state, loss = step(state, b)
  assert np.isfinite(loss)
  assert state.aux['adapter']['out']['kernel'].shape == (16, 2)


def test_the_residual_adapter_begins_with_the_score():
  task, b = task_of('adapter', adapter_input='residual'), batch()
  _, state = start(task)
  scores, _ = task._read_teacher(b)
  logits = task._merge_heads(state.aux).adapter(scores)
  assert_close(jax.nn.sigmoid(logits), scores)


def test_heads_are_sites_of_products():
  sites = task_of('adapter').sites
  for name in ('head', 'adapter_head', 'adapter/linear_0', 'adapter/out'):
    assert f'distill/{name}/kernel' in sites


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(method='heads'), 'distill.method'),
    (dict(method='one_head', label_scale=2.0), 'off calibration'),
    (dict(method='adapter', adapter_input='x'), 'distill.adapter_input'),
  ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    settings(**options)


def test_columns_that_the_data_lack_are_named():
  with pytest.raises(ValueError, match="extra column 'teacher'"):
    distilled_ranking.check_columns(settings('head'), ('a',), {})
  two = settings('head', scores=('x',))
  with pytest.raises(ValueError, match='names 1 columns for 2 labels'):
    distilled_ranking.check_columns(two, ('a', 'b'), {})
