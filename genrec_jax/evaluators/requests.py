"""AUC, NE, calibration and their like of the candidates of requests."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from genrec_jax import interruption
from genrec_jax.contracts import weights_of
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.features import CANDIDATES, WEIGHT, Examples
from genrec_jax.parallel import collectives
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking_metrics.intervals import label_intervals

# See `tasks.directions`.
DIRECTIONS = {
  **ranking_metrics.DIRECTIONS,
  'accuracy': 'higher',
  'mse': 'lower',
  'mae': 'lower',
}
MANY = 16  # so many candidates do not score alike by chance

Batches = Callable[[int, range | None, int], Iterable]


class CandidateScores(NamedTuple):
  """What a model says of N candidates, and what came of them; NumPy arrays.

  Attributes:
    outputs: `[N, L]` float32, a logit or a number for each label.
    labels: `[N, L]` float32.
    weights: `[N]` float32, above 0.
    group: `[N]` int32, the user's number.
    request: `[N]` int32, the request's number in its split.
  """

  outputs: np.ndarray
  labels: np.ndarray
  weights: np.ndarray
  group: np.ndarray
  request: np.ndarray


class RequestEvaluator:
  """Scores every candidate of the requests that a step is measured on.

  Attributes:
    directions: see `contracts.Evaluator`.
    intervals: 95 % intervals of metrics of the last `run`.
    undefined: the same.
    chooses: the same.
    scores_are_alike: whether the last `run` met one score alone, which a model
      does that has diverged.
  """

  directions = DIRECTIONS
  scores_are_alike = False
  undefined = {}
  intervals = {}

  def __init__(
    self,
    task,
    make_batches: Batches,
    runtime=SingleDeviceEvalRuntime(),
    *,
    is_due: Callable[[int], bool] = lambda step: True,
    swings: bool = False,
    chooses: bool = True,
    steps: np.ndarray | None = None,
  ):
    """Prepares; nothing is computed yet.

    Args:
      task: a `tasks.request_ranking.RequestRanking`.
      make_batches: (shards, own shards, step) -> batches of the requests that
        are measured at a step of the training.
      runtime: where the weights lie, one device or a mesh (see `runtime/`).
      is_due: step -> whether there is something to measure.
      swings: whether the requests are others at every step, so that metrics
        come with the number of candidates and the share of each label, of which
        metrics of all steps can be made.
      chooses: whether the split may say which step is the best.
      steps: `[R]` of the requests of the split, in a stream; None of others.
    """
    self._task, self._make_batches = task, make_batches
    self._runtime, self.is_due, self._swings = runtime, is_due, swings
    self.chooses = chooses
    self._steps = steps
    self._step = 0  # of the last `run`
    kinds = [label.kind == 'binary' for label in task.spec.labels]
    self._binary = [i for i, is_binary in enumerate(kinds) if is_binary]
    self._numbers = [i for i, is_binary in enumerate(kinds) if not is_binary]

    def score_batch(weights, batch):
      params, rows = runtime.read_rows(
        task, weights, task.reads_for('predict', batch)
      )
      return collectives.gather(tuple(task.score(params, rows, batch)))

    self._scores = runtime.jit(score_batch, ('split',), 'alike')

  def names(self) -> list[str]:
    """The metrics that `run` will yield."""
    none = np.zeros((0, len(self._task.labels)), np.float32)
    column = none.sum(axis=1)
    return list(self.measure(CandidateScores(none, none, *[column] * 3)))

  def run(self, state) -> Iterator[tuple[str, float]]:
    """Yields ('auc', ...), ('ne', ...), ... of `state`."""
    scores = self.scores(state)
    self.scores_are_alike = len(scores.outputs) >= MANY and bool(
      (scores.outputs == scores.outputs[0]).all()
    )
    values = self.measure(scores)
    labels = [self._task.labels[i] for i in self._binary]
    self.intervals = label_intervals(
      scores.outputs[:, self._binary],
      scores.labels[:, self._binary],
      scores.weights,
      labels,
      values,
    )
    yield from values.items()

  def scores(self, state) -> CandidateScores:
    """What `state` says of each candidate, in order."""
    weights, runtime, scores = weights_of(state), self._runtime, []
    self._step = int(state.step)
    made = self._make_batches(
      runtime.eval_shards, runtime.local_eval_shards, self._step
    )
    for batch in interruption.each(made):
      # Fetched two batches late, so that the device never waits for us.
      if len(scores) > 1:
        scores[-2] = jax.device_get(scores[-2])
      scores.append(self._scores(weights, runtime.put_on_devices(batch)))
    return join_scores(jax.device_get(scores), len(self._task.labels))

  def details(self, state, report, seed: int) -> dict:
    """What the page of a report shows of `state`, as JSON can say it.

    Args:
      state: the weights.
      report: `config.report`.
      seed: of the run; nothing is drawn here.

    Returns:
      'examples': how many candidates there are; 'unit': what they are called;
      'labels': of the binary ones, see `ranking_metrics.describe_labels`;
      'steps', of a stream: [{'step', metric: value, ...}, ...], the metrics of
        each step, those that the next one is measured by.
    """
    del seed
    scores = self.scores(state)
    labels = ranking_metrics.describe_labels(
      scores.outputs[:, self._binary],
      scores.labels[:, self._binary],
      scores.weights,
      [self._task.labels[i] for i in self._binary],
      bins=report.bins,
    )
    page = {
      'examples': len(scores.weights), 'unit': 'candidates', 'labels': labels
    }  # fmt: skip
    if self._steps is not None:
      step = self._steps[scores.request]
      page['steps'] = []
      for number in np.unique(step).tolist():
        some = CandidateScores(*(column[step == number] for column in scores))
        page['steps'].append(
          {'step': number, **self.measure(some), **self.measure_swing(some)}
        )
    return page

  def measure_swing(self, scores: CandidateScores) -> dict[str, float]:
    """Number of the candidates, and share of each label among them."""
    weights = scores.weights.astype(np.float64)
    total = float(weights.sum())
    values = {'candidates': total}
    for i in self._binary:
      suffix = f'/{self._task.labels[i]}' if len(self._binary) > 1 else ''
      rate = weights @ scores.labels[:, i].astype(np.float64)
      values[f'rate{suffix}'] = float(rate / total) if total else np.nan
    return values

  def measure(self, scores: CandidateScores) -> dict[str, float]:
    """The metrics of some candidates."""
    weights = scores.weights.astype(np.float64)
    total = weights.sum()
    values = {}
    if self._binary:
      values |= ranking_metrics.measure_labels(
        scores.outputs[:, self._binary],
        scores.labels[:, self._binary],
        scores.weights,
        scores.group,
        [self._task.labels[i] for i in self._binary],
      )
      values |= ranking_metrics.of_labels(
        {
          self._task.labels[i]: {
            'accuracy': _measure_accuracy(
              scores.outputs[:, i], scores.labels[:, i], weights
            )
          }
          for i in self._binary
        }
      )
    for i in self._numbers:
      error = (scores.outputs[:, i] - scores.labels[:, i]).astype(np.float64)
      suffix = f'/{self._task.labels[i]}'
      for name, each in (('mse', error**2), ('mae', np.abs(error))):
        mean = float(weights @ each / total) if total else np.nan
        values[name + suffix] = mean
    return values | (self.measure_swing(scores) if self._swings else {})

  def constant(self, outputs_of: Callable[[Examples], np.ndarray]):
    """The metrics of outputs that need no model.

    Args:
      outputs_of: a batch of one shard -> `[K, L]` for its candidates.
    """
    scores = []
    for batch in self._make_batches(1, None, self._step):
      candidates = batch.jagged[CANDIDATES]
      count = len(candidates.columns.values)
      number = np.repeat(np.arange(len(candidates.lengths)), candidates.lengths)
      group, request = (np.full(count, -1, np.int32) for _ in range(2))
      group[: len(number)] = batch.group[number]
      request[: len(number)] = batch.row[number]
      weights = np.where(np.arange(count) < len(number), candidates[WEIGHT], 0)
      labels = candidates.floats.select(self._task.labels)
      scores.append((outputs_of(batch), labels, weights, group, request))
    return self.measure(join_scores(scores, len(self._task.labels)))


def _measure_accuracy(logits, labels, weights) -> float:
  """Share of the labels on whose side of one half the prediction is."""
  total = weights.sum()
  return (
    float(weights @ ((logits >= 0) == (labels > 0.5)) / total)
    if total
    else np.nan
  )


def join_scores(batch_scores, labels: int) -> CandidateScores:
  """The scores of batches as one, without padding.

  Args:
    batch_scores: `tasks.request_ranking.Scored` of NumPy arrays.
    labels: L.
  """
  none = np.zeros((0, labels), np.float32)
  columns = [[none], [none], [none[:, :0].sum(axis=1)]]
  columns += [[np.zeros(0, np.int32)], [np.zeros(0, np.int32)]]
  for scores in batch_scores:
    real = scores[2] > 0
    for column, values in zip(columns, scores, strict=True):
      column.append(values[real])
  return CandidateScores(*map(np.concatenate, columns))
