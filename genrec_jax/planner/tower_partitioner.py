"""Which features share a tower.

Disaggregated multi-tower training (DMT, arXiv 2403.00877) puts the tables of a
tower on one host, and what travels between hosts is what a tower makes of its
features. Features that belong together should therefore share one. The paper's
way: distances between features (`feature_distances`), points that keep them
(`feature_points`), and balanced k-means of the points (`tower_clusters`).
`deal_features` are the partitions to compare with.

The paper's points lie in the plane. Towers that are equally far from each other
do not fit there, so that here they have as many dimensions as there are towers;
`dimensions=2` is the paper's. benchmarks/tower_recovery.py compares the two.

`python -m genrec_jax.train.partition_towers WORKDIR --towers 4` does it for a
trained run, and so does this module in its place.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from genrec_jax.config.tower_file import TowerPlan
from genrec_jax.planner.feature_points import FeaturePoints, find_points
from genrec_jax.planner.tower_assignment import assign_items
from genrec_jax.planner.tower_bounds import (
  Bounds,
  Item,
  check_bounds,
  count_features,
)
from genrec_jax.planner.tower_clusters import cluster_evenly, number_in_order

DEALS = ('round_robin', 'random')


@dataclasses.dataclass(frozen=True)
class TowerFeature:
  """What a partitioner must know of a feature.

  Attributes:
    name: of the feature.
    table: whose rows it reads; '' is the table of its own name.
    bytes: of the rows of the table.
    load: bytes of rows that an example reads for it.
  """

  name: str
  table: str = ''
  bytes: float = 0.0
  load: float = 0.0

  @property
  def source(self) -> str:
    return self.table or self.name


@dataclasses.dataclass(frozen=True)
class Partition:
  """Features by tower.

  Attributes:
    towers: names of the features of each, in the order of the features.
    stress: of the points that were clustered, see `FeaturePoints`; None of a
      partition that was dealt.
    dimensions: of these points.
    plane: the features in the plane, for a picture.
  """

  towers: tuple[tuple[str, ...], ...]
  stress: float | None = None
  dimensions: int | None = None
  plane: FeaturePoints | None = None

  def plan(self, **facts) -> TowerPlan:
    """As data for a file; `facts` are fields of `TowerPlan`."""
    return TowerPlan(
      self.towers, stress=self.stress, dimensions=self.dimensions, **facts
    )


def partition_features(
  features: Sequence[TowerFeature],
  distances: np.ndarray,
  towers: int,
  *,
  bounds: Bounds | None = None,
  dimensions: int | None = None,
  seed: int = 0,
) -> Partition:
  """Puts features that are near each other into one tower.

  >>> near, far = 0.1, 1.0
  >>> d = [[0, far, near, far], [far, 0, far, near],
  ...      [near, far, 0, far], [far, near, far, 0]]
  >>> features = [TowerFeature(name) for name in 'abcd']
  >>> partition_features(features, np.array(d), 2).towers
  (('a', 'c'), ('b', 'd'))

  Args:
    features: all features with a table.
    distances: `[F, F]`, in the order of the features.
    towers: how many.
    bounds: of a tower; None is `Bounds.even`, as many features in each.
    dimensions: of the points; None is the number of towers, 2 at least.
    seed: of the starts; the answer is a function of it.

  Raises:
    TowerBoundsError: no partition keeps the bounds.
  """
  if np.shape(distances) != (len(features),) * 2:
    raise ValueError(
      f'distances have shape {np.shape(distances)} for {len(features)} features'
    )
  items, members = group_by_table(features)
  bounds = bounds or Bounds.even(len(features), max(1, towers))
  check_bounds(items, towers, bounds)  # before the work
  dimensions = dimensions or max(2, towers)
  if dimensions > max(2, towers, len(distances)):
    raise ValueError(
      f'{dimensions} dimensions are more than the {len(distances)} features '
      'have; fewer lose nothing'
    )
  found = find_points(distances, dimensions=dimensions, seed=seed)
  points = np.stack([found.points[own].mean(axis=0) for own in members])
  labels = cluster_evenly(points, items, towers, bounds, seed=seed)
  return Partition(
    _list_towers(features, labels),
    found.stress,
    dimensions,
    found if dimensions == 2 else find_points(distances, seed=seed),
  )


def deal_features(
  features: Sequence[TowerFeature],
  towers: int,
  how: str,
  *,
  bounds: Bounds | None = None,
  seed: int = 0,
) -> Partition:
  """Partitions that know nothing of the features.

  >>> features = [TowerFeature(name) for name in 'abcde']
  >>> deal_features(features, 2, 'round_robin').towers
  (('a', 'c', 'e'), ('b', 'd'))

  Args:
    features: all features with a table.
    towers: how many.
    how: 'round_robin', one tower after the other, or 'random'.
    bounds: as in `partition_features`. Where round robin does not keep them, as
      few features as possible are in another tower.
    seed: of 'random'.

  Raises:
    TowerBoundsError: no partition keeps the bounds.
  """
  if how not in DEALS:
    raise ValueError(
      f'the strategy is {how!r}, must be one of {", ".join(DEALS)}'
    )
  items, _ = group_by_table(features)
  bounds = bounds or Bounds.even(len(features), max(1, towers))
  check_bounds(items, towers, bounds)
  if how == 'random':
    costs = np.random.default_rng(seed).random((len(items), towers))
  else:
    elsewhere = np.arange(len(items))[:, None] % towers != np.arange(towers)
    costs = elsewhere * count_features(items)[:, None].astype(np.float64)
  labels = number_in_order(assign_items(costs, items, bounds))
  return Partition(_list_towers(features, labels))


def group_by_table(
  features: Sequence[TowerFeature],
) -> tuple[list[Item], list[list[int]]]:
  """Features that read one table as one item.

  Returns:
    The items, in the order of their first features; and the numbers of the
    features of each.
  """
  members = {}
  for number, feature in enumerate(features):
    members.setdefault(feature.source, []).append(number)
  items = [
    Item(
      tuple(features[n].name for n in own),
      table,
      # The table is there once, and read for each feature.
      max(features[n].bytes for n in own),
      sum(features[n].load for n in own),
    )
    for table, own in members.items()
  ]
  return items, list(members.values())


def _list_towers(
  features: Sequence[TowerFeature], labels: np.ndarray
) -> tuple[tuple[str, ...], ...]:
  items, members = group_by_table(features)
  towers = [[] for _ in range(max(labels) + 1)]
  for own, label in zip(members, labels, strict=True):
    towers[label] += own
  return tuple(
    tuple(features[n].name for n in sorted(tower)) for tower in towers
  )


if __name__ == '__main__':
  import runpy

  # The command reads runs, of which nothing here knows.
  runpy.run_module('genrec_jax.train.partition_towers', run_name='__main__')
