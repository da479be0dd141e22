"""TBSM and its baselines, tiny, and the plain statement of each in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax.config.event_models import TBSM as Config
from genrec_jax.features import FeatureSpec, History, Inputs
from genrec_jax.models.tbsm import TBSM

MOST, OUTPUTS = 5, 2
SEEN = dict(kind='sequence', history='seen', max_len=MOST)
FEATURES = (
  FeatureSpec('user', rows=9),
  FeatureSpec('price', kind='numeric'),
  FeatureSpec('item', rows=11),
  FeatureSpec('seen_item', rows=11, table='item', **SEEN),
  FeatureSpec('category', rows=5),
  FeatureSpec('seen_category', rows=5, table='category', **SEEN),
  FeatureSpec('seen_age', **SEEN | {'kind': 'numeric_sequence'}),
)
SMALL = dict(dim=4, top=(5,), width=3, attention_hidden=(4,), hidden=(6,))
CASES = {
  'def': Config(**SMALL),
  'def_heads': Config(**SMALL, heads=3, k_sequences=True),
  'ind': Config(**SMALL, mechanism='ind', one_head_mlp=True),
  'dot': Config(**SMALL, mechanism='dot', projection=False, interaction='cat'),
  'mul': Config(**SMALL, weights='mul', heads=2, position=False, bottom=(4,)),
  'published': Config(**SMALL, relu_end=True, projection_eps=0.0),
  'without_user': Config(**SMALL, leave_out=('user', 'seen_age')),
  'mean': Config(**SMALL, mechanism='mean'),
  'concat': Config(**SMALL, mechanism='concat'),
  'attention': Config(**SMALL, mechanism='attention', heads=2),
  'gru': Config(**SMALL, mechanism='gru', recurrent_width=4),
  'lstm': Config(**SMALL, mechanism='lstm'),
  'din': Config(**SMALL, mechanism='din'),
}
LENGTHS = (3, 0, 5, 1, 2, 4)
CAPACITY = 20


def make(config: Config, features=FEATURES):
  """(graphdef, parameters away from their start) of a model."""

  def build():
    return TBSM(config, features, OUTPUTS, nnx.Rngs(0))

  graphdef, state = nnx.split(nnx.eval_shape(build), nnx.Param)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda p: jnp.asarray(0.7 * rng.normal(size=p.shape), p.dtype),
    nnx.to_pure_dict(state),
  )
  return graphdef, params


def merge(graphdef, params) -> TBSM:
  return nnx.merge(graphdef, nnx.State(jax.tree.map(nnx.Param, params)))


@functools.cache
def build(name: str):
  """(params, compiled call of params and inputs) of a case."""
  graphdef, params = make(CASES[name])
  return params, jax.jit(lambda params, x: merge(graphdef, params)(x))


def draw_inputs(
  config: Config, lengths=LENGTHS, capacity=CAPACITY, seed=0
) -> Inputs:
  """Random examples with histories of these lengths."""
  rng = np.random.default_rng(seed)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  size, left = len(lengths), config.leave_out
  names = [n for n in ('user', 'item', 'category') if n not in left]
  return Inputs(
    vectors=tuple(draw(size, config.dim) for _ in names),
    numbers=draw(size, 1),
    linear=jnp.zeros(size),
    weights=jnp.ones(size),
    histories={
      'seen': History(
        {n: draw(capacity, config.dim) for n in ('seen_item', 'seen_category')},
        draw(capacity, 1),
        jnp.asarray(lengths, jnp.int32),
      )
    },
  )


def select(x: Inputs, at: list[int]) -> Inputs:
  """Some of the examples, in this order, packed anew."""
  history = x.histories['seen']
  ends = np.cumsum(history.lengths)
  events = [i for n in at for i in range(ends[n] - history.lengths[n], ends[n])]
  events = np.array([*events, *[0] * (CAPACITY - len(events))], int)
  at = np.array(at)
  return dataclasses.replace(
    jax.tree.map(lambda a: a[at], dataclasses.replace(x, histories={})),
    histories={
      'seen': History(
        jax.tree.map(lambda a: a[events], history.vectors),
        history.numbers[events],
        history.lengths[at],
      )
    },
  )


def state(config: Config, params, x: Inputs) -> np.ndarray:
  """Logits by loops over examples, events and heads, in float64."""
  params, x = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, x))
  history = x.histories['seen']
  logits, done = [], 0
  for n, length in enumerate(history.lengths.astype(int)):
    shared = [x.vectors[0][n]] if 'user' not in config.leave_out else []
    own = [x.vectors[-2][n], x.vectors[-1][n]]
    z = []
    for i in range(length):
      event = [
        history.vectors[c][done + i] for c in ('seen_item', 'seen_category')
      ]
      slot = MOST - length + i
      z.append(
        encode(
          config,
          params['encoder']['dlrm'],
          shared + event,
          [x.numbers[n, 0]],
          [history.numbers[done + i, 0]],
          (slot + 1) / (MOST + 1),
        )
      )
    w = encode(
      config,
      params['encoder']['dlrm'],
      shared + own,
      [x.numbers[n, 0]],
      [0.0],
      1.0,
    )
    logits.append(
      judge(config, params, np.array(z).reshape(-1, config.width), w)
    )
    done += length
  return np.array(logits)


def encode(config, params, vectors, numbers, age, position) -> np.ndarray:
  """The tower on one event."""
  numbers = [*numbers]
  if 'seen_age' not in config.leave_out:
    numbers += age
  if config.position:
    numbers.append(position)
  x = np.maximum(run_mlp(params['bottom'], np.array(numbers)), 0)
  vectors = [x, *vectors]
  if config.interaction == 'cat':
    r = np.concatenate(vectors)
  else:
    pairs = [
      vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)
    ]
    r = np.concatenate([x, pairs])
  z = run_mlp(params['top'], r)
  if config.relu_end:
    z = np.maximum(z, 0)
  if config.projection:
    length = np.sqrt(z @ z + config.projection_eps)
    z = z / length if length else z
  return z


def judge(config, params, z: np.ndarray, w: np.ndarray) -> np.ndarray:
  """The logits of one example, given its events and its candidate."""
  found = []
  spans = config.list_spans(MOST)
  for j, span in enumerate(spans):
    c = mix(
      config, params.get(f'head_{j}', {}), z[-span:] if span else z, w, span
    )
    found.append(run_mlp(params[f'output_{j}'], np.concatenate([c, w])))
  if 'final' not in params:
    return found[0]
  shares = 1 / (1 + np.exp(-np.concatenate(found)))
  return run_mlp(params['final'], shares)


def mix(config, head, z: np.ndarray, w: np.ndarray, span: int) -> np.ndarray:
  """The vector c of one head."""
  m, kind = config.width, config.mechanism
  missing = span - len(z)
  if kind == 'mean':
    return z.mean(0) if len(z) else np.zeros(m)
  if kind == 'concat':
    return np.concatenate([np.zeros(missing * m), z.ravel()])
  if kind == 'attention':
    return attend(config, head, z, w)
  if kind in ('gru', 'lstm'):
    return recur(config, head, z)
  if kind == 'din':
    total = np.zeros(m)
    for event in z:
      beside = np.concatenate([event, w, event - w, event * w])
      total += run_mlp(head['attention'], beside) * event
    return total
  transform = {
    'dot': lambda a: np.eye(m),
    'ind': lambda a: a,
    'def': lambda a: a.T @ a,
  }[kind](head.get('matrix'))
  a = np.array([event @ transform @ w for event in z])
  if config.weights == 'mlp':
    a = np.concatenate([np.zeros(missing), a])
    a = 1 / (1 + np.exp(-run_mlp(head['attention'], a)))[missing:]
  return sum((weight * event for weight, event in zip(a, z, strict=True)),
             np.zeros(m))  # fmt: skip


def attend(config, head, z, w) -> np.ndarray:
  if not len(z):
    return np.zeros(config.heads * config.width)
  q, k, v = (
    (given @ head[name]['kernel'] + head[name]['bias']).reshape(
      -1, config.heads, config.width
    )
    for name, given in (('query', w), ('key', z), ('value', z))
  )
  mixed = []
  for j in range(config.heads):
    scores = k[:, j] @ q[0, j] / np.sqrt(config.width)
    shares = np.exp(scores - scores.max())
    mixed.append(shares / shares.sum() @ v[:, j])
  return np.concatenate(mixed) @ head['out']['kernel'] + head['out']['bias']


def recur(config, head, z) -> np.ndarray:
  def sigmoid(x):
    return 1 / (1 + np.exp(-x))

  width = config.recurrent_width or config.width
  h, c = np.zeros(width), np.zeros(width)
  for event in z:
    given = event @ head['input']['kernel'] + head['input']['bias']
    own = h @ head['state']['kernel'] + head['state']['bias']
    if config.mechanism == 'gru':
      r, u, n = np.split(given, 3)
      r2, u2, n2 = np.split(own, 3)
      u = sigmoid(u + u2)
      h = (1 - u) * np.tanh(n + sigmoid(r + r2) * n2) + u * h
    else:
      i, f, g, o = np.split(given + own, 4)
      c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
      h = sigmoid(o) * np.tanh(c)
  return h


def run_mlp(params, x: np.ndarray) -> np.ndarray:
  """Hidden layers with ReLUs, and a last linear one."""
  i = 0
  while (layer := params.get(f'linear_{i}')) is not None:
    x = np.maximum(x @ layer['kernel'] + layer['bias'], 0)
    i += 1
  return x @ params['out']['kernel'] + params['out']['bias']
