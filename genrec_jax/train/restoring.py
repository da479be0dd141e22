"""What a checkpoint gives back, on one device or a mesh."""

import dataclasses

import jax
from jax.sharding import NamedSharding, PartitionSpec

from genrec_jax.checkpoint import trees
from genrec_jax.checkpoint.full import Checkpoints
from genrec_jax.embedding import relayout, touched
from genrec_jax.embedding.layout import Layout
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.train import state as state_lib
from genrec_jax.train.state import TrainState, named, unnamed


@dataclasses.dataclass(frozen=True)
class Resumed:
  """What a checkpoint gave back."""

  step: int
  state: TrainState
  host: dict


def whole(
  abstract: TrainState, checkpoints: Checkpoints, step: int, data
) -> Resumed:
  """A checkpoint that holds the arrays of this very state."""
  step, arrays, host = checkpoints.restore(
    named(abstract), step=step, data=data
  )
  state = unnamed(abstract, arrays)
  return Resumed(step, unmarked(state, abstract.touched), host)


def by_rows(
  spread, checkpoints: Checkpoints, step: int, data, saved: dict[str, str]
) -> Resumed:
  """A checkpoint whose rows have names, not places: any layout will do.

  Args:
    spread: where the state shall lie.
    checkpoints: where it is.
    step: which.
    data: iterator to put where the saved one stood.
    saved: `tree` of its manifest.
  """
  abstract, stacks = spread.abstract_state(), spread.stacks
  tables = {n: x for n, x in abstract.tables.items() if n not in stacks}
  dense = dataclasses.replace(abstract, tables=tables, slots={})
  wanted = named(dense)
  # One device and a mesh measure different things; then they begin anew.
  counted = {n for n in wanted if n.startswith('sums/')}
  begun = counted != {n for n in saved if n.startswith('sums/')}
  if begun:
    wanted = {n: x for n, x in wanted.items() if n not in counted | {'bad'}}
  step, arrays, host = checkpoints.restore(
    wanted, step=step, data=data, partial=begun
  )
  if begun:
    where = jax.tree.map(lambda x: x.sharding, (abstract.sums, abstract.bad))
    sums, bad = jax.jit(
      lambda: state_lib.counters(abstract.sums),
      out_shardings=where if abstract.bad.sharding else None,
    )()
    arrays |= named({'sums': sums, 'bad': bad})
  rows = checkpoints.restore_rows(
    step,
    stacks,
    {n: abstract.tables[n] for n in stacks},
    {n: abstract.slots[n] for n in stacks},
  )
  state = unnamed(dense, arrays)
  state = dataclasses.replace(
    state, tables={**state.tables, **rows.arrays}, slots=rows.slots
  )
  if not abstract.touched:
    return Resumed(step, state, host)
  return Resumed(step, dataclasses.replace(state, touched=rows.marks), host)


def as_saved(tree: dict[str, str], layout: Layout, mesh: jax.sharding.Mesh):
  """Arrays and slots of another layout, cut into runs over the group of a mesh.

  Args:
    tree: of the manifest.
    layout: the one that was saved.
    mesh: where they shall lie; rows are added until it divides them.
  """
  group = NamedSharding(mesh, PartitionSpec(mesh_lib.GROUP))
  count = mesh_lib.shards(mesh, mesh_lib.GROUP)

  def like(described: str):
    leaf = trees.shape_of(described)
    if not leaf.shape:
      return leaf.update(sharding=mesh_lib.replicated(mesh))
    rows = leaf.shape[0] + -leaf.shape[0] % count
    return leaf.update(shape=(rows, *leaf.shape[1:]), sharding=group)

  arrays = {n: like(tree[f'tables/{n}']) for n in relayout.sources(layout)}
  slots = {
    n: {
      path.split('/')[2]: like(text)
      for path, text in tree.items()
      if path.startswith(f'slots/{n}/')
    }
    for n in arrays
  }
  return arrays, slots


def unmarked(state: TrainState, marks: dict) -> TrainState:
  """The state with fresh marks of these shapes and shardings."""
  if not marks:
    return state
  where = jax.tree.map(lambda x: x.sharding, marks)
  fresh = jax.jit(
    lambda: touched.fresh(marks),
    out_shardings=where if all(where.values()) else None,
  )()
  return dataclasses.replace(state, touched=fresh)
