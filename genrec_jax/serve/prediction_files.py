"""Files of recommendations and of scores: CSV, JSON lines or Parquet.

A file is written under another name and renamed when it is complete, so that
nobody ever reads half of one and a failure leaves an older one as it was.
"""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import scratch
from genrec_jax.data.remote_files import RemotePath

_ANY_LENGTH = np.dtypes.StringDType()
ROW_GROUP = 1 << 17  # rows of a Parquet file written together
# How a cell begins that a spreadsheet runs.
FORMULAS = ('=', '+', '-', '@', '\t', '\r')


@dataclasses.dataclass(frozen=True)
class Rows:
  """N recommendations; those of a user stand together, best first.

  Attributes:
    user: `[N]` original ids.
    rank: `[N]` 1 for the best.
    item: `[N]` original ids.
    score: `[N]` float32.
    title: N texts ('' where there is none), or None for a catalogue without.
  """

  user: np.ndarray
  rank: np.ndarray
  item: np.ndarray
  score: np.ndarray
  title: list[str] | None = None

  def columns(self) -> dict:
    """Name -> values, as tables have them."""
    return {k: v for k, v in vars(self).items() if v is not None}

  def lines(self) -> Iterator[dict]:
    """{"user": 7, "items": [{"item": 3, "score": 0.5}, ...]} of each user."""
    users, items = self.user.tolist(), self.item.tolist()
    scores = _shorten_floats(self.score)
    starts = np.flatnonzero(self.rank == 1).tolist()
    for a, b in zip(starts, [*starts[1:], len(users)], strict=True):
      entries = []
      for i in range(a, b):
        entries.append({'item': items[i], 'score': scores[i]})
        if self.title is not None:
          entries[-1]['title'] = self.title[i]
      yield {'user': users[a], 'items': entries}


@dataclasses.dataclass(frozen=True)
class Scores:
  """Probabilities of N examples, in the order of the input.

  Attributes:
    first: number of the first example; the first of a file is 1.
    labels: name of each label.
    probabilities: `[N, L]` float32.
    kept: columns of the input: N texts, or `[N]` numbers, masked where missing.
  """

  first: int
  labels: tuple[str, ...]
  probabilities: np.ndarray
  kept: Mapping[str, list | np.ndarray] = dataclasses.field(
    default_factory=dict
  )

  def columns(self) -> dict:
    """Name -> values, as tables have them."""
    rows = np.arange(self.first, self.first + len(self.probabilities))
    names = name_scores(self.labels)
    scores = zip(names, self.probabilities.T, strict=True)
    return {'row': rows, **self.kept, **dict(scores)}

  def lines(self) -> Iterator[dict]:
    """{"row": 1, "user": "u7", "score": 0.25} of each example."""
    return _list_lines(self.columns())


@dataclasses.dataclass(frozen=True)
class CandidateScores:
  """Scores of N candidates; those of a request stand together.

  Attributes:
    request: `[N]` number of the request; the first of a file is 1.
    named: who is asked for what: column -> N texts, or `[N]` numbers, masked
      where missing.
    labels: name of each label.
    scores: `[N, L]` float32.
  """

  request: np.ndarray
  named: Mapping[str, list | np.ndarray]
  labels: tuple[str, ...]
  scores: np.ndarray

  def columns(self) -> dict:
    """Name -> values, as tables have them."""
    scores = zip(name_scores(self.labels), self.scores.T, strict=True)
    return {'request': self.request, **self.named, **dict(scores)}

  def lines(self) -> Iterator[dict]:
    """{"request": 1, "user": 7, "item": 3, "score": 0.25}, each candidate."""
    return _list_lines(self.columns())


def _list_lines(columns: Mapping) -> Iterator[dict]:
  columns = {
    name: _shorten_floats(x)
    if getattr(x, 'dtype', '') == np.float32
    else np.ma.asarray(x).tolist()
    if isinstance(x, np.ndarray)
    else x
    for name, x in columns.items()
  }
  for values in zip(*columns.values(), strict=True):
    yield dict(zip(columns, values, strict=True))


def name_scores(labels: Sequence[str]) -> list[str]:
  """The columns of the scores.

  >>> name_scores(['click']), name_scores(['click', 'buy'])
  (['score'], ['score_click', 'score_buy'])
  """
  if len(labels) == 1:
    return ['score']
  return [f'score_{label}' for label in labels]


def _shorten_floats(values: np.ndarray) -> list[float]:
  """Of the numbers that round to these float32, those with fewest digits."""
  return values.astype(str).astype(np.float64).tolist()


Predictions = Rows | Scores | CandidateScores


class _Csv:
  escape_formulas = False

  def __init__(self, path: pathlib.Path):
    self._file = open(path, 'w', encoding='utf-8', newline='')
    self._csv = csv.writer(self._file, lineterminator='\n')
    self._headed = False

  def write(self, rows: Predictions) -> None:
    columns = rows.columns()
    if not self._headed:
      self._csv.writerow(self._format_column(list(columns)))
      self._headed = True
    values = [self._format_column(column) for column in columns.values()]
    self._csv.writerows(zip(*values, strict=True))

  def _format_column(self, column) -> list:
    """A column for csv; as text, a float32 is as short as it can be."""
    if not isinstance(column, list):
      kind = column.dtype.kind
      column = (column.astype(str) if kind == 'f' else column).tolist()
      if kind in 'fiu':  # a negative number is no formula
        return column
    if not self.escape_formulas:
      return column
    return [f"'{x}" if x.startswith(FORMULAS) else x for x in column]

  def close(self) -> None:
    self._file.close()


class _Jsonl:
  def __init__(self, path: pathlib.Path):
    self._file = open(path, 'w', encoding='utf-8')

  def write(self, rows: Predictions) -> None:
    for line in rows.lines():
      self._file.write(json.dumps(line, ensure_ascii=False) + '\n')

  def close(self) -> None:
    self._file.close()


class _Parquet:
  def __init__(self, path: pathlib.Path):
    self._arrow, self._parquet = _import_pyarrow()
    self._path, self._writer, self._waiting, self._rows = path, None, [], 0

  def write(self, rows: Predictions) -> None:
    columns = {
      # Not every pyarrow knows NumPy's strings of any length.
      name: x.tolist() if getattr(x, 'dtype', '') == _ANY_LENGTH else x
      for name, x in rows.columns().items()
    }
    table = self._arrow.table(columns)
    self._waiting.append(table)
    self._rows += table.num_rows
    if self._rows >= ROW_GROUP:
      self._write_waiting()

  def _write_waiting(self) -> None:
    if self._waiting:
      table = self._arrow.concat_tables(self._waiting)
      if self._writer is None:
        self._writer = self._parquet.ParquetWriter(self._path, table.schema)
      self._writer.write_table(table)
      self._waiting, self._rows = [], 0

  def close(self) -> None:
    self._write_waiting()
    if self._writer is not None:
      self._writer.close()


FORMATS = {'.csv': _Csv, '.jsonl': _Jsonl, '.parquet': _Parquet}


def check_path(path: pathlib.Path) -> None:
  """Raises what `create_file` would, before an hour of work."""
  if path.suffix not in FORMATS:
    raise ValueError(
      f'predict.output is {str(path)!r}; its suffix must be one of '
      f'{", ".join(FORMATS)}'
    )
  if path.is_dir():
    raise ValueError(f'predict.output is {str(path)!r}, a directory')
  if path.suffix == '.parquet':
    _import_pyarrow()
  if not isinstance(path, pathlib.Path):
    return  # `is_dir` has reached the store
  path.parent.mkdir(parents=True, exist_ok=True)
  if not os.access(path.parent, os.W_OK):
    raise PermissionError(f'{path.parent}: may not be written (predict.output)')


@contextlib.contextmanager
def create_file(
  path: pathlib.Path, *, escape_formulas: bool = False
) -> Iterator:
  """A file with `write(rows)`; it is there when the context ends well.

  Args:
    path: of the file, or its URL; its suffix is the format.
    escape_formulas: whether texts that a spreadsheet would run as formulas get
      an apostrophe in front, in CSV.
  """
  try:
    with _staged_file(path) as partial:
      with contextlib.closing(FORMATS[path.suffix](partial)) as file:
        file.escape_formulas = escape_formulas
        yield file
  except OSError as e:
    failure = OSError(f'{path} could not be written: {e}')
    failure.errno = e.errno  # main.py adds a remedy where the disk is full
    raise failure from e


@contextlib.contextmanager
def _staged_file(path: pathlib.Path | RemotePath) -> Iterator[pathlib.Path]:
  """The place of a file on the disk that goes to `path` when it is complete."""
  if isinstance(path, pathlib.Path):
    with scratch.replaced_file(path) as partial:
      yield partial
    return
  with tempfile.TemporaryDirectory(prefix='genrec_jax-') as directory:
    partial = pathlib.Path(directory) / path.name
    yield partial
    path.upload(partial)


def _import_pyarrow():
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError:
    raise ImportError(
      "writing Parquet needs pyarrow: pip install 'genrec_jax[parquet]'"
    ) from None
  return pyarrow, parquet
