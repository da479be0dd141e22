"""A log of any length -> a directory of histories, in constant memory.

1. Read: the chunks are appended to one spill file with provisional codes for
   users and items, and events per user and item are counted.
2. Route: the spill file is divided into one file per range of users; a range
   holds about `partition_events` events.
3. Sort: each file is loaded, sorted stably by (user, time, fraction of the
   second), and appended to the columns; the fractions are not kept.

Memory holds the ids of users and items, one chunk and one partition, but never
all events. The result gets its name by a rename, when it is complete.
"""

import dataclasses
import json
import pathlib
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax import sealed
from genrec_jax.data import codes, readers, scratch
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.equal_events import (
  CHOICES,
  drop_equal_events,
  find_equal_events,
)
from genrec_jax.data.quoting import LONGEST, escape

PARTITION_EVENTS = 1 << 21
SPILL_CHUNK = 1 << 19
LOG_SECONDS = 5.0
_SPILL = np.dtype(
  [
    ('user', '<i4'),
    ('item', '<i4'),
    ('time', '<i8'),
    ('fraction', '<i4'),
    ('rating', '<f4'),
  ]
)


class _Columns:
  """Appends to .npy files whose final length is known."""

  def __init__(
    self, directory: pathlib.Path, dtypes: Mapping[str, np.dtype], rows: int
  ):
    self._files = {}
    self._dtypes = dtypes
    for name, dtype in dtypes.items():
      f = open(directory / f'{name}.npy', 'wb')
      np.lib.format.write_array_header_1_0(
        f,
        {
          'descr': np.dtype(dtype).str,
          'fortran_order': False,
          'shape': (rows,),
        },
      )
      self._files[name] = f

  def append(self, name: str, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values, self._dtypes[name])
    self._files[name].write(values.data)

  def close(self) -> None:
    for f in self._files.values():
      f.close()


class _Progress:
  """Passes a line on to `log` at most every `LOG_SECONDS`."""

  def __init__(self, log: Callable[[str], None]):
    self._log = log
    self._last = clock.monotonic()

  def __call__(self, what: str, events: int) -> None:
    if clock.monotonic() - self._last > LOG_SECONDS:
      self._last = clock.monotonic()
      self._log(f'{what}: {events:,} events')


@dataclasses.dataclass
class _Log:
  """What the reading pass learns; the events themselves are in `spill`."""

  spill: pathlib.Path
  vocab: vocab_lib.Vocab | None
  extras: tuple[extras_lib.ExtraColumn, ...] = ()
  extra_vocabs: dict[str, vocab_lib.Vocab] = dataclasses.field(
    default_factory=dict
  )
  categories: dict[str, codes.Codes] = dataclasses.field(default_factory=dict)
  users: codes.Codes = dataclasses.field(default_factory=codes.Codes)
  items: codes.Codes = dataclasses.field(default_factory=codes.Codes)
  user_counts: codes.CodeCounts = dataclasses.field(
    default_factory=codes.CodeCounts
  )
  item_counts: codes.CodeCounts = dataclasses.field(
    default_factory=codes.CodeCounts
  )
  has: dict[str, bool] | None = None
  read: int = 0
  unknown: int = 0
  low: int = 0

  @property
  def record(self) -> np.dtype:
    """What the spill says of an event."""
    fields = [(_of_extra(i), e.dtype) for i, e in enumerate(self.extras)]
    return np.dtype(_SPILL.descr + [(n, d.str) for n, d in fields])


def _of_extra(number: int) -> str:
  """Field of the spill, and file; a column's own name may hold anything."""
  return f'extra-{number}'


def _item_codes(chunk, seen: _Log, unknown: str):
  """Codes of a chunk's items, and which events may stay (None: all)."""
  if seen.vocab is None:
    return seen.items.encode(chunk.item), None
  index = seen.vocab.encode(chunk.item)
  good = index > 0
  if good.all():
    return index - 1, None
  if unknown == 'error':
    bad = int(np.argmin(good))
    item = escape(str(chunk.item[bad])[:LONGEST])
    raise ValueError(
      f'{chunk.where(bad)}: item {item} is not in '
      f"the vocabulary of {len(seen.vocab)} items; unknown_items='skip' leaves "
      'such events out'
    )
  seen.unknown += int(np.sum(~good))
  return index - 1, good


def _take_rows(chunk: readers.Events, keep: np.ndarray) -> readers.Events:
  rows = np.flatnonzero(keep)

  def pick_rows(column):
    return None if column is None else column[rows]

  return readers.Events(
    user=chunk.user[rows],
    item=chunk.item[rows],
    time=pick_rows(chunk.time),
    rating=pick_rows(chunk.rating),
    extras={name: column[rows] for name, column in chunk.extras.items()},
    where=lambda i: chunk.where(int(rows[i])),
    fraction=pick_rows(chunk.fraction),
  )


def _extra_values(chunk, seen: _Log, extra, unknown: str) -> np.ndarray:
  """Values as the spill holds them: categories by provisional codes."""
  if extra.name not in chunk.extras:
    raise ValueError(f'{chunk.where(0)}: no values of the extra {extra.name!r}')
  values = chunk.extras[extra.name]
  if extra.kind != 'category':
    return values
  if extra.name in seen.extra_vocabs:
    return histories_lib.encode_category(
      extra.name, seen.extra_vocabs[extra.name], values, unknown, chunk.where
    )
  return seen.categories.setdefault(extra.name, codes.Codes()).encode(values)


def _spill_chunks(chunks, seen: _Log, unknown, min_rating, progress) -> None:
  """Pass 1: chunks -> spill."""
  record = seen.record
  with open(seen.spill, 'wb') as f:
    for chunk in chunks:
      seen.read += len(chunk)
      has = {
        'items': True,
        'times': chunk.time is not None,
        'ratings': chunk.rating is not None,
      }
      if seen.has not in (None, has):
        raise ValueError(
          f'{chunk.where(0)}: the log has times or ratings in some files and '
          'not in others'
        )
      seen.has = has
      if min_rating is not None:
        if chunk.rating is None:
          raise ValueError('min_rating needs a log with ratings')
        keep = chunk.rating >= min_rating
        seen.low += int(np.sum(~keep))
        chunk = _take_rows(chunk, keep)
      items, good = _item_codes(chunk, seen, unknown)
      if good is not None:
        chunk, items = _take_rows(chunk, good), items[good]
      users = seen.users.encode(chunk.user)
      seen.user_counts.add(users, len(seen.users))
      total = len(seen.items) if seen.vocab is None else len(seen.vocab)
      seen.item_counts.add(items, total)
      spilled = np.zeros(len(chunk), record)
      spilled['user'], spilled['item'] = users, items
      if chunk.time is not None:
        spilled['time'] = chunk.time
      if chunk.fraction is not None:
        spilled['fraction'] = chunk.fraction
      if chunk.rating is not None:
        spilled['rating'] = chunk.rating
      for i, extra in enumerate(seen.extras):
        spilled[_of_extra(i)] = _extra_values(chunk, seen, extra, unknown)
      f.write(spilled.data)
      progress('reading', seen.read)


def _read_spill(seen: _Log) -> Iterator[np.ndarray]:
  with open(seen.spill, 'rb') as f:
    while len(records := np.fromfile(f, seen.record, SPILL_CHUNK)):
      yield records


def _rank_codes(ids: np.ndarray, keep: np.ndarray, none: int, first: int):
  """Place of each kept code in the order of the ids; `none` for the others."""
  rows = np.flatnonzero(keep)
  order = rows[np.argsort(ids[rows], kind='stable')]
  ranks = np.full(len(ids), none, np.int32)
  ranks[order] = np.arange(first, first + len(order), dtype=np.int32)
  return ranks, ids[order]


def _final_codes(seen: _Log, min_item_events: int, min_user_events: int):
  """Maps of codes to final user rows (-1: dropped) and item indices (0)."""
  item_keep = seen.item_counts.values >= min_item_events
  user_keep = seen.user_counts.values >= max(1, min_user_events)
  remaining = seen.user_counts.values
  if not item_keep.all():
    remaining = np.zeros_like(remaining)
    for records in _read_spill(seen):
      users = records['user'][item_keep[records['item']]]
      remaining += np.bincount(users, minlength=len(remaining))
    user_keep &= remaining > 0
  if seen.vocab is None:
    items, item_ids = _rank_codes(seen.items.by_code(), item_keep, 0, 1)
    vocab = vocab_lib.Vocab(item_ids)
  else:  # a vocabulary that was given stays whole
    vocab = seen.vocab
    items = np.where(item_keep, np.arange(1, vocab.rows), 0).astype(np.int32)
  users, user_ids = _rank_codes(seen.users.by_code(), user_keep, -1, 0)
  counts = np.zeros(len(user_ids), np.int64)
  counts[users[user_keep]] = remaining[user_keep]
  return users, items, vocab_lib.Vocab(user_ids), vocab, counts


def _divide_by_user(seen, users, items, part_of_user, work, progress) -> None:
  """Pass 2: spill -> one file per range of users, in input order."""
  done = 0
  for records in _read_spill(seen):
    done += len(records)
    records['user'] = users[records['user']]
    records['item'] = items[records['item']]
    records = records[(records['user'] >= 0) & (records['item'] > 0)]
    part = part_of_user[records['user']]
    order = np.argsort(part, kind='stable')
    cuts = np.flatnonzero(np.diff(part[order])) + 1
    for group in np.split(order, cuts):
      if len(group):
        with open(work / f'part-{part[group[0]]}', 'ab') as f:
          f.write(records[group].data)
    progress('sorting into partitions', done)


def _order_events(records: np.ndarray) -> np.ndarray:
  columns = (records[name] for name in ('user', 'time', 'fraction'))
  return histories_lib.group_events(*columns)[0]


def _final_categories(seen: _Log) -> dict[str, np.ndarray]:
  """Maps of provisional codes to indices; completes `seen.extra_vocabs`."""
  maps = {}
  for name, categories in seen.categories.items():
    everything = np.ones(len(categories), bool)
    maps[name], ids = _rank_codes(categories.by_code(), everything, 0, 1)
    seen.extra_vocabs[name] = vocab_lib.Vocab(ids)
  return maps


def _arrange_columns(
  seen: _Log,
  work,
  min_item_events,
  min_user_events,
  partition_events,
  progress,
  duplicates: str,
) -> dict:
  """Passes 2 and 3: spill -> columns; returns what meta.json shall say."""
  users, items, user_vocab, vocab, counts = _final_codes(
    seen, min_item_events, min_user_events
  )
  offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
  part_of_user = offsets[:-1] // partition_events
  _divide_by_user(seen, users, items, part_of_user, work, progress)
  seen.spill.unlink()
  # Without times, equal rows are an item that was met twice.
  can_tell, equal = seen.has['times'], 0
  if can_tell and duplicates == 'drop':
    files = [work / f'part-{part}' for part in np.unique(part_of_user)]
    equal = drop_equal_events(files, seen.record, _order_events, counts)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
  names = [name for name, present in seen.has.items() if present]
  dtypes = {name: np.dtype(histories_lib.DTYPES[name]) for name in names}
  dtypes |= {_of_extra(i): e.dtype for i, e in enumerate(seen.extras)}
  columns = _Columns(work, dtypes, int(offsets[-1]))
  categories = _final_categories(seen)
  done = 0
  for part in np.unique(part_of_user):
    path = work / f'part-{part}'
    records = np.fromfile(path, seen.record)
    path.unlink()
    order = _order_events(records)
    if can_tell and duplicates == 'keep':
      equal += len(find_equal_events(records, order))
    for name in names:
      columns.append(name, records[name.removesuffix('s')][order])
    for i, extra in enumerate(seen.extras):
      values = records[_of_extra(i)][order]
      if extra.name in categories:
        values = categories[extra.name][values]
      columns.append(_of_extra(i), values)
    done += len(records)
    progress('writing columns', done)
  columns.close()
  np.save(work / 'offsets.npy', offsets)
  user_vocab.save(work / 'user_ids.npy')
  vocab.save(work / 'item_ids.npy')
  extras = _save_extras(seen, work)
  return {
    'events': int(offsets[-1]),
    'users': len(user_vocab),
    'items': len(vocab),
    'columns': names,
    'read': seen.read,
    'skipped_unknown_item': seen.unknown,
    'dropped_low_rating': seen.low,
    **({'duplicates': equal} if equal else {}),
    **({'extras': extras} if extras else {}),
  }


def _save_extras(seen: _Log, work: pathlib.Path) -> list[dict]:
  """Saves the vocabularies; returns what meta.json shall say of each extra."""
  entries = []
  for i, extra in enumerate(seen.extras):
    entry = {'name': extra.name, 'kind': extra.kind, 'file': _of_extra(i)}
    if extra.kind == 'category':
      entry['vocabulary'] = f'{_of_extra(i)}-ids'
      vocab = seen.extra_vocabs[extra.name]
      vocab.save(work / f'{entry["vocabulary"]}.npy')
    entries.append(entry)
  return entries


def convert_log(
  chunks: Iterable[readers.Events],
  out_dir: str | pathlib.Path,
  *,
  item_vocab: vocab_lib.Vocab | None = None,
  unknown: str = 'error',
  min_rating: float | None = None,
  min_item_events: int = 0,
  min_user_events: int = 0,
  duplicates: str = 'keep',
  extras: Sequence[extras_lib.ExtraColumn] = (),
  extra_vocabs: Mapping[str, vocab_lib.Vocab] | None = None,
  fingerprint: str = '',
  partition_events: int = PARTITION_EVENTS,
  log: Callable[[str], None] = print,
) -> histories_lib.Histories:
  """Converts a log once; later calls with the same fingerprint open it.

  Args:
    chunks: the log, in any order of users and times; read only when needed.
    out_dir: where the histories shall be.
    item_vocab: the items; None takes those that remain, in order of their ids.
    unknown: an item that `item_vocab` lacks is an 'error', or 'skip' its event.
    min_rating: events rated lower are dropped, before anything is counted.
    min_item_events: items with fewer events are dropped.
    min_user_events: users with fewer events are dropped. Both are counted once
      on the log as it is; dropping one kind does not make the other recounted.
    duplicates: of events with equal users, items and times all are 'keep', or
      'drop' leaves the first.
    extras: columns to keep beside items and times; every chunk has them.
    extra_vocabs: vocabularies of categories among them; a category without one
      gets every value that occurs, in order. A value that a given one lacks is
      an error, or index 0 where unknown items are skipped.
    fingerprint: names sources and options; '' never matches.
    partition_events: events sorted in memory at a time (some 100 bytes each,
      and twice the width of the extra columns).
    log: called with progress messages.

  Returns:
    The histories, mapped from `out_dir`.
  """
  if unknown not in ('error', 'skip'):
    raise ValueError(f"unknown must be 'error' or 'skip', not {unknown!r}")
  if duplicates not in CHOICES:
    raise ValueError(
      f"data.duplicates is {duplicates!r}, must be 'keep' or 'drop'"
    )
  out = pathlib.Path(out_dir)
  if any((out / name).exists() for name in ('meta.json', sealed.NAME)):
    remedy = f'remove {out}: it is made again from the source files'
    files = sealed.SealedDirectory(out, remedy)
    before = histories_lib.read_meta(files) if fingerprint else {}
    if before.get('fingerprint') == fingerprint != '':
      return histories_lib.Histories.from_files(files)
    raise ValueError(
      f'{out}: holds histories made from other files or with other options; '
      'remove it or choose another directory'
    )
  with scratch.staged_directory(out, 'meta.json') as work:
    seen = _Log(
      work / 'spill', item_vocab, tuple(extras), dict(extra_vocabs or {})
    )
    progress = _Progress(log)
    _spill_chunks(chunks, seen, unknown, min_rating, progress)
    if duplicates == 'drop' and seen.has and not seen.has['times']:
      raise ValueError(
        "data.duplicates is 'drop', and the log has no times: an item that a "
        'user had twice is no duplicate then; remove the key'
      )
    if not len(seen.users):
      raise ValueError(
        f'no events remain of the {seen.read:,} read ({seen.low:,} rated too '
        f'low, {seen.unknown:,} of unknown items)'
      )
    meta = _arrange_columns(
      seen,
      work,
      min_item_events,
      min_user_events,
      partition_events,
      progress,
      duplicates,
    )
    if not meta['events']:
      raise ValueError(
        f'no events remain of the {seen.read:,} read: every one falls to '
        'min_item_events or min_user_events'
      )
    version = histories_lib.FORMATS[bool(seen.extras)]
    meta = {'format': version, 'fingerprint': fingerprint, **meta}
    (work / 'meta.json').write_text(json.dumps(meta, indent=1))
    sealed.seal(work, 'meta.json')
  if equal := meta.get('duplicates'):
    kept = "kept; data.duplicates='drop' keeps one of each"
    log(
      f'{equal:,} events have user, item and time of an earlier one, as if '
      f'rows were written twice: {kept if duplicates == "keep" else "dropped"}'
    )
  dropped = ', '.join(
    f'{meta[key]:,} {key.replace("_", " ")}'
    for key in ('skipped_unknown_item', 'dropped_low_rating')
    if meta[key]
  )
  log(
    f'converted {meta["read"]:,} events: kept {meta["events"]:,} of '
    f'{meta["users"]:,} users' + (f' ({dropped})' if dropped else '')
  )
  return histories_lib.Histories.open(out)
