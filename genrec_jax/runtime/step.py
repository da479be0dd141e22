"""One training step: reads -> rows -> loss -> gradients -> new state.

The same code runs on one device and, inside `jax.shard_map`, on each device of
a mesh with its shard of the batch (see mesh.py). What differs is handed in:
where rows come from (`tables`) and how dense parameters are held (`dense`).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from genrec_jax.contracts import IdMap
from genrec_jax.embedding import id_maps
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.parallel import collectives, rules
from genrec_jax.parallel.dense import accumulate_sums
from genrec_jax.parallel.single_device import SingleDeviceLayout
from genrec_jax.runtime import alternation, aux_steps
from genrec_jax.runtime import measurements as measurements_lib
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.state import TrainState
from genrec_jax.runtime.views import (
  Microbatch,
  add_dense_towers,
  cut_microbatches,
  draw_for_towers,
  route_reads,
  view_microbatch,
)


@dataclasses.dataclass(frozen=True)
class Step:
  """A step in two halves; `__call__` is both.

  Attributes:
    route: (batch, number of the step, states of id maps) -> (`StepRoutes`,
      states behind it). It depends on no weights, so that the next batch can be
      routed ahead.
    fetch: (state, routed) -> rows and sums, as `Tables.fetch` returns them.
    learn: (state, batch, routed, fetched, states of id maps behind the batch)
      -> (state, loss).
  """

  route: Callable
  fetch: Callable
  learn: Callable

  def __call__(self, state: TrainState, batch):
    """`(state, batch) -> (state, loss)`; jit it, donate the state."""
    routed, id_states = self.route(batch, state.step, state.id_states)
    fetched = self.fetch(state, routed)
    return self.learn(state, batch, routed, fetched, id_states)


def make_step(
  task,
  tx,
  *,
  seed: int,
  row_learning_rate: optax.ScalarOrSchedule | Mapping = 0.0,
  clip_norm: float = 0.0,
  tables=None,
  dense=None,
  microbatches: int = 1,
  ordered: bool = False,
  average: float = 0.0,
  maps: Mapping[str, IdMap] | None = None,
) -> Step:
  """Builds a step.

  Args:
    task: what is trained, a `contracts.Task`. One that has `param_l2` (path of
      a parameter -> strength l), or `tower_l2` of its towers, adds the gradient
      of (l/2)|w|^2 to theirs. Of `init_aux` and `aux_losses` see `aux_steps`.
    tx: optax optimizer of everything dense.
    seed: of all random draws.
    row_learning_rate: of the row optimizers: one for all, or table -> its own;
      numbers or schedules.
    clip_norm: largest norm of the dense gradient; 0 is none. With `dense`, that
      one's counts.
    tables: None for tables on one device, or `embedding.sharded_tables`'s.
    dense: None for parameters on one device, or a `parallel.dense.MeshLayout`.
    microbatches: microbatches of a batch, which stand one behind the other in
      it; their gradients are summed before anything is reduced or updated.
    ordered: sum over the microbatches of all devices one by one, in their
      order, so that the same microbatches give the same bits on any number of
      devices. Needs dense parameters that every device holds whole.
    average: share of `TrainState.averaged` that a step keeps, where there is
      any.
    maps: table -> an id map of the caller's own, in place of the table's.
  """
  tables = tables or LocalTables(state_lib.row_specs(task))
  dense = dense or SingleDeviceLayout(clip_norm)
  tx = optax.with_extra_args_support(tx)
  blocks = microbatches if ordered else 1  # whose rows are kept apart
  # What goes on around the loss: statistics of the batch, or of a block of it.
  apart = collectives.keep_blocks_apart if ordered else contextlib.nullcontext
  kinds = measurements_lib.declare_measurements(task)
  id_map = id_maps.collect_maps(task, maps)
  l2_strengths = {
    f'tables/{n}': s.l2 for n, s in state_lib.dense_specs(task).items() if s.l2
  }
  for field, part in (('param_l2', 'params'), ('tower_l2', 'modules')):
    for path, l2 in getattr(task, field, {}).items():
      l2_strengths[f'{part}/{path}'] = l2

  aux_losses = getattr(task, 'aux_losses', {})
  own_losses = {aux_steps.name_measurement(name) for name in aux_losses}

  def key_of(step):
    return jax.random.fold_in(jax.random.key(seed), step)

  def route(batch, step, id_states):
    key = key_of(step)
    reads = jax.vmap(
      lambda microbatch: task.reads(
        _attach_full_batch(microbatch, batch, microbatches), key
      )
    )(cut_microbatches(batch, microbatches))
    rows, id_states = id_map.assign(id_states, reads)
    routed = route_reads(task, tables, reads, rows, blocks if ordered else 0)
    return routed, id_states

  def fetch(state, routed):
    return tables.fetch(
      {n: state.tables[n] for n in state.row_opt_state}, routed.routes
    )

  def learn(state, batch, routed, fetched, id_states, moves):
    key = key_of(state.step)
    trained = state_lib.collect_optax_params(
      task, state.params, state.tables, state.modules, state.aux
    )
    moved, seen = None, trained
    if aux_losses:
      moved = move_parts(state, trained, batch)
      seen = aux_steps.replace_parts(trained, moved.params)
    gathered = dense.gather(seen)
    modules, draws = {}, None
    if tables.towers is not None:
      modules = gathered.get('modules', {})
      draws = draw_for_towers(task, tables.towers, key, batch)
      gathered = {name: x for name, x in gathered.items() if name != 'modules'}
    # Back from what the loss sees to what was fetched; chained around the loop
    # over microbatches, so that what travels in between travels once a step.
    finished, back = jax.vjp(
      lambda modules, x: tables.finish(modules, x, routed.routes, draws),
      modules,
      fetched,
    )

    def loss_of(held, finished, microbatch):
      whole = dense.use(held)
      rows = view_microbatch(
        whole['tables'], routed, finished, microbatch, blocks
      )
      own = _attach_full_batch(microbatch.batch, batch, microbatches)
      rows = add_dense_towers(task, whole.get('modules', {}), rows, key, own)
      more = {}
      if 'aux' in whole:
        more['aux'] = aux_steps.hold_parts(whole['aux'], aux_losses)
      if getattr(task, 'needs_step', False):
        more['step'] = state.step
      with apart():
        measured = task.loss(whole['params'], rows, own, key, **more)
      wanted = {n: kind for n, kind in kinds.items() if n not in own_losses}
      measured = measurements_lib.check_measurements(wanted, measured)
      return measured['loss'][0], measured

    def run_microbatch(microbatch):
      gradient = jax.value_and_grad(
        dense.remat(loss_of), argnums=(0, 1), has_aux=True
      )
      (_, measured), grads = gradient(gathered, finished, microbatch)
      sums, largest = measurements_lib.split_measurements(kinds, measured)
      # Each in a place of its own: what adds up the microbatches keeps them
      # all.
      largest = jax.tree.map(
        lambda x: jnp.zeros(microbatches).at[microbatch.number].set(x), largest
      )
      return sums, largest, *grads

    each = Microbatch(
      jnp.arange(microbatches),
      cut_microbatches(batch, microbatches),
      routed.reads,
      routed.rows | routed.routes.index,
    )
    if ordered:
      sums, *rest, grads, row_grads = map_blocks(
        run_microbatch, each, microbatches, state.step
      )
      sums, grads = _sum_in_order(collectives.gather((sums, grads)))
      # Each microbatch has gradients of its own rows; the sums add zeros.
      rest, row_grads = jax.tree.map(
        lambda x: jnp.sum(x, axis=0), (rest, row_grads)
      )
    else:
      sums, *rest, grads, row_grads = accumulate_sums(run_microbatch, each)
      sums, grads = collectives.sum_over_shards(sums), dense.reduce(grads)
    measured = sums | measurements_lib.merge_largest(*rest)
    total, weight = measured['loss']
    if l2_strengths:
      grads = _add_l2_gradients(
        grads, dense.local_slice(trained), l2_strengths, weight
      )
    # Of one position in the mean; where nothing counts, gradients are zeros. A
    # branch, and not a choice between two values: XLA would join that with what
    # follows, and round otherwise from program to program.
    share = jax.lax.cond(
      weight < 1.0,
      lambda w: 1.0 / jnp.maximum(w, 1e-9),
      lambda w: 1.0 / jnp.maximum(w, 1.0),
      weight,
    )
    # Before the way back: narrow codecs should see gradients of a mean.
    grads, row_grads = _scale_tree(grads, share), _scale_tree(row_grads, share)
    module_grads, row_grads = back(row_grads)
    if modules:
      module_grads = dense.reduce({'modules': module_grads})
      # Gradients of a mean already, of which the weight is 1, or of nothing.
      counted = (weight > 0).astype(jnp.float32)
      grads |= _add_l2_gradients(
        module_grads, dense.local_slice(trained), l2_strengths, counted
      )
    if moves is not None:
      grads = moves.scale_gradients(grads)
    norm = dense.norm(grads)
    grads = dense.clip(grads, norm)
    if moved is not None:  # in place of the zeros of `hold_parts`
      grads = aux_steps.replace_parts(grads, moved.grads)
      measured |= moved.measured
    before = trained
    trained, opt_state = dense.apply(
      tx,
      grads,
      state.opt_state,
      trained,
      lr_scale=state.lr_scale,
    )
    if moves is not None:
      trained = moves.keep_params(before, trained)
      opt_state = moves.keep_optimizer(state.opt_state, opt_state)
    pushed = tables.push(
      {n: state.tables[n] for n in state.row_opt_state},
      state.row_opt_state,
      routed.routes,
      row_grads,
      _scale_rates(row_learning_rate, state),
      state.step,
      state.dirty_rows,
    )
    if moves is not None:
      pushed = moves.keep_rows(state, pushed)
    averaged = state.averaged
    if averaged:
      averaged = state_lib.average_params(
        averaged, trained['params'], average, state.step
      )
      if moves:
        averaged = moves.keep_averages(state.averaged, averaged)
    norm = jnp.sqrt(pushed.square + jnp.square(norm))
    measured |= {
      'grad_norm': (norm, jnp.float32(1)),
      'exchange_overflow': (tables.overflow(routed.routes), jnp.float32(1)),
    }
    state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=trained['params'],
      modules=trained.get('modules', {}),
      tables={**state.tables, **trained['tables'], **pushed.arrays},
      opt_state=opt_state,
      row_opt_state=pushed.slots,
      metric_sums=measurements_lib.add_measurements(
        kinds, state.metric_sums, measured
      ),
      first_nonfinite=_first_nonfinite(state, measured),
      dirty_rows=pushed.dirty_rows,
      id_states=id_states,
      averaged=averaged,
      aux=trained.get('aux', {}),
    )
    return state, total * share

  def move_parts(state, trained, batch):
    def update(grads, params):
      return dense.apply(
        tx, grads, state.opt_state, params, lr_scale=state.lr_scale
      )[0]

    def sum_in_order(run, blocks):
      sums = map_blocks(run, blocks, microbatches, state.step)
      return _sum_in_order(collectives.gather(sums))

    return aux_steps.move_parts(
      aux_losses,
      trained,
      cut_microbatches(batch, microbatches),
      dense=dense,
      sum_in_order=sum_in_order if ordered else None,
      update=update,
    )

  return Step(route, fetch, alternation.choose_learn(task, learn))


def _attach_full_batch(microbatch, batch, microbatches: int):
  """A microbatch that knows the batch it is of, which all share uncopied."""
  if microbatches == 1 or not hasattr(microbatch, 'whole'):
    return microbatch
  return dataclasses.replace(microbatch, whole=batch)


def _add_l2_gradients(
  grads, trained, l2_strengths: Mapping[str, float], weight: jax.Array
):
  """Adds the gradients of (l/2)|w|^2 by path, times `weight`."""

  def add_pull(path, grad, x):
    strength = l2_strengths.get(rules.path_name(path))
    if strength is None:
      return grad
    return grad + (jnp.float32(strength) * weight) * x

  trained = {name: trained[name] for name in grads}
  return jax.tree_util.tree_map_with_path(add_pull, grads, trained)


def map_blocks(run, blocks, count: int, step: jax.Array):
  """`lax.map`, by the same program of a block however many there are.

  XLA would take a loop over one block apart, join what is in it with what is
  around it, and round otherwise than in the loop over several.

  Args:
    run: what is done with a block.
    blocks: `[P, ...]` leaves.
    count: P.
    step: a number that is never negative, which XLA does not know.
  """
  if count == 1:  # of a single one, XLA would not look up which
    blocks = jax.tree.map(lambda x: jnp.concatenate([x, x]), blocks)

  def take(i):
    return jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, False), blocks
    )

  found = jax.eval_shape(run, take(0))
  found = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), found)

  def add_block(i, found):
    return jax.tree.map(
      lambda all_, x: jax.lax.dynamic_update_index_in_dim(all_, x, i, 0),
      found,
      run(take(i)),
    )

  return jax.lax.fori_loop(0, jnp.where(step < 0, 0, count), add_block, found)


def _sum_in_order(tree):
  """Sums over the first axis, one after the other, in every leaf."""

  def sum_leaf(x):
    def add_shard(i, sums):
      return sums + x[i]

    return jax.lax.fori_loop(1, x.shape[0], add_shard, x[0])

  return jax.tree.map(sum_leaf, tree)


def _scale_rates(rates, state: TrainState):
  """The rates of this step, one or by table; equal ones are one value."""
  known = {}

  def at_step(rate):
    if id(rate) not in known:
      value = rate(state.step) if callable(rate) else rate
      known[id(rate)] = value * state.lr_scale
    return known[id(rate)]

  if isinstance(rates, Mapping):
    return {table: at_step(rate) for table, rate in rates.items()}
  return at_step(rates)


def _scale_tree(tree, factor: jax.Array):
  return jax.tree.map(lambda x: x * factor.astype(x.dtype), tree)


def _first_nonfinite(state: TrainState, measured) -> jax.Array:
  """Remembers the first step whose measurements are not all finite."""
  finite = [jnp.isfinite(measured[n][0]) for n in sorted(state.metric_sums)]
  finite = jnp.stack(finite)
  now = jnp.stack([state.step + 1, jnp.argmin(finite).astype(jnp.int32)])
  fresh = (state.first_nonfinite[0] < 0) & ~jnp.all(finite)
  return jnp.where(fresh, now, state.first_nonfinite)
