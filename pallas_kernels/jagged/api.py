"""Packed (jagged) sequences: where each token belongs, and dense views.

A jagged array is `values [T, ...]` with `lengths [B]`: the sequences follow one
another without gaps, and all padding is at the end. T, the capacity, is static;
the lengths are not. These are thin index computations which XLA fuses well, so
there is one implementation for every backend.

What takes or gives values refuses lengths that are negative, or that speak of
tokens which are not there. Where lengths are known that is an error; under jit
they are not, and the values become NaN; whole numbers, which have none, become
the least one of their dtype (the largest one if there are no negative ones,
True of booleans), as where JAX fills in what an index does not find. `offsets`,
`segment_ids` and `positions` take lengths as they are.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import integers, manual_axes


def offsets(lengths: jax.Array) -> jax.Array:
  """The number of the first token of each sequence.

  `offsets[b] = lengths[0] + ... + lengths[b - 1]`

  >>> offsets(jnp.array([2, 0, 3])).tolist()
  [0, 2, 2]

  Args:
    lengths: `[B]` integers, tokens of each sequence.

  Returns:
    `[B]` int32.
  """
  lengths = integers.to_int32('lengths', lengths)
  return jnp.cumsum(lengths, dtype=jnp.int32) - lengths


def exceed(lengths: jax.Array, capacity: int) -> jax.Array:
  """Whether lengths add up to more than a capacity, as a scalar.

  Right also where their sum does not fit into int32:

  >>> bool(exceed(jnp.array([2**31 - 1, 2]), capacity=5))
  True

  Args:
    lengths: `[B]` integers, none of them negative.
    capacity: tokens there are.
  """
  lengths = integers.to_int32('lengths', lengths)
  ends = jnp.cumsum(lengths, dtype=jnp.int32)
  # A summand that is not negative is below 2**31, so that the first sum that
  # does not fit becomes negative.
  return jnp.any((ends < 0) | (ends > capacity))


def segment_ids(lengths: jax.Array, capacity: int) -> jax.Array:
  """The number of the sequence each token belongs to.

  >>> segment_ids(jnp.array([2, 0, 3]), capacity=6).tolist()
  [0, 0, 2, 2, 2, 3]

  Args:
    lengths: `[B]` integers, tokens of each sequence.
    capacity: T, the tokens of the packed array including padding; static.

  Returns:
    `[T]` int32; B for padding tokens.
  """
  lengths = integers.to_int32('lengths', lengths)
  ends = jnp.cumsum(lengths, dtype=jnp.int32)
  tokens = jnp.arange(capacity, dtype=jnp.int32)
  ends, tokens = manual_axes.vary_alike(ends, tokens)
  # 'right' skips empty sequences, which end where the one before them does.
  return jnp.searchsorted(ends, tokens, side='right').astype(jnp.int32)


def positions(lengths: jax.Array, capacity: int) -> jax.Array:
  """The position of each token in its sequence, counted from 0.

  >>> positions(jnp.array([2, 0, 3]), capacity=6).tolist()
  [0, 1, 0, 1, 2, 0]

  Args:
    lengths: `[B]` integers, tokens of each sequence.
    capacity: T, the tokens of the packed array including padding; static.

  Returns:
    `[T]` int32; 0 for padding tokens.
  """
  start = offsets(lengths)
  segment = segment_ids(lengths, capacity)
  of_token = _take(start, segment)
  tokens = jnp.arange(capacity, dtype=jnp.int32)
  return jnp.where(segment < len(start), tokens - of_token, 0)


def to_dense(values: jax.Array, lengths: jax.Array, max_len: int) -> jax.Array:
  """Pads each packed sequence with zeros to a common length.

  >>> packed = jnp.array([1, 2, 3, 4, 5, 0])
  >>> to_dense(packed, jnp.array([2, 0, 3]), max_len=3).tolist()
  [[1, 2, 0], [0, 0, 0], [3, 4, 5]]

  Args:
    values: `[T, ...]` packed tokens.
    lengths: `[B]` integers, tokens of each sequence.
    max_len: columns of the result; static. What a longer sequence has beyond
      them is cut off.

  Returns:
    `[B, max_len, ...]`, zeros after the end of each sequence.

  Raises:
    ValueError: known lengths are negative, or more than the tokens together.
  """
  values, lengths = jnp.asarray(values), integers.to_int32('lengths', lengths)
  wrong = _find_wrong('lengths', lengths, values.shape[0])
  column = jnp.arange(max_len, dtype=jnp.int32)
  token = offsets(lengths)[:, None] + column[None, :]
  # Otherwise the columns after a sequence would read the next sequence.
  token = jnp.where(column[None, :] < lengths[:, None], token, values.shape[0])
  return _mark(wrong, _take(values, token))


def to_jagged(dense: jax.Array, lengths: jax.Array, capacity: int) -> jax.Array:
  """Packs the rows of a dense batch: the inverse of `to_dense`.

  >>> dense = jnp.array([[1, 2, 0], [0, 0, 0], [3, 4, 5]])
  >>> to_jagged(dense, jnp.array([2, 0, 3]), capacity=6).tolist()
  [1, 2, 3, 4, 5, 0]

  Args:
    dense: `[B, max_len, ...]`.
    lengths: `[B]` integers, tokens to take from each row; none above max_len.
      Under jit, tokens that a longer one would have are marked, and no others.
    capacity: T, the tokens of the result; static. What does not fit is cut off.

  Returns:
    `[T, ...]`, zeros in the padding tokens.

  Raises:
    ValueError: known lengths are negative or above max_len, or int32 does not
      hold their sum.
  """
  dense, lengths = jnp.asarray(dense), integers.to_int32('lengths', lengths)
  wrong = _find_wrong('lengths', lengths, None)
  if dense.ndim < 2 or dense.shape[0] != lengths.shape[0]:
    raise ValueError(
      f'lengths {lengths.shape} must have a number for each row of dense, '
      f'which is {dense.shape}.'
    )
  max_len = dense.shape[1]
  _refuse(
    lengths.max(initial=0) > max_len,
    f'lengths holds a number above the {max_len} columns of dense.',
  )
  segment = segment_ids(lengths, capacity)
  position = positions(lengths, capacity)
  # Rows have no tokens beyond their columns; the other rows stand where they
  # should all the same.
  wrong |= (position >= max_len) & (segment < lengths.shape[0])
  wrong = wrong.reshape(-1, *[1] * (dense.ndim - 2))
  if not dense.shape[0] or not max_len:
    out = jnp.zeros((capacity, *dense.shape[2:]), dense.dtype)
  else:
    out = dense.at[segment, position].get(mode='fill', fill_value=0)
  return _mark(wrong, out)


def last_tokens(values: jax.Array, lengths: jax.Array) -> jax.Array:
  """The last token of each sequence.

  >>> packed = jnp.array([1, 2, 3, 4, 5, 0])
  >>> last_tokens(packed, jnp.array([2, 0, 3])).tolist()
  [2, 0, 5]

  Args:
    values: `[T, ...]` packed tokens.
    lengths: `[B]` integers, tokens of each sequence.

  Returns:
    `[B, ...]`; zeros for empty sequences.

  Raises:
    ValueError: known lengths are negative, or more than the tokens together.
  """
  values, lengths = jnp.asarray(values), integers.to_int32('lengths', lengths)
  wrong = _find_wrong('lengths', lengths, values.shape[0])
  token = offsets(lengths) + lengths - 1
  # An empty sequence would read the last token of the one before it.
  token = jnp.where(lengths > 0, token, values.shape[0])
  return _mark(wrong, _take(values, token))


def _take(values: jax.Array, index: jax.Array) -> jax.Array:
  """`values[index]`; zeros beyond the end, also where there is nothing."""
  if not values.shape[0]:
    return jnp.zeros((*index.shape, *values.shape[1:]), values.dtype)
  return values.at[index].get(mode='fill', fill_value=0)


def _check_pair(left_lengths, right_lengths, prefix: int) -> None:
  """Raises unless both sides have as many sequences."""
  if left_lengths.shape != right_lengths.shape:
    raise ValueError(
      f'left_lengths {left_lengths.shape} and right_lengths '
      f'{right_lengths.shape} must speak of the same sequences.'
    )
  if prefix < 0:
    raise ValueError(f'prefix must not be negative, but is {prefix}.')


def _find_wrong(name: str, lengths: jax.Array, tokens: int | None) -> jax.Array:
  """Whether lengths are negative, or add up to more than there is.

  Args:
    name: what an error calls them.
    lengths: `[B]` int32.
    tokens: how many there are; None where any sum that fits int32 will do.
  """
  if lengths.ndim != 1:
    raise ValueError(f'{name} must be [B], not {lengths.shape}.')
  negative = lengths.min(initial=0) < 0
  _refuse(negative, f'{name} holds a negative number.')
  too_many = exceed(lengths, integers.MOST if tokens is None else tokens)
  room = 'int32 can count' if tokens is None else f'the {tokens} tokens'
  _refuse(too_many, f'{name} add up to more than {room}.')
  return negative | too_many


def _refuse(broken: jax.Array, message: str) -> None:
  """Raises where a rule is known to be broken."""
  if not isinstance(broken, jax.core.Tracer) and broken:
    raise ValueError(message)


def _mark(wrong: jax.Array, values: jax.Array) -> jax.Array:
  """The values where lengths are right; see the top of this file."""
  dtype = values.dtype
  if jnp.issubdtype(dtype, jnp.inexact):
    mark = np.nan
  elif jnp.issubdtype(dtype, jnp.signedinteger):
    mark = jnp.iinfo(dtype).min
  else:
    is_bool = jnp.issubdtype(dtype, jnp.bool_)
    mark = True if is_bool else jnp.iinfo(dtype).max
  return jnp.where(wrong, jnp.asarray(mark, dtype), values)


def concat(
  left: jax.Array,
  left_lengths: jax.Array,
  right: jax.Array,
  right_lengths: jax.Array,
  capacity: int,
  *,
  prefix: int = 0,
) -> jax.Array:
  """Each sequence of `left` followed by the same user's sequence of `right`.

  With a prefix, the first `prefix` tokens of `right` come before `left`:
  right[:prefix], left, right[prefix:]. A dense side `[B, L, ...]` is a packed
  one of equal lengths: `dense.reshape(-1, ...)`.

  >>> left, left_lengths = jnp.array([1, 2, 3]), jnp.array([2, 1])
  >>> right, right_lengths = jnp.array([10, 20, 30]), jnp.array([1, 2])
  >>> concat(left, left_lengths, right, right_lengths, capacity=7).tolist()
  [1, 2, 10, 3, 20, 30, 0]
  >>> concat(left, left_lengths, right, right_lengths, 7, prefix=1).tolist()
  [10, 1, 2, 20, 3, 30, 0]

  Args:
    left: `[T1, ...]`.
    left_lengths: `[B]`.
    right: `[T2, ...]`.
    right_lengths: `[B]`.
    capacity: tokens of the result, of lengths left_lengths + right_lengths;
      what does not fit is cut off.
    prefix: tokens of `right` that come first.

  Returns:
    `[capacity, ...]`, zeros in the padding tokens.

  Raises:
    ValueError: known lengths are negative, or those of a side are more than its
      tokens together.
  """
  left, right = jnp.asarray(left), jnp.asarray(right)
  if left.shape[1:] != right.shape[1:]:
    raise ValueError(
      f'left {left.shape} and right {right.shape} must agree after the first '
      'axis.'
    )
  left_lengths = integers.to_int32('left_lengths', left_lengths)
  right_lengths = integers.to_int32('right_lengths', right_lengths)
  wrong = _find_wrong('left_lengths', left_lengths, left.shape[0])
  wrong |= _find_wrong('right_lengths', right_lengths, right.shape[0])
  _check_pair(left_lengths, right_lengths, prefix)
  is_left, token = _sources(left_lengths, right_lengths, capacity, prefix)
  from_left = jnp.where(is_left, token, left.shape[0])
  from_right = jnp.where(is_left, right.shape[0], token)
  # Each token has one source; reading past the other side adds a zero to it.
  out = _take(left, from_left) + _take(right, from_right)
  return _mark(wrong, out)


def split(
  values: jax.Array,
  left_lengths: jax.Array,
  right_lengths: jax.Array,
  left_capacity: int,
  right_capacity: int,
  *,
  prefix: int = 0,
) -> tuple[jax.Array, jax.Array]:
  """Takes a concatenation apart again: the inverse of `concat`.

  >>> both = jnp.array([1, 2, 10, 3, 20, 30, 0])
  >>> left, right = split(both, jnp.array([2, 1]), jnp.array([1, 2]), 3, 4)
  >>> left.tolist(), right.tolist()
  ([1, 2, 3], [10, 20, 30, 0])

  Args:
    values: `[T, ...]`, as `concat` returns them.
    left_lengths: `[B]`, as given to `concat`.
    right_lengths: `[B]`, as given to `concat`.
    left_capacity: T1, tokens of the first result; static. What does not fit is
      cut off.
    right_capacity: T2, tokens of the second result; likewise.
    prefix: as given to `concat`.

  Returns:
    `[T1, ...]` and `[T2, ...]`, zeros in the padding tokens.

  Raises:
    ValueError: known lengths are negative, or those of both sides are more than
      the tokens together; what `concat` has cut off cannot be taken apart.
  """
  values = jnp.asarray(values)
  left_lengths = integers.to_int32('left_lengths', left_lengths)
  right_lengths = integers.to_int32('right_lengths', right_lengths)
  _check_pair(left_lengths, right_lengths, prefix)
  tokens = values.shape[0]
  wrong = _find_wrong('left_lengths', left_lengths, tokens)
  wrong |= _find_wrong('right_lengths', right_lengths, tokens)
  # One behind the other, so that no sum of two lengths can wrap around.
  both = exceed(jnp.concatenate([left_lengths, right_lengths]), tokens)
  _refuse(
    both,
    'left_lengths and right_lengths add up to more than the '
    f'{tokens} tokens of the values.',
  )
  wrong |= both
  is_left, token = _sources(
    left_lengths, right_lengths, values.shape[0], prefix
  )

  def take(is_on_side, capacity):
    # What belongs to the other side goes past the end, where it is dropped.
    target = jnp.where(is_on_side, token, capacity)
    empty = jnp.zeros((capacity, *values.shape[1:]), values.dtype)
    out = empty.at[target].set(values, mode='drop', unique_indices=True)
    return _mark(wrong, out)

  return take(is_left, left_capacity), take(~is_left, right_capacity)


def _sources(left_lengths, right_lengths, capacity, prefix):
  """Whether each token of the concatenation is from the left, and its number.

  The number is that of the token in the packed array it comes from.
  """
  lengths = left_lengths + right_lengths
  segment = segment_ids(lengths, capacity)
  position = positions(lengths, capacity)

  def gather_per_token(values):
    return _take(values, segment)

  # A sequence whose right side is shorter than the prefix has a shorter one.
  head = jnp.minimum(gather_per_token(right_lengths), prefix)
  left = gather_per_token(left_lengths)
  is_left = (position >= head) & (position < head + left)
  from_right = jnp.where(position < head, position, position - left)
  token = jnp.where(
    is_left,
    gather_per_token(offsets(left_lengths)) + position - head,
    gather_per_token(offsets(right_lengths)) + from_right,
  )
  # Padding gets a number beyond both sides, so that nobody reads or writes it.
  beyond = jnp.iinfo(jnp.int32).max
  real = segment < lengths.shape[0]
  return is_left & real, jnp.where(real, token, beyond).astype(jnp.int32)
