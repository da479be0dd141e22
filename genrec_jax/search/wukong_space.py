"""The space of Wukongs: layers, n_F, n_L, k, and the width of the MLPs.

| Wukong (arXiv 2403.02545) | choice here     | key                       |
|---------------------------|-----------------|---------------------------|
| l                         | 'wukong.layers' | `model.layers`            |
| n_F                       | 'wukong.fmb'    | `model.fmb`               |
| n_L                       | 'wukong.lcb'    | `model.lcb`               |
| k                         | 'wukong.rank'   | `model.rank`              |
| width of an FMB's MLP     | 'wukong.hidden' | all of `model.fmb_hidden` |

All layers have the same sizes, so that deeper ones may be left out. A cost is a
table over all five, which weights sum up one after the other.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.config.models import Wukong
from genrec_jax.search.architecture import (
  Architecture,
  ArchitectureSpace,
  Options,
  list_products,
)
from genrec_jax.search.choices import Choice, Weights, read_weights
from genrec_jax.search.mlp_space import sum_products

SIZES = ('layers', 'fmb', 'lcb', 'rank', 'hidden')
_PART = 'wukong.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class WukongSpace(ArchitectureSpace):
  """Which Wukongs there are.

  Attributes:
    config: of the model around what is searched.
    sizes: of `SIZES` -> the numbers there are.
    outputs: number of logits.
  """

  config: Wukong
  sizes: Mapping[str, tuple[int, ...]]
  outputs: int

  def __post_init__(self):
    c = self.config
    wrong = [
      f'model.fm={c.fm!r}' if c.fm != 'optimised' else '',
      f'model.zero={c.zero}' if c.zero else '',
      f'model.last_relu={c.last_relu}' if c.last_relu else '',
    ]
    for key in ('fmb', 'lcb'):
      if isinstance(getattr(c, key), tuple):
        wrong.append(f'model.{key}={getattr(c, key)}')
    if wrong := [words for words in wrong if words]:
      raise ValueError(
        f'a search of Wukongs has no {wrong[0]}: leave it as by default'
      )

  def choose_size(self, name: str) -> Choice:
    """A choice of the net."""
    return Choice(_PART + name, self.sizes[name])

  @property
  def embedded(self) -> int:
    """n_0, rows of X_0."""
    c = self.config
    tabled = [f for f in self.features if f.has_table]
    count = sum(
      c.important.get(f.name, 1) for f in tabled if f.name not in c.small
    )
    count += c.group_vectors if c.small else 0
    return count + (c.number_vectors if self.numbers else 0)

  def list_net_choices(self) -> list[Choice]:
    return [self.choose_size(name) for name in SIZES]

  @functools.cached_property
  def tables_of_costs(self) -> dict[str, np.ndarray]:
    """Cost -> its values `[options of each of SIZES]`."""
    shape = [len(self.sizes[name]) for name in SIZES]
    every = [self._count(**sizes) for sizes in list_products(self.sizes)]
    return {
      cost: np.array([x[cost] for x in every], np.float64).reshape(shape)
      for cost in ('flops', 'parameters')
    }

  def measure_net(self, weights: Weights, dims, drop_skips: bool) -> dict:
    del dims, drop_skips  # widths are fixed; what is left out always counts
    every = [read_weights(weights, self.choose_size(n)) for n in SIZES]
    if any(isinstance(own, jax.Array) for own in every):
      xp, every = jnp, [jnp.asarray(own, jnp.float32) for own in every]
    else:
      xp = np
    return {
      cost: xp.einsum(
        'abcde,...a,...b,...c,...d,...e->...',
        xp.asarray(values, every[0].dtype),
        *every,
      )
      for cost, values in self.tables_of_costs.items()
    }

  def _count(self, layers: int, fmb: int, lcb: int, rank: int, hidden: int):
    """Operations and parameters of a model, its tables left out."""
    c, d, n = self.config, self.config.dim, self.embedded
    macs = parameters = 0

    def add_mlp(sizes, batch_norm=False):
      nonlocal macs, parameters
      macs += sum_products(sizes)
      parameters += sum_products(sizes) + sum(sizes[1:])
      parameters += 2 * sum(sizes[1:-1]) if batch_norm else 0

    if self.numbers:
      add_mlp((self.numbers, *c.bottom, c.number_vectors * d))
    if c.small:
      add_mlp((sum(c.small.values()), *c.group_hidden, c.group_vectors * d))
    for _ in range(layers):
      made = fmb + lcb
      if c.attentive:
        macs += n * c.compress * d
        parameters += n * c.compress
        add_mlp((c.compress * d, *c.attention_hidden, n * rank))
      else:
        parameters += n * rank
      macs += 2 * n * d * rank
      parameters += 2 * n * rank  # of the norm
      inner = (hidden,) * len(c.fmb_hidden)
      add_mlp((n * rank, *inner, fmb * d), c.fmb_batch_norm)
      macs += n * lcb * d
      parameters += n * lcb
      if n != made:
        macs += n * made * d
        parameters += n * made + (made if c.residual_bias else 0)
      parameters += 2 * d
      n = made
    add_mlp((n * d, *c.top, self.outputs), c.top_batch_norm)
    return {'flops': 2 * macs, 'parameters': parameters}

  def choose_net(self, options: Options) -> dict[str, int]:
    return {
      name: options.get(_PART + name, self.sizes[name][0])
      if len(self.sizes[name]) == 1
      else options[_PART + name]
      for name in SIZES
    }

  def describe_net(self, architecture: Architecture) -> dict[str, int | str]:
    return {_PART + name: architecture.net[name] for name in SIZES}

  def find_net_extreme(
    self, dims: Mapping[str, int], pick: Callable, cost: str
  ) -> dict:
    del dims
    name = 'flops' if cost == 'flops' else 'parameters'
    # More of one size may cost less, where a residual needs no matrix.
    return pick(self.list_nets(), key=lambda net: self._count(**net)[name])

  def list_nets(self) -> list[dict]:
    return list(list_products({name: self.sizes[name] for name in SIZES}))

  def count_nets(self) -> int:
    return math.prod(len(self.sizes[name]) for name in SIZES)

  def to_keys(self, architecture: Architecture) -> dict[str, object]:
    net = dict(architecture.net)
    hidden = (net.pop('hidden'),) * len(self.config.fmb_hidden)
    keys = {f'model.{key}': value for key, value in net.items()}
    return {**keys, 'model.fmb_hidden': hidden}
