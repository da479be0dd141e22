"""Which query rows and keys the XLA path takes together: static plans.

A row reads all keys before it; in groups of rows that is a triangle in steps.
Where a window binds the rows, they read as many keys each, and only these: one
group of blocks, whose keys move with it, behind a short triangle.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.hstu_attention import masks
from pallas_kernels.hstu_attention.spec import Spec

MAX_GROUPS = 8  # a program unrolls into; bounds the compile time
MIN_BLOCK = 40
MAX_BLOCK = 128  # rows at once; a group of more rows walks through them
CHUNK_ELEMENTS = 1 << 17  # scores alive at once, per head


class QueryRows(NamedTuple):
  """Query rows that read equally many keys, all sizes static.

  Attributes:
    row: first row, in the sequence, or in its queries where q is a tail.
    block: rows at once.
    blocks: how many such blocks.
    head: how many keys at the head of the sequence, a prefix.
    reach: how many keys before a block are read, where a window moves with the
      rows (with the sequence, where q is a tail); None: all from the first.
    width: how many keys, those of the head too.
    shortest: members are the sequences longer than this ...
    longest: ... and no longer than this.
    chunk: sequences at once.
  """

  row: int
  block: int
  blocks: int
  head: int
  reach: int | None
  width: int
  shortest: int
  longest: int
  chunk: int

  def columns(self, row, length=None) -> jax.Array:
    """`[1, width]` positions of the keys, `[c, width]` where q is a tail.

    Args:
      row: first row of the block.
      length: `[c]` of the sequences whose last keys are read.
    """
    if self.reach is None:
      return jnp.arange(self.width)[None]
    size = self.width - self.head
    if length is None:
      start = jnp.reshape(row - self.reach, (1, 1))
    else:
      start = jnp.maximum(length - size, 0)[:, None]
    behind = start + jnp.arange(size)[None]
    if not self.head:
      return behind
    head = jnp.broadcast_to(
      jnp.arange(self.head)[None], (start.shape[0], self.head)
    )
    # Keys that the window has reached must not count twice.
    head = jnp.where(head < start, head, -1)
    return jnp.concatenate([head, behind], axis=1)


def _round_up(value: int, multiple: int) -> int:
  return -(-value // multiple) * multiple


def groups(spec: Spec, batch: int, tail: bool) -> list[QueryRows]:
  """The static plan.

  Args:
    spec: options of the call.
    batch: sequences B.
    tail: whether q holds only the last tokens of each sequence.
  """

  def group(row, block, blocks, width, shortest, longest, reach=None):
    head = 0
    if reach is not None:
      head = masks.prefix_tokens(spec)
      width = head + reach + block if not tail else head + reach
    # As many sequences at once as keep the scores in the cache.
    chunk = max(1, min(batch, CHUNK_ELEMENTS // (block * width)))
    return QueryRows(
      row, block, blocks, head, reach, width, shortest, longest, chunk
    )

  reach = _find_reach(spec)
  if tail:
    size, _ = _divide(spec.max_len)
    block = _cut(min(size, _round_up(spec.max_queries, 8)))
    blocks = -(-spec.max_queries // block)
    if reach is not None:
      # The last keys of each sequence, which its context sees, too, if it asks.
      reach += _round_up(spec.max_queries + spec.contextual, 8)
      if reach + masks.prefix_tokens(spec) < spec.max_len:
        return [group(0, block, blocks, 0, 0, spec.max_len, reach)]
    # Any query may be the last of its sequence, so a group reads all keys of
    # its members; grouping by length keeps short ones from paying for long
    # ones.
    return [
      group(0, block, blocks, e + size, e, e + size)
      for e in range(0, spec.max_len, size)
    ]
  # Up to here rows read from the first key on.
  end = spec.max_len
  if reach is not None:
    # All tokens of the context are as far away as the last of them.
    least = reach + max(masks.prefix_tokens(spec), spec.contextual)
    end = min(_round_up(least, MAX_BLOCK), end)
  plan, done = [], 0
  size, block = _divide(end)
  for edge in range(0, end, size):
    width = edge + size
    if edge < spec.contextual:  # sees later tokens too
      width = _round_up(spec.max_len, 8)
    # Longer than the first row, or no query of the block exists.
    plan.append(group(edge, block, size // block, width, edge, spec.max_len))
    done = edge + size
  if done < spec.max_len:
    blocks = -(-(spec.max_len - done) // MAX_BLOCK)
    plan.append(group(done, MAX_BLOCK, blocks, 0, done, spec.max_len, reach))
  return plan


def _divide(rows: int) -> tuple[int, int]:
  """Rows of a group, and of a block: few groups, of a short program."""
  size = max(MIN_BLOCK, -(-rows // MAX_GROUPS))
  block = _cut(size)
  # Whole blocks: a row in two groups would be counted twice.
  return _round_up(size, block), block


def _cut(rows: int) -> int:
  # Rows of a long block share its keys but go through memory in parts.
  parts = -(-rows // MAX_BLOCK)
  return _round_up(-(-rows // parts), 8)


def _find_reach(spec: Spec) -> int | None:
  """How many keys before a row its window reaches; None for all of them."""
  # The full tail looks back further than the window.
  if spec.window is None or spec.full_tail:
    return None
  # Targets look back from where the first of them stands. Rounded to whole
  # vectors.
  return _round_up(spec.window + spec.max_targets, 8)
