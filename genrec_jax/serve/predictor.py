"""A trained model that answers "what next?" for given histories."""

import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax import features
from genrec_jax.contracts import EvalRuntime, Extensions, Task, weights_of
from genrec_jax.data import fields, pipeline, splits
from genrec_jax.data import histories as histories_lib
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.features import PAD
from genrec_jax.formatting import format_moment
from genrec_jax.parallel import collectives
from genrec_jax.serve.asked_items import check_count, join_lists
from genrec_jax.serve.cached_predictor import CachedPredictor
from genrec_jax.serve.keep_options import KeepOptions
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.tasks import catalogue
from genrec_jax.tasks.candidates import CandidateReader
from genrec_jax.tasks.retrieval import Retrieval

LOG = logging.getLogger('genrec_jax')
_INT32 = np.iinfo(np.int32).max


class Predictor:
  """A trained model with its items; needs the workdir, not the data.

  predictor = Predictor.load('/tmp/run')
  predictor.recommend([['B-204', 'A-001'], ['A-001']], k=3)

  Attributes:
    items: the items of the model, with vocabulary and titles.
    step: training step of the weights.
    task: the `Retrieval`.
    config: of the run.
    weights: of the step.
    runtime: where they lie.
    candidates: reads the vectors of items.
    vectors: those that are kept.
  """

  def __init__(
    self,
    task,
    weights: Weights,
    items: ItemCatalogue,
    config,
    extensions=None,
    runtime: EvalRuntime | None = None,
  ):
    """Puts the pieces together; `load` is the usual way."""
    self.items, self.step = items, weights.step
    self.task, self.config = task, config
    self.weights = weights_of(weights)
    self.runtime = runtime or SingleDeviceEvalRuntime.of(extensions)
    self.candidates = CandidateReader(task, self.runtime, config.eval)
    self.vectors = self.candidates.keep(self.weights)
    self._recommenders = {}  # k -> compiled

  @classmethod
  def load(
    cls,
    workdir: str | os.PathLike,
    config=None,
    checkpoint: str = 'best',
    extensions: Extensions | None = None,
    make_runtime: Callable[[Task], EvalRuntime] | None = None,
  ) -> 'Predictor':
    """Loads what a training left in its workdir.

    Args:
      workdir: of the run.
      config: a config of the workdir; None takes the one that is saved there.
      checkpoint: 'best' (by validation; the latest where there is none) or
        'latest'.
      extensions: what is used from outside the library.
      make_runtime: of a task; where its weights shall lie. None is one device.
    """
    workdir = pathlib.Path(workdir)
    if config is None:
      config = ConfigDict(config_lib.read_config(workdir / 'config.json'))
    items = ItemCatalogue.load(workdir)
    task = Retrieval.from_config(config, items.corpus, items.counts, extensions)
    runtime = make_runtime and make_runtime(task)
    weights = load_weights(
      workdir, task, checkpoint, extensions, runtime, config.numerics.rows
    )
    LOG.info('weights of step %d', weights.step)
    return cls(task, weights, items, config, extensions, runtime)

  def recommend(
    self,
    histories: Sequence[Sequence],
    k: int = 10,
    *,
    times: Sequence[Sequence[float] | fields.Times] | None = None,
    request_time: int | None = None,
  ) -> list[list[tuple[Any, float]]]:
    """The best items for a few users.

    Args:
      histories: original item ids of each user. Items the model does not know
        are skipped.
      k: how many items.
      times: when, in seconds since 1970; fractions sort the events. None takes
        the items in their order. A model with a time bias needs them.
      request_time: as in `recommend_batches`.

    Returns:
      For each user (original item id, score), best first: k of them, fewer
      where the user has seen nearly everything, none for a user without a
      single known item.
    """
    answers = [[] for _ in histories]
    lengths = [len(items) for items in histories]
    if times is not None:
      times = [fields.from_seconds(own) for own in times]
      if [len(own.seconds) for own in times] != lengths:
        raise ValueError('times must have one time for each item')
    known = histories_lib.from_arrays(
      np.repeat(np.arange(len(lengths)), lengths),
      join_lists(histories, self.items.vocab.ids.dtype),
      None if times is None else fields.join_times(times),
      item_vocab=self.items.vocab,
      unknown='skip',
    )
    for rows, items, scores in self.recommend_batches(
      known, k=k, request_time=request_time
    ):
      for row, own, score in zip(rows, items, scores, strict=True):
        ids = self.items.vocab.decode(own[own != PAD]).tolist()
        pairs = zip(ids, score.tolist(), strict=False)
        answers[int(known.users.ids[row])] = list(pairs)
    return answers

  def keep_users(self, options: KeepOptions | None = None) -> CachedPredictor:
    """The same weights, for users who come back.

    Args:
      options: what may be used; None is their defaults.
    """
    return CachedPredictor(self, options or KeepOptions())

  def recommend_batches(
    self,
    histories: histories_lib.Histories,
    examples: splits.ExampleSpans | None = None,
    *,
    k: int,
    request_time: int | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The best items for any number of users, a batch at a time.

    Args:
      histories: in the vocabulary of the model.
      examples: which part of them to read; None is each user's to its end.
      k: how many items.
      request_time: seconds since 1970 at which the users ask, for the time
        bias; None takes the time of each user's last event. Only with
        `examples` None.

    Yields:
      Rows of the histories `[n]`, item indices `[n, k]` and scores `[n, k]`,
      best first; PAD and -inf where fewer than k items are unseen.
    """
    k = check_count(k)
    vocab = self.items.vocab
    if histories.vocab is not vocab and histories.vocab != vocab:
      raise ValueError('the histories have another vocabulary than the model')
    timed = bool(self.config.model.get('time_bias'))
    if timed and not histories.has_times:
      raise ValueError(
        'the model reads times (model.time_bias) and these histories have none'
      )
    if request_time is not None and not timed:
      raise ValueError('request_time is for a model with model.time_bias')
    if examples is None:
      examples = splits.to_predict(histories)
    if k not in self._recommenders:
      self._recommenders[k] = self._compile_recommender(k)
    recommend_batch = self._recommenders[k]
    pending = None  # one batch is computed while another is looked at
    for batch in self._make_batches(histories, examples):
      if request_time is not None:
        batch = _asked_at(batch, histories, int(request_time))
      batch = self.runtime.put_on_devices(batch)
      answer = recommend_batch(self.weights, self.vectors, batch)
      if pending is not None:
        yield _fetch_answer(pending)
      pending = answer
    if pending is not None:
      yield _fetch_answer(pending)

  def explain(self, histories, examples, chosen, *, history: int, k: int):
    """What a report shows of the examples `chosen`: past, target, answers."""
    titles = self.items.titles or {}

    def describe_item(index):
      item = self.items.vocab.decode(np.array([index])).item(0)
      return {'item': item, 'title': titles.get(int(index))}

    examples = splits.ExampleSpans(
      examples.row[chosen], examples.begin[chosen], examples.end[chosen]
    )
    answers = list(self.recommend_batches(histories, examples, k=k))
    items, scores = (np.concatenate([a[i] for a in answers]) for i in (1, 2))
    lines = []
    for i in range(len(chosen)):
      end = int(examples.end[i])
      begin = max(int(examples.begin[i]), end - history)
      past = [describe_item(j) for j in histories.items[begin:end]]
      if histories.times is not None:
        for event, moment in zip(past, histories.times[begin:end], strict=True):
          event['time'] = int(moment)
      target = histories.items[end]
      recommended = [
        {
          **describe_item(item),
          'score': float(score),
          'hit': bool(item == target),
        }
        for item, score in zip(items[i], scores[i], strict=True)
        if item != PAD
      ]
      hits = [answer['hit'] for answer in recommended]
      lines.append(
        {
          'user': histories.users.ids.item(int(examples.row[i])),
          'history': past,
          'target': describe_item(target),
          'target_rank': hits.index(True) + 1 if any(hits) else None,
          'recommendations': recommended,
        }
      )
    return lines

  def _make_batches(self, histories, examples) -> Iterator[features.Examples]:
    """Batches as for evaluation, but small where there is little to do."""
    c, max_len = self.config.eval, self.config.model.max_len
    shards = self.runtime.eval_shards
    begin, end = splits.find_tokens(examples, max_len)
    tokens = (end - begin).sum()
    capacity = pipeline.capacity_for(max(int(tokens), max_len))
    # Few different shapes compile few programs.
    batch_size = 1 << max(0, len(examples) - 1).bit_length()
    batch_size = min(c.batch_size, batch_size)
    capacity = min(max(c.batch_tokens, max_len), capacity)
    return pipeline.eval_batches(
      histories,
      examples,
      batch_size=batch_size + -batch_size % shards,
      capacity=max(capacity, max_len * shards),
      max_len=max_len,
      shards=shards,
      own=self.runtime.local_eval_shards,
      seen='history' if c.filter_seen == 'history' else 'window',
      at_last_event=c.get('request_time') == 'last_event',
    )

  def _compile_recommender(self, k: int):
    # Of a function that knew `self`, the weights would outlive their user.
    task, runtime, config = self.task, self.runtime, self.config.eval
    candidates = self.candidates

    def recommend_batch(weights, vectors, batch):
      reads = task.reads_for('predict', batch)
      params, rows = runtime.read_rows(task, weights, reads)
      answer = catalogue.top_k(
        task.predict(params, rows, batch),
        candidates.find(weights, vectors),
        candidates.corpus,
        batch,
        k,
        filter_seen=config.filter_seen,
        item_chunk=config.item_chunk,
      )
      return collectives.gather((batch.row, *answer))

    return runtime.jit(recommend_batch, ('split', 'split'), 'alike')


def _asked_at(
  batch: features.Examples, histories: histories_lib.Histories, moment: int
) -> features.Examples:
  """Puts `moment` behind the last event of each history."""
  events = batch.jagged[features.EVENTS]
  real = batch.weights > 0
  rows, lengths = batch.row[real], events.lengths[real]
  end = histories.offsets[rows + 1]
  early = histories.times[end - 1] > moment
  if early.any():
    user = histories.users.ids[rows[early][0]]
    last = histories.times[end - 1][early][0]
    raise ValueError(
      f'request_time {moment} is before the last event of user {user}: '
      f'{format_moment(moment)} is before {format_moment(last)}'
    )
  since_first = moment - histories.times[end - lengths]
  if since_first.max(initial=0) > _INT32:
    raise ValueError(
      f'request_time {moment} is {since_first.max()} seconds after the first '
      f'event of a user, more than {_INT32}; is it in seconds?'
    )
  columns = dataclasses.replace(
    events.columns, values=events.columns.values.copy()
  )
  columns['next_time'][np.cumsum(lengths) - 1] = since_first
  events = dataclasses.replace(events, columns=columns)
  return dataclasses.replace(batch, jagged={features.EVENTS: events})


def _fetch_answer(answer):
  """Rows, items and scores of the users there are, as NumPy arrays."""
  rows, items, scores = jax.device_get(answer)
  real = rows >= 0
  if np.isnan(scores[real]).any():
    raise FloatingPointError('the model scores some items NaN or infinite')
  return rows[real], items[real], scores[real]
