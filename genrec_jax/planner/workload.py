"""The work of a table in a step, and what else is in the memory of devices."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence

import jax
import jax.numpy as jnp

from genrec_jax.embedding.plan import TablePlan
from genrec_jax.embedding.row_optimizers import (
  ROW_OPTIMIZERS,
  RowOptimizerLike,
)
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.embedding.towers import Towers, run_towers
from genrec_jax.features import TableSpec
from genrec_jax.numerics.formats import storage_dtype

DENSE = 'dense'  # updated by optax: a gradient and two slots of its size
SLOT_BYTES = 4  # slots are float32, whatever the rows are


@dataclasses.dataclass(frozen=True)
class Feature:
  """A lookup into a table.

  Attributes:
    length: ids of one pooling, or of one sequence, on average.
    poolings: of one example.
    pooled: whether the rows of a pooling are summed.
    weighted: whether every id has a weight.
    name: of a pooled feature, as the `pooling` of a plan has it; the plan then
      says whether its sums or its rows travel. Without one, sums travel.
  """

  length: float
  poolings: float = 1.0
  pooled: bool = True
  weighted: bool = False
  name: str = ''


@dataclasses.dataclass(frozen=True)
class Load:
  """A table and the lookups into it.

  Attributes:
    name: of the table.
    rows: of the table.
    dim: width of a row.
    dtype: of the rows.
    optimizer: name of a row optimizer, or 'dense'.
    features: the lookups of one example.
    distinct: share of the ids of a device's examples that are distinct. A row
      is read once for equal ids, and travels once where it is not summed.
    codec: number formats in which its rows and their gradients travel; None:
      those of the exchange.
    outside: the row optimizer itself, where the library does not have it.
  """

  name: str
  rows: int
  dim: int
  dtype: str = 'float32'
  optimizer: str = 'row_adagrad'
  features: tuple[Feature, ...] = (Feature(1.0),)
  distinct: float = 1.0
  codec: tuple[str, str] | None = None
  outside: RowOptimizerLike | None = None

  def __post_init__(self):
    if self.rows < 1 or self.dim < 1:
      raise ValueError(
        f'table {self.name!r} has {self.rows} rows of width {self.dim}'
      )
    if not 0 < self.distinct <= 1:
      raise ValueError(
        f'table {self.name!r}: distinct is {self.distinct}, must be a share '
        'of the ids, 0 < distinct <= 1'
      )
    slot_bytes(self.optimizer, 1, 1, self.outside)

  @property
  def item_bytes(self) -> int:
    return storage_dtype(self.dtype).itemsize

  @property
  def row_bytes(self) -> int:
    return self.dim * self.item_bytes

  @functools.cached_property
  def ids(self) -> float:
    """Ids of an example."""
    return sum(f.length * f.poolings for f in self.features)

  @functools.cached_property
  def sums(self) -> float:
    """Pooled rows of an example."""
    return sum(f.poolings for f in self.features if f.pooled)

  @functools.cached_property
  def singles(self) -> float:
    """Rows of an example that nobody sums; one row for equal ids."""
    rows = sum(f.length * f.poolings for f in self.features if not f.pooled)
    return rows * self.distinct

  def values_returned(self, owners: int = 1) -> float:
    """Rows and sums of an example that one of so many owners sends.

    All of them have a part in a sum, one of them has a row.
    """
    return self.sums + self.singles / owners

  @functools.cached_property
  def weighted(self) -> bool:
    return any(f.weighted for f in self.features)

  @property
  def needs_row_squares(self) -> bool:
    """Whether pieces of a row tell each other the squares of gradients."""
    if self.optimizer == DENSE:
      return False
    return (self.outside or ROW_OPTIMIZERS[self.optimizer]).needs_row_squares

  @property
  def choices(self) -> list[Feature]:
    """The features whose rows or sums may travel, as a plan says."""
    return [f for f in self.features if f.pooled and f.name]

  def with_pooling(self, pooling: Mapping[str, str]) -> 'Load':
    """The same under a plan's `pooling`: features that travel as sums are
    pooled, and those whose rows travel are not.

    >>> load = Load('t', 9, 4, features=(Feature(3.0, name='f'),))
    >>> load.with_pooling({}).singles, load.with_pooling({'f': 'sums'}).sums
    (3.0, 1.0)
    """
    if not self.choices:
      return self
    rows = {f.name for f in self.choices if pooling.get(f.name) != 'sums'}
    features = tuple(
      dataclasses.replace(f, pooled=f.pooled and f.name not in rows)
      for f in self.features
    )
    return dataclasses.replace(self, features=features)

  def bytes_of(self, rows: int, columns: int) -> int:
    """Rows of that width with all that is kept for them."""
    slots = slot_bytes(self.optimizer, rows, columns, self.outside)
    return rows * columns * self.item_bytes + slots

  def plan(
    self,
    scheme: str,
    at=(),
    split: str = 'mod',
    outside: Scheme | None = None,
  ) -> TablePlan:
    """A plan of this table; arguments as the fields of `TablePlan`."""
    return TablePlan(
      rows=self.rows,
      dim=self.dim,
      scheme=scheme,
      at=tuple(at),
      split=split,
      dtype=self.dtype,
      optimizer=self.optimizer,
      outside=outside,
    )

  def split(self, features: Collection[str]) -> tuple['Load', 'Load']:
    """The table with these of its features alone, and with the others.

    >>> both = Feature(3.0, name='f'), Feature(1.0, name='g')
    >>> own, rest = Load('t', 9, 4, features=both).split({'f'})
    >>> own.ids, rest.ids
    (3.0, 1.0)
    """
    own = tuple(f for f in self.features if f.name and f.name in features)
    rest = tuple(f for f in self.features if f not in own)
    return (
      dataclasses.replace(self, features=own),
      dataclasses.replace(self, features=rest),
    )


@dataclasses.dataclass(frozen=True)
class TowerLoad:
  """The towers of a model, as far as anything travels.

  Attributes:
    features: of each of T towers.
    vectors: how many vectors each of them sees.
    width: of such a vector.
    kept: how many vectors each of them gives away.
    most: M, that travel for each of them: those of the largest one.
    dim: E, the width of a vector that they give away.
    draws: whether they draw at random, for which numbers of examples travel.
  """

  features: tuple[tuple[str, ...], ...]
  vectors: tuple[int, ...]
  width: int
  kept: tuple[int, ...]
  most: int
  dim: int
  draws: bool = False

  @property
  def count(self) -> int:
    """T, the number of towers."""
    return len(self.features)

  @functools.cached_property
  def names(self) -> frozenset[str]:
    """The features under towers."""
    return frozenset(name for own in self.features for name in own)

  @property
  def compression(self) -> float:
    """How many times fewer numbers leave towers than go into them."""
    given = sum(self.kept) * self.dim
    return sum(self.vectors) * self.width / given

  @property
  def padding(self) -> float:
    """Share of the vectors that leave towers for the sake of larger ones."""
    return 1 - sum(self.kept) / (self.count * self.most)

  def as_identity(self) -> 'TowerLoad':
    """The same towers, which change nothing: SPTT alone.

    >>> two = TowerLoad((('a',), ('b', 'c')), (1, 2), 8, (1, 1), 1, 4)
    >>> two.compression, two.as_identity().compression
    (3.0, 1.0)
    >>> two.padding, two.as_identity().padding
    (0.0, 0.25)
    """
    return dataclasses.replace(
      self,
      kept=self.vectors,
      most=max(self.vectors),
      dim=self.width,
      draws=False,
    )


@dataclasses.dataclass(frozen=True)
class DensePart:
  """The part of a model that is not a table.

  Attributes:
    parameters: how many, all-reduced once a step.
    flops: of the forward pass of one example.
    bytes: on each device: parameters, gradients, optimizer, activations.
    parameter_bytes: of one on the wire.
  """

  parameters: int = 0
  flops: float = 0.0
  bytes: int = 0
  parameter_bytes: int = 4


def tree_bytes(*trees) -> int:
  """Bytes of all leaves: arrays, or what `jax.eval_shape` gives."""
  leaves = jax.tree.leaves(trees)
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def from_towers(towers: Towers | None) -> TowerLoad | None:
  """The towers that a model stands on; None where it stands on none."""
  if towers is None:
    return None
  seen = towers.count, 1, towers.most, towers.width
  made = jax.eval_shape(
    lambda key, x, mask: run_towers(towers, towers.init(key), x, mask),
    jax.eval_shape(lambda: jax.random.key(0)),
    jax.ShapeDtypeStruct(seen, jnp.float32),
    jax.ShapeDtypeStruct((towers.count, towers.most), jnp.float32),
  )
  return TowerLoad(
    towers.features,
    towers.vectors,
    towers.width,
    tuple(map(len, towers.kept)),
    *made.shape[2:],
    draws=towers.draws,
  )


def from_tables(
  specs: Sequence[TableSpec], features: Mapping[str, Sequence[Feature]]
) -> list[Load]:
  """Loads of a model's tables.

  Args:
    specs: the tables.
    features: table -> its lookups.
  """
  if missing := sorted({s.name for s in specs} - set(features)):
    raise ValueError(f'no features are given for the tables {missing}')
  return [
    Load(
      spec.name,
      spec.rows,
      spec.dim,
      optimizer=spec.update,
      features=tuple(features[spec.name]),
      codec=spec.codec,
    )
    for spec in specs
  ]


def slot_bytes(
  optimizer: str,
  rows: int,
  columns: int,
  outside: RowOptimizerLike | None = None,
) -> int:
  """What an optimizer keeps for rows of that width.

  Args:
    optimizer: its name.
    rows: how many.
    columns: their width.
    outside: the optimizer itself, where the library does not have it.
  """
  if optimizer == DENSE:
    return 3 * SLOT_BYTES * rows * columns
  known = ROW_OPTIMIZERS if outside is None else {optimizer: outside}
  if optimizer not in known:
    raise ValueError(
      f'there is no row optimizer {optimizer!r}: choose {DENSE!r} or one of '
      f'{", ".join(ROW_OPTIMIZERS)}'
    )
  shapes = known[optimizer].slot_shapes(rows, columns).values()
  return SLOT_BYTES * sum(math.prod(shape) for shape in shapes)
