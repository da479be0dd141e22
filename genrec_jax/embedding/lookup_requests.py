"""What a step of somebody's own reads of a table: ids, maybe in bags."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding import lookup as lookup_lib
from genrec_jax.features import POOLINGS, Read


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lookup:
  """What is read of a table, where that is more than the row of each id.

  >>> Lookup(np.array([[3, 4], [5, 0]]), 'item', pooling='mean').table
  'item'

  Attributes:
    ids: `[B, ...]` integers; `[B, L]` where the rows are pooled.
    table: name of the table; '' for the one of the feature's own name.
    pooling: 'none' gives `[B, ..., D]`, the row of each id. 'sum' and 'mean'
      give `[B, D]`, of the L rows of each example.
    lengths: `[B]`, how many of the L ids of each example count, from the first
      on; None for all. An example without any gives zeros. For pooling alone.
    weights: `[B, L]` factors of the rows, constants to the gradient. For
      pooling alone.
  """

  ids: jax.Array
  table: str = dataclasses.field(default='', metadata=dict(static=True))
  pooling: str = dataclasses.field(default='none', metadata=dict(static=True))
  lengths: jax.Array | None = None
  weights: jax.Array | None = None


def check_lookup(feature: str, request: Lookup, shards: int) -> None:
  """Refuses shapes and settings that do not go together."""
  shape = request.ids.shape
  if not jnp.issubdtype(request.ids.dtype, jnp.integer):
    raise ValueError(
      f'the ids of feature {feature!r} are of type {request.ids.dtype}, must '
      'be integers'
    )
  if not shape or shape[0] % shards:
    raise ValueError(
      f'feature {feature!r} has ids of shape {shape}; the first axis is the '
      f'batch and must be a multiple of the {shards} devices'
    )
  if request.pooling not in POOLINGS:
    raise ValueError(
      f'pooling of feature {feature!r} is {request.pooling!r}, must be one of '
      f'{POOLINGS}'
    )
  if request.pooling == 'none':
    if request.lengths is not None or request.weights is not None:
      raise ValueError(
        f'feature {feature!r} has lengths or weights, which pooled lookups '
        "apply; set pooling to 'sum' or 'mean'"
      )
    return
  if len(shape) != 2:
    raise ValueError(
      f'feature {feature!r} is pooled and has ids of shape {shape}, must be '
      '[B, L]'
    )
  for name, value, wanted in (
    ('lengths', request.lengths, shape[:1]),
    ('weights', request.weights, shape),
  ):
    if value is not None and value.shape != wanted:
      raise ValueError(
        f'the {name} of feature {feature!r} are of shape {value.shape}, must '
        f'be {wanted}, as its ids say'
      )


def in_32_bits(ids):
  """Ids as int32; those that need more bits are no row, and become -1."""
  if not isinstance(ids, jax.Array):
    ids = np.asarray(ids)  # which JAX would cut short without a word
  if ids.dtype == np.int32 or not jnp.issubdtype(ids.dtype, jnp.integer):
    return ids
  xp = np if isinstance(ids, np.ndarray) else jnp
  most = np.iinfo(np.int32).max
  if np.iinfo(ids.dtype).max <= most:
    return ids.astype(np.int32)
  fits = (ids >= 0) & (ids <= most)
  return xp.where(fits, ids, 0).astype(np.int32) - (~fits).astype(np.int32)


def reads_of(lookups: Mapping[str, Lookup]) -> dict[str, Read]:
  """The lookups of one device as the tables understand them."""
  reads = {}
  for feature, request in lookups.items():
    if request.pooling == 'none':
      reads[feature] = Read(request.ids, request.table)
      continue
    count, most = request.ids.shape
    lengths = request.lengths
    if lengths is None:
      lengths = jnp.full(count, most, jnp.int32)
    # Each example is a part with one bag; packing puts bag behind bag and the
    # ids that do not count behind the last one.
    weights = request.weights
    reads[feature] = lookup_lib.pack_bags(
      Read(
        request.ids,
        request.table,
        jnp.clip(lengths.astype(jnp.int32), 0, most)[:, None],
        None if weights is None else weights.astype(jnp.float32),
        request.pooling,
      )
    )
  return reads
