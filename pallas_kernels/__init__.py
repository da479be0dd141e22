"""Operators on jagged (packed) sequences. Depends on jax alone."""

from pallas_kernels.hstu_attention.api import hstu_attention
from pallas_kernels.jagged.api import (
  last_tokens,
  offsets,
  positions,
  segment_ids,
  to_dense,
  to_jagged,
)

__all__ = [
  'hstu_attention',
  'last_tokens',
  'offsets',
  'positions',
  'segment_ids',
  'to_dense',
  'to_jagged',
]
