"""Shows how far the runs of a sweep are.

On a terminal a table is rewritten in place, in one write, so that it does not
flicker; elsewhere a line is printed when a run begins or ends, and one about
all of them now and then.
"""

import collections
import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from genrec_jax import formatting
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.processes.notes import RUNNING, STATES, WAITING

_REDRAW_S, _PRINT_S = 0.5, 60.0
_WIDE = 46  # characters of a name
HEADER = ('<run', '<state', '<step', '<rate', '<left')


@dataclasses.dataclass(frozen=True)
class Row:
  """What the table says of a run.

  Attributes:
    name: of the run.
    state: one of `notes.STATES`.
    step: '120/4,000', or ''.
    rate: '15 steps/s', or ''.
    left: '3m 05s', or ''.
    metric: the best value of what is monitored, or ''.
    monitored: what that is, 'valid/auc', or ''.
  """

  name: str
  state: str
  step: str = ''
  rate: str = ''
  left: str = ''
  metric: str = ''
  monitored: str = ''

  def cells(self) -> tuple[str, ...]:
    name, *others, _ = dataclasses.astuple(self)
    return name[:_WIDE], *others


class LiveTable(contextlib.AbstractContextManager):
  """The table; a context manager."""

  def __init__(
    self,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._stream, self._clock = stream or sys.stderr, clock
    self._terminal = self._stream.isatty()
    self._lines = 0  # that stand on the terminal
    self._began, self._drawn_at = clock(), clock() - _PRINT_S
    self._rows: list[Row] = []

  @property
  def is_due(self) -> bool:
    """Whether it is time for `draw`."""
    interval = _REDRAW_S if self._terminal else _PRINT_S
    return self._clock() - self._drawn_at >= interval

  def say(self, words: str) -> None:
    """Writes a line above the table, which stays."""
    text = self._erase() + formatting.fit_encoding(words, self._stream) + '\n'
    self._lines = 0
    self._print(text + self._format_block())

  def note(self, words: str) -> None:
    """Writes a line where there is no table that shows it."""
    if not self._terminal:
      self.say(words)

  def draw(self, rows: Sequence[Row]) -> None:
    """Shows the runs as they are now."""
    self._rows, self._drawn_at = list(rows), self._clock()
    if self._terminal:
      self._print(self._erase() + self._format_block())
    else:
      self._print(f'{self._summarize()}\n')

  def __exit__(self, *exc_info) -> None:
    self._lines = 0  # what stands there stays

  def _erase(self) -> str:
    return f'\x1b[{self._lines}F\x1b[J' if self._lines else ''

  def _format_block(self) -> str:
    if not self._terminal or not self._rows:
      return ''
    size = shutil.get_terminal_size()
    room = max(size.lines - 4, 1)
    shown = choose_rows(self._rows, room)
    named = {row.monitored for row in self._rows} - {''}
    metric = named.pop() if len(named) == 1 else 'metric'
    header = (*HEADER, f'<{metric}')
    lines = format_columns(header, [row.cells() for row in shown])
    lines.append(self._summarize())
    self._lines = len(lines)
    width = formatting.terminal_columns()
    return ''.join(
      formatting.fit_encoding(line, self._stream)[:width] + '\n'
      for line in lines
    )

  def _summarize(self) -> str:
    counts = collections.Counter(row.state for row in self._rows)
    texts = [f'{counts[s]} {s}' for s in STATES if counts[s]]
    so_far = formatting.format_duration(self._clock() - self._began)
    running = [
      f'{row.name.partition("_")[0]}: {row.step or "starting"}'
      for row in self._rows
      if row.state == RUNNING
    ]
    words = [', '.join(texts), f'{so_far} so far']
    if not self._terminal:
      words += running
    line = ' · '.join(filter(None, words))
    return formatting.fit_encoding(line, self._stream)

  def _print(self, text: str) -> None:
    # Whoever watches may have gone: a closed pipe, a full disk.
    with contextlib.suppress(OSError, ValueError):
      self._stream.write(text)
      self._stream.flush()


def choose_rows(rows: Sequence[Row], room: int) -> list[Row]:
  """As many rows as there is room for: those that run, then the last ended.

  Args:
    rows: in the order of their numbers.
    room: how many.
  """
  running = [row for row in rows if row.state == RUNNING]
  ended = [row for row in rows if row.state not in (RUNNING, WAITING)]
  waiting = [row for row in rows if row.state == WAITING]
  kept = {row.name for row in [*running, *reversed(ended), *waiting][:room]}
  return [row for row in rows if row.name in kept]
