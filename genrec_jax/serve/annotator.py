"""The service that annotates examples with a teacher's scores; see annotate.py.

What it has done lies in the manifest of its directory: the units of input that
it has read, the join as it was behind them, and the parts of the teacher and of
the students. A commit of the manifest is all there or not at all, so a service
that is killed anywhere does the rest of a unit when it is started again.
"""

import dataclasses
import io
import json
import logging
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from genrec_jax.data.growing import END
from genrec_jax.data.parquet import pa, pq
from genrec_jax.distill import part_manifest, score_columns
from genrec_jax.distill.attach import append_scores, attach_scores
from genrec_jax.distill.label_join import JoinedWindow, LabelJoin
from genrec_jax.distill.teacher_store import Scores, TeacherStore
from genrec_jax.serve.annotate_options import (
  SCORES,
  TEACHER,
  AnnotateOptions,
)
from genrec_jax.serve.event_files import EventFiles, list_streams
from genrec_jax.serve.join_watch import JoinWatch
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.snapshots import (
  Snapshots,
  fingerprint_run,
  name_window,
  number_window,
)

LOG = logging.getLogger('genrec_jax')
KIND = 'annotated examples'
_REMEMBERED = 8  # windows whose ids are compared with what is scored
_SETTINGS = ('streams', 'labels', 'window_s', 'attribution_s', 'lag', 'column')
_WAITS_S = 10.0  # in silence


class Annotator:
  """The service; `run` does all of it.

  Attributes:
    options: what it is asked for.
    facts: what the manifest of `out` says: how far it is, and its counts.
  """

  def __init__(
    self,
    options: AnnotateOptions,
    log: Callable[[str], object] = LOG.info,
    stop: Callable[[], bool] = lambda: False,
  ):
    """Opens what there is, and goes on from there.

    Args:
      options: what is asked for.
      log: receives a line about every window.
      stop: asked while waiting; True ends the service.
    """
    if not options.streams:
      found = list_streams(options.events)
      options = dataclasses.replace(options, streams=found)
    self.options, self._log, self._stop = options, log, stop
    self._events = EventFiles(
      options.events, options.streams, options.labels, options.window_s
    )
    settings = {key: getattr(options, key) for key in _SETTINGS}
    settings = json.loads(json.dumps(settings))  # lists for tuples
    fresh = dict(settings=settings, unit=0, windows=-1, taught=-1, join='')
    fresh |= dict(examples=0, rows=0, scored=0, finished=False, labels_lost=0.0)
    fresh |= dict(is_ending=False)
    self._parts = part_manifest.PartDirectory(options.out, KIND, fresh)
    self._parts.recover()
    self._parts.check_sizes()
    self.facts = self._parts.facts
    self._check_settings(settings)
    self._join = LabelJoin(
      options.streams, options.labels, options.window_s, options.attribution_s
    )
    if name := self.facts['join']:
      self._join = LabelJoin.from_bytes(self._parts.read(name), name)
    self._snapshots = Snapshots(options.teacher)
    self._store: TeacherStore | None = None
    self._fingerprint = ''
    self._watch = JoinWatch(options.events, options.most_lost)
    self._scorer: Scorer | None = None
    self._taught_ids = self._read_taught_ids()
    self._began, self._done = time.monotonic(), 0
    self._waits_since, self._told = 0.0, set()

  def run(self) -> dict:
    """Annotates until the streams end, or until it is stopped.

    Returns:
      The facts.
    """
    if self.facts['finished'] or self.facts['is_ending']:
      self._events.refuse_more(self.facts['unit'])
    while not self.facts['finished'] and not self._stop():
      unit = self.facts['unit']
      is_last = self.facts['is_ending']
      tables = None if is_last else self._events.read_unit(unit)
      if is_last:
        windows = self._join.finish()
      elif tables is not None:
        windows = self._join.add_unit(unit, tables)
        self._watch.look(self._join, unit, tables)
      elif self._events.has_ended():
        # Looked for once more: the last unit may have come before the end did.
        if self._events.find_unit(unit) is None:
          self._events.refuse_gap(unit)
          # From here on there is no way back: windows are given out without
          # what might have come.
          self._commit({}, {**self.facts, 'is_ending': True})
        continue
      else:
        self._wait(lambda unit=unit: self._events.describe_wait(unit))
        continue
      self._waits_since = 0.0
      for window in windows:
        if window.number > self.facts['windows']:
          if not self._annotate(window, is_last and window is windows[-1]):
            return self.facts
      self._end_unit(is_last)
    if self.facts['finished']:
      for name in (TEACHER, *self.options.streams):
        _touch(pathlib.Path(self.options.out) / name / END)
    return self.facts

  def _annotate(self, window: JoinedWindow, is_last: bool) -> bool:
    """Writes a window to the teacher and the students; False if stopped."""
    number, file = window.number, f'{name_window(window.number)}.parquet'
    if number > self.facts['taught']:
      self._refuse_columns(window)
      self._refuse_scored(window)
      notes = _describe_times(window.table)
      content = _encode(window.table)
      facts = {**self.facts, 'taught': number}
      part = part_manifest.Part(content, notes)
      self._commit({f'{TEACHER}/{file}': part}, facts)
      ids = window.table['example_id'].to_numpy()
      self._taught_ids[number] = np.sort(ids)
      for old in sorted(self._taught_ids)[:-_REMEMBERED]:
        del self._taught_ids[old]
    if is_last:
      _touch(pathlib.Path(self.options.out) / TEACHER / END)
    source = self._find_source(number)
    scored = source is not None and self._score(window, *source)
    if scored is None:
      return False
    self._write_students(window, file, scored or None)
    return True

  def _refuse_columns(self, window: JoinedWindow) -> None:
    """Events have no columns that parts will have of the service."""
    options = self.options
    own = score_columns.name_columns(options.labels, options.column)
    for name in (*own, score_columns.name_weight(options.column)):
      if name in window.table.column_names:
        raise ValueError(
          f'the impressions of window {window.number} have a column {name!r}, '
          "which is that of the teacher's scores in what students read: give "
          'it another name, or begin another directory with another --column'
        )

  def _refuse_scored(self, window: JoinedWindow) -> None:
    """An id whose scores are in the store already is of another example."""
    if self._store is None or name_window(window.number) in self._store.keys:
      return
    ids = window.table['example_id'].to_numpy()
    known = self._store.lookup(ids).found
    if known.any():
      raise ValueError(
        f'the example {ids[np.argmax(known)]} of window {window.number} has an '
        'id of which an earlier window has scores: give each impression an id '
        'of its own'
      )

  def _find_source(self, number: int) -> tuple[int] | None:
    """(the window behind which the teacher scores,); None for no such one."""
    old = [w for w in self._list_taught() if w < number - self.options.lag]
    return (max(old),) if old else None

  def _list_taught(self) -> dict[int, str]:
    """Window -> the part that the teacher has got of it, ascending."""
    notes = self._parts.notes
    names = [name for name in notes if name.startswith(f'{TEACHER}/')]
    return {number_window(name): name for name in sorted(names)}

  def _score(self, window: JoinedWindow, source: int):
    """True once the store has the scores of a window.

    False if its teacher is late and nobody waits; None if it was stopped.
    """
    key = name_window(window.number)
    if self._store is not None and key in self._store.keys:
      return True
    while (step := self._snapshots.find_step(source)) is None:
      if not self.options.is_patient:
        return False
      if self._stop():
        return None
      self._wait(lambda: self._snapshots.describe_wait(source))
    self._waits_since = 0.0
    self._check_age(window, source)
    self._check_parts(step, source)
    self._open_store()
    if key in self._store.keys:  # by a service that was killed behind it
      return True
    self._use(step)
    table = window.table
    columns = {
      name: _list_column(table[name])
      for name in self._scorer.encoder.schema.sources
    }
    values = self._scorer.score(columns)
    scores = Scores(
      example_id=table['example_id'].to_numpy(),
      time=table['time'].to_numpy(),
      values=values,
      snapshot_step=step,
      snapshot_window=source,
    )
    self._store.append(key, scores)
    return True

  def _check_age(self, window: JoinedWindow, source: int) -> None:
    """The teacher has never been trained on what it is about to score."""
    ids = window.table['example_id'].to_numpy()
    first = int(window.table['time'].to_numpy().min())
    notes = self._parts.notes
    for number, name in self._list_taught().items():
      last = notes[name]['last']
      if number <= source and last >= first:
        raise AssertionError(
          f'the teacher of window {source} has been trained on examples of '
          f'time {last}, and window {window.number} begins at {first}'
        )
    for number, taught in self._taught_ids.items():
      if number <= source and np.isin(ids, taught, assume_unique=True).any():
        raise AssertionError(
          f'window {window.number} has examples of window {number}, on which '
          f'the teacher of window {source} has been trained'
        )

  def _check_parts(self, step: int, source: int) -> None:
    """What the teacher has read is what this service has written for it."""
    written = self._parts.checksums
    for name, crc in self._snapshots.read_parts(step).items():
      is_own = written.get(f'{TEACHER}/{name}') == crc
      if not is_own or number_window(name) > source:
        raise ValueError(
          f'{self.options.teacher} has been trained on {name}, which is not '
          f'what this service has written for it up to window {source}: its '
          f'data.stream.directory must be {self.options.out}/{TEACHER}, and '
          'its run one that has read nothing else'
        )

  def _write_students(self, window, file: str, scored) -> None:
    options, table = self.options, window.table
    count = len(table)
    if scored:
      table, _ = attach_scores(table, self._store, column=options.column)
    else:
      none = np.zeros((count, len(options.labels)))
      known = np.zeros(count, bool)
      table = append_scores(table, options.labels, none, known, options.column)
    parts, rows = {}, 0
    for stream in options.streams:
      own = table.take(pa.array(window.rows[stream])).combine_chunks()
      rows += len(own)
      notes = {'rows': len(own), 'scored': bool(scored)}
      parts[f'{stream}/{file}'] = part_manifest.Part(_encode(own), notes)
    counts = self._join.counts
    facts = self.facts | dict(
      windows=window.number,
      examples=self.facts['examples'] + count,
      rows=self.facts['rows'] + rows,
      scored=self.facts['scored'] + (count if scored else 0),
      labels_lost=counts.share_lost,
    )
    self._commit(parts, facts)
    self._done += count
    self._log(self._describe(window, rows, bool(scored)))

  def _describe(self, window: JoinedWindow, rows: int, scored: bool) -> str:
    count = len(window.table)
    waiting = self._events.count_from(self.facts['unit'] + 1)
    speed = self._done / max(1e-9, time.monotonic() - self._began)
    teacher = 'no teacher is old enough'
    if scored:
      teacher = f'teacher of step {self._scorer.step:,}' if self._scorer else ''
      teacher += f' (lag {self.options.lag})'
    return (
      f'window {window.number}: {count:,} examples, {rows:,} rows of '
      f'{len(self.options.streams)} streams ({rows - count:,} teacher calls '
      f'saved), {teacher}; {waiting} units wait, {len(self._join):,} examples '
      f'wait for labels, {self.facts["labels_lost"]:.2%} of labels lost, '
      f'{speed:,.0f} examples/s'
    )

  def _end_unit(self, is_last: bool) -> None:
    name = f'join/unit-{self.facts["unit"]:06d}'
    facts = self.facts | dict(
      unit=self.facts['unit'] + (not is_last), join=name, finished=is_last
    )
    former = [self.facts['join']] if self.facts['join'] else []
    former = [x for x in former if x != name]
    part = part_manifest.Part(self._join.to_bytes())
    self._commit({name: part}, facts, former)

  def _commit(self, parts, facts: dict, remove: Sequence[str] = ()) -> None:
    self._parts.commit(parts, facts, remove)
    self.facts = facts

  def _check_settings(self, settings: dict) -> None:
    for key, value in settings.items():
      there = self.facts['settings'][key]
      if there != value:
        raise ValueError(
          f'{self.options.out} was begun with {key}={there!r}, not {value!r}: '
          'use the same options, or another directory'
        )

  def _read_taught_ids(self) -> dict[int, np.ndarray]:
    found = {}
    for number, name in [*self._list_taught().items()][-_REMEMBERED:]:
      content = io.BytesIO(self._parts.read(name))
      ids = pq.read_table(content, columns=['example_id'])['example_id']
      found[number] = np.sort(ids.to_numpy())
    return found

  def _open_store(self) -> None:
    """Opens the store of the teacher, which must be the one it was."""
    fingerprint = fingerprint_run(self.options.teacher)
    folder = pathlib.Path(self.options.out) / SCORES
    if self._store is None or fingerprint != self._fingerprint:
      self._store = TeacherStore.open(
        folder,
        teacher=pathlib.Path(self.options.teacher).name,
        labels=self.options.labels,
        fingerprint=fingerprint,
      )
      self._fingerprint = fingerprint
      written = {
        name_window(number_window(name))
        for name, notes in self._parts.notes.items()
        if notes.get('scored')
      }
      if missing := sorted(written - {*self._store.keys}):
        raise ValueError(
          f'{folder} has no scores of {missing[0]}, and parts were written '
          f'with them: put back a whole copy of {self.options.out}, or begin '
          'in another directory'
        )

  def _use(self, step: int) -> None:
    if self._scorer is None:
      self._scorer = Scorer.load(self.options.teacher, checkpoint=step)
      if tuple(self._scorer.labels) != tuple(self.options.labels):
        raise ValueError(
          f'{self.options.teacher} scores the labels '
          f'{", ".join(self._scorer.labels)}, and the service joins '
          f'{", ".join(self.options.labels)}: give the same --labels'
        )
    elif self._scorer.step != step:
      self._scorer.use_step(self.options.teacher, step)

  def _wait(self, describe: Callable[[], str]) -> None:
    """Sleeps; says once what is waited for, if that takes long."""
    now = time.monotonic()
    self._waits_since = self._waits_since or now
    if now - self._waits_since > _WAITS_S:
      self._waits_since = now  # looked up now and then, not at each poll
      if (text := describe()) not in self._told:
        self._told.add(text)
        self._log(f'waiting: {text}')
    time.sleep(self.options.poll_s)


def _encode(table: pa.Table) -> bytes:
  out = io.BytesIO()
  # So that who reads pages with their checksums finds what is damaged.
  pq.write_table(table, out, write_page_checksum=True)
  return out.getvalue()


def _describe_times(table: pa.Table) -> dict:
  times = table['time'].to_numpy()
  return dict(rows=len(times), first=int(times.min()), last=int(times.max()))


def _list_column(column: pa.ChunkedArray):
  """A column as `raw.from_columns` takes it."""
  kind = column.type
  if pa.types.is_integer(kind) or pa.types.is_floating(kind):
    if not column.null_count:
      return column.to_numpy()
  return column.to_pylist()


def _touch(path: pathlib.Path) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.touch()


def describe_facts(facts: Mapping) -> str:
  """One line about all that a service has done."""
  return (
    f'annotated {facts["examples"]:,} examples ({facts["rows"]:,} rows of '
    f'{len(facts["settings"]["streams"])} streams), '
    f'{facts["scored"]:,} of them scored by the teacher; '
    f'{facts["labels_lost"]:.2%} of labels lost'
  )
