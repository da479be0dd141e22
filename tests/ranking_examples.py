"""Batches of ranking examples, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genrec_jax.data.ranking.rows import ColumnNames, Rows
from genrec_jax.data.ranking.store import SplitStore
from genrec_jax.features import Columns, Examples, Jagged, stack_columns


def make(
  ids: Mapping[str, Sequence[int]],
  labels: Mapping[str, Sequence[float]],
  numbers: Mapping[str, Sequence[float]] | None = None,
  bags: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
  **others: Any,
) -> Examples:
  """A batch of NumPy arrays.

  Args:
    ids: categorical feature -> `[B]` rows.
    labels: label -> `[B]`.
    numbers: numeric feature -> `[B]`.
    bags: multi_hot or sequence feature -> (`[K]` rows, `[B]` lengths).
    **others: fields of `Examples`; weights are 1 by default.
  """
  size = len(next(iter(labels.values())))
  none = Columns(np.zeros((size, 0), np.float32), ())
  return Examples(
    **{'weights': np.ones(size, np.float32), **others},
    dense=stack_columns(numbers, np.float32) if numbers else none,
    ids=stack_columns(ids, np.int32),
    jagged={
      name: Jagged(
        stack_columns({name: values}, np.int32),
        np.asarray(lengths, np.int32),
      )
      for name, (values, lengths) in (bags or {}).items()
    },
    labels=stack_columns(labels, np.float32),
  )


def hold_in_memory(
  name: str,
  rows: Rows,
  names: ColumnNames,
  block_rows: int = 1 << 14,
) -> SplitStore:
  """A part of rows that are at hand.

  Args:
    name: of the part.
    rows: all of them.
    names: what their columns are called.
    block_rows: rows of a block.
  """
  cuts = range(0, len(rows), block_rows)
  source = [rows.slice_rows(a, min(a + block_rows, len(rows))) for a in cuts]
  return SplitStore(name, [len(b) for b in source], source, names)
