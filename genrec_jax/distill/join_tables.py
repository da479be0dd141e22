"""Impressions and labels of a stream as a join takes them, or a refusal."""

import dataclasses
from collections.abc import Sequence

import numpy as np

try:
  import pyarrow as pa
except ImportError:
  raise ImportError(
    "joining labels needs pyarrow: pip install 'genrec_jax[parquet]'"
  ) from None

KEYS = ('example_id', 'time')


@dataclasses.dataclass(frozen=True, eq=False)
class LabelEntries:
  """Label events, one entry for each label that an event says.

  Attributes:
    example_id: `[E]` int64.
    time: `[E]` int64, when the event came.
    label: `[E]` int64, which of the labels.
    value: `[E]` float32.
  """

  example_id: np.ndarray
  time: np.ndarray
  label: np.ndarray
  value: np.ndarray

  def __len__(self) -> int:
    return len(self.example_id)


def read_impressions(
  table: pa.Table, labels: Sequence[str], where: str
) -> pa.Table:
  """Impressions with example_id and time first, both int64, in one chunk.

  Args:
    table: with these two columns and any others.
    labels: names that no column may have.
    where: names the table, for errors.
  """
  _check_columns(table, KEYS, f'the impressions of {where}')
  names = [x for x in table.column_names if x not in KEYS]
  for name in names:
    if name in labels:
      raise ValueError(
        f'the impressions of {where} have a column {name!r}, as a label is '
        'called: labels come in a table of their own'
      )
  columns = [
    pa.array(_read_integers(table, key, f'the impressions of {where}'))
    for key in KEYS
  ]
  columns += [_simplify_type(table[name]) for name in names]
  return pa.table(columns, [*KEYS, *names]).combine_chunks()


def read_labels(
  table: pa.Table, labels: Sequence[str], where: str
) -> LabelEntries:
  """The entries of a table of label events; a null says nothing.

  Args:
    table: with example_id, time and a column for each label; others are left.
    labels: their names.
    where: names the table, for errors.
  """
  where = f'the labels of {where}'
  _check_columns(table, (*KEYS, *labels), where)
  ids, times = (_read_integers(table, key, where) for key in KEYS)
  pieces = []
  for number, label in enumerate(labels):
    column = _join_chunks(table[label])
    try:
      values = column.cast(pa.float32(), safe=False)
    except pa.ArrowException:
      raise ValueError(
        f'{where}: the column {label!r} is of type {column.type}, not of '
        'numbers'
      ) from None
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = values.fill_null(0).to_numpy(zero_copy_only=False)[rows]
    if not np.isfinite(values).all():
      bad = ids[rows[np.argmin(np.isfinite(values))]]
      raise ValueError(
        f'{where}: {label!r} of the example {bad} is not finite; leave it '
        'empty if the event says nothing of it'
      )
    pieces.append((ids[rows], times[rows], np.full_like(rows, number), values))
  return join_entries([LabelEntries(*piece) for piece in pieces])


def join_entries(pieces: Sequence[LabelEntries]) -> LabelEntries:
  """The entries of several, one behind the other."""
  return LabelEntries(
    *(
      np.concatenate([getattr(piece, field.name) for piece in pieces])
      for field in dataclasses.fields(LabelEntries)
    )
  )


def check_schema(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
  """A table with its columns in the order of a schema, if it has those."""
  if {*table.column_names} != {*schema.names}:
    missing = [x for x in schema.names if x not in table.column_names]
    strange = [x for x in table.column_names if x not in schema.names]
    raise ValueError(
      f'the impressions of {where} have other columns than those before: '
      f'missing {missing}, additional {strange}'
    )
  table = table.select(schema.names)
  for at, (old, new) in enumerate(zip(schema, table.schema, strict=True)):
    if pa.types.is_null(new.type):  # of a file in which it is empty throughout
      table = table.set_column(at, old.name, table[at].cast(old.type))
    elif pa.types.is_null(old.type):
      raise ValueError(
        f'the impressions of {where} have {new.name!r} of type {new.type}, and '
        'all rows before were empty, so that nobody knew: write the column '
        'with its type in every file'
      )
    elif old.type != new.type:
      raise ValueError(
        f'the impressions of {where} have {new.name!r} of type {new.type}, and '
        f'those before {old.type}: write one type in every file'
      )
  return table


def find_difference(one: pa.Table, other: pa.Table) -> tuple[int, str] | None:
  """Row and column in which tables of one schema differ; None if nowhere.

  What is missing in both is equal, and so is what is no number in both.
  """
  for name in one.column_names:
    a, b = _join_chunks(one[name]), _join_chunks(other[name])
    if a.equals(b):
      continue
    # Only where they differ, or hold NaNs, which pyarrow takes as different.
    texts = zip(a.to_pylist(), b.to_pylist(), strict=True)
    for row, (left, right) in enumerate(texts):
      if left != right and repr(left) != repr(right):
        return row, name
  return None


def _check_columns(table: pa.Table, names: Sequence[str], where: str) -> None:
  if not isinstance(table, pa.Table):
    raise ValueError(
      f'{where} are of type {type(table).__name__}: give a table of pyarrow'
    )
  present = table.column_names
  if missing := [name for name in names if name not in present]:
    raise ValueError(
      f'{where} have no column {missing[0]!r}, but {", ".join(present)}'
    )
  if len({*present}) < len(present):
    raise ValueError(f'{where} have two columns of one name: {present}')


def _read_integers(table: pa.Table, key: str, where: str) -> np.ndarray:
  column = _join_chunks(table[key])
  if column.null_count:
    raise ValueError(f'{where}: the column {key!r} has empty rows')
  # Of an empty table nobody may know the types.
  if not pa.types.is_integer(column.type) and len(column):
    raise ValueError(
      f'{where}: the column {key!r} is of type {column.type}, not of whole '
      'numbers'
    )
  try:
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
  except pa.ArrowInvalid:
    raise ValueError(
      f'{where}: the column {key!r} has numbers of more than 63 bits'
    ) from None


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
  joined = column.combine_chunks()
  if isinstance(joined, pa.ChunkedArray):  # older versions of pyarrow
    joined = pa.concat_arrays(joined.chunks or [pa.array([], joined.type)])
  return joined


def _simplify_type(column: pa.ChunkedArray) -> pa.ChunkedArray:
  """The values themselves: how they are packed depends on who wrote a file."""
  kind = column.type
  if pa.types.is_dictionary(kind):
    column = column.cast(kind.value_type)
  if pa.types.is_large_string(column.type):
    return column.cast(pa.string())
  return column
