"""k-means of vectors: against scikit-learn and plain statements."""

import numpy as np
import pytest

from genrec_jax.embedding import row_clusters


def blobs(count: int, kinds: int, dim: int = 4, noise: float = 0.05, seed=0):
  """(vectors around so many places, which place, weights)."""
  rng = np.random.default_rng(seed)
  places = rng.normal(size=(kinds, dim))
  which = rng.integers(0, kinds, count)
  vectors = places[which] + noise * rng.normal(size=(count, dim))
  return vectors.astype(np.float32), which, rng.zipf(1.5, count).clip(1, 1000)


def inertia_of(vectors, weights, found):
  gaps = vectors - found.centres[found.labels]
  return float(np.sum(weights * np.sum(np.square(gaps, dtype='f8'), 1)))


def same_groups(a, b) -> bool:
  pairs = {*zip(a.tolist(), b.tolist(), strict=True)}
  return len(pairs) == len({*a.tolist()}) == len({*b.tolist()})


@pytest.mark.parametrize('flat', [row_clusters.FLAT, 0])
def test_places_are_found(flat):
  vectors, which, weights = blobs(2000, 9, noise=0.01)
  groups = 9 if flat else 25  # on two levels, a place may be parted
  found = row_clusters.cluster_vectors(vectors, weights, groups, flat=flat)
  if flat:
    assert same_groups(found.labels, which)
  for label in range(groups):  # no group holds two places
    assert len({*which[found.labels == label].tolist()}) <= 1


@pytest.mark.parametrize('groups', [5, 40, 200])
def test_rounds_end_where_those_of_scikit_learn_do(groups, monkeypatch):
  cluster = pytest.importorskip('sklearn.cluster')
  vectors, _, weights = blobs(3000, 60, noise=0.5)
  start = vectors[:groups].copy()
  monkeypatch.setattr(row_clusters, '_start', lambda *_: start)
  found = row_clusters.cluster_vectors(vectors, weights, groups)
  peer = cluster.KMeans(groups, init=start, n_init=1, tol=1e-4)
  peer.fit(vectors, sample_weight=weights)
  np.testing.assert_allclose(found.inertia, peer.inertia_, rtol=2e-3)
  np.testing.assert_allclose(
    found.inertia, inertia_of(vectors, weights, found), rtol=1e-4
  )


@pytest.mark.parametrize('groups', [5, 40, 200])
def test_starts_are_as_good_as_those_of_scikit_learn(groups):
  cluster = pytest.importorskip('sklearn.cluster')
  vectors, _, weights = blobs(3000, 60, noise=0.5)
  ours, theirs = [], []
  for seed in range(8):
    found = row_clusters.cluster_vectors(vectors, weights, groups, seed=seed)
    ours.append(found.inertia)
    peer = cluster.KMeans(groups, n_init=1, random_state=seed)
    theirs.append(peer.fit(vectors, sample_weight=weights).inertia_)
  assert np.mean(ours) <= 1.05 * np.mean(theirs)  # each deviates by .02


def test_a_sample_by_weight_stands_for_all(monkeypatch):
  """Where a few vectors have most of the weight, most of it is not of them."""
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(12_000, 3)).astype(np.float32)
  weights = 1e6 * (1.0 + np.arange(len(vectors))) ** -1.5
  chosen, own = row_clusters._draw_sample(weights, 2_000, rng)
  assert len({*chosen.tolist()}) == len(chosen)
  assert 1_850 < len(chosen) < 2_150
  assert abs(own.sum() / weights.sum() - 1) < 0.01
  sampled, whole = [], []
  for seed in range(4):
    for start, found in ((2_000, sampled), (len(vectors), whole)):
      monkeypatch.setattr(row_clusters, '_START', start)
      clusters = row_clusters.cluster_vectors(vectors, weights, 60, seed=seed)
      found.append(clusters.inertia)
  # Drawn with replacement, it was 1.06 times.
  assert np.mean(sampled) < 1.035 * np.mean(whole)


def test_two_levels_cost_little_inertia():
  vectors, _, weights = blobs(6000, 300, noise=0.3)
  one = row_clusters.cluster_vectors(vectors, weights, 256)
  two = row_clusters.cluster_vectors(vectors, weights, 256, flat=0)
  assert len(two.centres) == 256
  assert two.inertia <= 1.25 * one.inertia
  np.testing.assert_allclose(
    two.inertia, inertia_of(vectors, weights, two), rtol=1e-4
  )


def test_centres_are_weighted_means():
  vectors, _, weights = blobs(500, 7)
  found = row_clusters.cluster_vectors(vectors, weights, 7)
  for label in range(7):
    own = found.labels == label
    mean = np.average(vectors[own], axis=0, weights=weights[own])
    np.testing.assert_allclose(found.centres[label], mean, atol=1e-5)


def test_nearest_is_what_a_loop_says():
  rng = np.random.default_rng(0)
  vectors, centres = rng.normal(size=(50, 3)), rng.normal(size=(11, 3))
  labels, distances = row_clusters.find_nearest(
    vectors.astype('f4'), centres.astype('f4')
  )
  for vector, label, distance in zip(vectors, labels, distances, strict=True):
    all_ = [np.sum((vector - c) ** 2) for c in centres]
    assert label == int(np.argmin(all_))
    assert distance == pytest.approx(min(all_), rel=1e-4)


@pytest.mark.parametrize('flat', [row_clusters.FLAT, 0])
def test_a_seed_gives_one_answer(flat):
  vectors, _, weights = blobs(1500, 30, noise=0.4)
  a, b = (
    row_clusters.cluster_vectors(vectors, weights, 36, seed=3, flat=flat)
    for _ in range(2)
  )
  np.testing.assert_array_equal(a.labels, b.labels)
  np.testing.assert_array_equal(a.centres, b.centres)


def test_heavy_vectors_have_groups_of_their_own():
  vectors = np.array([[0.0], [1.0], [10.0], [11.0]])
  heavy = row_clusters.cluster_vectors(vectors, [1e6, 1e6, 1, 1], 3)
  assert len({*heavy.labels[:2].tolist()}) == 2
  assert heavy.labels[2] == heavy.labels[3]


def test_as_many_groups_as_vectors():
  vectors, _, weights = blobs(9, 3)
  found = row_clusters.cluster_vectors(vectors, weights, 20)
  assert found.labels.tolist() == [*range(9)] and found.inertia == 0.0


@pytest.mark.parametrize('flat', [row_clusters.FLAT, 0])
def test_equal_vectors_and_no_weights(flat):
  vectors = np.ones((40, 2), np.float32)
  found = row_clusters.cluster_vectors(vectors, np.zeros(40), 9, flat=flat)
  assert found.inertia == 0.0 and np.isfinite(found.centres).all()


def test_progress_is_told():
  vectors, _, weights = blobs(400, 9)
  told = []
  row_clusters.cluster_vectors(
    vectors, weights, 16, flat=0, tell=lambda *x: told.append(x)
  )
  assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
  ('vectors', 'weights', 'groups', 'message'),
  [
    (np.ones((3, 2)), np.ones(3), 0, 'one group at least'),
    (np.ones((3, 2)), np.ones(2), 2, 'one weight a vector'),
    (np.full((3, 2), np.nan), np.ones(3), 2, 'vectors hold NaN'),
    (np.ones((3, 2)), np.array([1, np.inf, 1]), 2, 'weights hold NaN or inf'),
    (np.ones((3, 2)), np.array([1, -1, 1]), 2, 'negative'),
  ],
)
def test_what_cannot_be_grouped(vectors, weights, groups, message):
  with pytest.raises(ValueError, match=message):
    row_clusters.cluster_vectors(vectors, weights, groups)


def test_shares_add_up():
  rng = np.random.default_rng(0)
  for _ in range(50):
    sizes = rng.integers(0, 30, 12)
    groups = int(rng.integers((sizes > 0).sum(), sizes.sum() + 1))
    shares = row_clusters.share_groups(groups, rng.random(12) * sizes, sizes)
    assert shares.sum() == groups
    assert np.all(shares <= sizes) and np.all((shares > 0) == (sizes > 0))


def test_what_was_never_seen_is_the_mean():
  vectors = np.array([[0.0, 4.0], [2.0, 0.0], [9.0, 9.0]])
  shrunk = row_clusters.shrink_vectors(vectors, np.array([1, 3, 0]), 2.0)
  mean = np.array([1.5, 1.0])
  np.testing.assert_allclose(shrunk[2], mean)
  np.testing.assert_allclose(shrunk[0], (vectors[0] + 2 * mean) / 3)
