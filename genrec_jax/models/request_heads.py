"""What is made of a candidate's token: the item tower, norms and outputs.

| published code (spec 2.2)         | here                                 |
|-----------------------------------|--------------------------------------|
| item tower                        | `swish_mlp.SwishMLP`                 |
| L2Norm, LayerNorm                 | `Postprocessor`                      |
| TimestampLayerNorm, phi           | `Postprocessor.combine`, `find_phase`|
| multitask head, MLP(user * item)  | `MultitaskHead`                      |

Differences from the paper: none; it leaves them open. Days are counted from
Monday, and not from the Thursday of the epoch, which turns the circle alone; pi
is 3.14 under `reference_compat`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import RequestSpec
from genrec_jax.models import layers, mlp
from genrec_jax.models.swish_mlp import EPS, SwishMLP

PERIODS = ((3_600, 24), (86_400, 7))  # (seconds of a unit, units)


def find_phase(week_second: jax.Array, pi: float) -> jax.Array:
  """Hour of the day and day of the week as points of a circle, `[N, 4]`.

  Args:
    week_second: `[N]` seconds since Monday 00:00.
    pi: the number.
  """
  found = []
  for unit, count in PERIODS:
    angle = 2 * pi * np.arange(count) / count
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    step = (week_second // unit) % count
    found.append(jnp.asarray(circle, jnp.float32)[step])
  return jnp.concatenate(found, axis=1)


class Postprocessor(nnx.Module):
  """Norms tokens `[K, D]`, float32."""

  def __init__(self, config: Config, rngs: nnx.Rngs):
    c = config
    self.kind = c.postprocessor
    self.pi = 3.14 if 'pi_3_14' in c.reference_compat else math.pi
    self.combine = (
      layers.Linear(
        c.dim + 2 * len(PERIODS),
        c.dim,
        kernel_init=mlp.xavier_normal,
        rngs=rngs,
      )
      if c.postprocessor == 'timestamp'
      else None
    )
    self.norm = (
      layers.LayerNorm(c.dim, eps=EPS, affine=True)
      if c.postprocessor != 'l2norm'
      else None
    )

  def __call__(self, x: jax.Array, week_second: jax.Array | None) -> jax.Array:
    """`[K, D]`, with the `[K]` times of 'timestamp'."""
    x = x.astype(jnp.float32)
    if self.norm is None:
      return layers.l2_normalize(x)
    if self.combine is not None:
      phase = find_phase(week_second, self.pi)
      x = self.combine(jnp.concatenate([x, phase], axis=1))
    return self.norm(x)


class MultitaskHead(nnx.Module):
  """User and item -> one number for each label: a logit, or a value."""

  def __init__(self, config: Config, spec: RequestSpec, rngs: nnx.Rngs):
    self.names = tuple(label.name for label in spec.labels)
    self.takes_all = config.head_inputs == 'all'
    width = config.dim * (3 if self.takes_all else 1)
    self.net = SwishMLP(
      width, config.head_hidden, len(self.names), norm=False, rngs=rngs
    )

  def __call__(self, user: jax.Array, item: jax.Array) -> dict[str, jax.Array]:
    """`[K, D]` of both -> `[K]` float32 of each label."""
    x = user * item
    if self.takes_all:
      x = jnp.concatenate([x, user, item], axis=1)
    y = mlp.to_logits(self.net(x))
    return {name: y[:, i] for i, name in enumerate(self.names)}
