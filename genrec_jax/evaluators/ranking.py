"""AUC, gAUC, log loss and their like of one part of the data."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from genrec_jax.data.ranking import batches
from genrec_jax.embedding.local import Whole
from genrec_jax.parallel import collectives
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking_metrics import Grouped, Metrics

LEAST_RATE = 1e-12  # a constant prediction keeps away from 0 and 1 by this


class Scores(NamedTuple):
  """What a model says of N examples, and what came of them; NumPy arrays.

  Attributes:
    logits: `[N, L]` float32.
    labels: `[N, L]` float32.
    weights: `[N]` float32, above 0.
    group: `[N]` int32, or None where the data has no groups.
  """

  logits: np.ndarray
  labels: np.ndarray
  weights: np.ndarray
  group: np.ndarray | None


class Evaluator:
  """Scores every example of a part.

  evaluator = Evaluator(task, dataset, part, config.eval, spread)
  metrics = dict(evaluator.run(state))
  """

  def __init__(self, task, dataset, part, config, spread=Whole()):
    """Prepares; nothing is computed yet.

    Args:
      task: a ranking task.
      dataset: whether examples have groups.
      part: the examples, see `data.ranking`.
      config: `config.eval`.
      spread: where the weights lie, one device or a mesh (`train.spread`).
    """
    if config.batch_size < 1:
      raise ValueError(
        f'eval.batch_size is {config.batch_size}, must be positive'
      )
    self._task, self._part, self._config = task, part, config
    self._grouped, self._spread = bool(dataset.group), spread

    def scores(weights, batch):
      params, rows = spread.rows(weights, task.reads(batch))
      logits = task.predict(params, rows, batch)
      return collectives.gather(
        (logits, batch.labels, batch.weights, batch.group)
      )

    self._scores = spread.jit(scores, ('split',), 'alike')

  def names(self) -> list[str]:
    """The metrics that `run` will yield."""
    fresh = Metrics(grouped=Grouped() if self._grouped else None)
    return list(
      ranking_metrics.of_labels(
        dict.fromkeys(self._task.labels, fresh.result())
      )
    )

  def run(self, state) -> Iterator[tuple[str, float]]:
    """Yields ('auc', ...), ('logloss', ...), ... of `state`."""
    yield from self.measure(self.scores(state)).items()

  def scores(self, state) -> Scores:
    """What `state` says of each example, in order."""
    weights = {'params': state.params, 'tables': state.tables}
    spread, found = self._spread, []
    for batch in self._batches(spread.eval_shards, spread.own_eval):
      # Fetched two batches late, so that the device never waits for us.
      if len(found) > 1:
        found[-2] = jax.device_get(found[-2])
      found.append(self._scores(weights, spread.on_devices(batch)))
    return self._joined(jax.device_get(found))

  def measure(self, scores: Scores) -> dict[str, float]:
    """The metrics of some examples."""
    return ranking_metrics.measure(*scores, self._task.labels)

  def constant(self, rates: Sequence[float]) -> dict[str, float]:
    """The metrics of predicting the same for all examples.

    Args:
      rates: probability of each label, its mean in the training part say.
    """
    rates = np.clip(np.asarray(rates, np.float64), LEAST_RATE, 1 - LEAST_RATE)
    logits = np.log(rates) - np.log1p(-rates)
    return self.measure(
      self._joined(
        (
          np.broadcast_to(logits, batch.labels.shape),
          batch.labels,
          batch.weights,
          batch.group,
        )
        for batch in self._batches()
      )
    )

  def _batches(self, shards: int = 1, own: range | None = None):
    size = self._config.batch_size
    return batches.eval_batches(
      self._part, batch_size=size + -size % shards, shards=shards, own=own
    )

  def _joined(self, found) -> Scores:
    """The scores of batches as one, without padding."""
    none = np.zeros((0, len(self._task.labels)), np.float32)
    columns = [[none], [none], [none[:, 0]], [np.zeros(0, np.int32)]]
    for scores in found:
      real = scores[2] > 0
      for column, values in zip(columns, scores, strict=True):
        column.append(values[real])
    scores = Scores(*map(np.concatenate, columns))
    return scores if self._grouped else scores._replace(group=None)
