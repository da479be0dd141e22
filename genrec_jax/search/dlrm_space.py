"""The space of DLRMs: two MLPs, and the width and the rows of each table.

| paper (arXiv 2110.14812)  | here                                          |
|---------------------------|-----------------------------------------------|
| top and bottom MLPs       | `top`, `bottom`: `mlp_space.MlpSpace`         |
| embedding dimension       | `dims`, a choice 'dim.TABLE' for each table   |
| embedding cardinality     | `rows`, a choice 'rows.TABLE' for each table  |

Any of them may have one option, which is then fixed.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from genrec_jax.config.models import DLRM
from genrec_jax.search import mlp_space
from genrec_jax.search.architecture import (
  LATENCY,
  Architecture,
  ArchitectureSpace,
  Options,
)
from genrec_jax.search.choices import Choice, Weights
from genrec_jax.search.mlp_space import MlpSpace


@dataclasses.dataclass(frozen=True, kw_only=True)
class DlrmSpace(ArchitectureSpace):
  """Which DLRMs there are.

  Attributes:
    config: of the model around what is searched.
    bottom: MLP over numbers, None where there are none.
    top: MLP over interactions.
  """

  config: DLRM
  bottom: MlpSpace | None
  top: MlpSpace

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

  def list_net_choices(self) -> list[Choice]:
    bottom = [] if self.bottom is None else self.bottom.choices
    return [*bottom, *self.top.choices]

  def _list_matrices(self) -> dict[str, tuple[Callable, Callable]]:
    """Cost -> what a matrix costs, and what the last one does."""
    count = mlp_space.count_operations
    weigh = functools.partial(
      mlp_space.count_weights, batch_norm=self.config.batch_norm
    )
    found = {'flops': (count, count)}
    found['parameters'] = weigh, mlp_space.count_weights
    if self.latency:
      found[LATENCY] = self.latency.find, self.latency.find
    return found

  def measure_net(self, weights: Weights, dims, drop_skips: bool) -> dict:
    width = self.find_width(dims)

    def measure(cost, last):
      total = self.top.measure(weights, width, cost, last, drop_skips)
      if self.bottom is not None:
        total += self.bottom.measure(
          weights, self.numbers, cost, last, drop_skips
        )
      return total

    found = {n: measure(*own) for n, own in self._list_matrices().items()}
    if self.interaction == 'dot':
      found['flops'] += 2 * self.count**2 * self.config.dim
    return found

  def choose_net(self, options: Options) -> dict[str, tuple[int, ...]]:
    found = {'top': self.top.choose_hidden(options)}
    if self.bottom is not None:
      found = {'bottom': self.bottom.choose_hidden(options), **found}
    return found

  def describe_net(self, architecture: Architecture) -> dict[str, int | str]:
    options = self.top.describe_hidden(architecture.net['top'])
    if self.bottom is not None:
      options |= self.bottom.describe_hidden(architecture.net['bottom'])
    return options

  def find_net_extreme(
    self, dims: Mapping[str, int], pick: Callable, cost: str
  ) -> dict:
    # All bytes of a net are those of its parameters.
    own = self._list_matrices()[{'bytes': 'parameters'}.get(cost, cost)]
    found = {'top': self.top.find_extreme(self.find_width(dims), *own, pick)}
    if self.bottom is not None:
      bottom = self.bottom.find_extreme(self.numbers, *own, pick)
      found = {'bottom': bottom, **found}
    return found

  def list_nets(self) -> list[dict]:
    if self.bottom is None:
      return [{'top': top} for top in self.top.list_mlps()]
    return [
      {'bottom': bottom, 'top': top}
      for bottom in self.bottom.list_mlps()
      for top in self.top.list_mlps()
    ]

  def count_nets(self) -> int:
    bottom = 1 if self.bottom is None else self.bottom.count_mlps()
    return bottom * self.top.count_mlps()

  def to_keys(self, architecture: Architecture) -> dict[str, object]:
    dims = {
      f.name: architecture.dims[f.source]
      for f in self.features
      if f.has_table and architecture.dims[f.source] != self.config.dim
    }
    nets = {f'model.{key}': value for key, value in architecture.net.items()}
    return {**nets, 'model.dims': dims}
