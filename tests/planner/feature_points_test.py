"""Multidimensional scaling: the stress, and points that are known."""

import numpy as np
import pytest
from scipy import optimize

from genrec_jax.planner.feature_points import find_points, measure_stress


def spans_of(points):
  return np.linalg.norm(points[:, None] - points[None], axis=-1)


def random_distances(seed, features):
  d = np.random.default_rng(seed).uniform(0.2, 1, (features, features))
  d = (d + d.T) / 2
  np.fill_diagonal(d, 0)
  return d


def plain_stress(d, points):
  total, squares = 0.0, 0.0
  for i in range(len(d)):
    for j in range(i):
      total += (np.sqrt(((points[i] - points[j]) ** 2).sum()) - d[i, j]) ** 2
      squares += d[i, j] ** 2
  return (total / squares) ** 0.5


def test_stress_is_that_of_a_plain_sum():
  rng = np.random.default_rng(0)
  points, d = rng.standard_normal((7, 2)), random_distances(0, 7)
  np.testing.assert_allclose(measure_stress(d, points), plain_stress(d, points))
  found = find_points(d)
  np.testing.assert_allclose(found.stress, plain_stress(d, found.points))


def test_points_of_the_plane_are_found_again():
  points = np.random.default_rng(1).standard_normal((20, 2))
  found = find_points(spans_of(points))
  assert found.stress < 1e-6
  np.testing.assert_allclose(
    spans_of(found.points), spans_of(points), atol=1e-5
  )


@pytest.mark.parametrize('dimensions', [1, 2, 3])
@pytest.mark.parametrize('seed', range(3))
def test_the_stress_is_about_the_least_that_another_method_finds(
  seed, dimensions
):
  d = random_distances(seed, 9)
  upper = np.triu_indices(9, 1)

  def squares(x):
    return ((spans_of(x.reshape(9, -1)) - d)[upper] ** 2).sum()

  rng = np.random.default_rng(seed)
  ends = [
    optimize.minimize(squares, rng.standard_normal(9 * dimensions)).fun
    for _ in range(12)
  ]
  least = (min(ends) / (d[upper] ** 2).sum()) ** 0.5
  # On a line Adam's starts end in other valleys than the best of twelve.
  slack = 1.3 if dimensions == 1 else 1.03
  found = find_points(d, dimensions=dimensions, seed=seed)
  assert found.stress <= slack * least
  assert found.points.shape == (9, dimensions)


def test_answers_depend_on_the_seed_alone():
  d = random_distances(4, 12)
  one, other = find_points(d, seed=3), find_points(d, seed=3)
  np.testing.assert_array_equal(one.points, other.points)


def test_scale_and_degenerate_distances():
  d = random_distances(5, 8)
  small, large = find_points(1e-4 * d), find_points(1e4 * d)
  np.testing.assert_allclose(small.stress, large.stress, rtol=1e-4)
  assert find_points(np.zeros((3, 3))).stress == 0
  assert find_points(np.zeros((1, 1))).points.shape == (1, 2)
  pair = find_points(np.array([[0, 2.0], [2.0, 0]]))
  np.testing.assert_allclose(spans_of(pair.points)[0, 1], 2.0, atol=1e-6)
  zero = random_distances(6, 6)
  zero[0, 1] = zero[1, 0] = 0
  assert np.isfinite(find_points(zero).points).all()


@pytest.mark.parametrize(
  'd, wanted',
  [
    ([[0, 1], [2, 0]], 'symmetric'),
    ([[0, 1, 2], [1, 0, 1]], 'shape'),
    ([[0, -1], [-1, 0]], 'not negative'),
    ([[0, np.inf], [np.inf, 0]], 'finite'),
  ],
)
def test_what_are_no_distances_is_refused(d, wanted):
  with pytest.raises(ValueError, match=wanted):
    find_points(np.array(d, float))
