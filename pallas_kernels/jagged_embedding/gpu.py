"""The backend in Triton, on NVIDIA and AMD GPUs, called by jax-triton.

This file prepares what the kernels read and launches them by the plans of
`gpu_plan.py`. Neither a lookup nor an update makes an array of `[K, D]`:

- A bag is summed while its rows come from memory, several at a time.
- Of an update XLA sorts the ids alone. The runs of equal ids are then listed; a
  program sums the gradients of some runs and moves their rows, each of which is
  read and written once. A donated table is changed in place, as are its slots;
  XLA copies what is not donated.

A bag or a run may be long: one id can be a fifth of all. So the places of the
ids are cut into pieces, at the same places whatever the batch. What lies in one
segment entirely was summed before, each piece by a program of its own, and for
runs again in pieces of pieces. A program therefore walks at most some hundred
rows of a run; of a bag two pieces and one row for each other piece. Sums have a
fixed order and use no atomics: the same inputs give the same bits. The order is
not that of the other backends, from which results differ by rounding.

Rows whose settings differ by group are moved by XLA. jax-triton has no rule for
`jax.vmap`; with sharded arrays, call this inside `jax.shard_map`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch, triton_call
from pallas_kernels.jagged_embedding import gpu_plan, xla
from pallas_kernels.jagged_embedding.gpu_plan import Constants, shape
from pallas_kernels.jagged_embedding.spec import MergedRows

why_not = triton_call.why_not
SLOTS = 3  # of any optimizer, the counts of rows included


class _Runs(NamedTuple):
  """Sorted ids, where each begins, and what the places stand for.

  The arguments of the kernels of runs, in their order.
  """

  keys: jax.Array
  starts: jax.Array
  runs: jax.Array
  index: jax.Array
  bags: jax.Array
  weights: jax.Array
  grads: jax.Array
  pieces: tuple[jax.Array, ...]


def kernel_of(name: str):
  """The `triton.jit` function; triton is imported when one is asked for."""
  from pallas_kernels.jagged_embedding import (
    triton_embedding_kernels,
    triton_embedding_updates,
  )

  if name in ('merge_runs', 'update_runs', 'update_rows'):
    return getattr(triton_embedding_updates, name)
  return getattr(triton_embedding_kernels, name)


def _run(launch: triton_call.Launch, *inputs) -> list[jax.Array]:
  return triton_call.run(kernel_of(launch.kernel), launch, *inputs)


def _constants(**fields) -> Constants:
  return Constants(ptx=dispatch.platform() == 'cuda', **fields)


def _some(x):
  """`x` in float32, or an array that is never read where there is none."""
  # A kernel has a fixed number of arguments.
  return jnp.zeros(1, jnp.float32) if x is None else x.astype(jnp.float32)


def _list_ends(lengths, capacity: int):
  """`[B]`: the place after the last id of each bag."""
  count = lengths.shape[0]
  base = _constants(count=count, capacity=capacity)
  sums = _sum_blocks(base, lengths)
  out = shape(count, dtype=jnp.int32)
  return _run(gpu_plan.plan_blocks('list_ends', base, out), lengths, sums)[0]


def _sum_blocks(base: Constants, numbers):
  blocks = gpu_plan.count_blocks(base.count)
  if blocks == 1:  # nothing comes before the first block
    return jnp.zeros(1, jnp.int32)
  out = shape(blocks, dtype=jnp.int32)
  return _run(gpu_plan.plan_blocks('sum_blocks', base, out), numbers)[0]


def _find_bags(ids, ends, rows: int):
  """`[K]` uint32 keys and int32 bags, as the kernel `find_bags` says."""
  base = _constants(count=ids.shape[0], rows=rows, bags=ends.shape[0])
  outputs = (
    shape(base.count, dtype=jnp.uint32), shape(base.count, dtype=jnp.int32),
  )  # fmt: skip
  return _run(gpu_plan.plan_blocks('find_bags', base, *outputs), ids, ends)


def bag(table, ids, lengths, weights):
  """Sums bags. See `spec`."""
  count, bags = ids.shape[0], lengths.shape[0]
  rows, dim = table.shape
  if not count or not bags:
    return jnp.zeros((bags, dim), jnp.float32)
  ends = _list_ends(lengths, count)
  base = _constants(
    count=count,
    bags=bags,
    sources=rows,
    dim=dim,
    by_bag=True,
    weighted=weights is not None,
  )
  weights = _some(weights)
  base, pieces = _sum_pieces(base, ends, table, ids, ids, weights)
  launch = gpu_plan.plan_rows('sum_bags', base, bags, shape(bags, dim))
  return _run(launch, table, ids, ends, weights, pieces[0])[0]


def _sum_pieces(base: Constants, keys, sources, index, bags, weights):
  """The constants with the pieces in them, and three matrices of sums."""
  kind = 'bags' if base.by_bag else 'runs'
  spans = gpu_plan.piece_spans(kind, base.count)
  piece = gpu_plan.TUNED['pieces'][kind]
  base = base._replace(piece=piece, top=max(spans, default=0))
  nothing = jnp.zeros(1, jnp.float32)
  below, pieces = nothing, []
  for span in spans:
    number = base.count // span
    launch = gpu_plan.plan_rows(
      'sum_pieces',
      base._replace(span=span),
      number,
      shape(number, base.dim),
    )
    inputs = keys, sources, index, bags, weights, below
    (below,) = _run(launch, *inputs)
    pieces.append(below)
  pieces += [nothing] * (gpu_plan.LEVELS - len(pieces))
  return base, tuple(pieces)


def gather(table, ids, count, spare):
  """Reads rows. See `spec`."""
  rows, dim = table.shape
  size = ids.shape[0]
  if not size:
    return jnp.zeros((0, dim), table.dtype)
  base = _constants(count=size, sources=rows, dim=dim, spare=spare)
  out = shape(size, dim, dtype=table.dtype)
  launch = gpu_plan.plan_rows('gather_rows', base, size, out)
  count = jnp.asarray(count, jnp.int32).reshape(1)
  return _run(launch, table, ids, count)[0]


def weight_gradient(table, ids, lengths, grads):
  """Multiplies rows with gradients of bags. See `spec`."""
  rows, dim = table.shape
  size, number = ids.shape[0], lengths.shape[0]
  if not size or not number:
    return jnp.zeros(size, jnp.float32)
  _, bags = _find_bags(ids, _list_ends(lengths, size), rows)
  base = _constants(count=size, bags=number, sources=rows, dim=dim)
  launch = gpu_plan.plan_rows('weight_gradient', base, size, shape(size))
  return _run(launch, table, ids, bags, grads)[0]


def _sort(ids, lengths, weights, grads, rows: int) -> tuple[Constants, _Runs]:
  """Sorts ids by row, lists the runs, and sums their pieces."""
  count = ids.shape[0]
  place = jnp.arange(count, dtype=jnp.int32)
  if lengths is None:
    is_row = (ids >= 0) & (ids < rows)
    keys = jnp.where(is_row, ids, rows).astype(jnp.uint32)
    bags = place
  else:
    keys, bags = _find_bags(ids, _list_ends(lengths, count), rows)
  # Without weights all that is asked of an id is its bag, so that one load
  # leads to its gradient. XLA has a radix sort for unsigned keys.
  values = bags if weights is None else place
  keys, index = jax.lax.sort((keys, values), num_keys=1, is_stable=True)
  size = min(count, rows)
  base = _constants(count=count, rows=rows, heads=True)
  outputs = shape(size + 1, dtype=jnp.int32), shape(1, dtype=jnp.int32)
  launch = gpu_plan.plan_blocks('list_runs', base, *outputs)
  starts, runs = _run(launch, keys, _sum_blocks(base, keys))
  base = _constants(
    count=count,
    rows=rows,
    runs=size,
    sources=grads.shape[0],
    dim=grads.shape[1],
    bagged=lengths is not None,
    weighted=weights is not None,
  )
  weights = _some(weights)
  base, pieces = _sum_pieces(base, keys, grads, index, bags, weights)
  return base, _Runs(keys, starts, runs, index, bags, weights, grads, pieces)


def merge(ids, lengths, weights, grads, rows):
  """Adds up gradients by row. See `spec`."""
  size, dim = min(ids.shape[0], rows), grads.shape[1]
  if not size or not grads.shape[0]:
    return MergedRows(
      jnp.full(size, rows, jnp.int32), jnp.zeros((size, dim), jnp.float32)
    )
  if not dim:  # the ids are wanted: a tile has a column at least
    grads = jnp.zeros((grads.shape[0], 1), jnp.float32)
  base, runs = _sort(ids, lengths, weights, grads, rows)
  outputs = shape(size, dtype=jnp.int32), shape(size, base.dim)
  launch = gpu_plan.plan_rows('merge_runs', base, size, *outputs)
  ids, grads = _run(launch, *runs[:-1], *runs.pieces)
  return MergedRows(ids, grads[:, :dim])


def update(settings, chance, table, slots, ids, grads):
  """Updates rows. See `spec`."""
  if settings.groups is not None:
    return xla.update(settings, chance, table, slots, ids, grads)
  count = ids.shape[0]
  if not count:
    return table, slots
  numbers = (None, None) if chance is None else chance[1:]
  base = _constants(
    count=count,
    rows=table.shape[0],
    dim=table.shape[1],
    stochastic=chance is not None,
    numbered=numbers[0] is not None,
    shifted=numbers[1] is not None,
    **gpu_plan.rule_constants(settings),
  )
  none = jnp.zeros(1, jnp.uint32)
  inputs = ids, *(none if x is None else x for x in numbers), grads
  return _update(
    'update_rows', base, count, settings, chance, table, slots, inputs
  )


def bag_update(settings, chance, table, slots, ids, lengths, weights, grads):
  """Adds up gradients by row and updates the rows. See `spec`."""
  if not ids.shape[0] or not grads.shape[0]:
    return table, slots
  rows = table.shape[0]
  base, runs = _sort(ids, lengths, weights, grads, rows)
  base = base._replace(
    stochastic=chance is not None, **gpu_plan.rule_constants(settings)
  )
  inputs = *runs[:-1], *runs.pieces
  return _update(
    'update_runs', base, base.runs, settings, chance, table, slots, inputs
  )


def _update(kernel, base, items, settings, chance, table, slots, inputs):
  """Launches a kernel that moves rows; what it moves comes last."""
  seed = jnp.uint32(0) if chance is None else chance.seed
  inputs = settings.scalars, seed.reshape(1), *inputs
  state = table, *slots
  # A slot that an optimizer does not have is an output that nobody writes.
  missing = 1 + SLOTS - len(state)
  nothing = [jnp.zeros(1, jnp.float32)] * missing
  outputs = [shape(*x.shape, dtype=x.dtype) for x in (*state, *nothing)]
  launch = gpu_plan.plan_rows(
    kernel,
    base,
    items,
    *outputs,
    aliases=tuple((len(inputs) + i, i) for i in range(len(state))),
  )
  table, *moved = _run(launch, *inputs, *state, *nothing)
  return table, tuple(moved[: len(slots)])
