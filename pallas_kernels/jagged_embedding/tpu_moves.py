"""What XLA prepares for the updates of the TPU kernel: numbers of each row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding import spec
from pallas_kernels.jagged_embedding.settings import Settings, numbers_of_rows
from pallas_kernels.jagged_embedding.spec import RoundingChance
from pallas_kernels.jagged_embedding.tpu_lists import SEGMENTS, Places
from pallas_kernels.jagged_embedding.tpu_updates import Moves


class Preparation(NamedTuple):
  """An update but for its gradients and what it moves.

  Attributes:
    moves: what the kernel is compiled for.
    scalars: as in `tpu_updates.move_rows`.
    vectors: likewise.
  """

  moves: Moves
  scalars: jax.Array
  vectors: jax.Array | None


def prepare(
  settings: Settings,
  chance: RoundingChance | None,
  places: Places,
  order: jax.Array | None,
) -> Preparation:
  """Lays out what is given for ids by places.

  Args:
    settings: of the update.
    chance: as in `spec`.
    places: the rows that move.
    order: `[K]`, the ids in the order of `places.place`; None for their own.
  """
  rule, planes = settings.rule, places.rows.shape[1]
  listed = places.rows.reshape(-1)

  def place(of_ids):  # from one value for each id to one for each place
    of_ids = of_ids if order is None else of_ids[order]
    zeros = jnp.zeros(listed.shape, of_ids.dtype)
    return zeros.at[places.place].set(of_ids, mode='drop')

  scalars = settings.scalars
  if settings.groups is not None:
    settings = settings._replace(groups=place(settings.groups))
    scalars = jnp.zeros(3, jnp.float32)  # each row has its own
  numbers, kinds = numbers_of_rows(settings), spec.slot_kinds(rule)
  if rule.row_count:  # the kernel makes corrections from the counts
    numbers = numbers._replace(correct1=1.0, correct2=1.0)
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
  moves = Moves(
    rule.optimizer,
    tuple(found),
    tuple(kinds[name] for name in spec.slot_arrays(rule)),
    rule.row_count,
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
  return Preparation(moves, scalars, stacked)


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)
