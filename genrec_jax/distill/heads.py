"""What a student learns of a teacher's scores (ExFM, arXiv 2502.17494).

| paper (section 3)                            | here                          |
|----------------------------------------------|-------------------------------|
| h(y^, y), a log-likelihood (eq. 1)           | - `measure_loss`              |
| -h(y^, y) - h(y^, y^_F), KD (eq. 2)          | method 'one_head'             |
| phi, the backbone                            | `Ranker.read_backbone`        |
| y^_S, the head that serves                   | `Ranker.score_backbone`       |
| y^_D, the auxiliary head (eq. 3)             | `Heads.head`                  |
| label scaling alpha, clipped at 1            | `label_scale`                 |
| loss weight w (eq. 5)                        | `loss_weight`                 |
| gradient scaling beta                        | `gradient_scale`              |
| y^_SA = MLP(y^_F), student adapter (eq. 6)   | `Heads.adapter`               |
| L_sta, a step of its own (Alg. 1, line 1)    | `DistilledRanking.aux_losses` |
| -h(y^_D2, SG[y^_SA]), a second head (eq. 7)  | `Heads.adapter_head`          |

The auxiliary parameters are those of the heads and the adapter. They are in
the state of a training and its checkpoints, and in nothing else: evaluations,
predictions, exports and the best weights have the model alone.

Differences from the paper: several labels have a score each. `adapter_input`
says what the adapter reads; the paper's reads probabilities, which are all near
0 where clicks are rare. 'residual' adds what the adapter makes of the score to
it, and begins with the score itself; the others begin with `loss.prior`, as the
heads do. `adapter_weight` is a factor of eq. 7, and `adapter_gradient_scale`
what beta is to eq. 5. Where training has not seen all negatives
(`data.negatives_kept`), scores are taken to what they are among those that it
has seen, as the labels are.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.distill.score_columns import name_columns
from genrec_jax.models import mlp
from genrec_jax.tasks import losses

METHODS = ('none', 'one_head', 'teacher_alone', 'head', 'adapter')
WITH_HEADS = ('head', 'adapter')
INPUTS = ('probability', 'logit', 'residual')
LEAST = 1e-6  # a score keeps away from 0 and 1 by this where it is a logit


@dataclasses.dataclass(frozen=True)
class DistillSettings:
  """The section `distill` of a config.

  Attributes:
    method: of `METHODS`.
    scores: extra columns of the scores, one for each label.
    weight: extra column that says how much the score of an example counts, ''
      for 1.
    label_scale: alpha.
    loss_weight: w.
    gradient_scale: beta, of the head that learns the scores.
    adapter_gradient_scale: the same of the head of corrected scores.
    adapter_weight: factor of the loss of the second head.
    adapter_input: of `INPUTS`.
    adapter_hidden: widths of the adapter's hidden layers.
  """

  method: str
  scores: Sequence[str]
  weight: str
  label_scale: float
  loss_weight: float
  gradient_scale: float
  adapter_gradient_scale: float
  adapter_weight: float
  adapter_input: str
  adapter_hidden: Sequence[int]

  def __post_init__(self):
    for key, known in (('method', METHODS), ('adapter_input', INPUTS)):
      if getattr(self, key) not in known:
        raise ValueError(
          f'distill.{key} is {getattr(self, key)!r}, must be one of {known}'
        )
    scales = self.method in ('one_head', 'teacher_alone')
    if scales and self.label_scale != 1:
      raise ValueError(
        f'distill.label_scale is {self.label_scale}, and with '
        f'distill.method={self.method!r} the head that serves learns the '
        'scores, which it would put off calibration: set it to 1, or take '
        "method='head' or 'adapter'"
      )

  @classmethod
  def of_config(cls, config) -> 'DistillSettings':
    """Those of an experiment."""
    return cls(**config.distill.to_dict())

  def refuse_headless(self, model: str) -> None:
    """Says that a model has no layer for the heads.

    Args:
      model: its name.
    """
    raise ValueError(
      f'distill.method={self.method!r} puts a head on the last hidden layer, '
      f"and model.name={model!r} has none: take 'one_head', or another model"
    )

  @property
  def has_heads(self) -> bool:
    """Whether the scores are learned by heads of their own."""
    return self.method in WITH_HEADS

  def name_scores(self, labels: Sequence[str]) -> tuple[str, ...]:
    """The extra column of each label's score.

    Args:
      labels: names of the labels.
    """
    scores = tuple(self.scores or name_columns(labels))
    if len(scores) != len(labels):
      raise ValueError(
        f'distill.scores names {len(scores)} columns for {len(labels)} labels '
        f'({", ".join(labels)})'
      )
    return scores


@jax.custom_vjp
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
  """x itself; what flows back is multiplied by a factor.

  >>> x, grad = jax.value_and_grad(scale_gradient)(3.0, 2.0)
  >>> float(x), float(grad)
  (3.0, 2.0)
  """
  del factor
  return x


def _scale_forward(x, factor):
  return x, factor


def _scale_backward(factor, grad):
  return grad * jnp.asarray(factor, grad.dtype), None


scale_gradient.defvjp(_scale_forward, _scale_backward)


class Adapter(nnx.Module):
  """y^_SA, as a logit, made of the scores of all labels."""

  def __init__(self, labels: int, settings: DistillSettings, rngs: nnx.Rngs):
    self.kind = settings.adapter_input
    self.count = len(settings.adapter_hidden)
    width = labels
    for i, hidden in enumerate(settings.adapter_hidden):
      setattr(self, f'linear_{i}', mlp.make_linear(width, hidden, rngs))
      width = hidden
    self.out = mlp.make_linear(width, labels, rngs)
    if self.kind == 'residual':  # begins as nothing
      self.out.kernel[...] = jnp.zeros_like(self.out.kernel[...])

  def __call__(self, scores: jax.Array) -> jax.Array:
    """Logits `[B, L]` of probabilities `[B, L]`."""
    logits = to_logit(scores)
    h = scores if self.kind == 'probability' else logits
    for i in range(self.count):
      h = jax.nn.relu(getattr(self, f'linear_{i}')(h))
    h = self.out(h).astype(jnp.float32)
    return logits + h if self.kind == 'residual' else h


class Heads(nnx.Module):
  """Distillation heads on the hidden layer of a model, and the adapter."""

  def __init__(
    self, width: int, labels: int, settings: DistillSettings, rngs: nnx.Rngs
  ):
    self.head = mlp.make_linear(width, labels, rngs)
    has_adapter = settings.method == 'adapter'
    self.adapter_head = (
      mlp.make_linear(width, labels, rngs) if has_adapter else None
    )
    self.adapter = Adapter(labels, settings, rngs) if has_adapter else None

  def score_hidden(
    self, hidden: jax.Array, settings: DistillSettings
  ) -> tuple[jax.Array, ...]:
    """Logits `[B, L]` of each distillation head.

    Args:
      hidden: `[B, width]`.
      settings: say how much of each head flows into it.
    """
    heads = [(self.head, settings.gradient_scale)]
    if self.adapter_head is not None:
      heads.append((self.adapter_head, settings.adapter_gradient_scale))
    return tuple(
      mlp.to_logits(head(scale_gradient(hidden, factor)))
      for head, factor in heads
    )


def to_logit(scores: jax.Array) -> jax.Array:
  """The logit of probabilities, which stay off 0 and 1."""
  p = jnp.clip(scores, LEAST, 1 - LEAST)
  return jnp.log(p) - jnp.log1p(-p)


def thin_scores(scores: jax.Array, kept: float) -> jax.Array:
  """What probabilities are where only a share of the negatives is kept.

  >>> float(thin_scores(jnp.array(0.5), 0.25))
  0.800000011920929
  """
  return scores / (scores + (1 - scores) * kept)


def scale_scores(scores: jax.Array, factor: float) -> jax.Array:
  """What a distillation head learns: alpha y^_F, at most 1.

  >>> scale_scores(jnp.array([0.125, 0.5]), 4.0).tolist()
  [0.5, 1.0]
  """
  return jnp.minimum(scores * factor, 1.0)


def measure_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """-h, of each element; nothing flows into the targets."""
  return losses.logistic_loss(logits, jax.lax.stop_gradient(targets))
