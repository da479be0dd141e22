"""How a row moves, as arithmetic on `[N, D]` rows: what XLA computes.

With gradient g, row w, learning rate eta, and |.| the norm of a row:

| optimizer   | the step, taken off the row                                    |
|-------------|----------------------------------------------------------------|
| sgd         | eta g                                                          |
| momentum    | m <- mu m + g; eta m                                           |
| lars        | m <- mu m + eta ratio (g + lambda w); m, with                  |
|             | ratio = trust |w| / (|g| + lambda |w|)                         |
| row_adagrad | sum <- sum + mean(g²); eta g / (√sum + eps)                    |
| adagrad     | sum <- sum + g²; eta g / (√sum + eps)                          |
| row_adam    | m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) mean(g²);         |
|             | eta u with u = m^ / (√v^ + eps), ^: divided by 1 - b ** count  |
| adam        | the same with g² instead of its mean                           |
| row_lamb,   | u as of row_adam, adam, plus lambda w if decay is decoupled;   |
| lamb        | eta |w| / |u| u                                                |

decay='l2' replaces g by g + lambda w (for lars: as written); 'decoupled'
subtracts eta lambda w from the row besides the step (for lamb: as written).
Where a norm is zero, the ratio of norms is one: a row of zeros must be able to
leave zero.

All that Python needs to know of an optimizer is its entry in `OPTIMIZERS`; its
twin in C++ is a function and a line in `cpu_optimizers.h`.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class RuleNumbers(NamedTuple):
  """What a step computes with: of all rows, or `[N, 1]`, of each row.

  A Python float is a number of all rows that is known when the program is
  compiled: an option that it switches off costs nothing. `rest1` and `rest2`
  are 1 - beta, and `log1` and `log2` are log(beta), as float64 has them.
  """

  rate: jax.Array
  correct1: jax.Array
  correct2: jax.Array
  eps: float | jax.Array
  beta1: float | jax.Array
  rest1: float | jax.Array
  log1: float | jax.Array
  beta2: float | jax.Array
  rest2: float | jax.Array
  log2: float | jax.Array
  momentum: float | jax.Array
  trust: float | jax.Array
  l2: float | jax.Array
  decoupled: float | jax.Array
  max_norm: float | jax.Array


class Optimizer(NamedTuple):
  """A kind of optimizer.

  Attributes:
    slots: what it remembers: name -> 'element' (one number an element of the
      table), 'row' (one a row) or 'scalar' (one in all).
    looks_at: what the step of an element depends on: 'element' (itself alone),
      'row_squares' (besides, the mean square of the row's gradient) or 'row'.
    step: (numbers, w, slots, grads) -> what to take off the rows, new slots;
      w and grads `[N, D]` float32, slots `[N, D]` or `[N]`, scalars left out.
  """

  slots: dict[str, str]
  looks_at: str
  step: Callable


def step(optimizer: str, numbers: RuleNumbers, w, slots, grads):
  """What to take off the rows, and the rows of the slots.

  Args:
    optimizer: a name in `OPTIMIZERS`.
    numbers: the learning rate and the options.
    w: `[N, D]` float32 rows.
    slots: `[N]` or `[N, D]` each, in the order of `spec.slot_arrays`.
    grads: `[N, D]` float32.
  """
  return OPTIMIZERS[optimizer].step(numbers, w, slots, grads)


def _sgd(n, w, slots, grads):
  return _with_decay(n, w, n.rate * _with_l2(n, w, grads)), slots


def _momentum(n, w, slots, grads):
  m = n.momentum * slots[0] + _with_l2(n, w, grads)
  return _with_decay(n, w, n.rate * m), (m,)


def _lars(n, w, slots, grads):
  # The decay belongs to the direction, whose length the ratio replaces.
  size = _norm(w)
  ratio = _ratio(n.trust * size, _norm(grads) + n.l2 * size)
  m = n.momentum * slots[0] + n.rate * ratio * _with_l2(n, w, grads)
  return _with_decay(n, w, m), (m,)


def _adagrad(n, w, slots, grads, row_wise):
  g = _with_l2(n, w, grads)
  # The new sum, this gradient included: the first step has no zero to divide
  # by.
  total = slots[0] + _square(g, row_wise)
  off = n.rate * g / (_to_column(jnp.sqrt(total), row_wise) + n.eps)
  return _with_decay(n, w, off), (total,)


def _direction(n, w, slots, grads, row_wise):
  """Adam's step before the learning rate, and its slots."""
  g = _with_l2(n, w, grads)
  beta2, rest2 = n.beta2, n.rest2
  correct1, correct2 = n.correct1, n.correct2
  # Numbers of each row are `[N, 1]`, row-wise slots `[N]`.
  if row_wise:
    beta2, rest2, correct2 = (_to_vector(x) for x in (beta2, rest2, correct2))
  mean = n.beta1 * slots[0] + n.rest1 * g
  square = beta2 * slots[1] + rest2 * _square(g, row_wise)
  slots = mean, square, *slots[2:]
  if len(slots) > 2:  # each row has a count of its own
    count = slots[2] + 1
    slots = mean, square, count
    correct1 = _correction(_to_vector(n.log1), count)[:, None]
    correct2 = _correction(_to_vector(n.log2), count)
    correct2 = correct2 if row_wise else correct2[:, None]
  # Corrected here and not in the slots, which stay plain running means.
  u = correct1 * mean
  return u / (_to_column(jnp.sqrt(correct2 * square), row_wise) + n.eps), slots


def _adam(n, w, slots, grads, row_wise):
  u, slots = _direction(n, w, slots, grads, row_wise)
  # eta u + eta lambda w, in one product.
  u = _add_unless_zero(u, n.decoupled, lambda: n.decoupled * w)
  return n.rate * u, slots


def _lamb(n, w, slots, grads, row_wise):
  u, slots = _direction(n, w, slots, grads, row_wise)
  u = _add_unless_zero(u, n.decoupled, lambda: n.decoupled * w)
  return n.rate * _ratio(_norm(w), _norm(u)) * u, slots


_MOMENTS = {'mean': 'element', 'variance': 'element', 'count': 'scalar'}
_ROW_MOMENTS = {'mean': 'element', 'variance': 'row', 'count': 'scalar'}


def _of_rows(step):
  return functools.partial(step, row_wise=True)


def _of_elements(step):
  return functools.partial(step, row_wise=False)


OPTIMIZERS = {
  'sgd': Optimizer({}, 'element', _sgd),
  'momentum': Optimizer({'momentum': 'element'}, 'element', _momentum),
  'lars': Optimizer({'momentum': 'element'}, 'row', _lars),
  'row_adagrad': Optimizer({'sum': 'row'}, 'row_squares', _of_rows(_adagrad)),
  'adagrad': Optimizer({'sum': 'element'}, 'element', _of_elements(_adagrad)),
  'row_adam': Optimizer(_ROW_MOMENTS, 'row', _of_rows(_adam)),
  'adam': Optimizer(_MOMENTS, 'element', _of_elements(_adam)),
  'row_lamb': Optimizer(_ROW_MOMENTS, 'row', _of_rows(_lamb)),
  'lamb': Optimizer(_MOMENTS, 'row', _of_elements(_lamb)),
}


def corrections(rule, count: jax.Array):
  """1 / (1 - beta ** count) for both betas, exact also for betas near one."""
  return tuple(
    _correction(log_of(beta), count) for beta in (rule.beta1, rule.beta2)
  )


def log_of(beta: float) -> float:
  return math.log(beta) if beta else -math.inf


def _correction(log, count):
  # beta ** count is exp(count log(beta)); `1 - exp` would lose the digits of a
  # beta near one.
  return -1 / jnp.expm1(count * log)


def shrink(numbers: RuleNumbers, rows: jax.Array) -> jax.Array:
  """Rows longer than `max_norm` at that norm."""
  limit = numbers.max_norm
  if _is_static(limit, math.inf):
    return rows
  norm = _norm(rows)
  return jnp.where(norm > limit, rows * (limit / norm), rows)


def only_subtracts(numbers: RuleNumbers) -> bool:
  """Whether what is taken off a row is all that happens to it."""
  return _is_static(numbers.max_norm, math.inf)


def _is_static(number, value: float) -> bool:
  """Whether it is that of all rows, as the program is compiled."""
  # A traced number may have that value too, but nobody knows when compiling.
  return isinstance(number, float) and number == value


def _add_unless_zero(x, factor, term):
  """`x + term()`; `x` with all its bits where the term's factor is zero."""
  if _is_static(factor, 0.0):
    return x
  if isinstance(factor, float):
    return x + term()
  # Of the groups, those without decay keep every bit: x + 0 w is NaN for an
  # infinite w, and -0 + 0 is 0.
  return jnp.where(factor != 0, x + term(), x)


def _with_l2(n, w, grads):
  return _add_unless_zero(grads, n.l2, lambda: n.l2 * w)


def _with_decay(n, w, off):
  return _add_unless_zero(off, n.decoupled, lambda: n.rate * n.decoupled * w)


def _square(g, row_wise):
  square = jnp.square(g)
  return jnp.mean(square, axis=-1) if row_wise else square


def _to_column(x, row_wise):
  return x[:, None] if row_wise else x


def _to_vector(x):
  """A number of each row as `[N]`; one of all rows as it is."""
  return x[:, 0] if jnp.ndim(x) == 2 else x


def _norm(rows):
  return jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1, keepdims=True))


def _ratio(a, b):
  # The quotient of the other branch may be infinite; it is not chosen.
  return jnp.where((a > 0) & (b > 0), a / b, 1.0)
