"""Towers: computation between two exchanges, on the hosts that hold the rows.

The features of a model are divided into towers, and the tables of a tower lie
on one host. The tower sees the sums of its features for the examples of all its
peers (the devices of equal number on every host) before they travel on to the
devices that have the examples:

    ids -> host of the tower -> its devices
    rows -> sums -> its devices -> tower -> all_to_all over hosts -> the loss
    [---------- fetch ----------]  [------------ finish -----------]

The parameters of T towers are `[T, ...]`, cut over the hosts: nobody else has
them, and their gradient is summed over the devices of the host and over
replicas alone. T is a multiple of the number of hosts, so that one checkpoint
opens on any number that divides it. One program runs on all devices; towers are
therefore padded to the largest one, with vectors of zeros and a mask.

The exchange is in tower_exchange.py. On one device, all towers run one beside
the other, by the same function.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding.scheme import PlanError
from genrec_jax.features import Read
from genrec_jax.parallel.cuts import Cut

NAME = 'towers'  # of the view in which a loss finds what the towers made
CUT = Cut(0, ('host',), ('rep', 'dev'))  # of every parameter


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TowerDraws:
  """What towers draw from at random; none while nothing is trained.

  Attributes:
    key: of the step, the same on all devices.
    numbers: `[N]` numbers of the examples in the whole batch.
  """

  key: jax.Array
  numbers: jax.Array


@dataclasses.dataclass(frozen=True)
class Towers:
  """What stands between the sums of a host and the examples.

  Attributes:
    features: the features of each of T towers.
    widths: columns of each of them, in the same form; multiples of `width`.
    width: D, of a vector. A tower has as many as its features have together.
    kept: the numbers of the vectors that each tower gives away, of the M that
      `apply` returns; others are there because a larger tower has them.
    init: key -> parameters `[T, ...]`, a nested dict; {} for none.
    apply: (parameters of one tower, `[N, V, D]` vectors of N examples, `[V]`
      1 for those that are there, `TowerDraws` or None) -> `[N, M, E]`.
    draws: whether `apply` draws at random, which takes numbers of examples.
  """

  features: tuple[tuple[str, ...], ...]
  widths: tuple[tuple[int, ...], ...]
  width: int
  kept: tuple[tuple[int, ...], ...]
  init: Callable[[jax.Array], Any]
  apply: Callable[..., jax.Array]
  draws: bool = False

  def __post_init__(self):
    names = [name for own in self.features for name in own]
    if twice := sorted({name for name in names if names.count(name) > 1}):
      raise ValueError(f'features {twice} are in more than one tower')
    for own, widths in zip(self.features, self.widths, strict=True):
      for name, width in zip(own, widths, strict=True):
        if width % self.width:
          raise ValueError(
            f'feature {name!r} is {width} wide, must be a multiple of the '
            f'{self.width} of a vector of the towers'
          )

  def __contains__(self, feature: str) -> bool:
    return any(feature in own for own in self.features)

  @property
  def count(self) -> int:
    """T, the number of towers."""
    return len(self.features)

  @functools.cached_property
  def vectors(self) -> tuple[int, ...]:
    """How many vectors each tower sees."""
    return tuple(sum(own) // self.width for own in self.widths)

  @property
  def most(self) -> int:
    """V, the vectors of the largest tower."""
    return max(self.vectors)

  @functools.cached_property
  def mask(self) -> np.ndarray:
    """`[T, V]` 1 where a tower has a vector."""
    places = np.arange(self.most)[None]
    return (places < np.array(self.vectors)[:, None]).astype(np.float32)


def require_sums(towers: Towers, reads: Mapping[str, Read]) -> None:
  """Refuses features that the towers of a step cannot see as sums."""
  for number, features in enumerate(towers.features):
    for feature in features:
      if feature not in reads or reads[feature].pooling == 'none':
        raise ValueError(
          f'feature {feature!r} is under tower {number}, which sees sums: the '
          "task must read it with pooling='sum' or 'mean' and lengths, of 1 "
          'where it is a single id'
        )


def run_towers(
  towers: Towers, params, x: jax.Array, mask: jax.Array, draws=None, first=0
) -> jax.Array:
  """Some towers, one beside the other.

  Args:
    towers: of which they are.
    params: `[K, ...]` their parameters.
    x: `[K, N, V, D]` what they see.
    mask: `[K, V]` which vectors are there.
    draws: `TowerDraws`, or None.
    first: number of the first of them.

  Returns:
    `[K, N, M, E]`.
  """
  numbers = first + jnp.arange(x.shape[0])

  def run_tower(params, x, mask, number):
    own = draws
    if own is not None:  # each tower has draws of its own
      key = jax.random.fold_in(own.key, number)
      own = dataclasses.replace(own, key=key)
    return towers.apply(params, x, mask, own)

  return jax.vmap(run_tower)(params, x, mask, numbers)


def pick_outputs(towers: Towers, y: jax.Array) -> jax.Array:
  """`[T, B, M, E]` of all towers -> `[B, vectors that are kept, E]`."""
  each = y.shape[2]
  y = jnp.moveaxis(y, 1, 0).reshape(y.shape[1], -1, y.shape[3])
  at = [t * each + m for t, own in enumerate(towers.kept) for m in own]
  if at == list(range(y.shape[1])):
    return y
  return y[:, np.array(at)]


def apply_on_one_device(
  towers: Towers, params, sums: Mapping[str, jax.Array], draws=None
) -> dict[str, jax.Array]:
  """The sums of features, `[N, C]` each, with those of towers behind them.

  Args:
    towers: all of them.
    params: `[T, ...]`.
    sums: feature -> its sums or means.
    draws: `TowerDraws`, or None.

  Returns:
    `NAME` -> `[N, vectors, E]`, and the features under no tower.
  """
  y = run_towers(
    towers, params, stack_sums(towers, sums), jnp.asarray(towers.mask), draws
  )
  rest = {name: x for name, x in sums.items() if name not in towers}
  return rest | {NAME: pick_outputs(towers, y)}


def stack_sums(towers: Towers, sums: Mapping[str, jax.Array]) -> jax.Array:
  """Feature -> `[N, C]` sums, as all towers see them: `[T, N, V, D]`."""
  stacked = []
  for features in towers.features:
    x = jnp.concatenate([sums[name] for name in features], axis=1)
    x = jnp.pad(x, ((0, 0), (0, towers.most * towers.width - x.shape[1])))
    stacked.append(x.reshape(x.shape[0], towers.most, towers.width))
  return jnp.stack(stacked)


def check_hosts(towers: Towers, hosts: int) -> int:
  """Towers of a host; an error where they cannot be divided equally."""
  if towers.count % hosts:
    raise PlanError(
      f'{towers.count} towers (model.towers) cannot be divided among {hosts} '
      'hosts (parallel.hosts), each of which needs equally many: choose a '
      'number of towers that is a multiple of the hosts, or other hosts'
    )
  return towers.count // hosts


def count_padding(towers: Towers) -> float:
  """Share of what towers compute that is there for larger towers alone.

  >>> two = Towers((('a',), ('b', 'c')), ((4,), (4, 4)), 4, ((0,), (0, 1)),
  ...              dict, lambda params, x, mask, draws: x)
  >>> count_padding(two)
  0.25
  """
  return 1 - sum(towers.vectors) / (towers.count * towers.most)


def tower_of_table(towers: Towers, tables: Mapping[str, str]) -> dict[str, int]:
  """Table -> the tower whose features read it.

  Args:
    towers: all of them.
    tables: feature -> its table.
  """
  numbers: dict[str, int] = {}
  for number, features in enumerate(towers.features):
    for feature in features:
      if feature not in tables:
        raise PlanError(
          f'tower {number} has the feature {feature!r}, which reads no table; '
          f'there are {", ".join(tables)}'
        )
      table = tables[feature]
      if numbers.setdefault(table, number) != number:
        raise PlanError(
          f'table {table!r} is read by features of towers {numbers[table]} and '
          f'{number}; features that share a table must share a tower'
        )
  return numbers


def identity(
  features: Sequence[Sequence[str]], width: int, widths=None
) -> Towers:
  """Towers that change nothing, which is what SPTT alone is.

  >>> identity([['a'], ['b', 'c']], 4).kept
  ((0,), (0, 1))

  Args:
    features: of each tower.
    width: of a vector.
    widths: columns of each feature, if they are not `width`.
  """
  if widths is None:
    widths = [[width] * len(own) for own in features]
  return Towers(
    tuple(map(tuple, features)),
    tuple(map(tuple, widths)),
    width,
    tuple(tuple(range(sum(own) // width)) for own in widths),
    lambda key: {},
    lambda params, x, mask, draws: x,
  )
