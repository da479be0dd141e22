"""The data of a ranking run: prepared examples and their vocabularies."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.data.ranking import batches, datasets
from genrec_jax.evaluators.ranking import Evaluator
from genrec_jax.features import FeatureSpec
from genrec_jax.parallel import job
from genrec_jax.tasks.ranking import Ranking

KEPT = 'encoder'  # directory of a workdir


@dataclasses.dataclass(frozen=True)
class RankingData:
  """Examples, in parts.

  Attributes:
    dataset: features, labels, vocabularies and parts.
  """

  dataset: datasets.Dataset

  @property
  def parts(self) -> dict:
    return self.dataset.parts

  @classmethod
  def load(cls, config, workdir, log: Callable[[str], None] = print):
    """Prepares (or finds prepared) what `config.data` names."""
    cache = config.data.cache or pathlib.Path(workdir) / 'data'
    # Only one process prepares; the others then find what it has made.
    with job.together('reading the data', lead_first=True):
      dataset = datasets.load(config.data, cache, log=log)
    log(dataset.summary())
    return cls(dataset)

  def task(self, config, extensions: Extensions | None = None) -> Ranking:
    # Learning them as if they were 0 or 1 would be silent.
    if labels := self.dataset.annotations.float_labels:
      raise ValueError(
        f'data.label_kinds.{labels[0]}: the prepared label is any number, but '
        'the losses of task=ranking read labels 0 and 1 alone; remove the key'
      )
    return build_task(
      config, self.dataset.features, self.dataset.labels, extensions
    )

  def steps_per_epoch(self, batch_size: int) -> int:
    return batches.steps_per_epoch(self.parts['train'], batch_size)

  def train_batches(self, config, spread, stop, log):
    del stop, log  # the examples are all there
    return batches.train_batches(
      self.parts['train'],
      batch_size=config.train.batch_size,
      seed=config.seed,
      shuffle=config.train.shuffle,
      shuffle_rows=config.data.shuffle_rows,
      shards=spread.shards,
      own=spread.own,
    )

  def summary(self) -> str:
    return self.dataset.summary()

  def evaluator(self, task, part: str, config, runtime) -> Evaluator:
    """What measures a part; `config` is the `eval` section."""
    return Evaluator(task, self.dataset, self.parts[part], config, runtime)

  def baseline(self):
    """The training part's share of each label, for everyone."""
    train = self.parts['train']
    means = sum(rows.labels.sum(axis=0) for rows in train) / len(train)
    return 'mean', lambda e: e.constant(means)

  def keep(self, workdir) -> None:
    """Leaves in the workdir what predicting needs of the data."""
    path = pathlib.Path(workdir) / KEPT
    if path.exists() and self.kept(workdir) == self.fingerprint():
      return
    partial = path.with_name(f'.{KEPT}.{os.getpid()}')
    shutil.rmtree(partial, ignore_errors=True)
    self.dataset.encoder.save(partial)
    (partial / 'data.txt').write_text(self.fingerprint())
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)

  def kept(self, workdir) -> str:
    """Fingerprint of the data that the workdir was trained on."""
    path = pathlib.Path(workdir) / KEPT / 'data.txt'
    try:
      return path.read_text()
    except FileNotFoundError:
      raise FileNotFoundError(
        f'{path}: no such file; a training writes it when it starts. '
        '--mode=train with the same config writes it again, and trains no '
        'step more than is missing'
      ) from None

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    return self.dataset.fingerprint()


def build_task(
  config,
  features: Sequence[FeatureSpec],
  labels: Sequence[str],
  extensions: Extensions | None = None,
) -> Ranking:
  """The task of `config` over these inputs."""
  model = config.model.to_dict()
  return Ranking(
    model.pop('name'),
    model,
    config.loss.to_dict(),
    features=features,
    labels=labels,
    table_update=config.data.table_update,
    table_dtype=config.data.table_dtype,
    init_std=config.data.init_std,
    settings=config_lib.table_settings(config),
    products=config.numerics.products,
    extra_products=extensions.products if extensions else None,
  )
