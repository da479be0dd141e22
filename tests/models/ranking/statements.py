"""Every ranking model once more, plainly, in NumPy and float64: the oracle.

Parameters are nested dicts of arrays with the names of the modules. Examples
are the real ones alone; dropout is off.
"""

import numpy as np


def linear(p, h):
  return h @ p['kernel'] + p.get('bias', 0.0)


def relu(h):
  return np.maximum(h, 0.0)


def sigmoid(h):
  return 1 / (1 + np.exp(-h))


def batch_norm(p, h, training):
  if training:
    mean, variance = h.mean(0), h.var(0)
  else:
    mean, variance = p['running_mean'], p['running_variance']
  return (h - mean) / np.sqrt(variance + 1e-5) * p['scale'] + p['shift']


def layer_norm(p, h, eps):
  mean, variance = h.mean(-1, keepdims=True), h.var(-1, keepdims=True)
  return (h - mean) / np.sqrt(variance + eps) * p['scale'] + p['shift']


def mlp(p, h, training, normalise=False):
  """`normalise` is what the config says: a model without a norm must fail."""
  i = 0
  while f'linear_{i}' in p:
    h = linear(p[f'linear_{i}'], h)
    assert (f'norm_{i}' in p) == normalise, sorted(p)
    if normalise:
      h = batch_norm(p[f'norm_{i}'], h, training)
    h = relu(h)
    i += 1
  return linear(p['out'], h) if 'out' in p else h


def field_vectors(c, p, vectors, numbers, training):
  """Vectors of the tables, then those of the numbers."""
  found = list(vectors)
  if 'kernel' in p:
    for j in range(numbers.shape[1]):
      found.append(np.outer(numbers[:, j], p['kernel'][j]))
  if 'bottom' in p:
    found.append(relu(mlp(p['bottom'], numbers, training, c.batch_norm)))
  return found


def lr(c, p, x, training):
  y = x.linear[:, None] + p['bias']
  for j in range(x.numbers.shape[1]):
    y = y + np.outer(x.numbers[:, j], p['numeric'][j])
  return y


def fm(c, p, x, training):
  vectors = field_vectors(
    c, p.get('fields', {}), x.vectors, x.numbers, training
  )
  y = lr(c, p['first_order'], x, training)
  for i in range(len(vectors)):
    for j in range(i):
      y = y + np.sum(vectors[i] * vectors[j], axis=1, keepdims=True)
  return y


def dnn(c, p, x, training):
  vectors = field_vectors(
    c, p.get('fields', {}), x.vectors, x.numbers, training
  )
  return mlp(p['mlp'], np.concatenate(vectors, axis=1), training, c.batch_norm)


def deepfm(c, p, x, training):
  return fm(c, p, x, training) + dnn(c, p, x, training)


def dlrm(c, p, x, training):
  vectors = list(x.vectors)
  front = []
  if 'bottom' in p:
    front = [relu(mlp(p['bottom'], x.numbers, training, c.batch_norm))]
  vectors = front + vectors
  if c.interaction == 'cat':
    columns = vectors
  else:
    columns = list(front)
    for i in range(len(vectors)):
      for j in range(i + 1 if c.itself else i):
        columns.append(np.sum(vectors[i] * vectors[j], 1, keepdims=True))
  return mlp(p['top'], np.concatenate(columns, axis=1), training, c.batch_norm)


def cross(c, p, gate, x0, x):
  """One example, `[width]`."""
  if c.experts:
    score = gate['kernel'].T @ x
    score = np.exp(score - score.max())
    score = score / score.sum()
    made = np.zeros_like(x)
    for i in range(c.experts):
      h = np.tanh(p['v'][i].T @ x)
      h = np.tanh(p['c'][i] @ h)
      made += score[i] * x0 * (p['u'][i] @ h + p['bias'])
    return made + x
  if c.rank:
    u, v = p['u']['kernel'].T, p['v']['kernel']
    return x0 * (u @ (v.T @ x) + p['u']['bias']) + x
  w, b = p['linear']['kernel'].T, p['linear']['bias']
  return x0 * (w @ x + b) + x


def dcn(c, p, x, training):
  vectors = field_vectors(
    c, p.get('fields', {}), x.vectors, x.numbers, training
  )
  x0 = np.concatenate(vectors, axis=1)
  crossed = []
  for start in x0:
    h = start
    for i in range(c.cross):
      gate = p.get(f'gate_{i}', p.get('gate_0'))
      h = cross(c, p[f'cross_{i}'], gate, start, h)
    crossed.append(h)
  crossed = np.stack(crossed)
  if c.structure == 'cross':
    parts = [crossed]
  elif c.structure == 'stacked':
    parts = [mlp(p['stacked'], crossed, training, c.batch_norm)]
  elif c.structure == 'parallel':
    parts = [crossed, mlp(p['parallel'], x0, training, c.batch_norm)]
  else:
    parts = [mlp(p['stacked'], crossed, training, c.batch_norm)]
    parts.append(mlp(p['parallel'], x0, training, c.batch_norm))
  return linear(p['out'], np.concatenate(parts, axis=1))


def finalmlp(c, p, x, training, names, numbers):
  """`names` of the features with a table, and of those that are numbers."""
  d = c.dim
  own = [v[:, :d] for v in x.vectors]
  p_fields = p.get('fields', {})
  flat = np.concatenate(
    field_vectors(c, p_fields, own, x.numbers, training), axis=1
  )
  inputs = [flat, flat]
  if c.selection:
    for i, context in enumerate((c.context1, c.context2)):
      gate = p[f'select_{i + 1}']
      columns = []
      for name, vector in zip(names, x.vectors, strict=True):
        if name in context:
          second = i == 1 and name in c.context1
          columns.append(vector[:, 2 * d :] if second else vector[:, d : 2 * d])
      kept = [j for j, name in enumerate(numbers) if name in context]
      for row, j in enumerate(kept):
        columns.append(np.outer(x.numbers[:, j], gate['kernel'][row]))
      if not context:
        columns = [np.tile(gate['own'], (len(flat), 1))]
      h = np.concatenate(columns, axis=1)
      inputs[i] = flat * 2 * sigmoid(mlp(gate['gate'], h, training))
  one = mlp(p['stream_1'], inputs[0], training, c.batch_norm)
  two = mlp(p['stream_2'], inputs[1], training, c.batch_norm)
  fusion = p['fusion']
  y = linear(fusion['first'], one) + linear(fusion['second'], two)
  heads = c.heads
  for a, b, out in zip(one, two, y, strict=True):
    a, b = a.reshape(heads, -1), b.reshape(heads, -1)
    for h in range(heads):
      for o in range(len(out)):
        out[o] += a[h] @ fusion['product'][h, :, o] @ b[h]
  return y


def mix(p, rows):
  """One example: W X, with `kernel` as W^t."""
  return p['kernel'].T @ rows + p.get('bias', np.zeros(1))[:, None]


def products(c, p, rows):
  """One example, `[n, d]` -> the machine's products, flat."""
  n = len(rows)
  if c.fm == 'full':
    return (rows @ rows.T).ravel()
  if c.fm == 'triangular':
    return np.array([rows[i] @ rows[j] for i in range(n) for j in range(i + 1)])
  if c.attentive:
    h = mix(p['attention']['compress'], rows).ravel()
    y = mlp(p['attention']['mlp'], h, False).reshape(n, c.rank)
  else:
    y = p['y']
  return (rows @ rows.T @ y).ravel()


def factorization_block(c, p, examples, training):
  """All examples, `[B, n, d]` -> `[B, n_F, d]`: a norm may look at them all."""
  made = np.stack([products(c, p, rows) for rows in examples])
  h = layer_norm(p['norm'], made, c.norm_eps)
  h = mlp(p['mlp'], h, training, c.fmb_batch_norm)
  return (relu(h) if c.last_relu else h).reshape(len(h), -1, c.dim)


def wukong_layer(c, p, examples, training):
  blocks = factorization_block(c, p['fmb'], examples, training)
  made = []
  for fmb, rows in zip(blocks, examples, strict=True):
    lcb = mix(p['lcb'], rows)
    residual = mix(p['residual'], rows) if 'residual' in p else rows
    fmb = fmb * ('fmb' not in c.zero)
    lcb = lcb * ('lcb' not in c.zero)
    residual = residual * ('residual' not in c.zero)
    made.append(np.concatenate([fmb, lcb]) + residual)
  return layer_norm(p['norm'], np.stack(made), c.norm_eps)


def wukong(c, p, x, training, names):
  embedding = p.get('embedding', {})
  examples = []
  for b in range(len(x.numbers)):
    rows, small = [], []
    for name, vector in zip(names, x.vectors, strict=True):
      if name in c.small:
        small.append(vector[b])
      else:
        rows.append(vector[b].reshape(-1, c.dim))
    if small:
      made = mlp(embedding['group'], np.concatenate(small), False)
      rows.append(made.reshape(-1, c.dim))
    if 'bottom' in embedding:
      made = mlp(embedding['bottom'], x.numbers[b], False)
      rows.append(made.reshape(-1, c.dim))
    examples.append(np.concatenate(rows))
  examples = np.stack(examples)
  for i in range(c.layers):
    examples = wukong_layer(c, p[f'layer_{i}'], examples, training)
  flat = examples.reshape(len(examples), -1)
  return mlp(p['top'], flat, training, c.top_batch_norm)
