"""The Parquet files of Yambda -> columns of events, in bounded memory.

Columns and types are those of the folder flat: uid, timestamp and item_id are
uint32; listens have played_ratio_pct, which may exceed 100, and
track_length_seconds, which are missing for other events; the file of all events
says event_type. Times are seconds in bins of 5.
"""

from collections.abc import Iterator

import numpy as np

from genrec_jax.data import readers, text
from genrec_jax.data.quoting import quote
from genrec_jax.data.requests import user_files

SITE = 'https://huggingface.co/datasets/yandex/yambda'
USER, ITEM, TIME = 'uid', 'item_id', 'timestamp'
_TYPE = 'event_type'
_PLAYED, _LENGTH = 'played_ratio_pct', 'track_length_seconds'
LISTENED, SKIPPED, LISTEN = 'listen_plus', 'skip', 'listen'
BITS = {
  LISTENED: 1,
  'like': 2,
  SKIPPED: 4,
  'dislike': 8,
  'unlike': 16,
  'undislike': 32,
}
LISTEN_BITS = BITS[LISTENED] | BITS[SKIPPED]
# Event type -> the file that holds nothing else.
FILES = {
  LISTEN: 'listens.parquet',
  'like': 'likes.parquet',
  'dislike': 'dislikes.parquet',
  'unlike': 'unlikes.parquet',
  'undislike': 'undislikes.parquet',
}
_ALL = 'multi_event.parquet'
_LARGEST = np.iinfo(np.uint32).max
_LATEST = np.iinfo(np.int32).max  # so that steps and ages have room


def find_files(path, options) -> dict[str, object]:
  """Event type -> file; '' for a file that says the types of its events."""
  from genrec_jax.data import parquet

  if path.is_file():
    has_types = _TYPE in parquet.read_schema(path).names
    return {'' if has_types else LISTEN: path}
  needed = [_ALL]
  if options.source != 'multi_event' and not (
    options.source == 'auto' and (path / _ALL).is_file()
  ):
    needed = [FILES[name] for name in (LISTEN, *options.feedback)]
  for name in needed:
    if not (path / name).is_file():
      raise FileNotFoundError(
        f'{path / name}: no such file; give a directory such as flat/50m, from '
        f'{SITE}'
        + (', or leave its events out of feedback' if name != needed[0] else '')
      )
  if needed == [_ALL]:
    return {'': path / _ALL}
  types = (LISTEN, *options.feedback)
  return {name: path / FILES[name] for name in types}


def read_files(files, options) -> dict[str, np.ndarray]:
  """Columns `[N]` of the events, by user and time."""
  parts = {}
  to_sort = options.sort or len(files) > 1
  for kind, path in files.items():
    last = None
    for first, part in _read_file(path, kind, options):
      if not to_sort:
        _check_order(path, first, part, last)
        last = part[USER][-1].item(), part[TIME][-1].item()
      is_kept = part['action'] > 0
      for name, values in part.items():
        kept = values if is_kept.all() else values[is_kept]
        parts.setdefault(name, []).append(kept)
  with text.explain_memory(path):
    columns = {name: np.concatenate(parts.pop(name)) for name in [*parts]}
    if not to_sort:
      return columns
    keys = columns[USER].astype(np.uint64) << np.uint64(32)
    keys |= columns[TIME]
    # Stable, so that events of one time stay in the order of files and rows.
    order = np.argsort(keys, kind='stable')
    del keys
    return {name: columns.pop(name)[order] for name in [*columns]}


def _read_file(
  path, kind: str, options
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
  """Number of the first row, from 1, and the columns of each batch.

  Args:
    path: the file.
    kind: type of its events; '' where a column says it.
    options: see there.

  Yields:
    Users, items and times as uint32, 'action' uint8, 0 for what is not asked
    for, and maybe 'watch_time'.
  """
  from genrec_jax.data import parquet

  wanted = [USER, ITEM, TIME] + [_TYPE] * (not kind)
  if kind in ('', LISTEN):
    wanted += [_PLAYED] + [_LENGTH] * options.watch_time
  schema = parquet.read_schema(path)
  user_files.find_columns(
    path, schema.names, wanted, f'a file of {kind or "all"} events of Yambda'
  )
  for name in wanted:
    if parquet.is_list(schema.field(name).type):
      raise ValueError(
        f'{path}: the column {name!r} holds lists, as in the folder '
        'sequential; give the file of the folder flat'
      )
  first = 1
  for batch in parquet.read_batches(
    path, wanted, readers.CHUNK_ROWS, coded=[_TYPE]
  ):
    yield first, _read_batch(path, batch, kind, first, options)
    first += batch.num_rows
  if first == 1:
    raise readers.EmptyFileError(
      f'{path}: the file holds no events; download it anew'
    )


def _read_batch(path, batch, kind, first, options) -> dict[str, np.ndarray]:
  """The columns of a batch; arguments as of `_read_file`."""

  def find_where(row: int) -> str:
    return f'{path}, row {first + row}'

  part = {
    name: _read_whole(batch[name], name, find_where) for name in (USER, ITEM)
  }
  part[TIME] = _read_times(batch[TIME], part[USER], find_where)
  count = batch.num_rows
  action = np.full(count, BITS.get(kind, 0), np.uint8)
  is_listen = np.full(count, kind == LISTEN)
  if not kind:
    is_listen, action = _read_types(batch[_TYPE], part, options, find_where)
  watched = np.zeros(count, np.float32)
  if kind in ('', LISTEN):
    played = _read_listens(batch[_PLAYED], _PLAYED, is_listen, part, find_where)
    listened = played >= options.threshold
    action[is_listen & listened] = BITS[LISTENED]
    action[is_listen & ~listened] = BITS[SKIPPED]
    if options.watch_time:
      length = _read_listens(
        batch[_LENGTH], _LENGTH, is_listen, part, find_where
      )
      watched = (played * length / 100).astype(np.float32)
  part['action'] = action
  if options.watch_time:
    part['watch_time'] = watched
  return part


def _read_whole(values, name: str, find_where) -> np.ndarray:
  """A column of ids or times, as uint32."""
  from genrec_jax.data import parquet

  numbers, good = parquet.read_whole_numbers(values, find_where(0), name)
  good &= (numbers >= 0) & (numbers <= _LARGEST)
  if not good.all():
    bad = int(np.argmin(good))
    raise ValueError(
      f'{find_where(bad)}: {name} is {quote(parquet.show_value(values, bad))}, '
      'not a whole number of 32 bits; mend or remove the row'
    )
  return numbers.astype(np.uint32)


def _read_times(values, users: np.ndarray, find_where) -> np.ndarray:
  """The column of times, as uint32."""
  times = _read_whole(values, TIME, find_where)
  if (times > _LATEST).any():
    bad = int(np.argmax(times > _LATEST))
    raise ValueError(
      f'{find_where(bad)}: {TIME} of user {users[bad]} is {times[bad]}, more '
      f'than {_LATEST} seconds; is it in milliseconds? give seconds, or remove '
      'the row'
    )
  return times


def _read_listens(values, name, is_listen, part, find_where) -> np.ndarray:
  """A column of floats that listens must have; 0 for what is no listen."""
  from genrec_jax.data import parquet

  numbers, good = parquet.read_finite_numbers(values, find_where(0), name)
  good &= numbers >= 0
  if not good[is_listen].all():
    bad = int(np.argmin(good | ~is_listen))
    raise ValueError(
      f'{find_where(bad)}: {name} of a listen of user {part[USER][bad]} is '
      f'{quote(parquet.show_value(values, bad))}, not a number of 0 or more; '
      'mend or remove the row'
    )
  return np.where(is_listen, numbers, 0)


def _read_types(values, part, options, find_where):
  """Which events are listens `[N]`, and the bits of the others `[N]`."""
  from genrec_jax.data import parquet

  names, codes = parquet.read_coded_texts(values, find_where(0), _TYPE)
  known = np.array([name in FILES for name in names] + [False])
  if not known[codes].all():
    bad = int(np.argmin(known[codes]))
    raise ValueError(
      f'{find_where(bad)}: event_type of user {part[USER][bad]} is '
      f'{quote(parquet.show_value(values, bad))}, none of '
      f'{", ".join(FILES)}; remove the row'
    )
  bits = [BITS[name] if name in options.feedback else 0 for name in names]
  listens = [name == LISTEN for name in names]
  # The last one is of what is missing, and refused above.
  return (
    np.array([*listens, False])[codes],
    np.array([*bits, 0], np.uint8)[codes],
  )


def _check_order(path, first: int, part, last: tuple[int, int] | None) -> None:
  """Refuses rows that are not sorted by user and time."""
  user = part[USER].astype(np.int64)
  time = part[TIME].astype(np.int64)
  if last is not None:
    user = np.concatenate([[last[0]], user])
    time = np.concatenate([[last[1]], time])
    first -= 1
  back = (user[1:] < user[:-1]) | (
    (user[1:] == user[:-1]) & (time[1:] < time[:-1])
  )
  if not back.any():
    return
  at = int(np.argmax(back)) + 1
  where = f'{path}, row {first + at}'
  if user[at] != user[at - 1]:
    raise ValueError(
      f'{where}: user {user[at]} stands behind user {user[at - 1]}; sort the '
      'file by uid and timestamp, or set sort=True'
    )
  raise ValueError(
    f'{where}: the time of user {user[at]} runs backwards, from {time[at - 1]} '
    f'to {time[at]}; sort the file by uid and timestamp, or set sort=True'
  )
