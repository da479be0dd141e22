"""Everything a run must remember between two steps, as one pytree."""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import id_maps
from genrec_jax.embedding.init import init_table
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.embedding.towers import Towers
from genrec_jax.parallel import rules

# Field -> what checkpoints call it. The format is older than the names of the
# fields, and checkpoints of any age must open.
_NAMES_IN_FILE = {
  'row_opt_state': 'slots',
  'metric_sums': 'sums',
  'first_nonfinite': 'bad',
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """The state of a run.

  Random numbers are not part of it: each step draws from
  `fold_in(key(config.seed), step)`, so the step number is their state.

  Attributes:
    step: int32, steps taken.
    params: the model's parameters, nested dict.
    tables: name -> `[rows, dim]`; under a plan, its arrays (see
      `embedding.layout`) and the tables that optax updates.
    opt_state: optax state of `params` and the dense tables.
    row_opt_state: array -> slots of its row optimizer.
    metric_sums: measurement -> `[2]` (sum, weight) since the last log line.
    first_nonfinite: `[2]` int32 (first step with a measurement that is not
      finite, which one), -1 while there is none.
    lr_scale: factor of all learning rates, lowered on plateaus.
    id_states: table -> state of its id map behind the batch trained last; {}
      where no map has any.
    modules: parameters of what stands between two exchanges of sums, see
      `embedding.towers`; {} where there is nothing.
    averaged: running averages of `params`, which evaluations and predictions
      have in their place; {} where nobody asks.
    aux: parameters that the loss alone reads, and no prediction, such as heads
      of a distillation; {} for tasks without `init_aux`.
    dirty_rows: array -> `[rows]` uint8, which rows have changed since they
      were saved (`embedding.dirty_rows`); {} where nobody asks. No checkpoint
      holds them.
  """

  step: jax.Array
  params: Any
  tables: dict[str, jax.Array]
  opt_state: Any
  row_opt_state: dict[str, dict[str, jax.Array]]
  metric_sums: dict[str, jax.Array]
  first_nonfinite: jax.Array
  lr_scale: jax.Array
  dirty_rows: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
  id_states: dict[str, Any] = dataclasses.field(default_factory=dict)
  modules: dict[str, Any] = dataclasses.field(default_factory=dict)
  averaged: Any = dataclasses.field(default_factory=dict)
  aux: Any = dataclasses.field(default_factory=dict)


def dense_specs(task) -> dict:
  """The tables optax updates."""
  return {n: s for n, s in task.tables().items() if s.update == 'dense'}


def row_specs(task) -> dict:
  """The other ones, of which a step updates the rows it touches."""
  return {n: s for n, s in task.tables().items() if s.update != 'dense'}


def collect_optax_params(task, params, tables, modules=None, aux=None) -> dict:
  """What optax updates: `{'params', 'tables'}`, 'modules', 'aux' if any."""
  tables = {n: tables[n] for n in dense_specs(task)}
  targets = {'params': params, 'tables': tables}
  targets |= {'modules': modules} if modules else {}
  return targets | ({'aux': aux} if aux else {})


def init_keys(seed: int) -> jax.Array:
  """The keys of a fresh model and of fresh tables, which no step draws from."""
  # Steps fold in their numbers, which are int32; a name has a higher one.
  name = zlib.crc32(b'init') | 1 << 31
  return jax.random.split(jax.random.fold_in(jax.random.key(seed), name))


def find_towers(task, extensions=None):
  """What sums go through between two exchanges: of the task, or from outside.

  Args:
    task: whose model may have towers.
    extensions: `contracts.Extensions`, or None.

  Returns:
    An `embedding.towers.Towers`, or None, also where `find_dense_towers` has
    them.
  """
  own = getattr(task, 'towers', None)
  outside = None if extensions is None else extensions.towers
  if own is not None and outside is not None:
    raise ValueError(
      'Extensions.towers and the towers of the model (model.towers) are both '
      'there; leave one of them out'
    )
  if outside is not None and not isinstance(outside, Towers):
    raise TypeError(
      'Extensions.towers must be an embedding.towers.Towers, not '
      f'{outside!r:.200}; how many towers a model has is model.towers'
    )
  if find_dense_towers(task) is not None:
    return None
  return outside if own is None else own


def find_dense_towers(task):
  """Towers over tables that optax updates, and that every device holds.

  Nothing travels then: each device runs all towers, on its own examples.

  Args:
    task: whose model may have towers.

  Returns:
    An `embedding.towers.Towers`, or None.
  """
  towers = getattr(task, 'towers', None)
  if towers is None:
    return None
  reads, dense = task.expected_reads(), dense_specs(task)
  tables = {reads[name].table for own in towers.features for name in own}
  if not tables & dense.keys():
    return None
  if rest := sorted(tables - dense.keys()):
    raise ValueError(
      f'of the tables under towers, {sorted(tables & dense.keys())} are '
      f'updated by optax (dense) and {rest} by rows; let config.tables and '
      'optimizer.rows.name update all of them in one way'
    )
  return towers


def init_optax_params(task, seed: int, towers=None) -> dict:
  """That, fresh; the towers are `embedding.towers.Towers`."""
  model_key, table_key = init_keys(seed)
  tables = {n: init_table(s, table_key) for n, s in dense_specs(task).items()}
  fresh = {'params': task.init(model_key), 'tables': tables}
  towers = towers or find_dense_towers(task)
  if towers is not None:
    modules = towers.init(jax.random.fold_in(model_key, 1))
    if jax.tree.leaves(modules):  # the identity has no parameters
      fresh['modules'] = modules
  if hasattr(task, 'init_aux'):
    # A key of its own: the model starts as it does without them.
    aux = task.init_aux(jax.random.fold_in(model_key, 2))
    if jax.tree.leaves(aux):
      fresh['aux'] = aux
  return fresh


def init_rows(tables, key: jax.Array) -> tuple[dict, dict]:
  """Fresh (arrays, slots) of the tables that are updated by rows."""
  arrays = tables.init(key)
  return arrays, tables.init_slots(arrays)


def create_state(
  task,
  tx,
  seed: int,
  measured,
  tables=None,
  *,
  tracked: bool = False,
  averages: bool = False,
  maps=None,
  mapped: Callable[[Callable], Callable] = lambda init: init,
) -> TrainState:
  """A state before the first step; jit it to keep the initialisation there.

  Args:
    task: what is trained.
    tx: optimizer of everything dense.
    seed: of all draws.
    measured: names of what a step measures.
    tables: what keeps rows; None for those of one device.
    tracked: whether rows are marked that have changed.
    averages: whether `averaged` is kept.
    maps: id maps from outside the library.
    mapped: how to run the function that makes rows from a key, as on a mesh.
  """
  tables = tables or LocalTables(row_specs(task))
  init = mapped(functools.partial(init_rows, tables))
  arrays, slots = init(init_keys(seed)[1])
  dense = init_optax_params(task, seed, tables.towers)
  return TrainState(
    step=jnp.int32(0),
    params=dense['params'],
    tables={**dense['tables'], **arrays},
    opt_state=tx.init(dense),
    row_opt_state=slots,
    metric_sums={name: jnp.zeros(2) for name in measured},
    first_nonfinite=jnp.full(2, -1, jnp.int32),
    lr_scale=jnp.float32(1),
    dirty_rows=dirty_lib.init_dirty_rows(arrays) if tracked else {},
    id_states=id_maps.collect_maps(task, maps).init(),
    modules=dense.get('modules', {}),
    averaged=copy_tree(dense['params']) if averages else {},
    aux=dense.get('aux', {}),
  )


def load_maps(state: TrainState, task, maps) -> TrainState:
  """A fresh state with the id maps that lie in files.

  Args:
    state: before the first step.
    task: what is trained.
    maps: id maps from outside the library.
  """
  if not state.id_states:
    return state
  loaded = id_maps.collect_maps(task, maps).load(state.id_states)
  return dataclasses.replace(state, id_states=loaded)


def replace_weights(state: TrainState, weights: dict) -> TrainState:
  """The state with other weights, as `contracts.weights_of` names them."""
  averaged = copy_tree(weights['params']) if state.averaged else {}
  return dataclasses.replace(state, **weights, averaged=averaged)


def copy_tree(tree):
  """Arrays of their own: two leaves of a state must not be one buffer."""
  return jax.tree.map(jnp.copy, tree)


def average_params(averaged, params, decay: float, step: jax.Array):
  """The running averages behind a step.

  Until `decay` counts, this is averaging by a polynomial (Shamir & Zhang 2013):
  of about the last third of the steps, so that fresh weights do not count for
  long. Statistics of batch norms are averages already.

  Args:
    averaged: behind the step before.
    params: behind this one.
    decay: share of an average that a step keeps.
    step: number of the step, from 0.
  """
  keep = jnp.minimum(decay, (1 + step) / (4 + step)).astype(jnp.float32)

  def average(path, mean, x):
    if rules.is_statistic(rules.path_name(path)):
      return x
    return (x + keep * (mean - x)).astype(x.dtype)

  return jax.tree_util.tree_map_with_path(average, averaged, params)


def flatten_state(state) -> dict:
  """A state as {'path/of/leaf': array}, which is what checkpoints hold."""
  if isinstance(state, TrainState):
    state = dataclasses.replace(state, dirty_rows={})
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {_name_in_file(path): leaf for path, leaf in leaves}


def unflatten_state(like, arrays: dict):
  """The inverse of `flatten_state`, in the structure of `like`."""
  if isinstance(like, TrainState):
    like = dataclasses.replace(like, dirty_rows={})
  return jax.tree_util.tree_map_with_path(
    lambda path, _: arrays[_name_in_file(path)], like
  )


def _name_in_file(path) -> str:
  name = jax.tree_util.keystr(path, simple=True, separator='/')
  field, slash, rest = name.partition('/')
  return _NAMES_IN_FILE.get(field, field) + slash + rest
