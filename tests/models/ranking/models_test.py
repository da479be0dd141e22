"""One table of properties over all ranking models and their variants."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.ranking import cases
from tests.tolerances import assert_close

REAL = slice(0, cases.REAL)
# One of each kind, for what takes another compilation.
FIRST = ('dlrm', 'dcn_stacked', 'wukong')


# What is a variant in its values alone takes the same gradients.
VARIANTS = ('lr_tables', 'dnn_plain', 'dlrm_itself', 'dlrm_cat', 'dcn_cross',
            'dcn_both', 'finalmlp_own', 'finalmlp_dual', 'wukong_full',
            'wukong_triangular', 'wukong_batch_norm',
            'wukong_no_fmb')  # fmt: skip


@pytest.fixture(
  params=[
    pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS))
    for name in cases.CASES
  ]
)
def name(request):
  return request.param


@pytest.fixture
def model(name):
  return cases.build(name)


@pytest.mark.parametrize('name', cases.CASES)
def test_logits_are_those_of_the_statement(name):
  model = cases.build(name)
  x = cases.inputs(name)
  real = cases.part(x, REAL)
  for training, out in enumerate(model.both(model.params, x)):
    assert out.shape == (cases.PADDED, cases.OUTPUTS)
    assert out.dtype == jnp.float32
    assert_close(out[REAL], model.statement(model.params, real, bool(training)))


def test_padding_changes_nothing(name, model):
  x = cases.inputs(name)
  pad = jnp.arange(cases.PADDED) >= cases.REAL
  other = jax.tree.map(
    lambda a: jnp.where(pad.reshape(-1, *[1] * (a.ndim - 1)), 77.0, a), x
  )
  other = dataclasses.replace(other, weights=x.weights)
  for one, two in zip(
    model.both(model.params, x), model.both(model.params, other), strict=True
  ):
    np.testing.assert_array_equal(one[REAL], two[REAL])
  one, two = model.grads(model.params, x), model.grads(model.params, other)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert_close(b, a)
  for vector in one[1]:
    assert not np.any(vector[cases.REAL :])


def without_gradient(name, path, paths) -> bool:
  """Biases before a batch norm, and parts that are switched off."""
  off = {
    'wukong_no_fmb': ('fmb',),
    'wukong_no_linear': ('lcb', 'residual'),
  }.get(name, ())
  parts = path.split('/')
  if set(parts) & set(off):
    return True
  norm = path.replace('linear_', 'norm_').removesuffix('bias') + 'scale'
  return parts[-1] == 'bias' and norm in paths


def test_gradients_are_finite_and_reach_every_parameter(name, model):
  grads, vector_grads = model.grads(model.params, cases.inputs(name))
  grads = {
    jax.tree_util.keystr(path, simple=True, separator='/'): grad
    for path, grad in jax.tree_util.tree_leaves_with_path(grads)
  }
  for path, grad in grads.items():
    assert np.all(np.isfinite(grad)), path
    assert np.any(grad) != without_gradient(name, path, grads), path
  for vector in vector_grads:
    assert np.all(np.isfinite(vector)) and np.any(vector)


def test_zeros_give_finite_gradients(name, model):
  zeros = jax.tree.map(jnp.zeros_like, cases.inputs(name))
  x = dataclasses.replace(zeros, weights=jnp.ones(cases.PADDED))
  for grad in jax.tree.leaves(model.grads(model.params, x)):
    assert np.all(np.isfinite(grad))
  for grad in jax.tree.leaves(model.grads(model.params, zeros)):
    assert not np.any(grad)  # nothing but padding


@pytest.mark.parametrize('name', FIRST)
def test_jit_changes_nothing_and_one_example_is_enough(name):
  model = cases.build(name)
  x = cases.inputs(name)
  with jax.disable_jit():
    out = model.logits(model.params, cases.part(x, slice(0, 1)))
  assert out.shape == (1, cases.OUTPUTS)
  assert_close(out, model.both(model.params, x)[0][:1])


DROPPING = {
  'dnn_plain': dict(dropout=0.5),
  'wukong': dict(dropout=0.5, top_dropout=0.4, embedding_dropout=0.3),
}


@pytest.mark.parametrize('name', DROPPING)
def test_dropout_does_not_see_how_a_batch_is_cut(name):
  model = cases.build(name, **DROPPING[name])
  x = cases.inputs(name, real=8)
  train = cases.quick_jit(lambda x, key: model.logits(model.params, x, key))
  whole = train(x, cases.KEY)
  off = model.both(model.params, x)[0]
  assert np.all(np.any(np.asarray(whole) != off, axis=-1))
  assert np.any(train(x, jax.random.key(8)) != whole)
  for start in (0, 4):
    half = cases.part(x, slice(start, start + 4))
    half = dataclasses.replace(half, first=jnp.array([start], jnp.int32))
    assert_close(train(half, cases.KEY), whole[start : start + 4])


@pytest.mark.parametrize('name', ['dcn_stacked', 'wukong'])
def test_bfloat16_is_close_to_float32(name):
  narrow = cases.build(name, dtype='bfloat16')
  x = cases.inputs(name)
  train = cases.quick_jit(lambda p, x: narrow.logits(p, x, cases.KEY))
  out = train(narrow.params, x)
  expected = cases.build(name).both(narrow.params, x)[1]
  assert out.dtype == jnp.float32
  assert np.any(out != expected)
  assert_close(out, expected, 'bfloat16')


REFUSED = [
  ('dnn', dict(dtype='float16'), "model.dtype is 'float16'.*bfloat16"),
  ('dlrm', dict(interaction='sum'), "model.interaction is 'sum'.*'cat'"),
  ('dlrm', dict(init='he'), "model.init is 'he'.*'dlrm'"),
  ('dcn', dict(structure='tower'), "model.structure is 'tower'.*'stacked'"),
  ('dcn', dict(experts=2), 'model.experts=2.*set model.rank'),
  ('finalmlp', dict(heads=4), r'model.hidden1=\(6,\).*model.heads=4'),
  ('finalmlp', dict(context1=('usr',)), "names 'usr'.*'user'"),
  ('wukong', dict(fm='half'), "model.fm is 'half'.*'triangular'"),
  ('wukong', dict(zero=('fm',)), "model.zero names 'fm'.*'fmb'"),
  ('wukong', dict(layers=0), 'model.layers=0'),
  ('wukong', dict(lcb=(1, 2, 3)), 'model.lcb=.*model.layers=2'),
  ('wukong', dict(small={'age': 2}), "model.small names 'age'.*'item'"),
  (
    'wukong',
    dict(small={'item': 2}, important={'item': 2}),
    "both name \\['item'\\]",
  ),
]


@pytest.mark.parametrize('name, change, message', REFUSED)
def test_wrong_fields_are_named(name, change, message):
  model = cases.RANKERS[cases.CASES[name][0].name]
  with pytest.raises(ValueError, match=message):
    made = model.Config(**cases.fields(name, **change))
    model.widths(made, cases.MIXED)
