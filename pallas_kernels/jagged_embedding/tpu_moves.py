"""What XLA prepares for the updates of the TPU kernel, and puts away after.

The kernel copies rows of the table and slots of elements by itself. A slot with
one number a row is 4 bytes of a row, less than a copy can be, so XLA gathers
these numbers and scatters the new ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding import rules, spec
from pallas_kernels.jagged_embedding.settings import Settings, numbers_of_rows
from pallas_kernels.jagged_embedding.spec import RoundingChance
from pallas_kernels.jagged_embedding.tpu_lists import SEGMENTS, Places
from pallas_kernels.jagged_embedding.tpu_updates import Moves


class Preparation(NamedTuple):
  """An update but for its gradients.

  Attributes:
    moves: what the kernel is compiled for.
    scalars: as in `tpu_updates.move_rows`.
    vectors: likewise.
    at: `[P]` int32, the row of each place; the number of rows where none is.
    counts: `[P]` float32 new counts of rows, None without `row_count`.
  """

  moves: Moves
  scalars: jax.Array
  vectors: jax.Array | None
  at: jax.Array
  counts: jax.Array | None


def prepare(
  settings: Settings,
  chance: RoundingChance | None,
  rows: int,
  slots: tuple[jax.Array, ...],
  places: Places,
  order: jax.Array | None,
) -> Preparation:
  """Lays out what is given for ids, and for rows, by places.

  Args:
    settings: of the update.
    chance: as in `spec`.
    rows: rows of the table.
    slots: as in `spec`.
    places: the rows that move.
    order: `[K]`, the ids in the order of `places.place`; None for their own.
  """
  rule, planes = settings.rule, places.rows.shape[1]
  listed = places.rows.reshape(-1)
  at = jnp.where(listed < 0, rows, listed)

  def place(of_ids):  # from one value for each id to one for each place
    of_ids = of_ids if order is None else of_ids[order]
    zeros = jnp.zeros(listed.shape, of_ids.dtype)
    return zeros.at[places.place].set(of_ids, mode='drop')

  scalars = settings.scalars
  if settings.groups is not None:
    settings = settings._replace(groups=place(settings.groups))
    scalars = jnp.zeros(3, jnp.float32)  # each row has its own
  numbers, counts = numbers_of_rows(settings), None
  kinds = spec.slot_kinds(rule)
  seen = [kinds[name] for name in spec.slot_arrays(rule)]
  if rule.row_count:
    # The rule sees two corrections a row in place of the count, the last slot.
    seen.pop()
    counts = slots[-1].at[at].get(mode='fill', fill_value=0) + 1
    numbers = _correct(settings, numbers, counts)
  vectors = {}
  if planes > 1:
    vectors['row'] = listed
  if chance is not None and chance.rows is not None:
    vectors['number'] = place(chance.rows)
  if chance is not None and chance.first_columns is not None:
    vectors['column'] = place(chance.first_columns)
  found = []
  for i, (name, number) in enumerate(numbers._asdict().items()):
    if isinstance(number, float):
      found.append(number)
    elif number.ndim:
      vectors[name] = number[:, 0]
      found.append(name)
    else:
      found.append(i)  # the scalars are the first fields
  for i, kind in enumerate(seen):
    if kind == 'row':
      vectors[f'slot{i}'] = slots[i].at[at].get(mode='fill', fill_value=0)
  moves = Moves(
    rule.optimizer,
    tuple(found),
    tuple(seen),
    tuple(vectors),
    planes,
    chance is not None,
  )
  seed = jnp.uint32(0) if chance is None else chance.seed
  scalars = jnp.concatenate([_bits(scalars), _bits(seed).reshape(1)])
  stacked = None
  if vectors:
    stacked = jnp.stack([_bits(x) for x in vectors.values()])
    stacked = stacked.reshape(len(vectors), -1, planes, SEGMENTS)
    stacked = stacked.swapaxes(0, 1).reshape(
      -1, len(vectors) * planes, SEGMENTS
    )
  return Preparation(moves, scalars, stacked, at, counts)


def _correct(settings: Settings, numbers, counts):
  """The numbers with corrections by the counts of rows."""
  correct = rules.corrections(settings.rule, counts)
  for group, rule in enumerate(settings.rules[1:], 1):
    mine = settings.groups == group
    correct = tuple(
      jnp.where(mine, new, old)
      for new, old in zip(rules.corrections(rule, counts), correct)
    )
  return numbers._replace(
    correct1=correct[0][:, None], correct2=correct[1][:, None]
  )


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def put_back(
  preparation: Preparation, slots, elements, values
) -> tuple[jax.Array, ...]:
  """The slots after an update.

  Args:
    preparation: of the update.
    slots: before it.
    elements: new slots of elements.
    values: new slots of rows by place, as `tpu_updates.move_rows` has them.
  """
  moves, new = preparation.moves, list(slots)
  for i, slot in zip(moves.copied_slots, elements, strict=True):
    new[i] = slot

  def write(i, values):
    new[i] = (
      slots[i].at[preparation.at].set(values, mode='drop', unique_indices=True)
    )

  if moves.row_slots:
    count = len(moves.row_slots)
    values = values.reshape(-1, count, moves.planes, SEGMENTS).swapaxes(0, 1)
    for i, of_places in zip(moves.row_slots, values, strict=True):
      write(i, of_places.reshape(-1))
  if preparation.counts is not None:
    write(len(slots) - 1, preparation.counts)
  return tuple(new)
