"""Features as points: metric multidimensional scaling by gradient descent.

Minimises the stress, sum over pairs of (|x_i - x_j| - d_ij)^2, with Adam. The
first start is classical scaling, which is exact where the distances are those
of points in so many dimensions; the others are drawn.
"""

import dataclasses

import numpy as np

B1, B2, EPS = 0.9, 0.999, 1e-8


@dataclasses.dataclass(frozen=True)
class FeaturePoints:
  """Points for features.

  Attributes:
    points: `[F, dimensions]`, centred.
    stress: the root of the least stress, as a share of the root of the sum of
      squared distances: 0 shows every distance as it is, and .2 or more little
      of them.
  """

  points: np.ndarray
  stress: float


def find_points(
  distances: np.ndarray,
  *,
  dimensions: int = 2,
  seed: int = 0,
  restarts: int = 4,
  steps: int = 600,
  rate: float = 0.05,
) -> FeaturePoints:
  """Finds points whose distances are about those that are given.

  >>> square = np.array([[0, 1, 2**0.5], [1, 0, 1], [2**0.5, 1, 0]])
  >>> find_points(square).stress < 1e-6
  True

  Args:
    distances: `[F, F]`, symmetric and not negative.
    dimensions: of the points. Two can be drawn; n groups that are equally far
      from each other need n - 1.
    seed: of the random starts. The answer is a function of it.
    restarts: how many starts, the best of which is returned.
    steps: of each.
    rate: of Adam, times the mean distance; it falls to zero along a cosine.

  Raises:
    ValueError: the distances are none.
  """
  d = np.asarray(distances, np.float64)
  if d.ndim != 2 or d.shape[0] != d.shape[1] or not np.allclose(d, d.T):
    raise ValueError(f'distances must be symmetric, not of shape {d.shape}')
  if not np.isfinite(d).all() or (d < 0).any():
    raise ValueError('distances must be finite and not negative')
  scale = d.sum() / max(1, len(d) * (len(d) - 1))
  if len(d) == 1 or scale == 0:  # all features are at one place
    return FeaturePoints(np.zeros((len(d), dimensions)), 0.0)
  starts = [_scale_classically(d, dimensions)]
  for restart in range(1, restarts):
    rng = np.random.default_rng([seed, restart])
    starts.append(scale * rng.standard_normal((len(d), dimensions)))
  ends = [_descend(d, start, steps, rate * scale) for start in starts]
  best = min(ends, key=lambda x: measure_stress(d, x))  # of equals, the first
  return FeaturePoints(best - best.mean(axis=0), measure_stress(d, best))


def measure_stress(distances: np.ndarray, points: np.ndarray) -> float:
  """The stress of points, see `FeaturePoints`."""
  offs = _span(points) - distances
  total = np.square(distances).sum()
  return float((np.square(offs).sum() / total) ** 0.5) if total else 0.0


def _span(points: np.ndarray) -> np.ndarray:
  """Distances `[F, F]` of all pairs."""
  from scipy.spatial import distance  # most runs never need it

  return distance.cdist(points, points)


def _scale_classically(d: np.ndarray, dimensions: int) -> np.ndarray:
  centre = np.eye(len(d)) - 1 / len(d)
  values, vectors = np.linalg.eigh(-0.5 * centre @ (d * d) @ centre)
  order = np.argsort(-values)[:dimensions]
  points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
  missing = dimensions - points.shape[1]  # fewer features than dimensions
  points = np.pad(points, ((0, 0), (0, missing)))
  # Points on top of each other have no gradient that parts them.
  noise = np.random.default_rng(0).standard_normal(points.shape)
  return points + 1e-6 * d.mean() * noise


def _descend(
  d: np.ndarray, points: np.ndarray, steps: int, rate: float
) -> np.ndarray:
  mean, square = np.zeros((2, *points.shape))
  best, least = points, measure_stress(d, points)
  for step in range(1, steps + 1):
    spans = _span(points)
    pull = (spans - d) / np.where(spans > 0, spans, 1.0)
    # The sum over j of pull[i, j] (x_i - x_j), without all differences.
    gradient = 4 * (pull.sum(axis=1, keepdims=True) * points - pull @ points)
    mean = B1 * mean + (1 - B1) * gradient
    square = B2 * square + (1 - B2) * gradient**2
    ahead = (mean / (1 - B1**step)) / (np.sqrt(square / (1 - B2**step)) + EPS)
    falling = 0.5 * (1 + np.cos(np.pi * step / steps))
    points = points - rate * falling * ahead
  stress = measure_stress(d, points)
  return points if stress <= least else best
