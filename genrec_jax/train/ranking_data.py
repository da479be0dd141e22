"""The data of a ranking run: prepared examples and their vocabularies."""

import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable

import numpy as np

from genrec_jax.config import tower_file
from genrec_jax.config.tower_file import TowerPlan
from genrec_jax.contracts import Extensions
from genrec_jax.data import pipeline
from genrec_jax.data.capacities import SizedBatches
from genrec_jax.data.ranking import (
  batches,
  datasets,
  feature_guesses,
  growing,
  saved_encoder,
  value_shares,
)
from genrec_jax.data.ranking.annotations import Annotations
from genrec_jax.data.ranking.unseen_draws import UnseenDraws
from genrec_jax.distill.distilled_ranking import (
  DistilledRanking,
  check_columns,
)
from genrec_jax.distill.heads import DistillSettings
from genrec_jax.distill.score_checks import make_check
from genrec_jax.evaluators.ranking import RankingEvaluator, find_undefined
from genrec_jax.parallel import job
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.train import map_files, part_ends, tower_choice
from genrec_jax.train.supernet_data import SupernetData

LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class RankingData:
  """Examples, in splits.

  Attributes:
    dataset: features, labels, vocabularies and splits.
    towers: of the model, see `tower_choice`; None for none.
    grows: whether training batches are of the parts of a growing directory.
    supernet: the parts of the training split where a supernet is trained.
  """

  dataset: datasets.RankingDataset
  towers: TowerPlan | None = None
  grows: bool = False
  supernet: SupernetData | None = None

  @property
  def splits(self) -> dict:
    return self.dataset.splits

  @classmethod
  def load(cls, config, workdir, log: Callable[[str], None] = print):
    """Prepares (or finds prepared) what `config.data` names."""
    cache = config.data.cache or pathlib.Path(workdir) / 'data'
    # Only one process prepares; the others then find what it has made.
    with job.fail_together('reading the data', lead_first=True):
      cfg = saved_encoder.keep_features(config.data, workdir, log)
      dataset = datasets.load(cfg, cache, log=log)
    log(dataset.summary())
    dataset.tell_values(log)
    rows, guessed = len(dataset.splits['train']), not config.data.features
    feature_guesses.warn_of_vocabularies(dataset.encoder, rows, guessed)
    found = cls(dataset, grows=bool(part_ends.name_stream(config)))
    with job.fail_together('choosing the towers'):
      towers = tower_choice.choose_towers(config, found, workdir)
    supernet = SupernetData.cut(config, dataset.splits['train'])
    return dataclasses.replace(found, towers=towers, supernet=supernet)

  def task(self, config, extensions: Extensions | None = None) -> Ranking:
    refuse_float_labels(self.dataset.annotations)
    if self.supernet is not None:
      return self.supernet.build_task(config, self.dataset, extensions)
    wanted = self.towers is not None and config.model.get('towers', '')
    kind = Ranking
    if config.distill.method != 'none':
      kind = DistilledRanking
      extras = {x.name: x for x in self.dataset.annotations.extras}
      settings = DistillSettings.of_config(config)
      check_columns(settings, self.dataset.labels, extras)
    task = kind.from_config(
      config,
      self.dataset.features,
      self.dataset.labels,
      extensions,
      towers=self.towers.towers if wanted else (),
    )
    map_files.check_map_files(task, self.dataset.encoder.vocabularies)
    return task

  def steps_per_epoch(self, batch_size: int) -> int | float:
    """Steps of a pass over the data, which has no end where these grow."""
    if self.grows:
      return math.inf
    if self.supernet is not None:
      return self.supernet.phases.steps
    return pipeline.steps_per_epoch(self.splits['train'], batch_size)

  def train_batches(self, config, runtime, stop, log):
    unseen = UnseenDraws(
      self.dataset.encoder, config.data.get('train_unseen', 0.0), config.seed
    )
    fixed_lists = bool(config.data.get('token_capacities', 0))
    if self.grows:
      made = self._stream_batches(config, runtime, stop, log, unseen)
      return SizedBatches(made) if fixed_lists else made
    train, turns = self.splits['train'], None
    if self.supernet is not None:
      train, turns = self.supernet.weights, self.supernet.turns
    undefined = find_undefined(self.splits['train'], self.dataset.labels)
    for why in dict.fromkeys(
      why for metric, why in undefined.items() if metric.startswith('auc')
    ):
      LOG.warning(
        '%s, so that the model cannot learn what it depends on. '
        "data.split.by='random' draws the examples of each split.",
        why,
      )
    made = batches.train_batches(
      train,
      batch_size=config.train.batch_size,
      seed=config.seed,
      shuffle=config.train.shuffle,
      shuffle_rows=config.data.shuffle_rows,
      shards=runtime.shards,
      own=runtime.local_shards,
      unseen=unseen,
      fixed_lists=fixed_lists,
      turns=turns,
    )
    if check := self._make_check(config):
      where = f'the examples of {self.dataset.name}'

      def look(batch):
        names = batch.extras.names if batch.extras is not None else ()
        check({name: batch.extra(name) for name in names}, where)
        return batch

      made = made.map(look)
    return SizedBatches(made) if fixed_lists else made

  def _make_check(self, config):
    """A check of a teacher's scores; None without a teacher."""
    if config.distill.method == 'none':
      return None
    settings = DistillSettings.of_config(config)
    return make_check(settings, self.dataset.labels)

  def _stream_batches(self, config, runtime, stop, log, unseen):
    """Batches of the parts of a growing directory."""
    source, size = config.data.stream, config.train.batch_size
    capacities = {}
    if config.data.get('token_capacities', 0):
      # What parts to come hold is not known; the base data are like them.
      capacities = batches.choose_list_capacities(
        self.splits['train'], size, runtime.shards
      )
    return growing.stream_batches(
      source.directory,
      source.pattern,
      encoder=self.dataset.encoder,
      batch_size=size,
      unseen=unseen,
      capacities=capacities,
      poll_s=source.poll_s,
      idle_s=source.idle_s,
      stop=stop,
      log=log,
      shards=runtime.shards,
      own=runtime.local_shards,
      check=self._make_check(config),
    )

  def summary(self) -> str:
    return self.dataset.summary()

  def describe_values(self) -> tuple[dict, list[str]]:
    """Counts for report.json, and what to warn of; see `train.results`."""
    encoder = self.dataset.encoder
    excesses = self.dataset.find_excesses()
    counts = value_shares.to_json(encoder.value_counts)
    for split, found in excesses.items():
      for excess in found:
        counts[split][excess.feature].setdefault('far_more', []).append(
          excess.kind
        )
    texts = [e.text for found in excesses.values() for e in found]
    return counts, [text for text in texts if text]

  def describe_splits(self) -> tuple[dict, list[str]]:
    """Counts for report.json, and what to warn of; see `train.results`."""
    return {s: {'examples': len(x)} for s, x in self.splits.items()}, []

  def evaluator(self, task, split: str, config, runtime) -> RankingEvaluator:
    """What measures a split; `config` is the `eval` section."""
    return RankingEvaluator(
      task, self.dataset, self.splits[split], config, runtime
    )

  def baseline(self):
    """The training split's share of each label, for everyone."""
    train = self.splits['train']
    total, sums = 0.0, 0.0
    for rows in train:
      weight = np.ones(len(rows)) if rows.weight is None else rows.weight
      total += weight.sum(dtype=np.float64)
      sums += weight.astype(np.float64) @ rows.labels
    if not total:
      raise ValueError(
        'data.weight: the weights of all examples of training are 0, so that '
        'there is nothing to learn'
      )
    means = sums / total
    return 'mean', lambda e: e.constant(means)

  def save_for_predicting(self, workdir) -> None:
    """Leaves in the workdir what predicting needs of the data."""
    saved_encoder.save_encoder(workdir, self.dataset)
    if self.towers is not None:
      tower_file.write_towers(
        pathlib.Path(workdir) / tower_file.OF_A_RUN, self.towers
      )

  def read_fingerprint(self, workdir) -> str:
    """Fingerprint of the data that the workdir was trained on."""
    towers = self.towers.towers if self.towers else ()
    return tower_file.mark_towers(
      saved_encoder.read_fingerprint(workdir), towers
    )

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    towers = self.towers.towers if self.towers else ()
    return tower_file.mark_towers(self.dataset.fingerprint(), towers)


def refuse_float_labels(annotations: Annotations) -> None:
  """Refuses labels that are any number, which the losses do not read."""
  # Learning them as if they were 0 or 1 would be silent.
  if labels := annotations.float_labels:
    raise ValueError(
      f'data.label_kinds.{labels[0]}: the label is any number, but the losses '
      'of task=ranking read labels from 0 to 1 alone: remove the key, or set '
      "it to 'probability' if its values are such"
    )
