"""One training step: ids -> rows -> loss -> gradients -> new state."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from genrec_jax.embedding import lookup
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.train.state import TrainState, dense_tables

MEASURED = ('grad_norm', 'loss')  # sorted: `TrainState.bad` counts along it


def make_step(task, tx, *, seed: int, row_learning_rate: float = 0.0):
  """Builds `step(state, batch) -> (state, loss)`; jit it, donate the state."""
  specs = task.tables()

  def step(state: TrainState, batch) -> tuple[TrainState, jax.Array]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    dense = dense_tables(task, state.tables)
    touched = {}
    if len(dense) < len(specs):
      for name, ids in task.ids(batch, key).items():
        if name not in dense:
          touched[name] = lookup.distinct(ids, specs[name].rows)
    values = {n: lookup.touch(state.tables[n], u) for n, u in touched.items()}

    def loss_fn(trained, values):
      params, dense = trained
      rows = {n: lookup.DenseRows(t) for n, t in dense.items()}
      for n, v in values.items():
        rows[n] = lookup.TouchedRows(touched[n], v)
      return task.loss(params, rows, batch, key)

    trained = (state.params, dense)
    (loss, sums), (grads, row_grads) = jax.value_and_grad(
      loss_fn, argnums=(0, 1), has_aux=True
    )(trained, values)
    updates, opt_state = tx.update(grads, state.opt_state, trained)
    params, dense = optax.apply_updates(trained, updates)

    tables, slots = {**state.tables, **dense}, dict(state.slots)
    for name, ids in touched.items():
      tables[name], slots[name] = ROW_OPTIMIZERS[specs[name].update].update(
        tables[name], slots[name], ids, row_grads[name], row_learning_rate
      )
    norm = optax.global_norm((grads, row_grads))
    sums = {**sums, 'grad_norm': (norm, jnp.float32(1))}
    state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=params,
      tables=tables,
      opt_state=opt_state,
      slots=slots,
      sums={n: state.sums[n] + jnp.stack(sums[n]) for n in MEASURED},
      bad=_first_bad(state, sums),
    )
    return state, loss

  return step


def _first_bad(state: TrainState, sums) -> jax.Array:
  """Remembers the first step whose measurements are not all finite."""
  finite = jnp.stack([jnp.isfinite(sums[n][0]) for n in MEASURED])
  now = jnp.stack([state.step + 1, jnp.argmin(finite).astype(jnp.int32)])
  fresh = (state.bad[0] < 0) & ~jnp.all(finite)
  return jnp.where(fresh, now, state.bad)
