"""Row optimizers as a loop over rows in float64: what backends must match."""

import numpy as np


def norm(x):
  return np.sqrt(np.sum(x * x))


def ratio(a, b):
  return a / b if a and b else 1.0


def plain_step(rule, rate, w, g, slots):
  """What the row `w` becomes, in float64; moves its `slots` in place."""
  l2 = rule.weight_decay if rule.decay == 'l2' else 0
  apart = rule.weight_decay if rule.decay == 'decoupled' else 0
  size, raw, g = norm(w), g, g + l2 * w
  if rule.optimizer == 'sgd':
    step = rate * g
  elif rule.optimizer == 'momentum':
    slots['momentum'][:] = rule.momentum * slots['momentum'] + g
    step = rate * slots['momentum']
  elif rule.optimizer == 'lars':
    trust = ratio(rule.trust * size, norm(raw) + l2 * size)
    slots['momentum'][:] = rule.momentum * slots['momentum'] + rate * trust * g
    step = slots['momentum']
  elif rule.optimizer == 'row_adagrad':
    slots['sum'][...] += np.mean(g * g)
    step = rate * g / (np.sqrt(slots['sum']) + rule.eps)
  elif rule.optimizer == 'adagrad':
    slots['sum'][:] += g * g
    step = rate * g / (np.sqrt(slots['sum']) + rule.eps)
  else:
    square = np.mean(g * g) if 'row' in rule.optimizer else g * g
    count = slots['count']  # this update is counted already
    slots['mean'] += (1 - rule.beta1) * (g - slots['mean'])
    slots['variance'] += (1 - rule.beta2) * (square - slots['variance'])
    mean = slots['mean'] / (1 - rule.beta1**count)
    variance = slots['variance'] / (1 - rule.beta2**count)
    step = mean / (np.sqrt(variance) + rule.eps)
    if 'lamb' in rule.optimizer:
      step += apart * w
      return w - rate * ratio(size, norm(step)) * step
    step *= rate
  return w - step - rate * apart * w


def plain_update(rule, rate, table, slots, ids, grads, groups=None):
  """Table and slots after one step, float64; nothing but loops over rows.

  With `groups`, of each id, `rule` and `rate` are those of each group.
  """
  if groups is None:
    rule, rate, groups = [rule], [rate], np.zeros(len(ids), int)
  table = np.array(table, np.float64)
  slots = {n: np.array(x, np.float64) for n, x in slots.items()}
  if 'count' in slots:
    slots['count'][np.asarray(ids) if rule[0].row_count else ...] += 1
  grads = np.asarray(grads, np.float64)
  for id_, g, group in zip(np.asarray(ids), grads, groups, strict=True):
    own = rule[group]
    views = {
      n: x if x.ndim == 0 else x[id_ : id_ + 1].reshape(x.shape[1:])
      for n, x in slots.items()
    }
    table[id_] = plain_step(own, float(rate[group]), table[id_], g, views)
    if own.max_norm:
      table[id_] *= min(1, own.max_norm / max(norm(table[id_]), 1e-30))
  return table, slots
