"""What is remembered of users between calls: their events, in rows of tables.

`EventMemory` has the events that a model can see, and tells whether a history
that is given goes on where the known one ends. The numbers of events, counted
from the first that a user ever had, say what still holds of what was computed.
"""

import collections
import dataclasses
import itertools
import threading
from collections.abc import Mapping

import numpy as np

from genrec_jax.data.quoting import quote
from genrec_jax.data.requests.requests import RequestDataset


@dataclasses.dataclass(frozen=True)
class Events:
  """Events of one user, as arrays of rows.

  Attributes:
    items: name of each feature -> `[N]` int32 rows of its table.
    action: `[N]` int32 bits.
    time: `[N]` int64 seconds, or None without times.
    watch_time: `[N]` float32, or None.
  """

  items: Mapping[str, np.ndarray]
  action: np.ndarray
  time: np.ndarray | None = None
  watch_time: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.action)

  def take(self, some: slice) -> 'Events':
    return Events(
      {name: x[some] for name, x in self.items.items()},
      self.action[some],
      None if self.time is None else self.time[some],
      None if self.watch_time is None else self.watch_time[some],
    )

  def followed_by(self, others: 'Events') -> 'Events':
    """These, and others behind them."""

    def join(a, b):
      return None if a is None else np.concatenate([a, b])

    return Events(
      {name: join(x, others.items[name]) for name, x in self.items.items()},
      join(self.action, others.action),
      join(self.time, others.time),
      join(self.watch_time, others.watch_time),
    )

  def begins_with(self, others: 'Events') -> bool:
    """Whether others are the first of these."""
    if len(others) > len(self):
      return False
    mine = self.take(slice(0, len(others)))
    same = [np.array_equal(x, others.items[n]) for n, x in mine.items.items()]
    same.append(np.array_equal(mine.action, others.action))
    for a, b in (
      (mine.time, others.time),
      (mine.watch_time, others.watch_time),
    ):
      same.append(a is None or np.array_equal(a, b))
    return all(same)


def find_ages(events: Events, moment: int) -> np.ndarray:
  """`[N]` int64 seconds from each event to the moment of a request."""
  if events.time is None:
    return np.zeros(len(events), np.int64)
  return moment - events.time


def read_events(dataset: RequestDataset, begin: int, end: int) -> Events:
  """The events of a dataset between two positions."""
  store, some = dataset.events, slice(begin, end)
  return Events(
    {name: np.asarray(x[some]) for name, x in store.items.items()},
    np.asarray(store.action[some]),
    None if store.time is None else np.asarray(store.time[some]),
    None if store.watch_time is None else np.asarray(store.watch_time[some]),
  )


@dataclasses.dataclass
class Known:
  """A user's events, and what tells versions of them apart.

  Attributes:
    events: all that are remembered.
    first: number of the first of them among all the user ever had.
    version: another one for each history that does not continue another.
    seen: rows of all items that the user ever had, where somebody needs them.
    latest: time of the latest event that the user ever had, be it beyond those
      that are remembered; None without times.
  """

  events: Events
  first: int = 0
  version: int = 0
  seen: np.ndarray | None = None
  latest: int | None = None


class EventMemory:
  """The events of users that a model can see.

  Calls of one user must not overlap; `kv_cache.PagedCache.hold` sees to it.

  Args:
    most: events of a history that a model reads.
    oldest: whether it reads the oldest of a longer one, and not the latest.
    users: that are remembered, at most.
    step: how many events leave a history that has become too long, at once.
  """

  def __init__(
    self,
    most: int,
    oldest: bool = False,
    users: int = 100_000,
    step: int = 1,
  ):
    self._most, self._oldest, self._users = most, oldest, users
    self._step = step
    # In the order of their last use.
    self._known: collections.OrderedDict = collections.OrderedDict()
    self._lock, self._versions = threading.Lock(), itertools.count()

  def __len__(self) -> int:
    return len(self._known)

  def get(self, name: str) -> Known | None:
    """What is known of a user."""
    return self._known.get(name)

  def forget(self, name: str) -> None:
    """Drops a user."""
    with self._lock:
      self._known.pop(name, None)

  def put(self, name: str, known: Known) -> None:
    """Remembers a user; who was asked for longest ago goes, if need be."""
    with self._lock:
      self._known[name] = known
      self._known.move_to_end(name)
      while len(self._known) > self._users:
        self._known.popitem(last=False)

  def join(
    self, name: str, known: Known | None, events: Events, is_whole: bool
  ) -> Known:
    """The events of a user, with those that are given; nothing is kept yet.

    Args:
      name: of the user.
      known: what `get` has said of the user in this call. Another call may have
        made the memory forget the user since.
      events: all of them, or further ones.
      is_whole: whether they are all.

    Raises:
      ValueError: a further event is older than the latest that is known.
    """
    if known is None or (is_whole and not _continues(known, events)):
      # Never used before: rows may still be kept of a user who was forgotten.
      known = Known(events, 0, next(self._versions))
    elif is_whole:
      known = Known(events, 0, known.version)
    else:
      _check_order(name, known, events)
      known = dataclasses.replace(
        known, events=known.events.followed_by(events)
      )
    if events.time is not None and len(events):
      known = dataclasses.replace(known, latest=int(events.time[-1]))
    if (more := len(known.events) - self._most) > 0:
      first = 0
      if not self._oldest:
        # Counted from the first event of all, so that it does not matter how
        # many of them come at once.
        gone = -(-(known.first + more) // self._step) * self._step
        first = min(gone - known.first, len(known.events))
      some = slice(first, first + self._most)
      known = dataclasses.replace(
        known, events=known.events.take(some), first=known.first + first
      )
    return known


def _continues(known: Known, events: Events) -> bool:
  """Whether a whole history has the known events in their place."""
  return events.take(slice(known.first, None)).begins_with(known.events)


def _check_order(name: str, known: Known, new: Events) -> None:
  if known.latest is None or new.time is None or not len(new):
    return
  if new.time[0] < known.latest:
    raise ValueError(
      f'new_events begin at {new.time[0]:,}, before the latest event that is '
      f'known of user {quote(name)}, at {known.latest:,}; give its whole '
      'history anew'
    )


def check_user(user) -> str:
  """The name of a user of whom something is kept."""
  if isinstance(user, bool) or not isinstance(user, str | int | np.integer):
    raise ValueError(
      f'user is {quote(repr(user))}, must be a text or a whole number: what is '
      'kept belongs to a name'
    )
  return str(user)
