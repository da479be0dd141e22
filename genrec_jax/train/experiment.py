"""What a config describes, put together: data, parts, task, optimizer."""

import dataclasses
import pathlib
import zlib
from collections.abc import Callable

import numpy as np

from genrec_jax.data import datasets, pipeline, splits, stream
from genrec_jax.evaluators import EVALUATORS
from genrec_jax.parallel import job
from genrec_jax.tasks import TASKS
from genrec_jax.train import optimizer
from genrec_jax.train import spread as spread_lib

PARTS = ('train', 'valid', 'test')
SAMPLED = 1 << 17  # values of a column that the fingerprint looks at


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The pieces of a run.

  Attributes:
    dataset: the events and the catalogue.
    parts: 'train', 'valid', 'test' -> examples; a part may be missing.
    item_counts: `[rows]` occurrences in the training part.
    task: tables, model and loss.
    tx: optimizer of everything dense.
    spread: how all of it lies on devices.
  """

  dataset: datasets.Dataset
  parts: dict[str, splits.Examples]
  item_counts: np.ndarray
  task: object
  tx: object
  spread: object

  def train_batches(self, config, stop=lambda: False, log=print):
    """The training batches: of the training part, or of a growing directory.

    Args:
      config: the experiment's config.
      stop: asked while a growing directory has nothing new; True ends it.
      log: told about every new part.

    Returns:
      A `grain.IterDataset` whose iterators save and restore their state.
    """
    source, histories = config.data.stream, self.dataset.histories
    if not source.directory:
      return pipeline.train_batches(
        histories,
        self.parts['train'],
        batch_size=config.train.batch_size,
        max_len=config.model.max_len,
        seed=config.seed,
        shuffle=config.train.shuffle,
        shards=self.spread.shards,
        own=self.spread.own,
      )
    for key in ('steps', 'eval_every', 'checkpoint_every'):
      if not config.train[key]:
        raise ValueError(f'train.{key} must be set: a stream has no epochs')
    return stream.stream_batches(
      source.directory,
      source.pattern,
      columns=config.data.columns,
      item_vocab=histories.vocab,
      batch_size=config.train.batch_size,
      max_len=config.model.max_len,
      unknown=config.data.unknown_items,
      ids=config.data.ids,
      delimiter=config.data.delimiter,
      time_unit=config.data.time_unit,
      poll_s=source.poll_s,
      idle_s=source.idle_s,
      stop=stop,
      log=log,
      shards=self.spread.shards,
      own=self.spread.own,
    )

  def evaluators(self, config) -> dict:
    """Part -> evaluator, for the parts of `config.eval.parts` that exist."""
    for part in config.eval.parts:
      if part not in PARTS:
        raise ValueError(
          f'eval.parts holds {part!r}, must be among {", ".join(PARTS)}'
        )
    return {
      part: EVALUATORS[config.task](
        self.task, self.dataset, self.parts[part], config.eval, self.spread
      )
      for part in config.eval.parts
      if part in self.parts
    }

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    h = self.dataset.histories
    # A sample of the columns, so that a log larger than memory is not read.
    at = slice(None, None, max(1, -(-len(h.items) // SAMPLED)))
    columns = [h.offsets[:: -(-len(h.offsets) // SAMPLED)], h.items[at]]
    if h.times is not None:
      columns.append(h.times[at])
    crc = 0
    for column in columns:
      crc = zlib.crc32(np.ascontiguousarray(column), crc)
    return f'{h.vocab.fingerprint()}-{len(h)}-{len(h.items)}-{crc:08x}'


def build(config, workdir, log: Callable[[str], None] = print) -> Experiment:
  """Loads the data and builds the task of `config`."""
  dataset, parts, counts, task = _load(config, workdir, log)
  tx = optimizer.build(config.optimizer)
  spread = spread_lib.build(config, task, tx)
  experiment = Experiment(dataset, parts, counts, task, tx, spread)
  with job.together('comparing the data of the processes'):
    own = experiment.fingerprint()
    if (lead := job.of_lead(own)) != own:
      raise ValueError(
        f'the data read here are not those of process 0 ({own}, there {lead}); '
        'give all processes the same files in data.path'
      )
  return experiment


def load_task(config, workdir, log: Callable[[str], None] = print):
  """The task alone, for which no devices are needed."""
  return _load(config, workdir, log)[-1]


def _load(config, workdir, log):
  if config.task not in TASKS:
    raise ValueError(
      f'config.task is {config.task!r}, must be one of {sorted(TASKS)}'
    )
  cache = config.data.cache or pathlib.Path(workdir) / 'data'
  # Only one process converts; the others then find what it has made.
  with job.together('reading the data', lead_first=True):
    dataset = datasets.load(config.data, cache, log=log)
  log(dataset.summary())
  if config.model.get('time_bias') and not dataset.histories.has_times:
    raise ValueError(
      f'model.time_bias needs timestamps and {dataset.name} has none; set '
      '--config.model.time_bias=false'
    )
  parts = splits.split(
    dataset.histories, config.split, max_len=config.model.max_len, log=log
  )
  rows = dataset.histories.vocab.rows
  counts = splits.train_counts(dataset.histories, parts['train'], rows)
  return dataset, parts, counts, build_task(config, dataset.corpus, counts)


def build_task(config, corpus: np.ndarray, item_counts: np.ndarray):
  """The task of `config` over items `corpus [C]`, counted in `[rows]`."""
  model = config.model.to_dict()
  return TASKS[config.task](
    model.pop('name'),
    model,
    config.loss.to_dict(),
    corpus=corpus,
    rows=len(item_counts),
    item_counts=item_counts,
    table_update=config.data.table_update,
    table_dtype=config.data.table_dtype,
    init_std=config.data.init_std,
  )
