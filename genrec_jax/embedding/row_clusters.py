"""Vectors into groups: k-means with weights, for as many as ids have.

`cluster_vectors` minimises the sum of weight times squared distance from the
centre of one's group. Where vectors times groups are few, each is compared with
every centre (Lloyd's algorithm, started by k-means++). Beyond that it works on
two levels: groups of groups are found in a sample, and each is divided by
itself, so that a vector is compared with some 2 √k centres and not with k.

NumPy on the host. The same vectors, weights and seed give the same groups.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

FLAT = 1 << 28  # vectors times groups up to which each meets every centre
SAMPLE = 1 << 18  # vectors that decide about groups of groups
_CHUNK = 1 << 22  # distances that are held at a time
_ROUNDS = 30
_START = 20_000  # vectors among which first centres are drawn, at least
_ENOUGH = 1e-4  # of the inertia, below which another round is not worth it


@dataclasses.dataclass(frozen=True)
class Clusters:
  """Vectors in groups.

  Attributes:
    labels: `[N]` int32, the group of each vector.
    centres: `[K, D]` float32, the weighted mean of each group.
    inertia: sum of weight times squared distance from the centre.
  """

  labels: np.ndarray
  centres: np.ndarray
  inertia: float


def shrink_vectors(
  vectors: np.ndarray, counts: np.ndarray, strength: float
) -> np.ndarray:
  """Pulls what was seen rarely towards the mean of all.

  Vector e with count n becomes (n e + s m) / (n + s), with the mean m weighted
  by counts: a vector that was never seen is m.

  >>> vectors = np.array([[1.0], [5.0]])
  >>> shrink_vectors(vectors, np.array([3, 1]), strength=1.0)[:, 0].tolist()
  [1.25, 3.5]

  Args:
    vectors: `[N, D]`.
    counts: `[N]`, how often each was seen.
    strength: the count at which a vector is half its own.
  """
  counts = np.asarray(counts, np.float64)[:, None]
  total = counts.sum()
  if not total:
    return np.zeros_like(vectors)
  mean = (counts * vectors).sum(0) / total
  shrunk = (counts * vectors + strength * mean) / np.maximum(
    counts + strength, np.finfo(np.float64).tiny
  )
  return shrunk.astype(vectors.dtype)


def cluster_vectors(
  vectors: np.ndarray,
  weights: np.ndarray,
  groups: int,
  *,
  seed: int = 0,
  flat: int = FLAT,
  tell: Callable[[int, int], None] | None = None,
) -> Clusters:
  """Puts vectors into groups of near ones.

  >>> vectors = np.array([[0.0], [0.1], [7.0], [7.2], [0.05]])
  >>> found = cluster_vectors(vectors, np.ones(5), 2)
  >>> (found.labels == found.labels[0]).tolist()
  [True, True, False, False, True]

  Args:
    vectors: `[N, D]`, finite.
    weights: `[N]`, zero or more; what has no weight follows the others.
    groups: how many; there are fewer where there are fewer vectors.
    seed: of all draws.
    flat: vectors times groups beyond which it works on two levels.
    tell: is called with (groups of groups that are divided, of how many).

  Raises:
    ValueError: there is no group, or the numbers are not finite.
  """
  vectors = np.ascontiguousarray(vectors, np.float32)
  weights = np.ascontiguousarray(weights, np.float64)
  _check(vectors, weights, groups)
  rng = np.random.default_rng(seed)
  if len(vectors) <= groups:
    labels = np.arange(len(vectors), dtype=np.int32)
    return Clusters(labels, vectors.copy(), 0.0)
  if len(vectors) * groups <= flat:
    return _cluster_flat(vectors, weights, groups, rng)
  return _cluster_twice(vectors, weights, groups, rng, tell)


def _check(vectors, weights, groups) -> None:
  if groups < 1:
    raise ValueError(
      f'{len(vectors):,} vectors in {groups} groups: one group at least'
    )
  if vectors.ndim != 2 or weights.shape != vectors.shape[:1]:
    raise ValueError(
      f'vectors {list(vectors.shape)} have weights {list(weights.shape)}; one '
      'weight a vector'
    )
  for name, values in (('vectors', vectors), ('weights', weights)):
    if not np.isfinite(values).all():
      raise ValueError(
        f'{name} hold NaN or infinity, which are near to nothing'
      )
  if (weights < 0).any():
    raise ValueError('weights hold negative numbers')


def _cluster_flat(vectors, weights, groups, rng) -> Clusters:
  """Lloyd's rounds."""
  weights = weights if weights.any() else np.ones_like(weights)
  centres = _start(vectors, weights, groups, rng)
  labels, before = None, math.inf
  for _ in range(_ROUNDS):
    new, distances = find_nearest(vectors, centres)
    inertia = float(weights @ distances)
    same = labels is not None and np.array_equal(new, labels)
    labels = new
    if same or before - inertia <= _ENOUGH * max(inertia, 1e-30):
      break
    before = inertia
    centres = _move(vectors, weights, labels, distances, centres)
  centres = _move(vectors, weights, labels, None, centres)
  gaps = vectors - centres[labels]
  inertia = float(weights @ np.einsum('nd,nd->n', gaps, gaps, dtype=np.float64))
  return Clusters(labels, centres, inertia)


def _start(vectors, weights, groups, rng) -> np.ndarray:
  """k-means++: the next centre is drawn by weight and squared distance."""
  # A sample of twenty vectors a group is enough, but few groups get more.
  if len(vectors) > (size := max(20 * groups, _START)):
    chosen, own = _draw_sample(weights, size, rng)
    sample = vectors[chosen]
  else:
    sample, own = vectors, weights
  centres = np.empty((groups, vectors.shape[1]), np.float32)
  near = np.ones(len(sample))
  trials = 2 + int(math.log(groups))
  for one in range(groups):
    total = np.cumsum(own * near)
    if total[-1] > 0:
      places = np.searchsorted(total, rng.random(trials) * total[-1])
      places = np.minimum(places, len(sample) - 1)
    else:  # fewer different vectors than groups
      places = rng.integers(len(sample), size=1)
    # Of some draws the one that leaves the least distance.
    gaps = sample[None] - sample[places][:, None]
    nearer = np.einsum('tnd,tnd->tn', gaps, gaps)
    if one:
      nearer = np.minimum(nearer, near)
    best = int(np.argmin(nearer @ own))
    centres[one], near = sample[places[best]], nearer[best]
  return centres


def _draw_sample(weights, size: int, rng) -> tuple[np.ndarray, np.ndarray]:
  """About so many different ones, and weights with which they stand for all.

  >>> rng = np.random.default_rng(0)
  >>> chosen, own = _draw_sample(np.array([8.0, 1, 1, 1, 1, 0]), 3, rng)
  >>> len(set(chosen)) == len(chosen), own[chosen == 0].tolist()
  (True, [8.0])

  Each is there with probability min(1, weight / t), and stands for max(weight,
  t) then. Drawn with replacement, a few heavy ones would be most of a sample.
  """
  falling = np.sort(weights)[::-1].astype(np.float64)
  # Of the heaviest k, all are there; t leaves room for the rest.
  rest = falling.sum() - np.append(0.0, np.cumsum(falling))[:size]
  levels = rest / (size - np.arange(size))
  k = int(np.argmax(falling[:size] <= levels))
  level = max(float(levels[k]), 1e-300)
  chosen = np.flatnonzero(rng.random(len(weights)) * level < weights)
  return chosen, np.maximum(weights[chosen], level)


def find_nearest(
  vectors: np.ndarray, centres: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The nearest centre of each vector, and its squared distance.

  Args:
    vectors: `[N, D]` float32.
    centres: `[K, D]` float32.

  Returns:
    `[N]` int32, the first of equally near ones; `[N]` float64.
  """
  labels = np.empty(len(vectors), np.int32)
  distances = np.empty(len(vectors))
  norms = np.einsum('kd,kd->k', centres, centres)
  step = max(1, _CHUNK // len(centres))
  for begin in range(0, len(vectors), step):
    part = vectors[begin : begin + step]
    # |x - c|² without |x|², which is the same for all centres.
    scores = norms - 2 * (part @ centres.T)
    nearest = np.argmin(scores, axis=1)
    labels[begin : begin + step] = nearest
    gaps = part - centres[nearest]
    distances[begin : begin + step] = np.einsum('nd,nd->n', gaps, gaps)
  return labels, distances


def _move(vectors, weights, labels, distances, centres) -> np.ndarray:
  """The means of the groups; an empty one begins anew where it is worst."""
  groups = len(centres)
  mass = np.bincount(labels, weights, groups)
  sums = np.stack(
    [
      np.bincount(labels, weights * column, groups)
      for column in vectors.T.astype(np.float64)
    ],
    axis=1,
  )
  found = mass > 0
  moved = centres.astype(np.float64)
  moved[found] = sums[found] / mass[found, None]
  if distances is not None:
    empty = np.flatnonzero(~found)
    if len(empty):
      worst = np.argsort(-(weights * distances), kind='stable')[: len(empty)]
      moved[empty[: len(worst)]] = vectors[worst]
  return moved.astype(np.float32)


def _cluster_twice(vectors, weights, groups, rng, tell) -> Clusters:
  """Groups of groups in a sample, each divided by itself."""
  first = math.isqrt(groups)
  size = min(len(vectors), max(SAMPLE, 20 * first))
  chance = weights if weights.any() else np.ones_like(weights)
  sample = rng.choice(len(vectors), size, p=chance / chance.sum())
  # Drawn by weight, so each counts once.
  coarse = _cluster_flat(vectors[sample], np.ones(size), first, rng).centres
  parts, distances = find_nearest(vectors, coarse)
  members = _members(parts, first)
  shares = share_groups(
    groups,
    np.bincount(parts, weights * distances, first),
    np.array([len(own) for own in members]),
  )
  labels = np.empty(len(vectors), np.int32)
  centres, inertia, begin = [], 0.0, 0
  for number, (own, share) in enumerate(zip(members, shares, strict=True)):
    if len(own):
      found = cluster_vectors(
        vectors[own],
        weights[own],
        int(share),
        seed=int(rng.integers(2**31)),
        flat=max(FLAT, len(own) * int(share)),
      )
      labels[own] = begin + found.labels
      centres.append(found.centres)
      inertia += found.inertia
      begin += len(found.centres)
    if tell:
      tell(number + 1, first)
  return Clusters(labels, np.concatenate(centres), inertia)


def _members(parts: np.ndarray, count: int) -> list[np.ndarray]:
  order = np.argsort(parts, kind='stable')
  ends = np.searchsorted(parts[order], np.arange(count + 1))
  return [order[ends[i] : ends[i + 1]] for i in range(count)]


def share_groups(
  groups: int, spread: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
  """How many groups each part gets.

  By the root of its spread, one at least where anything is, and no more than it
  has members.

  >>> share_groups(6, np.array([4.0, 1.0, 0.0]), np.array([9, 9, 1])).tolist()
  [3, 2, 1]

  Args:
    groups: in all, as many as parts with members at least.
    spread: `[P]` sum of weight times squared distance of each part.
    sizes: `[P]` members of each.
  """
  shares = (sizes > 0).astype(np.int64)
  wish = np.sqrt(spread) + 1e-30
  while (left := groups - shares.sum()) > 0:
    room = sizes - shares
    open_ = room > 0
    if not open_.any():
      break
    part = np.where(open_, wish, 0.0)
    ideal = part / part.sum() * left
    add = np.minimum(np.floor(ideal).astype(np.int64), room)
    if not add.any():  # the largest remainders, one each
      order = np.argsort(-np.where(open_, ideal, -1.0), kind='stable')[:left]
      add[order] = open_[order]
    shares += add
  return shares
