"""Requests of the generated stream, the public test bed of MLPerf's DLRM-v3.

Users have tastes for categories, ratings swing with the steps, and the
catalogue opens little by little; see docs/generative_ranking.md. What is drawn
stands in `stream_draws`; here it becomes a data set.
"""

import dataclasses

import numpy as np

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.requests.stream_draws import (
  BASE_STEP,
  LIKED,
  Events,
  Plans,
  draw_events,
  draw_plans,
  find_slot_steps,
)
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec

LABEL = 'liked'
# Of an event that is rated r, the bit of the whole stars in r.
ACTIONS = (
  ('rated_1', 1),
  ('rated_2', 2),
  ('rated_3', 4),
  ('rated_4', 8),
  ('rated_5', 16),
)
_PLANNED = 4_096  # users whose plans are made together


@dataclasses.dataclass(frozen=True)
class Truth:
  """What requests do not tell of their M candidates, for oracles.

  Attributes:
    rating: `[M]` float32; a candidate is liked from 3.5 on.
    place: `[M]` int16 of the category in the user's order, 0 the best rated.
    item_rating: `[M]` int8, 1 to 5, the same for all users. The category's own
      rating is what the mean of the two needs to be `rating`.
  """

  rating: np.ndarray
  place: np.ndarray
  item_rating: np.ndarray


@dataclasses.dataclass(frozen=True)
class _SplitPlan:
  """Where the candidates of a split lie: R requests, `width` candidates each.

  Attributes:
    slots: of the split.
    user: `[R]` int32; requests are ordered by slot, then by user.
    slot: `[R]` int64.
    width: candidates of a request.
    place: `[U, S]` int64, the number of the request of a user in a slot.
  """

  slots: range
  user: np.ndarray
  slot: np.ndarray
  width: int
  place: np.ndarray

  def make_column(self, dtype) -> np.ndarray:
    return np.empty((len(self.user), self.width), dtype)

  def write(self, column: np.ndarray, user, events: Events, values) -> None:
    """Puts what a user's candidates have into a column."""
    inside = events.is_candidate & (events.slot >= self.slots.start)
    inside &= events.slot < self.slots.stop
    slots = events.slot[inside][:: self.width]
    column[self.place[user, slots]] = values[inside].reshape(-1, self.width)


def generate_requests(options: StreamOptions) -> RequestDataset:
  """Generates the stream as requests.

  The splits are 'train', the training steps; 'valid', the evaluation, in which
  every user is asked once between training and inference, and whose events
  never become history; and 'test', the inference steps. One without a step is
  missing.

  >>> options = StreamOptions(users=3, categories=8, inference_events=64,
  ...                         inference_candidates=16)
  >>> dataset = generate_requests(options)
  >>> dataset.splits['valid'].step.tolist()
  [90, 90, 90]
  >>> int(dataset.splits['test'].items['category'].max()) <= 8
  True
  """
  plans = _plan_all(options)
  splits = _plan_splits(options, plans)
  ends = np.cumsum(plans.kept, axis=1)
  offsets = np.concatenate([[0], np.cumsum(ends[:, -1])])
  # The history of a slot ends where that of the slot begins.
  ends += offsets[:-1, None] - plans.kept
  history = {
    name: np.empty(offsets[-1], np.int32)
    for name in ('item', 'category', 'action')
  }
  candidates = {
    split: {
      'item': plan.make_column(np.int32),
      'category': plan.make_column(np.int32),
      LABEL: plan.make_column(np.float32),
    }
    for split, plan in splits.items()
  }
  for user in range(options.users):
    events = draw_events(options, user)
    columns = {
      'item': events.item + 1,
      'category': events.category + 1,
      'action': 1 << (events.rating.astype(np.int32) - 1),
      LABEL: events.rating >= LIKED,
    }
    own = slice(offsets[user], offsets[user + 1])
    for name, column in history.items():
      column[own] = columns[name][events.is_history]
    for split, plan in splits.items():
      for name, column in candidates[split].items():
        plan.write(column, user, events, columns[name])
  time = None
  if options.true_time:
    times = np.tile(_time_slots(options), options.users)
    time = np.repeat(times, plans.kept.reshape(-1))
  return RequestDataset(
    name='generated stream',
    spec=_specify(options),
    events=EventStore(
      offsets=offsets,
      items={name: history[name] for name in ('item', 'category')},
      action=history['action'],
      time=time,
    ),
    context={'user': np.arange(1, options.users + 1, dtype=np.int32)},
    splits={
      split: _assemble(options, plan, ends, candidates[split])
      for split, plan in splits.items()
      if len(plan.user)
    },
    vocabs={},
    user_ids=np.arange(options.users),
  )


def reveal_truth(options: StreamOptions, split: str) -> Truth:
  """Generates what the requests of a split hide, a value a candidate."""
  plan = _plan_splits(options, _plan_all(options))[split]
  columns = {
    'rating': plan.make_column(np.float32),
    'place': plan.make_column(np.int16),
    'item_rating': plan.make_column(np.int8),
  }
  for user in range(options.users):
    events = draw_events(options, user)
    for name, column in columns.items():
      plan.write(column, user, events, getattr(events, name))
  return Truth(**{name: x.reshape(-1) for name, x in columns.items()})


def _plan_all(options: StreamOptions) -> Plans:
  """The plans of all users, some at a time: their random numbers are many."""
  blocks = [
    draw_plans(options, range(i, min(i + _PLANNED, options.users)))
    for i in range(0, options.users, _PLANNED)
  ]
  return Plans(
    **{
      field.name: np.concatenate([getattr(b, field.name) for b in blocks])
      for field in dataclasses.fields(Plans)
    }
  )


def _plan_splits(options: StreamOptions, plans: Plans) -> dict[str, _SplitPlan]:
  evaluation, slots = options.evaluation_slot, plans.asked.shape[1]
  return {
    'train': _plan_split(plans, range(1, evaluation), options.train_candidates),
    'valid': _plan_split(
      plans, range(evaluation, evaluation + 1), options.train_candidates
    ),
    'test': _plan_split(
      plans, range(evaluation + 1, slots), options.inference_candidates
    ),
  }


def _plan_split(plans: Plans, slots: range, width: int) -> _SplitPlan:
  asked = plans.asked[:, slots.start : slots.stop]
  slot, user = np.nonzero(asked.T)
  place = np.zeros(plans.asked.shape, np.int64)
  place[user, slot + slots.start] = np.arange(len(user))
  return _SplitPlan(
    slots, user.astype(np.int32), slot + slots.start, width, place
  )


def _assemble(
  options: StreamOptions,
  plan: _SplitPlan,
  ends: np.ndarray,
  columns: dict[str, np.ndarray],
) -> Requests:
  columns = {name: column.reshape(-1) for name, column in columns.items()}
  times = _time_slots(options)
  return Requests(
    user=plan.user,
    end=ends[plan.user, plan.slot],
    offsets=np.arange(len(plan.user) + 1, dtype=np.int64) * plan.width,
    items={name: columns[name] for name in ('item', 'category')},
    labels={LABEL: columns[LABEL]},
    time=times[plan.slot] if options.true_time else None,
    step=find_slot_steps(options)[plan.slot],
  )


def _time_slots(options: StreamOptions) -> np.ndarray:
  """`[S]` int64 time of each slot, 0 of the base."""
  steps = find_slot_steps(options).astype(np.int64) - BASE_STEP
  return steps * options.step_seconds


def _specify(options: StreamOptions) -> RequestSpec:
  return RequestSpec(
    items=(
      FeatureSpec('item', rows=options.item_count + 2),
      FeatureSpec('category', rows=options.categories + 2),
    ),
    context=(FeatureSpec('user', rows=options.users + 2),),
    actions=ACTIONS,
    labels=(LabelSpec(LABEL),),
    timed=options.true_time,
  )
