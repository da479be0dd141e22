"""Every field of the losses: its type, its default and what it means.

docs/config_reference.md is generated from the classes.
"""

import dataclasses
from collections.abc import Sequence

SAMPLERS = ('uniform', 'shared', 'in_batch', 'in_batch_unique')
LOSSES = ('sampled_softmax', 'full_softmax', 'bce', 'gbce')


@dataclasses.dataclass(frozen=True)
class RetrievalLossConfig:
  """Which items a position is scored against.

  Attributes:
    name: the loss, 'sampled_softmax', 'full_softmax', 'bce' or 'gbce'; see
      docs/training.md#losses-and-when-to-use-which.
    sampler: where negatives come from. 'uniform': candidate items, drawn anew
      for each position; 'shared': drawn once for the batch; 'in_batch': items
      of other positions, drawn once for the batch (popular items come more
      often, see `logq`); 'in_batch_unique': distinct items of the batch, drawn
      for each position.
    negatives: how many negatives R a position is scored against.
    temperature: divisor of the scores.
    l2_normalize: whether queries and items are scaled to length one.
    logq: whether the log of how likely an item is to be drawn, by its share in
      the training data, is subtracted from its score, which undoes the
      popularity bias of 'in_batch' and 'in_batch_unique'.
    mask_collisions: whether a negative that is the positive is left out.
    item_bias: whether each item has a number of its own that is added to its
      score: it parts items that share a row of the table (`config.tables`).
    gbce_t: calibration t of 'gbce', from 0 to 1.
    chunk: positions whose logits are alive at once, a power of two; None is
      what suits the machine (see `losses.chunk_for`), and on CPUs products in
      C++ without chunks.
  """

  name: str = 'sampled_softmax'
  sampler: str = 'uniform'
  negatives: int = 128
  temperature: float = 0.05
  l2_normalize: bool = True
  logq: bool = False
  mask_collisions: bool = True
  item_bias: bool = False
  gbce_t: float = 0.75
  chunk: int | None = None

  def __post_init__(self):
    if self.name not in LOSSES:
      raise ValueError(f'loss.name is {self.name!r}, must be one of {LOSSES}')
    if self.sampler not in SAMPLERS:
      raise ValueError(
        f'loss.sampler is {self.sampler!r}, must be one of {SAMPLERS}'
      )
    if self.negatives < 1:
      raise ValueError(f'loss.negatives is {self.negatives}, must be positive')
    if not self.temperature > 0:
      raise ValueError(
        f'loss.temperature is {self.temperature}, must be positive'
      )
    if not 0 <= self.gbce_t <= 1:
      raise ValueError(f'loss.gbce_t is {self.gbce_t}, must be in 0..1')
    chunk = self.chunk
    if chunk is not None and (chunk < 1 or chunk & (chunk - 1)):
      raise ValueError(f'loss.chunk is {self.chunk}, must be a power of two')
    if self.logq and (
      self.name == 'full_softmax' or not self.sampler.startswith('in_batch')
    ):
      raise ValueError(
        'loss.logq corrects for negatives that come as often as they are '
        "popular, which only loss.sampler='in_batch' and 'in_batch_unique' "
        'draw; '
        f'loss.name={self.name!r} with loss.sampler={self.sampler!r} needs none'
      )


@dataclasses.dataclass(frozen=True)
class RankingLossConfig:
  """The cross entropy, and what is added to it.

  Attributes:
    task_weights: factor of the cross entropy of each label; () is 1 for all.
    table_l2: strength l of (l/2)|E|^2 over all rows of all tables in every
      step, whether read or not, and over the weights that make vectors of
      single numbers, as FuxiCTR's `embedding_regularizer`. It is not divided by
      the batch, and needs `optimizer.rows.name='dense'`.
    net_l2: strength l of (l/2)|w|^2 over all other weights of the model, biases
      and norms too, as FuxiCTR's `net_regularizer`.
    prior: the probability of each label with which a model begins, such as the
      share of clicks of the log: its log odds are added to every logit, in
      predictions too. () adds nothing, and a model begins at about one half; of
      a rare label it takes thousands of steps at usual rates to come down.
  """

  task_weights: Sequence[float] = ()
  table_l2: float = 0.0
  net_l2: float = 0.0
  prior: Sequence[float] = ()

  def __post_init__(self):
    for value in self.prior:
      if not 0 < value < 1:
        raise ValueError(
          f'loss.prior holds {value!r}, must be above 0 and below 1'
        )
    for key in ('table_l2', 'net_l2'):
      if not getattr(self, key) >= 0:
        raise ValueError(
          f'loss.{key} is {getattr(self, key)!r}, must be zero or more'
        )


@dataclasses.dataclass(frozen=True)
class RequestLossConfig:
  """The cross entropies and squared errors of the candidates.

  Attributes:
    task_weights: factor of the loss of each label; () is 1 for all. The
      published models have 0.2.
  """

  task_weights: Sequence[float] = ()
