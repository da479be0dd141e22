"""Draws of the generated stream: what each user does in each step.

The process is that of MLPerf's DLRM-v3. All of it is arithmetic on numbers that
are a function of (seed, user, step): Philox, whose key is (seed, user), counts
from a place of its own for each step. So one user is made without the others,
and the random numbers of a step without those of other steps; only the counts
of categories pass from step to step. NumPy promises the bits of Philox; of what
its `Generator` makes of them, only `random` is used.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.ranking.mixing import mix_bits

BASE_STEP = -1
PERIOD = 8  # steps after which the ratings of categories repeat
LIKED = 3.5  # the least rating of a candidate that is liked
LARGEST_ALPHA = 500
ITEM_RATINGS = np.array([5, 4, 3, 2, 1], np.int8)
ITEM_SHARES = np.array([0.2, 0.25, 0.25, 0.2, 0.1])
# By quartile of the category among those of the user, the best first: what it
# may be rated, without the swing of the step, and how often.
_CENTRES = np.array(
  [[4.5, 4.0, 3.5], [4.5, 4.0, 3.5], [3.5, 3.0, 2.5], [2.5, 2.0, 1.5]]
)
CATEGORY_SHARES = np.array(
  [[0.8, 0.2, 0.0], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]
)
# cos(k pi / 4), exactly 0 and 1 where it is: a rating of 3.5 must be 3.5.
_ROOT = 0.5**0.5
_COSINES = np.array([1, _ROOT, 0, -_ROOT, -1, -_ROOT, 0, _ROOT])
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64


@dataclasses.dataclass(frozen=True)
class Plans:
  """What of U users is known before their events, for each of S slots.

  Attributes:
    categories: `[U, K]` int32, the best rated first.
    alpha: `[U, S]` int64, how strongly the slot forgets earlier ones.
    drawn: `[U, S]` int64 events, 0 where the user is not active.
    kept: `[U, S]` int64, how many of them become history.
    asked: `[U, S]` int64, how many of them are candidates.
  """

  categories: np.ndarray
  alpha: np.ndarray
  drawn: np.ndarray
  kept: np.ndarray
  asked: np.ndarray


@dataclasses.dataclass(frozen=True)
class Events:
  """All N events that are drawn for one user, slot behind slot.

  Attributes:
    slot: `[N]` int64.
    place: `[N]` int64, of the category in the user's order, 0 the best.
    category: `[N]` int32.
    item: `[N]` int32 id.
    item_rating: `[N]` int8, of the item, the same for all users.
    rating: `[N]` float64, of the event.
    is_history: `[N]` bool.
    is_candidate: `[N]` bool.
  """

  slot: np.ndarray
  place: np.ndarray
  category: np.ndarray
  item: np.ndarray
  item_rating: np.ndarray
  rating: np.ndarray
  is_history: np.ndarray
  is_candidate: np.ndarray


def rate_categories(step: np.ndarray) -> np.ndarray:
  """`[..., 4, 3]` what a category of each quartile may be rated in a step."""
  shift = np.array([0, 2, 4])
  swing = _COSINES[(np.asarray(step)[..., None, None] + shift) % PERIOD]
  return _CENTRES + 0.5 * swing


def rate_items(seed: int, items: np.ndarray) -> np.ndarray:
  """`[N]` int8 rating of each item id, a hash of (seed, id).

  There is no array of all items, of which the original has 10^9.
  """
  state = (items.astype(np.uint64) + np.uint64(1)) * _GOLDEN
  state += mix_bits(np.array([seed], np.uint64) + _GOLDEN)
  uniform = (mix_bits(state) >> np.uint64(11)) * 2.0**-53
  return ITEM_RATINGS[_pick(np.cumsum(ITEM_SHARES), uniform)]


def chance_to_like(step: np.ndarray) -> np.ndarray:
  """Chance that a candidate is liked, if all is known that can be.

  Args:
    step: `[...]` whole numbers.

  Returns:
    `[..., 4, 5]` by the quartile of the category and by the item's rating, in
    the order of `ITEM_RATINGS`.
  """
  ratings = (rate_categories(step)[..., None, :] + ITEM_RATINGS[:, None]) / 2
  return np.sum((ratings >= LIKED) * CATEGORY_SHARES[:, None, :], axis=-1)


def find_quartiles(categories_per_user: int) -> np.ndarray:
  """`[K]` quartile of each place in a user's order of categories.

  >>> find_quartiles(4).tolist(), find_quartiles(6).tolist()
  ([0, 1, 2, 3], [0, 1, 1, 3, 3, 3])
  """
  quarter, half = categories_per_user // 4, categories_per_user // 2
  place = np.arange(categories_per_user)
  # In this order: with 6 places, the second border and the third are one.
  return np.select(
    [place < quarter, place < half, place < 3 * quarter], [0, 1, 2], 3
  )


def find_slot_steps(options: StreamOptions) -> np.ndarray:
  """`[S]` int32 step of each slot.

  The slots of a user are the base, the training steps, the evaluation, which
  has the number of the first inference step, and the inference steps.
  """
  train = np.arange(BASE_STEP, options.train_steps)
  inference = np.arange(options.train_steps, options.steps)
  slots = np.concatenate([train, [options.train_steps], inference])
  return slots.astype(np.int32)


def draw_plans(options: StreamOptions, users: Sequence[int]) -> Plans:
  """Makes the plans of some users."""
  slots = find_slot_steps(options)
  uniform = np.stack(
    [
      _generator(options.seed, user, 0).random(
        options.categories + 4 * len(slots)
      )
      for user in users
    ]
  )
  order = np.argsort(uniform[:, : options.categories], axis=1, kind='stable')
  rest = uniform[:, options.categories :].reshape(len(uniform), len(slots), 4)
  active = rest[:, :, 0] < options.activity
  active[:, [0, options.evaluation_slot]] = True
  # A normal variable by Box and Muller.
  normal = np.sqrt(-2 * np.log1p(-rest[:, :, 1]))
  normal *= np.cos(2 * np.pi * rest[:, :, 2])
  length = np.rint(options.events + options.deviation * normal)
  length = np.maximum(length, options.train_candidates + 1).astype(np.int64)
  drawn, kept, asked = length.copy(), length, np.zeros_like(length)
  drawn[:, options.evaluation_slot] = options.train_candidates
  kept[:, options.evaluation_slot] = 0
  asked[:, 1 : options.evaluation_slot + 1] = options.train_candidates
  inference = slice(options.evaluation_slot + 1, None)
  drawn[:, inference] = options.inference_events
  kept[:, inference] = np.minimum(kept[:, inference], options.inference_events)
  asked[:, inference] = options.inference_candidates
  return Plans(
    order[:, : options.categories_per_user].astype(np.int32),
    1 + (LARGEST_ALPHA * rest[:, :, 3]).astype(np.int64),
    *(np.where(active, n, 0) for n in (drawn, kept, asked)),
  )


def draw_events(options: StreamOptions, user: int) -> Events:
  """Makes the events of one user."""
  plans = draw_plans(options, [user])
  drawn, kept, asked = plans.drawn[0], plans.kept[0], plans.asked[0]
  counts = np.zeros(options.categories_per_user)
  uniforms, places, is_history, is_candidate = [], [], [], []
  for slot in np.flatnonzero(drawn):
    # The events of a slot do not see each other, as in the original.
    uniform = _generator(options.seed, user, slot + 1).random((5, drawn[slot]))
    alpha = plans.alpha[0, slot]
    chances = (alpha / len(counts) + counts) / (alpha + counts.sum())
    place = _pick(np.cumsum(chances), uniform[0])
    counts += np.bincount(place, minlength=len(counts))
    uniforms.append(uniform[1:3])
    places.append(place)
    is_history.append(_choose(uniform[3], kept[slot]))
    is_candidate.append(_choose(uniform[4], asked[slot]))
  slot = np.repeat(np.arange(len(drawn)), drawn)
  step, place = find_slot_steps(options)[slot], np.concatenate(places)
  of_item, of_rating = np.concatenate(uniforms, axis=1)
  category = plans.categories[0, place]
  per_category = options.items_per_category
  item = (of_item * _count_open(options)[slot]).astype(np.int64)
  item = (item + category.astype(np.int64) * per_category).astype(np.int32)
  quartile = find_quartiles(options.categories_per_user)[place]
  borders = np.cumsum(CATEGORY_SHARES, axis=1)[quartile, :2]
  outcome = np.sum(of_rating[:, None] >= borders, axis=1)
  phases = rate_categories(np.arange(PERIOD))
  item_rating = rate_items(options.seed, item)
  return Events(
    slot=slot,
    place=place,
    category=category,
    item=item,
    item_rating=item_rating,
    rating=(phases[step % PERIOD, quartile, outcome] + item_rating) / 2,
    is_history=np.concatenate(is_history),
    is_candidate=np.concatenate(is_candidate),
  )


def _count_open(options: StreamOptions) -> np.ndarray:
  """`[S]` how many ids of a category there are in each slot."""
  step = np.maximum(find_slot_steps(options).astype(np.int64) + 1, 1)
  # The original has no event where a category has none yet, and stops.
  share = options.items_per_category * step // options.steps
  return np.clip(share, 1, options.items_per_category)


def _generator(seed: int, user: int, stage: int) -> np.random.Generator:
  """Random numbers of a user: stage 0 for plans, s + 1 for slot s."""
  # NumPy's own integers have 64 bits, and lose what is shifted beyond them.
  key = (int(user) << 64) | int(seed)
  bits = np.random.Philox(key=key, counter=int(stage) << 64)
  return np.random.Generator(bits)


def _pick(cumulated: np.ndarray, uniform: np.ndarray) -> np.ndarray:
  """Picks by chances that are cumulated, up to 1 or nearly."""
  return np.searchsorted(cumulated[:-1], uniform, side='right')


def _choose(keys: np.ndarray, count: int) -> np.ndarray:
  """`[N]` bool, True for the `count` least keys."""
  chosen = np.full(len(keys), count >= len(keys))
  if 0 < count < len(keys):
    chosen[np.argpartition(keys, count)[:count]] = True
  return chosen
