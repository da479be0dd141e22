"""Runs one backend of `hstu_attention`, output and gradients together."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from pallas_kernels.hstu_attention import api, shapes
from pallas_kernels.hstu_attention.reference import time_bucket

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
  return _program(tuple(sorted(static.items())), optimized)(
    arrays, _gradient_of_output(arrays)
  )


def _gradient_of_output(arrays: dict) -> jax.Array:
  """What is pulled back: numbers of no structure, `[Tq, H, dv]`.

  They are numbers of bfloat16 whatever the dtype: rounded for one program and
  not for the other, they would part gradients that no program rounds.
  """
  shape = (arrays['q'].shape[0], *arrays['v'].shape[1:])
  weights = np.random.default_rng(7).normal(size=shape).astype(jnp.bfloat16)
  return jnp.asarray(weights, arrays['v'].dtype)


def summands_of_softmax(arguments: dict, **options) -> dict:
  """{'q', 'k'}: sizes of what their gradients are sums of, under softmax.

  The gradient of a score is w (do . v - sum(w do . v)). The definition
  subtracts what it has just added up; a kernel that keeps no weights takes
  do . out for the sum. Both are products of many numbers, rounded in another
  order, and where they cancel (a query that sees one key has a gradient of
  exactly zero) the rounding of both is what is left. It is of the size of
  w (|do| . |v| + sum(w |do| . |v|)), however small the gradient.

  Args:
    arguments: of `hstu_attention`, in float32.
    **options: arguments to add or to replace.
  """
  given = {**arguments, **options}
  share = abs(given.get('alpha', 1.0)) / (1.0 - given.pop('dropout', 0.0))
  given.pop('dropout_seed', None)
  q, k, v = (np.abs(np.asarray(given[name], np.float64)) for name in 'qkv')
  weights = _softmax_weights(given)
  of_output = np.abs(np.asarray(_gradient_of_output(arguments), np.float64))
  products = np.einsum('ihd,jhd->ihj', of_output, v)
  sums = np.sum(weights * products, axis=2, keepdims=True)
  scores = share * weights * (products + sums)
  return {
    'q': np.einsum('ihj,jhd->ihd', scores, k),
    'k': np.einsum('ihj,ihd->jhd', scores, q),
  }


def tables_by_rounded_output(arguments: dict, out, exact: dict) -> dict:
  """The tables' gradients, if do . out is taken of the rounded output.

  They are sums of w (do . v - do . out) over pairs of tokens. So an output of
  bfloat16 that is off by e moves them by the sum of -w (do . e), which is known
  once the output is.

  Args:
    arguments: of `hstu_attention`, in float32, without query_lengths.
    out: the rounded output.
    exact: what `results` gives for these arguments, under softmax.
  """
  lengths = arguments['lengths']
  errors = np.asarray(out, np.float64) - np.asarray(exact['out'], np.float64)
  of_output = np.asarray(_gradient_of_output(arguments), np.float64)
  shift = np.sum(of_output * errors, axis=2)[:, :, None]
  shift = np.sum(_softmax_weights(arguments) * shift, axis=1)
  history = lengths - arguments.get('targets', jnp.zeros_like(lengths))
  tokens = arguments['q'].shape[0]
  segment = pallas_kernels.segment_ids(lengths, tokens)
  place = jnp.minimum(
    pallas_kernels.positions(lengths, tokens),
    history.at[segment].get(mode='fill', fill_value=0),
  )
  middle = arguments['position_bias'].size // 2
  apart = arguments['query_time'][:, None] - arguments['time'][None]
  entries = {
    'position_bias': place[None] - place[:, None] + middle,
    'time_bias': time_bucket(apart, arguments['time_bias'].size),
  }
  return {
    name: exact[name]
    # Pairs of two sequences have a weight of zero, and an entry nowhere.
    - np.bincount(
      np.clip(entry, 0, exact[name].size - 1).ravel(),
      shift.ravel(),
      exact[name].size,
    )
    for name, entry in entries.items()
  }


def _softmax_weights(arguments: dict) -> np.ndarray:
  """`[Tq, H, T]` by the reference: its output for values of unit vectors."""
  tokens, heads = arguments['k'].shape[:2]
  unit = jnp.eye(tokens, dtype=jnp.float32)[:, None]
  unit = jnp.broadcast_to(unit, (tokens, heads, tokens))
  given = {**arguments, 'mode': 'softmax', 'implementation': 'reference'}
  # As many columns as the op takes.
  weights = [
    pallas_kernels.hstu_attention(**given | dict(v=unit[..., i : i + 256]))
    for i in range(0, tokens, 256)
  ]
  return np.concatenate(weights, axis=2).astype(np.float64)


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
