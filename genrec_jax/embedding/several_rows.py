"""Ids that have two rows of a table: a feature reads both, and adds them up.

The second read of a feature is called `NAME + SECOND`; its ids are those of the
first and `ids` more, as the map of the table expects. What is missing has no
second row, and neither has an id with a row of its own.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.features import (
  PAD,
  UNREAD,
  ExpectedRead,
  FeatureSpec,
  Read,
  TableSpec,
)

SECOND = '#2'
MAPS = ('double', 'qr')  # the id maps of such tables


def has_two(spec: TableSpec) -> bool:
  """Whether ids of the table have two rows."""
  return spec.id_map in MAPS


def check_feature(
  feature: FeatureSpec, spec: TableSpec, in_tower: bool
) -> None:
  """Refuses a feature that cannot read two rows.

  Args:
    feature: which.
    spec: of its table.
    in_tower: whether a tower takes it.
  """
  if not has_two(spec):
    return
  if in_tower:
    raise ValueError(
      f'model.towers: ids of table {spec.name!r} have two rows '
      f'(id_map={spec.id_map!r}), and a tower takes one of each feature; '
      'choose another id_map'
    )
  if spec.combine == 'product' and feature.pooled:
    raise ValueError(
      f'feature {feature.name!r} pools rows of table {spec.name!r}, whose '
      "ids have the product of two (combine='product'): a product of sums is "
      "no sum of products, take combine='sum'"
    )


def add_second(
  reads: Mapping[str, Read], tables: Mapping[str, TableSpec]
) -> dict[str, Read]:
  """The reads, and behind each of a table with two rows an id its second one.

  >>> spec = TableSpec('item', rows=4, dim=2, id_map='double', ids=9, private=1)
  >>> reads = {'item': Read(jnp.array([0, 1, 2, 8]), 'item')}
  >>> add_second(reads, {'item': spec})['item#2'].ids[2:].tolist()
  [11, 17]

  Args:
    reads: feature -> what it reads.
    tables: table -> its settings.
  """
  found = {}
  for name, read in reads.items():
    found[name] = read
    spec = tables[read.table]
    if has_two(spec):
      found[name + SECOND] = _make_second(read, spec)
  return found


def _make_second(read: Read, spec: TableSpec) -> Read:
  has_second = read.ids > max(spec.private, PAD)
  ids = read.ids + (spec.ids or spec.rows)
  if read.pooling == 'none':
    return dataclasses.replace(read, ids=jnp.where(has_second, ids, UNREAD))
  # A bag has no gaps: what it lacks counts nothing.
  weights = has_second.astype(jnp.float32)
  if read.weights is not None:
    weights *= read.weights
  ids = jnp.where(has_second, ids, PAD)
  return dataclasses.replace(read, ids=ids, weights=weights)


def expect_second(
  reads: Mapping[str, ExpectedRead], tables: Mapping[str, TableSpec]
) -> dict[str, ExpectedRead]:
  """The same of what planners are told.

  Args:
    reads: feature -> how much it reads.
    tables: table -> its settings.
  """
  found = {}
  for name, read in reads.items():
    found[name] = read
    if has_two(tables[read.table]):
      found[name + SECOND] = read
  return found


class _BothRows:
  """What a feature reads, of both rows; has `all` as views have."""

  def __init__(self, first, second, combine: str):
    self._first, self._second, self._combine = first, second, combine

  def all(self) -> jax.Array:
    """`[..., D]`."""
    first, second, read = (
      self._first.all(),
      self._second.all(),
      self._second.read,
    )
    if read.pooling == 'none':  # for nothing, a view has just any row
      second = jnp.where((read.ids != UNREAD)[..., None], second, 0)
    # Rows begin near zero, where a plain product has no gradient.
    return (
      first * (1 + second) if self._combine == 'product' else first + second
    )


def combine_views(
  views: Mapping[str, Any], tables: Mapping[str, TableSpec]
) -> dict[str, Any]:
  """The views by the names of features, of both rows where there are two.

  Args:
    views: name of a read -> its view.
    tables: table -> its settings.
  """
  if not any(map(has_two, tables.values())):
    return views
  found = {n: v for n, v in views.items() if not n.endswith(SECOND)}
  for name in set(views) - set(found):
    own = name.removesuffix(SECOND)
    combine = tables[views[name].read.table].combine
    found[own] = _BothRows(views[own], views[name], combine)
  return found
