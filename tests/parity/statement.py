"""HSTU, SASRec and their loss once more: NumPy, float64, one user at a time.

Written from the description of the published code, not from this library. The
functions are analytic in the parameters wherever no comparison is (those look
at real parts), so that a complex step gives gradients to machine precision; any
parameter may have leading axes, one perturbation each.
"""

import numpy as np

from genrec_jax.features import PAD

EXTRA = 11  # gr_output_length + 1: tables and normaliser are that much longer
TEMPERATURE = 0.05


def row(vector):
  """A vector parameter as a row that broadcasts against `[tokens, width]`."""
  return vector[..., None, :]


def layer_norm(x, eps):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def silu(x):
  return x / (1 + np.exp(-x))


def normalize(x):
  norm = np.sqrt((x**2).sum(-1, keepdims=True))
  return x / np.where(norm.real > 1e-6, norm, 1e-6)


def softmax(x):
  weights = np.exp(x - x.real.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


def heads(x, count):
  """`[L, H * d] -> [H, L, d]`, head-major."""
  split = x.reshape(*x.shape[:-1], count, -1)
  return np.moveaxis(split, -2, -3)


def merged(x):
  """`[H, L, d] -> [L, H * d]`."""
  x = np.moveaxis(x, -3, -2)
  return x.reshape(*x.shape[:-2], -1)


def transposed(x):
  return np.moveaxis(x, -1, -2)


def embedded(table, positions, item):
  scaled = np.sqrt(table.shape[-1]) * table[..., item, :]
  return scaled + positions[..., : len(item), :]


def relative_bias(p, n, time, next_time):
  """R[i, j] = w_pos[j - i + n - 1] + w_ts[bucket(t_{i+1} - t_j)]."""
  place = np.arange(len(time))
  bias = p['position_bias'][..., place[None] - place[:, None] + n - 1]
  seconds = np.maximum(np.abs(next_time[:, None] - time[None]), 1)
  bucket = np.clip(np.trunc(np.log(seconds) / 0.301), 0, 128).astype(int)
  return bias + p['time_bias'][..., bucket]


def hstu(params, config, table, events):
  """`[L, D]` outputs for one user's events, not yet of length one."""
  x = embedded(table, params['position'], events.item)
  n = config['max_len'] + EXTRA
  causal = np.tri(len(events.item))
  count = config['heads']
  values, keys = count * config['dv'], count * config['dqk']
  for i in range(config['blocks']):
    p = params[f'layer_{i}']
    uvqk = silu(layer_norm(x, 1e-6) @ p['uvqk']['kernel'])
    u, v, q, k = np.split(
      uvqk, [values, 2 * values, 2 * values + keys], axis=-1
    )
    q, k, v = heads(q, count), heads(k, count), heads(v, count)
    bias = relative_bias(p, n, events.time, events.next_time)
    scores = q @ transposed(k) + bias[..., None, :, :]
    attended = merged((causal * silu(scores) / n) @ v)
    gated = u * layer_norm(attended, 1e-6)
    x = gated @ p['output']['kernel'] + row(p['output']['bias']) + x
  return x


def sasrec(params, config, table, events):
  """As `hstu`."""
  x = embedded(table, params['position'], events.item)
  causal = np.tri(len(events.item), dtype=bool)
  count = config['heads']

  def linear(p, x):
    return x @ p['kernel'] + row(p['bias'])

  for i in range(config['blocks']):
    p = params[f'layer_{i}']
    normed = layer_norm(x, 1e-8)
    q = heads(linear(p['query'], normed), count)
    k = heads(linear(p['key'], x), count)
    v = heads(linear(p['value'], x), count)
    scores = q @ transposed(k) / np.sqrt(config['dim'] / count)
    weights = softmax(np.where(causal, scores, -1e30))
    attended = linear(p['project'], merged(weights @ v))
    h = layer_norm(normed + attended, 1e-8)
    hidden = linear(p['hidden'], h)
    x = linear(p['out'], np.where(hidden.real > 0, hidden, 0)) + h
  return x


MODELS = {'hstu': hstu, 'sasrec': sasrec}


def encode(params, config, table, events):
  """`[L, D]` of length one."""
  return normalize(MODELS[config['name']](params, config, table, events))


def loss(weights, config, users, negatives):
  """Mean over all positions of -log softmax([positive; negatives])[0].

  Args:
    weights: {'params': ..., 'table': [V, D]}.
    config: fields of the model's config section.
    users: list of `Events`.
    negatives: for each user `[L, R]` item ids.
  """
  params, table = weights['params'], weights['table']
  unit = normalize(table)
  total, count = 0, 0
  for events, drawn in zip(users, negatives, strict=True):
    if not len(events.item):
      continue
    queries = encode(params, config, table, events)[..., None, :]
    target = events.next_item[:, None]
    ids = np.concatenate([target, drawn], axis=-1)
    logits = (queries * unit[..., ids, :]).sum(-1) / TEMPERATURE
    hit = np.concatenate([target != target, drawn == target], axis=-1)
    share = softmax(np.where(hit, -5e4, logits))[..., 0]
    real = events.next_item != PAD
    total = total - (real * np.log(share)).sum(-1)
    count += real.sum()
  return total / count
