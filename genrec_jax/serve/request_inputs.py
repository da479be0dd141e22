"""Candidates of a file -> requests, a block of rows at a time.

Rows of one user (and time) that follow one another are a request, and have what
belongs to the request in common. Histories are those of the data of the run; a
block ends wherever it is full, since a candidate's score does not depend on the
others.
"""

import dataclasses
import itertools
import logging
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import text
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import (
  annotations,
  csv_files,
  formats,
  forms,
  raw,
)
from genrec_jax.data.requests.feature_values import (
  FeatureValues,
  map_item_features,
)
from genrec_jax.data.requests.requests import RequestDataset, Requests
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import PAD
from genrec_jax.serve import kept_columns
from genrec_jax.serve.request_tally import Tally

LOG = logging.getLogger('genrec_jax')
BLOCK = 1 << 14  # rows that are scored before others are read
_LONGEST_AGE = np.iinfo(np.int32).max
# What predict.columns has, unless somebody sets it.
_USER, _ITEM = 'user', 'item'
# Columns that may say when is asked; those of the data sets among them.
_LIKE_TIMES = re.compile(r'(?:^|_)(?:ts|times?|timestamp|datetime|date)(?:_|$)')
_STEP = 'step'  # what predictions for a stream have in place of a time


@dataclasses.dataclass(frozen=True)
class Block:
  """M candidates of a file.

  Attributes:
    requests: whose candidates they are.
    number: `[M]` of the request of each, over the whole file, from 1.
    named: column -> M values, as the file has them.
  """

  requests: Requests
  number: np.ndarray
  named: Mapping[str, list | np.ndarray]


class CandidateFile:
  """A CSV or Parquet file of candidates.

  Attributes:
    dataset: the data of the run, with one more user, who is in them no more
      than those whom they do not know.
    tally: what was unknown in the rows that were read so far.
  """

  def __init__(
    self,
    path: pathlib.Path,
    predict: Mapping,
    dataset: RequestDataset,
    values: Mapping[str, FeatureValues],
    max_history: int,
    oldest: bool = False,
    time_unit: str = 's',
    reserved: Collection[str] = (),
  ):
    """Looks at the columns.

    Args:
      path: of the file.
      predict: `config.predict`.
      dataset: the data of the run.
      values: of the features of items and of the context.
      max_history: most events of a history that are read.
      oldest: whether they are the first ones, and not the latest.
      time_unit: of numeric times, one of `fields.UNITS`.
      reserved: names of the other columns of the predictions.
    """
    self._path, self._values = text.require_file(path), values
    self._time_unit = time_unit
    self._max_history, self._oldest = max_history, oldest
    self.tally = Tally()
    self._users = Vocab(dataset.user_ids)
    self._features = map_item_features(dataset)
    self.dataset = _add_stranger(dataset, values)
    item, *others = [f.name for f in dataset.spec.items]
    c = predict.columns
    self._time = c.time
    _refuse_twins(c)
    if c.time and dataset.events.time is None:
      raise ValueError(
        f'predict.columns.time is {c.time!r}, and the events of '
        f"{dataset.name} have no times; set it to ''"
      )
    self._reading, names = _find_layout(self._path, predict, dataset.name)
    asked = {'user': c.user, 'item': c.item, 'time': c.time}
    if c.item == _ITEM and _ITEM not in names and item in names:
      # As the data call it, and so predictions for the test split.
      asked['item'] = item
      LOG.info('%s: the items are read from the column %r', self._path, item)
    user = next((f.name for f in dataset.spec.context), _USER)
    if c.user == _USER and _USER not in names and user in names:
      asked['user'] = user
      LOG.info('%s: the users are read from the column %r', self._path, user)
    self._user = asked['user']
    # Feature -> its column. That of the item may have any name.
    self._sources = {item: asked['item']}
    self._sources |= {name: name for name in others if name in names}
    asking = [f.name for f in dataset.spec.candidates]
    self._context = [
      name
      for name in dataset.spec.context_columns
      if name not in dataset.context
    ]
    # The data know no other one of these: each showing has its own.
    for name in (*asking, *self._context):
      if name not in names:
        whose = 'candidate' if name in asking else 'request'
        raise ValueError(
          f'{self._path}: no column {name!r}, which every {whose} has; the '
          f'columns are {list_names(names)}; add it, with empty cells where '
          'it is not known'
        )
      self._sources[name] = name
    for role, name in asked.items():
      if name and name not in names:
        raise ValueError(
          f'{self._path}: no column {name!r}; the columns are '
          f'{list_names(names)}; name the one of the {role} with '
          f'--config.predict.columns.{role}=NAME'
        )
    self.columns = [self._user, *self._sources.values()]
    self.columns += [self._time] if self._time else []
    self.columns += self._choose_kept(predict.get('keep', ()), names, reserved)
    if not self._time:
      _warn_of_times(self._path, names, dataset)

  def _choose_kept(self, asked, names, reserved) -> list[str]:
    """The other columns that go beside the scores."""
    others = [name for name in names if name not in self.columns]
    by_type = formats.find_format(self._reading['format']).default_features(
      self._path, self._reading
    )
    kept = kept_columns.KeptColumns(
      [name for name in asked if name not in self.columns], {}, {*reserved}
    ).choose(names, {name: by_type[name] for name in others})
    if left := [name for name in others if name not in kept]:
      LOG.info(
        '%s: the columns %s are not read, and not in the predictions; '
        '--config.predict.keep=NAME,NAME takes some along',
        self._path,
        list_names(left),
      )
    return kept

  def read(self) -> Iterator[Block]:
    """The candidates, in their order."""
    wanted = list(dict.fromkeys(self.columns))
    chunks = formats.read_files([self._path], wanted, self._reading)
    before = None, None  # key and context of the last row
    waiting, rows = [], 0
    for chunk in chunks:
      block, before = self._make_block(chunk, before)
      waiting.append(block)
      rows += len(chunk)
      if rows >= BLOCK:
        yield _join_blocks(waiting)
        waiting, rows = [], 0
    if waiting:
      yield _join_blocks(waiting)

  def _make_block(self, chunk: raw.RawChunk, before):
    count = len(chunk)
    users = self._read_texts(chunk, self._user)
    user = self._users.encode(np.array(users, np.dtypes.StringDType())) - 1
    is_stranger = user < 0
    user[is_stranger] = self.dataset.events.users - 1
    rows = self._encode_items(chunk, users)
    time = self._read_times(chunk, users) if self._time else None
    moments = [0] * count if time is None else time.tolist()
    keys = list(zip(users, moments, strict=True))
    begins = [a != b for a, b in itertools.pairwise([before[0], *keys])]
    cells = [_list_texts(chunk, name) for name in self._context]
    told = list(zip(*cells, strict=True)) or [()] * count
    for at, (last, own) in enumerate(itertools.pairwise([before[1], *told])):
      if last != own and not begins[at]:
        self._refuse_two(chunk, at, users[at], last, own)
    first = np.flatnonzero(begins)
    self.tally.rows += count
    number = self.tally.requests + np.cumsum(begins)
    self.tally.requests += len(first)
    # The rest of a request that began in the last chunk is one here, too.
    first = np.union1d([0], first).astype(np.int64)
    requests = self._find_histories(chunk, users, user, time, first, rows)
    lengths = np.diff(requests.offsets)
    begin = self.dataset.events.offsets[requests.user]
    is_empty = np.repeat(requests.end == begin, lengths)
    self.tally.note('unknown_users', chunk, users, is_stranger)
    self.tally.note('without_history', chunk, users, is_empty & ~is_stranger)
    named = {
      name: kept_columns.take_values(chunk, name) for name in self.columns
    }
    return Block(requests, number, named), (keys[-1], told[-1])

  def _refuse_two(self, chunk, at: int, user: str, last, own) -> None:
    """Refuses two values of what belongs to a request; `at` has the second."""
    for name, one, other in zip(self._context, last, own, strict=True):
      if one != other:
        raise ValueError(
          f'{chunk.quote_cell(at, name, other)} is not the {quote(one)} of the '
          f'row before, which is of the same request of user {quote(user)}, '
          'and a request has one; write one into all of its rows, or tell two '
          'requests apart by their times (predict.columns.time)'
        )

  def _find_histories(self, chunk, users, user, time, first, rows) -> Requests:
    """The requests that begin in the rows `first`."""
    events, timed = self.dataset.events, self.dataset.spec.timed
    user = user[first]
    end = events.offsets[user + 1].copy()
    asked = None
    if time is not None:
      asked = time[first]
      item = self.dataset.spec.items[0].name
      last = [*first[1:], len(chunk)]
      for i, (u, moment) in enumerate(zip(user, asked, strict=True)):
        own = events.time[events.offsets[u] : end[i]]
        before, until = (
          events.offsets[u] + np.searchsorted(own, moment, side)
          for side in ('left', 'right')
        )
        # What happened at that very time may be the candidates themselves.
        candidates = rows[item][first[i] : last[i]]
        is_own = np.isin(events.items[item][before:until], candidates).any()
        end[i] = before if is_own else until
    elif timed:
      has_any = end > events.offsets[user]
      asked = np.zeros(len(user), np.int64)
      asked[has_any] = events.time[end[has_any] - 1]
    if self._oldest:
      end = np.minimum(end, events.offsets[user] + self._max_history)
    begin = np.maximum(events.offsets[user], end - self._max_history)
    if timed:
      has_any = end > begin
      age = np.zeros(len(user), np.int64)
      age[has_any] = asked[has_any] - events.time[begin[has_any]]
      if (age > _LONGEST_AGE).any():
        at = int(first[np.argmax(age)])
        raise ValueError(
          f'{chunk.where(at)}: user {quote(users[at])} asks {age.max():,} '
          'seconds after an event of the history; is the time in milliseconds? '
          'give seconds'
        )
    return Requests(
      user=user.astype(np.int32),
      end=end,
      offsets=np.append(first, len(chunk)),
      items=rows,
      labels={},
      time=asked if timed else None,
      context={name: rows.pop(name)[first] for name in self._context},
    )

  def _encode_items(self, chunk, users) -> dict[str, np.ndarray]:
    """Feature -> `[M]` rows, of the file or as the data know them."""
    item = self.dataset.spec.items[0].name
    texts = self._read_texts(chunk, self._sources[item], users)
    rows = {}
    rows[item], is_unknown = self._values[item].encode(texts)
    self.tally.note('unknown_items', chunk, texts, is_unknown)
    is_bare = np.zeros(len(chunk), bool)
    odd = {}  # place of a candidate -> a value of it that is unknown
    asking = [f.name for f in self.dataset.spec.candidates]
    for name in (*self._features, *asking, *self._context):
      if name in self._sources:
        cells = _list_texts(chunk, self._sources[name])
        rows[name], is_odd = self._values[name].encode(cells)
        for at in np.flatnonzero(is_odd).tolist():
          odd.setdefault(at, f'{name} {cells[at]}')
      else:
        found = self._features[name][rows[item]]
        is_bare |= (found == PAD) & ~is_unknown
        found[is_unknown | (found == PAD)] = self._values[name].unknown_row
        rows[name] = found
    which = np.isin(np.arange(len(chunk)), [*odd])
    self.tally.note('unknown_values', chunk, odd, which)
    self.tally.note('unknown_features', chunk, texts, is_bare)
    return rows

  def _read_texts(self, chunk, name: str, users=None) -> list[str]:
    """A column in which nothing may be missing."""
    texts = _list_texts(chunk, name)
    if '' in texts:
      at = texts.index('')
      needs = 'a user'
      if users:
        needs = f'an item, and this one is of user {quote(users[at])}'
      raise ValueError(
        f'{chunk.where(at)}, column {name!r}: the cell is empty, but every '
        f'candidate needs {needs}; fill the cell in, or take the row out'
      )
    return texts

  def _read_times(self, chunk: raw.RawChunk, users) -> np.ndarray:
    """`[M]` int64 seconds."""
    key = 'predict.columns.time'
    times, good = annotations.parse_exact_times(
      chunk, self._time, key, self._time_unit
    )
    if not good.all():
      at = int(np.argmin(good))
      cell = _list_texts(chunk, self._time)[at]
      raise ValueError(
        f'{chunk.quote_cell(at, self._time, cell)} is not a time at which '
        f'{quote(users[at])} asks; give seconds since 1970 or an ISO date'
      )
    return times.seconds


def _refuse_twins(columns: Mapping) -> None:
  """Refuses one column for two of user, item and time."""
  for one, other in itertools.combinations(('user', 'item', 'time'), 2):
    if columns[one] == columns[other]:
      raise ValueError(
        f'predict.columns.{one} and predict.columns.{other} are both '
        f'{columns[one]!r}; name two columns'
      )


def _warn_of_times(
  path: pathlib.Path, names: Sequence[str], dataset: RequestDataset
) -> None:
  """Says that a column is not read that histories could end by."""
  timed = dataset.events.time is not None
  found = [
    name
    for name in names
    if _LIKE_TIMES.search(name.casefold()) or (name == _STEP and not timed)
  ]
  if not found:
    return
  remedy = (
    f'if it says when is asked, in seconds since 1970 or as an ISO date, set '
    f'--config.predict.columns.time={found[0]}'
    if timed
    else f'the events of {dataset.name} have no times, so that histories end '
    'nowhere else; score candidates that are events of the data as the test '
    "split, with predict.input=''"
  )
  LOG.warning(
    '%s: the column %s is not read, and every history has all events of its '
    'user in the data, those after the request and maybe the candidates '
    'themselves among them; %s',
    path,
    quote(found[0]),
    remedy,
  )


def _join_blocks(blocks: Sequence[Block]) -> Block:
  """Some blocks, one behind the other."""
  if len(blocks) == 1:
    return blocks[0]
  parts = [block.requests for block in blocks]
  before = np.cumsum([0, *(part.candidates for part in parts)])
  offsets = [
    part.offsets[:-1] + begin
    for part, begin in zip(parts, before, strict=False)
  ]
  timed = parts[0].time is not None
  requests = Requests(
    user=np.concatenate([part.user for part in parts]),
    end=np.concatenate([part.end for part in parts]),
    offsets=np.concatenate([*offsets, before[-1:]]),
    items={
      name: np.concatenate([part.items[name] for part in parts])
      for name in parts[0].items
    },
    labels={},
    time=np.concatenate([part.time for part in parts]) if timed else None,
    context={
      name: np.concatenate([part.context[name] for part in parts])
      for name in parts[0].context
    },
  )
  return Block(
    requests,
    np.concatenate([block.number for block in blocks]),
    {
      name: kept_columns.join_values([block.named[name] for block in blocks])
      for name in blocks[0].named
    },
  )


def _find_layout(
  path: pathlib.Path, predict: Mapping, name: str
) -> tuple[dict[str, str], list[str]]:
  """How a file is read, and its columns."""
  format_ = predict.format or formats.name_by_suffix(path, '')
  if format_ not in ('csv', 'parquet'):
    raise ValueError(
      f'{path}: candidates for {name} are read from CSV and Parquet files; say '
      'which this is with --config.predict.format=csv or =parquet'
    )
  # There are no keys by which a column could be left out.
  reading = {'format': format_, 'delimiter': '', 'otherwise': ''}
  if format_ == 'csv':
    wanted = [predict.columns.user, predict.columns.item]
    reading = csv_files.settle_layout(path, reading, wanted, 'yes', LOG.info)
  return reading, formats.find_format(format_).read_names(path, reading)


def _list_texts(chunk: raw.RawChunk, name: str) -> list[str]:
  """The canonical texts of a column, '' where there is none."""
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    raise ValueError(
      f'{chunk.where(0)}, column {name!r}: holds lists; write each candidate '
      'into a row of its own'
    )
  if isinstance(column, raw.NumberColumn):
    return column.list_texts()
  known = {value: forms.canonicalize(value) for value in dict.fromkeys(column)}
  return [known[value] for value in column]


def _add_stranger(
  dataset: RequestDataset, values: Mapping[str, FeatureValues]
) -> RequestDataset:
  """The data with one more user, without events and of unknown context."""
  events = dataset.events
  offsets = np.append(events.offsets, events.offsets[-1:])
  context = {
    name: np.append(rows, np.int32(values[name].unknown_row))
    for name, rows in dataset.context.items()
  }
  users = dataset.user_ids
  return dataclasses.replace(
    dataset,
    events=dataclasses.replace(events, offsets=offsets),
    context=context,
    user_ids=np.append(users, np.zeros(1, users.dtype)),
  )
