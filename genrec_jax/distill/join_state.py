"""What a join of labels holds between two units, and its file."""

import dataclasses
import functools
import json
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from genrec_jax import sealed

# What becomes of a label of an example. Of several events, the largest counts.
BEHIND, AFTER_EMISSION, JOINED = 1, 2, 3
_MAGIC = b'genrec-join-2\n'


def find_rows(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Row of each wanted id; -1 where there is none.

  Args:
    ids: `[N]` int64, each once.
    wanted: `[M]` int64.
  """
  if not len(ids):
    return np.full(len(wanted), -1)
  order = np.argsort(ids)
  at = np.searchsorted(ids, wanted, sorter=order)
  rows = order[np.minimum(at, len(ids) - 1)]
  return np.where(ids[rows] == wanted, rows, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class OpenExamples:
  """Examples that wait for their labels, in the order in which they came.

  Attributes:
    tables: their columns, one table, or none before the first was read.
    own: `[N, S]` bool, which streams have them.
    fate: `[N, L]` int8, what has become of each label; 0 if it has not come.
    value: `[N, L]` float32, the largest that has come; 0 for none.
  """

  tables: tuple[pa.Table, ...]
  own: np.ndarray
  fate: np.ndarray
  value: np.ndarray

  @classmethod
  def of_none(cls, streams: int, labels: int) -> 'OpenExamples':
    """Before anything was read."""
    own, fate = np.zeros((0, streams), bool), np.zeros((0, labels), np.int8)
    return cls((), own, fate, fate.astype(np.float32))

  def __len__(self) -> int:
    return len(self.own)

  @property
  def schema(self) -> pa.Schema | None:
    return self.tables[0].schema if self.tables else None

  @functools.cached_property
  def example_id(self) -> np.ndarray:
    return self._read_column('example_id')

  @functools.cached_property
  def time(self) -> np.ndarray:
    return self._read_column('time')

  def _read_column(self, name: str) -> np.ndarray:
    if not self.tables:
      return np.zeros(0, np.int64)
    return self.tables[0][name].to_numpy()

  def add(
    self, table: pa.Table, owner: np.ndarray
  ) -> tuple['OpenExamples', np.ndarray]:
    """These and those of a table, each id once.

    Args:
      table: `M` impressions.
      owner: `[M]`, the number of the stream that each is of.

    Returns:
      The examples, and `[M]` of each impression the first row that has its id,
      in the rows of these with those of the table behind them.
    """
    whole = pa.concat_tables([*self.tables, table])
    _, first, inverse = np.unique(
      whole['example_id'].to_numpy(), return_index=True, return_inverse=True
    )
    first_of = first[inverse]
    kept = np.sort(first)
    place = np.empty(len(whole), np.int64)
    place[kept] = np.arange(len(kept))
    fresh = len(kept) - len(self)
    grown = OpenExamples(
      (whole.take(pa.array(kept)).combine_chunks(),),
      _lengthen(self.own, fresh, False),
      _lengthen(self.fate, fresh, 0),
      _lengthen(self.value, fresh, 0),
    )
    mine = first_of[len(self) :]
    grown.own[place[mine], owner] = True
    return grown, mine

  def label(
    self, fate: np.ndarray, cell: np.ndarray, value: np.ndarray
  ) -> 'OpenExamples':
    """These with labels that have come.

    Args:
      fate: `[N, L]` int8, all fates by now.
      cell: `[E]`, of each event that can be joined: row x L + label.
      value: `[E]` float32.
    """
    # What has come counts whatever it is, even below the 0 of what has not.
    values = np.where(self.fate == JOINED, self.value, -np.inf)
    np.maximum.at(values.reshape(-1), cell, value)
    values = np.where(fate == JOINED, values, 0).astype(np.float32)
    return dataclasses.replace(self, fate=fate, value=values)

  def take(self, rows: np.ndarray) -> 'OpenExamples':
    """Some of the rows, by number or by mask."""
    if rows.dtype == bool:
      rows = np.flatnonzero(rows)
    tables = [x.take(pa.array(rows)).combine_chunks() for x in self.tables]
    arrays = (self.own, self.fate, self.value)
    return OpenExamples(tuple(tables), *(array[rows] for array in arrays))

  def make_table(self, labels: Sequence[str]) -> pa.Table:
    """The columns, and a column for each label."""
    (table,) = self.tables
    for number, label in enumerate(labels):
      column = np.ascontiguousarray(self.value[:, number])
      table = table.append_column(label, pa.array(column))
    return table


@dataclasses.dataclass(frozen=True, eq=False)
class Emitted:
  """What is still known of examples that were given out.

  Attributes:
    example_id: `[N]` int64.
    time: `[N]` int64, of the impression.
    fate: `[N, L]` int8, as in `OpenExamples`.
  """

  example_id: np.ndarray
  time: np.ndarray
  fate: np.ndarray

  @classmethod
  def of_none(cls, labels: int) -> 'Emitted':
    """Before anything was given out."""
    none = np.zeros(0, np.int64)
    return cls(none, none, np.zeros((0, labels), np.int8))

  def add(self, examples: OpenExamples) -> 'Emitted':
    """These and others, behind them."""
    return Emitted(
      np.concatenate([self.example_id, examples.example_id]),
      np.concatenate([self.time, examples.time]),
      np.concatenate([self.fate, examples.fate]),
    )

  def take(self, rows: np.ndarray) -> 'Emitted':
    """Some of the rows."""
    return Emitted(self.example_id[rows], self.time[rows], self.fate[rows])


def encode(body: dict, open_examples: OpenExamples, emitted: Emitted) -> bytes:
  """A file of JSON, of examples and of arrays, with a checksum before them."""
  sink = pa.BufferOutputStream()
  examples = open_examples.tables[0] if open_examples.tables else pa.table({})
  body = body | dict(has_schema=bool(open_examples.tables))
  states = {
    f'{name}_{i}': column
    for name in ('own', 'fate', 'value')
    for i, column in enumerate(getattr(open_examples, name).T)
  }
  known = {f'fate_{i}': column for i, column in enumerate(emitted.fate.T)}
  known |= dict(example_id=emitted.example_id, time=emitted.time)
  tables = [examples]
  for columns in (states, known):
    columns = {x: np.ascontiguousarray(y) for x, y in columns.items()}
    tables.append(pa.table(columns))
  for table in tables:
    with pa.ipc.new_stream(sink, table.schema) as writer:
      writer.write_table(table)
  arrays = sink.getvalue().to_pybytes()
  head = json.dumps(body, sort_keys=True).encode()
  content = len(head).to_bytes(8, 'little') + head + arrays
  return _MAGIC + zlib.crc32(content).to_bytes(4, 'little') + content


def decode(content: bytes, where: str) -> tuple[dict, OpenExamples, Emitted]:
  """The inverse of `encode`.

  Raises:
    DamagedError: the content is not what it has returned.
  """
  start = len(_MAGIC) + 4
  checksum = int.from_bytes(content[len(_MAGIC) : start], 'little')
  if not content.startswith(_MAGIC) or zlib.crc32(content[start:]) != checksum:
    raise sealed.DamagedError(
      f'{where} is no state of a join, or is not as it was written; go back to '
      'an earlier one, or begin again'
    )
  size = int.from_bytes(content[start : start + 8], 'little')
  begin = start + 8 + size
  body = json.loads(content[start + 8 : begin])
  source = pa.BufferReader(content[begin:])
  tables = []
  for _ in range(3):
    with pa.ipc.open_stream(source) as reader:
      tables.append(reader.read_all().combine_chunks())
  examples, states, known = tables
  settings = body['settings']
  streams, labels = len(settings['streams']), len(settings['labels'])

  def stack(table: pa.Table, name: str, count: int) -> np.ndarray:
    columns = [
      table[f'{name}_{i}'].to_numpy(zero_copy_only=False) for i in range(count)
    ]
    return np.stack(columns, 1)

  open_examples = OpenExamples(
    (examples,) if body['has_schema'] else (),
    stack(states, 'own', streams),
    *(stack(states, x, labels) for x in ('fate', 'value')),
  )
  ids, times = known['example_id'].to_numpy(), known['time'].to_numpy()
  return body, open_examples, Emitted(ids, times, stack(known, 'fate', labels))


def _lengthen(array: np.ndarray, rows: int, value) -> np.ndarray:
  """The rows of an array, and so many more."""
  more = np.full((rows, *array.shape[1:]), value, array.dtype)
  return np.concatenate([array, more])
