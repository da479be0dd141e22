"""Small layers that the models share. All take packed tokens `[T, ...]`."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.numerics import products
from pallas_kernels.hashing import keep_mask, offset_seed

truncated_normal = jax.nn.initializers.truncated_normal
xavier_normal = jax.nn.initializers.glorot_normal()
xavier_uniform = jax.nn.initializers.glorot_uniform()
normal = jax.nn.initializers.normal
zeros = jax.nn.initializers.zeros


def fan_in_uniform(fan_in: int):
  """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): the published models' bias init."""
  bound = fan_in**-0.5

  def init_uniform(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init_uniform


def optional_param(
  wanted: bool, init, rngs: nnx.Rngs, shape: Sequence[int]
) -> nnx.Param | None:
  """A parameter, or None, for which no key is drawn."""
  return nnx.Param(init(rngs.params(), shape)) if wanted else None


class Linear(nnx.Module):
  """x W (+ b), parameters in float32, arithmetic in the dtype of x."""

  kernel_site = products.Site()

  def __init__(
    self,
    dim_in: int,
    dim_out: int,
    *,
    kernel_init=xavier_uniform,
    bias_init=zeros,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    self.kernel = nnx.Param(kernel_init(rngs.params(), (dim_in, dim_out)))
    self.bias = optional_param(use_bias, bias_init, rngs, (dim_out,))

  def __call__(self, x: jax.Array) -> jax.Array:
    y = self.multiply(x)
    if self.bias is not None:
      y += self.bias[...].astype(x.dtype)[None]
    return y

  def multiply(self, x: jax.Array) -> jax.Array:
    """x W, without the bias."""
    return products.dot(x, self.kernel[...], site=self.kernel_site)


class LayerNorm(nnx.Module):
  """Layer norm over the last axis, statistics in float32.

  Args:
    dim: width, needed for the affine form alone.
    eps: added to the variance.
    affine: whether a learned scale and shift follow.
  """

  def __init__(self, dim: int, *, eps: float = 1e-6, affine: bool = False):
    self.eps = eps
    self.scale = nnx.Param(jnp.ones(dim)) if affine else None
    self.shift = nnx.Param(jnp.zeros(dim)) if affine else None

  def __call__(self, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + self.eps)
    if self.scale is not None:
      y = y * self.scale[...][None] + self.shift[...][None]
    return y.astype(x.dtype)


class HeadNorm(nnx.Module):
  """Layer norm of each head by itself, one learned scale and shift a head.

  Args:
    heads: into which the last axis is divided.
    eps: added to the variance.
  """

  def __init__(self, heads: int, *, eps: float = 1e-6):
    self.heads, self.norm = heads, LayerNorm(0, eps=eps)
    self.scale = nnx.Param(jnp.ones(heads))
    self.shift = nnx.Param(jnp.zeros(heads))

  def __call__(self, x: jax.Array) -> jax.Array:
    heads = x.astype(jnp.float32).reshape(*x.shape[:-1], self.heads, -1)
    scale, shift = (
      self.scale[...][None, :, None],
      self.shift[...][None, :, None],
    )
    return (self.norm(heads) * scale + shift).reshape(x.shape).astype(x.dtype)


def stack_blocks(model: nnx.Module, block, config, rngs: nnx.Rngs) -> None:
  """Gives `model` the attributes layer_0, layer_1, ... of `config.blocks`.

  Named attributes rather than a list keep the parameters a nested dict with
  string keys, which checkpoints and regex rules can name.
  """
  for i in range(config.blocks):
    setattr(model, f'layer_{i}', block(config, rngs))


def maybe_remat(layer, remat: bool):
  """A layer whose activations are computed anew for the backward pass."""
  return jax.checkpoint(layer) if remat else layer


def apply_dropout(
  x: jax.Array,
  rate: float,
  key: jax.Array | None,
  first: jax.Array | None = None,
  numbers: jax.Array | None = None,
) -> jax.Array:
  """Drops with probability `rate`; the identity without a key.

  What is dropped is a hash of the key and the place, which XLA fuses into what
  stands around it: no random bits are made, stored or read.

  Args:
    x: `[T, ...]` tokens.
    rate: probability.
    key: random key, or None.
    first: `[1]` number of the first token, `Jagged.first`.
    numbers: `[T]` number of each token of `[T, D]`, where they do not follow
      one another.
  """
  if key is None or rate == 0.0:
    return x
  width = x.shape[-1]
  row = jnp.arange(x.size // width, dtype=jnp.uint32)[:, None]
  if first is not None:
    row += (first * (row.shape[0] // x.shape[0])).astype(jnp.uint32)[:, None]
  if numbers is not None:
    row = numbers.astype(jnp.uint32)[:, None]
  column = jnp.arange(width, dtype=jnp.uint32)[None]
  seed = jax.random.bits(key)
  mask = keep_mask(seed, jnp.uint32(0), row, column, rate).reshape(x.shape)
  return jnp.where(mask, x / (1.0 - rate), jnp.zeros_like(x))


def dropout_seed(key: jax.Array | None, first: jax.Array | None):
  """The seed of an attention's dropout, for tokens that start at `first`."""
  if key is None:
    return None
  seed = jax.random.bits(key)
  return seed if first is None else offset_seed(seed, first[0])


def split_key(key: jax.Array | None, number: int) -> list[jax.Array | None]:
  """`number` keys from one, or as many Nones (evaluation)."""
  return [None] * number if key is None else list(jax.random.split(key, number))


def l2_normalize(x: jax.Array, eps: float = 1e-6) -> jax.Array:
  """x / max(|x|, eps) in float32, with a finite gradient at zero."""
  x = x.astype(jnp.float32)
  square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, eps**2))
