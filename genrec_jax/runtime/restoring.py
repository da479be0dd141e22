"""Restores a run from a checkpoint, on one device or a mesh."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from genrec_jax.checkpoint import trees
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout
from genrec_jax.embedding.layout import StackLayout, lay_out
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.runtime.state import TrainState, flatten_state, unflatten_state


@dataclasses.dataclass(frozen=True)
class ResumePoint:
  """What a checkpoint gave back."""

  step: int
  state: TrainState
  host: dict


def restore_unchanged(
  abstract: TrainState, checkpoints: CheckpointManager, step: int, data
) -> ResumePoint:
  """A checkpoint that holds the arrays of this very state."""
  saved = checkpoints.read_manifest(step)['tree']
  step, arrays, host = restore_leaves(
    checkpoints, flatten_state(abstract), saved, step, data
  )
  state = unflatten_state(abstract, arrays)
  return ResumePoint(step, clear_dirty_rows(state, abstract.dirty_rows), host)


def restore_by_rows(
  runtime,
  checkpoints: CheckpointManager,
  step: int,
  data,
  saved: dict[str, str],
) -> ResumePoint:
  """A checkpoint whose rows have names, not places: any layout will do.

  Args:
    runtime: where the state shall lie.
    checkpoints: where it is.
    step: which.
    data: iterator to put where the saved one stood.
    saved: `tree` of its manifest.
  """
  abstract, stacks = runtime.abstract_state(), runtime.stacks
  tables = {n: x for n, x in abstract.tables.items() if n not in stacks}
  dense = dataclasses.replace(abstract, tables=tables, row_opt_state={})
  step, arrays, host = restore_leaves(
    checkpoints, flatten_state(dense), saved, step, data
  )
  rows = checkpoints.restore_rows(
    step,
    stacks,
    {n: abstract.tables[n] for n in stacks},
    {n: abstract.row_opt_state[n] for n in stacks},
    formats=extend_formats(runtime.extensions.formats),
  )
  state = unflatten_state(dense, arrays)
  state = dataclasses.replace(
    state, tables={**state.tables, **rows.arrays}, row_opt_state=rows.slots
  )
  if not abstract.dirty_rows:
    return ResumePoint(step, state, host)
  return ResumePoint(
    step, dataclasses.replace(state, dirty_rows=rows.dirty_rows), host
  )


def restore_leaves(
  checkpoints: CheckpointManager,
  shapes: dict[str, jax.ShapeDtypeStruct],
  saved: dict[str, str],
  step: int,
  data,
):
  """What `CheckpointManager.restore` returns, whatever was measured then.

  One device and a mesh measure different things, and so do versions of a task:
  a measurement that the checkpoint lacks begins at zero, and one that nobody
  makes any more is left out. Every other leaf must be there.

  Args:
    checkpoints: where it is.
    shapes: path -> shape of each leaf.
    saved: `tree` of the manifest.
    step: which.
    data: iterator to put where the saved one stood.
  """
  fresh = {n: x for n, x in shapes.items() if _is_new(n, saved)}
  unused = {n for n in saved if _is_new(n, shapes)}
  shapes = {n: x for n, x in shapes.items() if n not in fresh}
  step, arrays, host = checkpoints.restore(
    shapes,
    step=step,
    data=data,
    partial=bool(unused) and set(saved) - unused == set(shapes),
  )
  arrays |= {name: _make_zeros(like) for name, like in fresh.items()}
  return step, arrays, host


def _make_zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
  """A measurement that begins."""
  return jax.jit(
    lambda: jnp.zeros(like.shape, like.dtype), out_shardings=like.sharding
  )()


def _is_new(name: str, others) -> bool:
  return name.startswith('sums/') and name not in others


def restore_other_layout(
  checkpoints: CheckpointManager,
  step: int,
  data,
  tree: dict[str, str],
  *,
  layouts: tuple[StackLayout, StackLayout],
  abstract: TrainState,
  mesh: jax.sharding.Mesh,
  specs: TrainState,
) -> ResumePoint:
  """A checkpoint whose arrays lie as another plan says.

  Args:
    checkpoints: where it is.
    step: which.
    data: iterator to put where the saved one stood.
    tree: of its manifest.
    layouts: the one that was saved, and the one of now.
    abstract: shapes and shardings of the state wanted.
    mesh: where it shall lie.
    specs: a `PartitionSpec` for every leaf of the state.
  """
  old, new = layouts
  relayout.require_same_tables(old, new)
  arrays, slots = describe_saved_state(tree, old, mesh)
  # What does not depend on the plan.
  kept = {
    'step': abstract.step,
    'metric_sums': {
      n: x for n, x in abstract.metric_sums.items() if f'sums/{n}' in tree
    },
    'first_nonfinite': abstract.first_nonfinite,
    'lr_scale': abstract.lr_scale,
    'params': abstract.params,
    'opt_state': abstract.opt_state,
    'id_states': abstract.id_states,
    'modules': abstract.modules,
    'averaged': abstract.averaged,
    'aux': abstract.aux,
    'tables': {
      n: x for n, x in abstract.tables.items() if n not in new.optimizers
    },
  }
  target = {
    **kept,
    'tables': {**kept['tables'], **arrays},
    'row_opt_state': slots,
  }
  step, loaded, host = checkpoints.restore(
    flatten_state(target), step=step, data=data, partial=True, padded=True
  )
  state = unflatten_state(target, loaded)
  moving = (
    {n: state['tables'].pop(n) for n in arrays},
    state.pop('row_opt_state'),
  )
  moved = jax.shard_map(
    lambda a, s: relayout.move_arrays(old, new, a, s),
    mesh=mesh,
    in_specs=jax.tree.map(
      lambda x: (
        PartitionSpec(mesh_lib.DEVICE_GROUP) if x.ndim else PartitionSpec()
      ),
      moving,
    ),
    out_specs=(
      {n: specs.tables[n] for n in new.optimizers},
      specs.row_opt_state,
    ),
    check_vma=False,
  )
  arrays, slots = jax.jit(moved)(*moving)
  state['tables'] |= arrays
  state['metric_sums'] |= {
    n: _make_zeros(x)
    for n, x in abstract.metric_sums.items()
    if n not in kept['metric_sums']
  }
  state = TrainState(**state, row_opt_state=slots)
  return ResumePoint(step, clear_dirty_rows(state, abstract.dirty_rows), host)


def restore_weights(
  runtime,
  checkpoints: CheckpointManager,
  step: int,
  saved: ShardingPlan | None,
) -> dict:
  """What predicts, of a checkpoint, where a runtime on a mesh has it.

  No device, and no host, holds more of a table than its part.

  Args:
    runtime: where the weights shall lie.
    checkpoints: where they are.
    step: which.
    saved: the plan of a checkpoint that has whole arrays; None for one by rows.

  Returns:
    Fields of `serve.weights.Weights`, by name; 'averaged' in place of 'params'
    where averages predict.
  """
  tree = checkpoints.read_manifest(step)['tree']
  abstract, stacks = runtime.abstract_state(), runtime.stacks
  like = {
    trees.find_params(tree): abstract.params,
    'modules': abstract.modules,
    'id_states': abstract.id_states,
    'tables': {n: x for n, x in abstract.tables.items() if n not in stacks},
  }
  wanted = {name: abstract.tables[name] for name in stacks}
  by_rows = saved is None
  same = not by_rows and runtime.plan.same_placement(saved)
  old = None if by_rows else lay_out(saved)
  if same:
    like['tables'] |= wanted
  elif not by_rows:
    relayout.require_same_tables(old, runtime.layout)
    arrays, _ = describe_saved_state(tree, old, runtime.mesh)
    like['tables'] |= arrays
  _, leaves, _ = checkpoints.restore(
    flatten_state(like), step=step, partial=True, padded=not (by_rows or same)
  )
  found = unflatten_state(like, leaves)
  if by_rows:
    found['tables'] |= checkpoints.restore_rows(
      step,
      stacks,
      wanted,
      {},
      formats=extend_formats(runtime.extensions.formats),
    ).arrays
  elif not same:
    held = {name: found['tables'].pop(name) for name in arrays}
    moved = jax.shard_map(
      lambda held: relayout.move_arrays(
        old, runtime.layout, held, dict.fromkeys(held, {})
      )[0],
      mesh=runtime.mesh,
      in_specs=PartitionSpec(mesh_lib.DEVICE_GROUP),
      out_specs=jax.tree.map(lambda x: x.sharding.spec, wanted),
      check_vma=False,
    )
    found['tables'] |= jax.jit(moved)(held)
  return found


def describe_saved_state(
  tree: dict[str, str], layout: StackLayout, mesh: jax.sharding.Mesh
):
  """Arrays and slots of another layout, cut into runs over the group of a mesh.

  Args:
    tree: of the manifest.
    layout: the one that was saved.
    mesh: where they shall lie; rows are added until it divides them.
  """
  group = NamedSharding(mesh, PartitionSpec(mesh_lib.DEVICE_GROUP))
  count = mesh_lib.count_shards(mesh, mesh_lib.DEVICE_GROUP)

  def describe_leaf(described: str):
    leaf = trees.shape_of(described)
    if not leaf.shape:
      return leaf.update(sharding=mesh_lib.replicated(mesh))
    rows = leaf.shape[0] + -leaf.shape[0] % count
    return leaf.update(shape=(rows, *leaf.shape[1:]), sharding=group)

  arrays = {
    n: describe_leaf(tree[f'tables/{n}']) for n in relayout.find_stacks(layout)
  }
  slots = {
    n: {
      path.split('/')[2]: describe_leaf(text)
      for path, text in tree.items()
      if path.startswith(f'slots/{n}/')
    }
    for n in arrays
  }
  return arrays, slots


def clear_dirty_rows(state: TrainState, dirty_rows: dict) -> TrainState:
  """The state without dirty rows, in these shapes and shardings."""
  if not dirty_rows:
    return state
  where = jax.tree.map(lambda x: x.sharding, dirty_rows)
  fresh = jax.jit(
    lambda: dirty_lib.init_dirty_rows(dirty_rows),
    out_shardings=where if all(where.values()) else None,
  )()
  return dataclasses.replace(state, dirty_rows=fresh)
