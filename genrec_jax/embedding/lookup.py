"""What a loss sees of a table: a view for each feature that it announced.

    rows['history'].all()               # [..., D], or [B, D] of a pooled read
    values, index = rows['negatives'].rows_and_index()
    rows['catalogue'].whole()           # [V, D], of a table that optax updates

A view is made from the ids that the task announced, and the index of each id
among the fetched rows is computed with them, before any row is read. So no
other id can be asked for; an id that is not a row of its table reads NaN, but
for `features.UNREAD`, which stands for nothing and touches nothing.
Gradients arrive merged: one gradient row for each distinct id, however often it
occurs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.features import PAD, UNREAD, Read
from pallas_kernels import MergedRows


class Views(dict):
  """Feature -> its view; names the announced features when asked for others."""

  def __missing__(self, feature: str):
    raise KeyError(
      f'the loss reads the rows of {feature!r}, which `reads` did not '
      f'announce; it announced only {", ".join(sorted(self)) or "nothing"}'
    )


jax.tree_util.register_pytree_node(
  Views,
  lambda views: (tuple(views[n] for n in sorted(views)), tuple(sorted(views))),
  lambda names, views: Views(zip(names, views, strict=True)),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowView:
  """The rows of one feature among those that were fetched of its table.

  Attributes:
    values: `[N, D]` the distinct rows fetched for all features of the table,
      which share this array; the whole table if `complete`.
    index: the index of each id in `values`, N or a negative number for an id
      that is not a row; None for a read of the whole table.
    read: what was announced.
    complete: whether `values` is the whole table.
  """

  values: jax.Array
  index: jax.Array | None
  read: Read
  complete: bool = dataclasses.field(default=False, metadata=dict(static=True))

  @property
  def ids(self) -> jax.Array:
    """The ids that were announced."""
    return self.read.ids

  def all(self) -> jax.Array:
    """The row of every id, `[..., D]`; `[B, D]` where the read is pooled."""
    # Otherwise the whole table would come back in place of some rows.
    if self.index is None:
      raise ValueError(
        f'a read of the whole table {self.read.table!r} has no ids: use '
        '.whole() in place of .all(), or announce the ids'
      )
    rows = take_rows(self.values, self.index)
    if self.read.pooling == 'none':
      return rows
    return pool_rows(rows, self.read)

  def rows_and_index(self) -> tuple[jax.Array, jax.Array]:
    """The distinct rows, `[N, D]`, and the index of each id among them.

    This is for a loss that cannot hold the rows of all its ids at once: it
    gathers them chunk by chunk with `take_rows`. Views of one table share the
    rows.
    """
    return self.values, self.index

  def whole(self) -> jax.Array:
    """The whole table, `[V, D]`."""
    if self.complete:
      return self.values
    raise ValueError(
      f'this loss reads the whole table {self.read.table!r}, which only a '
      "table with update='dense' allows; choose a sampled loss with "
      "loss.sampler='shared' or 'in_batch', or set optimizer.rows.name='dense'."
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SumView:
  """A pooled feature whose sums have travelled instead of its rows.

  Attributes:
    sums: `[B, D]` sums or means of its bags.
    read: what was announced.
  """

  sums: jax.Array
  read: Read

  def all(self) -> jax.Array:
    """`[B, D]`."""
    return self.sums

  def rows_and_index(self):
    raise ValueError(self._explain_sums('rows_and_index()'))

  def whole(self):
    raise ValueError(self._explain_sums('whole()'))

  def _explain_sums(self, call: str) -> str:
    return (
      f'a pooled read of table {self.read.table!r} has sums of rows and no '
      f'rows: use .all() in place of .{call}, or announce the read with '
      "pooling='none'"
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TowerView:
  """What the towers have made of their features.

  Attributes:
    vectors: `[B, vectors, E]`, tower behind tower.
  """

  vectors: jax.Array

  def all(self) -> jax.Array:
    """`[B, vectors, E]`."""
    return self.vectors


def view_table(
  table: jax.Array, read: Read, rows: jax.Array | None = None
) -> RowView:
  """The view of a feature in a whole table.

  Args:
    table: `[V, D]`.
    read: what the feature reads.
    rows: row numbers of its ids, if they are not the ids themselves.
  """
  index = read.ids if rows is None else rows
  # A dense table moves as a whole, so that any row will do for nothing.
  if index is not None:
    index = jnp.where(index == UNREAD, PAD, index)
  return RowView(table, index, read, complete=True)


def view_tables(
  tables: Mapping[str, jax.Array],
  reads: Mapping[str, Read],
  rows: Mapping[str, jax.Array] | None = None,
) -> Views:
  """Views of whole tables.

  >>> reads = {'last': Read(jnp.array([2, 9]), 't')}
  >>> rows = view_tables({'t': jnp.eye(3)}, reads)
  >>> rows['last'].all().tolist()
  [[0.0, 0.0, 1.0], [nan, nan, nan]]

  Args:
    tables: name -> `[V, D]`.
    reads: feature -> what it reads of them.
    rows: feature -> row numbers of its ids, if they are not the ids themselves.
  """
  rows = rows or {}
  return Views(
    {f: view_table(tables[r.table], r, rows.get(f)) for f, r in reads.items()}
  )


def take_rows(values: jax.Array, index: jax.Array) -> jax.Array:
  """`values[index]` `[..., D]`, NaN for an index outside 0 .. N - 1.

  >>> take_rows(jnp.eye(2), jnp.array([1, -1, 2])).tolist()
  [[0.0, 1.0], [nan, nan], [nan, nan]]
  """
  # NumPy would count a negative index from the end, which hides a wrong id.
  return values.at[index].get(
    mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
  )


def locate_ids(distinct: jax.Array, ids: jax.Array, rows: int) -> jax.Array:
  """The index of each id among sorted, distinct ids.

  >>> ids = jnp.array([7, 3, 7, 9])
  >>> distinct = distinct_ids([ids], rows=9)
  >>> distinct.tolist(), locate_ids(distinct, ids, rows=9).tolist()
  ([3, 7, 9, 9], [1, 0, 1, 4])

  Args:
    distinct: `[N]` as from `distinct_ids`, which was given these ids too.
    ids: integers of any shape.
    rows: number of rows of the table.

  Returns:
    int32 in the shape of `ids`; N for an id that is not a row, and N - 1 for
    `UNREAD`: an unused entry, unless all rows of the table are among the ids.
  """
  # Every id is among the distinct ones, so the search ends at the id itself.
  place = jnp.searchsorted(distinct, ids).astype(jnp.int32)
  place = jnp.where((ids >= 0) & (ids < rows), place, distinct.shape[0])
  return jnp.where(ids == UNREAD, distinct.shape[0] - 1, place)


def pool_rows(rows: jax.Array, read: Read) -> jax.Array:
  """The sum or mean of the rows of each bag, `[B, D]`, from `[K, D]` rows."""
  bag = pallas_kernels.segment_ids(read.lengths, rows.shape[0])
  if read.weights is not None:
    rows *= read.weights[:, None]
  # One more segment, for the padding after the last bag.
  sums = jax.ops.segment_sum(
    rows, bag, read.lengths.shape[0] + 1, indices_are_sorted=True
  )[:-1]
  return apply_mean(sums, read)


def split_reads(
  reads: Mapping[str, Read], pooling: Mapping[str, str]
) -> tuple[dict[str, Read], dict[str, Read]]:
  """Separates the reads that travel as rows from those that travel as sums.

  Args:
    reads: feature -> what it reads, `[P, ...]` of P microbatches.
    pooling: pooled feature -> 'rows' or 'sums'; 'rows' if it is not named.

  Returns:
    Feature -> read for the former, and feature -> packed read, `[P * B]` bags,
    for the latter.
  """
  single, bags = {}, {}
  # In one order, whether the reads have been through a compiled program or not.
  for name, read in sorted(reads.items()):
    if read.pooling != 'none' and pooling.get(name, 'rows') == 'sums':
      bags[name] = pack_bags(read)
    else:
      single[name] = read
      if read.lengths is not None:
        ids = jnp.where(find_real_ids(read), read.ids, UNREAD)
        single[name] = dataclasses.replace(read, ids=ids)
  return single, bags


def find_real_ids(read: Read) -> jax.Array:
  """Which ids are neither `UNREAD` nor padding behind the bags, `[P, ...]`."""
  real = read.ids != UNREAD
  if read.lengths is None:
    return real
  used = jnp.sum(read.lengths, axis=-1, keepdims=True)
  place = jax.lax.broadcasted_iota(jnp.int32, read.ids.shape, read.ids.ndim - 1)
  return real & (place < used)


def reads_by_table(reads: Mapping[str, Read]) -> dict[str, list[Read]]:
  """Table -> its reads, in their order."""
  tables = {}
  for read in reads.values():
    tables.setdefault(read.table, []).append(read)
  return tables


class PushResult(NamedTuple):
  """What `push` of a step's gradients has changed.

  Attributes:
    arrays: name -> array.
    slots: name -> slots of its optimizer.
    square: squared norm of the gradients of all rows.
    dirty_rows: name -> a byte for each row, marked where this step has moved
      it, of the arrays whose marks were given; a delta checkpoint saves these.
  """

  arrays: dict[str, jax.Array]
  slots: dict[str, dict[str, jax.Array]]
  square: jax.Array
  dirty_rows: dict[str, jax.Array]


class BagGradients(NamedTuple):
  """Gradients of sums of rows, before they are added up for each row.

  Attributes:
    ids: `[K]` rows that were summed, one bag after another.
    lengths: `[B]` ids of each bag, or None where each bag has one.
    grads: `[B, D]` gradient of each sum.
    weights: `[K]` factors of the ids, or None.
  """

  ids: jax.Array
  lengths: jax.Array | None
  grads: jax.Array
  weights: jax.Array | None = None


def distinct_ids(ids: list[jax.Array], rows: int) -> jax.Array:
  """The distinct ids, sorted, at static size; unused entries hold `rows`."""
  flat = jnp.concatenate([x.reshape(-1) for x in ids])
  flat = jnp.where(flat == UNREAD, rows, flat)  # as unused entries do
  return pallas_kernels.distinct_rows(flat, rows)


def fetch_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
  """The rows of distinct `ids`, `[K, D]`; zeros for unused entries."""
  return pallas_kernels.gather(table, ids, spare=True)


def pack_bags(read: Read) -> Read:
  """The bags of P microbatches, `[P, K]` and `[P, B]`, as one `[P * K]` read.

  Padding moves to the end, after the last bag; the order of the ids stays.
  """
  microbatches, count = read.ids.shape
  if microbatches == 1:
    return jax.tree.map(lambda x: x[0], read)
  # Each microbatch has padding of its own, in the middle of the whole.
  used = jnp.sum(read.lengths, axis=1)
  padding = (jnp.arange(count)[None] >= used[:, None]).reshape(-1)
  # Stable: sums add the rows of a bag in the order they were given.
  order = jnp.argsort(padding, stable=True)
  flat = jax.tree.map(lambda x: x.reshape(-1), read)
  weights = None if flat.weights is None else flat.weights[order]
  return dataclasses.replace(flat, ids=flat.ids[order], weights=weights)


def pool_table(table: jax.Array, read: Read) -> jax.Array:
  """Sums or means of the bags of one device's whole table, `[B, D]` float32."""
  sums = pallas_kernels.embedding_bag(
    table, read.ids, read.lengths, weights=read.weights
  )
  return finish_sums(sums.astype(jnp.float32), read, table.shape[0])


def finish_sums(sums: jax.Array, read: Read, rows: int) -> jax.Array:
  """Turns sums into what the read wants; all NaN if any id is not a row.

  Args:
    sums: `[B, D]` float32.
    read: the packed read.
    rows: number of rows of the table.
  """
  return mark_wrong_ids(apply_mean(sums, read), read, rows)


def mark_wrong_ids(x: jax.Array, read: Read, rows: int) -> jax.Array:
  """What was made of bags; all NaN if any of their ids is not a row.

  Wrong ids are left out of sums, which would hide them.

  Args:
    x: made of the bags.
    read: the packed read.
    rows: number of rows of its table.
  """
  real = jnp.arange(read.ids.shape[0]) < jnp.sum(read.lengths)
  wrong = jnp.any(real & ((read.ids < 0) | (read.ids >= rows)))
  return jnp.where(wrong, jnp.nan, x)


def apply_mean(x: jax.Array, read: Read) -> jax.Array:
  """Divides `[B, D]` by the length of each bag if the read wants means."""
  if read.pooling == 'sum':
    return x
  # Not a quotient: XLA joins it with others in some programs and not in others,
  # and the same step would round otherwise on another mesh.
  share = 1.0 / jnp.maximum(read.lengths, 1).astype(x.dtype)
  return x * share[:, None]


def bag_gradients(read: Read, grads: jax.Array) -> BagGradients:
  """Gradients of the sums or means of a read, `[B, D]`, as those of sums."""
  return BagGradients(
    read.ids, read.lengths, apply_mean(grads, read), read.weights
  )


def merge_row_gradients(
  gradients: Sequence[MergedRows | BagGradients], rows: int
) -> MergedRows:
  """Adds up the gradients of each row over several parts, in their order.

  The gradient of a bag is not written out for each of its ids.

  Args:
    gradients: at least one.
    rows: number of rows of the table; ids that are not rows are left out.
  """
  # The usual case: rows of one exchange, merged already.
  if len(gradients) == 1 and isinstance(gradients[0], MergedRows):
    return gradients[0]
  bags = gradients[0] if len(gradients) == 1 else _join_bags(gradients, rows)
  # Gradients by id need no arithmetic of bags.
  if bags.lengths is None and bags.weights is None:
    return pallas_kernels.merge_rows(bags.ids, bags.grads, rows)
  bags = _with_lengths(bags)
  return pallas_kernels.bag_row_gradient(
    bags.grads, bags.ids, bags.lengths, rows, weights=bags.weights
  )


def _join_bags(bags, rows: int) -> BagGradients:
  """All bags, one after another."""
  bags = [
    BagGradients(p.ids, None, p.grads) if isinstance(p, MergedRows) else p
    for p in bags
  ]
  weights = None
  # One part with weights gives all of them some; a weight of one changes
  # nothing.
  if any(p.weights is not None for p in bags):
    weights = jnp.concatenate(
      [
        jnp.ones(p.ids.shape, jnp.float32) if p.weights is None else p.weights
        for p in bags
      ]
    )
  if all(p.lengths is None for p in bags):
    ids, lengths, grads = [p.ids for p in bags], None, [p.grads for p in bags]
  else:
    # Padding in the middle would shift the bags of the parts after it.
    bags = [_without_padding(_with_lengths(p), rows) for p in bags]
    ids, grads = [p.ids for p in bags], [p.grads for p in bags]
    lengths = jnp.concatenate([p.lengths for p in bags])
  return BagGradients(
    jnp.concatenate(ids), lengths, jnp.concatenate(grads), weights
  )


def _with_lengths(bags: BagGradients) -> BagGradients:
  """The part with lengths; without them, every id is a bag of its own."""
  if bags.lengths is not None:
    return bags
  return bags._replace(lengths=jnp.ones(bags.ids.shape, jnp.int32))


def _without_padding(bags: BagGradients, rows: int) -> BagGradients:
  """Makes one more bag of the padding at the end, of ids that are not rows."""
  count = bags.ids.shape[0]
  used = jnp.sum(bags.lengths, dtype=jnp.int32)
  return bags._replace(
    ids=jnp.where(jnp.arange(count) < used, bags.ids, rows),
    lengths=jnp.append(bags.lengths, count - used),
    grads=jnp.pad(bags.grads, ((0, 1), (0, 0))),
  )


def expand_bags(
  gradients: MergedRows | BagGradients, rows: int
) -> tuple[jax.Array, jax.Array]:
  """The `[K]` ids and their `[K, D]` gradients; `rows` for padding."""
  if isinstance(gradients, MergedRows):
    return gradients.ids, gradients.grads
  ids, grads = gradients.ids, gradients.grads
  if gradients.lengths is not None:
    segment = pallas_kernels.segment_ids(gradients.lengths, ids.shape[0])
    ids = jnp.where(segment < gradients.lengths.shape[0], ids, rows)
    # Padding takes the gradient of the last bag, which its id then drops.
    grads = grads.at[segment].get(mode='clip')
  if gradients.weights is not None:
    grads *= gradients.weights[:, None]
  return ids, grads
