"""Gathers parameters from shards, scatters gradients, and gathers again."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

GATHERED = 'gathered'

# What only moves or casts numbers. A cast or transposed copy of a gathered
# parameter, kept for the backward pass, would be the parameter kept.
_MOVES = frozenset(
  (
    'all_gather',
    'bitcast_convert_type',
    'broadcast_in_dim',
    'concatenate',
    'convert_element_type',
    'reshape',
    'slice',
    'split',
    'squeeze',
    'transpose',
  )
)


@dataclasses.dataclass(frozen=True)
class Wire:
  """How a parameter travels.

  Attributes:
    axes: mesh axes over which it is cut.
    axis: the dimension that is cut.
    gather_dtype: dtype of the parameter on the wire and when gathered.
    reduce_dtype: dtype of its gradient on the wire and in the sum.
  """

  axes: tuple[str, ...]
  axis: int
  gather_dtype: str
  reduce_dtype: str


def gather_whole(x: jax.Array, wire: Wire) -> jax.Array:
  """Gathers the parameter of which every device holds the part `x`."""
  x = x.astype(wire.gather_dtype)
  dtype = x.dtype
  # As bits: some backends widen a bfloat16 collective to float32.
  bits = np.dtype(dtype).itemsize == 2
  if bits:
    x = jax.lax.bitcast_convert_type(x, jnp.uint16)
  x = jax.lax.all_gather(x, wire.axes, axis=wire.axis, tiled=True)
  if bits:
    x = jax.lax.bitcast_convert_type(x, dtype)
  # The name by which `_keeps_residual` knows what not to keep.
  return checkpoint_name(x, GATHERED)


def scatter_sum(x: jax.Array, wire: Wire) -> jax.Array:
  """This device's part of the sum over devices, in the reduce dtype."""
  return jax.lax.psum_scatter(
    x.astype(wire.reduce_dtype),
    wire.axes,
    scatter_dimension=wire.axis,
    tiled=True,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gather_again(wire: Wire, x: jax.Array) -> jax.Array:
  """`gather_whole`, with a gradient that is summed in the reduce dtype.

  The gradient is scattered, so that each device gets that of its part.
  """
  return gather_whole(x, wire)


def _gather_forward(wire, x):
  # An empty array remembers the dtype without keeping the parameter.
  return gather_whole(x, wire), jnp.zeros(0, x.dtype)


def _scatter_backward(wire, like, g):
  return (scatter_sum(g, wire).astype(like.dtype),)


gather_again.defvjp(_gather_forward, _scatter_backward)


def regather_in_backward(f: Callable) -> Callable:
  """Makes `f(held, *args)` gather parameters again in the backward pass.

  Everything else is kept from the forward pass, except for copies and casts,
  which are made again.
  """

  def tie_to_gathered(held, *args):
    # In a loop over microbatches XLA would gather once, before the loop, and
    # keep the model through it: to it, the parameters come with the batch.
    return f(*jax.lax.optimization_barrier((held, *args)))

  return jax.checkpoint(tie_to_gathered, policy=_keeps_residual)


def _keeps_residual(primitive, *_, **params) -> bool:
  # Names given by the model are kept as it wants.
  if primitive.name == 'name':
    return params['name'] != GATHERED
  if primitive.name == 'custom_vjp_call':
    # `gather_again` is such a call; what it returns is a gathered parameter.
    inside = params['call_jaxpr'].jaxpr.eqns
    return not any(_is_gather(equation) for equation in inside)
  return primitive.name not in _MOVES


def _is_gather(equation) -> bool:
  return (
    equation.primitive.name == 'name' and equation.params['name'] == GATHERED
  )
