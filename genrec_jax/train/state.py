"""Everything a run must remember between two steps, as one pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """The state of a run.

  Random numbers are no part of it: each step draws from
  `fold_in(key(config.seed), step)`, so the step number is their state.

  Attributes:
    step: int32, steps taken.
    params: the model's parameters, nested dict.
    tables: name -> `[rows, dim]`.
    opt_state: optax state of `params` and the dense tables.
    slots: name -> slots of the row optimizer of that table.
    sums: measurement -> `[2]` (sum, weight) since the last log line.
    bad: `[2]` int32 (first step with a measurement that is not finite, which
      one), -1 while there is none.
  """

  step: jax.Array
  params: Any
  tables: dict[str, jax.Array]
  opt_state: Any
  slots: dict[str, dict[str, jax.Array]]
  sums: dict[str, jax.Array]
  bad: jax.Array


def dense_tables(task, tables) -> dict:
  """The tables optax updates."""
  specs = task.tables()
  return {n: t for n, t in tables.items() if specs[n].update == 'dense'}


def create(task, tx, seed: int, measured) -> TrainState:
  """A fresh state; jit it to keep the initialisation on the device."""
  params, tables = task.init(jax.random.key(seed))
  slots = {}
  for name, spec in task.tables().items():
    if spec.update != 'dense':
      slots[name] = ROW_OPTIMIZERS[spec.update].init(tables[name])
  return TrainState(
    step=jnp.int32(0),
    params=params,
    tables=tables,
    opt_state=tx.init((params, dense_tables(task, tables))),
    slots=slots,
    sums={name: jnp.zeros(2) for name in measured},
    bad=jnp.full(2, -1, jnp.int32),
  )


def named(state) -> dict:
  """A state as {'path/of/leaf': array}, which is what checkpoints hold."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {_name(path): leaf for path, leaf in leaves}


def unnamed(like, arrays: dict):
  """The inverse of `named`, in the structure of `like`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: arrays[_name(path)], like
  )


def _name(path) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')
