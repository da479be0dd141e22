"""The programs of `serve.cached_scorer`: what they take, and their few shapes.

A program is compiled for each rung of a ladder of lengths, when the service
starts. Everything a request asks for is cut and padded to one of these shapes,
so that nothing is compiled while users wait; `KeptPrograms.compiled` counts.

| program  | takes                                      | gives               |
|----------|--------------------------------------------|---------------------|
| `keep`   | a whole history                            | rows of its tokens  |
| `extend` | some further events, rows of the known ones| rows of their tokens|
| `score`  | candidates of several users, rows of theirs| scores              |
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax import features
from genrec_jax.data.requests.requests import week_second
from genrec_jax.features import CANDIDATES, HISTORY
from genrec_jax.models import kept_layers, kept_requests
from genrec_jax.models.kept_requests import Place
from genrec_jax.serve.keep_options import list_rungs
from genrec_jax.serve.user_events import Events, find_ages
from genrec_jax.tasks.request_ranking import RequestRanking


@dataclasses.dataclass(frozen=True)
class Asked:
  """One user's request, as arrays of rows.

  Attributes:
    context: name of each column of the context -> its row.
    moment: seconds when is asked; 0 without times.
    items: name of each feature of a candidate -> `[N]` int32 rows.
  """

  context: Mapping[str, int]
  moment: int
  items: Mapping[str, np.ndarray]

  def __len__(self) -> int:
    return len(next(iter(self.items.values())))


class KeptPrograms:
  """Compiled functions of a task's model over what is kept.

  Args:
    task: with a model of `models.stu`.
    runtime: an `EvalRuntime` of one device, which reads rows.
    micro_batch: candidates of a user that are scored at once.
    users: of a call of `score`, at most.
    extend_by: events that `extend` adds at once, at most.
  """

  def __init__(
    self,
    task: RequestRanking,
    runtime,
    *,
    micro_batch: int,
    users: int,
    extend_by: int,
  ):
    self._task, self._runtime = task, runtime
    self.micro_batch, self.users, self.extend_by = (
      micro_batch, users, extend_by,
    )  # fmt: skip
    self.slots = len(task.spec.context_columns)
    self.each = task.model_config.tokens_of_event
    self.width = kept_layers.row_width(task.model_config)
    self.most_tokens = self.slots + self.each * task.max_history
    self.compiled: set[tuple] = set()

  # --- Shapes

  @functools.cached_property
  def rungs(self) -> tuple[int, ...]:
    """Events of a history that programs have room for, ascending."""
    return list_rungs(self._task.max_history)

  def find_rung(self, events: int) -> int:
    """The least rung that has room for so many events."""
    return next(rung for rung in self.rungs if rung >= events)

  def count_tokens(self, events: int) -> int:
    """Of context and so many events."""
    return self.slots + self.each * events

  def find_room(self, users: int, events: int, new: int) -> int:
    """Tokens of packed sequences of users, with room for new ones.

    Args:
      users: how many.
      events: the longest history's rung.
      new: tokens of each that are new.
    """
    return users * (self.count_tokens(events) + new)

  # --- Calls

  def keep(self, weights, events: Events, asked: Asked) -> jax.Array:
    """`[slots + each * rung, W]` rows of a history and its context."""
    rung = self.find_rung(len(events))
    batch = self._make_batch([asked], [events], rung, [0], 0)
    self.compiled.add(('keep', rung))
    return self._keep(weights, batch)

  def extend(
    self, weights, new: Events, known: int, ages, kept, asked: Asked, rung: int
  ) -> jax.Array:
    """Rows of the tokens of new events, padded to those of `extend_by`.

    Args:
      weights: of the model.
      new: no more than `extend_by`.
      known: tokens that are known.
      ages: of the tokens known and new, one after the other.
      kept: `[find_room(1, rung, each * extend_by), W]`.
      asked: the request.
      rung: of the history.
    """
    batch = self._make_batch([asked], [new], self.extend_by, [0], 0)
    place = self._make_place(kept, [known], ages, self.each * self.extend_by)
    self.compiled.add(('extend', rung))
    return self._extend(weights, batch, place)

  def score(
    self, weights, asked: Sequence[Asked], start: int, known, ages, kept, rung
  ) -> jax.Array:
    """Scores `[users, micro_batch, L]` of a run of each user's candidates.

    Those beyond the last candidate mean nothing.

    Args:
      weights: of the model.
      asked: of up to `users` users.
      start: number of the first candidate of the run.
      known: `[users]` tokens of each that are known.
      ages: `[room]` of the tokens, `micro_batch` candidates behind the known.
      kept: `[find_room(users, rung, micro_batch), W]`, likewise.
      rung: of the longest history.
    """
    count = len(known)
    size = self.micro_batch
    items = {
      name: np.concatenate([
        _pad(one.items[name][start : start + size], size) for one in asked
      ])
      for name in asked[0].items
    }  # fmt: skip
    events = [max(n - self.slots, 0) // self.each for n in known]
    batch = self._make_batch(
      list(asked), None, 0, [size] * len(asked), count * size, items, events,
      count,
    )  # fmt: skip
    place = self._make_place(kept, known, ages, size)
    self.compiled.add(('score', count, rung))
    found = self._score(weights, batch, place)
    return found.reshape(count, size, -1)

  # --- Programs

  @functools.cached_property
  def _keep(self):
    @jax.jit
    def keep(weights, batch):
      model, rows = self._read(weights, batch)
      return kept_requests.keep_history(model, rows, batch)

    return keep

  @functools.cached_property
  def _extend(self):
    @jax.jit
    def extend(weights, batch, place):
      model, rows = self._read(weights, batch)
      return kept_requests.extend_history(model, rows, batch, place)

    return extend

  @functools.cached_property
  def _score(self):
    task = self._task
    is_binary = jnp.array([x.kind == 'binary' for x in task.spec.labels])

    @jax.jit
    def score(weights, batch, place):
      model, rows = self._read(weights, batch)
      found = kept_requests.score_candidates(model, rows, batch, place)
      outputs = jnp.stack([found[name] for name in task.labels], axis=-1)
      return jnp.where(is_binary[None], jax.nn.sigmoid(outputs), outputs)

    return score

  def _read(self, weights, batch):
    task = self._task
    reads = task.reads_for('predict', batch)
    params, views = self._runtime.read_rows(task, weights, reads)
    state = nnx.State(jax.tree.map(nnx.Param, params))
    model = nnx.merge(task.graphdef, state)
    return model, {name: views[name].all() for name in reads}

  # --- Batches

  def _make_place(self, kept, known, ages, new: int) -> Place:
    padded = np.zeros(len(kept), np.int32)
    padded[: len(ages)] = ages
    return Place(kept, np.asarray(known, np.int32), padded, new)

  def _make_batch(
    self,
    asked: list[Asked],
    events: Sequence[Events] | None,
    event_room: int,
    candidates: Sequence[int],
    candidate_room: int,
    items: Mapping[str, np.ndarray] | None = None,
    lengths: Sequence[int] | None = None,
    size: int | None = None,
  ) -> features.Examples:
    """Requests as `data.requests.packing` packs them.

    Args:
      asked: the requests.
      events: the histories; None where only their lengths are known.
      event_room: of the batch.
      candidates: of each request.
      candidate_room: of the batch.
      items: rows of all candidates, packed.
      lengths: of the histories, in place of those of `events`.
      size: requests of the batch; what is left is padding.
    """
    spec, size = self._task.spec, size or len(asked)
    names = [f.name for f in spec.items]
    columns = dict.fromkeys(names, np.zeros(0, np.int32))
    columns |= {features.ACTION: np.zeros(0), features.AGE: np.zeros(0)}
    watched = np.zeros(0, np.float32)
    if events is not None:
      lengths = [len(e) for e in events]
      for name in names:
        columns[name] = np.concatenate([e.items[name] for e in events])
      columns[features.ACTION] = np.concatenate([e.action for e in events])
      columns[features.AGE] = np.concatenate([
        find_ages(e, one.moment) for e, one in zip(events, asked, strict=True)
      ])  # fmt: skip
      if spec.watch_time:
        watched = np.concatenate([e.watch_time for e in events])
    history = features.Jagged(
      _stack(columns, event_room, np.int32),
      _pad(np.asarray(lengths, np.int32), size),
      _stack({features.WATCH_TIME: watched}, event_room, np.float32)
      if spec.watch_time
      else None,
    )
    own = [f.name for f in spec.candidate_features]
    none = np.zeros(0, np.int32)
    floats = [label.name for label in spec.labels] + [features.WEIGHT]
    asking = features.Jagged(
      _stack({n: (items or {}).get(n, none) for n in own}, candidate_room,
             np.int32),
      _pad(np.asarray(candidates, np.int32), size),
      _stack(dict.fromkeys(floats, none), candidate_room, np.float32),
    )  # fmt: skip
    context = {
      name: np.array([one.context[name] for one in asked], np.int32)
      for name in spec.context_columns
    }
    seconds = np.array([one.moment for one in asked], np.int64)
    seconds = week_second(seconds) if spec.timed else np.zeros_like(seconds)
    row = _pad(np.arange(len(asked), dtype=np.int32), size, -1)
    return features.Examples(
      row=row,
      weights=(row >= 0).astype(np.float32),
      ids=_stack(context, size, np.int32) if context else None,
      jagged={HISTORY: history, CANDIDATES: asking},
      group=row,
      int_extras=_stack({features.WEEK_SECOND: seconds}, size, np.int32),
    )


def _pad(values: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
  out = np.full(size, fill, values.dtype)
  out[: len(values)] = values
  return out


def _stack(
  columns: Mapping[str, np.ndarray], room: int, dtype
) -> features.Columns:
  out = np.zeros((room, len(columns)), dtype)
  for i, values in enumerate(columns.values()):
    out[: len(values), i] = values
  return features.Columns(out, tuple(columns))
