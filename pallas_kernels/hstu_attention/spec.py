"""The arguments of the backends of `hstu_attention`."""

import dataclasses
from typing import NamedTuple

import jax


@dataclasses.dataclass(frozen=True)
class Spec:
  """What a kernel is compiled for. Hashable.

  Attributes:
    max_len: bound of the keys of a sequence.
    max_queries: bound of its queries.
    mode: 'silu' or 'softmax'.
    alpha: factor of the dot product.
    normaliser: divisor of the SiLU scores; None where `Context.normaliser`
      holds one for each query.
    contextual: tokens at the head of each sequence that are its context.
    window: how far back a token sees, None for all the way.
    full_tail: latest tokens of the history that the window does not bind.
    dropout: share of the weights to drop.
    prefix: oldest tokens of the history that are seen from beyond the window.
    max_targets: bound of the targets of a sequence.
  """

  max_len: int
  max_queries: int
  mode: str
  alpha: float
  normaliser: float | None
  contextual: int
  window: int | None
  full_tail: int
  dropout: float
  prefix: int = 0
  max_targets: int = 0


class Tensors(NamedTuple):
  """The arrays that have gradients.

  q `[Tq, H, dqk]`, k `[T, H, dqk]`, v `[T, H, dv]`, position_bias `[2n - 1]` or
  None, time_bias `[buckets]` or None.
  """

  q: jax.Array
  k: jax.Array
  v: jax.Array
  position_bias: jax.Array | None
  time_bias: jax.Array | None


class Context(NamedTuple):
  """The arrays without gradients, int32 but for the normaliser and the seed.

  lengths `[B]`; query_lengths `[B]`, None where every token is a query;
  targets `[B]`, None for none; query_time `[Tq]` and time `[T]`, None without
  a time bias; normaliser `[Tq]` float32, None where it is static;
  dropout_seed uint32 scalar, None without dropout.
  """

  lengths: jax.Array
  query_lengths: jax.Array | None
  targets: jax.Array | None
  query_time: jax.Array | None
  time: jax.Array | None
  normaliser: jax.Array | None
  dropout_seed: jax.Array | None
