"""One training step: ids -> rows -> loss -> gradients -> new state.

The same code runs on one device and, inside `jax.shard_map`, on each device of
a mesh with its shard of the batch (see spread.py). What differs is handed in:
where rows come from (`tables`) and how dense parameters are held (`dense`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from genrec_jax.embedding import lookup
from genrec_jax.embedding.local import LocalTables
from genrec_jax.parallel import collectives
from genrec_jax.parallel.alone import Alone
from genrec_jax.parallel.dense import accumulate
from genrec_jax.train import state as state_lib
from genrec_jax.train.state import TrainState

# Sorted: `TrainState.bad` counts along it. Overflow is of exchanged rows.
MEASURED = ('grad_norm', 'loss')
MEASURED_ON_MESH = ('exchange_overflow', *MEASURED)


@dataclasses.dataclass(frozen=True)
class Step:
  """A step in two halves; `__call__` is both.

  Attributes:
    route: (batch, number of the step) -> what the batch reads. It depends on
      no weights, so that the next batch can be routed ahead.
    fetch: (state, routes) -> the rows.
    learn: (state, batch, routes, rows) -> (state, loss).
  """

  route: Callable
  fetch: Callable
  learn: Callable

  def __call__(self, state: TrainState, batch):
    """`(state, batch) -> (state, loss)`; jit it, donate the state."""
    routes = self.route(batch, state.step)
    return self.learn(state, batch, routes, self.fetch(state, routes))


def make_step(
  task,
  tx,
  *,
  seed: int,
  row_learning_rate: optax.ScalarOrSchedule = 0.0,
  clip_norm: float = 0.0,
  tables=None,
  dense=None,
  parts: int = 1,
  ordered: bool = False,
) -> Step:
  """Builds a step.

  Args:
    task: what is trained.
    tx: optax optimizer of everything dense.
    seed: of all random draws.
    row_learning_rate: of the row optimizers, or its schedule.
    clip_norm: largest norm of the dense gradient; 0 is none. With `dense`, that
      one's counts.
    tables: None for tables on one device, or `embedding.sharded`'s.
    dense: None for parameters on one device, or a `parallel.dense.Layout`.
    parts: microbatches of a batch, which stand one behind the other in it;
      their gradients are summed before anything is reduced or updated.
    ordered: sum over the parts of all devices one by one, in their order, so
      that the same parts give the same bits on any number of devices. Needs
      dense parameters that every device holds whole.
  """
  tables = tables or LocalTables(state_lib.row_specs(task))
  dense = dense or Alone(clip_norm)
  tx = optax.with_extra_args_support(tx)
  blocks = parts if ordered else 1  # whose rows are kept apart

  def key_of(step):
    return jax.random.fold_in(jax.random.key(seed), step)

  def route(batch, step):
    ids, bags = _reads(task, _parts(batch, parts), key_of(step))
    return tables.route(ids, bags, blocks)

  def fetch(state, routes):
    return tables.fetch({n: state.tables[n] for n in state.slots}, routes)

  def learn(state, batch, routes, values):
    key = key_of(state.step)
    trained = state_lib.trained(task, state.params, state.tables)
    held = dense.gather(trained)

    def loss_of(held, values, part):
      number, batch = part
      whole = dense.use(held)
      rows = _rows_of(whole['tables'], routes, values, number, blocks)
      _, sums = task.loss(whole['params'], rows, batch, key)
      return sums['loss'][0], sums

    def run(part):
      gradient = jax.value_and_grad(
        dense.remat(loss_of), argnums=(0, 1), has_aux=True
      )
      return gradient(held, values, part)

    numbered = (jnp.arange(parts), _parts(batch, parts))
    if ordered:
      (_, sums), (grads, row_grads) = jax.lax.map(run, numbered)
      sums, grads = _sum_in_order(collectives.gather((sums, grads)))
      # Each part has gradients of its own rows; the sums add zeros.
      row_grads = jax.tree.map(lambda x: jnp.sum(x, axis=0), row_grads)
    else:
      (_, sums), (grads, row_grads) = accumulate(run, numbered)
      sums, grads = collectives.total(sums), dense.reduce(grads)
    total, weight = sums['loss']
    share = 1.0 / jnp.maximum(weight, 1.0)  # of one position in the mean
    grads, row_grads = _scaled(grads, share), _scaled(row_grads, share)
    norm = dense.norm(grads)
    trained, opt_state = dense.apply(
      tx,
      dense.clip(grads, norm),
      state.opt_state,
      trained,
      lr_scale=state.lr_scale,
    )
    rate = row_learning_rate
    if callable(rate):
      rate = rate(state.step)
    pushed = tables.push(
      {n: state.tables[n] for n in state.slots},
      state.slots,
      routes,
      row_grads,
      rate * state.lr_scale,
      state.step,
    )
    norm = jnp.sqrt(pushed.square + jnp.square(norm))
    sums = {
      **sums,
      'grad_norm': (norm, jnp.float32(1)),
      'exchange_overflow': (tables.overflow(routes), jnp.float32(1)),
    }
    state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=trained['params'],
      tables={**state.tables, **trained['tables'], **pushed.arrays},
      opt_state=opt_state,
      slots=pushed.slots,
      sums={n: s + jnp.stack(sums[n]) for n, s in state.sums.items()},
      bad=_first_bad(state, sums),
      touched=tables.mark(state.touched, pushed.touched, state.step),
    )
    return state, total * share

  return Step(route, fetch, learn)


def cut(batch, parts: int):
  """`[parts * n, ...]` arrays -> `[parts, n, ...]`."""
  return jax.tree.map(
    lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), batch
  )


def _parts(batch, parts: int):
  """The parts of a batch, `[parts, ...]`; each knows of the others."""
  found = cut(batch, parts)
  if parts == 1 or not hasattr(batch, 'whole'):
    return found
  whole = jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), batch)
  return dataclasses.replace(found, whole=whole)


def _reads(task, batches, key):
  """What batches `[parts, ...]` read of tables that are updated by rows.

  Returns:
    (table -> ids, name and number of the part -> bags).
  """
  dense = state_lib.dense_specs(task)
  if len(dense) == len(task.tables()):
    return {}, {}
  ids = jax.vmap(lambda batch: task.ids(batch, key))(batches)
  ids = {name: x for name, x in ids.items() if name not in dense}
  bags = {}
  if hasattr(task, 'bags'):
    for number in range(jax.tree.leaves(batches)[0].shape[0]):
      part = jax.tree.map(lambda x, i=number: x[i], batches)
      for name, bag in task.bags(part).items():
        if bag.table not in dense:
          bags[_of_part(name, number)] = bag
  return ids, bags


def _of_part(name: str, number: int) -> str:
  return f'{name}#{number}'


def _rows_of(dense_tables, routes, values, number, blocks: int) -> dict:
  """What the loss of a part is given: views of tables, and sums of bags."""
  of_tables, of_bags = values
  rows = {n: lookup.DenseRows(t) for n, t in dense_tables.items()}
  for name, found in of_tables.items():
    ids, found = cut((routes.ids[name], found), blocks)
    block = number if blocks > 1 else 0
    rows[name] = lookup.TouchedRows(ids[block], found[block])
  for name in {name.partition('#')[0] for name in of_bags}:
    count = sum(n.partition('#')[0] == name for n in of_bags)
    sums = [of_bags[_of_part(name, i)] for i in range(count)]
    rows[name] = sums[0] if count == 1 else jnp.stack(sums)[number]
  return rows


def _sum_in_order(tree):
  """Sums over the first axis, one after the other, in every leaf."""

  def total(x):
    def add(i, sums):
      return sums + x[i]

    return jax.lax.fori_loop(1, x.shape[0], add, x[0])

  return jax.tree.map(total, tree)


def _scaled(tree, factor: jax.Array):
  return jax.tree.map(lambda x: x * factor.astype(x.dtype), tree)


def _first_bad(state: TrainState, sums) -> jax.Array:
  """Remembers the first step whose measurements are not all finite."""
  finite = jnp.stack([jnp.isfinite(sums[n][0]) for n in sorted(state.sums)])
  now = jnp.stack([state.step + 1, jnp.argmin(finite).astype(jnp.int32)])
  fresh = (state.bad[0] < 0) & ~jnp.all(finite)
  return jnp.where(fresh, now, state.bad)
