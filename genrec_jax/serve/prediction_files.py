"""Files of recommendations: CSV, JSON lines or Parquet, by their suffix.

A file is written under another name and renamed when it is complete, so that
nobody ever reads half of one and a failure leaves an older one as it was.
"""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np

ROW_GROUP = 1 << 17  # rows of a Parquet file written together


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


class _Csv:
  def __init__(self, path: pathlib.Path):
    self._file = open(path, 'w', encoding='utf-8', newline='')
    self._csv = csv.writer(self._file, lineterminator='\n')
    self._headed = False

  def write(self, rows: Rows) -> None:
    # As text, a float32 is as short as it can be.
    score = rows.score.astype(str)
    columns = [rows.user, rows.rank, rows.item, score]
    columns = [column.tolist() for column in columns]
    names = ['user', 'rank', 'item', 'score']
    if rows.title is not None:
      columns.append(rows.title)
      names.append('title')
    if not self._headed:
      self._csv.writerow(names)
      self._headed = True
    self._csv.writerows(zip(*columns, strict=True))

  def close(self) -> None:
    self._file.close()


class _Jsonl:
  """One user a line: {"user": 7, "items": [{"item": 3, "score": 0.5}, ...]}."""

  def __init__(self, path: pathlib.Path):
    self._file = open(path, 'w', encoding='utf-8')

  def write(self, rows: Rows) -> None:
    users, items = rows.user.tolist(), rows.item.tolist()
    scores = rows.score.astype(str).astype(np.float64).tolist()
    starts = np.flatnonzero(rows.rank == 1).tolist()
    for a, b in zip(starts, [*starts[1:], len(users)], strict=True):
      found = []
      for i in range(a, b):
        found.append({'item': items[i], 'score': scores[i]})
        if rows.title is not None:
          found[-1]['title'] = rows.title[i]
      line = {'user': users[a], 'items': found}
      self._file.write(json.dumps(line, ensure_ascii=False) + '\n')

  def close(self) -> None:
    self._file.close()


class _Parquet:
  def __init__(self, path: pathlib.Path):
    self._arrow, self._parquet = _pyarrow()
    self._path, self._writer, self._waiting, self._rows = path, None, [], 0

  def write(self, rows: Rows) -> None:
    columns = {k: v for k, v in vars(rows).items() if v is not None}
    self._waiting.append(self._arrow.table(columns))
    self._rows += len(rows.user)
    if self._rows >= ROW_GROUP:
      self._flush()

  def _flush(self) -> None:
    if self._waiting:
      table = self._arrow.concat_tables(self._waiting)
      if self._writer is None:
        self._writer = self._parquet.ParquetWriter(self._path, table.schema)
      self._writer.write_table(table)
      self._waiting, self._rows = [], 0

  def close(self) -> None:
    self._flush()
    if self._writer is not None:
      self._writer.close()


FORMATS = {'.csv': _Csv, '.jsonl': _Jsonl, '.parquet': _Parquet}


def check(path: pathlib.Path) -> None:
  """Raises what `create` would, before an hour of work."""
  if path.suffix not in FORMATS:
    raise ValueError(
      f'predict.output is {str(path)!r}; its suffix must be one of '
      f'{", ".join(FORMATS)}'
    )
  if path.is_dir():
    raise ValueError(f'predict.output is {str(path)!r}, a directory')
  if path.suffix == '.parquet':
    _pyarrow()
  path.parent.mkdir(parents=True, exist_ok=True)
  if not os.access(path.parent, os.W_OK):
    raise PermissionError(f'{path.parent}: may not be written (predict.output)')


@contextlib.contextmanager
def create(path: pathlib.Path) -> Iterator:
  """A file with `write(rows)`; it is there when the context ends well."""
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    with contextlib.closing(FORMATS[path.suffix](temporary)) as file:
      yield file
    with open(temporary, 'rb') as written:
      os.fsync(written.fileno())
    os.replace(temporary, path)
  except OSError as e:
    failure = OSError(f'{path} could not be written: {e}')
    failure.errno = e.errno  # a full disk is told more about, see main.py
    raise failure from e
  finally:
    temporary.unlink(missing_ok=True)


def _pyarrow():
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError:
    raise ImportError(
      "writing Parquet needs pyarrow: pip install 'genrec_jax[parquet]'"
    ) from None
  return pyarrow, parquet
