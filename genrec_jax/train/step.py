"""One training step: ids -> rows -> loss -> gradients -> new state."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from genrec_jax.embedding import lookup
from genrec_jax.train import state as state_lib
from genrec_jax.train.state import TrainState

MEASURED = ('grad_norm', 'loss')  # sorted: `TrainState.bad` counts along it


def make_step(task, tx, *, seed: int, row_learning_rate: float = 0.0):
  """Builds `step(state, batch) -> (state, loss)`; jit it, donate the state."""
  tables = state_lib.local_tables(task)

  def step(state: TrainState, batch) -> tuple[TrainState, jax.Array]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    trained = state_lib.trained(task, state.params, state.tables)
    arrays = {n: state.tables[n] for n in state.slots}
    routes = tables.route(*reads(task, batch, key))
    values = tables.fetch(arrays, routes)

    def loss_fn(trained, values):
      rows = rows_of(trained['tables'], routes, values)
      return task.loss(trained['params'], rows, batch, key)

    (loss, sums), (grads, row_grads) = jax.value_and_grad(
      loss_fn, argnums=(0, 1), has_aux=True
    )(trained, values)
    updates, opt_state = tx.update(grads, state.opt_state, trained)
    trained = optax.apply_updates(trained, updates)
    arrays, slots, square = tables.push(
      arrays, state.slots, routes, row_grads, row_learning_rate, state.step
    )
    norm = jnp.sqrt(square + jnp.square(optax.global_norm(grads)))
    sums = {**sums, 'grad_norm': (norm, jnp.float32(1))}
    state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=trained['params'],
      tables={**state.tables, **trained['tables'], **arrays},
      opt_state=opt_state,
      slots=slots,
      sums={n: state.sums[n] + jnp.stack(sums[n]) for n in MEASURED},
      bad=_first_bad(state, sums),
    )
    return state, loss

  return step


def reads(task, batch, key):
  """What a batch reads of row-updated tables: (ids by table, bags by name)."""
  dense = state_lib.dense_specs(task)
  if len(dense) == len(task.tables()):
    return {}, {}
  ids = task.ids(batch, key)
  bags = task.bags(batch) if hasattr(task, 'bags') else {}
  return (
    {name: x for name, x in ids.items() if name not in dense},
    {name: bag for name, bag in bags.items() if bag.table not in dense},
  )


def rows_of(dense_tables, routes, values) -> dict:
  """What the loss is given: views of the tables, and sums of bags."""
  of_tables, of_bags = values
  rows = {n: lookup.DenseRows(t) for n, t in dense_tables.items()}
  for name, found in of_tables.items():
    rows[name] = lookup.TouchedRows(routes.ids[name], found)
  return {**rows, **of_bags}


def _first_bad(state: TrainState, sums) -> jax.Array:
  """Remembers the first step whose measurements are not all finite."""
  finite = jnp.stack([jnp.isfinite(sums[n][0]) for n in MEASURED])
  now = jnp.stack([state.step + 1, jnp.argmin(finite).astype(jnp.int32)])
  fresh = (state.bad[0] < 0) & ~jnp.all(finite)
  return jnp.where(fresh, now, state.bad)
