"""The space of DLRMs: two MLPs, and the width and the rows of each table.

| paper (arXiv 2110.14812)  | here                                          |
|---------------------------|-----------------------------------------------|
| top and bottom MLPs       | `top`, `bottom`: `mlp_space.MlpSpace`         |
| embedding dimension       | `dims`, a choice 'dim.TABLE' for each table   |
| embedding cardinality     | `rows`, a choice 'rows.TABLE' for each table  |

Any of them may have one option, which is then fixed. The choices of a net are
independent of each other, and each cost is a sum of products of different
choices' sizes: so the cost with weights is the expected cost of architectures
drawn by these weights, whichever are searched together.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.config.models import DLRM
from genrec_jax.features import Features
from genrec_jax.models import fields
from genrec_jax.search import mlp_space
from genrec_jax.search.choices import (
  Choice,
  Weights,
  list_open,
  mean_option,
  read_weights,
  take_one,
)
from genrec_jax.search.latency import LatencyTable
from genrec_jax.search.mlp_space import MlpSpace
from genrec_jax.search.table_space import TableSpace

COSTS = ('flops', 'parameters', 'bytes')
LATENCY = 'latency_us'  # with a table of latencies
# Choice -> its option.
Options = Mapping[str, int | str]
DIM, ROWS = 'dim.', 'rows.'  # begin the names of choices of tables


@dataclasses.dataclass(frozen=True)
class Architecture:
  """A net of the space.

  Attributes:
    bottom: hidden widths of the MLP over numbers.
    top: hidden widths of the MLP over interactions.
    dims: table -> width of its rows.
    rows: table -> its rows.
    extra: space from outside -> table -> its option.
  """

  bottom: tuple[int, ...]
  top: tuple[int, ...]
  dims: Mapping[str, int]
  rows: Mapping[str, int]
  extra: Mapping[str, Mapping[str, int | str]] = dataclasses.field(
    default_factory=dict
  )

  def to_json(self) -> dict:
    return {
      'bottom': list(self.bottom),
      'top': list(self.top),
      'dims': dict(self.dims),
      'rows': dict(self.rows),
      'extra': {name: dict(own) for name, own in self.extra.items()},
    }

  @classmethod
  def of_json(cls, found: Mapping) -> 'Architecture':
    return cls(
      tuple(found['bottom']),
      tuple(found['top']),
      dict(found['dims']),
      dict(found['rows']),
      {name: dict(own) for name, own in found.get('extra', {}).items()},
    )

  @property
  def name(self) -> str:
    """A short one that no other architecture of the space has.

    >>> Architecture((), (64, 16), {'a': 8, 'b': 4}, {'a': 9, 'b': 9}).name
    'top 64-16, dim 8 4, rows 9 9'
    """
    parts = {
      'bottom': '-'.join(map(str, self.bottom)),
      'top': '-'.join(map(str, self.top)),
      'dim': ' '.join(map(str, self.dims.values())),
      'rows': ' '.join(map(str, self.rows.values())),
    }
    for name, own in self.extra.items():
      parts[name] = ' '.join(map(str, own.values()))
    return ', '.join(f'{part} {text}' for part, text in parts.items() if text)


@dataclasses.dataclass(frozen=True)
class NetSpace:
  """Which DLRMs there are.

  Attributes:
    features: of the data.
    config: of the model around what is searched.
    bottom: MLP over numbers, None where there are none.
    top: MLP over interactions.
    dims: table -> the widths there are.
    rows: table -> the numbers of rows there are, from the most on.
    row_bytes: table -> bytes of a number in its rows.
    extra: name -> a space from outside.
    extra_tables: the tables for which it has a choice.
    latency: how long matrices take, or None where nobody asks.
  """

  features: Features
  config: DLRM
  bottom: MlpSpace | None
  top: MlpSpace
  dims: Mapping[str, tuple[int, ...]]
  rows: Mapping[str, tuple[int, ...]]
  row_bytes: Mapping[str, int]
  extra: Mapping[str, TableSpace] = dataclasses.field(default_factory=dict)
  extra_tables: tuple[str, ...] = ()
  latency: LatencyTable | None = None

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
    return self.extra[space].make_choice(space, table)

  @functools.cached_property
  def choices(self) -> list[Choice]:
    """All with more than one option, in their order."""
    nets = [] if self.bottom is None else self.bottom.choices
    return list_open([*nets, *self.top.choices, *self.table_choices])

  @functools.cached_property
  def tables_of_vectors(self) -> list[str]:
    """The table that each of `Inputs.vectors` is of."""
    return [f.source for f in fields.table_features(self.features)]

  @property
  def numbers(self) -> int:
    """How many numeric features there are."""
    return len(fields.numeric_features(self.features))

  @property
  def count(self) -> int:
    """Vectors that interact."""
    return len(self.tables_of_vectors) + bool(self.numbers)

  @property
  def interaction(self) -> str:
    return self.config.choose_interaction(self.count)

  def find_width(self, dims: Mapping[str, float]):
    """Width of what the top MLP reads.

    Args:
      dims: table -> width of its rows, whole or in the mean.
    """
    dim = self.config.dim if self.numbers else 0
    if self.interaction == 'dot':
      n = self.count
      return n * (n + 1 if self.config.itself else n - 1) // 2 + dim
    return dim + sum(dims[table] for table in self.tables_of_vectors)

  def measure(self, weights: Weights, drop_skips: bool = False) -> dict:
    """Expected costs of a net: 'flops', 'parameters' and 'bytes'.

    Operations are those of the forward pass of an example: a
    multiply-accumulate is two, biases are counted among them. Bytes are of all
    parameters in float32, and of rows as they are kept; an id map of tables
    with fewer rows than ids is computed and takes none. With a table of
    latencies there is 'latency_us', too, of the matrices alone; the first one
    of the top MLP is taken at the expected width of its input.

    Args:
      weights: `[..., options]` of each choice.
      drop_skips: as `MlpSpace.measure`.
    """
    rows = {
      t: mean_option(weights, Choice(ROWS + t, sizes))
      for t, sizes in self.rows.items()
    }
    dims = {
      t: mean_option(weights, Choice(DIM + t, sizes))
      for t, sizes in self.dims.items()
    }
    sizes = {t: rows[t] * dims[t] for t in rows}
    scaled = {
      cost: {t: x * self._scale(weights, t, cost) for t, x in sizes.items()}
      for cost in ('parameters', 'bytes')
    }
    width = self.find_width(dims)
    measure = functools.partial(
      self._measure_nets, weights, width, drop_skips=drop_skips
    )
    flops = measure(mlp_space.count_operations, mlp_space.count_operations)
    if self.interaction == 'dot':
      flops += 2 * self.count**2 * self.config.dim
    parameters = measure(
      functools.partial(
        mlp_space.count_weights, batch_norm=self.config.batch_norm
      ),
      mlp_space.count_weights,
    )
    found = {
      'flops': flops,
      'parameters': parameters + sum(scaled['parameters'].values()),
      'bytes': 4 * parameters
      + sum(self.row_bytes[t] * size for t, size in scaled['bytes'].items()),
    }
    if self.latency:
      found[LATENCY] = measure(self.latency.find, self.latency.find)
    return found

  def _scale(self, weights: Weights, table: str, cost: str):
    """By what spaces from outside multiply what a table costs."""
    scale = 1.0
    for name, space in self.extra.items():
      if table in self.extra_tables and cost in space.scales:
        found = read_weights(weights, self.choose_extra(name, table))
        scale = scale * (found @ np.array(space.scales[cost], found.dtype))
    return scale

  def _measure_nets(self, weights: Weights, width, *costs, drop_skips: bool):
    total = self.top.measure(weights, width, *costs, drop_skips)
    if self.bottom is not None:
      total += self.bottom.measure(weights, self.numbers, *costs, drop_skips)
    return total

  def measure_architecture(self, architecture: Architecture) -> dict:
    """Costs of a net, whole numbers but for its latency."""
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

    bottom = () if self.bottom is None else self.bottom.choose_hidden(options)
    return Architecture(
      bottom,
      self.top.choose_hidden(options),
      {t: take(Choice(DIM + t, sizes)) for t, sizes in self.dims.items()},
      {t: take(Choice(ROWS + t, sizes)) for t, sizes in self.rows.items()},
      {
        name: {t: take(self.choose_extra(name, t)) for t in self.extra_tables}
        for name in self.extra
      },
    )

  def describe(self, architecture: Architecture) -> dict[str, int | str]:
    """Options with which `choose` gives an architecture."""
    options = {DIM + t: size for t, size in architecture.dims.items()}
    options |= {ROWS + t: size for t, size in architecture.rows.items()}
    for name, own in architecture.extra.items():
      options |= {f'{name}.{t}': option for t, option in own.items()}
    options |= self.top.describe_hidden(architecture.top)
    if self.bottom is not None:
      options |= self.bottom.describe_hidden(architecture.bottom)
    return options

  def find_extremes(self) -> tuple[Architecture, Architecture]:
    """The architectures that cost the least and the most."""
    found = []
    for number, pick in enumerate((min, max)):
      dims = {t: pick(sizes) for t, sizes in self.dims.items()}
      rows = {t: pick(sizes) for t, sizes in self.rows.items()}
      bottom = ()
      if self.bottom is not None:
        bottom = self.bottom.find_extremes(self.numbers)[number]
      top = self.top.find_extremes(self.find_width(dims))[number]
      extra = {
        name: dict.fromkeys(self.extra_tables, _pick_option(space, pick))
        for name, space in self.extra.items()
      }
      found.append(Architecture(bottom, top, dims, rows, extra))
    return found[0], found[1]

  def count_architectures(self) -> int:
    """How many there are."""
    sizes = [len(choice.options) for choice in self.table_choices]
    bottom = 1 if self.bottom is None else len(self.bottom.list_mlps())
    return math.prod(sizes) * bottom * len(self.top.list_mlps())

  def list_architectures(self) -> Iterator[Architecture]:
    """Each of them, once."""
    for bottom in [()] if self.bottom is None else self.bottom.list_mlps():
      for top in self.top.list_mlps():
        for dims in _list_products(self.dims):
          for rows in _list_products(self.rows):
            for extra in self._list_extra():
              yield Architecture(bottom, top, dims, rows, extra)

  def _list_extra(self) -> Iterator[dict]:
    every = {
      name: list(_list_products(dict.fromkeys(self.extra_tables, x.options)))
      for name, x in self.extra.items()
    }
    yield from _list_products(every)

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
      drawn[choice.name] = choice.options[
        int(rng.choice(len(p), p=p / p.sum()))
      ]
    return drawn

  def choose_likeliest(
    self, weights: Mapping[str, np.ndarray]
  ) -> dict[str, int | str]:
    """Of each choice the option with the largest weight, the first of them."""
    return {
      choice.name: choice.options[int(np.argmax(weights[choice.name]))]
      for choice in self.choices
    }


def _pick_option(space: TableSpace, pick: Callable):
  """The option that costs the least, or the most."""

  def measure(number: int) -> float:
    return math.prod(scales[number] for scales in space.scales.values())

  return space.options[pick(range(len(space.options)), key=measure)]


def _list_products(sizes: Mapping[str, Sequence[int]]) -> Iterator[dict]:
  if not sizes:
    yield {}
    return
  (name, own), *rest = sizes.items()
  for size in own:
    for found in _list_products(dict(rest)):
      yield {name: size, **found}
