"""Which tiles a block of queries reads, and which tiles read a block of keys.

Importing this file imports triton. Tiles of which every query sees every key
need no mask, so each range is a run of such tiles and a few masked ones around
it. All values are scalars, and all of them are positions in the sequence.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_tiles import limit_of, order


@triton.jit
def _round_up(x, block: tl.constexpr):
  return (x + block - 1) // block * block


@triton.jit
def keys_of_rows(row0, length, history, s: tl.constexpr):
  """Tiles of keys that the queries row0 .. row0 + block_q see.

  Args:
    row0: first query of the block.
    length: tokens of the sequence.
    history: position of the first target.
    s: constants.

  Returns:
    (head, low, full, edge, high, jump, end): [full, edge) is visible as a
    whole; [0, head), [low, full), [edge, high) and [jump, end) need a mask.
    Starts are multiples of block_k.
  """
  block: tl.constexpr = s.block_k
  row1 = tl.minimum(row0 + s.block_q, length)
  limit = limit_of(history, s)
  # Up to here all keys are history that comes before every row.
  edge = tl.minimum(row0, history) // block * block
  high = row1
  if s.contextual:
    # They see the whole history, also after themselves.
    if row0 < s.contextual:
      high = tl.maximum(row1, history)
  end = row1
  if s.targets:
    # Targets read the history, then each its own diagonal.
    if row0 >= history:
      high = history
  # The three runs follow one another and never overlap: a tile that is in two
  # would be counted twice.
  high = tl.maximum(_round_up(high, block), edge)
  jump = tl.maximum(row0 // block * block, high)
  end = tl.maximum(_round_up(end, block), jump)
  # A zero of the same type as the rest, which Triton wants of a variable that
  # is assigned in a branch.
  low = edge * 0
  full = low
  head = low
  if s.window:
    shift: tl.constexpr = max(s.contextual - 1, 0)
    first_order = order(row0, limit, s)
    last_order = order(row1 - 1, limit, s)
    # The first row reaches back furthest; from what the last one reaches on,
    # all rows see all keys.
    low = first_order - s.window
    full = last_order - s.window
    # From an order to a position; order 0 begins at the first token.
    low = tl.where(low > 0, low + shift, 0)
    full = tl.where(full > 0, full + shift, 0)
    if s.full_tail:
      # One row that the window does not bind makes the block read everything.
      low = tl.where(last_order >= limit - s.full_tail, 0, low)
      # Only if all rows are exempt do all see everything.
      full = tl.where(first_order >= limit - s.full_tail, 0, full)
    # Rounded outwards for what is read, inwards for what needs no mask.
    low = tl.minimum(low // block * block, edge)
    full = tl.minimum(tl.maximum(_round_up(full, block), low), edge)
    if s.prefix:
      head = tl.minimum(head + (s.prefix + block - 1) // block * block, low)
  return head, low, full, edge, high, jump, end


@triton.jit
def masked_keys(ranges, s: tl.constexpr):
  """How many of the tiles of `keys_of_rows` need a mask."""
  head, low, full, edge, high, jump, end = ranges
  return (head + full - low + high - edge + end - jump) // s.block_k


@triton.jit
def masked_key(ranges, tile, s: tl.constexpr):
  """The first key of a masked tile.

  Args:
    ranges: from `keys_of_rows`.
    tile: number of the tile, below `masked_keys`.
    s: constants.
  """
  head, low, full, edge, high, jump, end = ranges
  # Counts through the prefix and the first run, then skips the unmasked tiles,
  # then the gap before the diagonal of the targets.
  first = tile * s.block_k
  first = tl.where(first >= head, first + (low - head), first)
  first = tl.where(first >= full, first + (edge - full), first)
  return tl.where(first >= high, first + (jump - high), first)


@triton.jit
def rows_of_keys(key0, length, skipped, history, s: tl.constexpr):
  """Tiles of queries that see the keys key0 .. key0 + block_k.

  Args:
    key0: first key of the block.
    length: tokens of the sequence.
    skipped: position of the first query.
    history: position of the first target.
    s: constants.

  Returns:
    (head, context, begin, full, edge, near, tail, end): [full, edge) holds
    queries alone, which see all of the keys; [head, context), [begin, full),
    [edge, near) and [tail, end) need a mask. All are multiples of block_q.
  """
  block: tl.constexpr = s.block_q
  key1 = tl.minimum(key0 + s.block_k, length)
  limit = limit_of(history, s)
  # The first block that has a query.
  asked = skipped // block * block
  # Causal: every later token may see these keys.
  end = length
  if s.targets:
    # A target is seen by itself alone.
    if key0 >= history:
      end = key1
  end = _round_up(end, block)
  begin = key0 // block * block
  context = asked * 0
  if s.contextual:
    # Contextual tokens see keys that come after them.
    if key0 < history:
      context = tl.minimum((s.contextual + block - 1) // block * block, begin)
  head = tl.minimum(asked, context)
  # Blocks before the first query have nothing to do.
  begin = tl.minimum(tl.maximum(begin, asked), end)
  # From the first block after the keys on, each row sees all of them.
  full = _round_up(key0 + s.block_k, block)
  if s.targets:
    # A block with a target in it is never seen as a whole.
    if key1 > history:
      full = end
  full = tl.minimum(tl.maximum(full, begin), end)
  edge = end
  near = end
  tail = end
  if s.window:
    shift: tl.constexpr = max(s.contextual - 1, 0)
    # The last query that sees the first key, and the last that sees any.
    sees_all = order(key0, limit, s) + s.window
    sees_one = order(key1 - 1, limit, s) + s.window
    edge = (sees_all + shift + 1) // block * block
    near = _round_up(sees_one + shift + 1, block)
    # All targets have the order `limit`: if it is in reach, so are the rows to
    # the end.
    edge = tl.where(sees_all >= limit, end, edge)
    near = tl.where(sees_one >= limit, end, near)
    edge = tl.minimum(tl.maximum(edge, full), end)
    near = tl.minimum(tl.maximum(near, edge), end)
    if s.full_tail:
      # Behind the window, only the rows that it does not bind.
      tail = tl.maximum(history - s.full_tail, 0) // block * block
      tail = tl.minimum(tl.maximum(tail, near), end)
    if s.prefix:
      # All later rows see what is of the prefix, wherever they are.
      near = tl.where(key0 < s.prefix, end, near)
      edge = tl.where(key1 <= s.prefix, end, edge)
      tail = tl.maximum(tail, near)
  # What needs no mask is of queries alone.
  full = tl.minimum(tl.maximum(full, _round_up(skipped, block)), end)
  edge = tl.maximum(tl.minimum(edge, length // block * block), full)
  near = tl.maximum(near, edge)
  tail = tl.maximum(tail, near)
  return head, context, begin, full, edge, near, tail, end


@triton.jit
def masked_rows(ranges, s: tl.constexpr):
  """How many of the tiles of `rows_of_keys` need a mask."""
  head, context, begin, full, edge, near, tail, end = ranges
  total = context - head + full - begin + near - edge + end - tail
  return total // s.block_q


@triton.jit
def masked_row(ranges, tile, s: tl.constexpr):
  """The first query of a masked tile.

  Args:
    ranges: from `rows_of_keys`.
    tile: number of the tile, below `masked_rows`.
    s: constants.
  """
  head, context, begin, full, edge, near, tail, end = ranges
  # As in `masked_key`, through four runs.
  first = head + tile * s.block_q
  first = tl.where(first >= context, first + (begin - context), first)
  first = tl.where(first >= full, first + (edge - full), first)
  return tl.where(first >= near, first + (tail - near), first)
