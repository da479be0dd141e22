"""Shows how far a run is and when it will be done.

On a terminal one line is rewritten in place, elsewhere (a log file, a cluster's
console) a plain line is printed every so often.
"""

import collections
import contextlib
import contextvars
import io
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from genrec_jax import formatting

_REDRAW_S, _PRINT_S = 0.1, 10.0  # between two lines: on a terminal, elsewhere
_WINDOW_S = 30.0  # rates are those of the latest half minute


class Throughput:
  """Rates of a run, without what comes before its first step and its pauses."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Starts; `clock` returns the time in seconds."""
    self._clock = clock
    self._first_s, self._paused_s, self._tokens = 0.0, 0.0, 0
    self._samples = collections.deque()  # (active seconds, step, tokens)

  def count(self, step: int, tokens: int = 0) -> None:
    """Says that `step` steps are done, and how many tokens since last time."""
    now = self._clock()
    if not self._samples:  # what came before, compilation mostly, is not timed
      self._first_s, self._paused_s, tokens = now, 0.0, 0
    self._tokens += tokens
    active = now - self._first_s - self._paused_s
    self._samples.append((active, step, self._tokens))
    while len(self._samples) > 2 and self._samples[1][0] < active - _WINDOW_S:
      self._samples.popleft()

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Keeps the time inside the context out of the rates."""
    begin = self._clock()
    try:
      yield
    finally:
      self._paused_s += self._clock() - begin

  @property
  def rate(self) -> float | None:
    """Steps a second over the latest half minute; None when not known yet."""
    return self._measure(1)

  @property
  def tokens_per_s(self) -> float | None:
    """Tokens a second over the latest half minute; None when not known."""
    return self._measure(2) or None

  def estimate_remaining_s(self, total_steps: int | None) -> float | None:
    """Returns the seconds to the end, pauses included; None when not known."""
    if not self.rate or total_steps is None:
      return None
    active, step, _ = self._samples[-1]
    # Pauses go on to take the share of the time that they have taken so far.
    slower = max((self._clock() - self._first_s) / active, 1.0)
    return max(total_steps - step, 0) / self.rate * slower

  def _measure(self, column: int) -> float | None:
    if len(self._samples) < 2:
      return None
    first, last = self._samples[0], self._samples[-1]
    seconds = last[0] - first[0]
    return (last[column] - first[column]) / seconds if seconds > 0 else None


_HIDDEN = contextvars.ContextVar('progress is hidden', default=False)


@contextlib.contextmanager
def hide_progress() -> Iterator[None]:
  """Shows no progress inside the context, unless it has a stream of its own."""
  token = _HIDDEN.set(True)
  try:
    yield
  finally:
    _HIDDEN.reset(token)


class Progress(Throughput, contextlib.AbstractContextManager):
  """Progress of a run of `total_steps` steps; a context manager.

    with Progress(1000) as progress:
      for step in range(1000):
        ...
        progress.update(step + 1, loss=loss, tokens=batch_tokens)
        with progress.pause('evaluating'):
          ...

  Time spent before the first `update`, which is mostly compilation, and inside
  `pause` counts neither for the rate nor for the tokens per second. The
  remaining time does include a share of pauses like the one seen so far.
  """

  def __init__(
    self,
    total: int | None,
    unit: str = 'step',
    stream: TextIO | None = None,
    progress_unit: str = 'tokens',
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts the clock.

    Args:
      total: step at which the run ends; None for a run without an end.
      unit: what a step is called.
      stream: where lines go; None is the standard error stream.
      counted: the unit in which progress is counted, which `update` is given.
      clock: returns the time in seconds.
    """
    super().__init__(clock)
    self._total, self._unit, self.progress_unit = total, unit, progress_unit
    self._stream = stream or (io.StringIO() if _HIDDEN.get() else sys.stderr)
    self._terminal = self._stream.isatty()
    self._started, self._drawn_at = clock(), -math.inf
    self._line = ''  # what stands on the terminal
    self._pending = None  # the update that is not drawn yet

  def update(self, step: int, *, loss=None, tokens: int = 0, **shown) -> None:
    """Says that `step` steps are done.

    Args:
      step: steps done so far, those before a restart included.
      loss: shown before the rate. A device array is fetched only when a line is
        drawn, so that steps are not held up.
      tokens: tokens of the steps since the last update.
      **shown: further values by name, behind the rate; fetched like the loss.
    """
    self.count(step, tokens)
    self._pending = step, loss, shown
    interval = _REDRAW_S if self._terminal else _PRINT_S
    if self._clock() - self._drawn_at >= interval:
      self._draw()

  @contextlib.contextmanager
  def pause(self, label: str) -> Iterator[None]:
    """Keeps the time inside the context out of the rate, and shows why."""
    line = self._line
    with super().pause():
      if line:
        self._show(f'{line} · {label}')
      try:
        yield
      finally:
        if line:
          self._show(line)

  def __exit__(self, *exc_info) -> None:
    """Draws the last update and ends the line."""
    if self._pending:
      self._draw()
    if self._line:
      print(file=self._stream, flush=True)

  def _draw(self) -> None:
    (step, loss, shown), self._pending = self._pending, None
    self._drawn_at = self._clock()
    left, rate = self.estimate_remaining_s(self._total), self.rate
    tokens, so_far = self.tokens_per_s, self._drawn_at - self._started
    texts = (
      f'{self._unit} {step:,}' + (f'/{self._total:,}' if self._total else ''),
      left and f'{formatting.format_duration(left)} left',
      not rate and f'{formatting.format_duration(so_far)} so far',
      loss is not None and f'loss {_format_value(loss)}',
      rate and formatting.format_rate(rate, self._unit),
      tokens and f'{formatting.format_compact(tokens)} {self.progress_unit}/s',
      # Last: a terminal may be too narrow for all of them.
      *(f'{n} {_format_value(x)}' for n, x in shown.items() if x is not None),
    )
    line = ' · '.join(filter(None, texts))
    if self._terminal and self._total:
      room = _terminal_columns() - len(line) - 1
      line = formatting.format_bar(step / self._total, room) + line
    self._show(line)

  def _show(self, line: str) -> None:
    encoding = getattr(self._stream, 'encoding', None) or 'utf-8'
    if not encoding.lower().startswith('utf'):
      line = line.replace(' · ', ', ').replace('━', '=').replace('─', '-')
    if self._terminal:
      self._line = line[: _terminal_columns()]
      line = f'\r\x1b[K{self._line}'
    end = '' if self._terminal else '\n'
    print(line, end=end, file=self._stream, flush=True)


def _format_value(value: object) -> str:
  return value if isinstance(value, str) else f'{float(value):.4g}'


def _terminal_columns() -> int:
  # A character in the last column would move the cursor to the next line.
  return shutil.get_terminal_size().columns - 1
