"""Traces some steps of a training, for a profiler."""

import contextlib
import logging

import jax

LOG = logging.getLogger('genrec_jax')


class Profile(contextlib.AbstractContextManager):
  """Traces the steps first+1 .. last to a directory."""

  def __init__(self, window, directory):
    self._first, self._last = window if window else (None, None)
    self._directory, self._running = directory, False

  def before(self, step: int) -> None:
    if step == self._first:
      jax.profiler.start_trace(str(self._directory))
      self._running = True

  def after(self, step: int, state) -> None:
    if self._running and step >= self._last:
      jax.block_until_ready(state)
      self.__exit__()

  def __exit__(self, *exc_info):
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
      LOG.info('profile written to %s', self._directory)
