"""What a batch reads, and what the loss of each of its microbatches sees."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.embedding import lookup
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.features import POOLINGS, Read
from genrec_jax.runtime import state as state_lib

_TOWERS = 0x70777273  # what the key of a step is folded with for towers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepRoutes:
  """What a batch of P microbatches reads.

  Attributes:
    reads: feature -> what the task announced, `[P, ...]`.
    rows: feature -> rows of its ids, where they are not the ids themselves.
    routes: of the tables that are updated by rows, from `Tables.route`.
  """

  reads: dict[str, Read]
  rows: dict[str, jax.Array]
  routes: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Microbatch:
  """One microbatch: its number, itself, what it reads, and the places of it."""

  number: jax.Array
  batch: Any
  reads: dict[str, Read]
  index: dict[str, jax.Array]


def cut_microbatches(batch, microbatches: int):
  """`[P * n, ...]` arrays -> `[P, n, ...]`."""
  return jax.tree.map(
    lambda x: x.reshape(microbatches, x.shape[0] // microbatches, *x.shape[1:]),
    batch,
  )


def route_reads(
  task,
  tables,
  reads: Mapping[str, Read],
  rows: Mapping[str, jax.Array],
  blocks: int = 0,
) -> StepRoutes:
  """Routes what a batch of P microbatches reads.

  Args:
    task: whose tables are read.
    tables: those that are updated by rows.
    reads: feature -> what it reads, `[P, ...]`.
    rows: feature -> rows of its ids, where they are not the ids themselves.
    blocks: see `ShardedTables.route`.
  """
  _check_reads(task, reads)
  own = {
    feature: dataclasses.replace(read, ids=rows.get(feature, read.ids))
    for feature, read in reads.items()
    if read.table in tables.specs and read.ids is not None
  }
  return StepRoutes(reads, dict(rows), tables.route(own, blocks))


def view_reads(dense_tables, routed: StepRoutes, finished) -> lookup.Views:
  """A view of each read of a batch in one piece.

  Args:
    dense_tables: whole tables that optax updates.
    routed: from `route_reads`.
    finished: from `Tables.finish`.
  """
  index = routed.rows | routed.routes.index
  first = jax.tree.map(lambda x: x[0], (routed.reads, index))
  microbatch = Microbatch(jnp.int32(0), None, *first)
  return view_microbatch(dense_tables, routed, finished, microbatch, 1)


def _check_reads(task, reads: Mapping[str, Read]) -> None:
  """Refuses reads that name no table, or that say no way of pooling."""
  known = task.tables()
  for feature, read in reads.items():
    if read.table not in known:
      raise ValueError(
        f'feature {feature!r} reads table {read.table!r}, which the task does '
        f'not declare; its tables are {", ".join(sorted(known))}'
      )
    if read.pooling not in POOLINGS:
      raise ValueError(
        f'feature {feature!r} has pooling={read.pooling!r}, must be one of '
        f'{POOLINGS}'
      )
    if read.pooling == 'none' and read.weights is not None:
      raise ValueError(
        f'feature {feature!r} has weights, which only pooled reads apply: set '
        "pooling to 'sum' or 'mean', or weigh its rows in the loss"
      )
    if read.pooling != 'none' and read.lengths is None:
      raise ValueError(
        f'feature {feature!r} is pooled by {read.pooling!r} and has no '
        'lengths, which say how many ids each bag has'
      )


def view_microbatch(
  dense_tables, routed: StepRoutes, finished, microbatch: Microbatch, blocks
):
  """What the loss of a microbatch is given: a view of each of its reads."""
  of_tables, of_bags = finished
  block = microbatch.number if blocks > 1 else 0
  of_tables = {
    name: cut_microbatches(x, blocks)[block] for name, x in of_tables.items()
  }
  views, microbatches = lookup.Views(), _count_microbatches(routed.reads)
  if towers_lib.NAME in of_bags:
    made = cut_microbatches(of_bags[towers_lib.NAME], microbatches)
    views[towers_lib.NAME] = lookup.TowerView(made[microbatch.number])
  for feature, read in microbatch.reads.items():
    if read.table in dense_tables:
      table = dense_tables[read.table]
      views[feature] = lookup.view_table(
        table, read, microbatch.index.get(feature)
      )
    elif feature in of_bags:
      sums = cut_microbatches(of_bags[feature], microbatches)
      views[feature] = lookup.SumView(sums[microbatch.number], read)
    elif feature in routed.routes.bags:
      continue  # has gone into a tower
    elif read.ids is None:
      views[feature] = lookup.RowView(None, None, read)
    else:
      index = microbatch.index[feature]
      views[feature] = lookup.RowView(of_tables[read.table], index, read)
  return views


def draw_for_towers(task, towers, key, batch):
  """What towers draw from in a step; None where they do not."""
  if not towers.draws:
    return None
  return towers_lib.TowerDraws(
    jax.random.fold_in(key, _TOWERS), task.number_examples(batch)
  )


def add_dense_towers(task, params, views, key=None, batch=None):
  """The views, and that of towers over tables that every device holds.

  Args:
    task: what is trained or evaluated.
    params: `[T, ...]` of its towers.
    views: of its reads.
    key: of the step, or None in evaluations.
    batch: what is trained, or None.
  """
  towers = state_lib.find_dense_towers(task)
  if towers is None:
    return views
  draws = None if key is None else draw_for_towers(task, towers, key, batch)
  sums = {name: views[name].all() for own in towers.features for name in own}
  made = towers_lib.apply_on_one_device(towers, params, sums, draws)
  views[towers_lib.NAME] = lookup.TowerView(made[towers_lib.NAME])
  return views


def _count_microbatches(reads: Mapping[str, Read]) -> int:
  """P of reads `[P, ...]`; 1 where nothing is read, and nothing is cut."""
  leaves = jax.tree.leaves(dict(reads))
  return leaves[0].shape[0] if leaves else 1
