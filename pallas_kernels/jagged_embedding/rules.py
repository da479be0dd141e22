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

decay='l2' puts g + lambda w in the place of g (of lars: as written);
'decoupled' takes eta lambda w off the row beside the step (of lamb: as
written). Where a norm is zero, the ratio of norms is one: a row of zeros must
be able to leave zero.
"""

import math

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding.spec import Rule


def step(rule: Rule, scalars, w, slots, grads):
  """What to take off the rows, and the rows of the slots.

  Args:
    rule: the optimizer and its options.
    scalars: `[3]` learning rate and Adam's corrections, as from `corrections`.
    w: `[N, D]` float32 rows.
    slots: `[N]` or `[N, D]` each, in the order of `spec.slot_arrays`.
    grads: `[N, D]` float32.
  """
  rate = scalars[0]
  g = grads + rule.l2 * w if rule.l2 else grads
  if rule.optimizer == 'sgd':
    off, slots = rate * g, ()
  elif rule.optimizer == 'momentum':
    m = rule.momentum * slots[0] + g
    off, slots = rate * m, (m,)
  elif rule.optimizer == 'lars':
    size = _norm(w)
    ratio = _ratio(rule.trust * size, _norm(grads) + rule.l2 * size)
    off = rule.momentum * slots[0] + rate * ratio * g
    slots = (off,)
  elif rule.optimizer in ('row_adagrad', 'adagrad'):
    row_wise = rule.optimizer == 'row_adagrad'
    total = slots[0] + _square(g, row_wise)
    off = rate * g / (_wide(jnp.sqrt(total), row_wise) + rule.eps)
    slots = (total,)
  else:
    return _moments(rule, scalars, w, slots, g)
  return off + rate * rule.decoupled * w if rule.decoupled else off, slots


def _moments(rule, scalars, w, slots, g):
  """Adam and LAMB."""
  rate, correct1, correct2 = scalars
  row_wise = rule.optimizer in ('row_adam', 'row_lamb')
  mean = rule.beta1 * slots[0] + (1 - rule.beta1) * g
  square = rule.beta2 * slots[1] + (1 - rule.beta2) * _square(g, row_wise)
  slots = mean, square, *slots[2:]
  if rule.row_count:
    count = slots[2] + 1
    slots = mean, square, count
    correct1, correct2 = (c[:, None] for c in corrections(rule, count))
    correct2 = correct2[:, 0] if row_wise else correct2
  u = correct1 * mean
  u /= _wide(jnp.sqrt(correct2 * square), row_wise) + rule.eps
  decay = rule.decoupled * w if rule.decoupled else None
  if rule.optimizer in ('row_lamb', 'lamb'):
    u = u if decay is None else u + decay
    return rate * _ratio(_norm(w), _norm(u)) * u, slots
  return rate * (u if decay is None else u + decay), slots


def corrections(rule: Rule, count: jax.Array):
  """1 / (1 - beta ** count) for both betas, exact also for betas near one."""
  logs = (math.log(b) if b else -math.inf for b in (rule.beta1, rule.beta2))
  return tuple(-1 / jnp.expm1(count * log) for log in logs)


def shrink(rule: Rule, rows: jax.Array) -> jax.Array:
  """Rows longer than `max_norm` at that norm."""
  if rule.max_norm is None:
    return rows
  norm = _norm(rows)
  return jnp.where(norm > rule.max_norm, rows * (rule.max_norm / norm), rows)


def _square(g, row_wise):
  square = jnp.square(g)
  return jnp.mean(square, axis=-1) if row_wise else square


def _wide(x, row_wise):
  return x[:, None] if row_wise else x


def _norm(rows):
  return jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1, keepdims=True))


def _ratio(a, b):
  return jnp.where((a > 0) & (b > 0), a / b, 1.0)
