"""The numbers that rows move by: one set for all rows, or one for each group.

Kinds of optimizer are programs, their settings are numbers: rows of one array
that belong to different tables move in one call, each by the learning rate and
the options of its group.

Options are known when the program is compiled, and a number that all groups
share stays a constant. Constants are rounded to float32 once, from float64, as
those of a call without groups; so a row becomes the same in both.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.jagged_embedding import rules, spec
from pallas_kernels.jagged_embedding.spec import Rule


class Settings(NamedTuple):
  """What the rows of one update move by.

  Attributes:
    rules: one, or that of each group; they differ in numbers alone.
    scalars: float32 learning rate and the two corrections of Adam's means,
      `[3]`, or `[G, 3]` where there are groups.
    groups: `[N]` int32, the group of each id; None where there are no groups. A
      row whose group does not exist becomes NaN.
  """

  rules: tuple[Rule, ...]
  scalars: jax.Array
  groups: jax.Array | None = None

  @property
  def rule(self) -> Rule:
    """A rule that has what all groups have in common."""
    return self.rules[0]


def start_update(
  rules_of_groups: tuple[Rule, ...],
  learning_rate: jax.Array,
  groups: jax.Array | None,
  slots: dict[str, jax.Array],
) -> tuple[Settings, dict[str, jax.Array]]:
  """The settings of an update, and the slots with this update counted.

  Args:
    rules_of_groups: as `Settings.rules`.
    learning_rate: float32 `[]`, or `[G]` with groups.
    groups: as `Settings.groups`.
    slots: as from `spec.init_slots`.
  """
  # Optimizers without a mean have no corrections.
  one = jnp.float32(1)
  betas = {(rule.beta1, rule.beta2): (one, one) for rule in rules_of_groups}
  if spec.slot_kinds(rules_of_groups[0]).get('count') == 'scalar':
    # The correction is that of this update, so it is counted first.
    slots = {**slots, 'count': slots['count'] + 1}
    count = slots['count'].astype(jnp.float32)
    # One scalar program a pair of betas, whatever the number of groups.
    betas = {
      (rule.beta1, rule.beta2): rules.corrections(rule, count)
      for rule in rules_of_groups
    }
  corrections = [betas[rule.beta1, rule.beta2] for rule in rules_of_groups]
  if groups is None:
    return Settings(
      rules_of_groups, jnp.stack([learning_rate, *corrections[0]])
    ), slots
  columns = [learning_rate, *(jnp.stack(c) for c in zip(*corrections))]
  return Settings(rules_of_groups, jnp.stack(columns, axis=1), groups), slots


def numbers_of_rows(settings: Settings) -> rules.RuleNumbers:
  """The numbers as `rules.step` takes them."""
  constants = [_constants(rule) for rule in settings.rules]
  if settings.groups is None:
    return rules.RuleNumbers(*settings.scalars, **constants[0])
  # JAX would count a negative number of a group from the end.
  groups = jnp.where(settings.groups < 0, len(settings.rules), settings.groups)
  # NaN is what a group beyond the last one reads.
  scalars = settings.scalars.at[groups].get(mode='fill', fill_value=jnp.nan)

  def of_each_row(name):
    # A number that all groups share stays known to the compiler, which can
    # leave out what it switches off.
    values = [constant[name] for constant in constants]
    if len(set(values)) == 1:
      return values[0]
    numbers = jnp.asarray(np.float32(values))
    return numbers.at[groups].get(mode='clip')[:, None]

  return rules.RuleNumbers(
    *(scalars[:, i : i + 1] for i in range(3)),
    **{name: of_each_row(name) for name in constants[0]},
  )


def _constants(rule: Rule) -> dict[str, float]:
  """Options as numbers; for one that is off, the number that does nothing."""
  return {
    'eps': float(rule.eps),
    'beta1': float(rule.beta1),
    # In float64: 1 - beta in float32 has lost digits of a beta near one.
    'rest1': 1 - float(rule.beta1),
    'log1': rules.log_of(rule.beta1),
    'beta2': float(rule.beta2),
    'rest2': 1 - float(rule.beta2),
    'log2': rules.log_of(rule.beta2),
    'momentum': float(rule.momentum),
    'trust': float(rule.trust),
    'l2': float(rule.l2),
    'decoupled': float(rule.decoupled),
    # No row is longer than that.
    'max_norm': math.inf if rule.max_norm is None else float(rule.max_norm),
  }
