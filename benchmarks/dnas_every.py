"""Every model of a planted space, trained in one program: what a search of
`dnas_clicks:planted` can find, known without it.

This is an oracle: an MLP over the vectors of a few fields and nothing of the
library. All models are as wide as the widest, and what a narrower one does not
have is zero and stays so. `benchmarks.dnas` trains some of them by the library,
too, and says how far apart both are.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from genrec_jax.data.ranking import clicks

_AT_ONCE = 32  # models of a program


@dataclasses.dataclass(frozen=True)
class Model:
  """A model of the space.

  Attributes:
    top: widths of one or two hidden layers.
    dims: width of the table of each field.
  """

  top: tuple[int, ...]
  dims: tuple[int, ...]

  @property
  def flops(self) -> int:
    """Operations of an example: two for each product."""
    sizes = (sum(self.dims), *self.top, 1)
    return 2 * sum(a * b for a, b in itertools.pairwise(sizes))


def list_models(
  fields: int, widths: Sequence[int], dims: Sequence[int]
) -> list[Model]:
  """All of them.

  >>> len(list_models(5, (8, 32), (1, 4)))
  192

  Args:
    fields: with a table.
    widths: of a hidden layer.
    dims: of a table.
  """
  tops = [(w,) for w in widths] + list(itertools.product(widths, widths))
  return [
    Model(top, own)
    for top in tops
    for own in itertools.product(dims, repeat=fields)
  ]


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples of a log, in three parts.

  Attributes:
    values: `[N, fields]` of each part.
    labels: `[N]` of each part.
    chance: `[N]` true chance of a click, of each part.
  """

  values: dict[str, np.ndarray]
  labels: dict[str, np.ndarray]
  chance: dict[str, np.ndarray]

  @classmethod
  def generate(cls, log: clicks.ClickLog) -> 'Examples':
    """Eight tenths train, one validates and one tests."""
    values, _, labels, chance = (
      np.concatenate(c) for c in zip(*clicks.generate_arrays(log), strict=True)
    )
    cuts = [len(labels) * 8 // 10, len(labels) * 9 // 10]

    def cut(column, dtype):
      parts = np.split(column.astype(dtype), cuts)
      return dict(zip(('train', 'valid', 'test'), parts, strict=True))

    return cls(
      cut(values, np.int32), cut(labels, np.float32), cut(chance, np.float32)
    )

  @property
  def floor(self) -> float:
    """The least expected log loss of the test part."""
    p = self.chance['test'].astype(np.float64)
    return float(-np.mean(p * np.log(p) + (1 - p) * np.log1p(-p)))


@dataclasses.dataclass(frozen=True)
class Training:
  """How a model is trained: by Adam, and the epoch that validates best counts.

  Attributes:
    epochs: passes over the training part.
    batch_size: of a step.
    rate: of Adam.
    deviation: of fresh tables.
  """

  epochs: int = 10
  batch_size: int = 512
  rate: float = 0.01
  deviation: float = 0.05


@dataclasses.dataclass(frozen=True)
class Scores:
  """Of each model, in the epoch that validates best.

  Attributes:
    valid: `[models]` log loss of the labels of the part that validates.
    test: `[models]` expected log loss of the test part, of its true chances.
  """

  valid: np.ndarray
  test: np.ndarray


def train_every(
  models: Sequence[Model], examples: Examples, training: Training, seed: int
) -> Scores:
  """Trains all of them, some side by side.

  Args:
    models: of one space.
    examples: of the log.
    training: how.
    seed: of what they begin with, and of the order of the examples.
  """
  found = []
  for first in range(0, len(models), _AT_ONCE):
    some = list(models[first : first + _AT_ONCE])
    # The last ones are filled up, so that there is one program.
    filled = some + some[-1:] * (_AT_ONCE - len(some))
    scores = _train_some(filled, examples, training, (seed, first))
    found.append(scores[:, : len(some)])
  return Scores(*np.concatenate(found, axis=1))


def _train_some(models, examples, training, seed) -> np.ndarray:
  fields = examples.values['train'].shape[1]
  values = 1 + max(x.max() for x in examples.values.values())
  width = max(max(model.top) for model in models)
  dim = max(max(model.dims) for model in models)
  rng = np.random.default_rng(seed)
  made = [
    _make_params(m, (fields, int(values), dim, width), training, rng)
    for m in models
  ]
  params, masks = jax.tree.map(lambda *own: jnp.stack(own), *made)
  state = jax.vmap(optax.adam(training.rate).init)(params)
  count = len(examples.labels['train'])
  steps = count // training.batch_size
  best = np.full((2, len(models)), np.inf)
  for _ in range(training.epochs):
    order = rng.permutation(count)[: steps * training.batch_size]
    order = order.reshape(steps, training.batch_size)
    batches = (examples.values['train'][order], examples.labels['train'][order])
    params, state = _run_epoch(params, state, masks, batches, training.rate)
    valid, test = (
      np.asarray(_score(params, masks, examples.values[part], target))
      for part, target in (
        ('valid', examples.labels['valid']),
        ('test', examples.chance['test']),
      )
    )
    better = valid < best[0]
    best = np.where(better, np.stack([valid, test]), best)
  return best


def _make_params(model: Model, sizes, training: Training, rng):
  """What a model begins with, and which of it there is."""
  fields, values, dim, width = sizes
  columns = (np.arange(dim) < np.array(model.dims)[:, None]).astype(np.float32)
  first = (np.arange(width) < model.top[0]).astype(np.float32)
  last = (np.arange(width) < model.top[-1]).astype(np.float32)
  deep = np.float32(len(model.top) == 2)
  masks = {
    'tables': np.repeat(columns[:, None], values, axis=1),
    'w1': columns.reshape(-1, 1) * first,
    'b1': first,
    'w2': deep * first[:, None] * last,
    'b2': deep * last,
    'w3': last[:, None],
    'b3': np.ones(1, np.float32),
    'stays': 1 - deep,  # whether the second layer is left out
  }
  total = sum(model.dims)
  around = {
    '1': (total, model.top[0]), '2': (model.top[0], model.top[-1]),
    '3': (model.top[-1], 1),
  }  # fmt: skip
  params = {
    'tables': training.deviation * rng.normal(size=(fields, values, dim))
  }
  for layer, (inputs, outputs) in around.items():
    scale = (2 / (inputs + outputs)) ** 0.5
    w, b = masks[f'w{layer}'], masks[f'b{layer}']
    params[f'w{layer}'] = scale * rng.normal(size=w.shape)
    params[f'b{layer}'] = outputs**-0.5 * rng.normal(size=b.shape)
  params = {
    name: (value * masks[name]).astype(np.float32)
    for name, value in params.items()
  }
  return params, masks


def _predict(params, masks, values):
  fields = values.shape[1]
  vectors = params['tables'][jnp.arange(fields)[None], values]
  x = vectors.reshape(len(values), -1)
  x = jax.nn.relu(x @ params['w1'] + params['b1'][None])
  deeper = jax.nn.relu(x @ params['w2'] + params['b2'][None])
  x = deeper + masks['stays'] * x
  return (x @ params['w3'] + params['b3'][None])[:, 0]


def _measure(params, masks, values, target):
  logits = _predict(params, masks, values)
  return jnp.mean(jax.nn.softplus(logits) - target * logits)


@jax.jit
def _score(params, masks, values, target):
  return jax.lax.map(
    lambda own: _measure(*own, values, target), (params, masks)
  )


@jax.jit
def _run_epoch(params, state, masks, batches, rate):
  def move(params, masks, state, values, target):
    grads = jax.grad(_measure)(params, masks, values, target)
    grads = {name: grad * masks[name] for name, grad in grads.items()}
    updates, state = optax.adam(rate).update(grads, state)
    return optax.apply_updates(params, updates), state

  def step(carry, batch):
    moved = jax.vmap(move, (0, 0, 0, None, None))(
      carry[0], masks, carry[1], *batch
    )
    return moved, None

  return jax.lax.scan(step, (params, state), batches)[0]
