"""Refuses what jagged_embedding cannot do, naming the argument."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import integers
from pallas_kernels.jagged import api as jagged
from pallas_kernels.jagged_embedding import spec
from pallas_kernels.jagged_embedding.spec import Rule

MODES = ('sum', 'mean')
DTYPES = ('float32', 'bfloat16', 'float16')


def check_rule(optimizer, options: dict) -> Rule:
  """The rule of an optimizer's name and options, or the rule that is given."""
  if isinstance(optimizer, Rule):
    if options:
      raise ValueError(f'{sorted(options)} are given beside a whole rule.')
    return optimizer
  # The first field is the name, which is not an option.
  known = [f.name for f in dataclasses.fields(Rule)]
  if unknown := set(options) - set(known):
    raise ValueError(
      f'{sorted(unknown)} is not an option of an optimizer; there are '
      f'{", ".join(known[1:])}.'
    )
  return Rule(optimizer, **options)


def check_groups(optimizer, options, learning_rate, groups, ids, rows: int):
  """The settings of an update as three things that fit.

  Args:
    optimizer: a name, a `Rule`, or one rule for each group.
    options: options of an optimizer that is given by name.
    learning_rate: a number, or one for each group.
    groups: the group of each id, or None.
    ids: `[N]`, as from `check_integers`.
    rows: rows of the table.

  Returns:
    (rules, rates `[]` or `[G]` float32, groups `[N]` int32 or None).
  """
  several = isinstance(optimizer, list | tuple)
  if several and not optimizer:
    raise ValueError('optimizer is empty: give a rule for each group.')
  rules = tuple(
    check_rule(one, options) for one in (optimizer if several else [optimizer])
  )
  rates = jnp.asarray(learning_rate, jnp.float32)
  if groups is None:
    if several or rates.ndim:
      raise ValueError(
        'learning_rate and optimizer are given by group, and groups is None: '
        'say to which group each id belongs.'
      )
    return rules, rates, None
  if rates.ndim > 1 or not rates.size:
    raise ValueError(
      f'learning_rate must be a number or one a group, not {rates.shape}.'
    )
  # One rule or one rate stands for all groups; two lengths must agree.
  count = max(len(rules), rates.size)
  if len(rules) not in (1, count) or rates.size not in (1, count):
    raise ValueError(
      f'there are {len(rules)} rules in optimizer and {rates.size} numbers in '
      'learning_rate: both go by group.'
    )
  for group, rule in enumerate(rules):
    for name in ('optimizer', 'row_count'):
      first, other = getattr(rules[0], name), getattr(rule, name)
      if other != first:
        raise ValueError(
          f'{name} is {other!r} in group {group} and {first!r} in group 0: '
          'groups of one update may differ in numbers alone.'
        )
  groups = check_integers('groups', groups)
  if groups.shape != ids.shape:
    raise ValueError(
      f'groups has {groups.shape[0]} numbers for {ids.shape[0]} ids.'
    )
  if not any(isinstance(x, jax.core.Tracer) for x in (groups, ids)):
    # Unused entries may have any group.
    real = np.asarray(groups)[np.asarray(ids) < rows]
    wrong = real[(real < 0) | (real >= count)]
    if wrong.size:
      raise ValueError(
        f'groups holds {wrong[0]}, but the groups are 0 .. {count - 1}.'
      )
  rules = rules * count if len(rules) == 1 else rules
  return rules, jnp.broadcast_to(rates.reshape(-1), (count,)), groups


def check_slots(table, slots, rule: Rule) -> tuple[jax.Array, ...]:
  """Returns the arrays of the slots, in the order of `spec.slot_arrays`."""
  check_table(table)
  # Shapes alone; nothing of the size of the table is made.
  expected = jax.eval_shape(lambda t: spec.init_slots(t, rule), table)
  if slots.keys() != expected.keys():
    raise ValueError(
      f'slots of {rule.optimizer} are {sorted(expected)}, not {sorted(slots)}: '
      'see init_slots.'
    )
  for name, like in expected.items():
    slot = slots[name]
    if slot.shape != like.shape or slot.dtype != like.dtype:
      raise ValueError(
        f'slots[{name!r}] must be {like.dtype} {like.shape}, not '
        f'{slot.dtype} {slot.shape}.'
      )
  return tuple(slots[name] for name in spec.slot_arrays(rule))


def check_table(table) -> jax.Array:
  """The table as an array; one not `[rows, D]` of a known dtype is refused."""
  table = table if hasattr(table, 'dtype') else jnp.asarray(table)
  if table.ndim != 2 or not table.size:
    raise ValueError(f'table must be [rows, D], not {table.shape}.')
  if table.dtype not in DTYPES:
    raise ValueError(
      f'table is {table.dtype}, must be one of {", ".join(DTYPES)}.'
    )
  return jnp.asarray(table)


def check_integers(name: str, x) -> jax.Array:
  """The vector `x` as int32, see `integers.to_int32`."""
  found = integers.to_int32(name, x)
  if found.ndim != 1:
    raise ValueError(
      f'{name} must be a vector of integers, not {found.dtype} {found.shape}.'
    )
  return found


def check_bags(ids, lengths, weights, mode):
  """Checks packed bags.

  Args:
    ids: `[K]` integers.
    lengths: `[B]` integers, or None for no bags.
    weights: `[K]` floats, or None.
    mode: 'sum' or 'mean'.

  Returns:
    ids, lengths and weights as arrays, and whether the lengths are wrong, a
    scalar that is only True under jit. All ids are in the first bag then, so
    that backends need not expect sums that exceed int32.
  """
  if mode not in MODES:
    raise ValueError(f'mode is {mode!r}, must be one of {", ".join(MODES)}.')
  ids = check_integers('ids', ids)
  if weights is not None:
    weights = jnp.asarray(weights)
    if weights.shape != ids.shape or not jnp.issubdtype(
      weights.dtype, jnp.floating
    ):
      raise ValueError(
        f'weights must be floats of the shape of ids, {ids.shape}, not '
        f'{weights.dtype} {weights.shape}.'
      )
  if lengths is None:
    return ids, None, weights, jnp.bool_(False)
  lengths = check_integers('lengths', lengths)
  negative = lengths.min(initial=0) < 0
  too_many = jagged.exceed(lengths, ids.shape[0])
  for broken, message in (
    (negative, 'lengths holds a negative number.'),
    (too_many, f'lengths add up to more than the {ids.shape[0]} ids.'),
  ):
    if not isinstance(broken, jax.core.Tracer) and broken:
      raise ValueError(message)
  wrong = negative | too_many
  if isinstance(wrong, jax.core.Tracer) and lengths.size:
    one_bag = jnp.zeros_like(lengths).at[0].set(ids.shape[0])
    lengths = jnp.where(wrong, one_bag, lengths)
  return ids, lengths, weights, wrong


def check_grads(grads, count: int, of: str, dim: int | None = None) -> None:
  """Refuses gradients that are not floats `[count, dim]`.

  Args:
    grads: the gradients.
    count: rows they must have.
    of: name of the argument that has so many entries, for the message.
    dim: columns they must have; None for any.
  """
  expected = f'[{count}, {"D" if dim is None else dim}] ({of} has {count})'
  if (
    grads.ndim != 2
    or grads.shape[0] != count
    or dim not in (None, grads.shape[1])
  ):
    raise ValueError(f'grads must be {expected}, not {grads.shape}.')
  if not jnp.issubdtype(grads.dtype, jnp.floating):
    raise ValueError(f'grads must be floats, not {grads.dtype}.')


def check_ids(ids, rows, *, lengths=None, spare=False, merged=False) -> None:
  """Refuses ids that are not rows, if they are known.

  Args:
    ids: `[K]`.
    rows: number of rows of the table.
    lengths: `[B]`; ids after the last bag are not checked. None: all are.
    spare: whether `rows` itself is allowed, for an unused entry.
    merged: whether the ids must be sorted and distinct.
  """
  if isinstance(ids, jax.core.Tracer) or isinstance(lengths, jax.core.Tracer):
    return
  ids = np.asarray(ids)
  if lengths is not None:
    # Padding may hold anything.
    ids = ids[: np.asarray(lengths).sum()]
  # With `spare`, the number of rows is allowed: it marks an unused entry.
  wrong = (ids < 0) | (ids >= rows + spare)
  if wrong.any():
    raise ValueError(
      f'ids holds {ids[wrong][0]}, but the table has the rows 0 .. {rows - 1}.'
    )
  if merged and np.any((ids[1:] <= ids[:-1]) & (ids[1:] < rows)):
    raise ValueError(
      'ids must be sorted and distinct: give what merge_rows returns.'
    )


def find_repeats(ids, rows: int) -> jax.Array:
  """Whether ids that `check_ids` cannot know are not sorted and distinct.

  Args:
    ids: `[K]`; those at the end that are `rows` are unused.
    rows: number of rows of the table.

  Returns:
    A scalar.
  """
  if not isinstance(ids, jax.core.Tracer):
    return jnp.bool_(False)  # refused before
  return jnp.any((ids[1:] <= ids[:-1]) & (ids[1:] < rows))


def check_numbers(rows, first_column, count: int):
  """Checks the numbers that stochastic rounding hashes.

  Args:
    rows: `[count]` integers, or None.
    first_column: integer, or `[count]` integers.
    count: number of ids.

  Returns:
    Both as `[count]` uint32, or None where the default holds.
  """
  if rows is not None:
    rows = jnp.asarray(rows)
    if rows.shape != (count,) or rows.dtype not in (jnp.int32, jnp.uint32):
      raise ValueError(
        f'row_numbers must be uint32 or int32 [{count}] (ids has {count}), not '
        f'{rows.dtype} {rows.shape}.'
      )
    rows = rows.astype(jnp.uint32)
  # Backends take None for zeros, which saves them a vector.
  if isinstance(first_column, int) and not first_column:
    return rows, None
  first = jnp.asarray(first_column)
  if first.shape not in ((), (count,)):
    raise ValueError(
      f'first_column must be a number or [{count}], not {first.shape}.'
    )
  return rows, jnp.broadcast_to(first.astype(jnp.uint32), (count,))
