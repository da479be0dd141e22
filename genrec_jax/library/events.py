"""Events in memory -> a directory of histories, as the converter writes it."""

import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import convert, datasets, fields, readers, text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.quoting import quote
from genrec_jax.library import columns as columns_lib
from genrec_jax.library.columns import Column

LOG = logging.getLogger('genrec_jax')
ROLES = {
  'user': 'the users',
  'item': 'the items',
  'time': 'the times',
  'rating': 'the ratings',
}
HINTS = {
  'user': "Say what it is called, as in user='customer_id'",
  'item': "Say what it is called, as in item='product_id'",
  'time': (
    "Say what it is called, as in time='timestamp', or time=None where the "
    'events of each user stand in their order'
  ),
  'rating': "Say what it is called in settings['data.columns.rating']",
}


def write_events(
  columns: Mapping[str, np.ndarray],
  cfg,
  directory: pathlib.Path,
  log: Callable[[str], None],
) -> pathlib.Path:
  """Writes the events once; the same events are found there later.

  Args:
    columns: from `columns.read_columns`.
    cfg: `config.data`, which names the columns of users, items, times ('' for
      none) and ratings, and says which events are kept.
    directory: of the run's data.
    log: called with progress messages.

  Returns:
    A directory that `config.data.name='histories'` reads.
  """
  if cfg.extras:
    raise ValueError(
      f'data.extras ({", ".join(cfg.extras)}): extra columns are read from '
      'files alone; give the path of a CSV or Parquet file'
    )
  events = read_events(columns, cfg)
  vocab = None
  if cfg.item_vocab:
    vocab = vocab_lib.Vocab.load(cfg.item_vocab)
  options = {
    'min_rating': cfg.min_rating,
    'min_item_events': cfg.min_item_events,
    'min_user_events': cfg.min_user_events,
    'unknown': cfg.unknown_items,
  }
  digest = hashlib.sha256(json.dumps(options).encode())
  if vocab is not None:
    digest.update(vocab.fingerprint().encode())
  for name in ROLES:
    column = getattr(events, name)
    if column is not None:
      digest.update(f'{name} {column.dtype}'.encode())
      for content in text_arrays.view_content(column):
        digest.update(content.data)
  if events.fraction is not None:
    digest.update(events.fraction.data)
  fingerprint = digest.hexdigest()[:16]
  out = directory / f'events-{fingerprint}'
  convert.convert_log(
    _in_chunks(events),
    out,
    item_vocab=vocab,
    fingerprint=fingerprint,
    log=log,
    **options,
  )
  return out


def read_events(columns: Mapping[str, np.ndarray], cfg) -> readers.Events:
  """The events that columns hold; arguments as in `write_events`.

  Raises:
    ValueError: a column is missing, or a value in it; row numbers are counted
      from 0.
  """

  def find_role(role: str) -> Column:
    column = columns_lib.find_column(
      columns, cfg.columns[role], ROLES[role], 'events', HINTS[role]
    )
    if column.lengths is not None:
      raise ValueError(
        f'column {cfg.columns[role]!r} holds lists; give one row for each event'
      )
    return column

  def find_ids(role: str) -> np.ndarray:
    name = cfg.columns[role]
    ids = read_ids(name, find_role(role), cfg.id_type)
    if columns_lib.holds_bools(columns[name]):
      raise ValueError(
        f'column {name!r} holds True or False, which are not ids; convert it '
        'to text or whole numbers if it is meant'
      )
    return ids

  time = fraction = rating = None
  user, item = find_ids('user'), find_ids('item')
  if cfg.columns.time:
    time, fraction = read_times(
      cfg.columns.time, find_role('time'), cfg.time_unit
    )
  if cfg.columns.rating:
    rating = _read_ratings(cfg.columns.rating, find_role('rating'))
  return readers.Events(
    user, item, time, rating, where='row {}'.format, fraction=fraction
  )


def _in_chunks(events: readers.Events) -> Iterator[readers.Events]:
  def cut_column(column, first):
    end = first + readers.CHUNK_ROWS
    return None if column is None else column[first:end]

  for first in range(0, len(events), readers.CHUNK_ROWS):
    yield readers.Events(
      *(cut_column(getattr(events, name), first) for name in ROLES),
      where=lambda i, first=first: f'row {first + i}',
      fraction=cut_column(events.fraction, first),
    )


def _refuse_missing(name: str, good: np.ndarray, what: str) -> None:
  if not good.all():
    raise ValueError(
      f'column {name!r}, row {int(np.argmin(good))}: the {what} is missing '
      f'({int(np.sum(~good)):,} of {len(good):,} are); leave such rows out'
    )


def read_ids(name: str, column: Column, ids: str = 'auto') -> np.ndarray:
  """`[N]` int64 or str.

  Args:
    name: of the column, for messages.
    column: text or whole numbers, also as floats.
    ids: 'int' or 'str' converts, 'auto' takes the type of the column.
  """
  if column.kind == 'time':
    raise ValueError(f'column {name!r} holds dates, which are not ids')
  if column.present is not None:
    _refuse_missing(name, column.present, 'id')
  values = column.values
  if column.kind == 'text':
    _refuse_missing(name, values != '', 'id')
    lengths = np.strings.str_len(values)
    if lengths.max(initial=0) > text_arrays.LONGEST_ID:
      row = int(np.argmax(lengths))
      raise ValueError(
        f'column {name!r}, row {row}: {quote(str(values[row]))} is not an id, '
        f'which has at most {text_arrays.LONGEST_ID:,} characters'
      )
    if ids == 'int':
      values, good = vocab_lib.parse_ints(values)
      if not good.all():
        row = int(np.argmin(good))
        value = quote(str(column.values[row]))
        raise ValueError(
          f'column {name!r}, row {row}: {value} is not a '
          "whole number, and settings['data.id_type'] is 'int'"
        )
    return values
  if column.kind == 'float':  # as DataFrames hold integers beside missing ones
    whole, good = fields.read_whole_floats(values)
    if not good.all():
      row = int(np.argmin(good))
      raise ValueError(
        f'column {name!r}, row {row}: {values[row]} is not an id; ids are text '
        'or whole numbers'
      )
    values = whole
  return values.astype(str) if ids == 'str' else values


def warn_of_unknown(histories: Sequence[Sequence], known: np.ndarray) -> bool:
  """Says so where not one item of some histories is known.

  Args:
    histories: items of each user.
    known: ids of the items of the model.

  Returns:
    Whether it was said.
  """
  items = set(itertools.chain.from_iterable(histories))
  if not items or not items.isdisjoint(known.tolist()):
    return False
  LOG.warning(
    'the model knows none of the items, such as %r; its ids are %s, such as %r',
    next(iter(items)),
    'text' if text_arrays.is_text(known) else 'whole numbers',
    known.item(len(known) - 1),
  )
  return True


def read_times(name: str, column: Column, unit: str) -> fields.Times:
  """N times since 1970.

  Args:
    name: of the column, for messages.
    column: dates, numbers or texts of dates.
    unit: of numbers, 's', 'ms', 'us' or 'ns'.
  """
  if column.present is not None:
    _refuse_missing(name, column.present, 'time')
  values = column.values
  if unit not in fields.UNITS:
    raise ValueError(
      f"settings['data.time_unit'] is {unit!r}, must be one of "
      f'{", ".join(fields.UNITS)}'
    )
  if column.kind == 'time':
    times, good = fields.from_dates(values)
  elif column.kind == 'int':
    times, good = fields.from_integers(values, unit)
  elif column.kind == 'float':
    times, good = fields.from_floats(values, unit)
  else:
    times, good = fields.parse_times(values.tolist(), unit)
  if not good.all():
    row = int(np.argmin(good))
    raise ValueError(
      f'column {name!r}, row {row}: {quote(str(values[row]))} is not '
      f'{fields.WANTED["time"]}'
    )
  late = times.seconds > datasets.YEAR_9999
  if late.any():
    raise ValueError(
      f'column {name!r}, row {int(np.argmax(late))}: as seconds since 1970 the '
      'time is beyond the year 9999; are the times in another unit? Set '
      "settings['data.time_unit'] to 'ms', 'us' or 'ns'"
    )
  return times


def _read_ratings(name: str, column: Column) -> np.ndarray:
  """`[N]` float32."""
  if column.kind not in ('int', 'float'):
    raise ValueError(f'column {name!r} holds no numbers, as ratings must be')
  if column.present is not None:
    _refuse_missing(name, column.present, 'rating')
  return column.values.astype(np.float32)
