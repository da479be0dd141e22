"""A step that also exchanges the ids, and maybe the rows, of the next batch.

While the devices compute on batch i, batch i + 1 is routed: which rows it needs
depends on no weights. In one program with the step the compiler can let these
collectives run beside the arithmetic. Two ways:

- exact: rows are fetched after the update of batch i. The numbers are the same
  as without looking ahead, bit for bit.
- stale: rows are also fetched, before that update. Rows that both batches read
  are one step old; a resumed run fetches the rows of its first batch anew.
"""

from collections.abc import Callable, Iterator

import jax

from genrec_jax.runtime.step import Step


class LookaheadIterator:
  """Iterator of (batch, the one behind it or None).

  Its state is that behind the first of the two, so that a run continued from a
  checkpoint meets the second again.
  """

  def __init__(self, source):
    """Wraps an iterator of batches with `get_state` and `set_state`."""
    self._source = source
    self._state = source.get_state()
    self._buffered = None  # (batch, state behind it)

  def __iter__(self) -> Iterator:
    return self

  def __next__(self):
    batch, state = self._buffered or self._pull_batch()
    if batch is None:
      raise StopIteration
    following = self._pull_batch()
    self._buffered = following if following[0] is not None else None
    self._state = state
    return batch, following[0]

  def _pull_batch(self):
    batch = next(self._source, None)
    return batch, self._source.get_state()

  def get_state(self) -> dict:
    return self._state

  def set_state(self, state: dict) -> None:
    self._buffered = None
    self._source.set_state(state)
    self._state = self._source.get_state()

  def close(self) -> None:
    self._source.close()


class PipelinedStep:
  """`(state, pair) -> (state, loss)`; holds what was made ready for the next.

  Attributes:
    prepare: (state, batch) -> what `run` needs of it.
    run: (state, batch, ready, following) -> (state, loss, ready of following).
  """

  def __init__(self, prepare: Callable, run: Callable):
    self._prepare, self._run = prepare, run
    self._ready = None  # (batch, what was made ready for it)

  def __call__(self, state, pair):
    batch, following = pair
    if self._ready is None or self._ready[0] is not batch:
      self._ready = batch, self._prepare(state, batch)
    # Behind the last batch there is none; any will do, nobody uses it.
    behind = batch if following is None else following
    state, loss, ready = self._run(state, batch, self._ready[1], behind)
    self._ready = None if following is None else (following, ready)
    return state, loss


def split_step(step: Step, *, stale: bool) -> tuple[Callable, Callable]:
  """(prepare, run) of a `PipelinedStep`, for one shard."""

  def prepare_batch(state, batch):
    routed, id_states = step.route(batch, state.step, state.id_states)
    return routed, step.fetch(state, routed) if stale else None, id_states

  def run_step(state, batch, ready, following):
    routed, rows, id_states = ready
    # From the states behind this batch's routing: routing waits for no update.
    coming, next_states = step.route(following, state.step + 1, id_states)
    early = step.fetch(state, coming) if stale else None
    if not stale:
      rows = step.fetch(state, routed)
    elif jax.tree.leaves(early):
      # Read before the tables are written, or XLA would copy them.
      early, state = jax.lax.optimization_barrier((early, state))
    state, loss = step.learn(state, batch, routed, rows, id_states)
    return state, loss, (coming, early, next_states)

  return prepare_batch, run_step
