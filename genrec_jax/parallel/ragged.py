"""All-to-all of parts of different sizes, emulated on CPUs.

XLA runs `ragged_all_to_all` on TPUs and GPUs. On CPUs it does not exist; there
the emulation below moves every part padded to the size of the whole operand. It
has the same results as the native collective, but more traffic.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import dispatch


def all_to_all(
  operand: jax.Array,
  output: jax.Array,
  input_offsets: jax.Array,
  send_sizes: jax.Array,
  output_offsets: jax.Array,
  recv_sizes: jax.Array,
  axes: tuple[str, ...],
) -> jax.Array:
  """Sends part i of `operand` to peer i; the contract is that of `lax`.

  Args:
    operand: `[N, ...]`.
    output: `[R, ...]`, what is returned where nothing arrives. On CPUs, parts
      that would end beyond it are cut off; elsewhere they must not occur.
    input_offsets: `[W]` where the part for each peer starts.
    send_sizes: `[W]` how long it is.
    output_offsets: `[W]` where it starts in the output of that peer.
    recv_sizes: `[W]` how long the parts are that arrive here.
    axes: mesh axes whose devices, in order, are the peers.

  Returns:
    `[R, ...]`.
  """
  if dispatch.platform() != 'cpu':
    return lax.ragged_all_to_all(
      operand,
      output,
      input_offsets,
      send_sizes,
      output_offsets,
      recv_sizes,
      axis_name=axes,
    )
  # Of a part, the receiver knows how much is real.
  size = operand.shape[0]
  place = jnp.arange(size, dtype=input_offsets.dtype)
  # From the start of each part on, as many as there are in all: what follows
  # the part belongs to others.
  at = input_offsets[:, None] + place[None]
  blocks = lax.all_to_all(operand.at[at].get(mode='clip'), axes, 0, 0)
  # The sender says where its part goes, the receiver must write it.
  start = lax.all_to_all(output_offsets, axes, 0, 0, tiled=True)
  to = jnp.where(
    place[None] < recv_sizes[:, None],
    start[:, None] + place[None],
    output.shape[0],
  )
  return output.at[to].set(blocks, mode='drop')
