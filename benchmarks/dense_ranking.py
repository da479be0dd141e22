"""A ranking task whose tables are dense, trained within a benchmark.

Weights are {'params': tree, 'tables': {name: `[rows, dim]`}}.
"""

import jax

from genrec_jax.embedding import lookup
from genrec_jax.features import Impressions
from genrec_jax.tasks.ranking import Ranking


def fresh(task: Ranking, model: jax.Array, tables: jax.Array) -> dict:
  """Weights to start from; a key for the model and one for the tables."""
  specs = task.tables().items()
  keys = jax.random.split(tables, len(specs))
  return {
    'params': task.init(model),
    'tables': {
      name: spec.init_std * jax.random.normal(key, (spec.rows, spec.dim))
      for (name, spec), key in zip(specs, keys, strict=True)
    },
  }


def gradient(task: Ranking, weights: dict, batch: Impressions) -> dict:
  """Of the loss of a batch, without dropout."""

  def loss(weights):
    return task.loss(weights['params'], _views(weights), batch, None)[0]

  return jax.grad(loss)(weights)


def logits(task: Ranking, weights: dict, batch: Impressions) -> jax.Array:
  """`[B]`, of the first label."""
  return task.predict(weights['params'], _views(weights), batch)[:, 0]


def _views(weights: dict) -> dict[str, lookup.DenseRows]:
  return {n: lookup.DenseRows(t) for n, t in weights['tables'].items()}
