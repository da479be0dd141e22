"""Notices a run that has diverged although all of its numbers are finite.

Weights that explode need not make a NaN: rows that are scaled to length one are
zeros once their norms overflow, all items score alike, and the loss is the same
finite number for ever. Such a run goes on, so that it can be looked at, but as
long as it shows a sign of it, none of its steps is published or becomes the
best. A sign that goes away again was a spike or a slow start.

Log lines cost nothing more than what the step measures anyway; the weights are
looked at before an evaluation and a publication, which read them too.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from genrec_jax.contracts import weights_of
from genrec_jax.parallel import rules
from genrec_jax.runtime.state import flatten_state

LOG = logging.getLogger('genrec_jax')

LINES = 3  # of the log, one after the other, in which something must be so
EQUAL_LINES = 5  # with the very same loss
RISE = 100.0  # times the loss of the first step
LEAST_FIRST = 0.1  # of good weights a first loss may be next to nothing
NORM_RISE = 1e6  # times the norm of the first step, or times 1
NO_NORM = 1e-20  # far below what rounding leaves of a gradient that vanishes
# Gains are parts of the first loss.
GAIN = 0.1  # a run that has reached more does not start any longer
SLIGHT_GAIN = 0.02  # the same, if the gradient has become a tenth
WHOLE_GAIN = 0.9  # what is left need not have a gradient
HUGE = 1e18  # of a weight; the square of a norm overflows soon above it
MOST = 1e38  # what a sum beyond float32 counts as; JSON has no infinity
REMEDY = (
  'Use a lower optimizer.learning_rate or set optimizer.clip_norm, and another '
  '--workdir'
)


class Health:
  """What is known of a run; a checkpoint keeps `values`.

  >>> health = Health()
  >>> for step in (10, 20, 30, 40):
  ...   health.observe_line(step, {'loss': 2.8, 'grad_norm': 0.0})
  >>> health.diverged['step'], health.diverged['why'][:32]
  (30, 'the gradient was 0 from step 10 ')

  Attributes:
    values: what JSON can hold of it.
  """

  def __init__(self, values: dict | None = None):
    fresh = dict.fromkeys(('first_loss', 'first_norm', 'diverged'))
    self.values = {**fresh, 'lines': [], **(values or {})}
    # Earlier versions kept one sign alone, and did not say which.
    diverged = self.values['diverged']
    self.values.setdefault('signs', {'lines': diverged} if diverged else {})
    self._largest = None

  @property
  def diverged(self) -> dict | None:
    """{'step', 'why'} of a run that has diverged."""
    return self.values['diverged']

  def observe_first(self, state) -> None:
    """Takes the first step for the measure of the others."""
    self._set_first(*_read_sums(state))

  def observe_line(self, step: int, measured: Mapping[str, float]) -> None:
    """Looks at what a log line says of the steps since the one before."""
    loss, norm = (min(float(measured[n]), MOST) for n in ('loss', 'grad_norm'))
    if not math.isfinite(loss + norm):  # the loop looks for NaN
      return
    self._set_first(loss, norm)
    lines = [*self.values['lines'], [step, loss, norm]][-EQUAL_LINES:]
    self.values['lines'] = lines
    latest = lines[-LINES:]
    since = latest[0][0]
    self._judge_lines(
      'gradient',
      step,
      [
        norm <= NO_NORM and loss != 0 and self._gain(loss) <= WHOLE_GAIN
        for _, loss, norm in latest
      ],
      LINES,
      f'the gradient was 0 from step {since} on, at a loss of {loss:.4g}, so '
      'that no weight moves',
    )
    self._judge_lines(
      'lines',
      step,
      [self._has_exploded(*line[1:]) for line in latest],
      LINES,
      self._describe_explosion(since, loss, norm),
    )
    # Full batches whose loss has come down to its least do not move either.
    self._judge_lines(
      'equal',
      step,
      [
        before[1] == line[1] != 0 and not self._has_learned(*line[1:])
        for before, line in itertools.pairwise(lines)
      ],
      EQUAL_LINES - 1,
      f'the loss was the same to the last bit from step {lines[0][0]} on: '
      f'{loss!r}',
    )

  def observe_state(self, step: int, state) -> None:
    """Looks for weights that have exploded, and at the latest loss.

    What is measured or published next must not wait for more lines.
    """
    loss, norm = _read_sums(state)
    if math.isnan(loss) and self.values['lines']:  # a line was just written
      loss, norm = self.values['lines'][-1][1:]
    if self._has_exploded(loss, norm):
      self._set_sign('lines', step, self._describe_explosion(step, loss, norm))
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
    largest = jax.device_get(self._largest(arrays))
    huge = [
      f'{n} holds a weight of {x:.3g}'
      for n, x in largest.items()
      if not float(x) <= HUGE
    ]
    self._set_sign('weights', step, huge[0] if huge else '')

  def observe_scores(self, step: int, split: str, evaluator) -> None:
    """Looks whether an evaluator has met one score alone."""
    alike = getattr(evaluator, 'scores_are_alike', False)
    why = f'all examples of the {split} split score alike' if alike else ''
    if why:
      why += '; either the weights are lost, or its features do not vary'
    if split == 'valid':
      self._set_sign(f'scores of {split}', step, why)
    elif why:  # the test split decides nothing
      LOG.warning('Step %d: %s.', step, why)

  def _set_first(self, loss: float, norm: float) -> None:
    for name, value in (('first_loss', loss), ('first_norm', norm)):
      if self.values[name] is None and math.isfinite(value):
        self.values[name] = value

  def _gain(self, loss: float) -> float:
    first = self.values['first_loss']
    return (first - loss) / (abs(first) or 1.0)

  def _has_learned(self, loss: float, norm: float) -> bool:
    calm = norm < 0.1 * self.values['first_norm']
    return self._gain(loss) > (SLIGHT_GAIN if calm else GAIN)

  def _has_exploded(self, loss: float, norm: float) -> bool:
    first, first_norm = self.values['first_loss'], self.values['first_norm']
    if first is None or first_norm is None:
      return False
    return (first > 0 and loss > RISE * max(first, LEAST_FIRST)) or (
      # Clipped gradients may be steep; what they reach counts.
      norm > NORM_RISE * max(first_norm, 1.0) and self._gain(loss) <= GAIN
    )

  def _describe_explosion(self, since: int, loss: float, norm: float) -> str:
    return (
      f'from step {since} on the loss was {loss:.4g} and the norm of the '
      f'gradient {norm:.4g}, at first {self.values["first_loss"]:.4g} and '
      f'{self.values["first_norm"]:.4g}'
    )

  def _judge_lines(
    self, sign: str, step: int, shows: Sequence[bool], many: int, why: str
  ) -> None:
    """A sign is there once all lines show it, until none does."""
    if len(shows) >= many and all(shows):
      self._set_sign(sign, step, why)
    elif not any(shows):
      self._set_sign(sign, step, '')

  def _set_sign(self, sign: str, step: int, why: str) -> None:
    signs, before = self.values['signs'], self.diverged
    if why:
      signs.setdefault(sign, {'step': step, 'why': why})
    else:
      signs.pop(sign, None)
    first = min(signs.values(), key=lambda s: s['step'], default=None)
    self.values['diverged'] = first
    if first and not before:
      LOG.warning('%s', describe_divergence(first))
    elif before and not first:
      LOG.warning(
        'This run recovered at step %d. It had diverged at step %d: %s. Its '
        'steps can be published and become the best again.',
        step,
        before['step'],
        before['why'],
      )


def _read_sums(state) -> tuple[float, float]:
  """Loss and norm since the last log line; NaN directly behind it."""
  pairs = jax.device_get([state.metric_sums[n] for n in ('loss', 'grad_norm')])
  return tuple(
    min(float(total) / float(weight), MOST) if weight else math.nan
    for total, weight in pairs
  )


def describe_divergence(diverged: Mapping) -> str:
  """A sentence for the log and the report."""
  return (
    f'This run diverged at step {diverged["step"]}: {diverged["why"]}. Unless '
    'it recovers, no step from there on is published or becomes the best, '
    f'whatever its metrics are. {REMEDY}.'
  )
