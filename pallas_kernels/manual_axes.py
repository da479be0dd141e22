"""Axes of a mesh over which the parts of `jax.shard_map` differ.

`shard_map` keeps account of them (`check_vma=True`, its default): a gradient of
what all parts share is the sum over the parts, and what differs may not be
returned as if it did not. A call of C++ or of a kernel tells JAX nothing of it,
so its results would count as equal everywhere: wrong gradients, silently.
"""

from collections.abc import Sequence

import jax


def varying_axes(*arrays: jax.Array | None) -> frozenset[str]:
  """The axes over which any of some arrays differs; none outside `shard_map`.

  >>> sorted(varying_axes(jax.numpy.ones(3), None))
  []

  Args:
    *arrays: arrays; None is left out.
  """
  found = frozenset()
  for x in arrays:
    if x is not None:
      kind = getattr(jax.typeof(x), 'manual_axis_type', None)
      found |= getattr(kind, 'varying', frozenset())
  return found


def vary_over(axes: frozenset[str], x: jax.Array | None) -> jax.Array | None:
  """`x` as an array that differs over these axes, too.

  Args:
    axes: names.
    x: an array, or None.
  """
  if x is None or not axes or not (missing := axes - varying_axes(x)):
    return x
  return jax.lax.pcast(x, tuple(sorted(missing)), to='varying')


def vary_alike(*arrays: jax.Array | None) -> Sequence[jax.Array | None]:
  """The arrays, each differing over all axes over which one of them does.

  Their gradients are summed over what was added, which is what makes them
  right: call it before a function with a gradient of its own.

  Args:
    *arrays: arrays; None stays None.
  """
  axes = varying_axes(*arrays)
  return tuple(vary_over(axes, x) for x in arrays)
