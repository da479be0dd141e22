"""Operators on jagged (packed) sequences. Depends on jax alone."""

from pallas_kernels.hstu_attention.api import hstu_attention
from pallas_kernels.jagged.api import (
  concat,
  last_tokens,
  offsets,
  positions,
  segment_ids,
  split,
  to_dense,
  to_jagged,
)

__all__ = [
  'concat',
  'hstu_attention',
  'last_tokens',
  'offsets',
  'positions',
  'segment_ids',
  'split',
  'to_dense',
  'to_jagged',
]
