"""The data of a retrieval run: histories, their split, the catalogue."""

import dataclasses
import logging
import pathlib
import zlib
from collections.abc import Callable

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.data import datasets, items, pipeline, stream
from genrec_jax.data import splits as splits_lib
from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from genrec_jax.parallel import job
from genrec_jax.tasks.retrieval import Retrieval

LOG = logging.getLogger('genrec_jax')
SAMPLED = 1 << 17  # values of a column that the fingerprint looks at
DEFAULT_KS = tuple(config_lib.retrieval().eval.ks)


@dataclasses.dataclass(frozen=True)
class RetrievalData:
  """Events and how they are split.

  Attributes:
    dataset: the events and the catalogue.
    splits: 'train', 'valid', 'test' -> examples; a split may be missing.
    item_counts: `[rows]` occurrences in the training split, of all events:
      how popular items are. What is trained is `splits.count_targets`.
  """

  dataset: datasets.RetrievalDataset
  splits: dict[str, splits_lib.ExampleSpans]
  item_counts: np.ndarray

  @classmethod
  def load(cls, config, workdir, log: Callable[[str], None] = print):
    """Reads (or finds converted) what `config.data` names, and splits it."""
    cache = config.data.cache or pathlib.Path(workdir) / 'data'
    # Only one process converts; the others then find what it has made.
    with job.fail_together('reading the data', lead_first=True):
      dataset = datasets.load(config.data, cache, log=log)
    log(dataset.summary())
    size = len(dataset.corpus)
    ks = tuple(config.eval.get('ks', ()))
    if large := [k for k in ks if k >= size]:
      # Nobody has asked for the default ones.
      tell = LOG.info if ks == DEFAULT_KS else LOG.warning
      tell(
        'eval.ks holds %s, and there are %s items to recommend: %s',
        ', '.join(map(str, large)),
        f'{size:,}',
        'the hit rate and NDCG of more are left out, and with a k of all '
        'items the hit rate does not depend on the model; choose smaller ones',
      )
    if config.model.get('time_bias') and not dataset.histories.has_times:
      raise ValueError(
        f'model.time_bias needs timestamps and {dataset.name} has none; set '
        '--config.model.time_bias=false'
      )
    spans = splits_lib.split_histories(
      dataset.histories, config.split, max_len=config.model.max_len, log=log
    )
    counts = splits_lib.count_events(dataset.histories, spans['train'])
    return cls(dataset, spans, counts)

  def task(self, config, extensions: Extensions | None = None) -> Retrieval:
    counts = self.item_counts
    if config.loss.get('logq'):  # in a batch, targets are drawn
      counts = splits_lib.count_targets(
        self.dataset.histories, self.splits['train'], config.model.max_len
      )
      if config.data.stream.directory:
        LOG.warning(
          'loss.logq takes the shares of items from the log in data.path, and '
          'the targets are those of the parts in data.stream.directory: where '
          'the parts have other shares, the correction is off by their ratio'
        )
    return Retrieval.from_config(
      config, self.dataset.corpus, counts, extensions
    )

  def steps_per_epoch(self, batch_size: int) -> int:
    return pipeline.steps_per_epoch(self.splits['train'], batch_size)

  def train_batches(self, config, runtime, stop, log):
    """Batches of the training split, or of a growing directory."""
    source, histories = config.data.stream, self.dataset.histories
    if not source.directory:
      return pipeline.train_batches(
        histories,
        self.splits['train'],
        batch_size=config.train.batch_size,
        max_len=config.model.max_len,
        seed=config.seed,
        shuffle=config.train.shuffle,
        shards=runtime.shards,
        own=runtime.local_shards,
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
      ids=config.data.id_type,
      delimiter=config.data.delimiter,
      header=config.data.header,
      time_unit=config.data.time_unit,
      extras=datasets.build_extras(config.data),
      extra_vocabs=histories.extra_vocabs,
      poll_s=source.poll_s,
      idle_s=source.idle_s,
      stop=stop,
      log=log,
      shards=runtime.shards,
      own=runtime.local_shards,
    )

  def summary(self) -> str:
    return self.dataset.summary()

  def evaluator(self, task, split: str, config, runtime) -> RetrievalEvaluator:
    """What measures a split; `config` is the `eval` section."""
    return RetrievalEvaluator(
      task, self.dataset, self.splits[split], config, runtime
    )

  def baseline(self):
    """Popularity: its name, and evaluator -> its metrics."""
    return 'popularity', lambda e: e.popularity(self.item_counts)

  def save_for_predicting(self, workdir) -> None:
    """Leaves in the workdir what predicting needs of the data."""
    items.keep_items(workdir, self)

  def read_fingerprint(self, workdir) -> str:
    """Fingerprint of the data that the workdir was trained on."""
    return items.ItemCatalogue.load(workdir).data

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    h = self.dataset.histories
    # A sample of the columns, so that a log larger than memory is not read.
    at = slice(None, None, max(1, -(-len(h.items) // SAMPLED)))
    columns = [h.offsets[:: -(-len(h.offsets) // SAMPLED)], h.items[at]]
    if h.times is not None:
      columns.append(h.times[at])
    columns += [h.extras[name][at] for name in sorted(h.extras)]
    crc = 0
    for column in columns:
      crc = zlib.crc32(np.ascontiguousarray(column), crc)
    return f'{h.vocab.fingerprint()}-{len(h)}-{len(h.items)}-{crc:08x}'
