"""Requests -> batches of packed events and candidates, through grain.

A batch holds whole requests. A history that is longer than `max_history` keeps
its latest events; `requests.keep_oldest` makes them the oldest. More candidates
than `max_candidates` are

- in training a part, drawn for each epoch and request: an example is one
  request, which costs at most so much, and over the epochs every candidate has
  its turn;
- in evaluation divided into chunks in order, each an example with the history
  and the `row` of its request, so that every candidate is scored once.

A request without candidates has nothing to learn or score: neither training nor
evaluation takes it. A request without a history is an example like others.

The data are those that `checks.check_dataset` has passed.
"""

from collections.abc import Callable, Iterator

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import pipeline, splits
from genrec_jax.data.requests import packing, pair_capacities, requests
from genrec_jax.data.requests.request_order import RequestOrder
from genrec_jax.data.requests.stochastic_length import StochasticLength

# What capacities are chosen by: the first epochs, and of them so many requests.
_SAMPLED_EPOCHS, _SAMPLED = 16, 1 << 18
# Room of an evaluation, in batches of mean length: the longest would make all
# of them pay for a few.
_SPARE = 1.25


def collate_requests(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  indices: np.ndarray,
  *,
  batch_size: int,
  max_history: int,
  max_candidates: int,
  chunks: np.ndarray | None = None,
  draws: packing.Draws | None = None,
  capacity: packing.Room | Callable[[int, int], packing.Room] | None = None,
  shards: int = 1,
  own: range | None = None,
) -> features.Examples:
  """Packs requests into one batch, as `features.RequestSpec` says.

  Args:
    dataset: the events, and the context of users.
    split: the requests.
    indices: `[n]` which of them, n <= batch_size.
    batch_size: B; requests beyond n are padding.
    max_history: most events of a history; the latest ones are taken.
    max_candidates: most candidates of an example.
    chunks: `[n]` which run of `max_candidates` candidates of its request each
      example has. None draws so many, which needs `draws`, where there are
      more; they stay in order.
    draws: of training; None for evaluation.
    capacity: (events, candidates) of a shard, or a function that gives them for
      those of the longest of all shards; None for `pipeline.capacity_for` each.
    shards: W, in how many parts of B / W requests the batch is cut, each packed
      by itself.
    own: the shards to make; None for all.

  Returns:
    `Examples` of NumPy arrays: the shards `own`, one behind the other.
  """
  share = pipeline.share_of(batch_size, shards)
  indices = np.asarray(indices, np.int64)
  if len(indices) > batch_size:
    raise ValueError(f'{len(indices)} requests for a batch of {batch_size}')
  limits = dict(max_history=max_history, max_candidates=max_candidates)
  spans = packing.find_spans(
    dataset, split, indices, chunks, draws=draws, **limits
  )
  bounds = np.minimum(np.arange(shards + 1) * share, len(indices))
  return packing.pack_batch(
    dataset,
    split,
    spans,
    bounds,
    share,
    max_history=max_history,
    draws=draws,
    capacity=capacity or _round_up,
    own=own,
  )


def _round_up(events: int, candidates: int) -> packing.Room:
  return pipeline.capacity_for(events), pipeline.capacity_for(candidates)


def choose_capacities(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  most: int,
  *,
  batch_size: int,
  max_history: int,
  max_candidates: int,
  seed: int,
  order: str = 'shuffled',
  stochastic: StochasticLength | None = None,
  shards: int = 1,
) -> pair_capacities.PairCapacities | None:
  """Capacities for `train_batches` with the same arguments.

  Args:
    dataset: the events.
    split: the requests to train on.
    most: the most pairs of capacities, each a program to compile; 0 leaves them
      to `pipeline.capacity_for`.
    batch_size: B.
    max_history: most events of a history.
    max_candidates: most candidates of an example.
    seed: of the order and of all draws.
    order: of the requests.
    stochastic: how histories are cut.
    shards: W, see `collate_requests`.
  """
  batches = RequestOrder(split, batch_size, order, seed)
  if not most or not len(batches):
    return None
  share = pipeline.share_of(batch_size, shards, 'train.batch_size')
  # A stream is read once. What is cut of histories is drawn for each epoch.
  total = len(batches) * (1 if order == 'stream' else _SAMPLED_EPOCHS)
  count = min(total, max(1, _SAMPLED // batch_size))
  # Of shuffled epochs the first batches are as good as any.
  last = count if order == 'shuffled' else total
  sums = []
  for number in np.linspace(0, last - 1, count).astype(int).tolist():
    epoch, indices = batches[number]
    spans = packing.find_spans(
      dataset,
      split,
      indices,
      None,
      max_history=max_history,
      max_candidates=max_candidates,
      draws=packing.Draws(seed, epoch, stochastic),
    )
    bounds = np.minimum(np.arange(shards + 1) * share, len(indices))
    sums.append([
      packing.count_longest(x, bounds) for x in (spans.events, spans.candidates)
    ])  # fmt: skip
  return pair_capacities.choose_pairs(
    sums, most, len(batches) if order == 'stream' else None
  )


def train_batches(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  *,
  batch_size: int,
  max_history: int,
  max_candidates: int,
  seed: int,
  order: str = 'shuffled',
  stochastic: StochasticLength | None = None,
  prefetch: int = 2,
  shards: int = 1,
  own: range | None = None,
  capacities: pair_capacities.PairCapacities | None = None,
) -> grain.IterDataset:
  """Endless training batches.

  Every epoch takes each request with candidates once. The state of the iterator
  is one number, the same for any `shards` and `own`, so that it resumes exactly
  anywhere.

  Args:
    dataset: the events.
    split: the requests to train on.
    batch_size: B; batches at the end of an epoch, or of a step, are filled up.
    max_history: most events of a history; the latest ones are taken.
    max_candidates: most candidates of an example; of more, so many are drawn.
    seed: of the order and of all draws.
    order: 'shuffled' is an order of its own for every epoch; 'given' that of
      the data; 'stream' takes the requests by step, those of a step in an order
      of their own for every epoch, and no batch has requests of two steps.
    stochastic: how histories are cut; None for not at all.
    prefetch: batches made ahead by a background thread; 0 makes them when they
      are asked for.
    shards: W, see `collate_requests`.
    own: the shards to make; None for all.
    capacities: of a shard; None for `pipeline.capacity_for`.

  Returns:
    An `IterDataset` of `Examples`.
  """
  pipeline.share_of(batch_size, shards, 'train.batch_size')
  batches = RequestOrder(split, batch_size, order, seed)
  if not len(batches):
    raise ValueError('there are no requests with candidates to train on')

  def collate(number: int, batch: tuple[int, np.ndarray]) -> features.Examples:
    epoch, indices = batch

    def find_room(events: int, candidates: int) -> packing.Room:
      if capacities is None:
        return _round_up(events, candidates)
      return capacities.find_room(events, candidates, number)

    return collate_requests(
      dataset,
      split,
      indices,
      batch_size=batch_size,
      max_history=max_history,
      max_candidates=max_candidates,
      draws=packing.Draws(seed, epoch, stochastic),
      capacity=find_room,
      shards=shards,
      own=own,
    )

  batches = batches.repeat(None).map_with_index(collate)
  return pipeline.read_ahead(batches, prefetch)


def eval_batches(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  *,
  batch_size: int,
  max_history: int,
  max_candidates: int,
  capacity: packing.Room | None = None,
  step: int | None = None,
  shards: int = 1,
  own: range | None = None,
) -> Iterator[features.Examples]:
  """Every candidate once, in order, in batches of one shape.

  Args:
    dataset: the events.
    split: the requests to evaluate.
    batch_size: B, most examples of a batch. A shard ends earlier where its
      events or candidates have no more room.
    max_history: most events of a history; the latest ones are taken.
    max_candidates: most candidates of an example; more are divided into chunks,
      which have the `row` of their request.
    capacity: (events, candidates) of a shard; None chooses them by the whole
      split, so that all its steps have the same shape.
    step: of a stream, whose requests alone are taken; None takes all.
    shards: W, see `collate_requests`.
    own: the shards to make; None for all.

  Yields:
    `Examples` of NumPy arrays.
  """
  share = pipeline.share_of(batch_size, shards, 'eval.batch_size')
  limits = dict(max_history=max_history, max_candidates=max_candidates)
  if capacity is None:
    capacity = choose_room(dataset, split, share, **limits)
  first, last = _find_step(split, step)
  spans = _span_chunks(dataset, split, first, last, **limits)
  cuts = _find_cuts(spans, share, capacity)
  # The last batch may have shards without an example.
  cuts = np.array(cuts + [cuts[-1]] * (-(len(cuts) - 1) % shards))
  for number in range(0, len(cuts) - 1, shards):
    bounds = cuts[number : number + shards + 1]
    yield packing.pack_batch(
      dataset,
      split,
      spans.take(slice(bounds[0], bounds[-1])),
      bounds - bounds[0],
      share,
      max_history=max_history,
      draws=None,
      capacity=capacity,
      own=own,
    )


def _find_step(split: requests.Requests, step: int | None) -> tuple[int, int]:
  """The first request of a step of a stream, and one beyond its last."""
  if step is None:
    return 0, len(split)
  if split.step is None:
    raise ValueError(
      'these requests are in no order of their own: there is no step '
      f'{step} to evaluate'
    )
  first, last = np.searchsorted(split.step, [step, step + 1])
  return int(first), int(last)


def _span_chunks(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  first: int,
  last: int,
  *,
  max_candidates: int,
  **limits: int,
) -> packing.Spans:
  """The requests from `first` up to `last`, chunk behind chunk."""
  asked = np.diff(split.offsets[first : last + 1])
  chunks = -(-asked // max_candidates)
  return packing.find_spans(
    dataset,
    split,
    np.repeat(np.arange(first, last), chunks),
    splits.expand_ranges(np.zeros_like(chunks), chunks),
    max_candidates=max_candidates,
    draws=None,
    **limits,
  )


def choose_room(
  dataset: requests.RequestDataset,
  split: requests.Requests,
  share: int,
  *,
  max_history: int,
  max_candidates: int,
) -> packing.Room:
  """Room for nearly all shards of `share` examples, and for any single one.

  Args:
    dataset: the events.
    split: the requests to evaluate.
    share: examples of a shard.
    max_history: most events of a history.
    max_candidates: most candidates of an example.
  """
  limits = dict(max_history=max_history, max_candidates=max_candidates)
  spans, room = _span_chunks(dataset, split, 0, len(split), **limits), []
  for lengths in (spans.events, spans.candidates):
    usual = int(_SPARE * share * lengths.mean()) if len(lengths) else 0
    # Never more than the longest examples of all would need together.
    longest = int(np.sort(lengths)[-share:].sum())
    tokens = max(1, min(usual, longest), int(lengths.max(initial=0)))
    room.append(-(-tokens // capacities_lib.UNIT) * capacities_lib.UNIT)
  return tuple(room)


def _find_cuts(
  spans: packing.Spans, share: int, capacity: packing.Room
) -> list[int]:
  """Bounds of consecutive groups of <= share examples that have room."""
  totals = []
  for what, lengths, size in zip(
    ('events', 'candidates'),
    (spans.events, spans.candidates),
    capacity,
    strict=True,
  ):
    if (most := int(lengths.max(initial=0))) > size:
      raise ValueError(
        f'a capacity of {size} {what} cannot hold one request of {most}; make '
        'it larger'
      )
    totals.append(np.concatenate([[0], np.cumsum(lengths)]))
  bounds = [0]
  while (first := bounds[-1]) < len(spans.events):
    ends = [
      int(np.searchsorted(total, total[first] + size, 'right')) - 1
      for total, size in zip(totals, capacity, strict=True)
    ]
    bounds.append(min(first + share, *ends))
  return bounds
