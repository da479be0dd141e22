"""Published models, of their state dicts: NumPy, float64, one user at a time.

Written from the published formulas and names, not by way of the names here.
"""

import numpy as np

from tests.parity import statement


def hstu(state, heads, dqk, dv, n, events):
  """Outputs, from the published names: NumPy, float64, one user."""
  table = state['_embedding_module._item_emb.weight']
  dim = table.shape[1]
  x = np.sqrt(dim) * table[events.item]
  x = x + state['_input_features_preproc._pos_emb.weight'][: len(x)]
  length = len(x)
  place = np.arange(length)
  seconds = np.abs(events.next_time[:, None] - events.time[None])
  bucket = np.trunc(np.log(np.maximum(seconds, 1)) / 0.301).astype(int)
  layer = 0
  while f'_hstu._attention_layers.{layer}._uvqk' in state:
    p = {
      name.split('.', 3)[3]: value
      for name, value in state.items()
      if name.startswith(f'_hstu._attention_layers.{layer}.')
    }
    uvqk = statement.silu(statement.layer_norm(x, 1e-6) @ p['_uvqk'])
    u, v, q, k = np.split(uvqk, np.cumsum([heads * dv] * 2 + [heads * dqk]), 1)
    bias = p['_rel_attn_bias._pos_w'][place[None] - place[:, None] + n - 1]
    bias = bias + p['_rel_attn_bias._ts_w'][np.clip(bucket, 0, 128)]
    out = np.zeros((length, heads * dv))
    for h in range(heads):
      keys = slice(h * dqk, (h + 1) * dqk)
      values = slice(h * dv, (h + 1) * dv)
      scores = statement.silu(q[:, keys] @ k[:, keys].T + bias) / n
      out[:, values] = np.tril(scores) @ v[:, values]
    gated = u * statement.layer_norm(out, 1e-6)
    x = x + gated @ p['_o.weight'].T + p['_o.bias']
    layer += 1
  return statement.normalize(x)


def sasrec(state, heads, events, classic):
  """The same of SASRec; of SASRec.pytorch for a history that fills it."""
  prefix = '' if classic else '_embedding_module._'
  table = state[f'{prefix}item_emb.weight']
  dim = table.shape[1]
  x = np.sqrt(dim) * table[events.item]
  if classic:  # [maxlen, D], the last row for the newest item
    x = x + state['pos_emb.weight'][-len(x) :]
    first, second = 'conv1', 'conv2'
  else:
    x = x + state['_input_features_preproc._pos_emb.weight'][: len(x)]
    first, second = '_conv1d.0', '_conv1d.3'

  def norm(name, x):
    y = statement.layer_norm(x, 1e-8)
    if not classic:
      return y
    return y * state[f'{name}.weight'] + state[f'{name}.bias']

  layer = 0
  while (at := f'attention_layers.{layer}') and f'{at}.in_proj_bias' in state:
    normed = norm(f'attention_layernorms.{layer}', x)
    w, b = state[f'{at}.in_proj_weight'], state[f'{at}.in_proj_bias']
    q = normed @ w[:dim].T + b[:dim]
    k = x @ w[dim : 2 * dim].T + b[dim : 2 * dim]
    v = x @ w[2 * dim :].T + b[2 * dim :]
    out = np.zeros_like(x)
    for h in range(heads):
      own = slice(h * dim // heads, (h + 1) * dim // heads)
      scores = q[:, own] @ k[:, own].T / np.sqrt(dim // heads)
      causal = np.tri(len(x), dtype=bool)
      weights = statement.softmax(np.where(causal, scores, -1e30))
      out[:, own] = weights @ v[:, own]
    m = out @ state[f'{at}.out_proj.weight'].T + state[f'{at}.out_proj.bias']
    h = norm(f'forward_layernorms.{layer}', normed + m)
    f = f'forward_layers.{layer}'
    y = h @ state[f'{f}.{first}.weight'][..., 0].T + state[f'{f}.{first}.bias']
    y = np.maximum(y, 0) @ state[f'{f}.{second}.weight'][..., 0].T
    x = y + state[f'{f}.{second}.bias'] + h
    layer += 1
  return norm('last_layernorm', x) if classic else statement.normalize(x)
