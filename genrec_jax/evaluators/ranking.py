"""AUC, gAUC, log loss and their like of one split of the data."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from genrec_jax import interruption
from genrec_jax.contracts import weights_of
from genrec_jax.data import pipeline
from genrec_jax.data.ranking import batches as batches_lib
from genrec_jax.data.ranking import collation
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.evaluators import importance
from genrec_jax.parallel import collectives
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking_metrics import GroupedAuc, LabelMetrics
from genrec_jax.tasks.ranking_metrics.intervals import label_intervals

# So many examples do not score alike by chance.
MANY = 16
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


class RankingEvaluator:
  """Scores every example of a split.

  evaluator = RankingEvaluator(task, dataset, split, config.eval, runtime)
  metrics = dict(evaluator.run(state))

  Attributes:
    directions: see `contracts.Evaluator`.
    intervals: 95 % intervals of metrics of the last `run`.
    undefined: the same.
    scores_are_alike: whether the last `run` met one score alone, which a model
      does that has diverged.
  """

  directions = ranking_metrics.DIRECTIONS
  scores_are_alike = False
  intervals = {}

  def __init__(
    self, task, dataset, split, config, runtime=SingleDeviceEvalRuntime()
  ):
    """Prepares; nothing is computed yet.

    Args:
      task: a ranking task.
      dataset: of the split, whose `annotations` say which negatives training
        has not seen; None if it has seen all.
      split: the examples, see `data.ranking`.
      config: `config.eval`.
      runtime: where the weights lie, one device or a mesh (see `runtime/`).
    """
    if config.batch_size < 1:
      raise ValueError(
        f'eval.batch_size is {config.batch_size}, must be positive'
      )
    # The rows of training lack the negatives that the model has not seen.
    corrected = dataset is not None and split.name != 'train'
    self._correction = correction = (
      dataset.annotations.logit_correction if corrected else 0.0
    )
    self._task, self._split, self._config = task, split, config
    self._runtime = runtime
    self.undefined = find_undefined(split, task.labels)
    self._grouped = split.blocks > 0 and split.block(0).group is not None

    def score_batch(weights, batch):
      params, rows = runtime.read_rows(
        task, weights, task.reads_for('predict', batch)
      )
      logits = task.predict(params, rows, batch)
      return collectives.gather(
        (
          logits + correction if correction else logits,
          batch.labels.select(task.labels),
          batch.weights,
          batch.group,
        )
      )

    self._scores = runtime.jit(score_batch, ('split',), 'alike')

  def names(self) -> list[str]:
    """The metrics that `run` will yield."""
    fresh = LabelMetrics(grouped=GroupedAuc() if self._grouped else None)
    return list(
      ranking_metrics.of_labels(
        dict.fromkeys(self._task.labels, fresh.result())
      )
    )

  def run(self, state) -> Iterator[tuple[str, float]]:
    """Yields ('auc', ...), ('logloss', ...), ... of `state`."""
    scores = self.scores(state)
    logits = scores.logits
    self.scores_are_alike = len(logits) >= MANY and (logits == logits[0]).all()
    values = self.measure(scores)
    self.intervals = label_intervals(*scores[:3], self._task.labels, values)
    yield from values.items()

  def scores(self, state) -> Scores:
    """What `state` says of each example, in order."""
    runtime = self._runtime
    return self._scores_of(
      state, self._make_batches(runtime.eval_shards, runtime.local_eval_shards)
    )

  def measure(self, scores: Scores) -> dict[str, float]:
    """The metrics of some examples."""
    return ranking_metrics.measure_labels(*scores, self._task.labels)

  def constant(self, rates: Sequence[float]) -> dict[str, float]:
    """The metrics of predicting the same for all examples.

    Args:
      rates: probability of each label, its mean in the training split say;
        corrected as those of the model are.
    """
    rates = np.clip(np.asarray(rates, np.float64), LEAST_RATE, 1 - LEAST_RATE)
    logits = np.log(rates) - np.log1p(-rates) + self._correction
    return self.measure(
      self._join_scores(
        (
          np.broadcast_to(logits, batch.labels.values.shape),
          batch.labels.select(self._task.labels),
          batch.weights,
          batch.group,
        )
        for batch in self._make_batches()
      )
    )

  def details(self, state, report, seed: int) -> dict:
    """What the page of a report shows of `state`, as JSON can say it.

    Args:
      state: the weights.
      report: `config.report`.
      seed: of the permutations.

    Returns:
      'examples': how many there are;
      'labels': as `ranking_metrics.describe_labels` gives them;
      'importance', unless `report.importance_rows` is 0: {'examples',
        'repeats', 'features': of `importance.permutation_importance`}.
    """
    logits, labels, weights, _ = self.scores(state)
    described = ranking_metrics.describe_labels(
      logits, labels, weights, self._task.labels, bins=report.bins
    )
    page = {'examples': len(weights), 'labels': described}
    if report.importance_rows and len(weights):
      rows = importance.sample_rows(self._split, report.importance_rows, seed)
      page['importance'] = {
        'examples': len(rows),
        'repeats': report.importance_repeats,
        'features': importance.permutation_importance(
          lambda rows: self.measure(
            self._scores_of(state, self._cut_batches(rows))
          ),
          rows,
          self._task.features,
          repeats=report.importance_repeats,
          seed=seed,
        ),
      }
    return page

  def _scores_of(self, state, batches) -> Scores:
    weights = weights_of(state)
    scores = []
    for batch in interruption.each(batches):
      # Fetched two batches late, so that the device never waits for us.
      if len(scores) > 1:
        scores[-2] = jax.device_get(scores[-2])
      scores.append(self._scores(weights, self._runtime.put_on_devices(batch)))
    return self._join_scores(jax.device_get(scores))

  def _cut_batches(self, rows):
    """Batches of rows at hand, of one shape in whatever order they are."""
    shards = self._runtime.eval_shards
    size = self._config.batch_size
    size += -size % shards
    lists = collation.list_lengths(rows, self._split.names)
    capacities = {
      name: pipeline.capacity_for(
        int(np.sort(lengths)[-(size // shards) :].sum())
      )
      for name, lengths in lists.items()
    }
    for a in range(0, len(rows), size):
      yield collation.collate_rows(
        rows.slice_rows(a, min(a + size, len(rows))),
        self._split.names,
        batch_size=size,
        shards=shards,
        own=self._runtime.local_eval_shards,
        capacities=capacities,
      )

  def _make_batches(self, shards: int = 1, own: range | None = None):
    size = self._config.batch_size
    return batches_lib.eval_batches(
      self._split, batch_size=size + -size % shards, shards=shards, own=own
    )

  def _join_scores(self, batch_scores) -> Scores:
    """The scores of batches as one, without padding."""
    none = np.zeros((0, len(self._task.labels)), np.float32)
    columns = [[none], [none], [none[:, 0]], [np.zeros(0, np.int32)]]
    for scores in batch_scores:
      real = scores[2] > 0
      for column, values in zip(columns, scores, strict=True):
        column.append(values[real])
    scores = Scores(*map(np.concatenate, columns))
    return scores if self._grouped else scores._replace(group=None)


def find_undefined(split, labels: Sequence[str]) -> dict[str, str]:
  """Metric -> why it has no value on a split, whatever a model predicts.

  Reads blocks until both classes of each label, and a group that holds both,
  have been met, which most often is the first block.

  Args:
    split: examples, see `data.ranking`.
    labels: names of the labels.
  """
  count, grouped = len(labels), False
  # Bit 1 is of positive examples, bit 2 of negative ones.
  classes = np.zeros(count, np.uint8)
  classes_of_group = np.zeros((0, count), np.uint8)
  mixed = np.zeros(count, bool)  # whether some group holds both
  for number in range(split.blocks):
    rows = split.block(number)
    if rows.weight is not None:
      rows = rows.take(np.flatnonzero(rows.weight > 0))
    values = rows.labels[:, :count]
    bits = (values > 0).astype(np.uint8) + 2 * (values < 1).astype(np.uint8)
    classes |= np.bitwise_or.reduce(bits, axis=0)
    grouped = rows.group is not None
    if grouped and not mixed.all():
      real = rows.group >= 0
      group = rows.group[real]
      more = 1 + int(group.max(initial=-1)) - len(classes_of_group)
      classes_of_group = np.pad(classes_of_group, ((0, max(0, more)), (0, 0)))
      np.bitwise_or.at(classes_of_group, group, bits[real])
      mixed |= (classes_of_group == 3).any(axis=0)
    if (classes == 3).all() and (mixed.all() or not grouped):
      return {}
  reasons = {}  # label -> metric -> why
  for i, label in enumerate(labels):
    here = reasons[label] = {}
    if classes[i] in (1, 2):
      why = (
        f'label {label!r} is {classes[i] % 2} in all {len(split):,} examples '
        f'of the {split.name} split'
      )
      here |= dict.fromkeys(['auc', *['gauc'] * grouped, 'ne'], why)
      if classes[i] == 2:
        here['calibration'] = why
    elif grouped and not mixed[i]:
      here['gauc'] = (
        f'no group (data.group) of the {split.name} split holds examples of '
        f'both values of label {label!r}'
      )
  if count == 1:
    return dict(*reasons.values())
  named = {
    f'{metric}/{label}': why
    for label, of in reasons.items()
    for metric, why in of.items()
  }
  for metric in ranking_metrics.NAMES:
    each = [of[metric] for of in reasons.values() if metric in of]
    if len(each) == count:  # the mean is that of the labels that have one
      named[metric] = '; '.join(each)
  return named
