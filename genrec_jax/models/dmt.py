"""DMT (arXiv 2403.00877): towers in front of DLRM, DCN-V2 and Wukong.

| paper                                 | here                                |
|---------------------------------------|-------------------------------------|
| towers, T groups of features          | `config.towers`, of T groups        |
| SPTT, a tower module of the identity  | `tower='identity'`                  |
| TM of DLRM, (c, p, D)                 | `DLRMTower`: `flat` makes c vectors |
|                                       | of all, `each` makes p of each      |
| TM of DCN: CrossNet, then projection  | `DCNTower`                          |
| TM of Wukong                          | `WukongTower`, one FM block;        |
|                                       | `WukongLayerTower`, with sums, too  |
| N, width of a row; D, of a vector     | `tower_width`; `dim`                |
| CR, compression                       | F N / sum of the vectors' widths    |
| over-arch                             | the model itself, over their vectors|

The model above is the one there is: it takes what the towers make as if it were
the rows of so many features (`name_vectors`). A tower is a module of one tower;
`embedding.towers.run_towers` maps it over several, whose parameters are
`[T, ...]`.

Towers are padded to the largest one with vectors of zeros. `each` and the cross
layers turn these into vectors that are not kept and into zeros; the norm of
Wukong's tower leaves them out.

Differences from the paper, of which the text on tower modules is short: `each`
is one matrix for all features of a tower. `tower_compression` says c where
`tower_vectors` does not: as many vectors as make a tower CR times smaller, at
least one, so that a tower of more features gives more. DCN's tower projects to
c vectors of width D. Projections have no bias, and there is no batch norm in a
tower.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config import models as config_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.features import FeatureSpec, Inputs
from genrec_jax.models import dcn, layers, mlp, wukong

_MOST_VECTORS = 1 << 14  # of a tower; more would be a mistake
_MOST_NAMES = 8  # of a tower, in a line


def _make_projection(dim_in: int, dim_out: int, rngs: nnx.Rngs):
  """A projection without bias.

  Where the model above concatenates vectors and normalises what follows over
  the batch, a bias has no gradient but rounding, which Adam makes into steps.
  """
  return mlp.make_linear(dim_in, dim_out, rngs, use_bias=False)


class DLRMTower(nnx.Module):
  """c vectors made of the whole tower, and p of each of its vectors."""

  def __init__(self, sizes: 'TowerSizes', config, rngs: nnx.Rngs):
    s = self.sizes = sizes
    self.flat = (
      _make_projection(s.most * s.width, s.made * s.dim, rngs)
      if s.made
      else None
    )
    self.each = (
      _make_projection(s.width, s.each * s.dim, rngs) if s.each else None
    )

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, V, W]`, `[V]` -> `[N, M, D]`."""
    s, made = self.sizes, []
    if self.flat is not None:
      made.append(self.flat(x.reshape(x.shape[0], -1)))
    if self.each is not None:
      y = self.each(x.reshape(-1, s.width))
      made.append(y.reshape(x.shape[0], -1))
    return jnp.concatenate(made, axis=1).reshape(x.shape[0], -1, s.dim)


class DCNTower(nnx.Module):
  """Cross layers over all vectors, and a projection to c vectors."""

  def __init__(self, sizes: 'TowerSizes', config, rngs: nnx.Rngs):
    self.sizes, self.count = sizes, config.tower_cross
    width = sizes.most * sizes.width
    for i in range(self.count):
      setattr(self, f'cross_{i}', dcn.Cross(width, config, rngs))
    self.out = _make_projection(width, sizes.made * sizes.dim, rngs)

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, V, W]`, `[V]` -> `[N, c, D]`."""
    # x0 is zero where a vector is not there, and stays so: x0 (W x + b) + x.
    x0 = x.reshape(x.shape[0], -1)
    crossed = x0
    for i in range(self.count):
      crossed = getattr(self, f'cross_{i}')(x0, crossed, None)
    return self.out(crossed).reshape(x.shape[0], -1, self.sizes.dim)


class WukongTower(wukong.FactorizationBlock):
  """One block of factorisation machines, which makes c vectors."""

  def __init__(self, sizes: 'TowerSizes', config, rngs: nnx.Rngs):
    own = config_lib.Wukong(dim=sizes.dim, dtype=config.dtype)
    if isinstance(config, config_lib.Wukong):
      own = dataclasses.replace(config, fmb_batch_norm=False, dropout=0.0)
    if own.fm == 'triangular':  # whose products stand in no rows
      own = dataclasses.replace(own, fm='full')
    super().__init__(sizes.most, sizes.made, own, rngs)
    self.most = sizes.most

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, V, W]`, `[V]` -> `[N, c, D]`."""
    batch = Inputs((), None, None, jnp.ones(x.shape[0]), None)
    products = self.products(jnp.swapaxes(x, 0, 1), batch)
    products = products.reshape(x.shape[0], self.most, -1)
    if self.config.fm == 'full':  # with what is not there, too
      real = mask[None, :, None] * mask[None, None]
    else:
      real = jnp.broadcast_to(mask[None, :, None], (1, *products.shape[1:]))
    h = self._normalise(products, real).astype(x.dtype)
    h = self.mlp(h, batch)
    if self.config.last_relu:
      h = jax.nn.relu(h)
    return h.reshape(x.shape[0], -1, x.shape[2])

  def _normalise(self, x: jax.Array, real: jax.Array) -> jax.Array:
    """The layer norm over what is there; zeros elsewhere."""
    count = jnp.sum(real)
    mean = jnp.sum(x * real, axis=(1, 2), keepdims=True) / count
    centred = (x - mean) * real
    variance = jnp.sum(jnp.square(centred), axis=(1, 2), keepdims=True) / count
    y = centred * jax.lax.rsqrt(variance + self.norm.eps)
    flat = y.reshape(x.shape[0], -1)
    real = real.reshape(1, -1)
    return flat * self.norm.scale[...][None] + self.norm.shift[...][None] * real


class WukongLayerTower(nnx.Module):
  """That block, and c sums of the vectors, added: what a Wukong layer has.

  A sum weighs whole vectors. Where a tower makes one or two of them, DLRM's
  product keeps more of which rows there were; see docs/dmt.md.
  """

  def __init__(self, sizes: 'TowerSizes', config, rngs: nnx.Rngs):
    self.fmb = WukongTower(sizes, config, rngs)
    self.lcb = wukong.Mix(sizes.most, sizes.made, rngs)

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, V, W]`, `[V]` -> `[N, c, D]`."""
    # Vectors that are not there are zeros, and add nothing.
    sums = jnp.swapaxes(self.lcb(jnp.swapaxes(x, 0, 1)), 0, 1)
    return self.fmb(x, mask) + sums


class IdentityTower(nnx.Module):
  """Nothing: the exchange in two steps alone."""

  def __init__(self, sizes: 'TowerSizes', config, rngs: nnx.Rngs):
    pass

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, V, W]`, `[V]` -> the same."""
    return x


_CLASSES = {
  'dlrm': DLRMTower,
  'dcn': DCNTower,
  'wukong': WukongTower,
  'wukong_layer': WukongLayerTower,
  'identity': IdentityTower,
}


@dataclasses.dataclass(frozen=True)
class TowerSizes:
  """How many vectors go into towers and come out of them.

  Attributes:
    vectors: V of each tower, those that it sees.
    width: W, of a vector below the towers.
    dim: D, of a vector above them.
    shared: c of each tower, made of all it sees.
    each: p, made of each vector that it sees.
  """

  vectors: tuple[int, ...]
  width: int
  dim: int
  shared: tuple[int, ...]
  each: int

  @property
  def most(self) -> int:
    """V of the largest tower."""
    return max(self.vectors)

  @property
  def made(self) -> int:
    """c of the tower that has most."""
    return max(self.shared)

  @property
  def kept(self) -> tuple[tuple[int, ...], ...]:
    """The numbers of the vectors that each tower gives away."""
    return tuple(
      (
        *range(shared),
        *range(self.made, self.made + self.each * vectors),
      )
      for vectors, shared in zip(self.vectors, self.shared, strict=True)
    )

  @property
  def compression(self) -> float:
    """CR: how much less leaves the towers than goes into them.

    >>> TowerSizes((4, 4), 16, 16, (2, 2), 0).compression
    2.0
    """
    given = sum(map(len, self.kept)) * self.dim
    return sum(self.vectors) * self.width / given


def plan_sizes(config, widths: Sequence[Sequence[int]]) -> TowerSizes:
  """The sizes of the towers of a model.

  Args:
    config: of the model.
    widths: of the rows of each feature of each tower.
  """
  c = config
  width = c.tower_width or c.dim
  vectors = tuple(sum(own) // width for own in widths)
  module = choose_module(c)
  if module == 'identity':
    # `each` of the vectors, made by nothing.
    if width != c.dim:
      raise ValueError(
        f"model.tower='identity' leaves rows as they are: model.tower_width="
        f'{c.tower_width} must be model.dim={c.dim}, or 0'
      )
    return TowerSizes(vectors, width, c.dim, (0,) * len(vectors), 1)
  if module in ('wukong', 'wukong_layer') and width != c.dim:
    raise ValueError(
      f'model.tower={module!r} multiplies vectors with each other and keeps '
      f'their width: model.tower_width={c.tower_width} must be model.dim='
      f'{c.dim}, or 0'
    )
  each = c.tower_each if module == 'dlrm' else 0
  if c.tower_each and module != 'dlrm':
    raise ValueError(
      f'model.tower_each={c.tower_each} is for the tower of DLRM, and this one '
      f'is that of {module!r}: leave the key out, or set model.tower=dlrm'
    )
  shared = []
  for count in vectors:
    wanted = c.tower_vectors
    if not wanted:
      whole = count * width / (c.dim * c.tower_compression)
      whole = min(whole, 2.0 * _MOST_VECTORS)  # of which there is a number
      wanted = max(math.ceil(whole) - each * count, 0 if each else 1)
    made = wanted + each * count
    if made > _MOST_VECTORS:
      raise ValueError(
        f'a tower of {count} vectors would make {made:.3g}, more than '
        f'{_MOST_VECTORS:,}: raise model.tower_compression='
        f'{c.tower_compression}, or lower model.tower_vectors or '
        'model.tower_each'
      )
    shared.append(wanted)
  return TowerSizes(vectors, width, c.dim, tuple(shared), each)


def choose_module(config) -> str:
  """The kind of the towers of a model: its own, unless it says another."""
  if config.tower != 'own':
    return config.tower
  return type(config).__name__.lower()


def make_module(config, sizes: TowerSizes, rngs: nnx.Rngs) -> nnx.Module:
  """The module of one tower."""
  return _CLASSES[choose_module(config)](sizes, config, rngs)


def apply_module(
  module: nnx.Module, config, x: jax.Array, mask: jax.Array, draws=None
) -> jax.Array:
  """What a tower makes of its vectors: `[N, V, W]` -> `[N, M, D]` float32.

  Args:
    module: of one tower.
    config: of the model.
    x: the vectors.
    mask: `[V]` 1 for those that are there.
    draws: `towers.TowerDraws`, or None while nothing is trained.
  """
  y = module(x.astype(config.dtype), mask).astype(jnp.float32)
  if draws is None or not config.tower_dropout:
    return y
  flat = layers.apply_dropout(
    y.reshape(y.shape[0], -1),
    config.tower_dropout,
    draws.key,
    numbers=draws.numbers,
  )
  return flat.reshape(y.shape)


def name_vectors(sizes: TowerSizes) -> list[FeatureSpec]:
  """What the towers make, as features of the model above them.

  >>> sizes = TowerSizes((3, 2), 8, 8, (2, 1), 0)
  >>> [feature.name for feature in name_vectors(sizes)]
  ['tower 0, vector 0', 'tower 0, vector 1', 'tower 1, vector 0']

  Args:
    sizes: of the towers.
  """
  return [
    FeatureSpec(f'tower {number}, vector {i}')
    for number, kept in enumerate(sizes.kept)
    for i in range(len(kept))
  ]


def describe_towers(
  towers: towers_lib.Towers, sizes: TowerSizes, config
) -> str:
  """One line on the towers of a model, for logs and reports.

  Args:
    towers: of the model.
    sizes: of them.
    config: of the model.
  """
  listed = '; '.join(
    f'{_list_names(own)} -> {len(kept)}'
    for own, kept in zip(towers.features, sizes.kept, strict=True)
  )
  padding = towers_lib.count_padding(towers)
  asked = ''
  if not config.tower_vectors and (
    config.tower_compression > 1.1 * sizes.compression
  ):
    asked = (
      f' (not {config.tower_compression:g}, because every tower gives away a '
      'vector)'
    )
  return (
    f'{towers.count} towers ({choose_module(config)}), features -> vectors: '
    f'{listed}; {sizes.compression:.3g} times fewer numbers leave them than go '
    f'in{asked}, {padding:.0%} of their work is padding'
  )


def _list_names(features: Sequence[str]) -> str:
  if len(features) <= _MOST_NAMES:
    return ', '.join(features)
  more = len(features) - _MOST_NAMES
  return f'{", ".join(features[:_MOST_NAMES])} and {more} more'
