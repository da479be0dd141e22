"""Architectures, and spaces of them: what all models that are searched share.

A space has choices for the net and choices for the tables. All of them are
independent of each other, and each cost is a sum of products of different
choices' sizes: so the cost with weights is the expected cost of architectures
drawn by these weights, whatever is searched together.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.features import Features
from genrec_jax.models import fields
from genrec_jax.search.choices import (
  Choice,
  Weights,
  list_open,
  mean_option,
  read_weights,
  take_one,
)
from genrec_jax.search.latency import LatencyTable
from genrec_jax.search.table_space import TableSpace

COSTS = ('flops', 'parameters', 'bytes')
LATENCY = 'latency_us'  # with a table of latencies
# Choice -> its option.
Options = Mapping[str, int | str]
DIM, ROWS = 'dim.', 'rows.'  # begin the names of choices of tables


@dataclasses.dataclass(frozen=True)
class Architecture:
  """A model of a space.

  Attributes:
    net: key of the model -> its value: sizes of layers, or one number.
    dims: table -> width of its rows.
    rows: table -> its rows.
    extra: space from outside -> table -> its option.
  """

  net: Mapping[str, tuple[int, ...] | int]
  dims: Mapping[str, int]
  rows: Mapping[str, int]
  extra: Mapping[str, Mapping[str, int | str]] = dataclasses.field(
    default_factory=dict
  )

  def to_json(self) -> dict:
    return {
      'net': {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in self.net.items()
      },
      'dims': dict(self.dims),
      'rows': dict(self.rows),
      'extra': {name: dict(own) for name, own in self.extra.items()},
    }

  @property
  def name(self) -> str:
    """A short one that no other architecture of the space has.

    >>> Architecture({'top': (64, 16)}, {'a': 8, 'b': 4}, {'a': 9, 'b': 9}).name
    'top 64-16, dim 8 4, rows 9 9'
    """
    parts = {
      key: '-'.join(map(str, value)) if isinstance(value, tuple) else str(value)
      for key, value in self.net.items()
    }
    for part, sizes in (
      ('dim', self.dims), ('rows', self.rows), *self.extra.items()
    ):  # fmt: skip
      parts[part] = ' '.join(map(str, sizes.values()))
    return ', '.join(f'{part} {text}' for part, text in parts.items() if text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchitectureSpace(abc.ABC):
  """Which architectures of a model there are.

  Attributes:
    features: of the data.
    dims: table -> the widths there are.
    rows: table -> the numbers of rows there are, from the most on.
    row_bytes: table -> bytes of a number in its rows.
    extra: name -> a space from outside.
    extra_tables: the tables for which it has a choice.
    latency: how long matrices take, or None where nobody asks.
  """

  features: Features
  dims: Mapping[str, tuple[int, ...]]
  rows: Mapping[str, tuple[int, ...]]
  row_bytes: Mapping[str, int]
  extra: Mapping[str, TableSpace] = dataclasses.field(default_factory=dict)
  extra_tables: tuple[str, ...] = ()
  latency: LatencyTable | None = None

  # What a model says of its net.

  @abc.abstractmethod
  def list_net_choices(self) -> list[Choice]:
    """All choices of the net, those with one option too."""

  @abc.abstractmethod
  def measure_net(
    self, weights: Weights, dims: Mapping[str, float], drop_skips: bool
  ) -> dict:
    """Expected 'flops' and 'parameters' beside the tables, and latency.

    Args:
      weights: `[..., options]` of each choice.
      dims: table -> expected width of its rows.
      drop_skips: as `mlp_space.MlpSpace.measure`.
    """

  @abc.abstractmethod
  def choose_net(self, options: Options) -> dict[str, tuple[int, ...] | int]:
    """`Architecture.net` of options."""

  @abc.abstractmethod
  def describe_net(self, architecture: Architecture) -> dict[str, int | str]:
    """Options with which `choose_net` gives that of an architecture."""

  @abc.abstractmethod
  def find_net_extreme(
    self, dims: Mapping[str, int], pick: Callable, cost: str
  ) -> dict:
    """The net that costs the least or the most.

    Args:
      dims: table -> width of its rows.
      pick: `min` or `max`.
      cost: which.
    """

  @abc.abstractmethod
  def list_nets(self) -> list[dict]:
    """Each net, once."""

  @abc.abstractmethod
  def count_nets(self) -> int:
    """How many `list_nets` lists."""

  @abc.abstractmethod
  def to_keys(self, architecture: Architecture) -> dict[str, object]:
    """Keys of a config that make its model an architecture, tables aside."""

  # What all have in common.

  @property
  def costs(self) -> tuple[str, ...]:
    """Names of what `measure` measures."""
    return (*COSTS, LATENCY) if self.latency else COSTS

  @functools.cached_property
  def table_choices(self) -> list[Choice]:
    dims = [Choice(DIM + t, sizes) for t, sizes in self.dims.items()]
    rows = [Choice(ROWS + t, sizes) for t, sizes in self.rows.items()]
    extra = [
      self.choose_extra(n, t) for n in self.extra for t in self.extra_tables
    ]
    return [*dims, *rows, *extra]

  def choose_extra(self, space: str, table: str) -> Choice:
    """The choice of a space from outside."""
    return self.extra[space].make_choice(space, table)

  @functools.cached_property
  def choices(self) -> list[Choice]:
    """All with more than one option, in their order."""
    return list_open([*self.list_net_choices(), *self.table_choices])

  @functools.cached_property
  def tables_of_vectors(self) -> list[str]:
    """The table that each of `Inputs.vectors` is of."""
    return [f.source for f in fields.table_features(self.features)]

  @property
  def numbers(self) -> int:
    """How many numeric features there are."""
    return len(fields.numeric_features(self.features))

  def measure(self, weights: Weights, drop_skips: bool = False) -> dict:
    """Expected costs of a model: 'flops', 'parameters' and 'bytes'.

    Operations are those of the forward pass of an example: a
    multiply-accumulate is two, biases are counted among them. Bytes are of all
    parameters in float32, and of rows as they are kept; an id map of tables
    with fewer rows than ids is computed and takes none. With a table of
    latencies there is 'latency_us', too, of the matrices alone; the first one
    behind the tables is taken at the expected width of its input.

    Args:
      weights: `[..., options]` of each choice.
      drop_skips: as `mlp_space.MlpSpace.measure`.
    """
    rows, dims = (
      {t: mean_option(weights, Choice(part + t, s)) for t, s in sizes.items()}
      for part, sizes in ((ROWS, self.rows), (DIM, self.dims))
    )
    found = self.measure_net(weights, dims, drop_skips)
    found['bytes'] = 4 * found['parameters']
    for table in rows:
      size = rows[table] * dims[table]
      for cost, each in (('parameters', 1), ('bytes', self.row_bytes[table])):
        scale = self._scale(weights, table, cost)
        found[cost] = found[cost] + each * size * scale
    return found

  def _scale(self, weights: Weights, table: str, cost: str):
    """By what spaces from outside multiply what a table costs."""
    scale = 1.0
    for name, space in self.extra.items():
      if table in self.extra_tables and cost in space.scales:
        found = read_weights(weights, self.choose_extra(name, table))
        scale = scale * (found @ np.array(space.scales[cost], found.dtype))
    return scale

  def measure_architecture(self, architecture: Architecture) -> dict:
    """Costs of a model, whole numbers but for its latency."""
    weights = {
      name: weight.astype(np.float64)  # float32 would round large tables
      for name, weight in self.to_weights(self.describe(architecture)).items()
    }
    found = {name: float(x) for name, x in self.measure(weights).items()}
    return found | {name: round(found[name]) for name in COSTS}

  def to_weights(self, options: Options) -> dict[str, np.ndarray]:
    """The weights with which each choice is one of its options.

    Args:
      options: of choices; what nobody asks for may be missing.
    """
    return {
      choice.name: take_one(choice, options.get(choice.name, choice.options[0]))
      for choice in self.choices
    }

  def choose(self, options: Options) -> Architecture:
    """The architecture that options describe."""

    def take(choice: Choice):
      if len(choice.options) == 1:
        return choice.options[0]
      return options[choice.name]

    return Architecture(
      self.choose_net(options),
      {t: take(Choice(DIM + t, sizes)) for t, sizes in self.dims.items()},
      {t: take(Choice(ROWS + t, sizes)) for t, sizes in self.rows.items()},
      {
        name: {t: take(self.choose_extra(name, t)) for t in self.extra_tables}
        for name in self.extra
      },
    )

  def name_architecture(self, architecture: Architecture) -> str:
    """Its name without the tables for which there is nothing to choose."""
    dims, rows = (
      {table: size for table, size in own.items() if len(sizes[table]) > 1}
      for own, sizes in (
        (architecture.dims, self.dims),
        (architecture.rows, self.rows),
      )
    )
    return dataclasses.replace(architecture, dims=dims, rows=rows).name

  def describe(self, architecture: Architecture) -> dict[str, int | str]:
    """Options with which `choose` gives an architecture."""
    options = {DIM + t: size for t, size in architecture.dims.items()}
    options |= {ROWS + t: size for t, size in architecture.rows.items()}
    for name, own in architecture.extra.items():
      options |= {f'{name}.{t}': option for t, option in own.items()}
    return options | self.describe_net(architecture)

  def find_extremes(
    self, cost: str = 'flops'
  ) -> tuple[Architecture, Architecture]:
    """The architectures that cost the least and the most.

    Args:
      cost: which. A wider input may take less time than a narrower one; of
        latencies, only those with the least and the most of tables are tried.
    """
    found = []
    for pick in (min, max):
      ends = (min, max) if cost == LATENCY else (pick,)
      rows = {t: pick(sizes) for t, sizes in self.rows.items()}
      extra = {
        name: dict.fromkeys(self.extra_tables, _pick_option(space, pick, cost))
        for name, space in self.extra.items()
      }
      some = []
      for end in ends:
        dims = {t: end(sizes) for t, sizes in self.dims.items()}
        net = self.find_net_extreme(dims, pick, cost)
        some.append(Architecture(net, dims, rows, extra))
      found.append(pick(some, key=lambda a: self.measure_architecture(a)[cost]))
    return found[0], found[1]

  def count_architectures(self) -> int:
    """How many there are."""
    sizes = [len(choice.options) for choice in self.table_choices]
    return math.prod(sizes) * self.count_nets()

  def list_architectures(self) -> Iterator[Architecture]:
    """Each of them, once."""
    extra = {
      name: list(list_products(dict.fromkeys(self.extra_tables, x.options)))
      for name, x in self.extra.items()
    }
    for net in self.list_nets():
      for dims in list_products(self.dims):
        for rows in list_products(self.rows):
          for own in list_products(extra):
            yield Architecture(net, dims, rows, own)

  def make_uniform(self) -> dict[str, np.ndarray]:
    """Weights by which each option of a choice is as likely as any other."""
    return {
      choice.name: np.full(len(choice.options), 1 / len(choice.options))
      for choice in self.choices
    }

  def draw_options(
    self, weights: Mapping[str, np.ndarray], rng: np.random.Generator
  ) -> dict[str, int | str]:
    """Options by chance, each with the probability of its weight.

    Args:
      weights: `[options]` of each choice.
      rng: of the draws.
    """
    drawn = {}
    for choice in self.choices:
      p = np.asarray(weights[choice.name], np.float64)
      number = int(rng.choice(len(p), p=p / p.sum()))
      drawn[choice.name] = choice.options[number]
    return drawn

  def choose_likeliest(
    self, weights: Mapping[str, np.ndarray]
  ) -> dict[str, int | str]:
    """Of each choice the option with the largest weight, the first of them."""
    return {
      choice.name: choice.options[int(np.argmax(weights[choice.name]))]
      for choice in self.choices
    }


def _pick_option(space: TableSpace, pick: Callable, cost: str):
  """The option that costs the least, or the most."""
  ones = (1.0,) * len(space.options)
  both = [space.scales.get(name, ones) for name in ('parameters', 'bytes')]
  # Whoever has fewer parameters has fewer bytes, too, as often.
  counted = both if cost == 'bytes' else both[:1]

  def measure(number: int) -> float:
    return math.prod(scales[number] for scales in counted)

  return space.options[pick(range(len(space.options)), key=measure)]


def list_products(sizes: Mapping[str, Sequence]) -> Iterator[dict]:
  """Every way to take one of each.

  >>> list(list_products({'a': (1, 2), 'b': (3,)}))
  [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
  """
  if not sizes:
    yield {}
    return
  (name, own), *rest = sizes.items()
  for size in own:
    for found in list_products(dict(rest)):
      yield {name: size, **found}
