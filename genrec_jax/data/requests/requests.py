"""Requests on the host: events of users, and candidates asked for between them.

A request is a user, the user's events before it, and candidates with what came
of them. Events lie once, however many requests read them; candidates lie in
columns of their own, because not every candidate becomes an event.
"""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np

from genrec_jax.data import text_arrays
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import RequestSpec

WEEK = 7 * 86_400
# The epoch was a Thursday; weeks begin on Monday.
_MONDAY = 3 * 86_400


@dataclasses.dataclass(frozen=True)
class EventStore:
  """U users' events, user behind user, each user's in order of time.

  Attributes:
    offsets: `[U + 1]` int64; user u owns positions offsets[u] up to
      offsets[u + 1] of the columns.
    items: name of each feature of `RequestSpec.items` -> `[N]` int32 rows of
      its table.
    action: `[N]` int32 bits, see `RequestSpec.actions`.
    time: `[N]` int64 seconds since the epoch, or None without times.
    watch_time: `[N]` float32 seconds, or None.
  """

  offsets: np.ndarray
  items: Mapping[str, np.ndarray]
  action: np.ndarray
  time: np.ndarray | None = None
  watch_time: np.ndarray | None = None

  @property
  def users(self) -> int:
    return len(self.offsets) - 1

  def __len__(self) -> int:
    return int(self.offsets[-1])


@dataclasses.dataclass(frozen=True)
class Requests:
  """R requests, one split.

  Attributes:
    user: `[R]` int32, whose events are the history.
    end: `[R]` int64, one beyond the position of the last event of the history,
      between offsets[user] and offsets[user + 1] of the `EventStore`.
    offsets: `[R + 1]` int64; request r owns positions offsets[r] up to
      offsets[r + 1] of the candidates.
    items: name of each feature of `RequestSpec.items` and `.candidates` ->
      `[M]` int32 rows of the candidates.
    labels: name of each label -> `[M]` float32.
    weight: `[M]` float32 of the candidates, or None where all are 1.
    time: `[R]` int64 seconds since the epoch, when the candidates are asked
      for, not before the last event; None without times.
    step: `[R]` int32, ascending: the step of a stream; None where the requests
      are not in an order of their own.
    context: name of each of `RequestSpec.context_columns` that belongs to a
      request and not to its user, such as the device -> `[R]` int32 rows.
  """

  user: np.ndarray
  end: np.ndarray
  offsets: np.ndarray
  items: Mapping[str, np.ndarray]
  labels: Mapping[str, np.ndarray]
  weight: np.ndarray | None = None
  time: np.ndarray | None = None
  step: np.ndarray | None = None
  context: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def __len__(self) -> int:
    return len(self.user)

  @property
  def candidates(self) -> int:
    return int(self.offsets[-1])

  def take(self, number: int) -> 'Requests':
    """One of them, without its labels."""
    some = slice(self.offsets[number], self.offsets[number + 1])
    one = slice(number, number + 1)
    return Requests(
      user=self.user[one],
      end=self.end[one],
      offsets=np.array([0, some.stop - some.start]),
      items={name: x[some] for name, x in self.items.items()},
      labels={},
      time=None if self.time is None else self.time[one],
      context={name: x[one] for name, x in self.context.items()},
    )


@dataclasses.dataclass(frozen=True)
class RequestDataset:
  """Users, their events, and requests in splits.

  Attributes:
    name: for people.
    spec: what requests hold.
    events: of all users.
    context: name of each of `RequestSpec.context_columns` that belongs to a
      user -> `[U]` int32 rows; the others are in `Requests.context`.
    splits: 'train', 'valid', 'test' -> requests; a split may be missing.
    vocabs: name of a table -> its values; value number i (from 0) has row
      i + 1. A table without one has ids of its own making, row i of id i - 1.
    user_ids: `[U]` the users as the data name them, int64 or text.
    saved_fingerprint: what `fingerprint` gave when it was saved, of a dataset
      that was opened from files; '' of any other, and of a changed copy.
  """

  name: str
  spec: RequestSpec
  events: EventStore
  context: Mapping[str, np.ndarray]
  splits: Mapping[str, Requests]
  vocabs: Mapping[str, Vocab]
  user_ids: np.ndarray
  # Not an argument, so that `dataclasses.replace` does not hand it on.
  saved_fingerprint: str = dataclasses.field(
    default='', init=False, repr=False, compare=False
  )

  def find_context(
    self, requests: Requests, numbers: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Column of the context -> `[n]` rows of the requests `numbers [n]`."""
    user = requests.user[numbers]
    return {
      name: requests.context[name][numbers]
      if name in requests.context
      else self.context[name][user]
      for name in self.spec.context_columns
    }

  def arrays(self) -> dict[str, np.ndarray]:
    """Every array by a name of its own, in a fixed order."""
    named = {'users': self.user_ids}
    named |= _name_arrays('events', self.events)
    named |= {f'context.{name}': x for name, x in self.context.items()}
    for split, requests in self.splits.items():
      named |= _name_arrays(split, requests)
    for table, vocab in self.vocabs.items():
      named[f'vocab.{table}'] = vocab.ids
    return named

  def fingerprint(self) -> str:
    """Names the content: equal requests, equal fingerprints."""
    if self.saved_fingerprint:
      return self.saved_fingerprint
    digest = hashlib.sha256(_describe_spec(self.spec).encode())
    for name, array in self.arrays().items():
      # Equal texts may be held in arrays of several widths.
      is_text = text_arrays.is_text(array)
      kind = 'text' if is_text else array.dtype.str
      digest.update(f'{name} {kind} {array.shape}'.encode())
      if is_text:
        contents = text_arrays.pack_texts(array.tolist())
      else:
        contents = [np.ascontiguousarray(array)]
      for content in contents:
        digest.update(content)
    return digest.hexdigest()[:16]

  def summary(self) -> str:
    """One line about the data, for logs and reports."""
    splits = ', '.join(
      f'{name} {len(r):,} requests with {r.candidates:,} candidates'
      for name, r in self.splits.items()
    )
    return (
      f'{self.name}: {self.events.users:,} users, {len(self.events):,} events, '
      f'{splits}'
    )


def _describe_spec(spec: RequestSpec) -> str:
  """Its text, without what says nothing: data keep their fingerprint."""
  # Columns of histories of ranking data, which requests have none of.
  text = repr(spec).replace(", history='')", ')')
  return text if spec.candidates else text.replace(', candidates=()', '')


def _name_arrays(prefix: str, record) -> dict[str, np.ndarray]:
  named = {}
  for field in dataclasses.fields(record):
    value = getattr(record, field.name)
    if isinstance(value, Mapping):
      named |= {f'{prefix}.{field.name}.{k}': x for k, x in value.items()}
    elif value is not None:
      named[f'{prefix}.{field.name}'] = value
  return named


def keep_oldest(events: EventStore, requests: Requests, most: int) -> Requests:
  """The requests, with histories that end after `most` events of the user.

  What reads the latest `most` events of such histories reads the oldest. Times
  and ages are those of the requests as before.
  """
  end = np.minimum(requests.end, events.offsets[requests.user] + most)
  return dataclasses.replace(requests, end=end)


def week_second(time: np.ndarray) -> np.ndarray:
  """Seconds since Monday 00:00 UTC, int32.

  >>> week_second(np.array([0, 4 * 86_400])).tolist()  # 1 January 1970
  [259200, 0]
  """
  return ((time + _MONDAY) % WEEK).astype(np.int32)
