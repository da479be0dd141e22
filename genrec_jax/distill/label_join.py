"""Joins impressions and labels of several streams, window by window.

An example is an impression with its labels. It waits for them until its label
attribution window has passed, `attribution_s` seconds behind the impression.
The examples of a window of `window_s` seconds are given out together, once
every stream has read impressions of a time at which the last of them has waited
long enough; what has no label by then has label 0. A longer attribution window
loses fewer labels and gives each example later.

Input comes in units, one after the other: a unit has impressions and label
events of each stream, as far as they have been read. Impressions of a unit are
known before its labels are looked at. Labels may come in any order, twice, from
two streams for one example, or never. Time is that of the events: nothing here
looks at a clock, so that equal units give equal windows.

Each label of an example is counted once, whatever its order: as joined if any
of its events could be joined, else as read after emission, else as behind its
attribution window; all other events of it are duplicates. Of several events
that can be joined the earliest counts, and the largest of the earliest.
"""

import dataclasses
import logging
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from genrec_jax.data import scratch
from genrec_jax.distill import join_state, join_tables
from genrec_jax.distill.join_state import (
  AFTER_EMISSION,
  BEHIND,
  JOINED,
  Emitted,
  OpenExamples,
)

LOG = logging.getLogger('genrec_jax')
_FAR = 1 << 61


@dataclasses.dataclass(frozen=True)
class JoinCounts:
  """What a join has read and given out so far.

  Attributes:
    impressions: rows of all streams.
    shared_impressions: of these, examples that another stream had before.
    repeated_impressions: of these, examples that the stream itself had before.
    late_impressions: of these, dropped, for their window had been given out.
    examples: given out.
    unlabelled: of these, examples without any label.
    labels: labels read; an event of two labels counts twice.
    joined: of these, those of examples.
    behind_attribution: dropped, behind the attribution window.
    after_emission: dropped, in time, but read after the example was given out.
    unknown: dropped, of examples that are not known (any more).
    duplicates: of labels that are counted already.
    early: of all labels, those from before their impression, which count.
  """

  impressions: int = 0
  shared_impressions: int = 0
  repeated_impressions: int = 0
  late_impressions: int = 0
  examples: int = 0
  unlabelled: int = 0
  labels: int = 0
  joined: int = 0
  behind_attribution: int = 0
  after_emission: int = 0
  unknown: int = 0
  duplicates: int = 0
  early: int = 0

  @property
  def lost(self) -> int:
    """Labels that no example has got."""
    return self.behind_attribution + self.after_emission + self.unknown

  def describe_lost(self) -> str:
    """How many labels were lost for which reason.

    >>> JoinCounts(joined=6, unknown=2).describe_lost()
    '25.00% of labels are lost (2 of unknown examples)'
    """
    reasons = {
      'later than --attribution_s': self.behind_attribution,
      'read after their window': self.after_emission,
      'of unknown examples': self.unknown,
    }
    told = [f'{count:,} {text}' for text, count in reasons.items() if count]
    return f'{self.share_lost:.2%} of labels are lost' + (
      f' ({", ".join(told)})' if told else ''
    )

  @property
  def share_lost(self) -> float:
    """Lost labels of all that are no duplicates; 0 before the first."""
    return self.lost / max(1, self.joined + self.lost)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedWindow:
  """The examples of a window.

  Attributes:
    number: of the window, its first time divided by `window_s`.
    table: the N examples in order of (time, example_id), each once: their
      columns, and the labels as float32.
    rows: stream -> `[M]` int64, ascending, which examples are its own.
  """

  number: int
  table: pa.Table
  rows: Mapping[str, np.ndarray]

  def select(self, stream: str) -> pa.Table:
    """The examples of a stream."""
    return self.table.take(pa.array(self.rows[stream])).combine_chunks()


class LabelJoin:
  """A join that is under way; memory holds the windows that are open.

  >>> join = LabelJoin(['feed'], ['click'], window_s=60, attribution_s=30)
  >>> shown = pa.table({'example_id': [1, 2, 3], 'time': [10, 20, 90]})
  >>> clicks = pa.table({'example_id': [2], 'time': [44], 'click': [1]})
  >>> window, = join.add_unit(0, {'feed': (shown, clicks)})
  >>> window.number, window.table['click'].to_pylist()
  (0, [0.0, 1.0])
  """

  def __init__(
    self,
    streams: Sequence[str],
    labels: Sequence[str],
    window_s: int,
    attribution_s: int,
    remembered: int = 8,
  ):
    """Begins a join.

    Args:
      streams: their names.
      labels: names of the columns that label events have.
      window_s: seconds of a window.
      attribution_s: how long after its impression a label counts.
      remembered: windows after its own for which the ids of an example stay in
        memory, so that a label that comes for it is known to be late. Labels
        that are later still are counted as unknown.

    Raises:
      ValueError: one of them makes no sense.
    """
    _check_settings(streams, labels, window_s, attribution_s, remembered)
    self.streams, self.labels = tuple(streams), tuple(labels)
    self.window_s, self.attribution_s = int(window_s), int(attribution_s)
    self.remembered = remembered
    self._counts = JoinCounts()
    self._clocks: list[int | None] = [None] * len(streams)
    self._closed: int | None = None  # windows below this one are given out
    self._next: int | None = None
    self._is_finished = False
    self._open = OpenExamples.of_none(len(streams), len(labels))
    self._emitted = Emitted.of_none(len(labels))

  @property
  def counts(self) -> JoinCounts:
    return self._counts

  @property
  def next_unit(self) -> int | None:
    """The unit that `add_unit` takes next; None if it takes any."""
    return self._next

  def __len__(self) -> int:
    """How many examples wait."""
    return len(self._open)

  def add_unit(
    self,
    unit: int,
    tables: Mapping[str, tuple[pa.Table, pa.Table]],
  ) -> list[JoinedWindow]:
    """Reads a unit; gives out the windows that are complete by it.

    A unit that is refused leaves the join as it was.

    Args:
      unit: its number, one more than that of the unit before.
      tables: stream -> impressions (example_id, time, any other columns) and
        label events (example_id, time, a column for each label, null where the
        event says nothing of it). Times are whole seconds.

    Returns:
      Windows in their order; those without examples are left out.

    Raises:
      ValueError: the unit is not the next one, or its tables are not as they
        should be, or an example differs from what it was before.
    """
    self._check_unit(unit, tables)
    read, entries = [], []
    for stream in self.streams:
      where = f'stream {stream!r} in unit {unit}'
      shown, events = tables[stream]
      read.append(join_tables.read_impressions(shown, self.labels, where))
      entries.append(join_tables.read_labels(events, self.labels, where))
    self._add_impressions(unit, read)
    self._add_labels(join_tables.join_entries(entries))
    self._next = int(unit) + 1
    if None in self._clocks:
      return []
    passed = (min(self._clocks) - self.attribution_s) // self.window_s
    if self._closed is None or passed > self._closed:
      self._closed = passed
    return self._emit(self._closed)

  def finish(self) -> list[JoinedWindow]:
    """Gives out the windows that are still open; no unit comes any more."""
    self._is_finished = True
    return self._emit(None)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the join to a file, which is whole or not there."""
    with scratch.replaced_file(pathlib.Path(path)) as partial:
      partial.write_bytes(self.to_bytes())

  @classmethod
  def restore(cls, path: str | os.PathLike) -> 'LabelJoin':
    """The join that `save` wrote: equal units give equal windows.

    Raises:
      DamagedError: the file is not as it was written.
    """
    return cls.from_bytes(pathlib.Path(path).read_bytes(), str(path))

  def to_bytes(self) -> bytes:
    """What `save` writes."""
    settings = dict(
      streams=self.streams,
      labels=self.labels,
      window_s=self.window_s,
      attribution_s=self.attribution_s,
      remembered=self.remembered,
    )
    progress = dict(
      counts=dataclasses.asdict(self._counts),
      clocks=self._clocks,
      closed=self._closed,
      next=self._next,
      is_finished=self._is_finished,
    )
    return join_state.encode(
      dict(settings=settings, progress=progress), self._open, self._emitted
    )

  @classmethod
  def from_bytes(cls, content: bytes, where: str = 'the join') -> 'LabelJoin':
    """The inverse of `to_bytes`; `where` names it, for errors."""
    body, open_examples, emitted = join_state.decode(content, where)
    join, progress = cls(**body['settings']), body['progress']
    join._counts = JoinCounts(**progress['counts'])
    join._clocks, join._closed = progress['clocks'], progress['closed']
    join._next, join._is_finished = progress['next'], progress['is_finished']
    join._open, join._emitted = open_examples, emitted
    return join

  def _check_unit(self, unit: int, tables: Mapping) -> None:
    if self._is_finished:
      raise ValueError(f'unit {unit} comes after the join was finished')
    if self._next is not None and unit != self._next:
      raise ValueError(
        f'unit {unit} comes where unit {self._next} should: units are read in '
        'their order, each once'
      )
    if {*tables} != {*self.streams}:
      raise ValueError(
        f'unit {unit} is of the streams {", ".join(sorted(tables))}, and the '
        f'join of {", ".join(sorted(self.streams))}: give an empty table where '
        'a stream has nothing'
      )

  def _count(self, **more: int) -> None:
    now = {key: getattr(self._counts, key) + int(n) for key, n in more.items()}
    self._counts = dataclasses.replace(self._counts, **now)

  def _add_impressions(self, unit: int, tables: list[pa.Table]) -> None:
    """Adds the examples of a unit, or refuses it as a whole."""
    schema = self._open.schema
    for number, (stream, table) in enumerate(
      zip(self.streams, tables, strict=True)
    ):
      if not len(table):
        continue  # nobody may know the columns of what is empty
      schema = table.schema if schema is None else schema
      where = f'stream {stream!r} in unit {unit}'
      tables[number] = join_tables.check_schema(table, schema, where)
    if schema is None:
      return
    tables = [x if len(x) else schema.empty_table() for x in tables]
    new = pa.concat_tables(tables)
    owner = np.repeat(np.arange(len(tables)), [len(x) for x in tables])
    times = new['time'].to_numpy()
    is_late = np.zeros(len(new), bool)
    if self._closed is not None:
      is_late = times // self.window_s < self._closed
    in_time = new.filter(pa.array(~is_late))
    self._refuse_reused(unit, in_time, owner[~is_late])
    examples, first = self._open.add(in_time, owner[~is_late])
    self._refuse_differing(unit, in_time, owner[~is_late], first)

    if is_late.any():
      ids = new['example_id'].to_numpy()
      LOG.warning(
        'unit %d has %d impressions of windows that were given out already, '
        'as that of the example %d; they are dropped',
        unit, is_late.sum(), ids[np.argmax(is_late)],
      )  # fmt: skip
    fresh = len(examples) - len(self._open)
    owned = int(examples.own.sum()) - int(self._open.own.sum())
    self._count(
      impressions=len(new),
      late_impressions=is_late.sum(),
      shared_impressions=owned - fresh,
      repeated_impressions=len(in_time) - owned,
    )
    for number, table in enumerate(tables):
      if len(table):
        latest = int(table['time'].to_numpy().max())
        former = self._clocks[number]
        self._clocks[number] = latest if former is None else max(former, latest)
    self._open = examples

  def _refuse_reused(self, unit: int, table: pa.Table, owner) -> None:
    """An id of a window that was given out stands for another example."""
    ids = table['example_id'].to_numpy()
    again = np.isin(ids, self._emitted.example_id)
    if again.any():
      at = int(np.argmax(again))
      raise ValueError(
        f'the example {ids[at]} of stream {self.streams[owner[at]]!r} in unit '
        f'{unit} has time {table["time"][at].as_py()}, and was given out with '
        'an earlier one: give each impression an id of its own'
      )

  def _refuse_differing(self, unit: int, table, owner, first) -> None:
    """The same id with other columns; `first` is the row that had it first."""
    before = pa.concat_tables([*self._open.tables, table])
    rows = np.arange(len(self._open), len(before))
    twice = np.flatnonzero(first != rows)
    if not len(twice):
      return
    one = table.take(pa.array(twice))
    other = before.take(pa.array(first[twice]))
    if (difference := join_tables.find_difference(one, other)) is None:
      return
    row, column = difference
    raise ValueError(
      f'the example {one["example_id"][row].as_py()} of stream '
      f'{self.streams[owner[twice[row]]]!r} in unit {unit} has '
      f'{one[column][row].as_py()!r} as {column!r}, and had '
      f'{other[column][row].as_py()!r} before: an example is the same in all '
      'streams'
    )

  def _add_labels(self, entries: join_tables.LabelEntries) -> None:
    waiting, count = self._open, len(self._open)
    ids = np.concatenate([waiting.example_id, self._emitted.example_id])
    times = np.concatenate([waiting.time, self._emitted.time])
    fate = np.concatenate([waiting.fate, self._emitted.fate])
    row = join_state.find_rows(ids, entries.example_id)
    known = row >= 0
    row = row[known]
    self._count(labels=len(entries), unknown=len(known) - len(row))
    label = entries.label[known]
    # Times of labels may be any; their differences must not wrap around.
    delay = np.clip(entries.time[known], -_FAR, _FAR) - times[row]
    code = np.where(
      delay > self.attribution_s,
      BEHIND,
      np.where(row < count, JOINED, AFTER_EMISSION),
    ).astype(np.int8)
    cell = row * len(self.labels) + label
    before, after = fate.reshape(-1), fate.copy()
    # The fates are numbers of which a larger one wins.
    np.maximum.at(after.reshape(-1), cell, code)
    cells = np.unique(cell)
    old, new = before[cells], after.reshape(-1)[cells]
    size = JOINED + 1
    change = np.bincount(new, minlength=size) - np.bincount(old, minlength=size)
    self._count(
      joined=change[JOINED],
      after_emission=change[AFTER_EMISSION],
      behind_attribution=change[BEHIND],
      duplicates=len(cell) - np.sum(old == 0),
      early=np.sum(delay < 0),
    )
    can_join = code == JOINED
    self._open = waiting.label(
      after[:count],
      cell[can_join],
      entries.value[known][can_join],
    )
    self._emitted = dataclasses.replace(self._emitted, fate=after[count:])

  def _emit(self, closed: int | None) -> list[JoinedWindow]:
    """Gives out the windows below one, or all."""
    waiting, out = self._open, []
    number = waiting.time // self.window_s
    is_ready = np.full(len(number), True) if closed is None else number < closed
    rows = np.flatnonzero(is_ready)
    if len(rows):
      order = np.lexsort((waiting.example_id[rows], waiting.time[rows]))
      ready, self._open = waiting.take(rows[order]), waiting.take(~is_ready)
      number = ready.time // self.window_s
      starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
      ends = [*starts[1:].tolist(), len(number)]
      for start, end in zip(starts.tolist(), ends, strict=True):
        part = ready.take(np.arange(start, end))
        owned = {
          stream: np.flatnonzero(part.own[:, i])
          for i, stream in enumerate(self.streams)
        }
        table = part.make_table(self.labels)
        out.append(JoinedWindow(int(number[start]), table, owned))
      self._count(
        examples=len(ready),
        unlabelled=np.sum((ready.fate != JOINED).all(1)),
      )
      self._emitted = self._emitted.add(ready)
    if closed is not None:
      oldest = (closed - self.remembered) * self.window_s
      self._emitted = self._emitted.take(self._emitted.time >= oldest)
    return out


def _check_settings(
  streams: Sequence[str],
  labels: Sequence[str],
  window_s: int,
  attribution_s: int,
  remembered: int,
) -> None:
  for key, names in (('streams', streams), ('labels', labels)):
    if isinstance(names, str) or not names or len({*names}) < len(names):
      raise ValueError(f'{key} is {names!r}: give names, each once')
  for label in labels:
    if label in join_tables.KEYS:
      raise ValueError(f'a label cannot be called {label!r}')
  for key, value in (('window_s', window_s), ('attribution_s', attribution_s)):
    if not isinstance(value, numbers.Integral):
      raise ValueError(f'{key} is {value!r}: give whole seconds')
  if window_s <= 0:
    raise ValueError(f'window_s is {window_s}: a window has a second or more')
  if attribution_s < 0:
    raise ValueError(
      f'attribution_s is {attribution_s}: a label counts for so many seconds '
      'after its impression, 0 or more'
    )
  if remembered < 0:
    raise ValueError(f'remembered is {remembered}: give 0 windows or more')
