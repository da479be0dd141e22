"""Exchanges the sums of pooled features of sharded tables.

This is the part of `sharded_tables.ShardedTables` that deals with sums; it runs
inside `jax.shard_map`. Features whose rows are spread alike form a group, which
travels together (`pooled.PooledFeatures`). The sums of features under towers
stay on the host of their tower until `finish`.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from genrec_jax.embedding import lookup, pooled
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import StackLayout
from genrec_jax.embedding.scheme import HOST, PlanError
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import Read, TableSpec


@dataclasses.dataclass(frozen=True)
class SumExchange:
  """Exchanges the sums of features whose tables are in stacks.

  Attributes:
    layout: the layout of the plan.
    specs: table -> its spec.
    exchanges: table -> how its sums travel.
    towers: the modules that features go through on their way, or None.
  """

  layout: StackLayout
  specs: Mapping[str, TableSpec]
  exchanges: Mapping[str, Exchange]
  towers: Towers | None = None

  def __post_init__(self):
    hosts = self.layout.plan.hosts
    if self.towers is not None and len(self.towers.features) != hosts:
      raise PlanError(
        f'there are {len(self.towers.features)} towers and {hosts} hosts; each '
        'host has one'
      )

  def route(self, bags: Mapping[str, Read]):
    """Sends the ids of each group to the devices that hold its rows."""
    if self.towers is not None:
      self._check_towers(bags)
    return {
      group.key: group.route(bags) for group, _ in self._group_features(bags)
    }

  def fetch(self, arrays, received, bags: Mapping[str, Read]):
    """Reads and sums what was routed.

    Args:
      arrays: stack -> this device's rows.
      received: from `route`.
      bags: feature -> what it reads.

    Returns:
      Feature -> `[N, D]` sums or means, without those under towers; and for
      these, group -> `[A, P, B, C]`, as `PooledFeatures.fetch_near` gives them.
    """
    by_feature, near = {}, {}
    for group, exchange in self._group_features(bags):
      request, array = received[group.key], arrays[group.stack.name]
      codec = exchange.row_codec
      if group.towers:
        near[group.key] = group.fetch_near(request, array, codec)
      else:
        # A row that is cut into columns comes from several groups.
        _collect_sums(by_feature, group.fetch(request, array, codec))
    return self._finish_sums(by_feature, bags), near

  def finish(self, modules, near, bags: Mapping[str, Read]):
    """The features under towers, `[N, D]` each, after their towers.

    This part is differentiated with the loss: the collectives in it have
    gradients, and so have the parameters of the towers.

    Args:
      modules: parameters of the tower on this host, `[1, ...]`.
      near: from `fetch`.
      bags: feature -> what it reads.
    """
    by_feature = {}
    for group, exchange in self._group_features(bags):
      if group.towers:
        # Before the sums leave the host: a tower makes them smaller, which is
        # what it is for.
        x = towers_lib.apply_on_host(self.towers, modules, near[group.key])
        x = towers_lib.send_far(
          group, x, exchange.row_codec, exchange.gradient_codec
        )
        _collect_sums(by_feature, group.name_sums(x))
    return self._finish_sums(by_feature, bags)

  def push(
    self, received, of_sums, of_near, bags: Mapping[str, Read]
  ) -> list[tuple[str, Exchange, lookup.BagGradients]]:
    """The stack, the exchange and the gradients of its rows here, by group.

    Args:
      received: from `route`.
      of_sums: gradients of the sums that `fetch` gave.
      of_near: gradients of the sums of features under towers.
      bags: feature -> what it reads.
    """
    # A mean is a sum divided by its length; the pieces are pushed as sums.
    of_sums = {
      name: lookup.apply_mean(grad, bags[name])
      for name, grad in of_sums.items()
    }
    pushed = []
    for group, exchange in self._group_features(bags):
      request, codec = received[group.key], exchange.gradient_codec
      if group.towers:
        grads = group.push_near(request, of_near[group.key], codec)
      else:
        grads = group.push(request, of_sums, codec)
      pushed.append((group.stack.name, exchange, grads))
    return pushed

  def _finish_sums(self, by_feature, bags) -> dict[str, jax.Array]:
    """Joins the columns of each feature and divides by lengths for means."""
    return {
      name: lookup.finish_sums(
        # Columns arrive in the order of the groups; a row has them by number.
        jnp.concatenate([columns[c] for c in sorted(columns)], axis=1),
        bags[name],
        self.specs[bags[name].table].rows,
      )
      for name, columns in by_feature.items()
    }

  def _group_features(
    self, bags
  ) -> list[tuple[pooled.PooledFeatures, Exchange]]:
    """Groups the features that travel together, with their exchange."""
    plan, entries = self.layout.plan, {}
    for feature, read in bags.items():
      under = self.towers is not None and feature in self.towers
      # A table that every device holds has no pieces and needs no exchange.
      for piece in self.layout.pieces.get(read.table, ()):
        # One collective can carry what is in one array, goes the same way and
        # is encoded alike.
        key = piece.stack, piece.spread, under, self.exchanges[read.table]
        entries.setdefault(key, []).append((feature, piece))
    return [
      (
        pooled.PooledFeatures(
          self.layout.stacks[stack],
          spread,
          plan.hosts,
          plan.devices,
          tuple(own),
          under,
        ),
        exchange,
      )
      for (stack, spread, under, exchange), own in entries.items()
    ]

  def _check_towers(self, bags: Mapping[str, Read]) -> None:
    """Refuses features whose sums do not come together on their tower's host.

    A tower sees whole rows, on the host that holds them.
    """
    towers_lib.require_sums(self.towers, bags)
    for number, features in enumerate(self.towers.features):
      for feature in features:
        if feature not in bags:
          raise PlanError(
            f'feature {feature!r} is under tower {number} and travels row by '
            "row; set parallel.pool='sums'"
          )
        pieces = self.layout.pieces.get(bags[feature].table, ())
        hosts = {p.owners[0] // self.layout.plan.devices for p in pieces}
        # Only then are the sums complete on the host, before anything has left
        # it.
        if {p.spread for p in pieces} != {HOST} or hosts != {number}:
          raise PlanError(
            f'feature {feature!r} is under tower {number}: the rows of its '
            f'table {bags[feature].table!r} must lie on the devices of host '
            f"{number}, as scheme 'table_row_wise' lays them"
          )
    if sum(group.towers for group, _ in self._group_features(bags)) > 1:
      raise PlanError(
        'the tables under towers must agree in width, dtype, optimizer and '
        'codec'
      )


def _collect_sums(by_feature: dict, sums) -> None:
  """Adds (feature, first column) -> sums to feature -> first column -> sums."""
  for (feature, column), x in sums.items():
    by_feature.setdefault(feature, {})[column] = x
