"""The backend in C++ (cpu.cc), on the CPU.

A bag is summed while its rows come from memory, without a `[K, D]` array; ids
are radix sorted, and each distinct row is read, moved and written once. Tables
that are donated are changed in place; without donation XLA copies them first.

The work is divided among XLA's threads, whose number can be set by
`PALLAS_KERNELS_CPU_THREADS`. The results do not depend on it.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch, manual_axes
from pallas_kernels.jagged_embedding import native
from pallas_kernels.jagged_embedding.spec import MergedRows

THREADS = 'PALLAS_KERNELS_CPU_THREADS'
# In the order of `Rule` in cpu_optimizers.h, which has the norm after them.
_CONSTANTS = (
  'eps', 'beta1', 'beta2', 'momentum', 'trust', 'l2', 'decoupled',
)  # fmt: skip
_on_cpu = dispatch.needs_platform('cpu')


def why_not() -> str | None:
  """Says why this backend cannot run here, None where it can."""
  if reason := _on_cpu():
    return reason
  # Axes that a surrounding shard_map has made manual do not count: its parts
  # are local.
  mesh = jax.sharding.get_abstract_mesh()
  if any(mesh.shape[name] > 1 for name in mesh.auto_axes):
    return (
      'XLA cannot split it over the devices of a mesh and would gather the '
      'whole table; call it inside jax.shard_map.'
    )
  return native.why_not()


def _call(name, out, args, *, aliases=None, **attributes):
  call = jax.ffi.ffi_call(
    native.PREFIX + name,
    out,
    vmap_method='sequential',
    input_output_aliases=aliases,
  )
  # Read at every trace, so that a process can change it.
  wanted = os.environ.get(THREADS) or '0'
  if not wanted.lstrip('-').isdigit():
    raise ValueError(f'{THREADS}={wanted!r} is no number of threads.')
  threads = np.int64(wanted)
  axes = manual_axes.varying_axes(*args)
  return jax.tree.map(
    lambda x: manual_axes.vary_over(axes, x),
    call(*args, threads=threads, **attributes),
  )


def _some(x, dtype):
  """`x`, or an empty array where there is none."""
  # A call of C++ has a fixed number of buffers; an empty one means none.
  return jnp.zeros(0, dtype) if x is None else x.astype(dtype)


def bag(table, ids, lengths, weights):
  """Sums bags. See `spec`."""
  out = jax.ShapeDtypeStruct((lengths.shape[0], table.shape[1]), jnp.float32)
  return _call('Bag', out, (table, ids, lengths, _some(weights, jnp.float32)))


def packed_bag(rows, ids, lengths, weights, columns, bits, leading, half):
  """Sums bags of rows of whole numbers of few bits.

  Args:
    rows: `[R, bytes]` uint8: codes, and scale and bias of each row.
    ids: `[K]` int32.
    lengths: `[B]` int32.
    weights: `[K]`, or None.
    columns: D.
    bits: of a code, 8, 4 or 2.
    leading: whether scale and bias come first.
    half: whether they are float16; float32 if not.

  Returns:
    `[B, D]` float32; NaN for a bag with an id that is no row.
  """
  out = jax.ShapeDtypeStruct((lengths.shape[0], columns), jnp.float32)
  args = rows, ids, lengths, _some(weights, jnp.float32)
  options = dict(bits=np.int64(bits), leading=leading, half=half)
  return _call('PackedBag', out, args, **options)


def gather(table, ids, count, spare):
  """Reads rows. See `spec`."""
  out = jax.ShapeDtypeStruct((ids.shape[0], table.shape[1]), table.dtype)
  count = jnp.asarray(count, jnp.int32).reshape(1)
  return _call('GatherRows', out, (table, ids, count), spare=spare)


def weight_gradient(table, ids, lengths, grads):
  """Multiplies rows with gradients of bags. See `spec`."""
  out = jax.ShapeDtypeStruct(ids.shape, jnp.float32)
  return _call('WeightGradient', out, (table, ids, lengths, grads))


def score(table, queries, ids):
  """`[T, R]` products of queries with rows; NaN where an id is not a row.

  Args:
    table: `[rows, D]` float32.
    queries: `[T, D]` float32.
    ids: `[T, R]` int32.
  """
  out = jax.ShapeDtypeStruct(ids.shape, jnp.float32)
  return _call('ScoreRows', out, (table, queries, ids))


def score_gradients(table, queries, ids, grads):
  """Gradients of the table and of the queries, from those of `score`."""
  out = (
    jax.ShapeDtypeStruct(table.shape, jnp.float32),
    jax.ShapeDtypeStruct(queries.shape, jnp.float32),
  )
  return tuple(_call('ScoreGradients', out, (table, queries, ids, grads)))


def merge(ids, lengths, weights, grads, rows):
  """Adds up gradients by row. See `spec`."""
  size = min(ids.shape[0], rows)
  out = (
    jax.ShapeDtypeStruct((size,), jnp.int32),
    jax.ShapeDtypeStruct((size, grads.shape[1]), jnp.float32),
  )
  args = ids, _some(lengths, jnp.int32), _some(weights, jnp.float32), grads
  return MergedRows(
    *_call('Merge', out, args, bagged=lengths is not None, rows=np.int64(rows))
  )


def update(settings, chance, table, slots, ids, grads):
  """Updates rows. See `spec`."""
  numbers = (None, None) if chance is None else chance[1:]
  groups = _some(settings.groups, jnp.int32)
  args = *(_some(x, jnp.uint32) for x in numbers), groups, ids, grads
  return _update('UpdateMerged', settings, chance, args, table, slots)


def bag_update(settings, chance, table, slots, ids, lengths, weights, grads):
  """Adds up gradients by row and updates the rows. See `spec`."""
  args = ids, _some(lengths, jnp.int32), _some(weights, jnp.float32), grads
  bagged = lengths is not None
  return _update(
    'BagUpdate', settings, chance, args, table, slots, bagged=bagged
  )


def _update(name, settings, chance, args, table, slots, **attributes):
  # A seed is always passed; the attribute `stochastic` says whether it is used.
  seed = jnp.uint32(0) if chance is None else chance.seed
  # After the scalars and the seed come the arguments, then the state, which is
  # returned in the same memory.
  first = 2 + len(args)
  state = (table, *slots)
  # As float64: C++ rounds each number once, as XLA does with a constant.
  constants = [
    [*(getattr(rule, n) for n in _CONSTANTS), rule.max_norm or 0]
    for rule in settings.rules
  ]
  table, *slots = _call(
    name,
    [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in state],
    (settings.scalars, seed.reshape(1), *args, *state),
    aliases={first + i: i for i in range(len(state))},
    optimizer=settings.rule.optimizer,
    constants=np.float64(constants).reshape(-1),
    row_count=settings.rule.row_count,
    stochastic=chance is not None,
    **attributes,
  )
  return table, tuple(slots)
