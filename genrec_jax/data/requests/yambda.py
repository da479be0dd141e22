"""Yambda as requests: will a user listen to the track that comes next?

The published files of the folders flat/50m, flat/500m and flat/5b are read as
they are, `multi_event.parquet` or `listens.parquet` with those of the feedback
beside it. Every listen is a candidate once; its label `listen_plus` is whether
at least half of the track was played. Listens and the feedback that is asked
for are the events of the histories.

Splits by time, for all users alike, as in the benchmark of the data set: test
is from `last_time - test_s` on, before it lies a gap of `gap_s` seconds, then
the split valid of `valid_s`, one more gap, and train. What lies in a gap is no
candidate, but part of the histories after it. Users without an event in the
training split are left out.

Times are seconds in bins of 5, so events often share one; those of a user keep
the order of the file, and rows that are equal in all columns are all kept. The
published files are sorted by user and time, and are read a batch of rows at a
time, without a column of objects. An event costs 16 bytes (20 with
`watch_time`), a candidate 8 and a request 32: 55 bytes an event with one
candidate a request, and 135 at most while it is read. So 50m (46 million
events) wants 6 GB, 500m 63 GB, and 5b (4.8 billion events) is out of reach of
this reader, which keeps all events of all users in memory.
"""

import dataclasses
import pathlib

import numpy as np

from genrec_jax.config.request_set_rules import check_options
from genrec_jax.config.request_sets import YambdaOptions
from genrec_jax.data import remote_files, source_files
from genrec_jax.data.requests import cutting, rows, yambda_files
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.requests.yambda_files import (
  BITS,
  ITEM,
  LISTEN_BITS,
  LISTENED,
  TIME,
  USER,
)
from genrec_jax.features import LabelSpec, RequestSpec


def load(
  path: str | pathlib.Path, options: YambdaOptions | None = None
) -> RequestDataset:
  """Reads Yambda, see above; needs pyarrow.

  Args:
    path: a directory such as flat/50m, or a file of it.
    options: see there.

  Raises:
    ValueError: the files cannot be read, or give no request; the message says
      where and what to change.
  """
  options = options or YambdaOptions()
  check_options('yambda', options)
  files = yambda_files.find_files(remote_files.locate(path), options)
  before = source_files.stat_files(files.values())
  columns = yambda_files.read_files(files, options)
  source_files.check_unchanged(before)
  users, offsets = _find_users(columns.pop(USER))
  events = EventStore(
    offsets,
    {ITEM: columns.pop(ITEM)},  # ids as yet
    columns.pop('action').astype(np.int32),
    columns.pop(TIME).astype(np.int64),
    columns.pop('watch_time', None),
  )
  windows = _find_windows(options)
  users, events = _drop_unknown(users, events, windows['train'][1])
  tracks = rows.fit_vocab(
    events.items[ITEM][events.time < windows['train'][1]], options.min_count
  )
  encoded = rows.encode_rows(tracks, events.items[ITEM])
  events = dataclasses.replace(events, items={ITEM: encoded})
  splits = {
    split: _cut_split(split, window, events, options, path)
    for split, window in windows.items()
  }
  is_known = np.zeros(len(users), bool)
  is_known[splits['train'].user] = True
  known = rows.fit_vocab(users[is_known])
  return RequestDataset(
    name='yambda',
    spec=RequestSpec(
      items=(rows.describe_feature(ITEM, tracks),),
      context=(rows.describe_feature(USER, known),),
      actions=tuple(
        (name, bit)
        for name, bit in BITS.items()
        if bit & LISTEN_BITS or name in options.feedback
      ),
      labels=(LabelSpec(LISTENED),),
      watch_time=options.watch_time,
    ),
    events=events,
    context={USER: rows.encode_rows(known, users)},
    splits=splits,
    vocabs={ITEM: tracks, USER: known},
    user_ids=users,
  )


def _find_users(uid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """`[U]` int64 ids and `[U + 1]` where the events of each lie."""
  starts = np.flatnonzero(uid[1:] != uid[:-1]) + 1
  offsets = np.concatenate([[0], starts, [len(uid)]]).astype(np.int64)
  if not len(uid):
    return np.zeros(0, np.int64), offsets[:1]
  return uid[offsets[:-1]].astype(np.int64), offsets


def _find_windows(options: YambdaOptions) -> dict[str, tuple[int, float]]:
  """Split -> from when until before when its candidates are."""
  test = options.last_time - options.test_s
  end = test - options.gap_s
  windows = {'test': (test, np.inf)}
  if options.valid_s:
    windows['valid'] = (end - options.valid_s, end)
    end -= options.valid_s + options.gap_s
  begin = end - options.train_s if options.train_s else -np.inf
  windows['train'] = (begin, end)
  return dict(reversed(windows.items()))


def _drop_unknown(users: np.ndarray, events: EventStore, train_end: float):
  """Users and events without the users whom training has not met."""
  first = events.time[events.offsets[:-1]]
  is_known = first < train_end
  if is_known.all():
    return users, events
  counts = np.diff(events.offsets)
  kept = np.repeat(is_known, counts)
  return users[is_known], EventStore(
    np.concatenate([[0], np.cumsum(counts[is_known])]),
    {name: x[kept] for name, x in events.items.items()},
    events.action[kept],
    events.time[kept],
    None if events.watch_time is None else events.watch_time[kept],
  )


def _cut_split(
  split: str,
  window: tuple[float, float],
  events: EventStore,
  options: YambdaOptions,
  path,
) -> Requests:
  """The requests of a split.

  Args:
    split: its name.
    window: of time.
    events: of all users.
    options: see there.
    path: for messages.
  """
  time = events.time
  is_asked = (time >= window[0]) & (time < window[1])
  is_asked &= (events.action & LISTEN_BITS) > 0
  positions = np.flatnonzero(is_asked)
  del is_asked
  cut = cutting.cut_requests(
    events.offsets,
    positions,
    most=options.candidates,
    breaks=_find_breaks(time[positions], options),
    moment=time if options.history == 'before' else None,
    min_history=options.min_history,
  )
  latest = f'at {time.max():,}' if len(time) else 'missing'
  upto = (
    f'to before {window[1]:,} seconds' if window[1] < np.inf else 'seconds on'
  )
  cutting.require_requests(
    split,
    cut,
    path,
    f'its listens lie from {max(0, window[0]):,} {upto}, and the latest event '
    f'is {latest}: change last_time, test_s, valid_s or gap_s',
  )
  step = None
  if options.step_s:
    cut = cutting.order_by_time(cut, time)
    first = time[cut.positions[cut.offsets[:-1]]]
    step = (first // options.step_s).astype(np.int32)
  listened = (events.action[cut.positions] & BITS[LISTENED]) > 0
  return cutting.make_requests(
    cut, events, {LISTENED: listened}, asked_at=options.asked_at, step=step
  )


def _find_breaks(
  asked: np.ndarray, options: YambdaOptions
) -> np.ndarray | None:
  """Which candidates `[C]` begin a request, by their times."""
  if options.candidates == 1:
    return None
  breaks = np.zeros(len(asked), bool)
  if options.pause_s:
    breaks[1:] |= np.diff(asked) > options.pause_s
  if options.step_s:
    breaks[1:] |= np.diff(asked // options.step_s) != 0
  return breaks
