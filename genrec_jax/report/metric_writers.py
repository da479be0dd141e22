"""Writes the measurements of a run to metrics.jsonl, TensorBoard and the log.

All three are written at once, in the caller's thread: a full disk stops the run
with an OSError instead of a curve that silently ends.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
from absl import logging

from genrec_jax import sealed
from genrec_jax.data import scratch
from genrec_jax.report.event_files import EventFile

_FOREIGN = (
  '{path}, line {number} has no "step": it is not the metrics file of a run. '
  'Move it away or choose another workdir.'
)
_MOST_LINE = 1 << 24  # bytes
_MOST_STEP, _MOST_DIGITS = 1 << 62, 300
# JSON has no numbers for these; the strings are those of protobuf's mapping.
_NON_FINITE = {
  'NaN': math.nan,
  'Infinity': math.inf,
  '-Infinity': -math.inf,
}


class MetricWriters(contextlib.AbstractContextManager):
  """Appends scalars to `metrics.jsonl`, to `events.*` and to the log.

  A line of metrics.jsonl is in the hands of the operating system when `scalars`
  returns, so a killed process loses none. Write the measurements of a step
  before its checkpoint is saved; then an interrupted run and an uninterrupted
  one leave the same lines (`perf/...`, which hold timings, aside).

  Only the process that trains opens MetricWriters: opening drops what lies
  beyond `resume_step`.

  Attributes:
    position: {'lines', 'crc32', 'step'} of metrics.jsonl so far; a checkpoint
      keeps it.
    hole: what a resumed run found missing, see `describe_hole`; None if nothing
      is.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    resume_step: int | None = None,
    log: Callable[[str], None] | None = logging.info,
    last_evaluation: int | None = None,
    expected: Mapping[str, int] | None = None,
  ):
    """Opens the files of `workdir` to continue behind `resume_step`.

    Args:
      workdir: directory of the run; made when absent.
      resume_step: step of the checkpoint this run continues from. Lines of
        later steps are dropped. None is a run from the start: all are dropped.
      log: receives one plain line a call of `scalars`; None for no lines.
      last_evaluation: evaluations of later steps are dropped, which are made
        again; None drops none.
      expected: `position` at the checkpoint; None where nobody knows.
    """
    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    last_step = -1 if resume_step is None else int(resume_step)
    self._log = log
    path = workdir / 'metrics.jsonl'
    selected = _Lines()
    if path.exists():
      selected = _select_lines(path, resume_step, last_evaluation)
    # Whatever was there, a link say, is not what is appended to.
    write_atomically(path, ''.join(selected.texts))
    self.hole = None
    if resume_step is not None:
      self.hole = _find_hole(selected, last_step, expected)
    self.position = selected.position
    self._jsonl = open(path, 'a', encoding='utf-8', opener=_open_no_link)
    self._events = EventFile(workdir)
    self._events.start_session(last_step + 1)

  def scalars(self, step: int, values: Mapping[str, object]) -> None:
    """Writes the scalars `values`, by name, as measured at `step`."""
    if 'step' in values:
      raise ValueError("'step' names the step and cannot be a measurement")
    step = int(step)
    values = {name: to_number(name, value) for name, value in values.items()}
    line = dump_json({'step': step, **values}) + '\n'
    self._jsonl.write(line)
    self._jsonl.flush()
    self.position = {
      'lines': self.position['lines'] + 1,
      'crc32': zlib.crc32(line.encode(), self.position['crc32']),
      'step': step,
    }
    self._events.write_scalars(step, values)
    self._events.flush()
    if self._log is not None:
      shown = (f'{name} {value:.5g}' for name, value in values.items())
      self._log(f'step {step:,}: ' + ', '.join(shown))

  def flush(self) -> None:
    """Returns when every line is on the disk, not only on its way there."""
    self._jsonl.flush()
    os.fsync(self._jsonl.fileno())
    self._events.flush()

  def close(self) -> None:
    """Flushes and closes the files; a second call does nothing."""
    if not self._jsonl.closed:
      self.flush()
      self._jsonl.close()
      self._events.close()

  def __exit__(self, *exc_info) -> None:
    self.close()


class NoMetricWriters(contextlib.nullcontext):
  """The writers of a process that leaves writing to another."""

  position = hole = None

  def scalars(self, step: int, values: Mapping[str, object]) -> None:
    pass

  def flush(self) -> None:
    pass


def read_jsonl(path: str | os.PathLike) -> list[dict]:
  """Returns the lines of a JSONL file; a torn last line is left out."""
  rows = []
  for number, (_, row) in enumerate(_read_lines(pathlib.Path(path)), 1):
    if row is None:
      raise ValueError(
        f'{path} is damaged: line {number} is not a JSON object. Remove the '
        'line to go on without it; a training that continues does so itself.'
      )
    rows.append({
      k: _NON_FINITE.get(v, v) if isinstance(v, str) else v
      for k, v in row.items()
    })  # fmt: skip
  return rows


def restore_numbers(report: Mapping) -> dict:
  """What `dump_json` wrote of a report, with its NaN and infinities.

  What looks like them among settings, ids and titles stays text.
  """

  def restore(value):
    if isinstance(value, dict):
      return {name: restore(x) for name, x in value.items()}
    if isinstance(value, list):
      return list(map(restore, value))
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value

  texts = ('config', 'run', 'data', 'notes', 'versions', 'users')
  return {k: v if k in texts else restore(v) for k, v in report.items()}


def describe_hole(hole: Mapping) -> str:
  """A sentence about lines of metrics.jsonl that a resumed run did not find.

  >>> print(describe_hole(
  ...   {'step': 20, 'after': 8, 'missing': 3, 'unreadable': 0}
  ... ).split(',')[0])
  metrics.jsonl lacks 3 lines up to step 20

  Args:
    hole: 'step' where the run continued, 'after', the last step in front of
      the hole or None where nobody knows it, and how many lines are 'missing',
      the 'unreadable' ones among them.
  """
  step, missing = f'{hole["step"]:,}', hole['missing']
  if not missing:
    return (
      f'metrics.jsonl was changed: its lines up to step {step}, where the run '
      'continued, are not those that were written; the curves may be wrong '
      'there.'
    )
  text = (
    f'metrics.jsonl lacks {missing:,} line{"s" * (missing > 1)} up to step '
    f'{step}, where the run continued'
  )
  if hole['unreadable']:
    text += f' ({hole["unreadable"]:,} of them unreadable)'
  if hole['after'] is None:
    return f'{text}; the curves have a gap before it.'
  return f'{text}; the curves have a gap after step {hole["after"]:,}.'


def to_number(name: str, value: object) -> int | float:
  """Returns a Python, NumPy or JAX scalar as a Python number."""
  array = np.asarray(value)
  if array.ndim == 0 and array.dtype.kind in 'biu':
    return int(array)
  if array.ndim == 0 and array.dtype.kind in 'fV':  # V: bfloat16 and its like
    return float(array)
  raise ValueError(
    f'The measurement {name!r} must be one number, not a'
    f' {type(value).__name__} of shape {array.shape}.'
  )


def dump_json(value: object, indent: int | None = None) -> str:
  """JSON that any reader accepts; NaN and infinities become strings."""
  return json.dumps(
    _to_encodable(value), indent=indent, allow_nan=False, ensure_ascii=False
  )


def write_atomically(path: str | os.PathLike, text: str) -> None:
  """Replaces the file by `text`: a reader sees all of it or the old file."""
  with scratch.replaced_file(pathlib.Path(path)) as partial:
    partial.write_text(text, encoding='utf-8')


def _open_no_link(path: str, flags: int) -> int:
  return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _read_lines(path: pathlib.Path) -> Iterator[tuple[str, dict | None]]:
  """Yields the whole lines of a JSONL file, as they are and as objects.

  A line that is no object, no text or too long is None, and one of a step that
  no run reaches.
  """
  with _open_lines(path) as f:
    while line := f.readline(_MOST_LINE):
      too_long = len(line) == _MOST_LINE
      while len(line) == _MOST_LINE and not line.endswith(b'\n'):
        line = f.readline(_MOST_LINE)
      if not line.endswith(b'\n'):
        return  # the process was killed while it wrote this line
      row = None if too_long else _parse_line(line)
      # As it is written: an editor may have changed the ends of lines.
      text = '' if row is None else line.decode().replace('\r\n', '\n')
      yield text, row


def _parse_line(line: bytes) -> dict | None:
  try:
    row = json.loads(line.decode(), parse_int=_parse_int)
  except (ValueError, RecursionError):
    return None
  step = row.get('step') if isinstance(row, dict) else math.inf
  is_number = isinstance(step, int | float)
  return None if is_number and abs(step) > _MOST_STEP else row


def _open_lines(path: pathlib.Path) -> BinaryIO:
  try:
    return sealed.open_regular(path)
  except OSError as e:
    if e.errno != errno.EINVAL:
      raise
    raise ValueError(f'{path} is damaged ({e.strerror}); remove it') from None


def _parse_int(text: str) -> int | float:
  """A number of a line; infinite if it is beyond those of a run."""
  return int(text) if len(text) < _MOST_DIGITS else float(text)


@dataclasses.dataclass
class _Lines:
  """The whole lines of a metrics file up to a step, byte by byte.

  Attributes:
    texts: the lines.
    last: step of the last one, 0 without any.
    unreadable: how many lines could not be read.
    torn: the step in front of the first of these; None for none.
  """

  texts: list[str] = dataclasses.field(default_factory=list)
  last: int = 0
  unreadable: int = 0
  torn: int | None = None

  @property
  def position(self) -> dict[str, int]:
    """What `MetricWriters.position` says of them."""
    return _position_of(self.texts, self.last)


def _position_of(lines: Sequence[str], last: int) -> dict[str, int]:
  content = ''.join(lines).encode()
  return {'lines': len(lines), 'crc32': zlib.crc32(content), 'step': last}


def _select_lines(
  path: pathlib.Path, resume_step: int | None, last_evaluation: int | None
) -> _Lines:
  """The lines of steps up to `resume_step`, none for None."""
  selected, last_step = _Lines(), -1 if resume_step is None else resume_step
  steps, beyond = 0, False
  for number, (line, row) in enumerate(_read_lines(path), 1):
    if row is None:
      # What follows later steps is of later steps, too.
      if not beyond:
        selected.unreadable += 1
        if selected.torn is None:
          selected.torn = selected.last
      continue
    if not isinstance(row.get('step'), int):
      raise ValueError(_FOREIGN.format(path=path, number=number))
    steps += 1
    if row['step'] > last_step:
      beyond = True
      continue
    # An evaluation that is made again.
    if (
      last_evaluation is not None
      and row['step'] > last_evaluation
      and not any(name.startswith('train/') for name in row)
    ):
      continue
    selected.texts.append(line)
    selected.last = row['step']
  if selected.unreadable and not steps and resume_step is None:
    raise ValueError(_FOREIGN.format(path=path, number=1))
  return selected


def _find_hole(
  selected: _Lines, resume_step: int, expected: Mapping[str, int] | None
) -> dict | None:
  """What a run that continues lacks of its lines; see `describe_hole`."""
  missing, after = selected.unreadable, selected.torn
  if expected is not None:
    missing = max(expected['lines'] - len(selected.texts), 0)
    # A run that only reported may have added lines behind its checkpoint.
    written = selected.texts[: expected['lines']]
    found = _position_of(written, expected['step'])
    if found == dict(expected):
      return None
    if after is None and missing and selected.last < expected['step']:
      after = selected.last
  elif not missing:
    return None
  return {
    'step': resume_step,
    'after': after,
    'missing': missing,
    'unreadable': min(selected.unreadable, missing),
  }


def _to_encodable(value: object) -> object:
  if isinstance(value, Mapping):
    return {str(k): _to_encodable(v) for k, v in value.items()}
  if value is None or isinstance(value, str | bool | int):
    return value
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, np.bool_):
    return bool(value)
  if getattr(value, 'ndim', 0):
    value = np.asarray(value).tolist()
  if isinstance(value, list | tuple | set):
    return [_to_encodable(v) for v in value]
  number = to_number('a value in JSON', value)
  if math.isfinite(number):
    return number
  if math.isnan(number):
    return 'NaN'
  return 'Infinity' if number > 0 else '-Infinity'
