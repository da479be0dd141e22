"""The programs of `serve.cached_predictor`.

| program     | takes                               | gives                    |
|-------------|-------------------------------------|--------------------------|
| `keep`      | a whole history                     | rows of its tokens       |
| `encode`    | further events, rows of known ones  | what is asked, and rows  |
| `find_best` | what is asked, items that were seen | the best items           |
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax import features
from genrec_jax.features import PAD, Columns, Jagged, Read
from genrec_jax.models import kept_histories
from genrec_jax.tasks import catalogue
from genrec_jax.tasks.retrieval import ITEMS, params_state


class HistoryPrograms:
  """Compiled functions of a retrieval task over what is kept of users."""

  def __init__(self, predictor):
    """Compiles nothing yet.

    Args:
      predictor: a `Predictor` of one device.
    """
    # Not `predictor` itself: its weights would outlive their use.
    task, runtime = predictor.task, predictor.runtime
    candidates, config = predictor.candidates, predictor.config.eval

    def read(weights, items):
      where = jnp.where(items == PAD, features.UNREAD, items)
      params, views = runtime.read_rows(
        task, weights, {'history': Read(where, ITEMS)}
      )
      model = nnx.merge(task.graphdef, params_state(params))
      return model, views['history'].all()

    @jax.jit
    def keep(weights, items, time, next_time, lengths):
      model, rows = read(weights, items)
      columns = jnp.stack([items, time, next_time], axis=1)
      events = Jagged(Columns(columns, ('item', 'time', 'next_time')), lengths)
      return kept_histories.keep_history(model, rows, events)

    @jax.jit
    def encode(weights, items, place):
      model, rows = read(weights, items)
      x, found = kept_histories.encode_new(model, rows, place)
      last = jnp.maximum(place.fresh - 1, 0)
      return task.represent(x[last]), found

    def make_best(k):
      @jax.jit
      def find_best(weights, vectors, query, batch):
        return catalogue.top_k(
          query,
          candidates.find(weights, vectors),
          candidates.corpus,
          batch,
          k,
          # The items of the window stand among those that were seen.
          filter_seen='none' if config.filter_seen == 'none' else 'history',
          item_chunk=config.item_chunk,
        )

      return find_best

    self.keep, self.encode, self._make_best = keep, encode, make_best
    self._best = {}

  def find_best(self, k: int):
    """The program that finds the best k items."""
    if k not in self._best:
      self._best[k] = self._make_best(k)
    return self._best[k]
