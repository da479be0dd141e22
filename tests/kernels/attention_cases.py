"""Runs one backend of `hstu_attention`, output and gradients together."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from pallas_kernels.hstu_attention import api, shapes

MODES = api.MODES
# A new entry of `BACKENDS` is under test from the moment it is there.
FAST_BACKENDS = [
  name
  for name, backend in api.BACKENDS.items()
  if name != 'reference' and backend.why_not() is None
]
DIFFERENTIABLE = ('q', 'k', 'v', 'position_bias', 'time_bias')

# Two blocks a sequence, H > 1, dqk != dv: what most cases need.
SHAPE = shapes.Shape(6, max_len=60, heads=2, dqk=4, dv=6, extra_positions=3)
CAPACITY = 256

# Sequences of [2 contextual][history][targets], queries at their end; some
# are only context, or only context and targets.
MASKED_SIZES = [0, 60, 2, 39, 41, 23]
MASKS = {
  'contextual': dict(contextual=2),
  'targets': dict(targets=jnp.array([0, 17, 0, 0, 39, 5], jnp.int32)),
  'window': dict(window=9),
  'full_tail': dict(window=9, full_tail=4),
  'prefix': dict(window=9, prefix=5),
  'queries': dict(queries=12),
}
COMBINED = [
  *((name,) for name in MASKS),
  ('contextual', 'targets'),
  ('contextual', 'window'),
  ('targets', 'window'),
  ('targets', 'queries'),
  ('contextual', 'targets', 'full_tail'),
  ('contextual', 'targets', 'prefix'),
  ('prefix', 'queries'),
  tuple(MASKS),
]

# Compiling is what these tests wait for; this halves it.
QUICK = {'xla_backend_optimization_level': 0}


def results(
  arguments: dict, implementation: str, *, optimized=False, **options
) -> dict:
  """{'out': [T, H, dv], and the gradient of each differentiable argument}.

  Args:
    arguments: of `hstu_attention`, as `shapes.inputs` makes them.
    implementation: name of the backend.
    optimized: whether to compile as users do, or quickly.
    **options: arguments to add or to replace.
  """
  arrays, static = {}, {'implementation': implementation}
  for name, value in {**arguments, **options}.items():
    (arrays if hasattr(value, 'shape') else static)[name] = value
  # The gradient of sum(out * weights), with weights of no structure.
  shape = (arrays['q'].shape[0], *arrays['v'].shape[1:])
  weights = np.random.default_rng(7).normal(size=shape)
  return _program(tuple(sorted(static.items())), optimized)(
    arrays, jnp.asarray(weights, arrays['v'].dtype)
  )


@functools.cache
def _program(static, optimized):
  def run(arrays, weights):
    inputs = {n: arrays[n] for n in DIFFERENTIABLE if n in arrays}

    def attend(inputs):
      return pallas_kernels.hstu_attention(
        **{**arrays, **inputs}, **dict(static)
      )

    out, pullback = jax.vjp(attend, inputs)
    return {'out': out, **pullback(weights)[0]}

  return jax.jit(run, compiler_options=None if optimized else QUICK)


def masked(*names: str, seed: int = 0, dtype='float32') -> dict:
  """Arguments of a batch under the masks of `names`, keys of `MASKS`."""
  options = {}
  for name in names:
    options |= MASKS[name]
  shape = dataclasses.replace(SHAPE, queries=options.pop('queries', 0))
  arguments = shapes.inputs(
    shape, seed, dtype, sizes=MASKED_SIZES, capacity=CAPACITY
  )
  return arguments | options


def without(arguments: dict, *names: str) -> dict:
  """The arguments but for `names`; without 'time_bias' no times either."""
  if 'time_bias' in names:
    names += ('time', 'query_time')
  return {n: v for n, v in arguments.items() if n not in names}


def in_float32(arguments: dict) -> dict:
  """The same (rounded) values with q, k and v in float32."""
  wide = {n: arguments[n].astype('float32') for n in ('q', 'k', 'v')}
  return {**arguments, **wide}
