"""The base data of a system: what vocabularies are made of.

Nothing trains on them. Teacher and students must not read the same file: the
teacher's examples have no scores.
"""

import pathlib

import numpy as np

from genrec_jax.data import scratch
from genrec_jax.data.parquet import pa, pq, read_whole
from genrec_jax.data.ranking import drift, drift_files
from genrec_jax.train.exfm.commands import SCORE, WEIGHT, Layout
from genrec_jax.train.exfm.settings import STUDENTS, TEACHER

_WINDOWS = 2  # of the generated stream


def write_base(layout: Layout) -> None:
  """Writes the base data, unless they are there.

  Args:
    layout: of the system.

  Raises:
    ValueError: the file of a user lacks a column, or has one too many.
  """
  done = layout.base(STUDENTS)
  if done.exists():
    return
  settings = layout.settings
  if settings.stream is not None:
    table = _read_stream(settings.stream, settings.label)
  else:
    table = _read_own(pathlib.Path(settings.base), settings.label)
  done.parent.mkdir(parents=True, exist_ok=True)
  zero = pa.array(np.zeros(len(table), np.float32))
  scored = table.append_column(SCORE, zero).append_column(WEIGHT, zero)
  for scope, written in ((TEACHER, table), (STUDENTS, scored)):
    with scratch.replaced_file(layout.base(scope)) as partial:
      pq.write_table(written, partial)


def _read_stream(log: drift.DriftLog, label: str) -> pa.Table:
  stream, tables = drift.DriftStream(log), []
  for k in range(min(_WINDOWS, log.windows)):
    window = stream.window(k)
    columns = drift_files.list_impressions(window)
    columns[label] = window.label.astype(np.float32)
    tables.append(pa.table(columns))
  return pa.concat_tables(tables)


def _read_own(path: pathlib.Path, label: str) -> pa.Table:
  table = read_whole(path)
  there = ', '.join(table.column_names)
  for name in ('example_id', 'time', label):
    if name not in table.column_names:
      raise ValueError(
        f'--base: {path} has no column {name!r}; it has {there}. It must have '
        'the columns of the impressions and the label'
      )
  for name in (SCORE, WEIGHT):
    if name in table.column_names:
      raise ValueError(
        f'--base: {path} has a column {name!r}, which is that of the scores in '
        'what the students read: leave it out, or give it another name'
      )
  return table
