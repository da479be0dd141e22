"""Ranking models that learn a teacher's scores beside the labels.

The scores are extra columns of the examples, probabilities; where an example
has none, its weight is 0 and the terms of the teacher are missing. What is
minimised is in heads.py.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.distill import heads as heads_lib
from genrec_jax.distill.heads import DistillSettings
from genrec_jax.features import Examples
from genrec_jax.tasks.ranking import Ranking

HEADS, ADAPTER = 'distill', 'adapter'


class DistilledRanking(Ranking):
  """`Ranking` with a teacher.

  Attributes:
    teacher: settings of the distillation.
    aux_losses: that of the adapter, see `runtime.aux_steps`.
  """

  def __init__(
    self, *args, teacher: DistillSettings, kept: float = 1.0, **options
  ):
    """Checks that the parts fit together.

    Args:
      *args: of `Ranking`.
      teacher: the section `distill`.
      kept: share of the negatives that is trained on, `data.negatives_kept`.
      **options: of `Ranking`.
    """
    self.teacher, self._kept = teacher, kept
    super().__init__(*args, **options)
    self._scores = teacher.name_scores(self.labels)
    measured = ['loss', 'loss/serving', 'loss/teacher']
    measured += ['teacher/annotated', 'teacher/score', 'teacher/learned']
    self.aux_losses = {}
    if teacher.method == 'adapter':
      self.aux_losses = {ADAPTER: self._measure_adapter}
      measured += [f'loss/{ADAPTER}', 'loss/adapted', 'teacher/adapted']
    self.measurements = dict.fromkeys(measured, 'mean')

  @classmethod
  def read_options(cls, config) -> dict:
    """The settings of the teacher."""
    teacher = DistillSettings.of_config(config)
    return {'teacher': teacher, 'kept': config.data.get('negatives_kept', 1.0)}

  def _build_beside(self, model, rngs: nnx.Rngs) -> dict[str, nnx.Module]:
    beside = super()._build_beside(model, rngs)
    if not self.teacher.has_heads:
      return beside
    if not model.hidden_width:
      self.teacher.refuse_headless(self.model_name)
    # From a key of its own: the model is drawn as without a teacher.
    return beside | {HEADS: self._make_heads(model.hidden_width, 0)}

  def _make_heads(self, width: int, key) -> heads_lib.Heads:
    labels = len(self.labels)
    return heads_lib.Heads(width, labels, self.teacher, nnx.Rngs(key))

  def init_aux(self, key: jax.Array) -> dict:
    """Fresh parameters of the heads and of the adapter; {} without them."""
    if HEADS not in self.beside:
      return {}
    made = self._make_heads(self.hidden_width, key)
    return nnx.to_pure_dict(nnx.state(made, nnx.Param))

  def _merge_heads(self, aux) -> heads_lib.Heads:
    state = nnx.State(jax.tree.map(nnx.Param, aux))
    return nnx.merge(self.beside[HEADS], state)

  def _read_teacher(self, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """(scores `[B, L]`, how much those of each example count `[B]`)."""
    scores = jnp.stack([batch.extra(name) for name in self._scores], axis=-1)
    weight = self.teacher.weight
    counts = batch.extra(weight) if weight else jnp.ones(len(scores))
    counts = counts.astype(jnp.float32)
    # Refused where rows are read, see `score_checks`; never learned from.
    counts = jnp.where(counts >= 0, counts, jnp.nan)
    # What stands where there is no score must not reach a gradient as 0 * NaN.
    known = (counts > 0)[:, None]
    scores = jnp.where(known, scores.astype(jnp.float32), 0.0)
    if self._kept < 1:
      scores = heads_lib.thin_scores(scores, self._kept)
    # Logits or percents: a run stops where a measurement is not a number.
    scores = jnp.where((scores >= 0) & (scores <= 1), scores, jnp.nan)
    return scores, counts

  def _adapt(self, heads: heads_lib.Heads, scores: jax.Array) -> jax.Array:
    """y^_SA, as a logit."""
    logits = heads.adapter(scores)
    if self.teacher.adapter_input == 'residual':  # begins with the score
      return logits
    return self.add_prior(logits)

  def _measure_adapter(self, aux, batch: Examples):
    """L_sta of a microbatch: the adapter learns the fresh labels."""
    scores, counts = self._read_teacher(batch)
    logits = self._adapt(self._merge_heads(aux), scores)
    each = heads_lib.measure_loss(logits, batch.labels.select(self.labels))
    total = self.sum_losses(each, batch, counts)
    return total, jnp.sum(batch.weights * counts)

  def loss(self, params, rows, batch: Examples, key: jax.Array, aux=None):
    """As `Ranking.loss`, with the terms of the teacher.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: the examples.
      key: for dropout.
      aux: parameters of the heads and of the adapter, where there are any.
    """
    teacher = self.teacher
    scores, counts = self._read_teacher(batch)
    weight, counted = jnp.sum(batch.weights), jnp.sum(batch.weights * counts)
    heads, adapted = None, []
    if teacher.has_heads:
      model = self.merge_model(params)
      backbone = model.read_backbone(self.inputs(rows, batch), key)
      logits = self.add_prior(model.score_backbone(backbone))
      heads = self._merge_heads(aux)
      logits_of_heads = heads.score_hidden(backbone.hidden, teacher)
      learned, *adapted = map(self.add_prior, logits_of_heads)
    else:
      logits = learned = self.predict(params, rows, batch, key)

    def sum_losses(logits, targets, counts=counts):
      each = heads_lib.measure_loss(logits, targets)
      return self.sum_losses(each, batch, counts)

    def average(values):
      weights = batch.weights * counts
      return jnp.sum(values.mean(axis=-1) * weights), counted

    serving = sum_losses(logits, batch.labels.select(self.labels), None)
    targets = heads_lib.scale_scores(scores, teacher.label_scale)
    distilled = sum_losses(learned, targets)
    total = teacher.loss_weight * distilled
    if teacher.method != 'teacher_alone':
      total += serving
    measured = {}
    if adapted:
      corrected = jax.nn.sigmoid(self._adapt(heads, scores))
      second = sum_losses(adapted[0], corrected)
      total += teacher.adapter_weight * second
      measured['loss/adapted'] = second, counted
      measured['teacher/adapted'] = average(corrected)
    return measured | {
      'loss': (total, weight),
      'loss/serving': (serving, weight),
      'loss/teacher': (distilled, counted),
      'teacher/annotated': (counted, weight),
      'teacher/score': average(scores),
      'teacher/learned': average(jax.nn.sigmoid(learned)),
    }


def check_columns(
  settings: DistillSettings, labels: Sequence[str], extras: Mapping
) -> None:
  """Refuses a distillation whose columns the data do not have.

  Args:
    settings: of the distillation.
    labels: names of the labels.
    extras: extra columns of the data, by name.
  """
  if settings.method == 'none':
    return
  wanted = [*settings.name_scores(labels), settings.weight]
  for name in filter(None, wanted):
    if name not in extras:
      raise ValueError(
        f'distill.method={settings.method!r} reads the extra column {name!r}, '
        f'which the data do not have ({", ".join(extras) or "there are none"}'
        f'): name it in data.extras, as in --config.data.extras.{name}=float, '
        'or set distill.scores and distill.weight'
      )
