"""How long this process has waited for XLA to compile programs."""

import functools

import jax

# What JAX calls it, programs that are read from a cache included.
_EVENT = '/jax/core/compile/backend_compile_duration'


@functools.cache
def watch_compiling() -> list[float]:
  """The seconds that each program from now on took, or takes, to compile."""
  seconds = []

  def note_program(event: str, duration: float, **_) -> None:
    if event == _EVENT:
      seconds.append(duration)

  jax.monitoring.register_event_duration_secs_listener(note_program)
  return seconds


def compile_seconds() -> float:
  """Seconds since the watch began; programs made at once count each."""
  return sum(watch_compiling())
