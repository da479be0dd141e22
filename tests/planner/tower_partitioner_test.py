"""Towers: exact assignments, bounds that hold, blocks that are found."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.config import tower_file
from genrec_jax.planner import (
  feature_distances,
  feature_points,
  tower_assignment,
  tower_bounds,
  tower_clusters,
  tower_partitioner,
)
from genrec_jax.planner.tower_assignment import assign_items
from genrec_jax.planner.tower_bounds import Bounds, Item, TowerBoundsError
from genrec_jax.planner.tower_clusters import (
  cluster_evenly,
  improve_partition,
  sum_squares,
)
from genrec_jax.planner.tower_partitioner import (
  TowerFeature,
  deal_features,
  group_by_table,
  partition_features,
)
from genrec_jax.report import tower_plane


def make_items(sizes, nbytes=None, loads=None):
  names = iter(f'f{i}' for i in range(100))
  return [
    Item(
      tuple(itertools.islice(names, size)),
      f't{i}',
      nbytes[i] if nbytes is not None else 0,
      loads[i] if loads is not None else 0,
    )
    for i, size in enumerate(sizes)
  ]


def list_partitions(items, towers, bounds):
  """Every partition that keeps the bounds, by trying all of them."""
  for labels in itertools.product(range(towers), repeat=len(items)):
    held = [[i for i, x in zip(items, labels, strict=True) if x == t]
            for t in range(towers)]  # fmt: skip
    counts = [sum(len(i.features) for i in own) for own in held]
    if (
      min(counts) >= bounds.least
      and max(counts) <= bounds.most
      and all(
        most is None or max(sum(getattr(i, key) for i in own) for own in held)
        <= most
        for key, most in (
          ('bytes', bounds.max_bytes), ('load', bounds.max_load)
        )
      )
    ):  # fmt: skip
      yield np.array(labels)


@st.composite
def problems(draw, most_items=6):
  """(items, towers, bounds, costs), with and without an answer."""
  count = draw(st.integers(2, most_items))
  towers = draw(st.integers(1, min(3, count)))
  rng = np.random.default_rng(draw(st.integers(0, 10**6)))
  sizes = rng.integers(1, 1 + draw(st.integers(1, 3)), count)
  nbytes, loads = rng.integers(1, 50, count), rng.integers(1, 9, count)
  items = make_items(sizes.tolist(), nbytes.tolist(), loads.tolist())
  features = int(sizes.sum())
  room = draw(st.integers(0, 2))
  even = Bounds.even(features, towers)
  bounds = Bounds(
    max(1, even.least - room),
    even.most + room,
    draw(st.sampled_from([None, nbytes.sum() // towers + 10])),
    draw(st.sampled_from([None, loads.sum() // towers + 2])),
  )
  return items, towers, bounds, rng.random((count, towers))


@settings(max_examples=150, deadline=None)
@given(problems())
def test_assignments_are_the_best_of_all(problem):
  items, towers, bounds, costs = problem
  number = np.arange(len(items))
  every = [
    costs[number, labels].sum()
    for labels in list_partitions(items, towers, bounds)
  ]
  if not every:
    with pytest.raises(TowerBoundsError, match='no partition'):
      assign_items(costs, items, bounds)
    return
  labels = assign_items(costs, items, bounds)
  assert bounds.hold(items, labels, towers)
  np.testing.assert_allclose(costs[number, labels].sum(), min(every))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_clusters_of_tiny_cases_are_nearly_always_the_best(problem):
  items, towers, bounds, _ = problem
  points = np.random.default_rng(len(items)).standard_normal((len(items), 2))
  every = [
    sum_squares(points, items, labels, towers)
    for labels in list_partitions(items, towers, bounds)
  ]
  if not every:
    with pytest.raises(TowerBoundsError):
      cluster_evenly(points, items, towers, bounds)
    return
  labels = cluster_evenly(points, items, towers, bounds)
  found = sum_squares(points, items, labels, towers)
  assert min(every) - 1e-9 <= found <= 1.15 * min(every) + 1e-9


@settings(max_examples=12, deadline=None)
@given(
  st.integers(2, 30), st.integers(1, 6), st.integers(1, 3),
  st.integers(0, 10**6), st.booleans(),
)  # fmt: skip
def test_bounds_always_hold(features, towers, shared, seed, limited):
  rng = np.random.default_rng(seed)
  tables = rng.integers(max(1, features // shared), size=features)
  nbytes = rng.integers(1, 10**9, features)
  own = [
    TowerFeature(f'f{i}', f't{t}', float(nbytes[t]), float(rng.integers(99)))
    for i, t in enumerate(tables)
  ]
  total = sum({f.table: f.bytes for f in own}.values())
  even = Bounds.even(features, towers)
  limit = 1.3 * total / towers if limited else None
  bounds = Bounds(max(1, even.least - 1), even.most + 1, limit)
  d = rng.random((features, features))
  d = (d + d.T) * (1 - np.eye(features))
  try:
    found = partition_features(own, d, towers, bounds=bounds)
  except TowerBoundsError:
    found = None
  for how in ('round_robin', 'random'):
    try:
      dealt = deal_features(own, towers, how, bounds=bounds, seed=seed)
    except TowerBoundsError:
      assert found is None  # whether there is a partition is a fact
      continue
    check_partition(dealt, own, towers, bounds)
    assert found is not None
  if found is not None:
    check_partition(found, own, towers, bounds)
    again = partition_features(own, d, towers, bounds=bounds)
    assert again.towers == found.towers and again.stress == found.stress


def check_partition(partition, features, towers, bounds):
  by_name = {f.name: f for f in features}
  assert len(partition.towers) == towers
  names = [name for tower in partition.towers for name in tower]
  assert sorted(names) == sorted(by_name)
  tables = [{by_name[n].source for n in tower} for tower in partition.towers]
  assert sum(map(len, tables)) == len(set.union(*tables))
  for tower in partition.towers:
    assert bounds.least <= len(tower) <= bounds.most
    if bounds.max_bytes is not None:
      own = {by_name[n].source: by_name[n].bytes for n in tower}
      assert sum(own.values()) <= bounds.max_bytes


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('features, towers', [(16, 4), (26, 4), (24, 8)])
def test_planted_distances_are_found_again(features, towers, seed):
  rng = np.random.default_rng(seed)
  block = rng.permutation(np.arange(features) % towers)
  near = block[:, None] == block[None]
  d = np.where(near, 0.5, 0.8) + 0.05 * rng.standard_normal(near.shape)
  d = (d + d.T) / 2 * (1 - np.eye(features))
  own = [TowerFeature(f'f{i}') for i in range(features)]
  found = partition_features(own, d, towers)
  wanted = {
    frozenset(f'f{i}' for i in np.flatnonzero(block == b))
    for b in range(towers)
  }
  assert set(map(frozenset, found.towers)) == wanted
  dealt = deal_features(own, towers, 'round_robin')
  assert set(map(frozenset, dealt.towers)) != wanted
  # Towers and the features in them are in the order of the features.
  firsts = [int(tower[0][1:]) for tower in found.towers]
  assert firsts == sorted(firsts)


def test_features_of_a_table_move_together_with_their_weight():
  own = [
    TowerFeature('a', 'shared', 8, 1), TowerFeature('b'),
    TowerFeature('c', 'shared', 8, 2), TowerFeature('d'),
  ]  # fmt: skip
  items, members = group_by_table(own)
  assert items[0] == Item(('a', 'c'), 'shared', 8, 3)
  assert members == [[0, 2], [1], [3]]
  # a and d are near each other, but c pulls a away.
  d = np.array([[0, 9, 9, 1], [9, 0, 9, 9], [9, 9, 0, 9], [1, 9, 9, 0.0]])
  assert partition_features(own, d, 2).towers == (('a', 'c'), ('b', 'd'))


def test_a_swap_mends_what_kmeans_leaves():
  points = np.array([[0.0], [1], [10], [11]])
  items = make_items([1] * 4)
  labels = improve_partition(
    points, items, np.array([0, 1, 0, 1]), 2, Bounds(2, 2)
  )
  assert labels.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize(
  'sizes, nbytes, towers, bounds, wanted',
  [
    ([1, 1], None, 3, Bounds(1, 1), '3 towers need as many tables, but the 2'),
    ([1, 1], None, 0, Bounds(1, 1), 'at least 1 tower, not 0'),
    ([1] * 5, None, 2, Bounds(2, 2), '5 features do not make 2 towers of 2 f'),
    ([3, 1], None, 2, Bounds(1, 2), 'f0, f1, f2 of the table .t0. belong to'),
    ([1, 1], [9, 1], 2, Bounds(1, 1, 8), "'f0' has 9 bytes, .* 8 at most"),
    ([1] * 4, [3] * 4, 2, Bounds(1, 3, 5), '12 bytes, and 2 towers of 5 .* 10'),
    ([1] * 2, None, 2, Bounds(2, 1), 'cannot have 2 to 1'),
    # By counting alone it might be possible.
    ([1] * 3, [4] * 3, 2, Bounds(1, 2, 7), 'there is no partition of 3 .*4 by'),
    ([2, 2, 2], None, 2, Bounds(3, 3), 'no partition of 6 features into 2'),
  ],
)  # fmt: skip
def test_bounds_that_cannot_be_kept_are_refused(
  sizes, nbytes, towers, bounds, wanted
):
  items = make_items(sizes, nbytes)
  points = np.random.default_rng(0).standard_normal((len(items), 2))
  with pytest.raises(TowerBoundsError, match=wanted):
    cluster_evenly(points, items, towers, bounds)


def test_an_integer_program_may_not_pass_a_bound_by_a_rounding():
  # A byte in two billion is below the tolerance of a solver.
  items = make_items([1] * 4, [10**9, 10**9 + 1, 10**9, 10**9 - 1])
  costs = np.array([[0, 1.0], [0, 1], [1, 0], [1, 0]])
  bounds = Bounds(2, 2, 2 * 10**9)
  labels = assign_items(costs, items, bounds)
  assert bounds.hold(items, labels, 2)
  assert labels[1] == labels[3]


def test_wrong_shapes_and_strategies():
  own = [TowerFeature('a'), TowerFeature('b')]
  with pytest.raises(ValueError, match='shape .3, 3. for 2 features'):
    partition_features(own, np.zeros((3, 3)), 2)
  with pytest.raises(ValueError, match="'rund', must be one of round_robin"):
    deal_features(own, 2, 'rund')
  dealt = deal_features(own, 2, 'random', seed=3)
  assert dealt == deal_features(own, 2, 'random', seed=3)


@pytest.mark.parametrize(
  'module',
  [
    feature_distances,
    feature_points,
    tower_assignment,
    tower_bounds,
    tower_clusters,
    tower_file,
    tower_partitioner,
    tower_plane,
  ],
)
def test_examples_of_docstrings_are_true(module):
  assert doctest.testmod(module).failed == 0


def test_more_dimensions_than_features_are_refused():
  features = [TowerFeature(name, name, 1, 1.0) for name in 'abc']
  with pytest.raises(ValueError, match='100000 dimensions .* the 3 features'):
    partition_features(
      features, np.ones((3, 3)) - np.eye(3), 2, dimensions=100_000
    )
