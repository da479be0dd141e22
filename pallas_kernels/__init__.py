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
from pallas_kernels.jagged_embedding.api import (
  MergedRows,
  Rule,
  bag_row_gradient,
  bag_weight_gradient,
  distinct_rows,
  embedding_bag,
  embedding_bag_backward_and_update,
  gather,
  init_slots,
  merge_rows,
  update_rows,
)

__all__ = [
  'bag_row_gradient',
  'bag_weight_gradient',
  'concat',
  'distinct_rows',
  'embedding_bag',
  'embedding_bag_backward_and_update',
  'gather',
  'hstu_attention',
  'init_slots',
  'last_tokens',
  'merge_rows',
  'MergedRows',
  'offsets',
  'positions',
  'Rule',
  'segment_ids',
  'split',
  'to_dense',
  'to_jagged',
  'update_rows',
]
