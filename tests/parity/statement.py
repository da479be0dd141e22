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


def linear(p, x):
  y = x @ p['kernel']
  return y + row(p['bias']) if 'bias' in p else y


def layer_norm(x, eps, p=None):
  """`p`: its scale and shift, where it has any."""
  centred = x - x.mean(-1, keepdims=True)
  y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
  return y * row(p['scale']) + row(p['shift']) if p else y


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


def relative_bias(p, n, events):
  """R[i, j] = w_pos[j - i + n - 1] + w_ts[bucket(t_{i+1} - t_j)], `[L, L]`."""
  place = np.arange(len(events.item))
  bias = np.zeros((len(place), len(place)))
  if 'position_bias' in p:
    bias = p['position_bias'][..., place[None] - place[:, None] + n - 1]
  if 'time_bias' in p:
    seconds = np.abs(events.next_time[:, None] - events.time[None])
    bucket = np.trunc(np.log(np.maximum(seconds, 1)) / 0.301)
    bias = bias + p['time_bias'][..., np.clip(bucket, 0, 128).astype(int)]
  return bias


def hstu(params, config, rows, events):
  """`[L, D]` outputs for one user's events, not yet of length one.

  Args:
    params: nested dict of the parameters, without those a variant leaves out.
    config: fields of the config section.
    rows: `[L, D]` item rows.
    events: the tokens.
  """
  x = np.sqrt(config['dim']) * rows
  if 'position' in params:
    x = x + params['position'][..., : len(events.item), :]
  n = config['max_len'] + EXTRA
  causal = np.tri(len(events.item), dtype=bool)
  count, dqk, dv = config['heads'], config['dqk'], config['dv']
  for i in range(config['blocks']):
    p = params[f'layer_{i}']
    uvqk = linear(p['uvqk'], layer_norm(x, 1e-6, p.get('norm_input')))
    ends = np.cumsum([count * dv, count * dv, count * dqk])
    u, v, q, k = np.split(uvqk, ends, axis=-1)
    if config['silu_on'] in ('all', 'u'):
      u = silu(u)
    if config['silu_on'] == 'all':
      v, q, k = silu(v), silu(q), silu(k)
    q, k, v = heads(q, count), heads(k, count), heads(v, count)
    product = q @ transposed(k)
    bias = relative_bias(p, n, events)[..., None, :, :]
    if config['attention'] == 'softmax':
      scores = product / np.sqrt(dqk) + bias
      weights = softmax(np.where(causal, scores, -1e30))
    else:
      alpha = 1 if config['alpha'] is None else config['alpha']
      divisor = n if config['normaliser'] is None else config['normaliser']
      weights = causal * silu(alpha * product + bias) / divisor
    attended = merged(weights @ v)
    normed = layer_norm(attended, 1e-6, p.get('norm_attention'))
    parts = {
      'none': [u * normed],
      'u_a_ua': [u, normed, u * normed],
      'u_x_ux': [u, attended, u * normed],
    }
    out = np.concatenate(parts[config['concat']], axis=-1)
    x = linear(p['output'], out) + x
  return x


def sasrec(params, config, rows, events):
  """As `hstu`."""
  x = np.sqrt(config['dim']) * rows if config['scale_rows'] else rows
  positions = params['position'][..., : len(events.item), :]
  if config['positions_from'] == 'newest':
    positions = positions[..., ::-1, :]
  x = x + positions
  causal = np.tri(len(events.item), dtype=bool)
  count, eps = config['heads'], config['norm_eps']
  for i in range(config['blocks']):
    p = params[f'layer_{i}']
    normed = layer_norm(x, eps, p.get('norm_query'))
    q = heads(linear(p['query'], normed), count)
    k = heads(linear(p['key'], x), count)
    v = heads(linear(p['value'], x), count)
    scores = q @ transposed(k) / np.sqrt(config['dim'] / count)
    weights = softmax(np.where(causal, scores, -1e30))
    attended = merged(weights @ v)
    if config['project']:
      attended = linear(p['project'], attended)
    h = layer_norm(normed + attended, eps, p.get('norm_ffn'))
    hidden = linear(p['hidden'], h)
    if config['activation'] == 'relu':
      hidden = np.where(hidden.real > 0, hidden, 0)
    x = linear(p['out'], hidden) + h
  if config['final_norm']:
    x = layer_norm(x, eps, params.get('norm'))
  return x


MODELS = {'hstu': hstu, 'sasrec': sasrec}


def encode(params, config, table, events):
  """`[L, D]` of length one."""
  rows = table[..., events.item, :]
  return normalize(MODELS[config['name']](params, config, rows, events))


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
