"""A ranking task whose tables are dense, trained within a benchmark.

Weights are {'params': tree, 'tables': {name: `[rows, dim]`}}.
"""

import jax
import jax.numpy as jnp

from genrec_jax.embedding import lookup
from genrec_jax.features import Examples
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


def gradient(task: Ranking, weights: dict, batch: Examples) -> dict:
  """Of the loss of a batch, without dropout."""

  def loss(weights):
    rows = _view_reads(task, weights, batch)
    total, count = task.loss(weights['params'], rows, batch, None)['loss']
    return total / jnp.maximum(count, 1.0)

  return jax.grad(loss)(weights)


def logits(task: Ranking, weights: dict, batch: Examples) -> jax.Array:
  """`[B]`, of the first label."""
  rows = _view_reads(task, weights, batch)
  return task.predict(weights['params'], rows, batch)[:, 0]


def _view_reads(task: Ranking, weights: dict, batch: Examples):
  return lookup.view_tables(weights['tables'], task.reads(batch))
