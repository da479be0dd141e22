"""Scores of thousands of candidates at the cost of few: M-FALCON with a cache.

`CachedScorer` computes the keys and values of a user's history once, keeps them
(`kv_cache`), and runs candidates against them in micro-batches of one shape
(arXiv 2402.17152, algorithm 1). An event that is added costs one token, where
the model counts places and times from the start of the history
(`model.counted_from='start'`, `models.kept_requests.explain_rebuilding`); else
what is kept serves the requests of one moment.
"""

import dataclasses
import logging
import threading
import time as time_lib
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from genrec_jax.data.quoting import quote
from genrec_jax.data.requests.requests import (
  RequestDataset,
  Requests,
  keep_oldest,
)
from genrec_jax.models import kept_requests
from genrec_jax.serve.keep_options import KeepOptions, are_same_settings
from genrec_jax.serve.kept_programs import Asked, KeptPrograms
from genrec_jax.serve.kv_cache import NOBODY, Share
from genrec_jax.serve.request_scorer import check_ages
from genrec_jax.serve.user_events import (
  EventMemory,
  Events,
  Known,
  check_user,
  find_ages,
  read_events,
)

LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class CacheOptions(KeepOptions):
  """What a `CachedScorer` may use, beside what is kept.

  Attributes:
    micro_batch: candidates of a user that are scored at once; the model's
      `data.max_candidates` if that is less.
    users: whose candidates are scored together, at most.
  """

  micro_batch: int = 256
  users: int = 1


@dataclasses.dataclass
class Work:
  """What was computed, in requests and tokens.

  Attributes:
    requests: that were scored.
    candidates: of them.
    kept: histories that were computed as a whole.
    kept_events: events of these.
    extended_events: events that were added to what was kept.
    rebuilt: histories that were computed as a whole although something was kept
      of them: by other weights, for another moment, or of other events.
  """

  requests: int = 0
  candidates: int = 0
  kept: int = 0
  kept_events: int = 0
  extended_events: int = 0
  rebuilt: int = 0


class CachedScorer:
  """A `RequestScorer` that keeps what it knows of histories.

      scorer = CachedScorer(RequestScorer.load('/tmp/run'))
      scorer.warm_up()
      scorer.score('ann', candidates, history=events)   # all of the history
      scorer.score('ann', candidates)                   # of the same events
      scorer.score('ann', candidates, new_events=one)   # and one more

  Scores are those of `RequestScorer.score`, but for the order of sums; with a
  cache in bfloat16 they are near them. It may be called from several threads:
  calls of one user wait for each other.

  Attributes:
    cache: the `PagedCache`.
    work: what was computed so far.
  """

  def __init__(self, scorer, options: CacheOptions = CacheOptions()):
    """Makes an empty cache; nothing is compiled yet.

    Args:
      scorer: a `RequestScorer` of a run of model 'stu', on one device.
      options: what may be used.

    Raises:
      ValueError: nothing can be kept for this model; the message says why.
    """
    task = scorer.task
    config = task.model_config
    if not isinstance(config, kept_requests.Config):
      raise ValueError(
        'only the model stu keeps something of a history; this run has another '
        'one, whose cost does not depend on it'
      )
    if why := kept_requests.explain_refusal(config):
      raise ValueError(
        f'nothing can be kept of histories for candidates, because of {why}'
      )
    self._scorer, self._task, self.options = scorer, task, options
    self._programs = KeptPrograms(
      task,
      scorer.runtime,
      micro_batch=min(options.micro_batch, task.max_candidates),
      users=options.users,
      extend_by=min(options.extend_by, task.max_history),
    )
    options.check_length(task.max_history)
    self.cache = options.make_cache(
      self._programs.width, self._programs.most_tokens
    )
    self.work = Work()
    self._events = EventMemory(
      task.max_history,
      scorer.reads_oldest,
      options.remembered,
      options.drop_at_once,
    )
    self._weights = scorer.weights, object()
    self._counting = threading.Lock()
    self.rebuilds_because = kept_requests.explain_rebuilding(
      config, self._programs.slots
    )

  # --- Calls

  def score(
    self,
    user: str | int,
    candidates,
    *,
    history=None,
    new_events=None,
    time: float | str | None = None,
    context: Mapping[str, object] | None = None,
  ) -> np.ndarray:
    """Scores of N candidates, `[N, L]` float32, as `RequestScorer.score` gives.

    Args:
      user: whose history is kept; also names its context, as in
        `RequestScorer.score`.
      candidates: any number of them.
      history: all events of the user, the latest last. Those that are known
        already are not computed again. None: those that are known.
      new_events: events behind those that are known, in place of `history`.
      time: when is asked; None is the time of the last event.
      context: as in `RequestScorer.score`.

    Raises:
      ValueError: as there; or nothing is known of the user, or no longer, and
        no `history` is given; or an event is older than the latest that is
        known.
    """
    if history is not None and new_events is not None:
      raise ValueError('give history, or new_events that follow it, not both')
    name = check_user(user)
    given = history if history is not None else new_events
    with self.cache.serve([name]):
      known = self._events.get(name)
      if known is None and history is None:
        raise ValueError(
          f'nothing is known of user {quote(name)}, or no longer; give its '
          'history'
        )
      # Encoded without the moment, which may be that of a known event.
      last = None if known is None else known.latest
      moment = last if time is None and given is None else time
      dataset, requests = self._scorer.encode(
        [] if given is None else given, candidates, user, moment, context
      )
      events = read_events(dataset, 0, len(dataset.events))
      if given is not None:
        known = self._events.join(name, known, events, history is not None)
      moment = self._find_moment(requests, known, time)
      if known.events.time is not None:
        check_ages(known.events.time, moment)
      context = {n: int(x[0]) for n, x in dataset.context.items()}
      asked = Asked(context, moment, requests.items)
      (found,) = self._score_known([(name, known, asked)])
      # Only now: what fails must leave nothing behind.
      self._events.put(name, known)
      return found

  def score_requests(
    self, dataset: RequestDataset, requests: Requests
  ) -> Iterator[np.ndarray]:
    """Scores of the candidates of requests, in their order, some at a time.

    Args:
      dataset: the events, in rows of these tables.
      requests: the requests; they need no labels.
    """
    if self._scorer.reads_oldest:
      requests = keep_oldest(dataset.events, requests, self._task.max_history)
    size = self.options.users
    for first in range(0, len(requests), size):
      together, taken = [], set()
      for r in range(first, min(first + size, len(requests))):
        user = int(requests.user[r])
        if user in taken:  # two moments of one user: one after the other
          yield from self._score_dataset(dataset, requests, together)
          together, taken = [], set()
        together.append(r)
        taken.add(user)
      yield from self._score_dataset(dataset, requests, together)

  def _score_dataset(self, dataset, requests, numbers: Sequence[int]):
    # No user of `score` has such a name.
    names = [('row', int(requests.user[r])) for r in numbers]
    with self.cache.serve(names):
      asked = []
      for name, r in zip(names, numbers, strict=True):
        user = requests.user[r]
        begin = int(dataset.events.offsets[user])
        known = self._events.join(
          name,
          self._events.get(name),
          read_events(dataset, begin, int(requests.end[r])),
          True,
        )
        context = dataset.find_context(requests, np.array([r]))
        some = slice(requests.offsets[r], requests.offsets[r + 1])
        asked.append((
          name,
          known,
          Asked(
            {n: int(x[0]) for n, x in context.items()},
            0 if requests.time is None else int(requests.time[r]),
            {n: x[some] for n, x in requests.items.items()},
          ),
        ))  # fmt: skip
      found = self._score_known(asked)
      for name, known, _ in asked:
        self._events.put(name, known)
    yield from (scores for scores in found if len(scores))

  def use(self, scorer) -> None:
    """Scores with other weights from now on; what is kept is made anew.

    Calls that are running end with the weights they began with.

    Args:
      scorer: of the same run, with weights of another step.
    """
    shapes = [
      jax.tree.map(lambda x: (x.shape, x.dtype), weights)
      for weights in (scorer.weights, self._weights[0])
    ]
    same = shapes[0] == shapes[1] and scorer.spec == self._task.spec
    configs = [
      dataclasses.asdict(s.task.model_config) for s in (scorer, self._scorer)
    ]
    same = same and are_same_settings(*configs)
    vocabs = [getattr(s, 'vocabs', None) for s in (scorer, self._scorer)]
    if not same or vocabs[0] != vocabs[1]:
      raise ValueError(
        'these are weights of another model, or for other requests'
      )
    # The former one would keep its weights.
    self._scorer = scorer
    self._weights = scorer.weights, object()

  def forget(self, user: str | int) -> None:
    """Drops what is known of a user, its events too."""
    name = check_user(user)
    with self.cache.hold([name]):
      self._events.forget(name)
      self.cache.drop(name)

  def warm_up(self) -> dict:
    """Compiles every program that calls may need.

    Returns:
      {'programs', 'seconds'}.
    """
    begin = time_lib.perf_counter()
    programs, spec = self._programs, self._task.spec
    weights, _ = self._weights
    timed = np.zeros(0, np.int64) if spec.timed else None
    watched = np.zeros(0, np.float32) if spec.watch_time else None
    none = np.zeros(0, np.int32)

    def make(count):
      return Events(
        {f.name: np.zeros(count, np.int32) for f in spec.items},
        np.zeros(count, np.int32),
        None if timed is None else np.zeros(count, np.int64),
        None if watched is None else np.zeros(count, np.float32),
      )

    asked = Asked(
      dict.fromkeys(spec.context_columns, 0), 0,
      {f.name: none for f in spec.candidate_features},
    )  # fmt: skip
    for rung in programs.rungs:
      rows = programs.keep(weights, make(rung), asked)
      share = Share(NOBODY, '', 0, 0)
      with self.cache.hold([NOBODY]):
        self.cache.put(rows, [share])
      room = programs.find_room(1, rung, programs.each * programs.extend_by)
      if not self.rebuilds_because:
        kept = self.cache.read(np.full(room, self.cache.no_slot))
        fresh = programs.extend(
          weights, make(0), programs.slots, [], kept, asked, rung
        )
        with self.cache.hold([NOBODY]):
          self.cache.put(fresh, [share])
      for count in {1, programs.users}:
        room = programs.find_room(count, rung, programs.micro_batch)
        kept = self.cache.read(np.full(room, self.cache.no_slot))
        known = [programs.slots] + [0] * (count - 1)
        jax.block_until_ready(
          programs.score(weights, [asked], 0, known, [], kept, rung)
        )
    self.cache.warm_up()
    with self.cache.hold([NOBODY]):
      self.cache.drop(NOBODY)
    return {
      'programs': len(programs.compiled),
      'seconds': time_lib.perf_counter() - begin,
    }

  # --- Histories

  def _find_moment(self, requests: Requests, known: Known, time) -> int:
    if requests.time is None:
      return 0
    last = 0 if known.latest is None else known.latest
    moment = int(requests.time[0])
    if time is None:
      return max(moment, last)
    if moment < last:
      raise ValueError(
        f'time is {moment:,}, before the latest event that is known, at '
        f'{last:,}'
      )
    return moment

  def _stamp(self, version, known: Known, asked: Asked):
    """All that the rows of a history depend on, but its later events."""
    c = self._task.model_config
    found = [version, known.version, known.first]
    if self._programs.slots:
      found.append(tuple(asked.context.items()))
      found.append(len(known.events) >= c.min_context_events)
    if self.rebuilds_because:
      found.append(len(known.events))
      if c.counted_from == 'request':
        found.append(asked.moment)
    return tuple(found)

  # --- Scores

  def _score_known(
    self, asked: Sequence[tuple[str, Known, Asked]]
  ) -> list[np.ndarray]:
    """Scores of users that are held, in their order."""
    weights, version = self._weights
    programs, labels = self._programs, len(self._task.labels)
    entries, generation = [], self.cache.generation
    for name, known, one in asked:
      if len(one):
        stamp = self._stamp(version, known, one)
        entries.append(self._keep(weights, stamp, name, known, one))
      else:
        entries.append(None)
    with self._counting:
      self.work.requests += len(asked)
      self.work.candidates += sum(len(one) for *_, one in asked)
    scored = [i for i, entry in enumerate(entries) if entry is not None]
    found = [np.zeros((0, labels), np.float32) for _ in asked]
    if not scored:
      return found
    # All alike: of the shapes that were compiled.
    count = 1 if len(scored) == 1 else programs.users
    some = [asked[i] for i in scored]
    rung = programs.find_rung(max(len(known.events) for _, known, _ in some))
    size = programs.micro_batch
    slots, ages = [], []
    for i, (_, known, one) in zip(scored, some, strict=True):
      slots += [
        self.cache.list_slots(entries[i]), np.full(size, self.cache.no_slot)
      ]  # fmt: skip
      ages += [self._list_ages(known.events, one), np.zeros(size, np.int64)]
    kept = self.cache.read(
      _fill(
        np.concatenate(slots),
        programs.find_room(count, rung, size),
        self.cache.no_slot,
      ),
      generation,
    )
    ages = np.concatenate(ages)
    tokens = [programs.count_tokens(len(k.events)) for _, k, _ in some]
    tokens += [0] * (count - len(some))
    most = max(len(one) for *_, one in some)
    # Fetched at the end: while one run is computed the next is prepared.
    runs = [
      programs.score(
        weights, [one for *_, one in some], start, tokens, ages, kept, rung
      )
      for start in range(0, most, size)
    ]
    scores = np.concatenate(jax.device_get(runs), axis=1)
    for n, i in enumerate(scored):
      found[i] = scores[n, : len(asked[i][2])]
      if not np.isfinite(found[i]).all():
        raise FloatingPointError('the model scores some candidates NaN')
    return found

  def _list_ages(self, events: Events, asked: Asked) -> np.ndarray:
    ages = np.repeat(find_ages(events, asked.moment), self._programs.each)
    return np.concatenate([np.zeros(self._programs.slots, np.int64), ages])

  def _keep(self, weights, stamp, name, known: Known, asked: Asked):
    """The entry of a user, with all of its events."""
    programs, events = self._programs, known.events
    generation = self.cache.generation
    wanted = programs.count_tokens(len(events))
    was_kept = self.cache.peek(name) is not None
    entry = self.cache.find(name, stamp)
    is_stale = was_kept and entry is None
    more = len(events)
    if entry is not None:
      more = (wanted - entry.tokens) // programs.each
    # Adding many is dearer than beginning anew.
    if entry is None or more > max(len(events) // 2, programs.extend_by):
      rows = programs.keep(weights, events, asked)
      self.cache.put(rows, [Share(name, stamp, 0, wanted)])
      with self._counting:
        self.work.kept += 1
        self.work.kept_events += len(events)
        self.work.rebuilt += is_stale
      return self.cache.peek(name)
    rung = programs.find_rung(len(events))
    ages = self._list_ages(events, asked)
    by = programs.extend_by
    room = programs.find_room(1, rung, programs.each * by)
    while entry.tokens < wanted:
      done = (entry.tokens - programs.slots) // programs.each
      new = events.take(slice(done, done + by))
      kept = self.cache.read(
        _fill(self.cache.list_slots(entry), room, self.cache.no_slot),
        generation,
      )
      end = entry.tokens + programs.each * len(new)
      rows = programs.extend(
        weights, new, entry.tokens, ages[:end], kept, asked, rung
      )
      count = programs.each * len(new)
      self.cache.put(rows, [Share(name, stamp, entry.tokens, count)])
      with self._counting:
        self.work.extended_events += len(new)
    return entry


def _fill(slots: np.ndarray, room: int, fill: int) -> np.ndarray:
  out = np.full(room, fill, np.int32)
  out[: len(slots)] = slots
  return out
