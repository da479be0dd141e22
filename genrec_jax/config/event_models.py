"""Sizes of models that compare the events of a history with a candidate."""

import dataclasses
from collections.abc import Mapping

from genrec_jax.config.model_fields import check_fields, check_rules

COMPARING = ('dot', 'ind', 'def')  # mechanisms of the paper
BASELINES = ('mean', 'concat', 'attention', 'gru', 'lstm', 'din')
MECHANISMS = (*COMPARING, *BASELINES)


@dataclasses.dataclass(frozen=True)
class TBSM:
  """Sizes of `models.tbsm`.

  Attributes:
    dim: width of the rows of all tables, and of the vector of numbers.
    bottom: hidden widths of the tower's MLP over numbers; `dim` follows them.
    interaction: of the tower, as in `dlrm`.
    itself: of the tower, as in `dlrm`.
    top: hidden widths of the tower's MLP above interactions.
    width: what follows them, m, the width of the vector of an event.
    relu_end: whether a ReLU ends the tower, as in the published code. A vector
      of zeros has no direction: a projection makes no more of it than zeros.
    projection: whether vectors are scaled to length 1.
    projection_eps: added to the square of that length.
    mechanism: 'def', 'ind' and 'dot' compare events with the candidate by
      A^t A, A and 1. Others are baselines above the same tower: 'mean' of the
      events, 'concat' of all in their places, 'attention' of the candidate on
      them, 'gru' and 'lstm' over them, and 'din', an MLP for each event.
    weights: how products become weights of events: an MLP over all places of
      the history ('mlp'), or as they are ('mul'), as the published code has it.
    heads: heads, each with an A and MLPs of its own, or, of 'attention', each
      m wide. Other baselines have one.
    k_sequences: whether of J heads number j = J .. 1 has the latest jT/J events
      alone.
    attention_hidden: hidden widths of the MLP over products, and of that of
      'din'.
    recurrent_width: width of the state of 'gru' and 'lstm'; 0 is `width`.
    hidden: hidden widths of the MLP of a head over (c, w).
    one_head_mlp: whether an MLP stands on the probability of a single head,
      too; there is one on those of several.
    history_name: which history; '' is the only one.
    pairs: column of the history -> the feature of the candidate that is the
      same; {} pairs those that share a table. Numbers of events need none: at
      the candidate they are 0.
    leave_out: features that are not read, such as a user without a trained row.
    position: whether the tower is told the place of an event, counted from the
      end, as a number up to 1, which is the candidate's.
    dropout: rate after hidden layers of the MLP over (c, w).
    init: how weights start, 'xavier_normal' or 'dlrm'; see `mlp.make_linear`.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int = 16
  bottom: tuple[int, ...] = ()
  interaction: str = 'dot'
  itself: bool = False
  top: tuple[int, ...] = (15,)
  width: int = 15
  relu_end: bool = False
  projection: bool = True
  projection_eps: float = 1e-6
  mechanism: str = 'def'
  weights: str = 'mlp'
  heads: int = 1
  k_sequences: bool = False
  attention_hidden: tuple[int, ...] = (15, 15)
  recurrent_width: int = 0
  hidden: tuple[int, ...] = (60,)
  one_head_mlp: bool = False
  history_name: str = ''
  pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  leave_out: tuple[str, ...] = ()
  position: bool = True
  dropout: float = 0.0
  init: str = 'dlrm'
  dtype: str = 'float32'

  def __post_init__(self):
    check_rules(self)
    check_fields(
      self,
      interaction=('auto', 'dot', 'cat'),
      mechanism=MECHANISMS,
      weights=('mlp', 'mul'),
      init=('xavier_normal', 'dlrm'),
      dtype=('float32', 'bfloat16'),
    )
    several = (*COMPARING, 'attention')
    if self.heads > 1 and self.mechanism not in several:
      raise ValueError(
        f'model.heads={self.heads}, and mechanism={self.mechanism!r} has one; '
        f'several have {", ".join(several)}'
      )
    if self.weights == 'mul' and not self.compares:
      raise ValueError(
        f"model.weights='mul' is for {', '.join(COMPARING)}, and "
        f'model.mechanism is {self.mechanism!r}: leave one of them out'
      )
    if self.k_sequences and not (self.compares and self.heads > 1):
      raise ValueError(
        'model.k_sequences gives each of several heads another part of the '
        f'history: set model.heads and one of {", ".join(COMPARING)} as '
        'model.mechanism, or leave it out'
      )

  @property
  def compares(self) -> bool:
    """Whether events are weighed by their products with the candidate."""
    return self.mechanism in COMPARING

  def list_spans(self, most: int) -> list[int]:
    """How many of the latest events each head has.

    >>> TBSM(heads=4, k_sequences=True).list_spans(20)
    [20, 15, 10, 5]

    Args:
      most: events of the longest history, T.
    """
    if not self.k_sequences:
      return [most] * (self.heads if self.compares else 1)
    return [round(most * j / self.heads) for j in range(self.heads, 0, -1)]
