"""The tables of a `ShardedEmbedding` as a mesh holds them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding.layout import StackLayout


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EmbeddingState:
  """The tables and what their optimizers remember: a pytree of arrays.

  Attributes:
    step: int32, steps taken.
    arrays: the rows, as the mesh holds them; `ShardedEmbedding.table` puts one
      table together.
    slots: what the row optimizers keep beside each array.
    layout: the name of the places of the rows -> 0. The same arrays on another
      number of devices hold the rows in another order; as a key, the name makes
      whatever restores a state refuse them.
  """

  step: jax.Array
  arrays: dict[str, jax.Array]
  slots: dict[str, dict[str, jax.Array]]
  layout: dict[str, jax.Array]


def check_state(state: EmbeddingState, layout: StackLayout) -> None:
  """Refuses a state of other tables, and one that was given away."""
  if not isinstance(state, EmbeddingState):
    raise ValueError(
      f'state is a {type(state).__name__}, must be an EmbeddingState, as init '
      'and steps return it'
    )
  wanted = {name: x.shape for name, x in layout.shapes().items()}
  for name, stack in layout.stacks.items():
    wanted[name] = (stack.depth * layout.plan.group_size, stack.columns)
  shapes = {name: tuple(x.shape) for name, x in state.arrays.items()}
  names = list(state.layout)
  if shapes != wanted or names != [layout.name]:
    raise ValueError(
      f'the state is of other tables or another mesh: its arrays are {shapes} '
      f'with the layout {", ".join(names)}, must be {wanted} with the layout '
      f'{layout.name}; read each table with `table` of the object that made '
      'the state, and begin with `init(key, {name: table})` here'
    )
  for leaf in jax.tree.leaves(state):
    is_array = isinstance(leaf, jax.Array)
    if is_array and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted():
      raise ValueError(
        'the state was given away (donate_argnums) to a step; go on with the '
        'state that this step returned'
      )


def put_table(
  layout: StackLayout, arrays: dict[str, np.ndarray], name: str, table
) -> None:
  """Lays a whole table into the arrays of a mesh.

  Args:
    layout: where its pieces are.
    arrays: on the host, writable.
    name: of the table.
    table: `[rows, width]`.

  Raises:
    ValueError: the table is of another shape, or not of numbers.
  """
  plan, table = layout.plan.tables[name], np.asarray(table)
  if table.dtype.kind not in 'iu' and not jnp.issubdtype(
    table.dtype, np.floating
  ):
    raise ValueError(
      f'table {name!r} is of type {table.dtype}, must be real numbers'
    )
  if table.shape != (plan.rows, plan.dim):
    raise ValueError(
      f'table {name!r} is given as {table.shape}, must be (rows, width) = '
      f'{(plan.rows, plan.dim)}'
    )
  if name in layout.whole:
    arrays[name][:] = table.astype(arrays[name].dtype)
    return
  ids = np.arange(plan.rows)
  for piece in layout.pieces[name]:
    array = arrays[piece.stack]
    at = layout.stacks[piece.stack].index(piece, ids)
    end = piece.first_column + piece.columns
    array[at] = table[:, piece.first_column : end].astype(array.dtype)
