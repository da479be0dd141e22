"""What a step of somebody's own reads of a table: ids, maybe in bags."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding import lookup as lookup_lib
from genrec_jax.features import POOLINGS, Read

_MOST = np.iinfo(np.int32).max


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lookup:
  """What is read of a table, where that is more than the row of each id.

  The mean of two rows of one example, and of one row of the other:

  >>> from genrec_jax import EmbeddingTable, ShardedEmbedding
  >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
  >>> state = emb.init(jax.random.key(0))
  >>> ids = np.tile([[3, 4], [5, 0]], (4, 1))
  >>> seen = Lookup(ids, 'item', pooling='mean', lengths=np.tile([2, 1], 4))
  >>> rows = emb.lookup(state, {'seen': seen})['seen']
  >>> table = emb.table(state, 'item')
  >>> rows.shape, np.allclose(rows[:2], [(table[3] + table[4]) / 2, table[5]])
  ((8, 4), True)

  Attributes:
    ids: `[B, ...]` integers; `[B, L]` where the rows are pooled.
    table: name of the table; '' for the one of the feature's own name.
    pooling: 'none' gives `[B, ..., D]`, the row of each id. 'sum' and 'mean'
      give `[B, D]`, of the L rows of each example.
    lengths: `[B]`, how many of the L ids of each example count, from the first
      on; None for all, and what is more than L stands for all. An example
      without any gives zeros. For pooling alone.
    weights: `[B, L]` factors of the rows, constants to the gradient. For
      pooling alone.
  """

  ids: jax.Array
  table: str = dataclasses.field(default='', metadata=dict(static=True))
  pooling: str = dataclasses.field(default='none', metadata=dict(static=True))
  lengths: jax.Array | None = None
  weights: jax.Array | None = None


def convert_lookup(feature: str, request: Lookup, shards: int) -> Lookup:
  """A lookup as arrays of JAX with 32 bits.

  Args:
    feature: its name, for errors.
    request: what somebody has given.
    shards: number of devices.

  Returns:
    The same, with `ids` and `lengths` as int32 and `weights` as float32.

  Raises:
    ValueError: types, shapes or settings that do not go together.
  """
  ids = _read_array(feature, 'ids', request.ids, np.integer)
  lengths, weights = request.lengths, request.weights
  if lengths is not None:
    lengths = _read_array(feature, 'lengths', lengths, np.integer)
    lengths = jnp.asarray(_in_32_bits(lengths, too_large=_MOST))
  if weights is not None:
    weights = _read_array(
      feature, 'weights', weights, np.floating, np.integer, np.bool_
    )
    weights = jnp.asarray(weights, np.float32)
  # No row has the number -1.
  ids = jnp.asarray(_in_32_bits(ids, too_large=-1))
  request = dataclasses.replace(
    request, ids=ids, lengths=lengths, weights=weights
  )
  _check_lookup(feature, request, shards)
  if request.pooling != 'none' and not len(ids):  # no bag to make sums of
    return Lookup(jnp.zeros(0, jnp.int32), request.table)
  return request


def _read_array(feature: str, name: str, value, *kinds: type):
  """An array of NumPy or JAX, of numbers of some kind."""
  try:
    if not isinstance(value, jax.Array):
      value = np.asarray(value)  # JAX would cut off the upper 32 bits
  except ValueError as e:
    raise ValueError(
      f'the {name} of feature {feature!r} do not form an array; pad all rows '
      f'to the same length: {e}'
    ) from None
  # To NumPy, durations ('m') are integers.
  if value.dtype.kind == 'm' or not any(
    jnp.issubdtype(value.dtype, kind) for kind in kinds
  ):
    raise ValueError(
      f'the {name} of feature {feature!r} are of type {value.dtype}, must be '
      f'{"integers" if kinds == (np.integer,) else "real numbers"}'
    )
  return value


def _check_lookup(feature: str, request: Lookup, shards: int) -> None:
  """Refuses shapes and settings that do not go together."""
  shape = request.ids.shape
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


def _in_32_bits(array, too_large: int):
  """Integers as int32, where none is cut off: negative ones become -1."""
  if jnp.iinfo(array.dtype).max <= _MOST:
    return array.astype(np.int32)
  xp = np if isinstance(array, np.ndarray) else jnp
  fits = (array >= 0) & (array <= _MOST)
  small = xp.where(fits, array, 0).astype(np.int32)
  other = xp.where(array < 0, np.int32(-1), np.int32(too_large))
  return xp.where(fits, small, other)


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
    reads[feature] = lookup_lib.pack_bags(
      Read(
        request.ids,
        request.table,
        jnp.clip(lengths, 0, most)[:, None],
        request.weights,
        request.pooling,
      )
    )
  return reads
