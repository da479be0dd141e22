"""Sums over devices in buckets: few large collectives for many small leaves."""

import jax
import jax.numpy as jnp
import numpy as np


def assign_buckets(sizes: list[int], limit: int) -> list[list[int]]:
  """Assigns leaves to buckets, the last leaf first.

  Gradients of the last layer are ready first, so the order is reversed. A
  bucket is closed as soon as it holds `limit`, so that no small leaf travels
  alone beside a large one.

  >>> assign_buckets([10, 90, 20, 30], limit=50)
  [[3, 2], [1], [0]]

  Args:
    sizes: bytes of each leaf.
    limit: bytes of a bucket.

  Returns:
    For each bucket, the indices of its leaves.
  """
  out, size = [], limit
  for i in reversed(range(len(sizes))):
    # Starts at the limit, which opens the first bucket.
    if size >= limit:
      out.append([])
      size = 0
    out[-1].append(i)
    size += sizes[i]
  return out


def sum_in_buckets(
  leaves: list[jax.Array], axes: tuple[str, ...], dtype, limit: int
) -> list[jax.Array]:
  """Sums every leaf over devices, with one collective for each bucket.

  Args:
    leaves: arrays of any shapes.
    axes: mesh axes to sum over.
    dtype: the dtype in which the sums travel and are returned.
    limit: bytes of a bucket.

  Returns:
    The sums, in the order and the shapes of the leaves.
  """
  out, last = list(leaves), None
  itemsize = np.dtype(dtype).itemsize
  for bucket in assign_buckets([x.size * itemsize for x in leaves], limit):
    flat = [leaves[i].astype(dtype).ravel() for i in bucket]
    # A single leaf is not copied.
    joined = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
    # A bucket waits for the one before it: they share the wire anyway, and XLA
    # would merge independent ones into one collective that waits for
    # everything.
    if last is not None:
      joined, last = jax.lax.optimization_barrier((joined, last))
    last = jax.lax.psum(joined, axes)
    ends = np.cumsum([x.size for x in flat])[:-1]
    for i, part in zip(bucket, jnp.split(last, ends)):
      out[i] = part.reshape(leaves[i].shape)
  return out
