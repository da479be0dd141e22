"""The ranking task against plain NumPy, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding import local_tables, lookup
from genrec_jax.embedding.dirty_rows import init_dirty_rows
from genrec_jax.features import Columns, FeatureSpec
from genrec_jax.parallel import rules
from genrec_jax.tasks import losses
from genrec_jax.tasks.ranking import Ranking
from tests import ranking_examples, row_views
from tests.tolerances import assert_close

FEATURES = (
  FeatureSpec('user', rows=7),
  FeatureSpec('price', kind='numeric'),
  FeatureSpec('item', rows=9),
  FeatureSpec('tags', kind='multi_hot', rows=5, pooling='mean', max_len=3),
  FeatureSpec('seen', kind='sequence', rows=9, table='item', max_len=4),
)
SIZE = 6


def task_of(
  model='dnn',
  loss=None,
  features=FEATURES,
  labels=('a',),
  first_order='',
  **options,
):
  fields = {'first_order': first_order} if first_order else {}
  section = getattr(config_lib, model)(**fields).to_dict()
  for key in ('hidden', 'bottom', 'top'):
    if key in section:
      section[key] = (8,)
  return Ranking(
    section.pop('name'),
    section,
    loss or {},
    features=features,
    labels=labels,
    **{'init_std': 0.5, **options},
  )


def batch(labels=1, seed=0, padding=0, **others):
  rng = np.random.default_rng(seed)

  def bag(rows, most):
    lengths = rng.integers(0, most + 1, SIZE).astype(np.int32)
    lengths[SIZE - padding :] = 0
    values = np.zeros(SIZE * most, np.int32)
    values[: lengths.sum()] = rng.integers(0, rows, lengths.sum())
    return values, lengths

  weights = np.ones(SIZE, np.float32)
  weights[SIZE - padding :] = 0
  return ranking_examples.make(
    labels={name: rng.integers(0, 2, SIZE) for name in 'ab'[:labels]},
    ids={'user': rng.integers(0, 7, SIZE), 'item': rng.integers(0, 9, SIZE)},
    numbers={'price': rng.normal(size=SIZE)},
    bags={'tags': bag(5, 3), 'seen': bag(9, 4)},
    weights=weights,
    **others,
  )


def parts_of(task, seed=0):
  params = task.init(jax.random.key(seed))
  rng = np.random.default_rng(seed)
  tables = {
    name: jnp.asarray(rng.normal(size=(s.rows, s.dim)), jnp.float32)
    for name, s in task.tables().items()
  }
  return params, tables


def views(task, tables, b):
  return lookup.view_tables(tables, task.reads(b))


@pytest.mark.parametrize('first_order', ['feature', 'table'])
def test_inputs_are_the_rows_pooled_as_specified(first_order):
  task, b = task_of('deepfm', first_order=first_order), batch()
  _, tables = parts_of(task)
  found = task.inputs(views(task, tables, b), b)
  t = {name: np.asarray(x, np.float64) for name, x in tables.items()}
  user, item, tags, seen = [], [], [], []
  linear = np.zeros(SIZE)
  start = {'tags': 0, 'seen': 0}
  for i in range(SIZE):
    u, k = b.ids.values[i]
    user.append(t['user'][u])
    item.append(t['item'][k])
    own = {}
    for name in ('tags', 'seen'):
      n = b.jagged[name].lengths[i]
      own[name] = b.jagged[name][name][start[name] : start[name] + n]
      start[name] += n
    n = max(1, len(own['tags']))
    tags.append(t['tags'][own['tags']].sum(0) / n)
    seen.append(t['item'][own['seen']].sum(0))
    linear[i] = t['user.linear'][u, 0] + t['item.linear'][k, 0]
    shared = first_order == 'table'
    linear[i] += t['tags.linear'][own['tags'], 0].sum() / (n if shared else 1)
    weights = t['item.linear' if shared else 'seen.linear']
    linear[i] += weights[own['seen'], 0].sum()
  for got, want in zip(found.vectors, (user, item, tags, seen), strict=True):
    assert_close(got, np.array(want))
  assert_close(found.linear, linear)


def state_fuxictr_lr(weights, bias, examples) -> np.ndarray:
  """FuxiCTR's logistic regression: a column of weights for every feature.

  Args:
    weights: feature -> `[rows]`, of a number its only weight.
    bias: one number.
    examples: feature -> `[B]` or, padded with row 0, `[B, most]` values.
  """
  logits = np.full(SIZE, bias)
  for name, values in examples.items():
    if values.dtype.kind == 'f':
      terms = values * weights[name]
    elif values.ndim == 1:
      terms = weights[name][values]
    else:  # the padding row is zero, and the others are summed
      terms = np.where(values > 0, weights[name][values], 0.0).sum(axis=1)
    logits = logits + terms
  return logits


def test_logistic_regression_is_fuxictrs():
  """`hist` has weights of its own, which are summed: 213 weights in all."""
  rows = {'user': 50, 'item': 70, 'hist': 70, 'tags': 20}
  features = (
    FeatureSpec('user', rows=50),
    FeatureSpec('item', rows=70),
    FeatureSpec('hist', 'sequence', 70, table='item', pooling='mean'),
    FeatureSpec('tags', 'multi_hot', 20, pooling='sum'),
    FeatureSpec('age', 'numeric'),
    FeatureSpec('price', 'numeric'),
  )
  task = task_of('lr', features=features)
  params, tables = parts_of(task)
  params['bias'] = jnp.array([0.3])
  rng = np.random.default_rng(2)
  padded, bags, ids, numbers = {}, {}, {}, {}
  for name in ('hist', 'tags'):
    lengths = rng.integers(0, 5, SIZE)
    mask = np.arange(4)[None] < lengths[:, None]
    padded[name] = rng.integers(1, rows[name], (SIZE, 4)) * mask
    bags[name] = padded[name][mask], lengths
  for name in ('user', 'item'):
    ids[name] = rng.integers(1, rows[name], SIZE)
  for name in ('age', 'price'):
    numbers[name] = rng.normal(size=SIZE).astype(np.float32)
  b = ranking_examples.make(ids, {'a': np.zeros(SIZE)}, numbers, bags)
  weights = {n: np.asarray(tables[f'{n}.linear'], float)[:, 0] for n in rows}
  (age, price), counted = params['numeric'][:, 0].tolist(), params['numeric']
  weights |= {'age': age, 'price': price}
  assert sum(t.size for t in tables.values()) + counted.size + 1 == 213
  want = state_fuxictr_lr(weights, 0.3, ids | padded | numbers)
  assert_close(task.predict(params, views(task, tables, b), b)[:, 0], want)


@pytest.mark.parametrize(
  'model, numbers',
  [
    ('lr', ['numeric']),
    ('deepfm', ['fields/kernel', 'first_order/numeric']),
    ('finalmlp', ['fields/kernel', 'select_2/kernel']),
    ('wukong', []),
  ],
)
def test_l2_of_numbers_is_that_of_tables_and_the_net_has_its_own(
  model, numbers
):
  section = getattr(config_lib, model)()
  if model == 'finalmlp':
    section.context2 = ('price',)
  fields = section.to_dict()
  task = Ranking(
    fields.pop('name'),
    fields,
    {'table_l2': 0.3, 'net_l2': 0.2},
    features=FEATURES,
    labels=('a',),
  )
  params = jax.eval_shape(task.init, jax.random.key(0))
  paths = [p for p in rules.named_shapes(params) if 'running_' not in p]
  want = {path: 0.3 if path in numbers else 0.2 for path in paths}
  assert task.param_l2 == want and set(numbers) <= set(want)


def test_loss_is_the_weighted_cross_entropy_of_all_labels():
  task = task_of(loss={'task_weights': (1.0, 0.25)}, labels=('a', 'b'))
  b = batch(labels=2, padding=2)
  params, tables = parts_of(task)
  rows = views(task, tables, b)
  logits = np.asarray(task.predict(params, rows, b), np.float64)
  p = 1 / (1 + np.exp(-logits))
  y = b.labels.values
  each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
  want = (each @ [1.0, 0.25])[: SIZE - 2].sum()
  total, count = task.loss(params, rows, b, None)['loss']
  assert count == SIZE - 2
  assert_close(total, want)


def test_label_weights_are_factors_of_the_cross_entropies():
  task = task_of(loss={'task_weights': (1.0, 0.25)}, labels=('a', 'b'))
  weights = np.random.default_rng(1).uniform(0, 2, (SIZE, 2))
  weights = Columns(weights.astype(np.float32), ('a', 'b'))
  b = batch(labels=2, padding=2, label_weights=weights)
  params, tables = parts_of(task)
  rows = views(task, tables, b)
  logits = np.asarray(task.predict(params, rows, b), np.float64)
  y, p = b.labels.values, 1 / (1 + np.exp(-logits))
  each = -(y * np.log(p) + (1 - y) * np.log(1 - p)) * weights.values
  total, count = task.loss(params, rows, b, None)['loss']
  assert count == SIZE - 2
  assert_close(total, (each @ [1.0, 0.25])[: SIZE - 2].sum())
  ones = Columns(np.ones((SIZE, 2), np.float32), ('a', 'b'))
  alike = (
    task.loss(params, rows, dataclasses.replace(b, label_weights=w), None)
    for w in (ones, None)
  )
  assert len({float(x['loss'][0]) for x in alike}) == 1


def test_columns_are_found_by_their_names():
  task, b = task_of(labels=('a', 'b')), batch(labels=2)
  params, tables = parts_of(task)

  def turned(columns):
    return Columns(columns.values[:, ::-1], columns.names[::-1])

  other = dataclasses.replace(b, ids=turned(b.ids), labels=turned(b.labels))
  one, two = (
    task.loss(params, views(task, tables, x), x, None)['loss'][0]
    for x in (b, other)
  )
  assert one == two
  with pytest.raises(KeyError, match="'c'; there are b, a"):
    other.labels.select(['c'])


def test_cross_entropy_stays_finite():
  logits = jnp.array([1e30, -1e30, 0.0, 100.0])
  labels = jnp.array([1.0, 0.0, 1.0, 0.0])
  found = losses.logistic_loss(logits, labels)
  assert_close(found, [0.0, 0.0, np.log(2), 100.0])


def test_l2_is_a_setting_of_the_tables():
  """The step adds it to the gradients of rows: see tests/runtime/step_test."""
  specs = task_of(loss={'table_l2': 0.3}).tables().values()
  assert {spec.l2 for spec in specs} == {0.3}


def test_padding_changes_nothing():
  task = task_of('deepfm')
  params, tables = parts_of(task)
  b = batch(padding=2)
  other = jax.tree.map(np.array, b)
  for columns, value in ((other.ids, 3), (other.dense, 9), (other.labels, 1)):
    columns.values[-2:] = value
  key = jax.random.key(1)
  one, two = (
    task.loss(params, views(task, tables, x), x, key)['loss']
    for x in (b, other)
  )
  assert_close(one[0], two[0])
  assert one[1] == two[1]


@pytest.mark.parametrize('pooling', ['rows', 'sums'])
@pytest.mark.parametrize('model', ['lr', 'deepfm', 'wukong'])
def test_announced_rows_are_enough(model, pooling):
  task, b = task_of(model, table_update='row_adagrad'), batch()
  params, tables = parts_of(task)
  reads = task.reads(b)
  assert {read.table for read in reads.values()} == set(tables)
  pooling = {name: pooling for name, read in reads.items()}
  fetched, view = row_views.fetch(tables, reads, pooling)
  rows = views(task, tables, b)
  assert_close(
    task.predict(params, view(fetched), b), task.predict(params, rows, b)
  )


@pytest.mark.parametrize('pooling', ['rows', 'sums'])
def test_padding_touches_no_row(pooling):
  """Nor does it touch row 0, which stands for missing values."""
  task, b = task_of(table_update='adam'), batch(padding=2)
  for values in (b.jagged['tags'].columns.values, b.ids.values):
    values[values == 0] = 1
  last = int(b.jagged['tags'].lengths.sum())
  b.jagged['tags'].columns.values[last:] = 0
  b.ids.values[-2:] = 0
  reads = jax.tree.map(lambda x: jnp.asarray(x)[None], dict(task.reads(b)))
  tables = local_tables.LocalTables(
    task.tables(), pooling=dict.fromkeys(reads, pooling)
  )

  @jax.jit
  def mark_rows(arrays, reads):
    routes = tables.route(reads)
    grads = jax.tree.map(jnp.zeros_like, tables.fetch(arrays, routes))
    slots = tables.init_slots(arrays)
    marks = init_dirty_rows(arrays)
    return tables.push(arrays, slots, routes, grads, 0.1, 0, marks).dirty_rows

  marks = mark_rows(parts_of(task)[1], reads)
  users, tags = b.ids['user'][:-2], b.jagged['tags']['tags'][:last]
  for name, ids in (('user', users), ('tags', tags)):
    assert np.flatnonzero(marks[name]).tolist() == np.unique(ids).tolist()


def test_expected_reads_count_what_an_example_reads():
  reads = task_of('deepfm').expected_reads()
  ids = {}
  for read in reads.values():
    ids[read.table] = ids.get(read.table, 0.0) + read.ids
  assert ids == {
    'user': 1.0,
    'user.linear': 1.0,
    'item': 1.0 + 4,
    'item.linear': 1.0,
    'seen.linear': 4.0,
    'tags': 3.0,
    'tags.linear': 3.0,
  }
  assert reads['tags.linear'].pooling == 'sum'
  assert reads['tags'].pooling == 'mean' and reads['user'].pooling == 'none'
  assert set(reads) == set(task_of('deepfm').reads(batch()))


@pytest.mark.parametrize(
  'options, told',
  [
    (dict(loss={'task_weights': (1.0, 2.0)}), '2 numbers for 1 labels'),
    (dict(loss={'net_l2': -0.1}), 'loss.net_l2 is -0.1, must be zero or'),
    (dict(model='lr', first_order='item'), "first_order is 'item', must be"),
    (dict(table_dtype='bfloat16'), 'updated by rows may be narrow'),
    (
      dict(loss={'table_l2': 0.1}, table_update='row_adagrad'),
      'optimizer.rows.weight_decay',
    ),
  ],
)
def test_refuses(options, told):
  with pytest.raises(ValueError, match=told):
    task_of(**options)


def test_refuses_a_model_for_another_task():
  with pytest.raises(ValueError, match="model.name is 'hstu'; models for rank"):
    Ranking('hstu', {}, {}, features=FEATURES, labels=('a',))


def test_refuses_features_that_share_a_table_at_two_widths():
  section = config_lib.wukong(important={'seen': 2}).to_dict()
  section.pop('name')
  with pytest.raises(ValueError, match="share table 'item'"):
    Ranking('wukong', section, {}, features=FEATURES, labels=('a',))


@pytest.mark.parametrize('model', ['lr', 'dlrm', 'deepfm'])
def test_a_prior_is_where_logits_begin(model):
  plain, b = task_of(model, labels=('a', 'b')), batch(2)
  task = task_of(model, {'prior': (0.02, 0.5)}, labels=('a', 'b'))
  params, tables = parts_of(plain)
  rows = views(plain, tables, b)
  shift = [np.log(0.02 / 0.98), 0.0]
  found = task.predict(params, rows, b)
  assert_close(found, np.asarray(plain.predict(params, rows, b)) + shift)
  logits, labels, weights, _ = task.score_labels(params, rows, b)
  assert_close(logits, found)
  each = np.logaddexp(0, np.asarray(found)) - labels * np.asarray(found)
  loss = task.loss(params, rows, b, jax.random.key(0))['loss'][0]
  if model == 'lr':  # without dropout
    assert_close(loss, np.sum(each.sum(1) * weights))


def test_priors_that_make_no_sense_are_refused():
  with pytest.raises(ValueError, match='loss.prior holds 1.0'):
    task_of(loss={'prior': (1.0,)})
  with pytest.raises(ValueError, match='loss.prior has 2 numbers for 1 labels'):
    task_of(loss={'prior': (0.1, 0.2)})
