"""A generated stream of what users do, whose clicks depend on when they did it.

A user has a timeline of events, each with an item and its category, and is
shown candidates at some moments. The history of an impression is the last
events before it. With c the category of the candidate, the logit of a click is

    bias + decay * D + periodic * P + order * O + taste * T

- D: the events of category c, each by the factor 2^(-age / half_life_s);
- P: the events of category c whose age is nearer than `period_width` periods to
  a multiple of `period_s`, but for an age of nothing;
- O: categories are of few kinds, and each kind of candidates has a pair of
  kinds (a, b): O is how often an event of kind a stands right before one of
  kind b, less what it would be in the mean over all orders of these events. So
  b before a counts nothing, and who does not see the order learns nothing;
- T: whether c is one of the favourite categories of the user. Favourites are
  also what most events are about, so that histories show them.

D, P, O and T are shifted and scaled to mean 0 and deviation 1 (for one draw of
many users, which stands for the population), so that a strength is the
deviation of that part of the logit, and 0 switches it off without changing
anything else. The true probability of each row is known (`find_bounds`).

The rows of a user are a function of the options and the number of the user, but
for `users`: a longer stream begins with a shorter one.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax.data.ranking import behaviour_rows, raw
from genrec_jax.data.ranking.generated_clicks import (
  apply_sigmoid,
  draw_places,
  find_entropy,
  make_zipf,
)

PARTS = ('decay', 'periodic', 'order', 'taste')
SPLITS = ('users', 'time')
_UNIT = 256  # users of one draw
_MOST = 10**12  # of any number: strengths are finite, times fit int64
_SAMPLE_UNITS = 8  # for shifts, scales and the bias
_CHUNK = 1 << 12  # rows that a reader yields at once
# Each use of random numbers has a sequence of its own.
_WORLD, _SAMPLE, _USERS = range(3)


@dataclasses.dataclass(frozen=True)
class InterestLog:
  """What a stream is like.

  Attributes:
    users: how many there are.
    impressions: candidates that each of them is shown.
    history: the most events of a history, which are the last ones.
    gap_s: mean seconds between two events of an average user.
    activity: deviation of the logarithm of a user's mean gap.
    span_s: seconds from the first possible impression to the last one.
    items: in all categories together.
    categories: how many there are.
    zipf: exponent of the frequencies of categories, and of items within one.
    favourites: categories that a user likes.
    loyal: share of the events that are about them.
    decay: deviation of the part of the logit that decays with the age.
    half_life_s: of it.
    periodic: deviation of the part that comes back.
    period_s: seconds of a period.
    period_width: how near to a multiple an age must be, in periods.
    order: deviation of the part in which the order matters.
    kinds: of categories, for that part.
    taste: deviation of the part of what a user always likes.
    rate: expected share of clicks.
    split: 'users': each user is in one split; 'time': the last impressions of
      all users test, and those before them validate.
    valid_share: share of the users, or of the time, that validates.
    test_share: likewise.
    seed: of everything.
  """

  users: int = 10_000
  impressions: int = 10
  history: int = 20
  gap_s: int = 21_600
  activity: float = 0.5
  span_s: int = 2_419_200
  items: int = 240
  categories: int = 12
  zipf: float = 0.5
  favourites: int = 3
  loyal: float = 0.6
  decay: float = 1.0
  half_life_s: float = 43_200.0
  periodic: float = 1.0
  period_s: int = 86_400
  period_width: float = 0.1
  order: float = 1.0
  kinds: int = 4
  taste: float = 0.5
  rate: float = 0.3
  split: str = 'users'
  valid_share: float = 0.1
  test_share: float = 0.1
  seed: int = 0

  def __post_init__(self):
    for name, least in (
      ('users', 1),
      ('impressions', 1),
      ('history', 1),
      ('gap_s', 1),
      ('activity', 0),
      ('span_s', 1),
      ('zipf', 0),
      ('categories', 2),
      ('favourites', 1),
      ('decay', 0),
      ('periodic', 0),
      ('period_s', 1),
      ('order', 0),
      ('kinds', 2),
      ('taste', 0),
      ('seed', 0),
    ):
      if not least <= getattr(self, name) <= _MOST:
        raise ValueError(
          f'data.interests.{name} must be at least {least} and at most '
          f'{_MOST:,}, not {getattr(self, name)}'
        )
    for name, most in (
      ('favourites', self.categories),
      ('kinds', self.categories),
      ('categories', self.items),
    ):
      if getattr(self, name) > most:
        raise ValueError(
          f'data.interests.{name} is {getattr(self, name)}, and there are '
          f'{most} {"items" if name == "categories" else "categories"}'
        )
    for name in ('loyal', 'valid_share', 'test_share'):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(
          f'data.interests.{name} is {getattr(self, name)}, must be from 0 to 1'
        )
    if not 0 < self.period_width <= 0.5:
      raise ValueError(
        f'data.interests.period_width is {self.period_width}, must be above 0 '
        'and at most 0.5'
      )
    if not self.half_life_s > 0:
      raise ValueError(
        f'data.interests.half_life_s is {self.half_life_s}, must be above 0'
      )
    if not 0 < self.rate < 1:
      raise ValueError(
        f'data.interests.rate is {self.rate}, must be above 0 and below 1'
      )
    if self.split not in SPLITS:
      raise ValueError(
        f'data.interests.split is {self.split!r}, must be one of '
        f'{", ".join(SPLITS)}'
      )
    if not self.valid_share + self.test_share < 1:
      raise ValueError(
        f'data.interests: valid_share {self.valid_share} and test_share '
        f'{self.test_share} leave nothing to train on'
      )

  @property
  def names(self) -> list[str]:
    """The columns; `probability` is what a model may not see."""
    return [*behaviour_rows.NAMES, 'probability']

  @property
  def splits(self) -> list[str]:
    """The splits that have rows, by their shares."""
    shares = {'valid': self.valid_share, 'test': self.test_share}
    return ['train', *(name for name, share in shares.items() if share)]


@dataclasses.dataclass(frozen=True)
class UserRows:
  """The impressions of some users, one user behind the other.

  Attributes:
    events: of all of them.
    shown: N impressions, in the order of users and times; `shown.beside` has
      the true 'probability'.
    parts: `[N, 4]` decay, periodic, order and taste, of mean 0 and deviation 1
      each, without their strengths.
  """

  events: behaviour_rows.PastEvents
  shown: behaviour_rows.Impressions
  parts: np.ndarray


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What the best possible model has, in the mean over draws of labels.

  Attributes:
    ne: the least normalised entropy.
    auc: the largest AUC.
  """

  ne: float
  auc: float


class InterestStream:
  """Makes the rows of users.

  >>> stream = InterestStream(InterestLog(users=300, impressions=2))
  >>> rows = stream.draw_users(0)
  >>> rows.parts.shape, rows.shown.user[-1].item()
  ((512, 4), 255)
  """

  def __init__(self, log: InterestLog):
    self.log = log
    rng = self._generate(_WORLD)
    self._by_category = make_zipf(log.categories, log.zipf)
    # Category c has the items c, c + C, c + 2 C and so on.
    self._sizes = -(-(log.items - np.arange(log.categories)) // log.categories)
    weights = make_zipf(int(self._sizes.max()), log.zipf)
    self._by_item = np.cumsum(weights)
    self.kind = rng.permutation(np.arange(log.categories) % log.kinds)
    # Of each kind of candidates, two kinds of events that are not the same.
    first = rng.integers(log.kinds, size=log.kinds)
    step = rng.integers(1, log.kinds, size=log.kinds)
    self.pairs = np.stack([first, (first + step) % log.kinds], axis=1)
    self._shift, self._scale, self.bias = self._measure_population()

  def draw_users(self, unit: int) -> UserRows:
    """The rows of the users number 256 unit to 256 unit + 255."""
    first = unit * _UNIT
    count = min(_UNIT, self.log.users - first)
    if count < 1:
      raise ValueError(f'there is no unit {unit} of {self.log.users} users')
    # A unit is drawn whole, so that its users do not depend on their number.
    events, shown, found = self._draw_unit(self._generate(_USERS, unit), first)
    rows = count * self.log.impressions
    shown, parts = shown.take(slice(rows)), self._normalise(found[:rows])
    probability = apply_sigmoid(self.bias + parts @ self._strengths)
    label = (shown.beside['draw'] < probability).astype(np.int64)
    beside = {'probability': probability}
    shown = dataclasses.replace(shown, label=label, beside=beside)
    return UserRows(events, shown, parts)

  @property
  def _strengths(self) -> np.ndarray:
    return np.array([getattr(self.log, name) for name in PARTS])

  def _measure_population(self) -> tuple[np.ndarray, np.ndarray, float]:
    """Means and deviations of the parts, and the bias that gives the rate."""
    found = np.concatenate(
      [
        self._draw_unit(self._generate(_SAMPLE, unit), 0)[2]
        for unit in range(_SAMPLE_UNITS)
      ]
    )
    shift, scale = found.mean(0), np.maximum(found.std(0), 1e-6)
    logits = (found - shift) / scale @ self._strengths
    # Beyond the largest logit, so that no strength hides the rate.
    high = 60.0 + float(np.abs(logits).max())
    low = -high
    for _ in range(80):  # halves: as near as numbers can be
      middle = (low + high) / 2
      mean = apply_sigmoid(middle + logits).mean()
      low, high = (middle, high) if mean < self.log.rate else (low, middle)
    return shift, scale, (low + high) / 2

  def _normalise(self, found: np.ndarray) -> np.ndarray:
    return (found - self._shift) / self._scale

  def _draw_unit(self, rng, first: int):
    """Events, impressions without labels, and the raw parts `[N, 4]`."""
    log = self.log
    # In a fixed order: each draw takes the place of those before it.
    likes = draw_places(rng, self._by_category, (_UNIT, log.favourites))
    gap = log.gap_s * np.exp(log.activity * rng.standard_normal(_UNIT))
    lead = _find_lead(log)
    total = lead + log.span_s
    counts = np.maximum(1, np.rint(total / gap)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(np.arange(_UNIT), counts)
    moment = rng.random(len(owner)) * total
    # So that a first impression has a history.
    moment[offsets[:-1]] *= lead / total
    time = moment.astype(np.int64)
    # Times are below `total`: one sort of them all sorts those of each user.
    time = np.sort(owner * total + time) - owner * total
    loyal = rng.random(len(owner)) < log.loyal
    liked = likes[owner, rng.integers(log.favourites, size=len(owner))]
    other = draw_places(rng, self._by_category, len(owner))
    category = np.where(loyal, liked, other)
    item = self._draw_items(rng, category)
    events = behaviour_rows.PastEvents(item, category, time)

    shape = _UNIT, log.impressions
    shown_at = np.sort(lead + rng.integers(log.span_s, size=shape)).ravel()
    user = np.repeat(np.arange(_UNIT), log.impressions)
    keys = np.repeat(np.arange(_UNIT), counts) * total + time
    # Events of the second of an impression are not before it.
    stop = np.searchsorted(keys, user * total + shown_at)
    begin = np.maximum(stop - log.history, offsets[user])
    # Half of the candidates are of the category of an event of the history.
    pick = begin + (rng.random(len(user)) * (stop - begin)).astype(np.int64)
    other = draw_places(rng, self._by_category, len(user))
    chosen = np.where(rng.random(len(user)) < 0.5, category[pick], other)
    candidate = self._draw_items(rng, chosen)
    draw = rng.random(len(user))
    shown = behaviour_rows.Impressions(
      first + user, candidate, chosen, shown_at, np.zeros_like(user), begin,
      stop - begin, {'draw': draw},
    )  # fmt: skip
    taste = (likes[user] == chosen[:, None]).any(1)
    return events, shown, self._find_parts(events, shown, taste)

  def _draw_items(self, rng, category: np.ndarray) -> np.ndarray:
    # Within a category of fewer items than another, a part of the draws.
    ends = self._by_item[self._sizes[category] - 1]
    place = np.searchsorted(
      self._by_item, rng.random(len(category)) * ends, 'right'
    )
    place = np.minimum(place, self._sizes[category] - 1)
    return category + self.log.categories * place

  def _find_parts(self, events, shown, taste: np.ndarray) -> np.ndarray:
    """`[N, 4]`, neither shifted nor scaled."""
    log, size = self.log, int(shown.length.max())
    place = np.arange(size)
    # [N, H], right-aligned on the left side: place 0 is the last event.
    there = place < shown.length[:, None]
    at = shown.begin[:, None] + shown.length[:, None] - 1 - place
    at = np.where(there, at, 0)
    category = events.category[at]
    match = (category == shown.category[:, None]) & there
    age = (shown.time[:, None] - events.time[at]) * match
    decay = (np.exp2(-age / log.half_life_s) * match).sum(1)
    turns = age / log.period_s
    nearest = np.rint(turns)
    near = (np.abs(turns - nearest) <= log.period_width) & (nearest > 0)
    periodic = (near & match).sum(1)
    return np.stack(
      [decay, periodic, self._find_order(category, shown, there), taste], axis=1
    ).astype(np.float64)

  def _find_order(self, category, shown, there: np.ndarray) -> np.ndarray:
    kind = self.kind[category]
    first, second = self.pairs[self.kind[shown.category]].T
    is_first = (kind == first[:, None]) & there
    is_second = (kind == second[:, None]) & there
    # The event before that at place j is the one at place j + 1.
    adjacent = (is_first[:, 1:] & is_second[:, :-1]).sum(1)
    # Of n events in any order, n - 1 neighbours are a and b in that order with
    # probability n_a n_b / (n (n - 1)).
    mean = is_first.sum(1) * is_second.sum(1) / shown.length
    return adjacent - mean

  def _generate(self, *use: int) -> np.random.Generator:
    return np.random.default_rng([self.log.seed, *use])


def draw_rows(log: InterestLog, split: str = '') -> Iterator[UserRows]:
  """The rows of a split, some users at a time.

  Args:
    log: the stream.
    split: 'train', 'valid' or 'test'; '' is all rows.
  """
  stream = InterestStream(log)
  for unit in range(-(-log.users // _UNIT)):
    rows = stream.draw_users(unit)
    if split:
      at = np.flatnonzero(_assign_splits(log, rows.shown) == split)
      rows = UserRows(rows.events, rows.shown.take(at), rows.parts[at])
    if len(rows.shown):
      yield rows


def read_chunks(
  log: InterestLog,
  column_names: Sequence[str],
  split: str = '',
  chunk_rows: int = _CHUNK,
) -> Iterator[raw.RawChunk]:
  """The rows of a split as a reader yields them.

  Args:
    log: the stream.
    column_names: those that are wanted.
    split: 'train', 'valid' or 'test'; '' is all rows.
    chunk_rows: most rows of a chunk.
  """
  for rows in draw_rows(log, split):
    for first in range(0, len(rows.shown), chunk_rows):
      shown = rows.shown.take(slice(first, first + chunk_rows))
      yield behaviour_rows.make_chunk(
        rows.events,
        shown,
        column_names,
        lambda i, shown=shown: (
          f'generated interests, user {shown.user[i]}, time {shown.time[i]}'
        ),
      )


def read_probabilities(log: InterestLog, split: str = '') -> np.ndarray:
  """`[N]` true probabilities of a click of the rows of a split."""
  found = [rows.shown.beside['probability'] for rows in draw_rows(log, split)]
  return np.concatenate([np.zeros(0), *found])


def find_bounds(probability: np.ndarray) -> Bounds:
  """What no model can beat in the mean over draws of the labels.

  The NE is the mean entropy of the probabilities over that of their mean, and
  the AUC is that of the probabilities as scores: the expected number of pairs
  in the right order over the expected number of pairs. Figures of drawn labels
  differ from them by their noise.

  >>> find_bounds(np.array([0.0, 0.0, 1.0]))
  Bounds(ne=0.0, auc=1.0)

  Args:
    probability: `[N]` of a click.
  """
  p = np.sort(np.asarray(probability, np.float64))
  if not len(p) or not 0 < p.mean() < 1:
    raise ValueError(
      'there are no rows of both labels, so that no bounds are known'
    )
  q = 1 - p
  # A row makes no pair with itself.
  pairs = p.sum() * q.sum() - (p * q).sum()
  values, place = np.unique(p, return_inverse=True)
  own = np.bincount(place, q, len(values))
  below = np.cumsum(own) - own
  right = (p * (below[place] + own[place] / 2)).sum() - (p * q).sum() / 2
  ne = find_entropy(p).mean() / find_entropy(p.mean())
  return Bounds(float(ne), float(right / pairs))


def _assign_splits(log: InterestLog, shown) -> np.ndarray:
  """`[N]` names of splits."""
  first = 1 - log.valid_share - log.test_share, 1 - log.test_share
  if log.split == 'users':
    # Users are alike whatever their numbers, so the last ones are held out.
    value, bounds = shown.user, np.rint(np.array(first) * log.users)
  else:
    bounds = _find_lead(log) + np.rint(np.array(first) * log.span_s)
    value = shown.time
  names = np.array(['train', 'valid', 'test'])
  return names[np.searchsorted(bounds, value, 'right')]


def _find_lead(log: InterestLog) -> int:
  """Seconds of events before the first possible impression.

  They fill half of an average history, so that there are short ones, too.
  """
  return max(log.gap_s, log.history * log.gap_s // 2)
