"""No model multiplies activations with a weight but by `products.dot`."""

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from flax import nnx

from genrec_jax.models import MODELS, RANKERS
from genrec_jax.numerics import products
from tests.models import model_cases
from tests.models.ranking import cases as ranking_cases

CASES = [*model_cases.CASES, *ranking_cases.CASES]
PRODUCTS = ('dot_general', 'ragged_dot_general', 'conv_general_dilated')


def model_and_inputs(name, rules=(), extra=None):
  """A model of shapes, with its sites, and what it is called with."""
  if name in model_cases.CASES:
    kind = MODELS[model_cases.CASES[name].name]
    arguments = (kind.Config(**model_cases.fields(name)),)
    inputs = model_cases.inputs()
  else:
    section, features = ranking_cases.CASES[name]
    kind = RANKERS[section.name]
    config = kind.Config(**ranking_cases.fields(name))
    arguments = config, features, ranking_cases.OUTPUTS
    inputs = (ranking_cases.inputs(name),)

  def build():
    return products.assign_products(kind(*arguments, nnx.Rngs(0)), rules, extra)

  return nnx.eval_shape(build), inputs


def traced(model, *inputs):
  """(jaxpr of a call, which of its inputs are weights)."""
  graphdef, state = nnx.split(model)

  def call(state, inputs):
    return nnx.merge(graphdef, state)(*inputs)

  jaxpr = jax.make_jaxpr(call)(state, inputs)
  weights = len(jax.tree.leaves(state))
  others = len(jaxpr.in_avals) - weights
  return jaxpr.jaxpr, ['weight'] * weights + ['activation'] * others


# --- The walk. A value is an 'activation' if any input of the model is in it,
# else a 'weight' if any parameter is, else a 'constant'.


def joined(kinds):
  for kind in ('activation', 'weight'):
    if kind in kinds:
      return kind
  return 'constant'


def weight_products(jaxpr, kinds, scopes=()):
  """Kinds of the results of `jaxpr`, and the site of each weight product.

  Args:
    jaxpr: the program.
    kinds: of its inputs.
    scopes: names of the scopes around it.

  Returns:
    (kinds, sites); a site is None where the product has gone another way.
  """
  known = dict(zip(jaxpr.invars, kinds, strict=True))
  sites = []
  for equation in jaxpr.eqns:
    kinds = [
      'constant'
      if isinstance(v, jax.extend.core.Literal)
      else known.get(v, 'constant')
      for v in equation.invars
    ]
    stack = equation.source_info.name_stack.stack
    inner_scopes = *scopes, *(part.name for part in stack)
    if equation.primitive.name in PRODUCTS and 'weight' in kinds:
      named = [s for s in inner_scopes if s.startswith('site:')]
      sites.append(named[-1].removeprefix('site:') if named else None)
    results = [joined(kinds)] * len(equation.outvars)
    for inner, inner_kinds in programs_within(equation, kinds):
      found, below = weight_products(inner, inner_kinds, inner_scopes)
      sites += below
      if len(found) == len(results):
        results = found
    known |= dict(zip(equation.outvars, results, strict=True))
  results = [
    'constant'
    if isinstance(v, jax.extend.core.Literal)
    else known.get(v, 'constant')
    for v in jaxpr.outvars
  ]
  return results, sites


def programs_within(equation, kinds):
  """(jaxpr, kinds of its inputs) of those that an operation runs."""
  name, params = equation.primitive.name, equation.params
  for key, value in params.items():
    for inner in value if isinstance(value, tuple | list) else (value,):
      inner = getattr(inner, 'jaxpr', inner)
      if not hasattr(inner, 'eqns'):
        continue
      given = kinds
      if name == 'while':
        first, second = params['cond_nconsts'], params['body_nconsts']
        given = kinds[first:]
        if key == 'cond_jaxpr':
          given = kinds[:first] + kinds[first + second :]
      elif name == 'cond':
        given = kinds[1:]
      assert len(inner.invars) == len(given), f'teach this walk about {name}'
      yield inner, given


# --- Every model


def test_the_cases_are_of_all_models():
  sections = [c.name for c in model_cases.CASES.values()]
  sections += [c.name for c, _ in ranking_cases.CASES.values()]
  # Those of histories are in tests/models/tbsm_test.py.
  assert {*sections, 'tbsm'} == {*MODELS, *RANKERS}


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('training', [False, True])
def test_every_product_with_a_weight_has_a_site(name, training):
  model, inputs = model_and_inputs(name)
  key = jax.random.key(0) if training else None
  _, sites = weight_products(*traced(model, *inputs, key))
  assert None not in sites, (
    'a model multiplies activations with a weight by itself; use '
    'genrec_jax.numerics.products.dot'
  )
  assert set(sites) <= set(products.find_sites(model))


@pytest.mark.parametrize('name', CASES)
def test_every_site_is_multiplied_by_and_by_its_product(name):
  seen = {}

  def record(x, w, *, spec, site):
    seen.setdefault(site, len(seen))
    return products.multiply_in_dtype(x, w, spec=spec)

  plain, inputs = model_and_inputs(name)
  declared = set(products.find_sites(plain))
  rules = [('.+', 'record')] if declared else []
  model, _ = model_and_inputs(name, rules, {'record': record})
  traced(model, *inputs)
  assert seen.keys() == declared
  for names, place in zip(model.outer_sites, (0, len(seen) - 1)):
    named = next(name for name in names if name in declared)
    # Branches beside it, such as a gate, may come before or after.
    assert abs(seen[named] - place) <= 2


@pytest.mark.parametrize('name', CASES)
def test_sites_are_paths_of_parameters(name):
  model, _ = model_and_inputs(name)
  params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  leaves = jax.tree_util.tree_leaves_with_path(params)
  names = {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in leaves
  }
  for site in products.find_sites(model):
    assert names[site].ndim >= 2
  kernels = {n for n, leaf in names.items() if n.endswith('/kernel')}
  # A number's vector is its row times the number, which is not a product of
  # matrices.
  kernels -= {'fields/kernel', 'select_1/kernel', 'select_2/kernel'}
  assert kernels <= set(products.find_sites(model))


# --- The walk finds what it is for


class Raw(nnx.Module):
  """One weight, multiplied with in some way."""

  kernel_site = products.Site()

  def __init__(self, multiply):
    self.multiply = multiply
    self.kernel = nnx.Param(jnp.ones((3, 3)))

  def __call__(self, x):
    return self.multiply(self, x, self.kernel[...])


def scanned(_, x, w):
  def step(carry, row):
    return carry, row @ w

  return jax.lax.scan(step, 0, x)[1]


def looped(_, x, w):
  return jax.lax.while_loop(
    lambda state: state[0] < 3,
    lambda state: (state[0] + 1, state[1] @ w),
    (0, x),
  )[1]


WAYS = {
  'matmul': lambda _, x, w: x @ w,
  'of the weight': lambda _, x, w: w.T @ x.T,
  'cast and scaled': lambda _, x, w: (
    x.astype('bfloat16') @ (w * 2).reshape(3, 3).astype('bfloat16')
  ),
  'einsum': lambda _, x, w: jnp.einsum('bi,io->bo', x, w),
  'jit': lambda _, x, w: jax.jit(jnp.matmul)(x, w),
  'checkpoint': lambda _, x, w: jax.checkpoint(jnp.matmul)(x, w),
  'cond': lambda _, x, w: jax.lax.cond(
    x[0, 0] > 0, jnp.matmul, lambda x, w: x, x, w
  ),
  'scan': scanned,
  'while': looped,
  'beside a dot': lambda module, x, w: (
    x @ w + products.dot(x, w, site=module.kernel_site)
  ),
}


@pytest.mark.parametrize('way', WAYS)
def test_a_raw_product_with_a_weight_is_found(way):
  model = products.assign_products(Raw(WAYS[way]))
  _, sites = weight_products(*traced(model, jnp.ones((5, 3))))
  assert None in sites


def test_products_of_activations_and_by_dot_are_not_complained_of():
  def multiply(module, x, w):
    inner = jax.jit(lambda x, w: products.dot(x, w, site=module.kernel_site))(
      x, w + 1
    )
    return (inner @ x.T) @ jnp.ones((5, 2))

  model = products.assign_products(Raw(multiply))
  _, sites = weight_products(*traced(model, jnp.ones((5, 3))))
  assert sites == ['kernel']
