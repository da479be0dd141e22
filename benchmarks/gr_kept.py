"""Models of requests run in parts: a history kept, then what is new.

The packing that `serve.cached_scorer` does for a service, for requests of
`gr_requests` and models of `gr_models`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import gr_models
from benchmarks.gr_requests import Request
from genrec_jax.features import CANDIDATES, HISTORY, Columns, Jagged
from genrec_jax.models import kept_requests
from genrec_jax.models.kept_requests import Place


def cut(request: Request, part: str, some: slice) -> Request:
  """A request with some of its 'history' or 'candidates'."""
  columns = {name: x[some] for name, x in getattr(request, part).items()}
  return request._replace(**{part: columns})


def count_tokens(model: gr_models.Model, request: Request) -> int:
  """Of context and history."""
  each = model.config.tokens_of_event
  return model.model.slots + each * len(request.history['age'])


def list_ages(model: gr_models.Model, request: Request) -> np.ndarray:
  each = model.config.tokens_of_event
  none = np.zeros(model.model.slots, np.int32)
  return np.concatenate([none, np.repeat(request.history['age'], each)])


def keep(
  model: gr_models.Model, requests: Sequence[Request], dtype='float32'
) -> list[np.ndarray]:
  """`[tokens, W]` of each request."""
  events = sum(len(r.history['age']) for r in requests)
  requests = [cut(r, 'candidates', slice(0)) for r in requests]
  # Room for one at least: nothing can be gathered of nothing.
  batch = model.pack(requests, max(events, 1), 0)
  rows = model.read(batch)
  kept = find_programs(model.make)['keep'](model.params, rows, batch)
  kept = np.asarray(kept.astype(dtype).astype('float32'))
  ends = np.cumsum([count_tokens(model, r) for r in requests])
  return np.split(kept, ends)[:-1]


def extend(
  model: gr_models.Model,
  whole: Sequence[Request],
  kept: Sequence[np.ndarray],
  known: int,
) -> list[np.ndarray]:
  """Rows of the events behind the first `known` of each request."""
  before = [cut(r, 'history', slice(0, known)) for r in whole]
  later = [cut(r, 'history', slice(known, None)) for r in whole]
  each = model.config.tokens_of_event
  fresh = [each * len(r.history['age']) for r in later]
  asked = [cut(r, 'candidates', slice(0)) for r in later]
  batch = model.pack(asked, sum(fresh) // each, 0)
  room = sum(map(len, kept)) + sum(fresh)
  place = make_place(model, before, kept, fresh, room)
  # Ages of all events, the new ones too, are counted from the request.
  ages = np.concatenate([list_ages(model, r) for r in whole])
  place = dataclasses.replace(place, age=jnp.asarray(ages))
  found = find_programs(model.make)['extend'](
    model.params, model.read(batch), batch, place
  )
  ends = np.cumsum(fresh)
  return np.split(np.asarray(found, np.float32), ends)[:-1]


def score(
  model: gr_models.Model,
  requests: Sequence[Request],
  kept: Sequence[np.ndarray],
  asked: int,
  room: int | None = None,
) -> dict[str, np.ndarray]:
  """Scores of the candidates of requests, in one call, by label.

  Args:
    model: the model.
    requests: the requests.
    kept: of each, as `keep` gives it.
    asked: room for candidates.
    room: for tokens; None is just what is needed.
  """
  counts = [len(r.candidates['weight']) for r in requests]
  events = sum(len(r.history['age']) for r in requests)
  batch = model.pack(requests, events, asked)
  # The histories have their lengths, but nothing else is there.
  history = batch.jagged[HISTORY]
  floats = history.floats
  none = Jagged(
    Columns(history.columns.values[:0], history.columns.names),
    history.lengths,
    floats and Columns(floats.values[:0], floats.names),
  )
  batch = dataclasses.replace(
    batch, jagged={HISTORY: none, CANDIDATES: batch.jagged[CANDIDATES]}
  )
  if room is None:
    room = sum(map(len, kept)) + sum(counts)
  place = make_place(model, requests, kept, counts, room)
  found = find_programs(model.make)['score'](
    model.params, model.read(batch), batch, place
  )
  return {name: np.asarray(x)[: sum(counts)] for name, x in found.items()}


def make_place(
  model: gr_models.Model,
  requests: Sequence[Request],
  kept: Sequence[np.ndarray],
  new: Sequence[int],
  room: int,
) -> Place:
  """What is kept, with room for so many new tokens of each behind it."""
  width = kept[0].shape[1]
  rows, ages = [], []
  for request, own, count in zip(requests, kept, new, strict=True):
    # Room holds what nobody may see.
    rows += [own, np.full((count, width), np.nan, np.float32)]
    ages += [list_ages(model, request), np.zeros(count, np.int32)]
  rows, ages = np.concatenate(rows), np.concatenate(ages)
  missing = room - len(rows)
  return Place(
    jnp.asarray(np.pad(rows, [(0, missing), (0, 0)])),
    jnp.asarray([len(own) for own in kept], jnp.int32),
    jnp.asarray(np.pad(ages, (0, missing)), jnp.int32),
    int(max(new)),
  )


@functools.cache
def find_programs(make: Callable) -> dict[str, Callable]:
  """Compiled functions of the model that `make(params)` gives."""

  def run_keep(params, rows, batch):
    return kept_requests.keep_history(make(params), rows, batch)

  def run_score(params, rows, batch, place):
    return kept_requests.score_candidates(make(params), rows, batch, place)

  def run_extend(params, rows, batch, place):
    return kept_requests.extend_history(make(params), rows, batch, place)

  return {
    'keep': jax.jit(run_keep),
    'score': jax.jit(run_score),
    'extend': jax.jit(run_extend),
  }
