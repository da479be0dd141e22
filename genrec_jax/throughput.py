"""Measures how many steps and tokens a run does per second."""

import collections
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

_WINDOW_S = 30.0  # rates are those of the latest half minute
_PARTS = 9  # of the window, of which the remaining time takes the median rate


class Throughput:
  """Rates of a run, without what comes before its first step and its pauses."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Starts; `clock` returns the time in seconds."""
    self._clock = clock
    self._first_s, self._tokens = 0.0, 0
    self._paused_s, self._once_s = 0.0, 0.0  # all pauses; those not repeated
    self._samples = collections.deque()  # (active seconds, step, tokens)

  def count(self, step: int, tokens: int = 0) -> None:
    """Says that `step` steps are done, and how many tokens since last time."""
    now = self._clock()
    if not self._samples:  # what came before, compilation mostly, is not timed
      self._first_s, self._paused_s, self._once_s, tokens = now, 0.0, 0.0, 0
    self._tokens += tokens
    active = now - self._first_s - self._paused_s
    self._samples.append((active, step, self._tokens))
    while len(self._samples) > 2 and self._samples[1][0] < active - _WINDOW_S:
      self._samples.popleft()

  @contextlib.contextmanager
  def pause(self, *, recurs: bool = True) -> Iterator[None]:
    """Keeps the time inside the context out of the rates.

    Args:
      recurs: whether the rest of the run has pauses of its kind, too.
    """
    begin = self._clock()
    try:
      yield
    finally:
      seconds = self._clock() - begin
      self._paused_s += seconds
      self._once_s += 0.0 if recurs else seconds

  def take_once(self, seconds: float) -> None:
    """Says that so many seconds of the last pause will not recur."""
    self._once_s += seconds

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
    so_far = self._clock() - self._first_s - self._once_s
    slower = max(so_far / active, 1.0)
    return max(total_steps - step, 0) * self._typical_step_s() * slower

  def _typical_step_s(self) -> float:
    """Seconds of a step, a median: one that was held up does not count.

    It is that of parts of the window and not of single steps, some of which
    may take longer every so often.
    """
    last = len(self._samples) - 1
    parts = min(_PARTS, last)
    bounds = [self._samples[last * i // parts] for i in range(parts + 1)]
    return statistics.median(
      (b[0] - a[0]) / (b[1] - a[1])
      for a, b in itertools.pairwise(bounds)
      if b[1] > a[1]
    )

  def _measure(self, column: int) -> float | None:
    if len(self._samples) < 2:
      return None
    first, last = self._samples[0], self._samples[-1]
    seconds = last[0] - first[0]
    return (last[column] - first[column]) / seconds if seconds > 0 else None
