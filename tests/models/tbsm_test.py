"""Tests of TBSM, its baselines, and the places of events."""

import dataclasses
import doctest
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax.config import event_models
from genrec_jax.config.event_models import TBSM as Config
from genrec_jax.features import FeatureSpec
from genrec_jax.models import event_places
from genrec_jax.models.tbsm import TBSM, pair_columns
from genrec_jax.numerics.products import find_sites
from tests.models import tbsm_cases as cases
from tests.tolerances import assert_close

COMPARED = ('def', 'def_heads', 'ind', 'dot', 'mul', 'published')


def test_doctests():
  for module in (event_places, event_models):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize('name', cases.CASES)
def test_logits_are_those_of_a_loop_over_events(name):
  config = cases.CASES[name]
  params, call = cases.build(name)
  x = cases.draw_inputs(config)
  out = call(params, x)
  assert out.shape == (len(cases.LENGTHS), cases.OUTPUTS)
  assert out.dtype == jnp.float32
  assert_close(out, cases.state(config, params, x))


@pytest.mark.parametrize('name', cases.CASES)
def test_padding_and_company_change_nothing(name):
  config = cases.CASES[name]
  params, call = cases.build(name)
  x = cases.draw_inputs(config)
  out = call(params, x)
  history = x.histories['seen']
  pad = (jnp.arange(cases.CAPACITY) >= sum(cases.LENGTHS))[:, None]
  fill = lambda a: jnp.where(pad, 77.0, a)  # noqa: E731
  other = dataclasses.replace(
    history,
    vectors=jax.tree.map(fill, history.vectors),
    numbers=fill(history.numbers),
  )
  other = dataclasses.replace(x, histories={'seen': other})
  np.testing.assert_array_equal(call(params, other), out)
  order = [4, 0, 2, 1, 5, 3]
  assert_close(call(params, cases.select(x, order)), out[np.array(order)])


@pytest.mark.parametrize('name', cases.CASES)
def test_gradients_are_finite_and_reach_every_parameter(name):
  config = cases.CASES[name]
  params, call = cases.build(name)
  x = cases.draw_inputs(config)

  def loss(params, x):
    out = call(params, x)
    return jnp.sum(out * jnp.sin(jnp.arange(out.size)).reshape(out.shape))

  grads = jax.jit(jax.grad(loss))(params, x)
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    # Softmax does not see what all scores have in common.
    blind = 'key' in jax.tree_util.keystr(path) and grad.ndim == 1
    assert np.all(np.isfinite(grad))
    assert blind or np.any(grad), jax.tree_util.keystr(path)
  zeros = jax.tree.map(jnp.zeros_like, x)
  for lengths in (cases.LENGTHS, (0,) * 6):
    seen = dataclasses.replace(
      zeros.histories['seen'], lengths=jnp.array(lengths, jnp.int32)
    )
    x = dataclasses.replace(zeros, histories={'seen': seen})
    assert np.all(np.isfinite(call(params, x)))
    for grad in jax.tree.leaves(jax.jit(jax.grad(loss))(params, x)):
      assert np.all(np.isfinite(grad))


def test_def_is_ind_with_the_product_of_the_matrix_with_itself():
  config = cases.CASES['def']
  params, call = cases.build('def')
  graphdef, _ = cases.make(dataclasses.replace(config, mechanism='ind'))
  x = cases.draw_inputs(config)
  a = params['head_0']['matrix']
  other = params | {'head_0': params['head_0'] | {'matrix': a.T @ a}}
  assert_close(cases.merge(graphdef, other)(x), call(params, x))
  # And `dot` is both with the identity.
  graphdef, _ = cases.make(dataclasses.replace(config, mechanism='dot'))
  one = params | {'head_0': params['head_0'] | {'matrix': jnp.eye(3)}}
  bare = params | {'head_0': {'attention': params['head_0']['attention']}}
  assert_close(cases.merge(graphdef, bare)(x), call(one, x))


def test_heads_with_equal_weights_say_the_same():
  config = dataclasses.replace(cases.CASES['def'], heads=3)
  graphdef, params = cases.make(config)
  for i in (1, 2):
    for part in ('head', 'output'):
      params[f'{part}_{i}'] = params[f'{part}_0']
  # Only the first probability reaches the logit, then only the last one.
  x, found = cases.draw_inputs(config), []
  kernel = params['final']['linear_0']['kernel']
  for i in range(3):
    own = jnp.zeros_like(kernel).at[2 * i : 2 * i + 2].set(kernel[:2])
    final = params['final'] | {
      'linear_0': params['final']['linear_0'] | {'kernel': own}
    }
    found.append(cases.merge(graphdef, params | {'final': final})(x))
  assert_close(found[1], found[0])
  assert_close(found[2], found[0])


@pytest.mark.parametrize(
  'name, sees',
  [
    ('def', True), ('dot', True), ('mul', False), ('mean', False),
    ('concat', True), ('attention', False), ('gru', True), ('lstm', True),
    ('din', False),
  ],
)  # fmt: skip
def test_who_sees_the_order_of_events(name, sees):
  """Without places in the tower: who has an input for each place does."""
  config = dataclasses.replace(cases.CASES[name], position=False)
  graphdef, params = cases.make(config)
  x = cases.draw_inputs(config, (5,), 5)
  model = cases.merge(graphdef, params)
  turned = jnp.array([2, 0, 1, 4, 3])
  history = x.histories['seen']
  other = dataclasses.replace(
    history,
    vectors=jax.tree.map(lambda a: a[turned], history.vectors),
    numbers=history.numbers[turned],
  )
  one, two = model(x), model(dataclasses.replace(x, histories={'seen': other}))
  assert bool(np.abs(one - two).max() > 1e-4) == sees


@pytest.mark.parametrize('name', COMPARED)
def test_weights_of_events_are_those_that_are_summed(name):
  config = cases.CASES[name]
  graphdef, params = cases.make(config)
  model, x = cases.merge(graphdef, params), cases.draw_inputs(config)
  weights = model.weigh_events(x)
  assert weights.shape == (len(cases.LENGTHS), model.heads, cases.MOST)
  for n, length in enumerate(cases.LENGTHS):
    assert not np.any(weights[n, :, : cases.MOST - length])
  spans = config.list_spans(cases.MOST)
  full = cases.LENGTHS.index(cases.MOST)
  seen = (np.asarray(weights[full]) != 0).sum(-1)
  np.testing.assert_array_equal(seen, spans)
  with pytest.raises(ValueError, match="'mean' gives events no weights"):
    graphdef, params = cases.make(cases.CASES['mean'])
    cases.merge(graphdef, params).weigh_events(x)


def count(config: Config, features) -> int:
  model = nnx.eval_shape(lambda: TBSM(config, features, 1, nnx.Rngs(0)))
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_published_sizes_are_those_counted_by_hand():
  """Spec: 3,654 dense parameters, 3,638 without an MLP on one probability."""
  seen = dict(kind='sequence', history='seen', max_len=20)
  features = (
    FeatureSpec('user', rows=100),
    FeatureSpec('item', rows=100),
    FeatureSpec('category', rows=10),
    FeatureSpec('seen_item', rows=100, table='item', **seen),
    FeatureSpec('seen_category', rows=10, table='category', **seen),
  )
  assert count(Config(), features) == 3638
  assert count(Config(one_head_mlp=True), features) == 3654
  for heads in (2, 4, 8):
    final = (heads + 4) * (heads + 1) + heads + 5
    assert count(Config(heads=heads), features) == 617 + 3021 * heads + final
  assert count(Config(mechanism='dot'), features) == 3638 - 225
  assert count(Config(weights='mul'), features) == 3638 - 875
  # What `k_sequences` shortens is the MLP over products.
  assert Config(heads=3, k_sequences=True).list_spans(20) == [20, 13, 7]


def replace_feature(name: str, **changed):
  return [
    dataclasses.replace(f, **changed) if f.name == name else f
    for f in cases.FEATURES
  ]


def replace_all(**changed):
  return [
    dataclasses.replace(f, **changed) if f.history else f
    for f in cases.FEATURES
  ]


def test_columns_are_paired_by_table_or_by_the_config():
  columns = pair_columns(Config(), cases.FEATURES)
  assert columns.history == 'seen' and columns.most == cases.MOST
  assert columns.pairs == (
    ('item', 'seen_item'), ('category', 'seen_category')
  )  # fmt: skip
  assert columns.shared == ('user',) and columns.shared_numbers == ('price',)
  assert columns.event_numbers == (('seen_age', ''),)
  columns = pair_columns(
    Config(pairs={'seen_age': 'price'}, leave_out=('user',)), cases.FEATURES
  )
  assert columns.shared == columns.shared_numbers == ()
  assert columns.event_numbers == (('seen_age', 'price'),)


@pytest.mark.parametrize(
  'changed, features, words',
  [
    (
      {},
      [f for f in replace_all(history='') if f.name != 'seen_age'],
      'data.features.NAME.history and .*: seen_item, seen_category',
    ),
    (dict(history_name='had'), cases.FEATURES, "'had'; the histories are seen"),
    (dict(leave_out=('usr',)), cases.FEATURES, "model.leave_out names 'usr'"),
    ({}, replace_feature('seen_age', history='old'), 'several histories'),
    (
      dict(history_name='seen'),
      replace_feature('seen_age', history='old'),
      "and there is 'old', too",
    ),
    ({}, replace_feature('item', table='goods'), "table, 'item', and none"),
    (
      {},
      [*cases.FEATURES, FeatureSpec('shown', rows=11, table='item')],
      r'several do \(item, shown\)',
    ),
    (dict(pairs={'seen_age': 'item'}), cases.FEATURES, 'not the same of an ev'),
    (dict(pairs={'seen_item': 'user'}), cases.FEATURES, "reads table 'item'"),
    (
      dict(leave_out=('seen_item', 'seen_category')),
      cases.FEATURES,
      'nothing can be compared',
    ),
  ],
)  # fmt: skip
def test_features_that_do_not_fit_are_told(changed, features, words):
  with pytest.raises(ValueError, match=words):
    pair_columns(Config(**changed), features)


def test_a_history_of_any_length_is_refused():
  features = replace_all(max_len=0)
  for mechanism in ('def', 'mean', 'gru'):
    with pytest.raises(ValueError, match='set max_len of the columns'):
      TBSM(
        Config(mechanism=mechanism, position=False), features, 1, nnx.Rngs(0)
      )


@pytest.mark.parametrize(
  'changed, words',
  [
    (dict(mechanism='sum'), "model.mechanism is 'sum'.*'def'"),
    (dict(mechanism='gru', heads=2), "model.heads=2, and mechanism='gru'"),
    (dict(k_sequences=True), 'model.k_sequences gives each of several heads'),
    (dict(width=0), 'model.width is 0, must be at least 1'),
    (dict(dim=2.5), 'model.dim is 2.5, must be a whole number'),
    (dict(heads=True), 'model.heads is True, must be a whole number'),
    (dict(top=15), 'model.top is 15, must be several values, each a whole'),
    (dict(hidden=(0,)), r'model.hidden is \(0,\), must be at least 1'),
    (dict(dropout=1.0), 'model.dropout is 1.0, must be at least 0 and below'),
    (dict(projection='no'), "model.projection is 'no', must be True or False"),
    (dict(projection_eps=-1), 'model.projection_eps is -1, must be'),
    (dict(projection_eps=float('nan')), 'model.projection_eps is nan'),
    (dict(leave_out='user'), "model.leave_out is 'user', must be several"),
    (dict(pairs=['a']), r"model.pairs is \['a'\], must be a dict"),
    (dict(pairs={'a': ''}), "model.pairs.a is '', must be some text"),
    (dict(dtype='float16'), "model.dtype is 'float16'"),
  ],
)
def test_bad_values_are_told(changed, words):
  with pytest.raises(ValueError, match=words):
    Config(**changed)


@pytest.mark.parametrize('name', ['def_heads', 'gru', 'attention'])
def test_bfloat16_is_close_to_float32(name):
  config = dataclasses.replace(cases.CASES[name], dtype='bfloat16')
  graphdef, params = cases.make(config)
  x = cases.draw_inputs(config)
  out = jax.jit(lambda p, x: cases.merge(graphdef, p)(x))(params, x)
  expected = cases.build(name)[1](params, x)
  assert out.dtype == jnp.float32 and np.any(out != expected)
  assert_close(out, expected, 'bfloat16')


def test_every_product_has_a_site():
  for name, config in cases.CASES.items():
    model = nnx.eval_shape(
      lambda config=config: TBSM(config, cases.FEATURES, 1, nnx.Rngs(0))
    )
    sites = find_sites(model)
    for group in model.outer_sites:
      for site in group:
        assert site in sites, name
    if config.compares and config.mechanism != 'dot':
      assert 'head_0/matrix' in sites
    assert not [s for s in sites if re.search('bias', s)]
