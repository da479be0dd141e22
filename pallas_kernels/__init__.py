"""Operations on jagged (packed) sequences and on tables of rows.

They depend on jax and numpy alone. Each one checks its arguments and then runs
the best implementation that this machine has; see docs/kernels.md.
"""

from pallas_kernels.backends import list_backends
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
from pallas_kernels.jagged_embedding.scores import score_rows

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
  'list_backends',
  'merge_rows',
  'MergedRows',
  'offsets',
  'positions',
  'Rule',
  'score_rows',
  'segment_ids',
  'split',
  'to_dense',
  'to_jagged',
  'update_rows',
]
