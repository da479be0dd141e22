"""The multi-layer perceptron of the ranking models."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.features import Inputs
from genrec_jax.models import layers
from genrec_jax.models.batch_norm import BatchNorm

# PyTorch's Xavier normal; JAX's own is cut at two deviations.
xavier_normal = jax.nn.initializers.variance_scaling(1.0, 'fan_avg', 'normal')


def make_linear(
  dim_in: int,
  dim_out: int,
  rngs: nnx.Rngs,
  init: str = 'xavier_normal',
  use_bias: bool = True,
) -> layers.Linear:
  """A linear layer that starts as the published models do.

  Args:
    dim_in: width of the input.
    dim_out: width of the output.
    rngs: random keys.
    init: 'xavier_normal' with biases of 0 (FuxiCTR), or 'dlrm', whose biases
      have the deviation 1 / sqrt(dim_out).
    use_bias: whether there is a bias.
  """
  bias = (
    layers.zeros if init == 'xavier_normal' else layers.normal(dim_out**-0.5)
  )
  return layers.Linear(
    dim_in,
    dim_out,
    kernel_init=xavier_normal,
    bias_init=bias,
    use_bias=use_bias,
    rngs=rngs,
  )


class MLP(nnx.Module):
  """Linear -> batch norm -> ReLU -> dropout for each hidden layer.

  Args:
    dim_in: width of the input.
    hidden: widths of the hidden layers.
    outputs: width of a last linear layer; 0 for none.
    batch_norm: whether hidden layers are normalised.
    dropout: rate after each hidden layer.
    init: as in `make_linear`.
    rngs: random keys.
  """

  def __init__(
    self,
    dim_in: int,
    hidden: Sequence[int],
    outputs: int = 0,
    *,
    batch_norm: bool = False,
    dropout: float = 0.0,
    init: str = 'xavier_normal',
    rngs: nnx.Rngs,
  ):
    self.hidden = tuple(hidden)
    self.batch_norm = batch_norm
    self.dropout = dropout
    for i, width in enumerate(self.hidden):
      setattr(self, f'linear_{i}', make_linear(dim_in, width, rngs, init))
      if batch_norm:
        setattr(self, f'norm_{i}', BatchNorm(width))
      dim_in = width
    self.hidden_width = dim_in  # of what `out` reads
    self.out = make_linear(dim_in, outputs, rngs, init) if outputs else None
    self.width = outputs or dim_in

  def __call__(self, h: jax.Array, x: Inputs, key=None) -> jax.Array:
    """`[B, width]`; arguments as `read_hidden`."""
    h = self.read_hidden(h, x, key)
    return h if self.out is None else self.out(h)

  def read_hidden(self, h: jax.Array, x: Inputs, key=None) -> jax.Array:
    """What the last linear layer reads, `[B, hidden_width]`.

    Args:
      h: `[B, dim_in]`.
      x: whose weights and number of the first example count.
      key: random key; None for evaluation.
    """
    keys = layers.split_key(key, max(len(self.hidden), 1))
    for i in range(len(self.hidden)):
      h = self._apply_linear(i, h, key is not None)
      if self.batch_norm:
        norm = getattr(self, f'norm_{i}')
        h = norm(h, x.weights, training=key is not None)
      h = layers.apply_dropout(jax.nn.relu(h), self.dropout, keys[i], x.first)
    return h

  def _apply_linear(self, i: int, h: jax.Array, training: bool) -> jax.Array:
    layer = getattr(self, f'linear_{i}')
    if not (self.batch_norm and training):
      return layer(h)
    # The norm takes out what the bias adds: its gradient is zero, and summing
    # it up over the batch would give rounding, which Adam makes into steps, as
    # it does in FuxiCTR.
    bias = jax.lax.stop_gradient(layer.bias[...])
    return layer.multiply(h) + bias.astype(h.dtype)[None]


def to_logits(y: jax.Array) -> jax.Array:
  """Logits leave a model in float32."""
  return y.astype(jnp.float32)
