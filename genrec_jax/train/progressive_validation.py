"""Predict, then train: each batch is scored before a step learns from it.

In one pass over a log this measures what counts in production: how well the
present model ranks the examples that come next. No examples are held out.
"""

import collections

import jax

from genrec_jax.config import ConfigError
from genrec_jax.contracts import weights_of
from genrec_jax.evaluators.progressive import Progressive
from genrec_jax.parallel import collectives

KINDS = ('none', 'window', 'lifetime')
AHEAD = 2  # batches whose scores are not waited for


class NoProgressiveValidation:
  """The same calls, for runs that do not ask for it."""

  def observe(self, state, batch) -> None:
    """Scores a batch with the state that will learn from it."""

  def metrics(self) -> dict[str, float]:
    """Metrics since the last call, and since the start; by name."""
    return {}

  def state(self):
    """What a checkpoint keeps."""
    return None

  def restore(self, state) -> None:
    """Continues from such a state."""


class ProgressiveValidation:
  """Scores each batch first; the calls of `NoProgressiveValidation`."""

  def __init__(self, task, runtime, *, lifetime: bool, grouped: bool):
    self._progressive = Progressive(task.labels, lifetime=lifetime)
    self._waiting = collections.deque()

    def score_batch(weights, batch):
      params, rows = runtime.read_rows(
        task, weights, task.reads_for('predict', batch)
      )
      logits = task.predict(params, rows, batch)
      columns = [logits, batch.labels.select(task.labels), batch.weights]
      return collectives.gather([*columns, batch.group] if grouped else columns)

    self._scores = runtime.jit(score_batch, ('split',), 'alike')

  def observe(self, state, batch) -> None:
    self._waiting.append(self._scores(weights_of(state), batch))
    self._collect_scores(AHEAD)

  def metrics(self) -> dict[str, float]:
    self._collect_scores(0)
    return self._progressive.metrics()

  def state(self):
    self._collect_scores(0)
    return self._progressive.state()

  def restore(self, state) -> None:
    if state is not None:
      self._progressive.restore(state)

  def _collect_scores(self, ahead: int) -> None:
    while len(self._waiting) > ahead:
      self._progressive.update(*jax.device_get(self._waiting.popleft()))


def build_progressive_validation(
  config, task, runtime
) -> NoProgressiveValidation | ProgressiveValidation:
  """What `config.eval.progressive` asks for."""
  kind = config.eval.get('progressive', 'none')
  if kind not in KINDS:
    raise ConfigError(
      f'eval.progressive is {kind!r}, must be one of {", ".join(KINDS)}'
    )
  if kind == 'none':
    return NoProgressiveValidation()
  p = config.parallel
  if p.pipeline != 'none' or p.microbatches != 1 or p.determinism != 'per_mesh':
    raise ConfigError(
      'eval.progressive scores a batch as a whole, before its step: it needs '
      "parallel.pipeline='none', parallel.microbatches=1 and "
      "parallel.determinism='per_mesh'"
    )
  return ProgressiveValidation(
    task,
    runtime,
    lifetime=kind == 'lifetime',
    grouped=bool(config.data.group),
  )
