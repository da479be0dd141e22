"""Predict, then train: each batch is scored before a step learns from it.

In one pass over a log this measures what counts in production: how well the
present model ranks the examples that come next. No examples are held out.

In a second pass the model has learned from every example before, so that only
the first one is measured: behind its last step there are no such metrics.
"""

import collections
import logging

import jax

from genrec_jax.config import ConfigError
from genrec_jax.contracts import weights_of
from genrec_jax.evaluators.progressive import Progressive
from genrec_jax.parallel import collectives

LOG = logging.getLogger('genrec_jax')
KINDS = ('none', 'window', 'lifetime')
AHEAD = 2  # batches whose scores are not waited for


class NoProgressiveValidation:
  """The same calls, for runs that do not ask for it."""

  def observe(self, step: int, state, batch) -> None:
    """Scores a batch with the state of `step`, which will learn from it."""

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

  def __init__(
    self, task, runtime, epoch: int, *, lifetime: bool, grouped: bool
  ):
    self._epoch = epoch  # its steps
    self._progressive = Progressive(task.binary_labels, lifetime=lifetime)
    self._waiting = collections.deque()

    def score_batch(weights, batch):
      params, rows = runtime.read_rows(
        task, weights, task.reads_for('predict', batch)
      )
      columns = task.score_labels(params, rows, batch)
      return collectives.gather(columns if grouped else columns[:3])

    self._scores = runtime.jit(score_batch, ('split',), 'alike')

  def observe(self, step: int, state, batch) -> None:
    if step >= self._epoch:
      return
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


def check_settings(config) -> None:
  """Refuses what cannot score a batch before its step.

  Args:
    config: of the run.
  """
  kind = config.eval.get('progressive', 'none')
  if kind not in KINDS:
    raise ConfigError(
      f'eval.progressive is {kind!r}, must be one of {", ".join(KINDS)}'
    )
  p = config.parallel
  if kind != 'none' and (
    p.pipeline != 'none' or p.microbatches != 1 or p.determinism != 'per_mesh'
  ):
    raise ConfigError(
      f'eval.progressive={kind} scores a batch as a whole, before its step: it '
      "needs parallel.pipeline='none', parallel.microbatches=1 and "
      "parallel.determinism='per_mesh'"
    )


def build_progressive_validation(
  config, task, runtime, epoch: int, total_steps: int
) -> NoProgressiveValidation | ProgressiveValidation:
  """What `config.eval.progressive` asks for.

  Args:
    config: of the run.
    task: scores the batches.
    runtime: of the run.
    epoch: steps of a pass over the data.
    total_steps: of the run.
  """
  check_settings(config)
  kind = config.eval.get('progressive', 'none')
  if kind == 'none':
    return NoProgressiveValidation()
  if total_steps > epoch:
    LOG.warning(
      'eval.progressive=%s measures the first of %.3g passes over the data, %d '
      'steps: in later ones the model has learned from every example before. '
      'train.epochs=1 ends with it.',
      kind,
      total_steps / epoch,
      epoch,
    )
  return ProgressiveValidation(
    task,
    runtime,
    epoch,
    lifetime=kind == 'lifetime',
    grouped=bool(config.data.get('group', 'user')),
  )
