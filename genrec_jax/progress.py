"""Shows how far a run is and when it will be done.

On a terminal one line is rewritten in place, elsewhere (a log file, a cluster's
console) a plain line is printed every so often.
"""

import contextlib
import contextvars
import dataclasses
import io
import math
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from genrec_jax import formatting
from genrec_jax.throughput import Throughput

_REDRAW_S, _PRINT_S = 0.1, 10.0  # between two lines: on a terminal, elsewhere


_STEP = re.compile(r'step ([\d,]+)(?:/([\d,]+))?')  # as `Progress` begins


# Whether progress is shown nowhere but on a stream of its own.
IS_HIDDEN = contextvars.ContextVar('IS_HIDDEN', default=False)


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
  remaining time does include a share of pauses like the one seen so far, but
  for those that do not recur.
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
    self._stream = stream or (io.StringIO() if IS_HIDDEN.get() else sys.stderr)
    self._terminal = self._stream.isatty()
    self._started, self._drawn_at = clock(), -math.inf
    self._line = ''  # what stands on the terminal
    self._pending = None  # the update that is not drawn yet
    self._said = None  # what a log file shall not have again

  def update(
    self,
    step: int,
    *,
    loss=None,
    tokens: int = 0,
    once: Mapping = types.MappingProxyType({}),
    **shown,
  ) -> None:
    """Says that `step` steps are done.

    Args:
      step: steps done so far, those before a restart included.
      loss: of the last batch, shown before the rate. A device array is fetched
        only when a line is drawn, so that steps are not held up.
      tokens: tokens of the steps since the last update.
      once: further values by name, behind all others. A log file has them in
        one line, a terminal until there are others: another object is.
      **shown: further values by name, behind the rate; fetched like the loss.
    """
    self.count(step, tokens)
    self._pending = step, loss, shown, once
    interval = _REDRAW_S if self._terminal else _PRINT_S
    if self._clock() - self._drawn_at >= interval:
      self._draw()

  @contextlib.contextmanager
  def pause(self, label: str, *, recurs: bool = True) -> Iterator[None]:
    """Keeps the time inside the context out of the rate, and shows why.

    Args:
      label: what is done meanwhile.
      recurs: whether the rest of the run has such pauses, too.
    """
    line = self._line
    with super().pause(recurs=recurs):
      # A log file has a line where its reader would wait for the first step.
      if self._terminal or not recurs:
        self._show(f'{line} · {label}' if line else label)
      try:
        yield
      finally:
        if self._terminal:
          self._show(line)

  def __exit__(self, kind, error, trace) -> None:
    """Draws the last update and ends the line."""
    # Behind an error, the device may never come to the value.
    if self._pending and error is None:
      self._draw()
    if self._line:
      self._print('\n')

  def _draw(self) -> None:
    (step, loss, shown, once), self._pending = self._pending, None
    if self._terminal or once is not self._said:
      shown = {**shown, **once}
    self._said = once
    self._drawn_at = self._clock()
    left, rate = self.estimate_remaining_s(self._total), self.rate
    tokens, so_far = self.tokens_per_s, self._drawn_at - self._started
    texts = (
      f'{self._unit} {step:,}' + (f'/{self._total:,}' if self._total else ''),
      left and f'{formatting.format_duration(left)} left',
      not rate and f'{formatting.format_duration(so_far)} so far',
      loss is not None and f'batch loss {formatting.format_value(loss)}',
      rate and formatting.format_rate(rate, self._unit),
      tokens and f'{formatting.format_compact(tokens)} {self.progress_unit}/s',
      # Last: a terminal may be too narrow for all of them.
      *(
        f'{n} {formatting.format_value(x)}'
        for n, x in shown.items()
        if x is not None
      ),
    )
    line = ' · '.join(filter(None, texts))
    if self._terminal and self._total:
      room = formatting.terminal_columns() - len(line) - 1
      line = formatting.format_bar(step / self._total, room) + line
    self._show(line)

  def _show(self, line: str) -> None:
    line = formatting.fit_encoding(line, self._stream)
    if self._terminal:
      self._line = line[: formatting.terminal_columns()]
      line = f'\r\x1b[K{self._line}'
    self._print(line if self._terminal else f'{line}\n')

  def _print(self, text: str) -> None:
    # A run outlives whoever watches it: a closed pipe, a full disk.
    with contextlib.suppress(OSError):
      print(text, end='', file=self._stream, flush=True)


@dataclasses.dataclass(frozen=True)
class Reading:
  """What a line of a log says of the progress of a run.

  Attributes:
    step: the last one.
    total: the step at which the run ends; 0 where unknown.
    left: the time that is left, as in the line; '' where it says none.
    rate: steps a second, as in the line; '' where it says none.
  """

  step: int
  total: int
  left: str
  rate: str


def read_line(line: str) -> Reading | None:
  """Reads a line that `Progress` has written; None for any other line.

  >>> read_line('step 1,200/4,000 · 3m 05s left · batch loss 0.3 · 15 steps/s')
  Reading(step=1200, total=4000, left='3m 05s', rate='15 steps/s')

  Args:
    line: of a log.
  """
  first, *others = re.split(' · |, (?=[a-z\\d])', line.strip())
  found = _STEP.fullmatch(first)
  if not found:
    return None
  step, total = (int(x.replace(',', '')) if x else 0 for x in found.groups())
  left = [x.removesuffix(' left') for x in others if x.endswith(' left')]
  rate = [x for x in others if x.endswith(('steps/s', 's/step'))]
  return Reading(step, total, ''.join(left[:1]), ''.join(rate[:1]))
