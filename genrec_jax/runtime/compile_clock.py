"""How long this process has waited for XLA to compile programs."""

import functools

import jax

# What JAX calls it, programs that are read from a cache included.
_EVENT = '/jax/core/compile/backend_compile_duration'
_SECONDS = []


@functools.cache
def start_compile_clock() -> None:
  """Counts from now on, once in a process."""

  def note_duration(event: str, seconds: float, **_) -> None:
    if event == _EVENT:
      _SECONDS.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(note_duration)


def compile_seconds() -> float:
  """Seconds since the clock was started; programs made at once count each."""
  return sum(_SECONDS)
