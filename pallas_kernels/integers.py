"""Integers of callers as int32, of which JAX would cut bits off in silence."""

import jax
import jax.numpy as jnp
import numpy as np

MOST = np.iinfo(np.int32).max


def to_int32(name: str, x, clip: bool = False) -> jax.Array:
  """`x` as int32.

  What does not fit raises an error. Where numbers are not known, under jit, it
  becomes -1, which is no row, no length and no group; or the nearest number.

  >>> to_int32('ids', [3, 4]).dtype, to_int32('ids', []).dtype
  (dtype('int32'), dtype('int32'))

  Args:
    name: what an error calls it.
    x: integers; an empty list is some, too.
    clip: whether unknown numbers that do not fit become the nearest that does.

  Raises:
    ValueError: they are no integers, or one does not fit.
  """
  if not hasattr(x, 'dtype'):
    x = np.asarray(x)
    x = x if x.size else x.astype(np.int32)
  if not jnp.issubdtype(x.dtype, jnp.integer):
    raise ValueError(f'{name} must be integers, not {x.dtype} {x.shape}.')
  if jnp.iinfo(x.dtype).max <= MOST:
    return jnp.asarray(x, jnp.int32)
  if isinstance(x, jax.core.Tracer):
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    low = x.dtype.type(-MOST if signed else 0)
    if clip:
      return jnp.clip(x, low, x.dtype.type(MOST)).astype(jnp.int32)
    fits = (x <= x.dtype.type(MOST)) & (x >= low)
    return jnp.where(fits, x.astype(jnp.int32), jnp.int32(-1))
  x = np.asarray(x)
  if x.size and (x.max() > MOST or x.min() < -MOST):
    raise ValueError(f'{name} holds a number above {MOST}.')
  return jnp.asarray(x.astype(np.int32))


def to_seed(name: str, x) -> jax.Array:
  """A seed as a uint32 scalar: its low 32 bits.

  >>> int(to_seed('seed', 7)), int(to_seed('seed', 2**32 + 5))
  (7, 5)

  Args:
    name: what an error calls it.
    x: an integer.

  Raises:
    ValueError: it is none, but a key of `jax.random`, say.
  """
  if isinstance(x, int | np.integer):
    return jnp.uint32(int(x) % 2**32)
  dtype = getattr(x, 'dtype', None)
  is_integer = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
  if not is_integer or np.size(x) != 1:
    raise ValueError(
      f'{name} must be an integer, not {getattr(x, "shape", "")} '
      f'{dtype or type(x).__name__}: jax.random.bits(key) is one of a key.'
    )
  return jnp.asarray(x).reshape(()).astype(jnp.uint32)
