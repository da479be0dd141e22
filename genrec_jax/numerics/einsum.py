"""Axes of products of two operands, and products of numbers of few bits."""

import functools

import jax
import jax.numpy as jnp


def split_spec(spec: str) -> tuple[str, str, str]:
  """Axes of the activations, of the weight and of the result.

  An axis that both operands have and the result has not is summed over.

  >>> split_spec('bi,io->bo')
  ('bi', 'io', 'bo')
  """
  operands, _, out = spec.partition('->')
  left, _, right = operands.partition(',')
  return left, right, out


def multiply_as_bfloat16(
  spec: str, left: jax.Array, right: jax.Array
) -> jax.Array:
  """The product of numbers that bfloat16 has, summed in float32.

  >>> multiply_as_bfloat16('i,i->', jnp.ones(3), jnp.ones(3)).tolist()
  3.0

  Args:
    spec: axes, as in `jnp.einsum`.
    left: values that a conversion to bfloat16 leaves as they are.
    right: likewise.
  """

  def multiply_as(dtype, left, right):
    left, right = left.astype(dtype), right.astype(dtype)
    return jnp.einsum(spec, left, right, preferred_element_type=jnp.float32)

  # The product of two bfloat16 numbers is a float32 number, so that both are
  # the same; XLA has not every product of bfloat16 matrices on a CPU.
  return jax.lax.platform_dependent(
    left,
    right,
    cpu=functools.partial(multiply_as, jnp.float32),
    default=functools.partial(multiply_as, jnp.bfloat16),
  )


def multiply_as_float32(
  spec: str, left: jax.Array, right: jax.Array
) -> jax.Array:
  """The product of float32 numbers, with all their digits on every device.

  >>> multiply_as_float32('i,i->', jnp.ones(3), jnp.ones(3)).tolist()
  3.0

  Args:
    spec: axes, as in `jnp.einsum`.
    left: one operand.
    right: the other.
  """
  left, right = left.astype(jnp.float32), right.astype(jnp.float32)
  return jnp.einsum(spec, left, right, precision=jax.lax.Precision.HIGHEST)
