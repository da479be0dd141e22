"""STU of any config beside its oracle: weights, scores and gradients."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import gr_oracle, gr_requests
from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import CANDIDATES, WEIGHT, Examples, RequestSpec
from genrec_jax.models.stu import STU
from pallas_kernels import segment_ids

CAUSAL_WEIGHT = 0.2  # of every label in the published loss


class Model(NamedTuple):
  """A model as functions of its parameters.

  Attributes:
    config: of the model.
    spec: of the requests.
    model: of shapes, for what it says of itself.
    params: every one away from its (often zero) initial value.
    tables: name -> rows.
    run: (params, rows, batch, key) -> (scores, loss, gradients of both).
    score: (params, rows, batch, key) -> scores, quicker to compile.
    make: (params) -> the model itself.
  """

  config: Config
  spec: RequestSpec
  model: STU
  params: Any
  tables: Mapping[str, np.ndarray]
  run: Callable
  score: Callable
  make: Callable

  def pack(self, requests, events: int, candidates: int) -> Examples:
    """A batch of those capacities."""
    return gr_requests.pack(requests, self.spec, events, candidates)

  def read(self, batch: Examples) -> dict[str, jax.Array]:
    """Rows of each read of a batch."""
    return gr_requests.read_rows(self.tables, self.model.list_reads(), batch)

  def add_up_rows(self, grads: Mapping, batch: Examples) -> dict:
    """Gradients of the rows of a batch -> those of the tables, float64."""
    total = {name: np.zeros(x.shape) for name, x in self.tables.items()}
    for name, read in self.model.list_reads().items():
      ids = gr_requests.find_ids(read, batch)
      np.add.at(total[read.table], ids, np.asarray(grads[name], np.float64))
    return total

  def oracle(self) -> gr_oracle.Oracle:
    return gr_oracle.Oracle(self.config, self.spec, *self.wide())

  def wide(self) -> tuple[dict, dict]:
    """Parameters by path and tables, float64."""
    return name_leaves(self.params, np.float64), {
      name: np.asarray(x, np.float64) for name, x in self.tables.items()
    }


def name_leaves(tree, dtype=None) -> dict[str, np.ndarray]:
  """Path of each leaf of a nested dict -> the leaf."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(x, dtype)
    for path, x in leaves
  }


def sum_losses(scores, batch: Examples, spec: RequestSpec) -> jax.Array:
  """0.2 times the sum over labels of sum(w l) / max(sum(w), 1)."""
  candidates = batch.jagged[CANDIDATES]
  weight = candidates[WEIGHT]
  user = segment_ids(candidates.lengths, weight.shape[0])
  weight = jnp.where(user < candidates.lengths.shape[0], weight, 0.0)
  total = jnp.float32(0)
  for label in spec.labels:
    y, truth = scores[label.name], candidates[label.name]
    if label.kind == 'binary':
      each = jax.nn.softplus(y) - truth * y
    else:
      each = jnp.square(y - truth)
    each = jnp.where(weight > 0, each * weight, 0.0)
    total += CAUSAL_WEIGHT * each.sum() / jnp.maximum(weight.sum(), 1.0)
  return total


def build(
  config: Config,
  spec: RequestSpec = gr_requests.SPEC,
  train: bool = False,
  options: Mapping | None = None,
) -> Model:
  """The model of a config.

  Args:
    config: of the model.
    spec: of the requests.
    train: whether it runs as in training.
    options: of the compiler.
  """
  model = STU(config, spec, nnx.Rngs(0))
  graphdef, state = nnx.split(model, nnx.Param)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda x: x + jnp.asarray(0.2 * rng.normal(size=x.shape), x.dtype),
    nnx.to_pure_dict(state),
  )

  def make(params):
    return nnx.merge(graphdef, nnx.State(jax.tree.map(nnx.Param, params)))

  compiled = functools.partial(jax.jit, compiler_options=dict(options or {}))

  def compute_loss(params, rows, batch, key):
    scores = make(params)(rows, batch, key, train)
    return sum_losses(scores, batch, spec), scores

  @compiled
  def score(params, rows, batch, key=None):
    return make(params)(rows, batch, key, train)

  @compiled
  def run(params, rows, batch, key=None):
    grad = jax.value_and_grad(compute_loss, argnums=(0, 1), has_aux=True)
    (loss, scores), grads = grad(params, rows, batch, key)
    return scores, loss, grads

  tables = gr_requests.draw_tables(model.list_reads())
  tables = jax.tree.map(jnp.asarray, tables)
  return Model(config, spec, model, params, tables, run, score, make)


def compare_gradients(
  model: Model,
  requests,
  params_grad,
  tables_grad,
  train: bool = False,
  rounds: int = 1,
) -> dict[str, float]:
  """How far each gradient is from the oracle's, in its own size.

  Along random directions, by exact derivatives of the oracle; a part of a
  gradient that is wrong shows in any of them.

  Args:
    model: whose gradients they are.
    requests: of the batch.
    params_grad: of the parameters.
    tables_grad: of the tables.
    train: as the gradients were computed.
    rounds: directions of each parameter.
  """
  params, tables = model.wide()
  found = name_leaves(params_grad, np.float64) | dict(tables_grad)
  rng = np.random.default_rng(2)
  apart = {}
  for name, grad in found.items():
    for _ in range(rounds):
      direction = rng.normal(size=grad.shape)
      expected = gr_oracle.derivative(
        model.config,
        model.spec,
        params,
        tables,
        requests,
        {name: direction},
        train,
      )
      error = abs(float((grad * direction).sum()) - expected)
      # A direction across the gradient has a product of nearly nothing.
      size = max(np.linalg.norm(grad), abs(expected), 1e-12)
      apart[name] = max(apart.get(name, 0.0), error / size)
  return apart
