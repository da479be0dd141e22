"""The two-layer nets of DLRM-HSTU.

| published code         | here                                |
|------------------------|-------------------------------------|
| SwishLayerNorm(x)      | `SwishLayerNorm`: x * sigmoid(LN(x))|
| Linear, SwishLN, Linear| `SwishMLP`                          |
| and a last LayerNorm   | `norm_out`                          |

Differences from the paper: none; it does not describe these nets.
"""

import jax
from flax import nnx

from genrec_jax.models import layers

EPS = 1e-5


class SwishLayerNorm(nnx.Module):
  """x * sigmoid(LN(x)), with a learned scale and shift."""

  def __init__(self, dim: int):
    self.norm = layers.LayerNorm(dim, eps=EPS, affine=True)

  def __call__(self, x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(self.norm(x))


class SwishMLP(nnx.Module):
  """Linear -> SwishLayerNorm -> Linear (-> LayerNorm).

  Args:
    dim_in: width of the input.
    hidden: width between the two linear layers.
    dim_out: width of the output.
    init: how both matrices start.
    norm: whether a layer norm follows.
    rngs: random keys.
  """

  def __init__(
    self,
    dim_in: int,
    hidden: int,
    dim_out: int,
    *,
    init=layers.xavier_uniform,
    norm: bool = True,
    rngs: nnx.Rngs,
  ):
    self.below = layers.Linear(dim_in, hidden, kernel_init=init, rngs=rngs)
    self.swish = SwishLayerNorm(hidden)
    self.above = layers.Linear(hidden, dim_out, kernel_init=init, rngs=rngs)
    self.norm_out = (
      layers.LayerNorm(dim_out, eps=EPS, affine=True) if norm else None
    )

  def __call__(self, x: jax.Array) -> jax.Array:
    """`[T, dim_in]` -> `[T, dim_out]`."""
    y = self.above(self.swish(self.below(x)))
    return y if self.norm_out is None else self.norm_out(y)
