"""Measurements of a step: their kinds, and how each is reduced.

A task declares name -> kind; its loss returns name -> (value, weight) of one
microbatch of one shard. Between two log lines the state holds one pair for each
name; microbatches, devices and steps are merged in the same way:

| kind   | value                | merged by | logged             |
|--------|----------------------|-----------|--------------------|
| 'mean' | sum over what counts | adding    | sum over weights   |
| 'sum'  | sum                  | adding    | the sum            |
| 'max'  | the largest          | maximum   | the largest        |

A pair of weight 0 has measured nothing. The step itself measures the norm of
the gradient and the overflow, for every task.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from genrec_jax.parallel import collectives

KINDS = ('mean', 'sum', 'max')
LOSS = 'loss'  # what is minimised
STEP = {'grad_norm': 'mean'}
STEP_ON_MESH = {'exchange_overflow': 'mean', **STEP}

Pair = tuple[jax.Array, jax.Array]


def list_shown(task) -> list[str]:
  """The measurements that progress shows beside the loss."""
  names = getattr(task, 'shown', task.measurements)
  return [name for name in names if name != 'loss']


def declare_measurements(task) -> dict[str, str]:
  """Name -> kind of all that a step of this task may measure."""
  declared = dict(task.measurements)
  for name, kind in declared.items():
    if kind not in KINDS:
      raise ValueError(
        f'measurement {name!r} is of kind {kind!r}, must be one of {KINDS}'
      )
    if name in STEP_ON_MESH:
      raise ValueError(
        f'measurement {name!r} is one of the step; the task needs another name'
      )
  if declared.get(LOSS) != 'mean':
    raise ValueError(
      f'a task declares {LOSS!r}: \'mean\' among its measurements, which is '
      f'what is minimised; declared are {declared}'
    )
  return {**declared, **STEP_ON_MESH}


def measurement_names(task, *, on_mesh: bool) -> list[str]:
  """The measurements the state sums up, sorted, as `first_nonfinite` counts."""
  own = STEP_ON_MESH if on_mesh else STEP
  return sorted({**task.measurements, **own})


def check_measurements(
  kinds: Mapping[str, str], measured: Mapping[str, Pair]
) -> dict:
  """Refuses a loss that returns other measurements than were declared."""
  declared = set(kinds) - set(STEP_ON_MESH)
  if undeclared := sorted(set(measured) - declared):
    raise ValueError(
      f'the loss returns {", ".join(undeclared)}, which the task does not '
      'declare in `measurements`; declared are '
      f'{", ".join(sorted(declared))}'
    )
  if missing := sorted(declared - set(measured)):
    raise ValueError(
      f'the task declares {", ".join(missing)} in `measurements`, and its '
      'loss does not return them'
    )
  for name, pair in measured.items():
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
      raise ValueError(
        f'the loss returns {name!r} as {type(pair).__name__}, must be a pair: '
        '(value, weight) of this microbatch, as in (sum of losses, examples)'
      )
  return {
    name: (jnp.float32(value), jnp.float32(weight))
    for name, (value, weight) in measured.items()
  }


def split_measurements(kinds: Mapping[str, str], measured: Mapping[str, Pair]):
  """Measurements of kind 'mean' or 'sum', and those of kind 'max'."""
  largest = {n: x for n, x in measured.items() if kinds[n] == 'max'}
  return {n: x for n, x in measured.items() if n not in largest}, largest


def merge_largest(measured: Mapping[str, Pair]) -> dict[str, Pair]:
  """Maxima `[P]` of all microbatches of all devices."""
  measured = collectives.gather(measured)
  return {n: _find_largest(value, w) for n, (value, w) in measured.items()}


def _find_largest(values: jax.Array, weights: jax.Array) -> Pair:
  counts = weights > 0
  value = jnp.max(jnp.where(counts, values, -jnp.inf))
  # NaN must not vanish, or a bad step would go unnoticed.
  value = jnp.where(jnp.any(jnp.isnan(values) & counts), jnp.nan, value)
  return jnp.where(jnp.any(counts), value, 0.0), jnp.sum(weights)


def add_measurements(
  kinds: Mapping[str, str],
  sums: Mapping[str, jax.Array],
  measured: Mapping[str, Pair],
) -> dict[str, jax.Array]:
  """The pairs `[2]` of the state, with those of one more step.

  Args:
    kinds: name -> kind.
    sums: of the state; names that it does not hold are left out.
    measured: of the step.
  """
  after = {}
  for name, before in sums.items():
    pair = jnp.stack(measured[name])
    if kinds[name] == 'max':
      both = jnp.stack([before, pair])
      after[name] = jnp.stack(_find_largest(both[:, 0], both[:, 1]))
    else:
      after[name] = before + pair
  return after


def read_measurement(kind: str, value: float, weight: float) -> float:
  """The number that is logged.

  >>> [read_measurement(kind, 6.0, 3.0) for kind in ('mean', 'sum', 'max')]
  [2.0, 6.0, 6.0]
  """
  return float(value / max(weight, 1e-9)) if kind == 'mean' else float(value)


def clear_sums(sums: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """The same arrays as zeros, on the devices of all processes."""
  where = jax.tree.map(lambda x: x.sharding, sums)
  return jax.jit(_zeros_like, out_shardings=where)(sums)


def _zeros_like(sums):
  return jax.tree.map(jnp.zeros_like, sums)
