"""How the TPU kernels lay out tokens, and which blocks meet.

This is plain XLA, and all of it is a few integers for each token. Queries are
cut into blocks of `block_q` rows, keys into blocks of `block_k`. If q has every
token, a row is a token. If q holds the tails of the sequences, each tail gets
blocks of its own, so that the numbers of rows and keys differ by one constant
in a block. With a position bias this constant is a multiple of `tile`, because
the bias comes in square tiles of equal distance (`toeplitz`).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.hstu_attention import masks, tpu_heads
from pallas_kernels.hstu_attention.spec import Context, Spec
from pallas_kernels.hstu_attention.tpu_pairs import Pairs, list_pairs
from pallas_kernels.jagged import api as jagged

TILE = 128  # lanes of a register

# Rows of `TokenPlaces.queries` and `TokenPlaces.keys`.
FIELDS = 8
SEGMENT, ORDER, TOKEN, TIME = range(4)
LIMIT, TARGET, SCALE = 4, 5, 6  # queries only
TARGET_BIAS = 4  # keys only


@dataclasses.dataclass(frozen=True)
class KernelPlan:
  """What the kernels are compiled for, beside the Spec. Hashable.

  Attributes:
    block_q: query rows at once.
    block_k: keys at once.
    tile: side of a tile of the position bias; divides both.
    heads: heads at once, and their lanes.
    buckets: size of the time table, 0 for none.
    targets: whether the keys have a position bias for targets.
    interpret: argument of `pl.pallas_call`.
  """

  block_q: int
  block_k: int
  tile: int
  heads: tpu_heads.HeadPlan
  buckets: int
  targets: bool
  interpret: object

  def lanes(self, head: int) -> tuple[tpu_heads.Lanes, tpu_heads.Lanes]:
    """Where a head of a step lies: its queries and keys, and its values."""
    heads = self.heads
    return tuple(
      tpu_heads.find_lanes(head, width, heads.together * width)
      for width in (heads.dqk, heads.dv)
    )


class TokenPlaces(NamedTuple):
  """What the kernels need to know about the tokens, all int32.

  Attributes:
    queries: `[8, R]` fields of each row; segment 0 for rows without a query.
    keys: `[8, K]` fields of each key; segments from 1, B + 1 for padding.
    by_query: query blocks with the key blocks that they see.
    by_key: key blocks with the query blocks that see them.
    shift: tiles by which a query block's tokens are ahead of its rows.
    ends: `[2]` how many rows of the queries hold numbers, and how many keys.
    seed: `[1]` bits of the dropout seed.
  """

  queries: jax.Array
  keys: jax.Array
  by_query: Pairs
  by_key: Pairs
  shift: jax.Array
  ends: jax.Array
  seed: jax.Array


class QueryLayout(NamedTuple):
  """The rows of the queries.

  Attributes:
    rows: number R of rows.
    real: `[Tq]` which tokens of q are not padding.
    row: `[Tq]` the row of each; R for padding. None: rows are tokens.
    source: `[R]` the token of each row; Tq for none. None: rows are tokens.
  """

  rows: int
  real: jax.Array
  row: jax.Array | None
  source: jax.Array | None


def round_up(x, multiple: int):
  return -(-x // multiple) * multiple


def layout(
  spec: Spec, plan: KernelPlan, context: Context, queries: int, aligned: bool
) -> QueryLayout:
  """Assigns the tokens of q to rows.

  Args:
    spec: options of the call.
    plan: block_q and tile are read.
    context: lengths of the call.
    queries: capacity Tq.
    aligned: whether rows and tokens must differ by a multiple of `plan.tile`.
  """
  asking = context.query_lengths
  block = plan.block_q
  if asking is None:
    real = jnp.arange(queries) < jnp.sum(context.lengths)
    return QueryLayout(round_up(queries, block), real, None, None)
  batch = asking.shape[0]
  # Number of the key that the first query of each tail is.
  start = jagged.offsets(context.lengths) + context.lengths - asking
  # Empty rows before a tail, so that it starts at the same place of a tile as
  # its keys do.
  ahead = start % plan.tile if aligned else jnp.zeros_like(start)
  blocks = jnp.where(asking > 0, -(-(ahead + asking) // block), 0)
  # Most blocks there can be: by the tokens of q, and by the longest tail.
  slack = (block - 1) + (plan.tile - 1 if aligned else 0)
  # Static, so it may count blocks that no batch fills.
  rows = min(
    round_up(queries + batch * slack, block),
    batch * round_up(spec.max_queries + slack, block),
  )
  segment = jagged.segment_ids(asking, queries)
  real = segment < batch
  first = jagged.offsets(blocks) * block + ahead
  row = first.at[segment].get(mode='fill', fill_value=0)
  # Padding is sent past the end, where a scatter drops it.
  row = jnp.where(real, row + jagged.positions(asking, queries), rows)
  token = jnp.arange(queries, dtype=jnp.int32)
  source = jnp.full(rows, queries, jnp.int32).at[row].set(token, mode='drop')
  return QueryLayout(rows, real, row, source)


def place_queries(where: QueryLayout, x: jax.Array, axis: int) -> jax.Array:
  """Tokens `Tq` of an axis become rows `R`, zeros where there is no query."""
  if where.source is not None:
    return jnp.take(x, where.source, axis, mode='fill', fill_value=0)
  real = where.real.reshape(-1, *(1,) * (x.ndim - 1 - axis))
  return pad(jnp.where(real, x, jnp.zeros_like(x)), where.rows, axis)


def gather(where: QueryLayout, x: jax.Array) -> jax.Array:
  """`[R, ...] -> [Tq, ...]`, zeros in the padding tokens."""
  if where.row is not None:
    return x.at[where.row].get(mode='fill', fill_value=0)
  return x[: where.real.shape[0]]


def pad(x: jax.Array, size: int, axis: int = 0) -> jax.Array:
  """`x` with zeros at the end of an axis, up to `size`."""
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, widths)


def call(
  spec: Spec, plan: KernelPlan, context: Context, where: QueryLayout, keys: int
) -> TokenPlaces:
  """Computes the fields of all tokens and the ranges of all blocks.

  Args:
    spec: options of the call.
    plan: block sizes.
    context: lengths and times of the call.
    where: layout of the queries.
    keys: number of keys K, including padding.
  """
  query = masks.query_places(spec, context, where.real.shape[0])
  key = masks.key_places(spec, context, keys)
  # The divisor of softmax is only known at the end of the row.
  if spec.mode == 'softmax':
    divisor = 1.0
  else:
    divisor = spec.normaliser or context.normaliser
  # One factor for a query, applied once to its output.
  scale = 1.0 / ((1.0 - spec.dropout) * divisor)
  scale = jnp.broadcast_to(jnp.float32(scale), where.real.shape)
  query_time, time = context.query_time, context.time
  if time is None:
    query_time, time = jnp.zeros_like(query.token), jnp.zeros_like(key.token)
  # Whether a query is a target; they read another position bias.
  targets = jnp.zeros_like(query.token)
  if context.targets is not None:
    begin = context.lengths - context.targets
    begin = begin.at[query.segment].get(mode='fill', fill_value=0)
    targets = (query.position >= begin).astype(jnp.int32)
  fields = (
    # From 1: rows without a query have segment 0, padding keys B + 1, and
    # neither matches anything.
    jnp.where(where.real, query.segment + 1, 0),
    query.order,
    query.token,
    query_time,
    query.limit,
    targets,
    # As an integer: one array of fields is one copy for each block.
    lax.bitcast_convert_type(scale, jnp.int32),
  )
  queries = place_queries(where, _stack(fields), axis=1)
  bounds = [*key_range(spec, query), *prefix_range(spec, query)]
  bounds = place_queries(where, jnp.stack(bounds), axis=1)
  blocks = keys // plan.block_k
  first, last = find_ranges(spec, plan, queries, bounds, blocks)
  capacity = bound_pairs(
    spec,
    plan,
    (len(first), blocks),
    len(context.lengths),
    context.query_lengths is not None,
  )
  by_query, by_key = list_pairs(first, last, blocks, capacity)
  # The same for all queries of a block; rows without one must not win the
  # maximum.
  token = queries[TOKEN] - jnp.arange(where.rows, dtype=jnp.int32)
  token = jnp.where(queries[SEGMENT] > 0, token, -(1 << 30))
  shift = jnp.max(token.reshape(-1, plan.block_q), 1) // plan.tile
  seed = context.dropout_seed
  seed = jnp.zeros((), jnp.uint32) if seed is None else seed
  tokens = jnp.sum(context.lengths, dtype=jnp.int32)
  # Rows that were gathered are zero where they hold no query.
  asking = tokens if where.source is None else jnp.int32(where.rows)
  return TokenPlaces(
    queries,
    _stack((key.segment + 1, key.order, key.token, pad(time, keys))),
    by_query,
    by_key,
    shift,
    jnp.stack((asking, tokens)),
    lax.bitcast_convert_type(seed.astype(jnp.uint32), jnp.int32)[None],
  )


def _stack(fields) -> jax.Array:
  # A row a field: beside each other in a row, 8 numbers would take 128 lanes.
  return pad(jnp.stack([f.astype(jnp.int32) for f in fields]), FIELDS)


def key_range(spec: Spec, query: masks.TokenPositions):
  """First and last key token that each query may see; one run, not exact."""
  # Number of the first key of the sequence.
  start = query.token - query.position
  contextual = max(spec.contextual - 1, 0)  # order = position - contextual
  first, last = start, query.token
  if spec.window is not None:
    # From an order back to a position; order 0 is the first token.
    reach = jnp.maximum(query.order - spec.window, 0)
    reach = jnp.where(reach > 0, reach + contextual, 0)
    first = jnp.where(_is_tail(spec, query.order, query.limit), 0, reach)
    # Never beyond itself, which every token sees.
    first = jnp.minimum(start + first, query.token)
  if spec.contextual:
    # Contextual tokens see the history to its end.
    history = start + query.limit + contextual - 1
    context = query.order == 0
    first = jnp.where(context, start, first)
    last = jnp.where(context, jnp.maximum(history, last), last)
  return first, last


def prefix_range(spec: Spec, query: masks.TokenPositions):
  """First and last key token of the prefix that each query sees; () without."""
  if not spec.prefix:
    return ()
  start = query.token - query.position
  last = start + masks.prefix_tokens(spec) - 1
  return start, jnp.minimum(last, query.token)


def _is_tail(spec: Spec, order, limit):
  """Whether the window does not bind a token."""
  if spec.full_tail:
    return order >= limit - spec.full_tail
  return jnp.zeros(order.shape, bool)


def find_ranges(spec: Spec, plan: KernelPlan, queries, bounds, blocks: int):
  """The key blocks that query blocks see, as runs of blocks.

  Args:
    spec: options of the call.
    plan: block sizes.
    queries: fields of the rows.
    bounds: `[2 * runs, R]` first and last key of each run of a row.
    blocks: number of key blocks.

  Returns:
    The first and the last key block of each run, `[R / block_q, runs]`: one,
    and before it that of a prefix, where there is one. Runs do not overlap. A
    run without blocks ends before it begins.
  """
  real = queries[SEGMENT] > 0
  order, limit = queries[ORDER], queries[LIMIT]

  def hull(chosen, run=0):
    # A block in which no row is chosen has an empty hull: first beyond the last
    # block, last before the first.
    low = jnp.where(chosen, bounds[2 * run] // plan.block_k, blocks)
    high = jnp.where(chosen, bounds[2 * run + 1] // plan.block_k, -1)
    low = low.reshape(-1, plan.block_q).min(1)
    return low, high.reshape(-1, plan.block_q).max(1)

  first, last = hull(real)
  if not spec.prefix:
    return first[:, None], last[:, None]
  # What the window reaches is read with it, and so are the prefixes of later
  # sequences of a block: they would make the run as long as the first one.
  near = real & ~_is_tail(spec, order, limit)
  if spec.contextual:
    near &= order != 0
  reach = jnp.repeat(first, plan.block_q)
  head, neck = hull(near & (bounds[2] // plan.block_k < reach), 1)
  neck = jnp.minimum(neck, first - 1)
  return jnp.stack((head, first), 1), jnp.stack((neck, last), 1)


def bound_pairs(
  spec: Spec, plan: KernelPlan, sizes: tuple[int, int], batch: int, tails: bool
) -> int:
  """The most pairs that a list by query block can have.

  Args:
    spec: options of the call.
    plan: block sizes.
    sizes: numbers of query blocks and of key blocks.
    batch: number of sequences.
    tails: whether a query block has rows of one sequence alone.
  """
  rows, blocks = sizes

  def count_keys(back: int, ahead: int) -> int:
    """Key blocks of a query block whose rows see so far in both directions."""
    tokens = back + plan.block_q + ahead
    if tails:
      tokens = min(tokens, spec.max_len)
    return min(_touch(tokens, plan.block_k), blocks)

  furthest = spec.max_len - 1
  all_blocks = count_keys(furthest, furthest if spec.contextual else 0)
  back = furthest
  if spec.window is not None:
    # It counts orders, which context and targets share.
    shared = max(spec.contextual - 1, 0) + spec.max_targets
    back = min(furthest, spec.window + shared)
  near = count_keys(back, 0)
  if spec.prefix:
    near += _touch(masks.prefix_tokens(spec), plan.block_k)
  near = min(near, all_blocks)
  # Query blocks with a token that sees more.
  free = 0
  if spec.full_tail:
    tail = spec.full_tail + spec.contextual + spec.max_targets
    free += _touch(tail, plan.block_q)
  if spec.contextual:
    free += _touch(spec.contextual, plan.block_q)
  return rows * near + min(rows, batch * free) * (all_blocks - near)


def _touch(tokens: int, block: int) -> int:
  """The most blocks that a run of tokens can touch.

  >>> _touch(1, 8), _touch(2, 8), _touch(9, 8), _touch(10, 8)
  (1, 2, 2, 3)
  """
  return (tokens - 2) // block + 2


def toeplitz(spec: Spec, plan: KernelPlan, table: jax.Array) -> jax.Array:
  """Arranges a position bias in tiles, by the distance of two tiles.

  Entry `[d, a, c]` is the bias of a key `(d - zero_tile) * tile + c - a` tokens
  after its query. The tiles are made by reshapes alone, so the transpose needs
  no scatter.

  Args:
    spec: options of the call; max_len and contextual are read.
    plan: block sizes; the side of a tile is read.
    table: `[2n - 1]`.

  Returns:
    `[D, tile, tile]` float32.
  """
  t = plan.tile
  # Distances run up to zero, and beyond where context looks ahead.
  zero = zero_tile(spec, plan)
  tiles = zero + 1 + (zero if spec.contextual else 0)
  n = (table.shape[0] + 1) // 2
  # So much is missing before the table, or too much if negative.
  low = (zero + 1) * t - n
  high = (tiles + 1) * t - low - table.shape[0]
  zeros = jnp.zeros((), jnp.float32)
  line = lax.pad(table.astype(jnp.float32), zeros, [(low, high, 0)])
  # A tile of side t touches 2t - 1 distances: two neighbouring runs of t.
  line = line.reshape(tiles + 1, t)
  line = jnp.concatenate([line[:-1], line[1:]], axis=1)
  # Rows of 2t numbers read as rows of 2t - 1: each starts one later.
  rows = jnp.broadcast_to(line[:, None], (tiles, t, 2 * t))
  rows = rows.reshape(tiles, -1)[:, : t * (2 * t - 1)]
  return rows.reshape(tiles, t, 2 * t - 1)[:, :, t - 1 :]


def zero_tile(spec: Spec, plan: KernelPlan) -> int:
  """The tile of distance 0."""
  return -(-(spec.max_len - 1) // plan.tile)
