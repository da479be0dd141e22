"""Products of activations with weights: sites, rules, precision."""

import doctest
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax import config as config_lib
from genrec_jax.features import FeatureSpec
from genrec_jax.models import layers
from genrec_jax.numerics import products
from genrec_jax.runtime import state
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.tasks.retrieval import Retrieval, params_state
from tests.tolerances import assert_close

# What models multiplied by before `dot`, beside its specification.
RAW = {
  'bi,io->bo': lambda x, w: x @ w,
  'nx,nm->mx': lambda x, w: w.T @ x,
  'bd,kdr->bkr': lambda x, w: jnp.einsum('bd,kdr->bkr', x, w),
  'bks,krs->bkr': lambda x, w: jnp.einsum('bks,krs->bkr', x, w),
  'bkr,kdr->bd': lambda x, w: jnp.einsum('bkr,kdr->bd', x, w),
  'bhi,hioj->bhoj': lambda x, w: jnp.einsum('bhi,hioj->bhoj', x, w),
}
SIZES = dict(zip('bionxmdkrshj', range(2, 14), strict=True))
SITE = products.Site()


def draw(spec, dtype=jnp.float32):
  """(activations in `dtype`, weight in float32, cotangent in `dtype`)."""
  rng = np.random.default_rng(0)
  x, w, y = (
    rng.normal(size=[SIZES[a] for a in axes])
    for axes in products.split_spec(spec)
  )
  return jnp.asarray(x, dtype), jnp.asarray(w, jnp.float32), y.astype(dtype)


class Pair(nnx.Module):
  """Two layers, the second over the result of the first."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.first = layers.Linear(16, 16, rngs=rngs)
    self.second = layers.Linear(16, 4, rngs=rngs)

  def __call__(self, x):
    return self.second(self.first(x))


def pair(*rules, **options):
  return products.assign_products(Pair(), rules, **options)


def chosen(model):
  return {name: s.product for name, s in products.find_sites(model).items()}


def test_the_examples_in_the_docstrings():
  assert doctest.testmod(products).failed == 0


# --- Arithmetic


@pytest.mark.parametrize('spec', RAW)
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_default_traces_to_the_program_of_the_raw_product(spec, dtype):
  x, w, dy = draw(spec, dtype)

  def raw(x, w):
    return RAW[spec](x, w.astype(x.dtype))

  def dot(x, w):
    return products.dot(x, w, site=SITE, spec=spec)

  def program(product):
    forward = jax.make_jaxpr(product)(x, w)
    backward = jax.make_jaxpr(lambda *a: jax.vjp(product, *a)[1](dy))(x, w)
    return str(forward), str(backward)

  assert program(dot) == program(raw)


def rounded(a):
  return np.asarray(jnp.asarray(a).astype(jnp.bfloat16), np.float64)


@pytest.mark.parametrize('spec', RAW)
def test_bfloat16_rounds_the_operands_of_all_three_products(spec):
  x, w, dy = draw(spec)

  @jax.jit
  def run(x, w, dy):
    y, pull = jax.vjp(
      lambda x, w: products.multiply_in_bfloat16(x, w, spec=spec), x, w
    )
    return y, *pull(dy)

  left, right, out = products.split_spec(spec)
  expected = (
    np.einsum(spec, rounded(x), rounded(w)),
    np.einsum(f'{out},{right}->{left}', rounded(dy), rounded(w)),
    np.einsum(f'{left},{out}->{right}', rounded(x), rounded(dy)),
  )
  for name, actual, stated in zip(
    ('y', 'dx', 'dw'), run(x, w, dy), expected, strict=True
  ):
    assert actual.dtype == jnp.float32
    assert_close(actual, stated, name=name)


def test_bfloat16_multiplies_bfloat16_numbers_on_an_accelerator():
  x, w, _ = draw('bi,io->bo')
  product = functools.partial(products.multiply_in_bfloat16, spec='bi,io->bo')
  for platform, dtype in ('cuda', 'bf16'), ('tpu', 'bf16'), ('cpu', 'f32'):
    lowered = jax.jit(product).trace(x, w).lower(lowering_platforms=(platform,))
    dots = re.findall('dot_general .*: (.*)', lowered.as_text())
    assert dots == [
      f'(tensor<2x3x{dtype}>, tensor<3x4x{dtype}>) -> tensor<2x4xf32>'
    ], platform


def test_bfloat16_gives_each_gradient_the_dtype_of_its_operand():
  spec = 'bi,io->bo'
  x, w, dy = draw(spec, jnp.bfloat16)
  y, pull = jax.vjp(
    lambda x, w: products.multiply_in_bfloat16(x, w, spec=spec), x, w
  )
  dx, dw = pull(dy)
  assert (y.dtype, dx.dtype, dw.dtype) == (x.dtype, x.dtype, w.dtype)


def test_a_product_of_one_site_leaves_the_others_as_they_are():
  x = jnp.asarray(np.random.default_rng(1).normal(size=(5, 16)), jnp.float32)
  plain, second = pair(), pair(('second/.*', 'bfloat16'), ('.*', 'default'))
  hidden = plain.first(x)
  assert np.array_equal(second.first(x), hidden)
  stated = rounded(hidden) @ rounded(second.second.kernel[...])
  assert_close(second(x), stated)
  with pytest.raises(AssertionError):  # the difference can be seen
    assert_close(plain(x), stated)


# --- Names


def test_a_site_has_the_path_of_its_weight():
  model = pair(('.*/kernel', 'bfloat16'))
  assert list(products.find_sites(model)) == ['first/kernel', 'second/kernel']
  leaves = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  assert leaves['first']['kernel'].shape == (16, 16)


def test_sites_stay_when_a_model_is_taken_apart_and_put_together():
  model = nnx.eval_shape(
    lambda: pair(('first/.*', 'bfloat16'), ('.*', 'default'))
  )
  expected = {'first/kernel': 'bfloat16', 'second/kernel': 'default'}
  assert chosen(model) == expected
  graphdef, shapes = nnx.split(model)
  assert chosen(nnx.merge(graphdef, shapes)) == expected


def test_another_product_is_another_program():
  graphdefs = [
    nnx.graphdef(pair(*rules))
    for rules in ((), (('.*', 'bfloat16'),), (('.*', 'bfloat16'),))
  ]
  assert graphdefs[0] != graphdefs[1]
  assert graphdefs[1] == graphdefs[2]
  assert hash(graphdefs[1]) == hash(graphdefs[2])


def test_a_model_in_a_model_has_the_longer_names():
  class Outer(nnx.Module):
    def __init__(self):
      self.inner = pair(('.*', 'bfloat16'))

  model = products.assign_products(Outer())
  assert chosen(model) == {
    'inner/first/kernel': 'default',
    'inner/second/kernel': 'default',
  }


def test_a_module_may_be_shared_but_not_a_weight_alone():
  model = Pair()
  model.third = model.first
  assert len(products.find_sites(model)) == 2
  model = Pair()
  model.second.kernel = model.first.kernel
  with pytest.raises(ValueError, match='not a parameter of its own'):
    products.assign_products(model)


def test_a_site_needs_a_weight_of_its_name():
  class Nameless(nnx.Module):
    kernel_site = SITE

  with pytest.raises(
    ValueError, match='Nameless.kernel_site is the site of no weight'
  ):
    products.assign_products(Nameless())


def test_a_weight_that_a_variant_does_without_has_no_site():
  model = Pair()
  model.second.kernel = None
  assert list(products.find_sites(model)) == ['first/kernel']


def build_task(config):
  if config.task == 'retrieval':
    return Retrieval.from_config(config, np.arange(1, 9), np.ones(9, np.int32))
  features = FeatureSpec('user', rows=9), FeatureSpec('age', kind='numeric')
  return Ranking.from_config(config, features, ('clicked',))


@pytest.mark.parametrize('kind', ['retrieval', 'ranking'])
def test_the_sites_of_a_configured_task_are_leaves_of_its_state(kind):
  config = getattr(config_lib, kind)()
  rules = "numerics.policy=(('.*/(kernel|product)', 'bfloat16'),)"
  config_lib.apply_override(config, rules)
  task = build_task(config)
  params = jax.eval_shape(task.init, jax.random.key(0))
  assert task.sites
  assert task.sites.keys() <= state.flatten_state(params).keys()
  assert {site.product for site in task.sites.values()} == {'bfloat16'}
  built = nnx.merge(task.graphdef, params_state(params))
  assert products.find_sites(built) == task.sites
  config.numerics.policy = (('no/such', 'bfloat16'),)
  with pytest.raises(ValueError, match=next(iter(task.sites))):
    build_task(config)


# --- Rules


def test_the_first_rule_that_matches_counts():
  rules = ('second/.*', 'default'), ('.*', 'bfloat16')
  assert chosen(pair(*rules)) == {
    'first/kernel': 'bfloat16',
    'second/kernel': 'default',
  }
  with pytest.raises(ValueError, match="in front of 'second/.*' decide all"):
    pair(*reversed(rules))


class Trio(nnx.Module):
  """Three layers, of which the second one is no end."""

  outer_sites = ('no/such', 'a/kernel'), ('c/kernel',)

  def __init__(self, width=128):
    rngs = nnx.Rngs(0)
    self.a, self.b, self.c = (
      layers.Linear(width, 128, rngs=rngs) for _ in 'abc'
    )


def test_all_others_are_neither_the_ends_nor_small():
  def choose(*rules, width=128):
    return [*chosen(products.assign_products(Trio(width), rules)).values()]

  assert choose(('.*', 'mx9')) == ['bfloat16', 'mx9', 'bfloat16']
  assert choose(('.*', 'mx9'), width=127) == ['bfloat16'] * 3
  # Who names them has them.
  assert choose(('.+', 'mx9'), width=64) == ['mx9'] * 3
  assert choose(('a.*', 'mx6'), ('.*', 'mx9')) == ['mx6', 'mx9', 'bfloat16']
  assert choose(('.*', 'default')) == ['default'] * 3


def test_products_of_single_weights_before():
  config = config_lib.retrieval()
  config_lib.apply_override(config, "numerics.products=(('.*', 'bfloat16'),)")
  assert config.numerics.policy == (('.*', 'bfloat16'),)


@pytest.mark.parametrize(
  'rule, message',
  [
    (('third/.*', 'bfloat16'), r'they are first/kernel, second/kernel$'),
    (('first', 'bfloat16'), r"'first', which matches no product weight as a"),
    (('.*', ['mx9']), r"has the product \['mx9'\] for"),
    (('.*', 'float7'), r"'float7' for '.*'; products are default, bfloat16, "),
    (('.*', 'mx_9'), r"; did you mean 'mx9'\?"),
    (('first/.*', 'mx9'), r'says nothing of second/kernel; put a last pair'),
    (('(', 'bfloat16'), r"'\(', which is not a regex"),
    ((3, 'bfloat16'), r'3, which is not a regex'),
    (('.*', 'default', 1), r'must hold pairs \(pattern, product\)'),
    ('.*', r"holds '.*'; it must hold pairs"),
  ],
)
def test_a_rule_that_cannot_be_used(rule, message):
  with pytest.raises(ValueError, match=message):
    pair(rule)


def test_products_from_outside():
  seen = []

  def record(x, w, *, spec, site):
    seen.append((site, spec, w.shape))
    return products.multiply_in_dtype(x, w, spec=spec)

  model = pair(('.*', 'record'), extra={'record': record})
  x = jnp.ones((2, 16))
  assert np.array_equal(model(x), pair()(x))
  assert seen == [
    ('first/kernel', 'bi,io->bo', (16, 16)),
    ('second/kernel', 'bi,io->bo', (16, 4)),
  ]
  with pytest.raises(ValueError, match="'default' exists already"):
    pair(extra={'default': record})
