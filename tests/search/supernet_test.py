"""A supernet with weights of 0 and 1 is the architecture that they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax.features import Inputs
from genrec_jax.models import RANKERS
from genrec_jax.search import gumbel
from genrec_jax.search.choices import SKIP
from genrec_jax.search.supernet import SuperDLRM
from tests.search import spaces
from tests.tolerances import assert_close

B = 5


def make_inputs(space, rng):
  """Vectors of all numbers of rows, feature by feature."""
  vectors = [
    jnp.asarray(rng.normal(size=(B, max(space.dims[t]))), jnp.float32)
    for t in space.tables_of_vectors
    for _ in space.rows[t]
  ]
  return Inputs(
    vectors=tuple(vectors),
    numbers=jnp.asarray(rng.normal(size=(B, 2)), jnp.float32),
    linear=jnp.zeros(B),
    weights=jnp.ones(B),
  )


def copy_mlp(supernet, options, mlp, columns):
  """The matrices of a path, from the output down to the input."""
  space = supernet.space
  size = options[space.last.name]
  out = getattr(supernet, f'out_of_{size}')
  mlp.out.kernel[...], mlp.out.bias[...] = out.kernel[...], out.bias[...]
  number = len(mlp.hidden)

  def take(layer, sizes, size, rows=slice(None)):
    begin = sum(sizes[: sizes.index(size)])
    return (
      layer.kernel[...][rows, begin : begin + size],
      layer.bias[...][begin : begin + size],
    )

  for layer in range(space.layers, 0, -1):
    sizes = space.widths[layer - 1]
    if layer == 1:
      kernel, bias = take(supernet.first, sizes, size, columns)
    else:
      below = options[f'{space.name}.{layer}.{size}']
      if below == SKIP:
        continue
      made = getattr(supernet, f'layer_{layer}_of_{below}')
      kernel, bias = take(made, sizes, size)
      size = below
    number -= 1
    target = getattr(mlp, f'linear_{number}')
    target.kernel[...], target.bias[...] = kernel, bias
  assert number == 0


@pytest.mark.parametrize('interaction', ['cat', 'dot'])
@pytest.mark.parametrize('seed', range(3))
def test_it_is_the_model_that_is_chosen(interaction, seed):
  rng = np.random.default_rng(seed)
  space = spaces.make_space(interaction)
  supernet = SuperDLRM(space, (), nnx.Rngs(seed))
  options = space.draw_options(spaces.draw_weights(space.choices, seed), rng)
  architecture = space.choose(options)
  weights = {
    n: jnp.asarray(w)[None] for n, w in space.to_weights(options).items()
  }
  x = make_inputs(space, rng)
  mixed = supernet.mix(x, weights)

  dims = {f.name: architecture.dims[f.source] for f in spaces.FEATURES[:3]}
  config = space.config.__class__(
    dim=4, dims=dims, interaction=interaction, batch_norm=False,
    **architecture.net,
  )  # fmt: skip
  model = RANKERS['dlrm'](config, spaces.FEATURES, 2, nnx.Rngs(9))
  copy_mlp(supernet.bottom, options, model.bottom, slice(None))
  columns = slice(None)
  if interaction == 'cat':
    kept = [np.ones(4, bool)]
    kept += [np.arange(4) < d for d in dims.values()]
    columns = np.concatenate(kept)
  copy_mlp(supernet.top, options, model.top, columns)
  vectors, rest = [], list(x.vectors)
  for table, dim in zip(space.tables_of_vectors, dims.values(), strict=True):
    own = [rest.pop(0) for _ in space.rows[table]]
    place = space.rows[table].index(architecture.rows[table])
    vectors.append(own[place][:, :dim])
  alone = model(Inputs(tuple(vectors), x.numbers, x.linear, x.weights))
  assert_close(mixed, alone)


def test_draws_have_the_probabilities_of_theta():
  theta = {'a': jnp.log(jnp.array([0.2, 0.8])), 'b': jnp.zeros(3)}
  numbers = jnp.arange(20_000)
  for temperature in (1.0, 0.2):
    hard = gumbel.draw_weights(
      theta, jax.random.key(1), numbers, temperature, hard=True
    )
    assert set(np.unique(np.round(np.asarray(hard['a']), 5))) == {0.0, 1.0}
    assert_share(hard['a'].mean(0), [0.2, 0.8])
    assert_share(hard['b'].mean(0), [1 / 3] * 3)
    both = (hard['a'][:, 0] * hard['b'][:, 0]).mean()
    assert abs(both - 0.2 / 3) < 0.006  # choices do not agree


def assert_share(found, expected):
  np.testing.assert_allclose(np.asarray(found), expected, atol=0.012)


def test_draws_go_by_the_number_of_an_example():
  theta = {'a': jnp.zeros(4)}
  key = jax.random.key(0)
  whole = gumbel.draw_weights(theta, key, jnp.arange(8), 1.0)['a']
  part = gumbel.draw_weights(theta, key, jnp.arange(4, 8), 1.0)['a']
  np.testing.assert_array_equal(whole[4:], part)
  assert len(np.unique(np.asarray(whole[:, 0]))) == 8
  np.testing.assert_allclose(np.asarray(whole).sum(1), 1.0, rtol=1e-6)


def test_hard_draws_have_the_gradients_of_soft_ones():
  key, numbers = jax.random.key(0), jnp.arange(6)
  aim = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)

  def measure(theta, hard):
    drawn = gumbel.draw_weights({'a': theta}, key, numbers, 0.7, hard=hard)
    return jnp.sum(drawn['a'] * aim)

  soft, hard = (jax.grad(measure)(jnp.zeros(3), hard) for hard in (False, True))
  assert_close(hard, soft)
  assert float(jnp.abs(soft).max()) > 0
