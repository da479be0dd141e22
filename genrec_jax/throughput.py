"""Measures how many steps and tokens a run does per second."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator

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
