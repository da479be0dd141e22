"""Exchanges the sums of pooled features of sharded tables.

This is the part of `sharded_tables.ShardedTables` that deals with sums; it runs
inside `jax.shard_map`. Features whose rows are spread alike form a group, which
travels together (`pooled.PooledFeatures`). Features under towers are not among
them: tower_exchange.py has those.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from genrec_jax.embedding import lookup, pooled
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import StackLayout
from genrec_jax.features import Read, TableSpec


@dataclasses.dataclass(frozen=True)
class SumExchange:
  """Exchanges the sums of features whose tables are in stacks.

  Attributes:
    layout: the layout of the plan.
    specs: table -> its spec.
    exchanges: table -> how its sums travel.
  """

  layout: StackLayout
  specs: Mapping[str, TableSpec]
  exchanges: Mapping[str, Exchange]

  def route(self, bags: Mapping[str, Read]):
    """Sends the ids of each group to the devices that hold its rows."""
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
      Feature -> `[N, D]` sums or means.
    """
    by_feature = {}
    for group, exchange in self._group_features(bags):
      request, array = received[group.key], arrays[group.stack.name]
      sums = group.fetch(request, array, exchange.row_codec)
      # A row that is cut into columns comes from several groups.
      for (feature, column), x in sums.items():
        by_feature.setdefault(feature, {})[column] = x
    return self._finish_sums(by_feature, bags)

  def push(
    self, received, of_sums, bags: Mapping[str, Read]
  ) -> list[tuple[str, Exchange, lookup.BagGradients]]:
    """The stack, the exchange and the gradients of its rows here, by group.

    Args:
      received: from `route`.
      of_sums: gradients of the sums that `fetch` gave.
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
      # A table that every device holds has no pieces and needs no exchange.
      for piece in self.layout.pieces.get(read.table, ()):
        # One collective can carry what is in one array, goes the same way and
        # is encoded alike.
        key = piece.stack, piece.spread, self.exchanges[read.table]
        entries.setdefault(key, []).append((feature, piece))
    return [
      (
        pooled.PooledFeatures(
          self.layout.stacks[stack],
          spread,
          plan.hosts,
          plan.devices,
          tuple(own),
        ),
        exchange,
      )
      for (stack, spread, exchange), own in entries.items()
    ]
