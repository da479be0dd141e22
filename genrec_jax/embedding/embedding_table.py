"""What somebody says of a table, and what of it cannot be."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import jax

from genrec_jax.embedding.row_optimizers import (
  RowOptimizerLike,
  find_optimizer,
)
from genrec_jax.numerics.formats import storage_dtype

Rate = float | Callable[[jax.Array], jax.Array]
_NUMBERS = {
  'rows': (numbers.Integral, 1, 'a whole number of at least 1'),
  'width': (numbers.Integral, 1, 'a whole number of at least 1'),
  'rate': (
    numbers.Real,
    0,
    'a finite number of at least 0, or a function of the step',
  ),
  'init_std': (numbers.Real, 0, 'a finite number of at least 0'),
}


@dataclasses.dataclass(frozen=True)
class EmbeddingTable:
  """One table of a `ShardedEmbedding`.

  >>> EmbeddingTable(rows=1000, width=16, optimizer='adam', rate=1e-3).dtype
  'float32'
  >>> EmbeddingTable(rows=1000, width=16, rate=-0.1)
  Traceback (most recent call last):
  ...
  ValueError: rate of an EmbeddingTable is -0.1, must be a finite number of at \
least 0, or a function of the step

  Attributes:
    rows: number of rows; ids are 0 .. rows - 1.
    width: numbers in a row.
    optimizer: name of a row optimizer (docs/kernels.md lists them), or an
      object with the methods of `row_optimizers.RowOptimizerLike`.
    rate: its learning rate, 0 for rows that stay as they are, or a function of
      the step, such as an optax schedule.
    options: further settings of an optimizer that is given by name, such as
      `{'eps': 1e-6}`.
    dtype: of the rows, 'float32', 'bfloat16' or 'float16'. The latter two are
      rounded by chance, without bias, unless options say otherwise.
    init_std: deviation of the fresh rows, which are drawn from a normal
      distribution that is cut at two deviations.
    scheme: where the rows lie; '' for what the `ShardedEmbedding` says.

  Raises:
    ValueError: a setting that cannot be, with its name and value.
  """

  rows: int
  width: int
  optimizer: str | RowOptimizerLike = 'row_adagrad'
  rate: Rate = 0.05
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dtype: str = 'float32'
  init_std: float = 0.02
  scheme: str = ''

  def __post_init__(self):
    for name, (kind, least, words) in _NUMBERS.items():
      value = getattr(self, name)
      if name == 'rate' and callable(value):
        continue
      if not is_number(value, kind) or not least <= value < math.inf:
        raise ValueError(
          f'{name} of an EmbeddingTable is {value!r}, must be {words}'
        )
    storage_dtype(self.dtype)  # refuses what no table can be made of
    if not isinstance(self.options, Mapping):
      raise ValueError(
        f'options of an EmbeddingTable are {self.options!r}, must be a mapping '
        "such as {'eps': 1e-6}"
      )
    if isinstance(self.optimizer, str):
      self._check_options()
    elif self.options:
      raise ValueError(
        'options are for an optimizer that is given by name; make '
        f'{type(self.optimizer).__name__} with them'
      )

  def _check_options(self) -> None:
    """Refuses an optimizer that is not there, and options it does not have."""
    try:
      find_optimizer(self.optimizer, **self.options)
    except TypeError as e:  # for instance a value that is not a number
      raise ValueError(
        f'options {dict(self.options)} do not suit the row optimizer '
        f'{self.optimizer!r}: {e}'
      ) from None


def check_tables(tables: Mapping[str, EmbeddingTable]) -> None:
  """Refuses what is no mapping of names to tables."""
  if not isinstance(tables, Mapping) or not all(
    isinstance(table, EmbeddingTable) for table in tables.values()
  ):
    raise ValueError(
      f'tables is {tables!r}, must be a mapping of names to EmbeddingTables'
    )
  if not tables:
    raise ValueError('tables is empty; name at least one EmbeddingTable')
  for name in tables:
    if not isinstance(name, str):
      raise ValueError(f'the name of a table is {name!r}, must be text')


def is_number(value, kind: type) -> bool:
  """Whether it is a number of some kind; True is none."""
  return isinstance(value, kind) and not isinstance(value, bool)
