"""Full-catalogue retrieval metrics of one split of the data."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax import interruption
from genrec_jax.config import ConfigError
from genrec_jax.contracts import weights_of
from genrec_jax.data import pipeline
from genrec_jax.embedding import id_maps
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.parallel import collectives
from genrec_jax.tasks import catalogue, metrics
from genrec_jax.tasks.candidates import CandidateReader
from genrec_jax.tasks.retrieval import BIASES, ITEMS

# So many targets do not score alike by chance.
MANY = 16
# `eval.request_time` -> what the report says of it.
REQUEST_TIMES = {
  'target': (
    'The model was asked at the time of the target event '
    "(eval.request_time='target'), as published: it knew when the next event "
    'comes. A server knows the time of the request instead.'
  ),
  'last_event': (
    'The model was asked at the time of the last event before the target '
    "(eval.request_time='last_event'), as predictions without "
    'predict.request_time do.'
  ),
}


def count_shared(task, runtime, weights) -> int:
  """How many items of the catalogue share their row with another one.

  Args:
    task: a retrieval task.
    runtime: where the weights lie.
    weights: of `contracts.weights_of`.
  """
  maps = id_maps.collect_maps(task, getattr(runtime, 'maps', None)).maps
  if ITEMS not in maps:
    return 0
  state = (weights['id_states'] or {}).get(ITEMS, {})
  state = jax.tree.map(np.asarray, state)
  rows = np.asarray(maps[ITEMS].lookup(state, jnp.asarray(task.corpus)))
  _, place, counts = np.unique(rows, return_inverse=True, return_counts=True)
  return int(np.count_nonzero(counts[place] > 1))


class RetrievalEvaluator:
  """Ranks every user's held-out item among the whole catalogue.

  evaluator = Evaluator(task, dataset, examples, config.eval, runtime)
  metrics = dict(evaluator.run(state))

  Attributes:
    directions: see `contracts.Evaluator`.
    intervals: 95 % intervals of the metrics of the last `run`.
    notes: what a reader of its metrics must know.
    scores_are_alike: whether the last `run` met one score alone, which a model
      does that has diverged.
  """

  directions = metrics.DIRECTIONS
  scores_are_alike = False
  intervals = {}
  rules = 2  # ties count half, and misses have no rank; see train/renewal.py

  def __init__(
    self, task, dataset, examples, config, runtime=SingleDeviceEvalRuntime()
  ):
    """Prepares; nothing is computed yet.

    Args:
      task: a retrieval task.
      dataset: where the examples point.
      examples: the split to evaluate.
      config: `config.eval`.
      runtime: where the weights lie, one device or a mesh (see `runtime/`).
    """
    if config.filter_seen not in catalogue.FILTERS:
      raise ValueError(
        f'eval.filter_seen is {config.filter_seen!r}, must be one of '
        f'{catalogue.FILTERS}'
      )
    # Configs of earlier versions lack it.
    self._request_time = config.get('request_time', 'target')
    if self._request_time not in REQUEST_TIMES:
      raise ConfigError(
        f'eval.request_time is {self._request_time!r}, must be one of '
        f'{", ".join(REQUEST_TIMES)}'
      )
    self.notes = [REQUEST_TIMES[self._request_time]]
    if not getattr(task.model_config, 'time_bias', False):
      self.notes = []
      if self._request_time != 'target':
        raise ConfigError(
          f'eval.request_time is {self._request_time!r}, and a model without '
          'model.time_bias reads no times: leave the key out'
        )
    self._own_notes = self.notes
    if config.item_chunk < 1:
      raise ValueError(
        f'eval.item_chunk is {config.item_chunk}, must be positive'
      )
    self._task, self._dataset, self._examples = task, dataset, examples
    self._users = len(np.unique(examples.row))
    self._config, self._runtime = config, runtime
    candidates = CandidateReader(task, runtime, config)

    def rank_batch(queries, vectors, batch):
      target_ranks = catalogue.target_ranks(
        queries,
        vectors,
        candidates.corpus,
        batch,
        filter_seen=config.filter_seen,
        item_chunk=config.item_chunk,
      )
      return collectives.gather((*target_ranks, batch.weights > 0))

    def ranks_of_model(weights, vectors, batch):
      params, rows = runtime.read_rows(
        task, weights, task.reads_for('predict', batch)
      )
      vectors = candidates.find(weights, vectors)
      return rank_batch(task.predict(params, rows, batch), vectors, batch)

    def ranks_of_scores(vectors, batch):
      return rank_batch(jnp.ones((batch.weights.shape[0], 1)), vectors, batch)

    self._ranks_of_model = runtime.jit(
      ranks_of_model, ('split', 'split'), 'alike'
    )
    self._ranks_of_scores = jax.jit(ranks_of_scores)
    self._candidates = candidates

  def names(self) -> list[str]:
    """The metrics that `run` will yield."""
    return [name for name, _ in self._measure_ranks(np.zeros(0))]

  def run(self, state) -> Iterator[tuple[str, float]]:
    """Yields ('hr@10', ...), ('ndcg@10', ...), ... of `state`."""
    ranks = self.ranks(state)
    self.notes = [*self._own_notes, *self._describe_shared(state)]
    self.intervals = metrics.metric_intervals(
      ranks,
      self._measured_ks,
      self._config.miss_rank,
      self._users,
    )
    yield from self._measure_ranks(ranks)

  def ranks(self, state) -> np.ndarray:
    """Rank of each example's target under `state`, `[N]`."""
    weights = weights_of(state)
    vectors = self._candidates.keep(weights)
    runtime = self._runtime
    return self._collect_ranks(
      lambda batch: self._ranks_of_model(
        weights, vectors, runtime.put_on_devices(batch)
      ),
      self._make_batches(runtime.eval_shards, runtime.local_eval_shards),
    )

  def _describe_shared(self, state) -> list[str]:
    """Says how many items have a score in common, since they share a row."""
    task = self._task
    if BIASES in task.tables():  # a number of its own parts each
      return []
    shared = count_shared(task, self._runtime, weights_of(state))
    if not shared:
      return []
    return [
      f'{shared:,} of the {len(task.corpus):,} items share a row of the table '
      'with others (config.tables) and have one score with them, so that their '
      'order in a list says nothing; loss.item_bias=True gives each item a '
      'number of its own.'
    ]

  def popularity(self, counts: np.ndarray) -> dict[str, float]:
    """The same metrics when all are ranked by `counts` `[rows]`."""
    # Dense places instead of counts: float32 counts to 2**24 only.
    _, place = np.unique(counts[self._task.corpus], return_inverse=True)
    vectors = jnp.asarray(place, jnp.float32)[:, None]
    ranks = self._collect_ranks(
      lambda batch: self._ranks_of_scores(vectors, batch),
      self._make_batches(),
    )
    return dict(self._measure_ranks(ranks))

  def _make_batches(self, shards: int = 1, own: range | None = None):
    c, max_len = self._config, self._task.model_config.max_len
    return pipeline.eval_batches(
      self._dataset.histories,
      self._examples,
      batch_size=c.batch_size + -c.batch_size % shards,
      capacity=max(c.batch_tokens, max_len * shards),
      max_len=max_len,
      seen='history' if c.filter_seen == 'history' else 'window',
      at_last_event=self._request_time == 'last_event',
      shards=shards,
      own=own,
    )

  def _collect_ranks(self, ranks_of, batches) -> np.ndarray:
    collected = []
    for batch in interruption.each(batches):
      # Fetched two batches late, so that the device never waits for us.
      if len(collected) > 1:
        collected[-2] = jax.device_get(collected[-2])
      collected.append(ranks_of(batch))
    finite = True
    ranks = [np.zeros(0, np.float32)]
    scores = []
    for rank, score, real in jax.device_get(collected):
      ranks.append(rank[real])
      scores += np.unique(score[real]).tolist()
      finite &= bool(np.all(np.isfinite(score[real])))
    targets = self._dataset.histories.items[self._examples.end]
    self.scores_are_alike = (
      len(set(scores)) == 1 and len(np.unique(targets)) >= MANY
    )
    # A score that is not finite beats nothing and would go unnoticed.
    if not finite:
      raise FloatingPointError('the model scores some items NaN or infinite')
    return np.concatenate(ranks)

  def _measure_ranks(self, ranks) -> Iterator[tuple[str, float]]:
    yield from metrics.ranking_metrics(
      ranks, self._measured_ks, self._config.miss_rank
    ).items()

  @property
  def _measured_ks(self) -> list[int]:
    # Of a list that is longer than the catalogue nobody learns anything.
    return [k for k in self._config.ks if k <= len(self._task.corpus)]
