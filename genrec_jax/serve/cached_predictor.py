"""Items for users whose histories are encoded once: retrieval with a cache.

A `Predictor` encodes a history with every question. `CachedPredictor` keeps the
keys and values of its tokens (`kv_cache`): an event that follows costs one
token, and so does a question at another time. `models.kept_histories` says why
the latest token is encoded each time.
"""

import dataclasses
import numbers
import threading
import time as time_lib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from genrec_jax.data import fields
from genrec_jax.data import histories as histories_lib
from genrec_jax.data.quoting import quote
from genrec_jax.features import PAD, Columns, Examples, Jagged
from genrec_jax.models import kept_histories, kept_layers
from genrec_jax.models.kept_histories import HistoryPlace
from genrec_jax.serve.asked_items import check_count, join_lists
from genrec_jax.serve.history_programs import HistoryPrograms
from genrec_jax.serve.keep_options import (
  KeepOptions,
  are_same_settings,
  list_rungs,
)
from genrec_jax.serve.kv_cache import NOBODY, Share
from genrec_jax.serve.user_events import (
  EventMemory,
  Events,
  Known,
  check_user,
)

_INT32 = np.iinfo(np.int32).max


@dataclasses.dataclass
class EncodingWork:
  """What was computed.

  Attributes:
    questions: that were answered.
    kept: histories that were encoded as a whole.
    kept_events: events of these.
    encoded_events: tokens that were encoded behind what was kept of others, one
      with each question at least.
    rebuilt: histories among `kept` of which something was kept already: by
      other weights, or of other events, or of a longer past than is read.
  """

  questions: int = 0
  kept: int = 0
  kept_events: int = 0
  encoded_events: int = 0
  rebuilt: int = 0


class CachedPredictor:
  """A `Predictor` that keeps what it knows of histories.

      cached = CachedPredictor(Predictor.load('/tmp/run'))
      cached.warm_up()
      cached.recommend('ann', history=['B-204', 'A-001'])
      cached.recommend('ann', new_events=['C-077'])   # behind these
      cached.recommend('ann', k=50)                   # of the same events

  Answers are those of `Predictor.recommend`, but for the order of sums; with a
  cache in bfloat16 they are near them. It may be called from several threads:
  calls of one user wait for each other.

  Attributes:
    cache: the `PagedCache`.
    work: what was computed so far.
    compiled: (program, its size) of those that were compiled.
  """

  def __init__(self, predictor, options: KeepOptions = KeepOptions()):
    """Makes an empty cache; nothing is compiled yet.

    Args:
      predictor: a `Predictor` of a run of the model hstu, on one device.
      options: what may be used.

    Raises:
      ValueError: nothing can be kept for this model, or on this mesh.
    """
    task = predictor.task
    if why := kept_histories.explain_refusal(task.model_config):
      raise ValueError(why)
    if hasattr(predictor.runtime, 'restore_weights'):
      raise ValueError(
        'what is kept of histories lies on one device, and this predictor has '
        'its tables on a mesh: load it without make_runtime'
      )
    self.options, self.work = options, EncodingWork()
    self._longest = task.model_config.max_len
    options.check_length(self._longest)
    self._rungs = list_rungs(self._longest)
    self._new = min(options.extend_by + 1, self._longest)
    self.cache = options.make_cache(
      kept_layers.row_width(task.model_config), self._longest
    )
    self._events = EventMemory(
      self._longest, False, options.remembered, options.drop_at_once
    )
    self.compiled: set[tuple[str, int]] = set()
    self._version = predictor, object()
    self._counting = threading.Lock()
    self._filter = predictor.config.eval.filter_seen
    self._timed = bool(task.model_config.time_bias)
    self._programs = HistoryPrograms(predictor)

  # --- Calls

  def recommend(
    self,
    user: str | int,
    k: int = 10,
    *,
    history: Sequence | None = None,
    new_events: Sequence | None = None,
    times: Sequence[float] | None = None,
    request_time: int | None = None,
  ) -> list[tuple[Any, float]]:
    """The best items for a user.

    Args:
      user: whose history is kept.
      k: how many items.
      history: item ids of all events, the latest last. Those that are known
        already are not encoded again. Items the model does not know are
        skipped. None: the events that are known.
      new_events: item ids of events behind the known ones, in place of
        `history`.
      times: of the events that are given, in seconds since 1970; a model with a
        time bias needs them.
      request_time: when is asked, for a model with a time bias; None is the
        time of the last event.

    Returns:
      (original item id, score), best first: k of them, fewer where the user has
      seen nearly everything, none without a single known item.

    Raises:
      ValueError: nothing is known of the user, or no longer, and no `history`
        is given; an event is older than the latest that is known; or times are
        missing.
    """
    k = check_count(k)
    if history is not None and new_events is not None:
      raise ValueError('give history, or new_events that follow it, not both')
    if request_time is not None and not self._timed:
      raise ValueError('request_time is for a model with model.time_bias')
    name = check_user(user)
    given = history if history is not None else new_events
    if given is None and times is not None:
      raise ValueError('times are of events, and none are given')
    with self.cache.serve([name]):
      known = self._events.get(name)
      if known is None and history is None:
        raise ValueError(
          f'nothing is known of user {quote(name)}, or no longer; give its '
          'history'
        )
      if given is not None:
        events = self._read_events(given, times, known)
        known = self._join(name, known, events, history is not None)
      moment = self._find_moment(name, known, request_time)
      found = []
      if len(known.events):
        predictor, version = self._version
        query = self._encode(predictor, version, name, known, moment)
        found = self._search(predictor, query, known, k)
      # Only now: what fails must leave nothing behind.
      self._events.put(name, known)
    with self._counting:
      self.work.questions += 1
    return found

  def use(self, predictor) -> None:
    """Answers with other weights from now on; what is kept is made anew.

    Calls that are running end with the weights they began with.

    Args:
      predictor: a `Predictor` of the same run, with weights of another step.
    """
    if not hasattr(predictor, 'recommend_batches'):
      raise ValueError(f'use takes a Predictor, not {quote(repr(predictor))}')
    former, _ = self._version
    shapes = [
      jax.tree.map(lambda x: (x.shape, x.dtype), p.weights)
      for p in (predictor, former)
    ]
    same = shapes[0] == shapes[1] and predictor.items.vocab == self.items.vocab
    for part in ('model', 'eval', 'loss'):
      same &= are_same_settings(
        *(p.config[part].to_dict() for p in (predictor, former))
      )
    if not same:
      raise ValueError(
        'these are weights of another model, of other items, or of a run with '
        'other settings of model, eval or loss'
      )
    self._version = predictor, object()

  def forget(self, user: str | int) -> None:
    """Drops what is known of a user, its events too."""
    name = check_user(user)
    with self.cache.hold([name]):
      self._events.forget(name)
      self.cache.drop(name)

  def warm_up(self, ks: Sequence[int] = (10,), most_seen: int = 4096) -> dict:
    """Compiles every program that calls may need.

    Args:
      ks: how many items will be asked for.
      most_seen: items that a user has seen, at most, where
        `eval.filter_seen='history'` leaves them out; for users with more,
        programs are compiled when they ask.

    Returns:
      {'programs', 'seconds'}.
    """
    begin = time_lib.perf_counter()
    predictor, _ = self._version
    none = Events({'item': np.zeros(0, np.int32)}, np.zeros(0, np.int32),
                  np.zeros(0, np.int64))  # fmt: skip
    share = Share(NOBODY, '', 0, 0)
    for rung in self._rungs:
      rows = self._keep(predictor, none, rung)
      with self.cache.hold([NOBODY]):
        self.cache.put(rows, [share])
      kept = self.cache.read(np.full(rung, self.cache.no_slot))
      query, rows = self._encode_new(predictor, none, 0, 0, kept, rung, 0)
      with self.cache.hold([NOBODY]):
        self.cache.put(rows, [share])
    for k in ks:
      seen = np.zeros(0, np.int32)
      for size in self._list_seen_rungs(most_seen):
        jax.block_until_ready(self._find_best(predictor, query, seen, size, k))
    self.cache.warm_up()
    with self.cache.hold([NOBODY]):
      self.cache.drop(NOBODY)
    return {
      'programs': len(self.compiled),
      'seconds': time_lib.perf_counter() - begin,
    }

  @property
  def items(self):
    """The `ItemCatalogue` of the run."""
    return self._version[0].items

  # --- Events

  def _read_events(self, given: Sequence, times, known: Known | None) -> Events:
    if isinstance(given, str):
      raise ValueError(f'events are a sequence of items, not {quote(given)}')
    vocab, items = self.items.vocab, list(given)
    if times is not None:
      times = fields.from_seconds(times)
      if len(times.seconds) != len(items):
        raise ValueError(
          f'{len(items):,} events have {len(times.seconds):,} times'
        )
    elif self._timed and len(items):
      raise ValueError(
        'the model reads times (model.time_bias): give times of the events'
      )
    if not items:
      none = np.zeros(0, np.int32)
      return Events({'item': none}, none, none.astype(np.int64))
    histories = histories_lib.from_arrays(
      np.zeros(len(items), np.int64),
      join_lists([items], vocab.ids.dtype),
      times,
      item_vocab=vocab,
      unknown='skip',
    )
    rows = np.asarray(histories.items, np.int32)
    if times is None:
      # In the order in which they are given, behind all that is known.
      last = 0 if known is None or known.latest is None else known.latest
      moments = np.full(len(rows), last, np.int64)
    else:
      moments = np.asarray(histories.times, np.int64)
    return Events({'item': rows}, np.zeros(len(rows), np.int32), moments)

  def _join(self, name, known: Known | None, events: Events, is_whole: bool):
    """The events of a user, and all items that it ever had."""
    seen = [events.items['item']]
    if known is not None and not is_whole:
      seen.append(known.seen)
    found = self._events.join(name, known, events, is_whole)
    return dataclasses.replace(found, seen=np.unique(np.concatenate(seen)))

  def _find_moment(self, name, known: Known, request_time) -> int:
    events = known.events
    if not self._timed or not len(events):
      return 0
    # Whole numbers of any size: differences of int64 may wrap around.
    first, last = int(events.time[0]), int(events.time[-1])
    if last - first > _INT32:
      raise ValueError(
        f'the events of user {quote(name)} are {last - first:,} seconds apart, '
        f'more than {_INT32:,}; are times in seconds?'
      )
    if request_time is None:
      return last
    if isinstance(request_time, bool) or not isinstance(
      request_time, numbers.Real
    ):
      raise ValueError(
        f'request_time is {quote(repr(request_time))}, must be in seconds'
      )
    if not last <= request_time <= first + _INT32:
      raise ValueError(
        f'request_time is {request_time:,}, must be from the latest event of '
        f'user {quote(name)} that is known, at {last:,}, to {_INT32:,} seconds '
        'behind the first; is it in seconds?'
      )
    return int(request_time)

  # --- Encoding

  def _encode(self, predictor, version, name, known: Known, moment: int):
    """The query `[1, D]` of a user that is held."""
    events, count = known.events, len(known.events)
    stamp = version, known.version, known.first
    generation = self.cache.generation
    was_kept = self.cache.peek(name) is not None
    entry = self.cache.find(name, stamp)
    done = 0 if entry is None else entry.tokens
    rung = next(r for r in self._rungs if r >= count)
    # Adding many is dearer than beginning anew.
    many = count - done > max(count // 2, self._new)
    anew = many or entry is None
    if many:
      rows = self._keep(predictor, events, rung)
      done = count - 1
      self.cache.put(rows, [Share(name, stamp, 0, done)])
    with self._counting:
      self.work.kept += anew
      self.work.kept_events += count if anew else 0
      self.work.rebuilt += was_kept and entry is None
    query = None
    while done < count:
      new = min(self._new, count - done)
      kept = self._read_kept(name, done, rung, generation)
      query, rows = self._encode_new(
        predictor, events, done, new, kept, rung, moment
      )
      # The last token is final only once another follows.
      final = new if done + new < count else new - 1
      if final or not done:
        self.cache.put(rows, [Share(name, stamp, done, final)])
      done += new
      with self._counting:
        self.work.encoded_events += 0 if anew else new
    return query

  def _read_kept(self, name, done: int, rung: int, generation) -> jax.Array:
    slots = np.full(rung, self.cache.no_slot, np.int32)
    entry = self.cache.peek(name)
    if done and entry is not None:
      slots[:done] = self.cache.list_slots(entry)[:done]
    # Refused where the entry has gone with the whole cache.
    return self.cache.read(slots, generation)

  def _keep(self, predictor, events: Events, rung: int) -> jax.Array:
    self.compiled.add(('keep', rung))
    items, times = _pad(events.items['item'], rung), self._find_times(events)
    return self._programs.keep(
      predictor.weights, items, *(_pad(x, rung) for x in times),
      np.array([len(events)], np.int32),
    )  # fmt: skip

  def _encode_new(self, predictor, events, done, new, kept, rung, moment):
    """What is asked after the last of some tokens, and rows of all of them."""
    self.compiled.add(('encode', rung))
    times = self._find_times(events, moment)
    place = HistoryPlace(
      kept,
      np.array([done], np.int32),
      np.array([new], np.int32),
      *(_pad(x[: done + new], rung) for x in times),
      self._new,
    )
    items = _pad(events.items['item'][done : done + new], self._new)
    return self._programs.encode(predictor.weights, items, place)

  def _find_times(self, events: Events, moment: int | None = None):
    """Seconds since the first event, of each and of the one behind it."""
    if not len(events) or not self._timed:
      none = np.zeros(len(events), np.int32)
      return none, none
    first, last = events.time[0], events.time[-1]
    time = (events.time - first).astype(np.int32)
    end = (last if moment is None else moment) - first
    return time, np.append(time[1:], np.int32(end))

  # --- Search

  def _search(self, predictor, query, known: Known, k: int):
    seen = np.zeros(0, np.int32)
    if self._filter != 'none':
      whole = self._filter == 'history'
      seen = known.seen if whole else known.events.items['item']
    size = next(s for s in self._list_seen_rungs(len(seen)) if s >= len(seen))
    found = self._find_best(predictor, query, seen, size, k)
    items, scores = (x[0] for x in jax.device_get(found))
    if np.isnan(scores).any():
      raise FloatingPointError('the model scores some items NaN or infinite')
    items, scores = items[items != PAD], scores[items != PAD]
    ids = predictor.items.vocab.decode(items).tolist()
    return list(zip(ids, scores.tolist(), strict=True))

  def _find_best(self, predictor, query, seen, size: int, k: int):
    self.compiled.add((f'best {k}', size))
    batch = Examples(
      row=np.zeros(1, np.int32),
      weights=np.ones(1, np.float32),
      seen=Jagged(
        Columns(_pad(seen, size)[:, None], ('item',)),
        np.array([len(seen)], np.int32),
      ),
    )
    return self._programs.find_best(k)(
      predictor.weights, predictor.vectors, query, batch
    )

  def _list_seen_rungs(self, most: int) -> list[int]:
    """Room for items that are left out: few sizes, up to one for `most`."""
    found = [self._longest]
    while self._filter == 'history' and found[-1] < most:
      found.append(found[-1] * 4)
    return found


def _pad(values: np.ndarray, size: int) -> np.ndarray:
  out = np.zeros(size, np.int32)
  out[: len(values)] = values
  return out
