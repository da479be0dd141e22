"""What moves a score: the score anew, with one event less in the history."""

import dataclasses

import numpy as np

from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.serve.request_scorer import RequestScorer


def score_without(
  scorer: RequestScorer,
  dataset: RequestDataset,
  split: Requests,
  request: int,
  candidates: np.ndarray,
  events: np.ndarray,
  max_history: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Scores with the whole history, and with one event left out of it.

  Args:
    scorer: of the run.
    dataset: the data.
    split: the requests.
    request: number of one of them.
    candidates: `[C]` positions of some of its candidates.
    events: `[E]` positions of those events that are left out, one by one; they
      are among the last `max_history` of the history.
    max_history: most events of a history that the model reads. With an event
      left out, no older one comes into its place.

  Returns:
    `[C, L]` and `[E, C, L]` float32, of one pass through the model.
  """
  user, end = split.user[request], split.end[request]
  begin = max(dataset.events.offsets[user], end - max_history)
  whole = np.arange(begin, end)
  read = [whole, *(whole[whole != event] for event in events)]
  at = np.concatenate(read)
  count = len(read)
  past = dataset.events
  store = EventStore(
    offsets=np.cumsum([0, *map(len, read)]),
    items={name: rows[at] for name, rows in past.items.items()},
    action=past.action[at],
    time=None if past.time is None else past.time[at],
    watch_time=None if past.watch_time is None else past.watch_time[at],
  )
  # A user for each history, of the same context.
  alike = dataclasses.replace(
    dataset,
    events=store,
    context={
      name: np.repeat(rows[user : user + 1], count)
      for name, rows in dataset.context.items()
    },
    splits={},
    user_ids=np.arange(count),
  )
  time = split.time
  asked = Requests(
    user=np.arange(count, dtype=np.int32),
    end=store.offsets[1:],
    offsets=np.arange(count + 1) * len(candidates),
    items={
      name: np.tile(rows[candidates], count)
      for name, rows in split.items.items()
    },
    labels={},
    time=None if time is None else np.repeat(time[request], count),
    context={
      name: np.repeat(rows[request : request + 1], count)
      for name, rows in split.context.items()
    },
  )
  size = 1 << (count - 1).bit_length()
  scores = np.concatenate(
    list(scorer.score_requests(alike, asked, batch_size=size))
  )
  scores = scores.reshape(count, len(candidates), -1)
  return scores[0], scores[1:]
