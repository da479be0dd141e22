"""Scores of a teacher in memory, and as the bytes of a Parquet file."""

import dataclasses
from collections.abc import Sequence

import numpy as np

try:
  import pyarrow as pa
  import pyarrow.parquet as pq
except ImportError:
  raise ImportError(
    "the scores of a teacher need pyarrow: pip install 'genrec_jax[parquet]'"
  ) from None

COLUMNS = ('example_id', 'time', 'snapshot_step', 'snapshot_window')
_ROW_GROUP = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
  """Scores of N examples for L labels.

  Attributes:
    example_id: `[N]` int64, each once.
    time: `[N]` int64, when the example was shown.
    values: `[N, L]` float32, finite.
    snapshot_step: `[N]` int64, or one number for all: the step of the teacher.
    snapshot_window: `[N]` int64, or one number for all: the last window that
      the teacher was trained on at that step.
  """

  example_id: np.ndarray
  time: np.ndarray
  values: np.ndarray
  snapshot_step: np.ndarray | int
  snapshot_window: np.ndarray | int

  def __len__(self) -> int:
    return len(self.example_id)

  def take(self, rows) -> 'Scores':
    """Some of the rows, of scores whose fields are all arrays."""
    return Scores(
      *(getattr(self, field.name)[rows] for field in dataclasses.fields(self))
    )


def check_labels(labels: Sequence[str]) -> None:
  """Refuses names that a part cannot have as columns."""
  if isinstance(labels, str) or not labels or len({*labels}) < len(labels):
    raise ValueError(
      f'labels are {labels!r}: give the names of the labels, each once'
    )
  for label in labels:
    if label in COLUMNS or not label:
      raise ValueError(
        f'a label cannot be called {label!r}, as a column of a part is: '
        f'{", ".join(COLUMNS)}'
      )


def normalise(scores: Scores, labels: Sequence[str], name: str) -> Scores:
  """Scores as they are stored: arrays of their types, in order of (time, id).

  Args:
    scores: as a user has them.
    labels: of the store.
    name: what they are, for errors.

  Raises:
    ValueError: they are not N scores of L labels.
  """
  ids = _read_integers(scores.example_id, 'example_id', name)
  count = len(ids)
  numbers = [ids] + [
    _read_integers(getattr(scores, key), key, name, count)
    for key in COLUMNS[1:]
  ]
  values = np.asarray(scores.values, np.float32)
  if values.shape != (count, len(labels)):
    raise ValueError(
      f'the scores of {name!r} have values of shape {list(values.shape)}, and '
      f'{count} examples with {len(labels)} labels need '
      f'{[count, len(labels)]}'
    )
  bad = ~np.isfinite(values).all(1)
  if bad.any():
    at = int(np.argmax(bad))
    raise ValueError(
      f'the scores of {name!r} are not finite in {int(bad.sum()):,} rows, as '
      f'of the example {ids[at]}: {values[at].tolist()}'
    )
  in_order = np.sort(ids)
  twice = in_order[1:][in_order[1:] == in_order[:-1]]
  if len(twice):
    raise ValueError(f'the scores of {name!r} have example {twice[0]} twice')
  whole = Scores(ids, numbers[1], values, *numbers[2:])
  return whole.take(np.lexsort((ids, numbers[1])))


def merge(parts: Sequence[Scores]) -> Scores:
  """The rows of several, in order of (time, id)."""
  whole = Scores(
    *(
      np.concatenate([getattr(part, field.name) for part in parts])
      for field in dataclasses.fields(Scores)
    )
  )
  return whole.take(np.lexsort((whole.example_id, whole.time)))


def encode(scores: Scores, labels: Sequence[str]) -> bytes:
  """A Parquet file; equal scores are equal bytes of one version of pyarrow."""
  columns = {key: getattr(scores, key) for key in COLUMNS[:2]}
  columns |= {x: scores.values[:, i] for i, x in enumerate(labels)}
  columns |= {key: getattr(scores, key) for key in COLUMNS[2:]}
  sink = pa.BufferOutputStream()
  pq.write_table(pa.table(columns), sink, row_group_size=_ROW_GROUP)
  return sink.getvalue().to_pybytes()


def decode(content: bytes, labels: Sequence[str]) -> Scores:
  """The inverse of `encode`."""
  table = pq.read_table(pa.BufferReader(content))
  values = np.empty((len(table), len(labels)), np.float32)
  for i, label in enumerate(labels):
    values[:, i] = table[label].to_numpy()
  ids, time, step, window = (table[key].to_numpy() for key in COLUMNS)
  return Scores(ids, time, values, step, window)


def decode_ids(content: bytes) -> np.ndarray:
  """The ids alone, `[N]` int64, of what `encode` has returned."""
  table = pq.read_table(pa.BufferReader(content), columns=['example_id'])
  return table['example_id'].to_numpy()


def _read_integers(
  values, key: str, name: str, count: int | None = None
) -> np.ndarray:
  """`[N]` int64; with a count one number stands for all."""
  array = np.asarray(values)
  if not array.size and array.ndim == 1:
    array = array.astype(np.int64)
  if array.dtype.kind not in 'iu' or (
    array.dtype.kind == 'u' and (array > np.iinfo(np.int64).max).any()
  ):
    raise ValueError(
      f'{key} of the scores of {name!r} is of type {array.dtype}: give whole '
      'numbers of 64 bits'
    )
  if array.ndim == 0 and count is not None:
    array = np.broadcast_to(array, (count,))
  if array.ndim != 1 or count not in (None, len(array)):
    wanted = 'N' if count is None else count
    raise ValueError(
      f'{key} of the scores of {name!r} is of shape {list(array.shape)} and '
      f'should be [{wanted}]'
    )
  return array.astype(np.int64)
