"""The files of events that the annotation service reads, unit by unit.

EVENTS/STREAM has impressions-00000k.parquet and labels-00000k.parquet for
k = 0, 1, ...; a file EVENTS/END says that no more will come.
"""

import pathlib
import re
from collections.abc import Sequence

import numpy as np

from genrec_jax.data.growing import END
from genrec_jax.data.parquet import pa, read_whole

KINDS = ('impressions', 'labels')
_MOST_TIME = (1 << 31) - 1  # seconds since 1970 that batches have room for
_SHOWN = 4  # names in a message
_FAR_WINDOWS = 1000


class EventFiles:
  """The files of some streams.

  Attributes:
    folder: with a directory for each stream.
    streams: their names.
    labels: columns that label events have.
    window_s: seconds of a window.
  """

  def __init__(
    self,
    folder: str,
    streams: Sequence[str],
    labels: Sequence[str],
    window_s: int,
  ):
    self.folder = pathlib.Path(folder)
    self.streams, self.labels = tuple(streams), tuple(labels)
    self.window_s = window_s

  def has_ended(self) -> bool:
    """Whether no further unit will come."""
    return (self.folder / END).is_file()

  def read_unit(self, unit: int) -> dict[str, tuple] | None:
    """Stream -> (impressions, labels); None while a file is missing.

    Raises:
      ValueError: a file cannot be read, or holds what cannot be.
    """
    files = self.find_unit(unit)
    if files is None:
      return None
    found = {}
    for stream, (shown, came) in files.items():
      impressions, events = read_whole(shown), read_whole(came)
      _check_times(impressions, shown, self.window_s)
      _check_labels(events, self.labels, came)
      found[stream] = impressions, events
    return found

  def find_unit(self, unit: int) -> dict[str, list[pathlib.Path]] | None:
    """Stream -> its files of a unit; None while one is missing."""
    files = {
      stream: [self._name(stream, kind, unit) for kind in KINDS]
      for stream in self.streams
    }
    paths = [path for of_stream in files.values() for path in of_stream]
    return files if all(path.exists() for path in paths) else None

  def count_from(self, unit: int) -> int:
    """Whole units that follow each other, from one on."""
    count = 0
    while self.find_unit(unit + count) is not None:
      count += 1
    return count

  def describe_wait(self, unit: int) -> str:
    """What a unit lacks, and what there is in its place."""
    for stream in self.streams:
      for kind in KINDS:
        path = self._name(stream, kind, unit)
        if path.exists():
          continue
        if not path.parent.is_dir():
          there = list_directories(self.folder)
          return f'{path.parent} is not there' + (
            f'; {self.folder} has {_list_some(there)}' if there else ''
          )
        names = sorted(x.name for x in path.parent.glob(f'{kind}*'))
        # Those that were read before say nothing.
        named = [x for x in names if x > path.name or not _number(x, kind)]
        return f'{path} is not there' + (
          f'; {path.parent} has {_list_some(named)}' if named else ''
        )
    return f'unit {unit} is there'

  def refuse_more(self, unit: int) -> None:
    """What ended before this unit, and has it all the same, is refused."""
    more = [u for u in (unit, unit + 1) if self.find_unit(u) is not None]
    if more:
      raise ValueError(
        f'{self.folder} had ended before unit {unit} (there was {END}), and '
        f'unit {more[0]} is there now: what had no label by then has been '
        'given out without one. Begin in another directory'
      )

  def refuse_gap(self, unit: int) -> None:
    """The streams have ended, and more of them is there than was read."""
    left = {}
    for stream in self.streams:
      for kind in KINDS:
        for path in (self.folder / stream).glob(f'{kind}-*.parquet'):
          number = _number(path.name, kind)
          if number is None or int(number) >= unit:
            left[path.name] = path
    if left:
      raise ValueError(
        f'{self.folder} has ended (there is {END}), and '
        f'{left[max(left)]} is there, but unit {unit} is not whole: '
        f'{self.describe_wait(unit)}. Write the impressions and the labels of '
        'every stream for every unit from 0 on, empty ones too'
      )

  def _name(self, stream: str, kind: str, unit: int) -> pathlib.Path:
    return self.folder / stream / f'{kind}-{unit:06d}.parquet'


def list_streams(events: str | pathlib.Path) -> tuple[str, ...]:
  """The directories of a directory of streams.

  Raises:
    FileNotFoundError: it is not there.
    ValueError: it has none.
  """
  folder = pathlib.Path(events)
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: no such directory of streams')
  names = list_directories(folder)
  if not names:
    raise ValueError(f'{folder} has no streams: a directory for each is wanted')
  return tuple(names)


def list_directories(folder: pathlib.Path) -> list[str]:
  """Names of the directories in one, without hidden ones."""
  if not folder.is_dir():
    return []
  return sorted(
    path.name
    for path in folder.iterdir()
    if path.is_dir() and not path.name.startswith('.')
  )


def _number(name: str, kind: str) -> str | None:
  """The number in the name of a file of events; None for another name."""
  match = re.fullmatch(rf'{kind}-(\d{{6,}})\.parquet', name)
  return match and match[1]


def _list_some(names: Sequence[str]) -> str:
  shown = ', '.join(names[:_SHOWN])
  return shown + f' and {len(names) - _SHOWN} more' * (len(names) > _SHOWN)


def _check_times(table: pa.Table, path: pathlib.Path, window_s: int) -> None:
  """Times are seconds since 1970 that fit what trainings read.

  One that is far ahead of its file would end all windows before it, and what
  comes later would be too late.
  """
  columns = _read_integers(table, ('example_id', 'time'))
  if columns is None:
    return  # which is told, with the types, where they are joined
  ids, times = columns
  bad = (times < 0) | (times > _MOST_TIME)
  if not bad.any():
    ahead = times - np.median(times) > _FAR_WINDOWS * window_s
    if len(times) > 1 and ahead.any():
      at = int(np.argmax(ahead))
      raise ValueError(
        f'{path}: the example {ids[at]} has the time {times[at]}, more than '
        f'{_FAR_WINDOWS:,} windows ahead of the others: what comes later would '
        'be too late'
      )
    return
  at = int(np.argmax(bad))
  hint = ''
  if times[at] // 1000 <= _MOST_TIME and times[at] > 0:
    hint = '; are these milliseconds?'
  raise ValueError(
    f'{path}: the example {ids[at]} has the time {times[at]}, and times are '
    f'whole seconds, 0 or more and at most {_MOST_TIME:,}{hint}'
  )


def _check_labels(
  table: pa.Table, labels: Sequence[str], path: pathlib.Path
) -> None:
  """A label is 0 or 1: a training would refuse others, of a part made of it."""
  for label in labels:
    if label not in table.column_names:
      continue
    try:
      values = table[label].cast(pa.float64(), safe=False)
    except pa.ArrowException:
      continue
    values = values.fill_null(0).to_numpy()
    bad = (values != 0) & (values != 1)
    if bad.any():
      at = int(np.argmax(bad))
      ids = _read_integers(table, ('example_id',))
      who = f'row {at}' if ids is None else f'the example {ids[0][at]}'
      raise ValueError(
        f'{path}: {label!r} of {who} is {values[at]:g}, and a label is 0 or 1; '
        'leave it empty where the event says nothing of it'
      )


def _read_integers(
  table: pa.Table, keys: Sequence[str]
) -> list[np.ndarray] | None:
  """Columns of whole numbers; None where one is none."""
  found = []
  for key in keys:
    if key not in table.column_names:
      return None
    column = table[key]
    if column.null_count or not pa.types.is_integer(column.type):
      return None
    try:
      found.append(column.cast(pa.int64()).to_numpy())
    except pa.ArrowException:
      return None
  return found
