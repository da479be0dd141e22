"""Sums over devices in buckets: few large collectives for many small leaves."""

import jax
import jax.numpy as jnp
import numpy as np


def assign_buckets(sizes: list[int], limit: int) -> list[list[int]]:
  """Numbers of the leaves of each bucket; the last leaf comes first.

  Gradients of the last layer are ready first, so the order is reversed. A
  bucket is closed as soon as it holds `limit`, so that no small leaf travels
  alone beside a large one.

  Args:
    sizes: bytes of each leaf.
    limit: bytes of a bucket.
  """
  out, size = [], limit
  for i in reversed(range(len(sizes))):
    if size >= limit:
      out.append([])
      size = 0
    out[-1].append(i)
    size += sizes[i]
  return out


def sum_in_buckets(
  leaves: list[jax.Array], axes: tuple[str, ...], dtype, limit: int
) -> list[jax.Array]:
  """`psum` of every leaf in `dtype`, one collective a bucket.

  A bucket waits for the one before it: they share the wire anyway, and XLA
  would merge independent ones into one collective that waits for everything.
  """
  out, last = list(leaves), None
  itemsize = np.dtype(dtype).itemsize
  for bucket in assign_buckets([x.size * itemsize for x in leaves], limit):
    flat = [leaves[i].astype(dtype).ravel() for i in bucket]
    joined = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
    if last is not None:
      joined, last = jax.lax.optimization_barrier((joined, last))
    last = jax.lax.psum(joined, axes)
    ends = np.cumsum([x.size for x in flat])[:-1]
    for i, part in zip(bucket, jnp.split(last, ends)):
      out[i] = part.reshape(leaves[i].shape)
  return out
