"""Timing of compiled functions: compile first, then measure each call."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from benchmarks.result import CoreTimer


def ahead(
  fn: Callable, calls: Sequence[tuple], *, donate_argnums=()
) -> tuple[Callable, dict[str, float]]:
  """Compiles `fn` for every shape among `calls`, before anything is measured.

  Args:
    fn: a function that `jax.jit` takes.
    calls: the argument tuples to come.
    donate_argnums: as in `jax.jit`.

  Returns:
    The compiled function, which refuses other shapes, and what the first of the
    compilations cost, with the number of them.
  """
  jitted = jax.jit(fn, donate_argnums=donate_argnums)
  programs, cost = {}, {}
  for args in calls:
    key = _shapes(args)
    if key in programs:
      continue
    with CoreTimer() as timer:
      programs[key] = jitted.lower(*args).compile()
    if not cost:
      cost['compile_core_s'] = timer.core_s
      cost['compile_wall_s'] = timer.wall_s
  cost['shapes'] = len(programs)
  return lambda *args: programs[_shapes(args)](*args), cost


def measure(fn: Callable, *args) -> tuple[object, CoreTimer]:
  """`fn(*args)` when it is there, and what it cost."""
  with CoreTimer() as timer:
    out = jax.block_until_ready(fn(*args))
  return out, timer


def summary(timers: Sequence[CoreTimer]) -> dict[str, float]:
  """Median and least cost of one call."""
  core = [t.core_s for t in timers]
  wall = [t.wall_s for t in timers]
  return {
    'core_s': float(np.median(core)),
    'min_core_s': min(core),
    'wall_s': float(np.median(wall)),
    'min_wall_s': min(wall),
  }


def _shapes(args) -> tuple:
  return tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(args))
