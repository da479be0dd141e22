"""Packs requests into the arrays of a batch, see `batches`."""

import dataclasses
from collections.abc import Callable

import numpy as np

from genrec_jax import features
from genrec_jax.data import splits
from genrec_jax.data.requests import draws as draws_lib
from genrec_jax.data.requests import requests
from genrec_jax.data.requests.stochastic_length import StochasticLength

# Keep the draws of a request apart.
_EVENTS, _CANDIDATES = 0, 1
# Events and candidates of a shard.
Room = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Draws:
  """What is drawn for the requests of an epoch of training.

  Attributes:
    seed: of all draws.
    epoch: number of the epoch.
    stochastic: how histories are cut; None for not at all.
  """

  seed: int
  epoch: int
  stochastic: StochasticLength | None = None

  def make_keys(
    self, user: np.ndarray, number: np.ndarray, what: int
  ) -> np.ndarray:
    """`[n]` keys of requests, by user and number; `what` tells draws apart."""
    return draws_lib.make_keys(self.seed, self.epoch, user, number, what)


@dataclasses.dataclass(frozen=True)
class Spans:
  """What n examples read, before anything is packed.

  Attributes:
    number: `[n]` of the requests.
    user: `[n]`.
    begin: `[n]` position of the first event that may be read.
    lengths: `[n]` events from there to the request.
    cut: `[n]` bool, whether stochastic length cuts the history.
    events: `[n]` that are packed.
    first: `[n]` position of the first candidate.
    asked: `[n]` candidates from there on.
    candidates: `[n]` that are packed.
  """

  number: np.ndarray
  user: np.ndarray
  begin: np.ndarray
  lengths: np.ndarray
  cut: np.ndarray
  events: np.ndarray
  first: np.ndarray
  asked: np.ndarray
  candidates: np.ndarray

  def take(self, which: slice) -> 'Spans':
    fields = [f.name for f in dataclasses.fields(self)]
    return Spans(**{name: getattr(self, name)[which] for name in fields})


def find_spans(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  indices: np.ndarray,
  chunks: np.ndarray | None,
  *,
  max_history: int,
  max_candidates: int,
  draws: Draws | None,
) -> Spans:
  """Finds what examples read; arguments as in `batches.collate_requests`."""
  user = split.user[indices]
  end = split.end[indices]
  begin = np.maximum(dataset.events.offsets[user], end - max_history)
  lengths = end - begin
  cut, events = np.zeros(len(indices), bool), lengths
  if draws and draws.stochastic:
    keys = draws.make_keys(user, indices, _EVENTS)
    cut = draws.stochastic.find_cut(lengths, max_history, keys)
    count = draws.stochastic.find_threshold(max_history)
    events = np.where(cut, count, lengths)
  first, last = split.offsets[indices], split.offsets[indices + 1]
  if chunks is not None:
    first = first + chunks * max_candidates
    last = np.minimum(last, first + max_candidates)
  asked = last - first
  return Spans(
    number=indices,
    user=user,
    begin=begin,
    lengths=lengths,
    cut=cut,
    events=events,
    first=first,
    asked=asked,
    candidates=np.minimum(asked, max_candidates),
  )


def count_longest(lengths: np.ndarray, bounds: np.ndarray) -> int:
  """Of the longest of all shards."""
  total = np.concatenate([[0], np.cumsum(lengths)])[bounds]
  return int(np.diff(total).max(initial=0))


def pack_batch(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  spans: Spans,
  bounds: np.ndarray,
  share: int,
  *,
  max_history: int,
  draws: Draws | None,
  capacity: Room | Callable[[int, int], Room],
  own: range | None,
) -> features.Examples:
  """Packs examples that are divided among shards already.

  Args:
    dataset: the events, and the context of users.
    split: the requests.
    spans: `[n]` examples.
    bounds: `[W + 1]` shard k is of the examples from bounds[k] up to
      bounds[k + 1].
    share: examples of a shard, padding included.
    max_history: most events of a history.
    draws: of training; None for evaluation.
    capacity: see `batches.collate_requests`.
    own: the shards to make; None for all.
  """
  need = tuple(
    count_longest(x, bounds) for x in (spans.events, spans.candidates)
  )
  room = capacity(*need) if callable(capacity) else capacity
  if need[0] > room[0] or need[1] > room[1]:
    raise ValueError(
      f'{need[0]} events and {need[1]} candidates for a capacity of {room[0]} '
      f'and {room[1]}'
    )
  own = range(len(bounds) - 1) if own is None else own
  events = _Shards.divide(spans.events, bounds, own, room[0])
  candidates = _Shards.divide(spans.candidates, bounds, own, room[1])
  examples = _Shards.divide(np.ones(bounds[-1], int), bounds, own, share)
  spans = spans.take(slice(bounds[own.start], bounds[own.stop]))
  history = _read_events(
    dataset,
    split,
    spans,
    _place_events(dataset, split, spans, max_history, draws),
  )
  asked = _read_candidates(dataset.spec, split, _place_candidates(spans, draws))
  context = dataset.find_context(split, spans.number)
  second = np.zeros(len(spans.user), np.int32)
  if dataset.spec.timed:
    second = requests.week_second(split.time[spans.number])
  row = examples.pad(spans.number.astype(np.int32), -1)
  return features.Examples(
    row=row,
    weights=(row >= 0).astype(np.float32),
    ids=examples.pack(context, np.int32) if context else None,
    jagged={
      features.HISTORY: features.Jagged(
        events.pack(history[0], np.int32),
        examples.pad(spans.events.astype(np.int32)),
        events.pack(history[1], np.float32) if history[1] else None,
        first=events.first,
      ),
      features.CANDIDATES: features.Jagged(
        candidates.pack(asked[0], np.int32),
        examples.pad(spans.candidates.astype(np.int32)),
        candidates.pack(asked[1], np.float32),
        first=candidates.first,
      ),
    },
    group=examples.pad(spans.user.astype(np.int32), -1),
    int_extras=examples.pack({features.WEEK_SECOND: second}, np.int32),
    first=examples.first,
  )


def _place_events(dataset, split, spans, max_history, draws) -> np.ndarray:
  """Positions of the events that are packed, `[K]`."""
  if not spans.cut.any():
    return splits.expand_ranges(spans.begin, spans.lengths)
  timed = dataset.spec.timed
  return draws.stochastic.place_events(
    spans.begin,
    spans.lengths,
    spans.cut,
    max_history,
    draws.make_keys(spans.user, spans.number, _EVENTS),
    time=dataset.events.time if timed else None,
    asked=split.time[spans.number] if timed else None,
  )


def _read_events(dataset, split, spans, at: np.ndarray) -> tuple[dict, dict]:
  """The columns of the events at `at [K]`: whole numbers, and floats."""
  events, spec = dataset.events, dataset.spec
  columns = {f.name: events.items[f.name][at] for f in spec.items}
  columns[features.ACTION] = events.action[at]
  columns[features.AGE] = np.zeros(len(at), np.int64)
  if spec.timed:
    asked = np.repeat(split.time[spans.number], spans.events)
    columns[features.AGE] = asked - events.time[at]
  floats = {}
  if spec.watch_time:
    floats[features.WATCH_TIME] = events.watch_time[at]
  return columns, floats


def _place_candidates(spans: Spans, draws: Draws | None) -> np.ndarray:
  """Positions of the candidates that are packed, `[K]`."""
  drawn = spans.asked > spans.candidates
  if not drawn.any():
    return splits.expand_ranges(spans.first, spans.asked)
  asked, count = spans.asked[drawn], int(spans.candidates[drawn][0])
  if draws is None:
    raise ValueError(
      f'request {spans.number[drawn][0]} has {asked[0]} candidates, more than '
      f'the {count} of an example; say which by chunks, or how to draw them'
    )
  keys = draws.make_keys(spans.user, spans.number, _CANDIDATES)[drawn]
  numbers = splits.expand_ranges(np.zeros_like(asked), asked)
  bits = draws_lib.draw_bits(np.repeat(keys, asked), numbers)
  places = draws_lib.keep_smallest(bits, asked, count)
  return draws_lib.place_runs(spans.first, spans.asked, drawn, places)


def _read_candidates(spec, split, at: np.ndarray) -> tuple[dict, dict]:
  """The columns of the candidates at `at [K]`: whole numbers, and floats."""
  columns = {f.name: split.items[f.name][at] for f in spec.candidate_features}
  # Requests that are to be predicted have no labels.
  none = np.zeros(len(at), np.float32)
  floats = {
    label.name: split.labels[label.name][at] if split.labels else none
    for label in spec.labels
  }
  weight = split.weight
  floats[features.WEIGHT] = none + 1 if weight is None else weight[at]
  return columns, floats


@dataclasses.dataclass(frozen=True)
class _Shards:
  """Where the values of some shards go in arrays of one size a shard.

  Attributes:
    at: `[K]` places of the values of these shards.
    size: of all these shards together.
    first: `[W]` int32 number, in the batch, of the first value of each.
  """

  at: np.ndarray
  size: int
  first: np.ndarray

  @classmethod
  def divide(
    cls, lengths: np.ndarray, bounds: np.ndarray, own: range, size: int
  ) -> '_Shards':
    """Of the shards `own` of a batch, where each has `size` places.

    Args:
      lengths: `[n]` values of each example of the batch.
      bounds: `[W + 1]` which examples are of each shard.
      own: the shards.
      size: places of a shard.
    """
    total = np.concatenate([[0], np.cumsum(lengths)])[bounds]
    total = total[own.start : own.stop + 1]
    at = splits.expand_ranges(np.arange(len(own)) * size, np.diff(total))
    return cls(at, len(own) * size, total[:-1].astype(np.int32))

  def pad(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
    out = np.full(self.size, fill, values.dtype)
    out[self.at] = values
    return out

  def pack(self, columns: dict[str, np.ndarray], dtype) -> features.Columns:
    out = np.zeros((self.size, len(columns)), dtype)
    for i, values in enumerate(columns.values()):
      out[self.at, i] = values
    return features.Columns(out, tuple(columns))
