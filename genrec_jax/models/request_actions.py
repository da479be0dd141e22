"""What a user did with an item, as numbers.

| published code (spec 2.2)     | here                                     |
|-------------------------------|------------------------------------------|
| action weights w_k            | `list_bits`, powers of two               |
| (watch >= thr) * weight       | `mark_watch_times`                       |
| E_act [K, 8], bit_k * E_act[k]| `ActionEncoder.vectors`                  |
| the targets' vector [K * 8]   | `ActionEncoder.unknown`                  |

Differences from the paper: none; it leaves the encoding open. A threshold of
the watch time may name the bit of an action, and is then OR-ed into it, where
the published code gives it a vector of its own beside that of the action.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.features import ACTION, WATCH_TIME, Jagged, RequestSpec
from genrec_jax.models import layers

WatchTimes = Sequence[tuple[float, int]]


def list_bits(spec: RequestSpec, watch_times: WatchTimes) -> tuple[int, ...]:
  """The bits an event can have: those of actions, then of watch times.

  Raises:
    ValueError: there are thresholds, and histories without watch times.
  """
  if watch_times and not spec.watch_time:
    raise ValueError(
      f'model.watch_times={tuple(watch_times)}, but the histories have no '
      'watch times; leave it empty'
    )
  bits = [bit for _, bit in spec.actions] + [bit for _, bit in watch_times]
  return tuple(dict.fromkeys(bits))


def mark_watch_times(history: Jagged, watch_times: WatchTimes) -> jax.Array:
  """`[K]` int32 actions, with the bits of the thresholds that are reached."""
  action = history[ACTION]
  for seconds, bit in watch_times:
    action |= jnp.where(history[WATCH_TIME] >= seconds, jnp.int32(bit), 0)
  return action


def read_bits(action: jax.Array, bits: Sequence[int]) -> jax.Array:
  """`[K]` -> `[K, len(bits)]`, whether each bit is set.

  >>> read_bits(jnp.array([5, 2]), (1, 4)).tolist()
  [[True, True], [False, False]]
  """
  return (action[:, None] & jnp.asarray(bits, jnp.int32)[None]) > 0


class ActionEncoder(nnx.Module):
  """Bits of an action -> a vector each, zero where it is not set.

  Args:
    bits: as `list_bits` gives them, one or more.
    dim: width of a vector.
    std: deviation from which vectors start.
    rngs: random keys.
  """

  def __init__(self, bits: Sequence[int], dim: int, std: float, rngs: nnx.Rngs):
    self.bits = tuple(bits)
    self.width = len(self.bits) * dim
    init = layers.normal(std)
    self.vectors = nnx.Param(init(rngs.params(), (len(self.bits), dim)))
    self.unknown = nnx.Param(init(rngs.params(), (self.width,)))

  def __call__(self, action: jax.Array) -> jax.Array:
    """`[K]` int32 -> `[K, width]`."""
    known = read_bits(action, self.bits)
    vectors = jnp.where(known[:, :, None], self.vectors[...][None], 0.0)
    return vectors.reshape(-1, self.width)

  def encode_candidates(self, count: int) -> jax.Array:
    """`[count, width]`: of candidates nobody knows what will be done."""
    return jnp.broadcast_to(self.unknown[...][None], (count, self.width))
