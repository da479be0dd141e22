"""Towers, beside plain statements of what each of them computes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax.config import models as config_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.features import Columns, Examples, FeatureSpec
from genrec_jax.models import dmt
from genrec_jax.tasks.ranking import Ranking
from tests.tolerances import assert_close

N, W = 6, 4
WIDTHS = ((4, 4, 4), (4,), (8, 4))  # 3, 1 and 3 vectors
CONFIGS = {
  'dlrm': config_lib.DLRM(
    dim=W, towers='3', tower_vectors=2, tower_each=1, bottom=(), top=(8,),
    interaction='dot', batch_norm=False,
  ),
  'dcn': config_lib.DCN(
    dim=W, towers='3', tower_vectors=2, tower_cross=2, hidden=(8,),
    batch_norm=False,
  ),
  'wukong': config_lib.Wukong(
    dim=W, towers='3', tower_vectors=2, layers=1, fmb=2, lcb=2, rank=3,
    fmb_hidden=(8,), top=(8,),
  ),
}  # fmt: skip
STATIC = dataclasses.replace(CONFIGS['wukong'], attentive=False)
FULL = dataclasses.replace(CONFIGS['wukong'], fm='full')
LAYER = dataclasses.replace(STATIC, tower='wukong_layer')


def make(config, seed=0):
  sizes = dmt.plan_sizes(config, WIDTHS)
  return sizes, dmt.make_module(config, sizes, nnx.Rngs(seed))


def draw(count: int, most: int):
  """`[N, V, W]` vectors, the first `count` of them there, and their mask."""
  x = np.random.default_rng(count).normal(size=(N, most, W))
  mask = (np.arange(most) < count).astype(np.float32)
  return x.astype(np.float32) * mask[:, None], mask


def of(param) -> np.ndarray:
  return np.asarray(param[...])


def dlrm_oracle(module, x, sizes):
  count = x.shape[1]
  flat = x.reshape(N, -1) @ of(module.flat.kernel)[: count * W]
  made = flat.reshape(N, -1, W)
  each = x @ of(module.each.kernel)
  return np.concatenate([made, each.reshape(N, -1, W)], axis=1)


def dcn_oracle(module, x, sizes):
  x0 = x.reshape(N, -1)
  used = x0.shape[1]
  crossed = x0
  for i in range(2):
    linear = getattr(module, f'cross_{i}').linear
    product = crossed @ of(linear.kernel)[:used, :used]
    crossed = x0 * (product + of(linear.bias)[:used]) + crossed
  y = crossed @ of(module.out.kernel)[:used]
  return y.reshape(N, -1, W)


def find_weights(module, x):
  """Y of what is there: a parameter, or what an MLP makes of the vectors."""
  count = x.shape[1]
  if module.y is not None:
    return of(module.y)[None, :count]
  attention = module.attention
  h = np.einsum('nvd,vc->ncd', x, of(attention.compress.kernel)[:count])
  h = h.reshape(N, -1)
  for name in ('linear_0', 'linear_1'):
    if linear := getattr(attention.mlp, name, None):
      h = np.maximum(h @ of(linear.kernel) + of(linear.bias), 0)
  out = attention.mlp.out
  y = h @ of(out.kernel) + of(out.bias)
  return y.reshape(N, -1, module.config.rank)[:, :count]


def wukong_oracle(module, x, sizes):
  """Of static Y and of XX^T: norm and MLP see what is there alone."""
  c, count = module.config, x.shape[1]
  if c.fm == 'full':
    dots = np.einsum('nvd,nwd->nvw', x, x)
    places = np.arange(sizes.most**2).reshape(sizes.most, -1)[:count, :count]
  else:
    y = np.broadcast_to(find_weights(module, x), (N, count, c.rank))
    dots = np.einsum('nvd,nkd->nvk', x, np.einsum('nvk,nvd->nkd', y, x))
    places = np.arange(sizes.most * c.rank).reshape(-1, c.rank)[:count]
  flat = dots.reshape(N, -1)
  at = places.reshape(-1)
  mean, variance = flat.mean(1, keepdims=True), flat.var(1, keepdims=True)
  h = (flat - mean) / np.sqrt(variance + module.norm.eps)
  h = h * of(module.norm.scale)[at] + of(module.norm.shift)[at]
  first = module.mlp.linear_0
  h = np.maximum(h @ of(first.kernel)[at] + of(first.bias), 0)
  out = module.mlp.out
  return (h @ of(out.kernel) + of(out.bias)).reshape(N, -1, W)


def wukong_layer_oracle(module, x, sizes):
  kernel = of(module.lcb.kernel)[: x.shape[1]]
  sums = np.einsum('nvd,vc->ncd', x, kernel)
  return wukong_oracle(module.fmb, x, sizes) + sums


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize(
  'config, oracle',
  [
    (CONFIGS['dlrm'], dlrm_oracle),
    (CONFIGS['dcn'], dcn_oracle),
    (STATIC, wukong_oracle),
    (CONFIGS['wukong'], wukong_oracle),
    (FULL, wukong_oracle),
    (LAYER, wukong_layer_oracle),
  ],
  ids=['dlrm', 'dcn', 'wukong', 'attentive', 'wukong, full', 'wukong_layer'],
)
def test_a_padded_tower_is_the_tower_of_what_is_there(config, oracle, count):
  sizes, module = make(config)
  x, mask = draw(count, sizes.most)
  y = module(jnp.asarray(x), jnp.asarray(mask))
  wanted = np.asarray(oracle(module, x[:, :count], sizes))
  kept = [*range(sizes.made)]
  kept += range(sizes.made, sizes.made + sizes.each * count)
  assert_close(y[:, jnp.array(kept)], wanted)


@pytest.mark.parametrize('name', [*CONFIGS, 'wukong_layer'])
def test_padding_has_no_gradient(name):
  config = LAYER if name == 'wukong_layer' else CONFIGS[name]
  sizes, module = make(config)
  x, mask = draw(1, sizes.most)

  def total(x):
    y = module(x * mask[None, :, None], jnp.asarray(mask))
    return jnp.sum(jnp.square(y[:, : sizes.made]))

  grads = jax.grad(total)(jnp.asarray(x))
  assert np.all(np.isfinite(grads)) and np.any(grads[:, :1])
  assert not np.any(grads[:, 1:])


def test_sizes():
  sizes = dmt.plan_sizes(CONFIGS['dlrm'], WIDTHS)
  assert sizes.vectors == (3, 1, 3) and sizes.most == 3
  assert sizes.kept == ((0, 1, 2, 3, 4), (0, 1, 2), (0, 1, 2, 3, 4))
  # (c, p, D): F N / sum of (c + p F_t) D
  assert sizes.compression == 7 * W / ((5 + 3 + 5) * W)
  halved = dataclasses.replace(CONFIGS['dcn'], tower_vectors=0)
  assert dmt.plan_sizes(halved, WIDTHS).shared == (2, 1, 2)
  wide = dataclasses.replace(halved, tower_width=2 * W, tower_compression=4.0)
  sizes = dmt.plan_sizes(wide, ((8, 8, 8, 8), (8, 8)))
  assert sizes.shared == (2, 1) and sizes.compression == 4.0
  own = dataclasses.replace(CONFIGS['dlrm'], tower='identity', tower_each=0)
  assert dmt.plan_sizes(own, WIDTHS).kept == ((0, 1, 2), (0,), (0, 1, 2))


@pytest.mark.parametrize(
  'config, message',
  [
    (dict(tower='identity', tower_width=8), 'leaves rows as they are'),
    (dict(tower='wukong', tower_width=8), 'keeps their width'),
    (dict(tower='dcn'), 'model.tower_each=1 is for the tower of DLRM'),
  ],
)
def test_sizes_that_cannot_be(config, message):
  with pytest.raises(ValueError, match=message):
    dmt.plan_sizes(dataclasses.replace(CONFIGS['dlrm'], **config), WIDTHS)
  with pytest.raises(ValueError, match='model.tower is'):
    config_lib.DLRM(tower='mlp')


FEATURES = [
  FeatureSpec('a', rows=9), FeatureSpec('b', rows=7),
  FeatureSpec('c', rows=7, table='b'), FeatureSpec('d', rows=6),
  FeatureSpec('x', 'numeric'),
]  # fmt: skip
TOWERS = (('a',), ('c', 'b', 'd'))


def build(name='dlrm', towers=TOWERS, policy=(), **fields):
  config = dataclasses.replace(CONFIGS[name], **fields)
  return Ranking(
    name, dataclasses.asdict(config), {}, features=FEATURES, labels=['y'],
    table_update='row_adagrad', init_std=0.5, towers=towers, policy=policy,
  )  # fmt: skip


def examples(weights):
  rng = np.random.default_rng(3)
  ids = np.stack([rng.integers(0, f.rows, N) for f in FEATURES[:4]], axis=1)
  return Examples(
    weights=jnp.asarray(weights, jnp.float32),
    labels=Columns(jnp.ones((N, 1)), ('y',)),
    ids=Columns(jnp.asarray(ids, jnp.int32), ('a', 'b', 'c', 'd')),
    dense=Columns(jnp.ones((N, 1)), ('x',)),
  )


def test_the_model_above_sees_what_towers_make():
  task = build()
  params = task.init(jax.random.key(0))
  towers = task.towers.init(jax.random.key(1))
  assert {len(leaf) for leaf in jax.tree.leaves(towers)} == {2}
  first = jax.tree.map(lambda x: x[0], towers)
  assert not np.allclose(
    first['flat']['kernel'], towers['flat']['kernel'][1]
  )  # each tower starts with draws of its own
  reads = task.reads(examples([1, 1, 0, 1, 0, 1]))
  assert set(reads) == {'a', 'b', 'c', 'd'}
  assert {read.pooling for read in reads.values()} == {'sum'}
  np.testing.assert_array_equal(reads['a'].lengths, [1, 1, 0, 1, 0, 1])
  ids = examples([1] * N).ids['a']
  np.testing.assert_array_equal(reads['a'].ids[:4], ids[np.array([0, 1, 3, 5])])
  del params


def test_products_are_told_of_towers_by_name():
  task = build(policy=(('towers/.*', 'bfloat16'), ('.*', 'default')))
  chosen = {name: site.product for name, site in task.sites.items()}
  assert chosen['towers/flat/kernel'] == 'bfloat16'
  assert chosen['top/out/kernel'] == 'default'


@pytest.mark.parametrize(
  'towers, message',
  [
    ((('a', 'b'), ('c', 'd')), "share the table 'b'"),
    ((('a', 'b', 'c'),), "no tower has 'd'"),
    ((('a', 'b', 'c'), ('d', 'a')), "'a' is in towers 0 and 1"),
    ((('a', 'b', 'c'), ('e',)), "names 'e', which is no feature"),
  ],
)
def test_towers_that_are_no_partition(towers, message):
  with pytest.raises(ValueError, match=message):
    build(towers=towers)


def test_small_tables_and_towers():
  with pytest.raises(ValueError, match='model.small'):
    build('wukong', small={'a': 2})
  task = build('wukong', important={'a': 2})
  assert task.tables()['a'].dim == 2 * W
  assert task.towers.vectors == (2, 3)


def test_what_a_line_says():
  assert (
    build()
    .describe_towers()
    .startswith(
      '2 towers (dlrm), features -> vectors: a -> 3; c, b, d -> 5; 0.5'
    )
  )
  assert build(towers=()).describe_towers() == ''
  assert towers_lib.count_padding(build().towers) == pytest.approx(1 / 3)
