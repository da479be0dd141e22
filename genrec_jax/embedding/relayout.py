"""From one layout to another: what a checkpoint of another plan needs.

The rows a device is to hold are named by table and id; their addresses in the
old layout follow. They are fetched bit by bit, in runs of a few thousand, so
that no device and no host holds more than its part and a little.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.layout import Layout, Piece, Stack, lay_out
from genrec_jax.parallel import mesh as mesh_lib

RUN = 8192  # rows fetched at a time


def table(layout: Layout, arrays: dict[str, np.ndarray], name: str):
  """A table in one piece, on the host: `[rows, D]`.

  Args:
    layout: where its pieces are.
    arrays: the arrays of one replica group, whole.
    name: of the table.
  """
  if name in layout.whole:
    return np.asarray(arrays[name])
  ids = jnp.arange(layout.plan.tables[name].rows, dtype=jnp.int32)
  parts = []
  for piece in layout.pieces[name]:
    at = np.asarray(layout.stacks[piece.stack].address(piece, ids))
    parts.append(np.asarray(arrays[piece.stack])[at])
  return np.concatenate(parts, axis=1) if parts[0].ndim > 1 else parts[0]
