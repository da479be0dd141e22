"""A space of one's own: a choice for each table.

    FORMATS = TableSpace(
      options=('float32', 'bfloat16'),
      mix=mix_formats,
      scales={'bytes': (1.0, 0.5)},
      change=lambda option: {'dtype': option},
    )
    EXTENSIONS = contracts.Extensions(search_spaces={'formats': FORMATS})

One function says what a mixture of the options does to the vectors of a table,
and one number for each option what it costs; docs/dnas.md has the whole
example.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from genrec_jax.search.choices import Choice


@dataclasses.dataclass(frozen=True)
class TableSpace:
  """What else there is to choose for a table.

  Attributes:
    options: names or numbers.
    mix: (`[B, D]` vectors of a feature, `[B or 1, options]` weights) -> the
      vectors of the mixture; with one weight of 1 those of that option.
    scales: 'parameters' or 'bytes' -> by what each option multiplies what the
      table costs; 1 where it is not named.
    change: option -> keys of the table in `config.tables`.
  """

  options: tuple[int | float | str, ...]
  mix: Callable[[jax.Array, jax.Array], jax.Array]
  scales: Mapping[str, tuple[float, ...]] = dataclasses.field(
    default_factory=dict
  )
  change: Callable[[int | float | str], Mapping] = lambda option: {}

  def __post_init__(self):
    for cost, scales in self.scales.items():
      if cost not in ('parameters', 'bytes'):
        raise ValueError(
          f'a TableSpace scales {cost!r}; it can scale parameters and bytes'
        )
      if len(scales) != len(self.options):
        raise ValueError(
          f'a TableSpace has {len(self.options)} options and '
          f'{len(scales)} scales of {cost}'
        )

  def make_choice(self, space: str, table: str) -> Choice:
    return Choice(f'{space}.{table}', self.options)
