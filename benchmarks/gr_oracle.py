"""STU written out for one request at a time, token by token, in NumPy.

It shares nothing with `genrec_jax.models` but the names of parameters, and
follows the published description: a list of tokens, a mask in words, sums over
what is seen. All of it is analytic in the parameters, so that a complex
parameter p + ih gives the derivative as Im(f) / h, exactly.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

CONTEXT, EVENT, CANDIDATE = range(3)
STEP = 1e-30  # of the derivative: nothing is subtracted, nothing cancels


class Token(NamedTuple):
  """A token on its way through the layers.

  Attributes:
    kind: CONTEXT, EVENT or CANDIDATE.
    x: `[D]`.
    age: seconds.
    read: whether a candidate is scored by it.
  """

  kind: int
  x: np.ndarray
  age: int
  read: bool = False


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def silu(x):
  return x * sigmoid(x)


def layer_norm(x, scale=1.0, shift=0.0, eps=1e-5):
  """Over the whole vector."""
  centred = x - x.mean()
  return centred / np.sqrt((centred * centred).mean() + eps) * scale + shift


@functools.cache  # for the derivatives of all parameters
def write_mask(
  tokens, asked, contextual, window, full_tail, prefix=0
) -> np.ndarray:
  """The mask in words, pair by pair."""
  history = tokens - asked - contextual

  def place(m):  # context -1, events 0, 1, ..., candidates behind them
    return max(-1, min(m - contextual, history))

  def sees(i, j):
    if i == j:
      return True
    if place(i) == -1:
      return place(j) < history
    if place(j) == -1:
      distance = place(i) + 1
    elif place(j) >= place(i):
      return False
    else:
      distance = place(i) - place(j)
    if window is None or distance <= window:
      return True
    if full_tail > 0 and place(i) >= history - full_tail:
      return True
    return prefix > 0 and place(j) < prefix

  every = range(tokens)
  return np.array([[sees(i, j) for j in every] for i in every])


class Oracle:
  """The model of one config.

  Args:
    config: `request_models.STU`.
    spec: of the requests.
    params: path -> array, such as 'stack/layer_0/uvqk/kernel'.
    tables: name -> rows.
  """

  def __init__(self, config, spec, params: Mapping, tables: Mapping):
    self.c, self.spec, self.p, self.tables = config, spec, params, tables

  def score(self, request, train=False, longest=None) -> dict[str, np.ndarray]:
    """`[T]` of each label.

    Args:
      request: of `gr_requests`.
      train: whether it is laid out as in training.
      longest: tokens of the longest sequence of the batch, where the attention
        is divided by it.
    """
    tokens = self.run_layers(self.make_tokens(request, train), train, longest)
    found = {label.name: [] for label in self.spec.labels}
    scored = [t for t in tokens if t.kind == CANDIDATE and t.read]
    for place, token in enumerate(scored):
      user = self.postprocess(token.x, request.week_second)
      vectors = self.candidate(request, place)
      item = self.mlp('tower', np.concatenate(vectors))
      pair = user * item
      if self.c.head_inputs == 'all':
        pair = np.concatenate([pair, user, item])
      for name, y in zip(found, self.mlp('head/net', pair), strict=True):
        found[name].append(y)
    return {name: np.array(values) for name, values in found.items()}

  def loss(self, requests, train=False) -> complex:
    """0.2 times the sum over labels of sum(w l) / max(sum(w), 1)."""
    total = 0.0
    scores = [self.score(r, train) for r in requests]
    for label in self.spec.labels:
      above, below = 0.0, 0.0
      for request, score in zip(requests, scores, strict=True):
        for place, y in enumerate(score[label.name]):
          truth = request.candidates[label.name][place]
          weight = request.candidates['weight'][place]
          if label.kind == 'binary':
            each = np.log(1 + np.exp(-y)) + (1 - truth) * y
          else:
            each = (y - truth) ** 2
          above, below = above + weight * each, below + weight
      total += 0.2 * above / max(below, 1.0)
    return total

  def linear(self, name, x):
    y = x @ self.p[f'{name}/kernel']
    return y + self.p[f'{name}/bias'] if f'{name}/bias' in self.p else y

  def norm(self, name, x, eps=1e-5):
    return layer_norm(x, self.p[f'{name}/scale'], self.p[f'{name}/shift'], eps)

  def mlp(self, name, x):
    h = self.linear(f'{name}/below', x)
    h = h * sigmoid(self.norm(f'{name}/swish/norm', h))
    y = self.linear(f'{name}/above', h)
    last = f'{name}/norm_out'
    return self.norm(last, y) if f'{last}/scale' in self.p else y

  # --- From a request to tokens

  def items(self, columns, place, features):
    """The vectors of some features of an item."""
    return [self.tables[f.source][columns[f.name][place]] for f in features]

  def event(self, request, place):
    """Those of an event, the first of its id, and of what it does not have."""
    known = self.items(request.history, place, self.spec.items)
    return [*known, *self.p.get('tokens/absent', ())]

  def candidate(self, request, place):
    """Those of a candidate, the first of its id."""
    known = self.items(request.candidates, place, self.spec.items)
    own = self.items(request.candidates, place, self.spec.candidates)
    return known + own

  def list_slots(self):
    """(column, table, whether it is one of several) of the context."""
    slots = []
    for f in self.spec.context:
      if f.kind == 'multi_hot':
        slots += [(f'{f.name}.{i}', f.source, True) for i in range(f.max_len)]
      else:
        slots.append((f.name, f.source, False))
    return slots

  def make_tokens(self, request, train) -> list[Token]:
    c, p = self.c, self.p
    events = len(request.history['age'])
    asked = len(request.candidates['weight'])
    context = []
    for name, table, is_several in self.list_slots():
      row = self.tables[table][request.context[name]]
      if is_several and not request.context[name]:
        row = np.zeros_like(row)  # a slot that is not used
      counted = events
      if 'context_by_candidates' in c.reference_compat:
        counted += asked
      enough = counted >= c.min_context_events
      context.append(row if enough else np.zeros_like(row))
    tokens = [
      Token(CONTEXT, self.linear(f'tokens/slot_{i}', row), None)
      for i, row in enumerate(context)
    ]

    def embed(net, x):
      if not c.context_mlps:
        return self.mlp(f'tokens/{net}', x)
      net = f'tokens/{net}'
      shared = self.linear(f'{net}/compress', np.concatenate(context))
      matrix = self.norm(f'{net}/norm', self.linear(f'{net}/matrix', shared))
      return x @ matrix.reshape(len(x), c.dim) + self.mlp(
        f'{net}/shift', shared
      )

    def embed_content(vectors):
      item, *others = vectors
      if c.joint_content:
        item, others = np.concatenate(vectors), []
      content = embed('content', item)
      if others:
        content = content + embed('attributes', np.concatenate(others))
      return content

    for u in range(events):
      age = int(request.history['age'][u])
      content = embed_content(self.event(request, u))
      if c.layout == 'no_actions':
        tokens.append(Token(EVENT, content, age))
        continue
      action = embed('action', self.encode_action(request.history, u))
      if c.layout == 'summed':
        tokens.append(Token(EVENT, content + action, age))
      else:
        tokens += [Token(EVENT, content, age), Token(EVENT, action, age)]
    for t in range(asked):
      content = embed_content(self.candidate(request, t))
      if c.layout == 'summed':
        content = content + embed('action', p['tokens/actions/unknown'])
      tokens.append(Token(CANDIDATE, content, 0, True))
      both = train and c.candidate_actions and not c.listwise
      if c.layout == 'interleaved' and both:
        action = embed('action', p['tokens/actions/unknown'])
        tokens.append(Token(CANDIDATE, action, 0))
    return self.add_positions(tokens, train)

  def encode_action(self, history, place):
    bits = [bit for _, bit in self.spec.actions]
    action = int(history['action'][place])
    for seconds, bit in self.c.watch_times:
      if bit not in bits:
        bits.append(bit)
      if history['watch_time'][place] >= seconds:
        action |= bit
    vectors = self.p['tokens/actions/vectors']
    return np.concatenate(
      [
        vector * bool(action & bit)
        for bit, vector in zip(bits, vectors, strict=True)
      ]
    )

  def is_listwise(self, train):
    published = 'listwise_in_training' in self.c.reference_compat
    return self.c.listwise and (train or not published)

  def add_positions(self, tokens, train) -> list[Token]:
    c, places = self.c, self.p['positions/position']
    ages = self.p['positions/age']
    contextual = sum(t.kind == CONTEXT for t in tokens)
    high = len(tokens)
    if not self.is_listwise(train):
      high -= sum(t.kind == CANDIDATE for t in tokens)
    scale = math.sqrt(c.dim) if c.token_scale is None else c.token_scale
    moved = []
    for m, token in enumerate(tokens):
      if token.kind == CONTEXT:
        place, bucket = m, len(ages) - 1
      else:
        place, seconds = high - min(m, high) + contextual, token.age
        if c.counted_from == 'start':
          place, seconds = min(m, high), self.find_gap(tokens, m)
        place = min(place, len(places) - 1)
        minutes = max(seconds, 1e-6) / 60
        root = c.time_bucket_fn == 'sqrt'
        bucket = math.sqrt(minutes) if root else math.log(minutes)
        bucket = min(max(int(bucket), 0), len(ages) - 1)
      if 'time_clip_at_width' in c.reference_compat:
        bucket = min(bucket, c.dim - 1)
      x = token.x * scale + places[place] + ages[bucket]
      moved.append(token._replace(x=x))
    return moved

  def find_gap(self, tokens, m) -> int:
    """Seconds from the event before a token to the token."""
    events = [t for t in tokens if t.kind == EVENT]
    each = 2 if self.c.layout == 'interleaved' else 1
    own = len(events) // each  # of a candidate: one behind the last
    if tokens[m].kind == EVENT:
      own = (m - sum(t.kind == CONTEXT for t in tokens)) // each
    return events[each * (own - 1)].age - tokens[m].age if own else 0

  # --- Layers

  def run_layers(self, tokens, train, longest) -> list[Token]:
    c = self.c
    for layer in range(c.blocks):
      seen = list(range(len(tokens)))
      batch = longest
      if layer >= c.blocks - c.truncated_layers:
        events = [i for i in seen if tokens[i].kind == EVENT]
        hidden = events[: max(len(events) - c.truncated_to, 0)]
        seen = [i for i in seen if i not in hidden]
        if longest is not None:
          raise NotImplementedError('of a truncated batch')
      after = self.run_layer(layer, [tokens[i] for i in seen], train, batch)
      for i, x in zip(seen, after, strict=True):
        tokens[i] = tokens[i]._replace(x=x)
    return tokens

  def run_layer(self, layer, tokens, train, longest) -> list[np.ndarray]:
    c, name = self.c, f'stack/layer_{layer}'
    contextual = len(self.list_slots())
    per_event = 2 if c.layout == 'interleaved' else 1
    most = contextual + per_event * (c.max_history + c.max_candidates)
    divisor = c.normaliser or most
    if 'batch_normaliser' in c.reference_compat:
      divisor = longest
    alpha = c.alpha or 1 / math.sqrt(c.dqk)
    parts = []
    for token in tokens:
      z = self.norm(f'{name}/norm_input', token.x, c.norm_eps)
      uvqk = self.linear(f'{name}/uvqk', z)
      values, keys = c.heads * c.dv, c.heads * c.dqk
      u, v = silu(uvqk[:values]), uvqk[values : 2 * values]
      q = uvqk[2 * values : 2 * values + keys].reshape(c.heads, c.dqk)
      k = uvqk[2 * values + keys :].reshape(c.heads, c.dqk)
      parts.append((u, v.reshape(c.heads, c.dv), q, k))
    after = []
    mask = self.find_mask([token.kind for token in tokens], train)
    for i, token in enumerate(tokens):
      seen = np.flatnonzero(mask[i])
      keys = np.stack([parts[j][3] for j in seen])
      values = np.stack([parts[j][1] for j in seen])
      scores = alpha * (parts[i][2] * keys).sum(axis=2)
      bias = [self.bias(name, tokens, i, j, train) for j in seen]
      scores = scores + np.array(bias)[:, None]
      attended = ((silu(scores) / divisor)[:, :, None] * values).sum(axis=0)
      if c.group_norm:
        normed = np.concatenate(
          [
            layer_norm(attended[h], eps=c.norm_eps)
            * self.p[f'{name}/norm_attention/scale'][h]
            + self.p[f'{name}/norm_attention/shift'][h]
            for h in range(c.heads)
          ]
        )
      else:
        normed = self.norm(
          f'{name}/norm_attention', attended.ravel(), c.norm_eps
        )
      u = parts[i][0]
      gate = {'none': u, 'sigmoid': sigmoid(u), 'silu': silu(u)}[c.gate]
      y = np.concatenate([u, attended.ravel(), gate * normed])
      after.append(token.x + self.linear(f'{name}/output', y))
    return after

  def find_mask(self, kinds, train) -> np.ndarray:
    """`[N, N]`: for each token, which it sees."""
    c = self.c
    asked = 0 if self.is_listwise(train) else kinds.count(CANDIDATE)
    contextual = kinds.count(CONTEXT) if c.context_mask == 'both' else 0
    prefix = c.prefix
    if prefix and not contextual:
      prefix += kinds.count(CONTEXT)
    return write_mask(
      len(kinds), asked, contextual, c.window, c.full_tail, prefix
    )

  def bias(self, name, tokens, i, j, train):
    total = 0.0
    if self.c.position_bias:
      table = self.p[f'{name}/position_bias']
      asked = 0
      if not self.is_listwise(train):
        asked = sum(t.kind == CANDIDATE for t in tokens)
      first = len(tokens) - asked
      total += table[min(j, first) - min(i, first) + len(table) // 2]
    if self.c.time_bias:
      table = self.p[f'{name}/time_bias']
      apart = abs((tokens[i].age or 0) - (tokens[j].age or 0))
      bucket = int(math.log(max(apart, 1)) / 0.301)
      total += table[min(bucket, len(table) - 1)]
    return total

  # --- From tokens to scores

  def postprocess(self, x, week_second):
    c = self.c
    if c.postprocessor == 'l2norm':
      return x / np.sqrt((x * x).sum())
    if c.postprocessor == 'timestamp':
      pi = 3.14 if 'pi_3_14' in c.reference_compat else math.pi
      hour = 2 * pi * (week_second // 3600 % 24) / 24
      day = 2 * pi * (week_second // 86400 % 7) / 7
      turn = [math.cos(hour), math.sin(hour), math.cos(day), math.sin(day)]
      x = self.linear('postprocessor/combine', np.concatenate([x, turn]))
    return self.norm('postprocessor/norm', x)


def derivative(config, spec, params, tables, requests, direction, train=False):
  """Of the loss, along a direction: path or table -> array."""

  def move(values):
    return {
      name: x + 1j * STEP * direction[name] if name in direction else x
      for name, x in values.items()
    }

  moved = Oracle(config, spec, move(params), move(tables))
  return moved.loss(requests, train).imag / STEP
