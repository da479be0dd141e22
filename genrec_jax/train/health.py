"""Notices a run that has diverged although all of its numbers are finite.

Weights that explode need not make a NaN: rows that are scaled to length one are
zeros once their norms overflow, all items score alike, and the loss is the same
finite number for ever. Such a run goes on, so that it can be looked at, but
from then on none of its steps is published or becomes the best.

Log lines cost nothing more than what the step measures anyway; the weights are
looked at before an evaluation and a publication, which read them too.
"""

import logging
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from genrec_jax.contracts import weights_of
from genrec_jax.parallel import rules
from genrec_jax.runtime.state import flatten_state

LOG = logging.getLogger('genrec_jax')

LINES = 3  # of the log, one after the other, in which something must be so
EQUAL_LINES = 5  # with the very same loss
RISE = 1e3  # times the first loss
LEAST_FIRST = 0.01  # of good weights a first loss may be next to nothing
GAIN = 0.02  # of the first loss; a run that has reached more stands at its end
HUGE = 1e18  # of a weight; the square of a norm overflows soon above it
REMEDY = (
  'Use a lower optimizer.learning_rate or set optimizer.clip_norm, and another '
  '--workdir'
)


class Health:
  """What is known of a run; a checkpoint keeps `values`.

  >>> health = Health()
  >>> for step in (10, 20, 30, 40):
  ...   health.observe_line(step, {'loss': 2.8, 'grad_norm': 0.0})
  >>> health.diverged['step'], health.diverged['why'][:39]
  (30, 'the gradient was exactly 0 from step 10')

  Attributes:
    values: what JSON can hold of it.
  """

  def __init__(self, values: dict | None = None):
    self.values = values or {'first_loss': None, 'lines': [], 'diverged': None}
    self._largest = None

  @property
  def diverged(self) -> dict | None:
    """{'step', 'why'} of a run that has diverged."""
    return self.values['diverged']

  def observe_line(self, step: int, measured: Mapping[str, float]) -> None:
    """Looks at what a log line says of the steps since the one before."""
    loss, norm = float(measured['loss']), float(measured['grad_norm'])
    if self.diverged or not math.isfinite(loss):  # the loop looks for NaN
      return
    if self.values['first_loss'] is None:
      self.values['first_loss'] = loss
    lines = [*self.values['lines'], [step, loss, norm]][-EQUAL_LINES:]
    self.values['lines'] = lines
    first, latest = self.values['first_loss'], lines[-LINES:]
    if len(latest) == LINES:
      since = latest[0][0]
      if all(norm == 0 and loss != 0 for _, loss, norm in latest):
        self._declare(
          step,
          f'the gradient was exactly 0 from step {since} on, at a loss of '
          f'{loss:.4g}, so that no weight moves',
        )
      elif first > 0 and all(
        loss > RISE * max(first, LEAST_FIRST) for _, loss, _ in latest
      ):
        self._declare(
          step,
          f'the loss was above {RISE:,.0f} times its first value, '
          f'{first:.4g}, from step {since} on: {loss:.4g}',
        )
    # Full batches whose loss has come down to its least do not move either.
    learned = first - loss > GAIN * abs(first)
    alike = loss and not learned and all(line[1] == loss for line in lines)
    if alike and len(lines) == EQUAL_LINES:
      self._declare(
        step,
        f'the loss was the same to the last bit from step {lines[0][0]} on: '
        f'{loss!r}',
      )

  def observe_weights(self, step: int, state) -> None:
    """Looks for weights that have exploded."""
    if self.diverged:
      return
    if self._largest is None:
      self._largest = jax.jit(
        lambda arrays: {n: jnp.max(jnp.abs(x)) for n, x in arrays.items()},
        out_shardings=state.lr_scale.sharding,
      )
    arrays = {
      name: x
      for name, x in flatten_state(weights_of(state)).items()
      if name.startswith(('params/', 'tables/'))
      and jnp.issubdtype(x.dtype, jnp.floating)
      and x.size
      # Variances of inputs may be large; they move by themselves.
      and not rules.is_statistic(name)
    }
    for name, largest in jax.device_get(self._largest(arrays)).items():
      if not (largest := float(largest)) <= HUGE:
        self._declare(step, f'{name} holds a weight of {largest:.3g}')

  def observe_scores(self, step: int, split: str, evaluator) -> None:
    """Looks whether an evaluator has met one score alone."""
    if getattr(evaluator, 'scores_are_alike', False):
      self._declare(step, f'all examples of the {split} split score alike')

  def _declare(self, step: int, why: str) -> None:
    if not self.diverged:
      self.values['diverged'] = {'step': step, 'why': why}
      LOG.warning('%s', describe_divergence(self.diverged))


def describe_divergence(diverged: Mapping) -> str:
  """A sentence for the log and the report."""
  return (
    f'This run diverged at step {diverged["step"]}: {diverged["why"]}. From '
    'there on no step is published or becomes the best, whatever its metrics '
    f'are. {REMEDY}.'
  )
