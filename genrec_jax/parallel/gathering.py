"""A parameter from its shards and back: all-gather, reduce-scatter, remat."""

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
    gather_dtype: of the parameter, on the wire and after.
    reduce_dtype: of its gradient, on the wire and while summed.
  """

  axes: tuple[str, ...]
  axis: int
  gather_dtype: str
  reduce_dtype: str


def gather_whole(x: jax.Array, wire: Wire) -> jax.Array:
  """The parameter of which every device holds the part `x`."""
  x = x.astype(wire.gather_dtype)
  dtype = x.dtype
  # As bits: some backends widen a bfloat16 collective to float32.
  bits = np.dtype(dtype).itemsize == 2
  if bits:
    x = jax.lax.bitcast_convert_type(x, jnp.uint16)
  x = jax.lax.all_gather(x, wire.axes, axis=wire.axis, tiled=True)
  if bits:
    x = jax.lax.bitcast_convert_type(x, dtype)
  return checkpoint_name(x, GATHERED)


def scatter_sum(x: jax.Array, wire: Wire) -> jax.Array:
  """This device's part of the sum of `x` over devices, in the reduce dtype."""
  return jax.lax.psum_scatter(
    x.astype(wire.reduce_dtype),
    wire.axes,
    scatter_dimension=wire.axis,
    tiled=True,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gather_again(wire: Wire, x: jax.Array) -> jax.Array:
  """`gather_whole` whose gradient is summed in the reduce dtype and "
  "scattered."""
  return gather_whole(x, wire)


def _forward(wire, x):
  return gather_whole(x, wire), jnp.zeros(0, x.dtype)


def _backward(wire, like, g):
  return (scatter_sum(g, wire).astype(like.dtype),)


gather_again.defvjp(_forward, _backward)


def regather_in_backward(f: Callable) -> Callable:
  """`f(held, *args)` that gathers again in the backward pass.

  Everything but gathered parameters is kept from the forward pass, except for
  copies and casts, which are made again.
  """

  def tied(held, *args):
    # In a loop over microbatches XLA would gather once, before the loop, and
    # keep the model through it: to it, the parameters come with the batch.
    return f(*jax.lax.optimization_barrier((held, *args)))

  return jax.checkpoint(tied, policy=_keep)


def _keep(primitive, *_, **params) -> bool:
  if primitive.name == 'name':
    return params['name'] != GATHERED
  if primitive.name == 'custom_vjp_call':
    inside = params['call_jaxpr'].jaxpr.eqns
    return not any(_is_gather(equation) for equation in inside)
  return primitive.name not in _MOVES


def _is_gather(equation) -> bool:
  return (
    equation.primitive.name == 'name' and equation.params['name'] == GATHERED
  )
