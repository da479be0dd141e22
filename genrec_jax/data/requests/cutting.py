"""Events of users, in order of time -> requests whose candidates are events.

Runs of following events become the candidates of a request, and what lies
before them its history. Nothing is copied here: requests are positions.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from genrec_jax.data.requests.requests import EventStore, Requests


@dataclasses.dataclass(frozen=True)
class Cut:
  """R requests as positions of events.

  Attributes:
    user: `[R]` int32.
    end: `[R]` int64, one beyond the last event of the history.
    offsets: `[R + 1]` int64; request r has the candidates numbered offsets[r]
      up to offsets[r + 1].
    positions: `[M]` int64, the event that each candidate is.
  """

  user: np.ndarray
  end: np.ndarray
  offsets: np.ndarray
  positions: np.ndarray

  def __len__(self) -> int:
    return len(self.user)

  def select(self, requests: np.ndarray) -> 'Cut':
    """The requests of those numbers, in that order.

    >>> cut = Cut(*map(np.array, ([0, 1], [1, 9], [0, 2, 3], [1, 2, 9])))
    >>> cut.select(np.array([1, 0])).positions.tolist()
    [9, 1, 2]
    """
    if len(self.positions) == len(self):  # one candidate each
      offsets = np.arange(len(requests) + 1)
      return Cut(
        self.user[requests],
        self.end[requests],
        offsets,
        self.positions[requests],
      )
    counts = np.diff(self.offsets)[requests]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Of each candidate: where its request began, and how far into it it is.
    shift = np.repeat(self.offsets[requests] - offsets[:-1], counts)
    candidates = np.arange(offsets[-1]) + shift
    return Cut(
      self.user[requests],
      self.end[requests],
      offsets,
      self.positions[candidates],
    )


def cut_requests(
  offsets: np.ndarray,
  positions: np.ndarray,
  *,
  most: int,
  breaks: np.ndarray | None = None,
  moment: np.ndarray | None = None,
  min_history: int = 1,
  from_end: bool = False,
) -> Cut:
  """Requests of at most `most` candidates, which follow one another.

  >>> cut = cut_requests(np.array([0, 6]), np.arange(1, 6), most=2)
  >>> cut.end.tolist(), np.split(cut.positions, cut.offsets[1:-1])
  ([1, 3, 5], [array([1, 2]), array([3, 4]), array([5])])

  Args:
    offsets: `[U + 1]` of the `EventStore`.
    positions: `[C]` int64, the events that are candidates: ascending, but that
      those of a request may have been brought to the first of them.
    most: candidates of a request, at least one.
    breaks: `[C]` bool, where a candidate must not be asked for together with
      the one before it; those of two users never are.
    moment: `[N]` times of the events; a history then ends before the first
      event of the moment of the first candidate. None ends it right before the
      first candidate, whatever happened in the same moment.
    min_history: fewest events of a history, at least one; requests with fewer
      are left out.
    from_end: a run of candidates is cut from its end, so that the first request
      of it is the one that may be short.
  """
  user = np.searchsorted(offsets, positions, side='right').astype(np.int32) - 1
  begins = np.ones(len(positions), bool)
  begins[1:] = user[1:] != user[:-1]
  if breaks is not None:
    begins |= breaks
  if most == 1:  # the most requests, so memory counts
    first = np.arange(len(positions))
  else:
    first = np.flatnonzero(begins | _find_pieces(begins, most, from_end))
  starts = np.append(first, len(positions)).astype(np.int64)
  user = user[first]
  end = positions[first].astype(np.int64)
  if moment is not None:
    end = _go_back(end, offsets[user], moment)
  cut = Cut(user, end, starts, positions)
  kept = np.flatnonzero(end - offsets[user] >= min_history)
  return cut if len(kept) == len(cut) else cut.select(kept)


def _find_pieces(begins: np.ndarray, most: int, from_end: bool) -> np.ndarray:
  """Where a run has `most` candidates again, from its begin or its end."""
  runs = np.append(np.flatnonzero(begins), len(begins))
  lengths = np.diff(runs)
  rank = np.arange(len(begins))
  rank -= np.repeat(runs[1:] if from_end else runs[:-1], lengths)
  return rank % most == 0


def _go_back(
  end: np.ndarray, first: np.ndarray, moment: np.ndarray
) -> np.ndarray:
  """The first event of the moment of event `end[i]`, at least `first[i]`."""
  end, asked = end.copy(), moment[end]
  open_ = np.arange(len(end))
  while len(open_):  # as often as the most events of a moment
    open_ = open_[end[open_] > first[open_]]
    open_ = open_[moment[end[open_] - 1] == asked[open_]]
    end[open_] -= 1
  return end


def find_asking_times(cut: Cut, time: np.ndarray, asked_at: str) -> np.ndarray:
  """`[R]` int64, when the candidates of each request are asked for."""
  if asked_at == 'last_event':
    return time[cut.end - 1]
  return time[cut.positions[cut.offsets[:-1]]]


def order_by_time(cut: Cut, time: np.ndarray) -> Cut:
  """The requests in the order of a stream, and so in the order of its steps.

  Args:
    cut: the requests, by user.
    time: `[N]` times of the events.

  Returns:
    Them by the time of the first candidate, those of one time by the user.
  """
  asked = time[cut.positions[cut.offsets[:-1]]]
  return cut.select(np.argsort(asked, kind='stable'))


def make_requests(
  cut: Cut,
  events: EventStore,
  labels: Mapping[str, np.ndarray],
  *,
  asked_at: str,
  step: np.ndarray | None = None,
  shown: Mapping[str, np.ndarray] | None = None,
  asked_with: Mapping[str, np.ndarray] | None = None,
) -> Requests:
  """The requests of a split.

  Args:
    cut: where they are.
    events: of all users, with times.
    labels: name -> `[M]` of the candidates.
    asked_at: 'last_event' or 'first_candidate'.
    step: `[R]` of the requests, or None.
    shown: name -> `[N]` rows of features that candidates alone have, of each
      event when it is one.
    asked_with: name -> `[N]` rows of the context of requests; a request has
      that of its first candidate.
  """
  columns = {**events.items, **(shown or {})}
  return Requests(
    user=cut.user,
    end=cut.end,
    offsets=cut.offsets,
    items={name: rows[cut.positions] for name, rows in columns.items()},
    labels={name: x.astype(np.float32) for name, x in labels.items()},
    time=find_asking_times(cut, events.time, asked_at),
    step=step,
    context={
      name: rows[cut.positions[cut.offsets[:-1]]]
      for name, rows in (asked_with or {}).items()
    },
  )


def require_requests(split: str, cut: Cut, where: object, remedy: str) -> None:
  """Refuses a split without a single request.

  Args:
    split: its name.
    cut: its requests.
    where: the data lie.
    remedy: what to change.
  """
  if not len(cut):
    raise ValueError(
      f'{where}: no user has candidates with a history before them in the '
      f'split {split!r}; {remedy}'
    )
