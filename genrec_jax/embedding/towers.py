"""Computation between two exchanges: towers, one for each host.

A tower sees the sums of the features whose tables lie on its host, for the
examples of all its peers (the devices of equal number on every host), before
they travel on to the devices that have the examples:

    rows of a host -> sum over its devices -> tower -> all_to_all over hosts
    [---------------- fetch ------------]    [----------- finish ----------]

Its parameters are `[T, ...]`, cut over the hosts: nobody else has them, and
their gradient is summed over the devices of the host and over replicas alone.
The seam is here for models that put more than the identity into it; no
configuration makes towers yet.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.features import Read
from genrec_jax.parallel.codecs import Codec
from genrec_jax.parallel.cuts import Cut

CUT = Cut(0, ('host',), ('rep', 'dev'))  # of every parameter


@dataclasses.dataclass(frozen=True)
class Towers:
  """What stands between the sums of a host and the examples.

  Attributes:
    features: the features of each tower, of equal width; tower t is on host t.
    init: key -> parameters `[T, ...]`, a nested dict.
    apply: (parameters of one tower, `[P, N, C]` sums of its P features for N
      examples, zeros where it has fewer) -> `[P, N, C]`.
  """

  features: tuple[tuple[str, ...], ...]
  init: Callable[[jax.Array], Any]
  apply: Callable[[Any, jax.Array], jax.Array]

  def __contains__(self, feature: str) -> bool:
    return any(feature in own for own in self.features)

  @property
  def most(self) -> int:
    """Features of the largest tower."""
    return max(len(own) for own in self.features)


def require_sums(towers: Towers, reads: Mapping[str, Read]) -> None:
  """Refuses features that no tower can see as sums."""
  for feature, read in reads.items():
    if feature in towers and read.pooling != 'sum':
      raise ValueError(
        f'feature {feature!r} is under a tower, which sees sums: it needs '
        f"pooling='sum', not {read.pooling!r}"
      )


def apply_on_one_device(
  towers: Towers, params, sums: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """The sums of all towers' features, `[N, C]` each, after their towers."""
  sums = dict(sums)
  for number, features in enumerate(towers.features):
    names = sorted(name for name in features if name in sums)
    if not names:
      continue
    x = jnp.stack([sums[name] for name in names])
    x = jnp.pad(x, ((0, towers.most - len(names)), (0, 0), (0, 0)))
    own = jax.tree.map(lambda p, number=number: p[number], params)
    for name, y in zip(names, towers.apply(own, x), strict=False):
      sums[name] = y
  return sums


def apply_on_host(towers: Towers, params, sums: jax.Array) -> jax.Array:
  """The tower of this host, on `[A, P, B, C]` sums for A peers."""
  peers, features, bags, columns = sums.shape
  x = jnp.moveaxis(sums, 1, 0).reshape(features, peers * bags, columns)
  own = jax.tree.map(lambda p: p[0], params)
  y = towers.apply(own, x).reshape(features, peers, bags, columns)
  return jnp.moveaxis(y, 0, 1)


def send_far(group, sums: jax.Array, forward: Codec, backward: Codec):
  """`group.send_far`, with a way back: codecs have no derivative of their own.

  Args:
    group: the `pooled.PooledFeatures` of the features.
    sums: as `group.fetch_near` gives them.
    forward: codec of the sums.
    backward: codec of their gradients.
  """

  @jax.custom_vjp
  def send_forward(x):
    return group.send_far(x, forward)

  # What device a sends to device b comes back from b to a: the same exchange.
  send_forward.defvjp(
    lambda x: (send_forward(x), None),
    lambda _, g: (group.send_far(g, backward),),
  )
  return send_forward(sums)
