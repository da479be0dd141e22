"""The interface of the backends of jagged_embedding, and its types.

A backend is a module with the functions below. `ids` `[K]` are int32, packed
bag after bag; `lengths` `[B]` says how many belong to each, and is None where
every id is a bag of its own. Sums are float32.

  bag(table, ids, lengths, weights) -> [B, D] sums; NaN where an id is not a row
  gather(table, ids, count, spare) -> [K, D]; NaN where an id is not a row,
    zeros after the first `count` and, with `spare`, where an id is
    table.shape[0]
  weight_gradient(table, ids, lengths, grads) -> [K]
  merge(ids, lengths, weights, grads, rows) -> MergedRows
  update(settings, chance, table, slots, ids, grads) -> table, slots
  bag_update(settings, chance, table, slots, ids, lengths, weights, grads)
    -> table, slots

`settings` is a `settings.Settings`, of `bag_update` one without groups,
`slots` a tuple of arrays in the order of `slot_arrays`,
`chance` a `RoundingChance`, or None where rows are rounded to the nearest.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding import rules

# Optimizer -> its slots, as `rules.Optimizer` says.
SLOTS = {name: kind.slots for name, kind in rules.OPTIMIZERS.items()}
DECAYS = (None, 'l2', 'decoupled')


class MergedRows(NamedTuple):
  """Gradients of distinct rows, as `merge_rows` returns them.

  >>> grads = jnp.array([[2.0], [5.0], [0.0]])
  >>> merged = MergedRows(jnp.array([0, 3, 4]), grads)  # 4 rows: one is unused
  >>> ids, grads = merged
  >>> ids.shape, grads.shape
  ((3,), (3, 1))

  Attributes:
    ids: `[N]` int32, sorted; unused entries at the end hold the number of rows.
    grads: `[N, D]` float32, zeros in unused entries.
  """

  ids: jax.Array
  grads: jax.Array


class RoundingChance(NamedTuple):
  """What the chance of stochastic rounding depends on.

  Attributes:
    seed: uint32 scalar.
    rows: `[N]` uint32, the number of each id's row; None: the ids themselves.
    first_columns: `[N]` uint32, the number of its first column; None: zeros.
  """

  seed: jax.Array
  rows: jax.Array | None = None
  first_columns: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
  """How a row moves. An option that an optimizer has no use for is ignored.

  >>> rule = Rule('row_adam', beta2=0.99, decay='decoupled', weight_decay=1e-4)
  >>> rule.decoupled, rule.l2
  (0.0001, 0.0)

  Attributes:
    optimizer: a name in `SLOTS`.
    eps: added to the root of the squares.
    beta1: decay of the mean of Adam and LAMB.
    beta2: decay of their mean square.
    momentum: decay of the sum of steps of 'momentum' and 'lars'.
    trust: the step of 'lars' as a share of the row's norm.
    weight_decay: the factor lambda of `decay`; must be 0 without one.
    decay: None, 'l2' (lambda w is part of the gradient) or 'decoupled' (the row
      shrinks by learning rate times lambda beside the step; LAMB counts it as
      part of the direction whose length it sets).
    max_norm: a longer row is scaled to this norm after its step, before it is
      rounded to the table's dtype.
    row_count: Adam and LAMB correct their means by how often the row was
      updated, not by the count of all updates.
  """

  optimizer: str
  eps: float = 1e-8
  beta1: float = 0.9
  beta2: float = 0.999
  momentum: float = 0.9
  trust: float = 1e-3
  weight_decay: float = 0.0
  decay: str | None = None
  max_norm: float | None = None
  row_count: bool = False

  def __post_init__(self):
    if fault := _fault(self):
      raise ValueError(fault)

  @property
  def l2(self) -> float:
    return self.weight_decay if self.decay == 'l2' else 0.0

  @property
  def decoupled(self) -> float:
    return self.weight_decay if self.decay == 'decoupled' else 0.0


def _fault(rule: Rule) -> str | None:
  """The first fault of the options as a message, or None."""
  if rule.optimizer not in SLOTS:
    return (
      f'optimizer is {rule.optimizer!r}, must be one of {", ".join(SLOTS)}.'
    )
  if rule.decay not in DECAYS:
    return f'decay is {rule.decay!r}, must be one of {DECAYS}.'
  for name in ('eps', 'trust', 'weight_decay'):
    if not getattr(rule, name) >= 0:
      return f'{name} is {getattr(rule, name)}, must not be negative.'
  if rule.weight_decay and rule.decay is None:
    return f"weight_decay={rule.weight_decay} needs decay='l2' or 'decoupled'."
  for name in ('beta1', 'beta2', 'momentum'):
    if not 0 <= getattr(rule, name) < 1:
      return f'{name} is {getattr(rule, name)}, must be in [0, 1).'
  if rule.max_norm is not None and not rule.max_norm > 0:
    return f'max_norm is {rule.max_norm}, must be above 0 or None.'
  if rule.row_count and 'count' not in SLOTS[rule.optimizer]:
    return f'row_count=True has no meaning for {rule.optimizer}.'
  return None


def slot_kinds(rule: Rule) -> dict[str, str]:
  """Name -> 'element', 'row' or 'scalar' of each slot a rule needs."""
  kinds = dict(SLOTS[rule.optimizer])
  if rule.row_count:
    kinds['count'] = 'row'
  return kinds


def slot_arrays(rule: Rule) -> list[str]:
  """Names of the slots that are not scalars, in the order backends use."""
  return [n for n, kind in slot_kinds(rule).items() if kind != 'scalar']


def slot_shapes(rule: Rule, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
  """Name -> shape of each slot of a table `[rows, dim]`."""
  shapes = {'element': (rows, dim), 'row': (rows,), 'scalar': ()}
  return {name: shapes[kind] for name, kind in slot_kinds(rule).items()}


def init_slots(table: jax.Array, rule: Rule) -> dict[str, jax.Array]:
  """The slots before the first step: float32, a scalar count int32."""
  return {
    name: jnp.zeros(shape, jnp.float32 if shape else jnp.int32)
    for name, shape in slot_shapes(rule, *table.shape).items()
  }
