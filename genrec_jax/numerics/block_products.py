"""Products of activations with weights whose operands have few bits.

Each product of a linear layer rounds both of its operands along the axis that
it sums over: the forward product, the one that gives the gradient of the
activations, and the one that gives that of the weights. These are three axes,
and what was rounded along one of them is of no use for another, so the backward
pass starts again from operands that nothing has rounded. Sums are in float32,
weights and optimizers too (arXiv 2302.08007 and 2310.10537 train in this way).

Where no device multiplies such numbers, they are multiplied as bfloat16, which
has each number of a block, or as float32 where their scales are not powers of
two (`integer_formats`): what comes out is what a device with these numbers
would give, but for the order of sums. Nothing becomes faster.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from genrec_jax.numerics import blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS, BlockFormat
from genrec_jax.numerics.einsum import (
  multiply_as_bfloat16,
  multiply_as_float32,
  split_spec,
)
from genrec_jax.numerics.integer_formats import (
  INTEGER_FORMATS,
  IntegerFormat,
  round_to_integers,
)
from pallas_kernels.hashing import mix

Format = BlockFormat | IntegerFormat


def round_to_blocks(
  x: jax.Array,
  number_format: Format,
  axis: int = -1,
  rounding: str = 'even',
) -> jax.Array:
  """The numbers of a format that are nearest, with the gradient of x itself.

  >>> from genrec_jax.numerics.block_formats import BLOCK_FORMATS
  >>> x = jnp.array([6.0, 5.0, 2.5, 0.25, -1.75])
  >>> round_to_blocks(x, BLOCK_FORMATS['mxfp4_e2m1']).tolist()
  [6.0, 4.0, 2.0, 0.0, -2.0]

  Args:
    x: floats of at most 32 bits.
    number_format: of blocks, or of whole numbers under a scale.
    axis: along which numbers share a scale.
    rounding: 'even', 'away', 'down' or 'stochastic', see `blocks.encode`; of
      whole numbers only 'even'. Chance is that of `draw_bits`.

  Returns:
    Of the dtype of x; NaN in a block with one, or with an infinity.
  """
  blocks.check_floats(x, number_format.name)
  if isinstance(number_format, IntegerFormat) and rounding != 'even':
    raise ValueError(
      f"rounding is {rounding!r}, and {number_format.name} has only 'even'"
    )
  return _round(x, number_format, blocks.check_axis(axis, x), rounding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _round(x, number_format, axis, rounding):
  if isinstance(number_format, IntegerFormat):
    return round_to_integers(x, number_format, axis, jnp).astype(x.dtype)
  encoded = blocks.encode(
    x,
    number_format,
    axis,
    rounding=rounding,
    random=draw_bits(x) if rounding == 'stochastic' else None,
    xp=jnp,
  )
  return blocks.decode(encoded, number_format, axis, x.dtype, jnp)


# Rounding is flat nearly everywhere. Left to autodiff, the gradient would be
# zero, or be rounded itself where it passes a cast.
_round.defvjp(
  lambda x, *args: (_round(x, *args), None), lambda *args: args[-1:]
)


def draw_bits(x: jax.Array) -> jax.Array:
  """Random bits for numbers: a hash of the numbers themselves.

  Of a number, of its column, and of the bits of its whole row added up. So they
  are others in each step and for each example, and the same on every mesh that
  keeps rows whole, without a seed that every product would have to be handed.
  Rows that are equal to the last bit are rounded alike.

  >>> x = jnp.array([[1.0, 1.0], [1.0, 2.0]])
  >>> len({int(bits) for bits in draw_bits(x).ravel()})
  4

  Args:
    x: floats of at most 32 bits.

  Returns:
    uint32 in the shape of x.
  """
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
  # Whole numbers that wrap around add up to the same in every order.
  row = bits.sum(axis=-1, keepdims=True, dtype=jnp.uint32)
  column = jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)
  return mix(mix(bits + mix(row)) + column * jnp.uint32(0x9E3779B9))


@dataclasses.dataclass(frozen=True)
class BlockProduct:
  """A product whose operands are rounded; see `numerics.products.Product`.

  >>> mx9 = BlockProduct.of('mx9')
  >>> mx9(jnp.ones((2, 64)), jnp.ones((64, 3)), spec='bi,io->bo').tolist()[0]
  [64.0, 64.0, 64.0]

  Attributes:
    activations: format of what is multiplied with weights.
    weights: theirs.
    gradients: of what comes back from the layer above; None leaves all of the
      backward pass as it is.
    rounding: see `round_to_blocks`.
    gradient_rounding: that of `gradients`; '' is `rounding`.
  """

  activations: Format
  weights: Format
  gradients: Format | None
  rounding: str = 'even'
  gradient_rounding: str = ''
  few_bits = True  # see policy.py

  @classmethod
  def of(cls, name: str, rounding: str = 'even') -> 'BlockProduct':
    """All operands in one format."""
    known = BLOCK_FORMATS | INTEGER_FORMATS
    if name not in known:
      raise ValueError(
        f'there is no format {name!r} of products; there are {", ".join(known)}'
      )
    one = known[name]
    return cls(one, one, one, rounding)

  def __call__(
    self, x: jax.Array, w: jax.Array, *, spec: str, site: str = ''
  ) -> jax.Array:
    return _multiply(x, w, self, spec)

  def round_and_multiply(
    self, spec: str, left, right, formats, gradient: int | None = None
  ) -> jax.Array:
    """The product of two rounded operands, in float32.

    Args:
      spec: axes of both and of the result.
      left: the one.
      right: the other.
      formats: of the one and the other.
      gradient: which of both came back from above, 0 or 1; None for neither.
    """
    axes = left_axes, right_axes, out = split_spec(spec)
    summed = [a for a in left_axes if a in right_axes and a not in out]
    rounded, multiply = [], multiply_as_bfloat16
    for i, operand in enumerate((left, right)):
      own, number_format = axes[i], formats[i]
      # Nothing is summed in an outer product: any axis is as good.
      axis = own.index(summed[-1]) if summed else len(own) - 1
      if isinstance(number_format, IntegerFormat):
        # Before it is rounded: bfloat16 has not every multiple of a step.
        operand, multiply = operand.astype(jnp.float32), multiply_as_float32
      rounding = self.rounding
      if i == gradient:
        rounding = self.gradient_rounding or rounding
      rounded.append(round_to_blocks(operand, number_format, axis, rounding))
    return multiply(spec, *rounded)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _multiply(x, w, product, spec):
  formats = product.activations, product.weights
  return product.round_and_multiply(spec, x, w, formats).astype(x.dtype)


def _forward(x, w, product, spec):
  return _multiply(x, w, product, spec), (x, w)


def _backward(product, spec, saved, dy):
  x, w = saved
  left, right, out = split_spec(spec)
  of_x, of_w = f'{out},{right}->{left}', f'{left},{out}->{right}'
  if product.gradients is None:
    multiply = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    dx, dw = multiply(of_x, dy, w.astype(dy.dtype)), multiply(of_w, x, dy)
  else:
    dx = product.round_and_multiply(
      of_x, dy, w, (product.gradients, product.weights), gradient=0
    )
    dw = product.round_and_multiply(
      of_w, x, dy, (product.activations, product.gradients), gradient=1
    )
  return dx.astype(x.dtype), dw.astype(w.dtype)


_multiply.defvjp(_forward, _backward)


def _name_recipes() -> dict[str, BlockProduct]:
  """Those that a policy can name."""
  names = [*BLOCK_FORMATS, *INTEGER_FORMATS]
  found = {name: BlockProduct.of(name) for name in names}
  # Only the forward pass, as an evaluation would have it.
  found |= {
    f'{name}_forward': dataclasses.replace(recipe, gradients=None)
    for name, recipe in found.items()
  }
  # What is small in a gradient is often of one sign: rounded to the nearest it
  # would be lost, by chance it counts on average.
  found |= {
    f'{name}_stochastic': dataclasses.replace(
      found[name], gradient_rounding='stochastic'
    )
    for name in BLOCK_FORMATS
  }
  # Of the standard's authors: weights in 4 bits, the rest in 6.
  narrow, wide = BLOCK_FORMATS['mxfp4_e2m1'], BLOCK_FORMATS['mxfp6_e3m2']
  found['mxfp4_mxfp6'] = BlockProduct(wide, narrow, wide)
  return found


RECIPES: dict[str, BlockProduct] = _name_recipes()
