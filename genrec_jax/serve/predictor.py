"""A trained model that answers "what next?" for given histories."""

import functools
import logging
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint.full import CheckpointError, Checkpoints
from genrec_jax.data import pipeline
from genrec_jax.embedding import lookup
from genrec_jax.features import PAD
from genrec_jax.tasks import catalogue
from genrec_jax.train.state import named, unnamed

LOG = logging.getLogger('genrec_jax')


class Predictor:
  """Model, tables and catalogue, ready to score batches.

  predictor = Predictor.load(config, workdir, experiment)
  items, scores = predictor.recommend(batch, k=10)
  """

  def __init__(self, task, params, tables, dataset, config):
    self.task, self.dataset, self._config = task, dataset, config
    self._params, self._tables = params, tables
    self._catalogue = jax.jit(task.catalogue)(tables)
    self._recommend = functools.cache(self._compile)

  @classmethod
  def load(cls, config, workdir, experiment) -> 'Predictor':
    """Loads the weights `config.predict.checkpoint` names from a workdir."""
    params, tables, step = load_weights(
      workdir, experiment, config.predict.checkpoint
    )
    LOG.info('weights of step %d', step)
    return cls(experiment.task, params, tables, experiment.dataset, config)

  def recommend(self, batch, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best k items for each sequence: indices and scores, `[B, k]`.

    PAD fills up where fewer than k items remain after filtering.
    """
    k = min(k, len(self.task.corpus))
    return jax.device_get(
      self._recommend(k)(self._params, self._tables, self._catalogue, batch)
    )

  def batches(self, histories, examples) -> Iterator:
    """Evaluation batches of `examples`, filtered as `config.eval` says."""
    c = self._config.eval
    return pipeline.eval_batches(
      histories,
      examples,
      batch_size=c.batch_size,
      capacity=max(c.batch_tokens, self.task.model_config.max_len),
      max_len=self.task.model_config.max_len,
      seen='history' if c.filter_seen == 'history' else 'window',
    )

  def explain(self, histories, examples, chosen, *, history: int, k: int):
    """What a report shows of the examples `chosen`: past, target, answers."""
    vocab, titles = self.dataset.histories.vocab, self.dataset.titles or {}

    def shown(index):
      item = vocab.decode(np.array([index]))[0]
      return {'item': _plain(item), 'title': titles.get(int(index))}

    c = self._config
    batch = pipeline.collate(
      histories,
      examples,
      chosen,
      max_len=c.model.max_len,
      batch_size=len(chosen),
    )
    items, scores = self._recommend_window(batch, k)
    found = []
    for row, example in enumerate(chosen):
      end = int(examples.end[example])
      begin = max(int(examples.begin[example]), end - history)
      past = [shown(i) for i in histories.items[begin:end]]
      if histories.times is not None:
        for event, moment in zip(past, histories.times[begin:end], strict=True):
          event['time'] = int(moment)
      target = int(histories.items[end])
      answers = []
      for item, score in zip(items[row], scores[row], strict=True):
        if item != PAD:
          hit = bool(item == target)
          answers.append({**shown(item), 'score': float(score), 'hit': hit})
      user = histories.users.decode(np.array([examples.row[example] + 1]))[0]
      rank = [a['hit'] for a in answers]
      found.append(
        {
          'user': _plain(user),
          'history': past,
          'target': shown(target),
          'target_rank': rank.index(True) + 1 if any(rank) else None,
          'recommendations': answers,
        }
      )
    return found

  def _recommend_window(self, batch, k):
    k = min(k, len(self.task.corpus))
    answer = self._compile(k, filter_seen='window')
    return jax.device_get(
      answer(self._params, self._tables, self._catalogue, batch)
    )

  def _compile(self, k: int, filter_seen: str | None = None):
    corpus = jnp.asarray(self.task.corpus)

    @jax.jit
    def answer(params, tables, vectors, batch):
      rows = {n: lookup.DenseRows(t) for n, t in tables.items()}
      return catalogue.top_k(
        self.task.predict(params, rows, batch),
        vectors,
        corpus,
        batch,
        k,
        filter_seen=filter_seen or self._config.eval.filter_seen,
        item_chunk=self._config.eval.item_chunk,
      )

    return answer


def load_weights(workdir, experiment, which: str):
  """(params, tables, step) of a workdir's 'best' or 'latest' checkpoint.

  'best' falls back to the latest, with a message, in a run without validation.
  """
  workdir = pathlib.Path(workdir)
  if which not in ('best', 'latest'):
    raise ValueError(f"predict.checkpoint is {which!r}, not 'best' or 'latest'")
  abstract = experiment.abstract_state()
  with Checkpoints(workdir / 'best', log=LOG.warning) as best:
    if which == 'best' and best.latest() is None:
      LOG.info('no best checkpoint in %s, taking the latest', workdir)
      which = 'latest'
    if which == 'best':
      wanted = {'params': abstract.params, 'tables': abstract.tables}
      step, arrays, _ = best.restore(named(wanted))
      weights = unnamed(wanted, arrays)
      return weights['params'], weights['tables'], step
  with Checkpoints(workdir / 'checkpoints', log=LOG.warning) as latest:
    if latest.latest() is None:
      raise CheckpointError(f'{workdir} holds no checkpoint; train first')
    step, arrays, _ = latest.restore(named(abstract))
    state = unnamed(abstract, arrays)
    return state.params, state.tables, step


def _plain(value):
  """A NumPy scalar as Python's."""
  return value.item() if hasattr(value, 'item') else value
