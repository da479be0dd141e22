"""The files of items and of users beside a log of one's own."""

import dataclasses

import numpy as np

from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data.quoting import quote
from genrec_jax.data.requests import log_files, log_rows
from genrec_jax.data.requests.log_rows import LogRows


def open_table(options: LogOptions, what: str) -> log_files.LogFiles | None:
  """The file of the items or of the users, None where there is none.

  Args:
    options: of the log.
    what: 'item' or 'user'.
  """
  path, names = getattr(options, f'{what}s'), f'{what}_features'
  if not path:
    return None
  key = f'data.log.{what}s_id'
  if not getattr(options, f'{what}s_id'):
    key = f'data.log.{what}'
  wanted = {_find_id(options, what): key}
  wanted |= dict.fromkeys(getattr(options, names), f'data.log.{names}')
  return log_files.open_files(path, f'data.log.{what}s', wanted, options)


def _find_id(options: LogOptions, what: str) -> str:
  return getattr(options, f'{what}s_id') or getattr(options, what)


@dataclasses.dataclass(frozen=True)
class Features:
  """Features of V items or users.

  Attributes:
    codes: column -> its texts.
    columns: column -> `[V + 1]` their numbers, by the number of the id.
  """

  codes: dict[str, log_files.Codes]
  columns: dict[str, np.ndarray]


def read_features(
  table_files: log_files.LogFiles | None,
  files: log_files.LogFiles,
  rows: LogRows,
  options: LogOptions,
  what: str,
) -> Features:
  """What the file of the items or of the users says of those of the log.

  Args:
    table_files: that file, or None.
    files: of the log, for messages.
    rows: of the log.
    options: of the log.
    what: 'item' or 'user'.

  Raises:
    ValueError: an id of the log has no row.
  """
  if table_files is None:
    return Features({}, {})
  path, column = getattr(options, f'{what}s'), getattr(options, what)
  table = log_files.read_table(
    table_files,
    path,
    _find_id(options, what),
    getattr(options, f'{what}_features'),
  )
  ids = rows.codes[column].texts[1:]
  found, missing = table.select(ids)
  if missing and options.unlisted == 'error':
    where = log_rows.find_row(files, column, missing[0])
    raise ValueError(
      f'{where}: {what} {quote(missing[0])} has no row in {path}, like '
      f'{len(missing):,} of {len(ids):,} {what}s in all; add it, or set '
      '--config.data.log.unlisted=missing'
    )
  none = np.zeros(1, np.int32)
  columns = {name: np.concatenate([none, x]) for name, x in found.items()}
  return Features(dict(table.codes), columns)
