"""Wukongs that are searched: costs, and a supernet that is each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import flops
from genrec_jax.config.models import Wukong
from genrec_jax.features import Inputs
from genrec_jax.models import RANKERS
from genrec_jax.search.super_wukong import SuperWukong
from genrec_jax.search.wukong_space import SIZES, WukongSpace
from tests.search import spaces
from tests.tolerances import assert_close

B = 4
# Three tables and one vector of all numbers: n_0 = 4, which 1 + 3 keeps.
OPTIONS = {
  'layers': (1, 2),
  'fmb': (1, 2),
  'lcb': (2, 3),
  'rank': (2, 3),
  'hidden': (3, 5),
}


def make_space(**fields):
  config = Wukong(
    dim=4, fmb_hidden=(3, 3), bottom=(3,), top=(5,), compress=2,
    attention_hidden=(3,), norm_eps=1e-8, **fields,
  )  # fmt: skip
  return WukongSpace(
    features=spaces.FEATURES,
    config=config,
    dims={'user': (4,), 'item': (4,)},
    rows={'user': (50,), 'item': (40,)},
    row_bytes={'user': 4, 'item': 4},
    sizes=OPTIONS,
    outputs=2,
  )


def make_config(space, architecture):
  keys = {
    key.removeprefix('model.'): value
    for key, value in space.to_keys(architecture).items()
  }
  return space.config.__class__(**{**vars(space.config), **keys})


@pytest.mark.parametrize(
  'fields', [{}, dict(attentive=False, residual_bias=True)]
)
def test_costs_are_those_of_the_model(fields):
  space = make_space(**fields)
  every = list(space.list_architectures())
  assert len(every) == 32
  for architecture in every[::5]:
    config = make_config(space, architecture)
    costs = space.measure_architecture(architecture)
    macs = flops.count_macs(RANKERS['wukong'], config, spaces.FEATURES, 2)
    count = flops.count_parameters
    assert costs['flops'] == 2 * macs.total
    assert costs['parameters'] == count(
      RANKERS['wukong'], config, spaces.FEATURES, 2
    )
    assert space.choose(space.describe(architecture)) == architecture


def test_expected_costs_are_those_of_all_architectures():
  space = make_space()
  weights = spaces.draw_weights(space.choices)
  expected = dict.fromkeys(space.costs, 0.0)
  for architecture in space.list_architectures():
    options = space.describe(architecture)
    p = np.prod([
      weights[c.name][c.options.index(options[c.name])] for c in space.choices
    ])  # fmt: skip
    for name, cost in space.measure_architecture(architecture).items():
      expected[name] += p * cost
  for name, cost in space.measure(weights).items():
    assert float(cost) == pytest.approx(expected[name], rel=1e-9)
  each = {n: jnp.tile(w.astype('f4'), (3, 1)) for n, w in weights.items()}
  for name, cost in space.measure(each).items():
    np.testing.assert_allclose(cost, [expected[name]] * 3, rtol=1e-5)


def cut(array, keep):
  """The entries of an array that are kept, axis by axis."""
  for axis, places in enumerate(keep):
    if places is not None:
      array = jnp.take(array, jnp.asarray(places), axis=axis)
  return array


def copy_layer(supernet, model, reads, net, most):
  """The weights of a layer that a smaller one has.

  Args:
    supernet: the layer of the supernet.
    model: that of the model.
    reads: places of its rows among those of the supernet's layer.
    net: sizes of the model.
    most: the largest ones.
  """
  d, rank = 4, most['rank']
  columns = [r * rank + k for r in reads for k in range(net['rank'])]
  made = [*range(net['fmb'])]
  made += [most['fmb'] + i for i in range(net['lcb'])]

  def copy(target, source, *keep):
    target.kernel[...] = cut(source.kernel[...], keep)
    if getattr(target, 'bias', None) is not None:
      target.bias[...] = cut(source.bias[...], keep[-1:])

  block = model.fmb
  copy(block.attention.compress, supernet.compress, reads, None)
  copy(block.attention.mlp.linear_0, supernet.attention.linear_0, None, None)
  copy(block.attention.mlp.out, supernet.attention.out, None, columns)
  norm, own = supernet.norm_products, block.norm
  own.scale[...] = cut(norm.scale[...], [columns])
  own.shift[...] = cut(norm.shift[...], [columns])
  hidden = range(net['hidden'])
  copy(block.mlp.linear_0, supernet.mlp.linear_0, columns, hidden)
  copy(block.mlp.linear_1, supernet.mlp.linear_1, hidden, hidden)
  copy(block.mlp.out, supernet.mlp.out, hidden, range(net['fmb'] * d))
  copy(model.lcb, supernet.lcb, reads, range(net['lcb']))
  if model.residual is not None:
    copy(model.residual, supernet.residual, reads, made)
  for name in ('scale', 'shift'):
    getattr(model.norm, name)[...] = getattr(supernet.norm, name)[...]
  return made


@pytest.mark.parametrize(
  'sizes', [(1, 1, 2, 2, 3), (2, 1, 3, 3, 5), (2, 2, 2, 2, 3), (2, 1, 2, 3, 3)]
)
def test_it_is_the_model_that_is_chosen(sizes):
  space = make_space()
  net = dict(zip(SIZES, sizes, strict=True))
  most = {name: max(OPTIONS[name]) for name in SIZES}
  supernet = SuperWukong(space, (), nnx.Rngs(1))
  rng = np.random.default_rng(0)
  # Norms that change something.
  for path, value in nnx.to_flat_state(nnx.state(supernet, nnx.Param)):
    if path[-1] in ('scale', 'shift', 'bias'):
      value[...] = jnp.asarray(rng.normal(size=value.shape), jnp.float32)
  architecture = space.choose({f'wukong.{n}': x for n, x in net.items()})
  model = RANKERS['wukong'](
    make_config(space, architecture), spaces.FEATURES, 2, nnx.Rngs(2)
  )
  reads = range(4)
  for i in range(net['layers']):
    own = getattr(supernet, f'layer_{i}')
    reads = copy_layer(own, getattr(model, f'layer_{i}'), reads, net, most)
  for part in ('embedding', 'top'):
    source = nnx.state(getattr(supernet, part), nnx.Param)
    if part == 'embedding':
      nnx.update(model.embedding, source)
      continue
    columns = [r * 4 + j for r in reads for j in range(4)]
    model.top.linear_0.kernel[...] = cut(
      supernet.top.linear_0.kernel[...], [columns]
    )
    model.top.linear_0.bias[...] = supernet.top.linear_0.bias[...]
    model.top.out.kernel[...] = supernet.top.out.kernel[...]
    model.top.out.bias[...] = supernet.top.out.bias[...]
  x = Inputs(
    vectors=tuple(
      jnp.asarray(rng.normal(size=(B, 4)), jnp.float32) for _ in range(3)
    ),
    numbers=jnp.asarray(rng.normal(size=(B, 2)), jnp.float32),
    linear=jnp.zeros(B),
    weights=jnp.ones(B),
  )
  weights = space.to_weights(space.describe(architecture))
  weights = {n: jnp.asarray(w)[None] for n, w in weights.items()}
  assert_close(supernet.mix(x, weights), model(x))


def test_all_sizes_have_gradients():
  space = make_space()
  supernet = SuperWukong(space, (), nnx.Rngs(1))
  x = Inputs(
    vectors=tuple(jnp.ones((B, 4)) * (i + 1) for i in range(3)),
    numbers=jnp.ones((B, 2)),
    linear=jnp.zeros(B),
    weights=jnp.ones(B),
  )
  weights = {c.name: jnp.full((1, 2), 0.5) for c in space.choices}
  grads = jax.grad(lambda w: jnp.sum(jnp.sin(supernet.mix(x, w))))(weights)
  for name, grad in grads.items():
    assert float(jnp.abs(grad).max()) > 0, name
