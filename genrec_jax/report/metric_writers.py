"""Writes the measurements of a run to metrics.jsonl, TensorBoard and the log.

All three are written at once, in the caller's thread: a full disk stops the run
with an OSError instead of a curve that silently ends.
"""

import contextlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from absl import logging
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from genrec_jax.data import scratch

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
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    resume_step: int | None = None,
    log: Callable[[str], None] | None = logging.info,
    last_evaluation: int | None = None,
  ):
    """Opens the files of `workdir` to continue behind `resume_step`.

    Args:
      workdir: directory of the run; made when absent.
      resume_step: step of the checkpoint this run continues from. Lines of
        later steps are dropped. None is a run from the start: all are dropped.
      log: receives one plain line a call of `scalars`; None for no lines.
      last_evaluation: evaluations of later steps are dropped, which are made
        again; None drops none.
    """
    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    last_step = -1 if resume_step is None else int(resume_step)
    self._log = log
    path = workdir / 'metrics.jsonl'
    if path.exists():
      _drop_after(path, last_step, last_evaluation)
    self._jsonl = open(path, 'a', encoding='utf-8')
    # The time in a file name has a resolution of seconds; a suffix keeps a run
    # that is resumed within the second from overwriting the file before it.
    self._events = EventsWriter(
      str(workdir / 'events'), f'.{time.time_ns() % 10**9:09d}'
    )
    start = SessionLog(status=SessionLog.START)
    self._write_event(Event(step=last_step + 1, session_log=start))

  def scalars(self, step: int, values: Mapping[str, object]) -> None:
    """Writes the scalars `values`, by name, as measured at `step`."""
    if 'step' in values:
      raise ValueError("'step' names the step and cannot be a measurement")
    step = int(step)
    values = {name: to_number(name, value) for name, value in values.items()}
    self._jsonl.write(dump_json({'step': step, **values}) + '\n')
    self._jsonl.flush()
    # Not tensorboardX's own `to_number`, which turns ndcg@10 into ndcg_10.
    values_pb = [
      Summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
    ]
    self._write_event(Event(step=step, summary=Summary(value=values_pb)))
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

  def _write_event(self, event: Event) -> None:
    event.wall_time = time.time()
    self._events.write_event(event)


class NoMetricWriters(contextlib.nullcontext):
  """The writers of a process that leaves writing to another."""

  def scalars(self, step: int, values: Mapping[str, object]) -> None:
    pass

  def flush(self) -> None:
    pass


def read_jsonl(path: str | os.PathLike) -> list[dict]:
  """Returns the lines of a JSONL file; a torn last line is left out."""
  return [
    {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in row}
    for row in (row.items() for _, row in _read_lines(pathlib.Path(path)))
  ]


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


def _read_lines(path: pathlib.Path) -> Iterator[tuple[bytes, dict]]:
  """Yields the whole lines of a JSONL file, as they are and as objects."""
  with open(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      if not line.endswith(b'\n'):
        return  # the process was killed while it wrote this line
      try:
        row = json.loads(line)
      except ValueError as e:
        raise ValueError(
          f'{path}, line {number} is not JSON ({e}). A killed run tears the'
          ' last line only, so this file was damaged otherwise. Remove the'
          ' line to go on without it.'
        ) from e
      if not isinstance(row, dict):
        raise ValueError(f'{path}, line {number} is not a JSON object.')
      yield line, row


def _drop_after(
  path: pathlib.Path, last_step: int, last_evaluation: int | None
) -> None:
  """Keeps the whole lines of steps up to `last_step`, byte by byte."""
  kept = []
  for number, (line, row) in enumerate(_read_lines(path), 1):
    if not isinstance(row.get('step'), int):
      raise ValueError(
        f'{path}, line {number} has no "step": it is not the metrics file of'
        ' a run. Move it away or choose another workdir.'
      )
    is_known = (
      last_evaluation is None
      or row['step'] <= last_evaluation
      or any(name.startswith('train/') for name in row)
    )
    if row['step'] <= last_step and is_known:
      kept.append(line)
  write_atomically(path, b''.join(kept).decode())


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
