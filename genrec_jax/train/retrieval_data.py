"""The data of a retrieval run: histories, their split, the catalogue."""

import dataclasses
import logging
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.data import datasets, items, pipeline, stream
from genrec_jax.data import splits as splits_lib
from genrec_jax.data.capacities import SizedBatches
from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from genrec_jax.parallel import job
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train import map_files

LOG = logging.getLogger('genrec_jax')
MANY_REPEATS = 0.01  # of the targets, if none of them can be hit
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
    repeats: split -> what `describe_splits` says of repeats.
  """

  dataset: datasets.RetrievalDataset
  splits: dict[str, splits_lib.ExampleSpans]
  item_counts: np.ndarray
  repeats: Mapping[str, dict] = dataclasses.field(default_factory=dict)

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
    if said := describe_large_ks(ks, size):
      # Nobody has asked for the default ones.
      (LOG.info if ks == DEFAULT_KS else LOG.warning)('%s', said)
    if config.model.get('time_bias') and not dataset.histories.has_times:
      raise ValueError(
        f'model.time_bias needs timestamps and {dataset.name} has none; set '
        '--config.model.time_bias=false'
      )
    spans = splits_lib.split_histories(
      dataset.histories, config.split, max_len=config.model.max_len, log=log
    )
    counts = splits_lib.count_events(dataset.histories, spans['train'])
    repeats = _tell_repeats(dataset.histories, spans, config)
    return cls(dataset, spans, counts, repeats)

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
    task = Retrieval.from_config(
      config, self.dataset.corpus, counts, extensions
    )
    vocab = self.dataset.histories.vocab
    map_files.check_map_files(task, dict.fromkeys(task.tables(), vocab))
    return task

  def steps_per_epoch(self, batch_size: int) -> int:
    return pipeline.steps_per_epoch(self.splits['train'], batch_size)

  def train_batches(self, config, runtime, stop, log):
    """Batches of the training split, or of a growing directory."""
    source, histories = config.data.stream, self.dataset.histories
    if not source.directory:
      train = self.splits['train']
      options = dict(
        batch_size=config.train.batch_size,
        max_len=config.model.max_len,
        seed=config.seed,
        shuffle=config.train.shuffle,
        shards=runtime.shards,
      )
      capacities = pipeline.choose_capacities(
        train, config.data.get('token_capacities', 0), **options
      )
      batches = pipeline.train_batches(
        histories,
        train,
        own=runtime.local_shards,
        capacities=capacities,
        **options,
      )
      if capacities is None:
        return batches
      log(capacities.describe())
      return SizedBatches(batches, capacities)
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
      decimal=config.data.get('decimal', '.'),
      time_unit=config.data.time_unit,
      extras=datasets.build_extras(config.data),
      extra_vocabs=histories.extra_vocabs,
      poll_s=source.poll_s,
      idle_s=source.idle_s,
      stop=stop,
      log=log,
      shards=runtime.shards,
      own=runtime.local_shards,
      tells_ends=config.checkpoint.get('at_part_ends', False),
    )

  def summary(self) -> str:
    return self.dataset.summary()

  def describe_splits(self) -> tuple[dict, list[str]]:
    """Counts for report.json, and what to warn of; see `train.results`."""
    counts = {
      split: {
        'examples': len(spans),
        'users': len(np.unique(spans.row)),
        **self.repeats.get(split, {}),
      }
      for split, spans in self.splits.items()
    }
    has_times = self.dataset.histories.has_times
    return counts, _warn_of_repeats(self.repeats, has_times)

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


def describe_large_ks(ks: Sequence[int], size: int) -> str:
  """What becomes of cut-offs that are no smaller than the catalogue, or ''.

  >>> describe_large_ks((10, 50, 100, 200), 60)
  'k=100, 200 of eval.ks are left out: there are 60 items to recommend'
  >>> describe_large_ks((10, 60), 60)
  'hr@60 does not depend on the model: there are 60 items to recommend'
  """
  larger = ', '.join(str(k) for k in ks if k > size)
  texts = [f'k={larger} of eval.ks {"are" if "," in larger else "is"} left out']
  texts = texts if larger else []
  texts += [f'hr@{size} does not depend on the model'] if size in ks else []
  there = f'there are {size:,} items to recommend'
  return f'{", and ".join(texts)}: {there}' if texts else ''


def _tell_repeats(histories, spans, config) -> dict[str, dict]:
  """Counts the targets that their users have had before, and says so once.

  Returns:
    split -> {'repeats': their share, 'filter_seen': the setting if it makes all
    of them misses, else None}; of splits that are evaluated and have any.
  """
  filter_seen = config.eval.get('filter_seen')
  window = config.model.max_len if filter_seen == 'window' else None
  repeats, lines = {}, {}
  for split in config.eval.get('splits', ()):
    if split in spans and len(spans[split]):
      count, total = splits_lib.count_repeats(histories, spans[split], window)
      if count:
        misses = filter_seen if filter_seen in ('window', 'history') else None
        repeats[split] = {'repeats': count / total, 'filter_seen': misses}
        text = f', in the {window:,} events that are read' if window else ''
        lines[split] = (
          f'{count:,} of {total:,} {split} targets ({count / total:.1%}) are '
          f'items that their users have had before{text}'
        )
  warned = _find_missed(repeats)
  for split, line in lines.items():
    if split not in warned:  # which the warning says, too
      LOG.info('%s', line)
  for text in _warn_of_repeats(repeats, histories.has_times):
    LOG.warning('%s', text)
  return repeats


def _find_missed(repeats: Mapping[str, dict]) -> dict[str, float]:
  """Split -> the share of its targets that are misses, where it is large."""
  return {
    split: of['repeats']
    for split, of in repeats.items()
    if of['filter_seen'] and of['repeats'] >= MANY_REPEATS
  }


def _warn_of_repeats(repeats: Mapping[str, dict], has_times) -> list[str]:
  """Sentences about splits with many targets that can never be hit."""
  shares = _find_missed(repeats)
  if not shares:
    return []
  texts = [f'{share:.1%} of the {split}' for split, share in shares.items()]
  (filter_seen,) = {of['filter_seen'] for of in repeats.values()}
  return [
    f'{" and ".join(texts)} targets are items that their users have had '
    f'before, which eval.filter_seen={filter_seen!r} never recommends: they '
    'are misses for every k. If people come back to an item, as in a '
    "log of purchases, set eval.filter_seen='none'."
    + " If rows were written twice, data.duplicates='drop' removes them."
    * bool(has_times)
  ]
