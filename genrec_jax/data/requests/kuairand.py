"""KuaiRand as requests: what will a user do with the videos shown next?

The published files of KuaiRand-Pure, -1K and -27K are read as they are. Every
row is a video that was shown, with eight things that the user did or did not
do; it is a candidate once, and an event of the history ever after.

Days, which are those of Beijing as in the column `date`, divide the splits:
train is before `valid_from`, valid before `test_from`, and test the rest. By
default that is 8 to 21, 22 to 28 April and 29 April to 8 May 2022. A history is
all that lies before its candidates, also in the days of an earlier split. The
reference instead takes the last events of a user as candidates and holds out
users.

The rows of a user are put in order of `time_ms`; those of one moment, such as a
page of videos, keep the order of the files.
"""

import datetime
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax.config.request_set_rules import check_options
from genrec_jax.config.request_sets import KuairandOptions
from genrec_jax.data import (
  fields,
  readers,
  remote_files,
  source_files,
  text,
)
from genrec_jax.data.quoting import quote
from genrec_jax.data.requests import cutting, rows, user_files
from genrec_jax.data.requests.ordering import sort_events
from genrec_jax.data.requests.requests import EventStore, RequestDataset
from genrec_jax.features import LabelSpec, RequestSpec

_SITE = 'https://kuairand.com'
USER, ITEM, TAB = 'user_id', 'video_id', 'tab'
ACTIONS = (
  ('is_click', 1),
  ('is_like', 2),
  ('is_follow', 4),
  ('is_comment', 8),
  ('is_forward', 16),
  ('is_hate', 32),
  ('long_view', 64),
  ('is_profile_enter', 128),
)
TASKS = tuple(name for name, _ in ACTIONS)
PLAY_TIME = 'play_time'  # the label for regression, in seconds
CONTEXT = (
  'user_active_degree',
  'follow_user_num_range',
  'fans_user_num_range',
  'friend_user_num_range',
  'register_days_range',
)
_TIME, _PLAYED, _RANDOM = 'time_ms', 'play_time_ms', 'is_rand'
_BEIJING = datetime.timezone(datetime.timedelta(hours=8))
_PERIODS = ('4_08_to_4_21', '4_22_to_5_08')
# Version -> the parts of a log.
_VERSIONS = {'pure': ('',), '1k': ('',), '27k': ('_part1', '_part2')}
_SPLITS = ('train', 'valid', 'test')
_DAY = 86_400
# From 2000 to before 2060 in milliseconds. Seconds and microseconds of such
# years are outside, and so many seconds, the most steps, fit into int32.
_EARLIEST, _LATEST = 946_684_800_000, 2_840_140_800_000


def load(
  path: str | pathlib.Path, options: KuairandOptions | None = None
) -> RequestDataset:
  """Reads KuaiRand-Pure, -1K or -27K.

  Args:
    path: the unpacked directory, or the directory `data` in it.
    options: see there.

  Raises:
    ValueError: the files cannot be read, or give no request; the message says
      where and what to change.
  """
  options = options or KuairandOptions()
  check_options('kuairand', options)
  kinds = tuple(
    LabelSpec(name, 'regression' if name == PLAY_TIME else 'binary')
    for name in options.labels
  )
  tabs = ('tab', 'candidate_tab', 'request_tab')
  if len(chosen := [name for name in tabs if getattr(options, name)]) > 1:
    raise ValueError(
      f'{" and ".join(chosen)} are set together; tab has the scenario of '
      'candidates and of events, candidate_tab that of candidates, and '
      'request_tab that of requests: set one of them'
    )
  borders = _read_borders(options)
  version, folder, logs = _find_logs(remote_files.locate(path), options.random)
  features = text.require_file(folder / f'user_features_{version}.csv')
  before = source_files.stat_files([*logs, features])
  columns = _read_logs(logs, options)
  user, moment = columns.pop(USER), columns[_TIME]
  users, offsets, columns = sort_events(
    user, moment, columns, options.duplicates, ITEM
  )
  moment = columns.pop(_TIME)
  splits = np.searchsorted(borders, moment, side='right')
  cut = _cut(offsets, moment, splits, options, columns.get(TAB))
  of_split = splits[cut.positions[cut.offsets[:-1]]]
  is_known = np.zeros(len(users), bool)
  is_known[cut.user[of_split == 0]] = True
  items = [ITEM] + [TAB] * options.tab
  shown = [TAB] * options.candidate_tab
  asked_with = [TAB] * options.request_tab
  vocabs = {
    name: rows.fit_vocab(
      columns[name][splits == 0], options.min_count if name == ITEM else 1
    )
    for name in items + shown + asked_with
  }
  values = {USER: users} | _read_users(features, users, logs)
  source_files.check_unchanged(before)
  context = {name: rows.fit_vocab(x[is_known]) for name, x in values.items()}
  events = EventStore(
    offsets,
    {name: rows.encode_rows(vocabs[name], columns.pop(name)) for name in items},
    columns['action'],
    moment // 1000,
    columns['watch_time'],
  )
  scenarios = {
    x: rows.encode_rows(vocabs[x], columns.pop(x)) for x in shown + asked_with
  }
  requests = {}
  for number, split in enumerate(_SPLITS):
    chosen = np.flatnonzero(of_split == number)
    part = cut.select(chosen)
    cutting.require_requests(
      split,
      part,
      folder,
      'change valid_from and test_from, or lower min_history',
    )
    steps = None
    if options.step_s:
      part = cutting.order_by_time(part, moment)
      first = part.positions[part.offsets[:-1]]
      steps = _find_steps(moment, options.step_s, first)
    requests[split] = cutting.make_requests(
      part,
      events,
      {kind.name: _find_label(kind, events, part) for kind in kinds},
      asked_at=options.asked_at,
      step=steps,
      shown=scenarios if shown else None,
      asked_with=scenarios if asked_with else None,
    )
  return RequestDataset(
    name=f'kuairand-{version}',
    spec=RequestSpec(
      items=tuple(rows.describe_feature(x, vocabs[x]) for x in items),
      context=tuple(
        rows.describe_feature(k, v)
        for k, v in (context | {x: vocabs[x] for x in asked_with}).items()
      ),
      actions=ACTIONS,
      labels=kinds,
      watch_time=True,
      candidates=tuple(rows.describe_feature(x, vocabs[x]) for x in shown),
    ),
    events=events,
    context={
      name: rows.encode_rows(context[name], x) for name, x in values.items()
    },
    splits=requests,
    vocabs=vocabs | context,
    user_ids=users,
  )


def _read_borders(options: KuairandOptions) -> np.ndarray:
  """`[2]` first milliseconds of the splits valid and test."""
  borders = []
  for key in ('valid_from', 'test_from'):
    value = getattr(options, key)
    try:
      day = datetime.datetime.strptime(value, '%Y-%m-%d')
    except ValueError:
      raise ValueError(
        f'data.kuairand.{key} is {value!r}; give a day as YYYY-MM-DD'
      ) from None
    borders.append(int(day.replace(tzinfo=_BEIJING).timestamp()) * 1000)
  if borders[1] <= borders[0]:
    raise ValueError(
      f'test_from {options.test_from} does not lie after valid_from '
      f'{options.valid_from}; choose later days for test'
    )
  return np.array(borders)


def _find_logs(path, random: bool):
  """Version, directory and logs, in the order in which they are read."""
  folder = path / 'data' if (path / 'data').is_dir() else path
  there = [
    version
    for version, parts in _VERSIONS.items()
    if (
      folder / f'log_standard_{_PERIODS[0]}_{version}{parts[0]}.csv'
    ).is_file()
  ]
  if not there:
    raise FileNotFoundError(
      f'{folder}: no file log_standard_{_PERIODS[0]}_*.csv; give the unpacked '
      f'directory of KuaiRand-Pure, -1K or -27K, from {_SITE}'
    )
  if len(there) > 1:
    raise ValueError(
      f'{folder}: files of the versions {", ".join(there)}; put each version '
      'into a directory of its own'
    )
  version = there[0]
  names = [
    f'log_standard_{period}_{version}{part}.csv'
    for period in _PERIODS
    for part in _VERSIONS[version]
  ]
  if random:
    names.append(f'log_random_{_PERIODS[1]}_{version}.csv')
  for name in names:
    if not (folder / name).is_file():
      raise FileNotFoundError(
        f'{folder / name}: no such file; unpack the whole archive of '
        f'KuaiRand-{version}'
      )
  return version, folder, [folder / name for name in names]


def _read_logs(logs, options: KuairandOptions) -> dict[str, np.ndarray]:
  """Columns `[N]` of all logs, one behind the other."""
  parts = []
  for path in logs:
    before = len(parts)
    parts += _read_log(path, options)
    if len(parts) == before:
      raise readers.EmptyFileError(
        f'{path}: the file holds no events; unpack the archive anew'
      )
  return {
    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
  }


def _open_log(path, wanted) -> Iterator[tuple[text.TextBlock, dict[str, int]]]:
  """Blocks of rows, and where the columns are in them."""
  names = text.read_header(path, ',')
  index = user_files.find_columns(path, names, wanted, 'a log of KuaiRand')
  options = dict(quotes=True, skip=1, rows=readers.CHUNK_ROWS)
  for block in text.read_blocks(path, ',', width=len(names), **options):
    yield block, index


def _read_log(path, options: KuairandOptions) -> Iterator[dict]:
  wanted = [USER, ITEM, _TIME, *TASKS, _PLAYED, _RANDOM]
  wanted += [TAB] * (
    options.tab or options.candidate_tab or options.request_tab
  )
  for block, index in _open_log(path, wanted):
    columns = {name: _read_column(path, block, index, name) for name in wanted}
    action = np.zeros(len(block.lines), np.int32)
    for name, bit in ACTIONS:
      action |= columns.pop(name).astype(np.int32) * np.int32(bit)
    columns['action'] = action
    columns['watch_time'] = columns.pop(_PLAYED) / np.float32(1000)
    is_random = columns.pop(_RANDOM).astype(bool)
    if not options.random and is_random.any():
      columns = {name: x[~is_random] for name, x in columns.items()}
    yield columns


# Column -> what a value of it must be; all others are 0 or 1.
_WANTED = {
  USER: 'a whole number, the user',
  ITEM: 'a whole number, the video',
  _TIME: 'a time from 2000 to 2059 in whole milliseconds since 1970',
  _PLAYED: 'a time in milliseconds, 0 or more',
  TAB: 'a whole number, the scenario',
}


def _read_column(path, block, index: dict[str, int], name: str) -> np.ndarray:
  words = block.columns[index[name]]
  if name == _PLAYED:
    values, good = fields.parse_ratings(words)
    good &= values >= 0
  elif name in (USER, ITEM):
    values, good = fields.parse_ids(words, 'int')
  elif name in _WANTED:
    values, good = fields.whole_numbers(words)
    if name == _TIME:
      good &= (values >= _EARLIEST) & (values < _LATEST)
    good &= values >= 0
  else:
    values, good = _read_flags(words)
  if not good.all():
    bad = int(np.argmin(good))
    user = block.columns[index[USER]][bad]
    raise ValueError(
      f'{path}, line {block.lines[bad]}: {name} is {quote(words[bad])} for '
      f'user {quote(user)}, not {_WANTED.get(name, "0 or 1")}; mend or remove '
      'the line'
    )
  return values


def _read_flags(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """0 or 1 `[N]`, and which words are that."""
  joined = ''.join(words).encode()
  if len(joined) == len(words) and not joined.translate(None, b'01'):
    values = np.frombuffer(joined, np.uint8) - ord('0')
    if all(words):  # no word is empty, so none has two digits
      return values, np.ones(len(words), bool)
  values, good = fields.whole_numbers(words)
  return values, good & (values >= 0) & (values <= 1)


def _cut(offsets, moment, splits, options, tab) -> cutting.Cut:
  """The requests of all splits; `tab` are the scenarios of the events."""
  breaks = np.zeros(len(moment), bool)
  breaks[1:] = splits[1:] != splits[:-1]
  if options.pause_s:
    breaks[1:] |= np.diff(moment) > 1000 * options.pause_s
  if options.step_s:
    breaks[1:] |= np.diff(_find_steps(moment, options.step_s)) != 0
  if options.request_tab:
    breaks[1:] |= tab[1:] != tab[:-1]
  return cutting.cut_requests(
    offsets,
    np.arange(len(moment)),
    most=options.candidates,
    breaks=breaks,
    moment=moment if options.history == 'before' else None,
    min_history=options.min_history,
  )


def _find_steps(
  moment: np.ndarray, step_s: int, positions=slice(None)
) -> np.ndarray:
  """int32 steps of the events at those positions."""
  shift = _BEIJING.utcoffset(None) // datetime.timedelta(seconds=1)
  first = int(moment.min()) // 1000 + shift
  begin = 1000 * (first - first % _DAY - shift)
  return ((moment[positions] - begin) // (1000 * step_s)).astype(np.int32)


def _find_label(
  kind: LabelSpec, events: EventStore, cut: cutting.Cut
) -> np.ndarray:
  if kind.name == PLAY_TIME:
    return events.watch_time[cut.positions]
  return (events.action[cut.positions] & dict(ACTIONS)[kind.name]) > 0


def _read_users(path, users, logs) -> dict[str, np.ndarray]:
  """Column -> `[U]` texts of the features of the users."""
  names = text.read_header(path, ',')
  index = user_files.find_columns(
    path, names, (USER, *CONTEXT), 'the file of the users of KuaiRand'
  )
  # Ranges such as "(10,50]" are quoted, for their comma.
  options = dict(quotes=True, skip=1, rows=readers.CHUNK_ROWS)
  blocks = text.read_blocks(path, ',', width=len(names), **options)
  table = user_files.read_users(path, blocks, index, USER)
  return table.select(
    users, lambda user: _find_line(logs, user), 'add the line'
  )


def _find_line(logs, user: int) -> str:
  """Where the first event of a user stands."""
  for path in logs:
    for block, index in _open_log(path, [USER]):
      ids, _ = fields.parse_ids(block.columns[index[USER]], 'int')
      found = np.flatnonzero(ids == user)
      if len(found):
        return f'{path}, line {block.lines[int(found[0])]}'
  return str(logs[0].parent)
