"""Tells someone who waits how far a run is and when it will be done.

On a terminal one line is rewritten in place, elsewhere (a log file, a cluster's
console) a plain line is printed every so often.
"""

import collections
import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_REDRAW_S = 0.1  # of the line on a terminal
_WINDOW_S = 30.0  # the rate is that of the latest half minute
_BAR = 8, 24  # characters of the bar, at least and at most


class Progress:
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
    total_steps: int | None,
    unit: str = 'step',
    stream: TextIO | None = None,
    every_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
    counted: str = 'tokens',
  ):
    """Starts the clock.

    Args:
      total_steps: step at which the run ends; None for a run without an end.
      unit: what a step is called.
      stream: where lines go; None is the standard error stream.
      every_s: seconds between two lines where the stream is no terminal.
      clock: returns the time in seconds.
      counted: what `update` is told the number of.
    """
    self._total = total_steps
    self._unit = unit
    self.counted = counted
    self._stream = sys.stderr if stream is None else stream
    self._terminal = self._stream.isatty()
    self._interval = _REDRAW_S if self._terminal else every_s
    self._clock = clock
    self._started = clock()
    self._first = None  # (time, active time) at the first update
    self._paused = 0.0  # seconds in pauses so far
    self._tokens = 0
    self._samples = collections.deque()  # (active time, step, tokens)
    self._drawn_at = None
    self._drawn = ''  # the line on the terminal
    self._latest = None  # the update that is not drawn yet, or None

  def update(
    self, step: int, *, loss: object = None, tokens: int = 0, **shown: object
  ) -> None:
    """Says that `step` steps are done.

    Args:
      step: steps done so far, those before a restart included.
      loss: shown behind the rate. A device array is fetched only when a line is
        drawn, so that steps are not held up.
      tokens: tokens of the steps since the last update.
      **shown: further values by name, behind the rate; fetched like the loss.
    """
    now = self._clock()
    active = now - self._started - self._paused
    if self._first is None:
      self._first = now, active
    else:
      self._tokens += tokens  # those of the first were not timed
    samples = self._samples
    if len(samples) > 1 and samples[-1][0] - samples[-2][0] < _WINDOW_S / 100:
      samples.pop()  # a hundred samples are enough
    samples.append((active, step, self._tokens))
    while len(samples) > 2 and samples[1][0] < active - _WINDOW_S:
      samples.popleft()
    self._latest = step, loss, shown
    if self._drawn_at is None or now - self._drawn_at >= self._interval:
      self._draw(now)

  @property
  def rate(self) -> float | None:
    """Steps a second over the latest half minute; None when not known yet."""
    return self._per_second(1)

  @property
  def tokens_per_s(self) -> float | None:
    """Tokens a second over the latest half minute; None when not known."""
    return self._per_second(2) or None

  @property
  def remaining_s(self) -> float | None:
    """Estimated seconds to the end, pauses included; None when not known."""
    rate = self.rate
    if not rate or self._total is None:
      return None
    time_0, active_0 = self._first
    now = self._clock()
    active = self._samples[-1][0] - active_0
    # Above 0, or there were no rate.
    slower = (now - time_0) / active
    left = self._total - self._samples[-1][1]
    return max(left, 0) / rate * max(slower, 1.0)

  @contextlib.contextmanager
  def pause(self, label: str = '') -> Iterator[None]:
    """Keeps the time inside the context out of the rate."""
    begin = self._clock()
    line = self._drawn
    if label and line:
      self._show(f'{line} · {label}')
    try:
      yield
    finally:
      self._paused += self._clock() - begin
      if self._drawn != line:
        self._show(line)

  def write(self, line: str) -> None:
    """Prints a line of its own above the progress line."""
    if self._drawn:
      self._stream.write('\r\x1b[K')
    self._stream.write(self._encodable(line) + '\n' + self._drawn)
    self._stream.flush()

  def close(self) -> None:
    """Draws the last update and ends the line; a second call does nothing."""
    if self._latest is not None:
      self._draw(self._clock())
    if self._drawn:
      self._stream.write('\n')
      self._stream.flush()
      self._drawn = ''

  def __enter__(self) -> 'Progress':
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def _per_second(self, column: int) -> float | None:
    if len(self._samples) < 2:
      return None
    first, last = self._samples[0], self._samples[-1]
    seconds = last[0] - first[0]
    return (last[column] - first[column]) / seconds if seconds > 0 else None

  def _draw(self, now: float) -> None:
    step, loss, shown = self._latest
    self._latest = None
    self._drawn_at = now
    of = f'/{self._total:,}' if self._total else ''
    parts = [f'{self._unit} {step:,}{of}']
    rate = self.rate
    if self.remaining_s:
      parts.append(f'{duration(self.remaining_s)} left')
    elif not rate:
      parts.append(f'{duration(now - self._started)} so far')
    if loss is not None:
      parts.append(f'loss {_text(loss)}')
    if rate:
      slow = rate < 1
      unit = f's/{self._unit}' if slow else f'{self._unit}s/s'
      parts.append(f'{compact(1 / rate if slow else rate)} {unit}')
    if self.tokens_per_s:
      parts.append(f'{compact(self.tokens_per_s)} {self.counted}/s')
    # Last: a terminal may be too narrow for all of them.
    parts += [f'{n} {_text(x)}' for n, x in shown.items() if x is not None]
    line = ' · '.join(parts)
    if self._terminal and self._total:
      line = _bar(step / self._total, _columns() - len(line) - 1) + line
    self._show(line)

  def _show(self, line: str) -> None:
    line = self._encodable(line)
    if self._terminal:
      line = line[: _columns()]
      self._stream.write(f'\r\x1b[K{line}')
      self._drawn = line
    else:
      self._stream.write(line + '\n')
    self._stream.flush()

  def _encodable(self, line: str) -> str:
    encoding = getattr(self._stream, 'encoding', None) or 'utf-8'
    try:
      line.encode(encoding)
      return line
    except UnicodeEncodeError:
      line = line.replace(' · ', ', ').replace('━', '=').replace('─', '-')
      return line.encode(encoding, 'replace').decode(encoding)


def _text(value: object) -> str:
  return value if isinstance(value, str) else f'{float(value):.4g}'


def _columns() -> int:
  # A character in the last column would move the cursor to the next line.
  return shutil.get_terminal_size().columns - 1


def _bar(part: float, room: int) -> str:
  """Returns a bar that fits into `room` characters, or none, and a space."""
  least, most = _BAR
  if room < least:
    return ''
  size = min(room, most)
  done = round(min(max(part, 0.0), 1.0) * size)
  return '━' * done + '─' * (size - done) + ' '


def duration(seconds: float) -> str:
  """Seconds as a person says them: '0.8s', '42s', '3m 05s', '2h 10m', '3d 4h'.

  >>> duration(185)
  '3m 05s'
  """
  if seconds < 9.95:
    return f'{seconds:.1f}s'
  seconds = round(seconds)
  minutes, s = divmod(seconds, 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f'{days}d {h}h'
  if hours:
    return f'{hours}h {m:02d}m'
  return f'{minutes}m {s:02d}s' if minutes else f'{s}s'


def compact(number: float) -> str:
  """Three digits and a suffix: '0.25', '12.3', '987', '14.5k', '2.31M'.

  >>> compact(14_530)
  '14.5k'
  """
  for suffix in ('', 'k', 'M', 'G', 'T'):
    if abs(number) < 999.5 or suffix == 'T':
      break
    number /= 1000
  size = abs(number)
  digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
  return f'{number:.{digits}f}{suffix}'
