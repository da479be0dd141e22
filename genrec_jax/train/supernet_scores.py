"""What a supernet says of single architectures: their log loss in it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.contracts import EvalRuntime, weights_of
from genrec_jax.data.ranking.batches import eval_batches
from genrec_jax.data.ranking.store import SplitStore
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.parallel import collectives
from genrec_jax.search.architecture import Architecture
from genrec_jax.search.super_ranking import SuperRanking
from genrec_jax.serve.weights import Weights
from genrec_jax.tasks import losses


def score_architectures(
  task: SuperRanking,
  weights: Weights,
  split: SplitStore,
  batch_size: int,
  architectures: Sequence[Architecture],
  runtime: EvalRuntime | None = None,
) -> np.ndarray:
  """Log loss `[architectures]`, each with the supernet's own weights.

  Args:
    task: the supernet.
    weights: of its run.
    split: examples that count.
    batch_size: of them.
    architectures: models of its space.
    runtime: where the weights lie; None is one device.
  """
  runtime = runtime or SingleDeviceEvalRuntime.of(None)
  options = [
    task.space.to_weights(task.space.describe(architecture))
    for architecture in architectures
  ]
  options = jax.tree.map(lambda *own: jnp.asarray(np.stack(own)), *options)

  def sum_losses(weights, batch, options):
    reads = task.reads_for('predict', batch)
    params, rows = runtime.read_rows(task, weights, reads)
    model, inputs = task.merge_model(params), task.inputs(rows, batch)
    labels = batch.labels.select(task.labels)

    def score(own):
      own = {name: weight[None] for name, weight in own.items()}
      logits = task.add_prior(model.mix(inputs, own))
      return task.sum_losses(losses.logistic_loss(logits, labels), batch)

    # One after the other: side by side they would take the memory of all.
    total = jax.lax.map(score, options)
    return collectives.sum_over_shards((total, jnp.sum(batch.weights)))

  compiled = runtime.jit(sum_losses, ('split', 'alike'), 'alike')
  shards, known = runtime.eval_shards, weights_of(weights)
  total, count = 0.0, 0.0
  for batch in eval_batches(
    split,
    batch_size=batch_size + -batch_size % shards,
    shards=shards,
    own=runtime.local_eval_shards,
  ):
    found = compiled(known, runtime.put_on_devices(batch), options)
    own, weight = jax.device_get(found)
    total, count = total + np.asarray(own, np.float64), count + float(weight)
  return total / count
