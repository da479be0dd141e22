"""The data of a supernet: two parts of the training split, and when each is
trained on.
"""

import dataclasses

from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.data import pipeline
from genrec_jax.data.ranking.batches import Turns
from genrec_jax.data.ranking.datasets import RankingDataset
from genrec_jax.data.ranking.shares import cut_split
from genrec_jax.data.ranking.store import SplitStore
from genrec_jax.search.phases import Phases
from genrec_jax.search.super_ranking import SuperRanking


@dataclasses.dataclass(frozen=True)
class SupernetData:
  """What a supernet is trained on.

  Attributes:
    weights: examples of the weights.
    choices: examples of the choices.
    phases: the steps of both.
  """

  weights: SplitStore
  choices: SplitStore
  phases: Phases

  @classmethod
  def cut(cls, config, split: SplitStore) -> 'SupernetData | None':
    """Cuts a training split in two; None for a config without a supernet.

    Args:
      config: of the experiment.
      split: the training split.
    """
    if 'search' not in config or not config.search.supernet:
      return None
    share, size = config.search.share, config.train.batch_size
    parts = cut_split(split, share, config.seed)
    counts = [len(part) for part in parts]
    if min(counts) < size:
      raise ConfigError(
        f'search.share={share} leaves {counts[0]:,} examples for weights and '
        f'{counts[1]:,} for choices, and a batch has {size:,}: more data, '
        'another share or a smaller search.batch_size are needed'
      )
    steps = [pipeline.steps_per_epoch(part, size) for part in parts]
    return cls(*parts, Phases(*steps, config.search.warmup_epochs))

  @property
  def turns(self) -> Turns:
    """The steps of the choices."""
    return Turns(self.choices, self.phases.steps, self.phases.find_place)

  def build_task(
    self,
    config,
    dataset: RankingDataset,
    extensions: Extensions | None = None,
  ) -> SuperRanking:
    """The supernet that a config describes.

    Args:
      config: of the experiment.
      dataset: its data.
      extensions: what is used from outside the library.
    """
    if config.distill.method != 'none':
      raise ConfigError(
        f'distill.method={config.distill.method!r}: a supernet has no teacher; '
        'set it for what is found'
      )
    if config.model.get('towers', ''):
      raise ConfigError(
        f'model.towers={config.model.towers!r}: a model with towers cannot be '
        'searched'
      )
    return SuperRanking.from_config(
      config,
      dataset.features,
      dataset.labels,
      extensions,
      phases=self.phases,
      spaces=extensions.search_spaces if extensions else None,
    )
