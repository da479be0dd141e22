"""The public operations of `jagged_embedding`: checks, then a backend."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch, integers, manual_axes
from pallas_kernels.jagged_embedding import (
  checks,
  cpu,
  differentiable,
  gpu,
  reference,
  rounding,
  settings,
  spec,
  tpu,
  xla,
)
from pallas_kernels.jagged_embedding.spec import (
  MergedRows,
  RoundingChance,
  Rule,
)

BACKENDS = {
  # Asked for by name alone until a GPU, or a TPU, has run them.
  'triton': dispatch.Backend(lambda: gpu, gpu.why_not, automatic=False),
  'pallas_tpu': dispatch.Backend(
    lambda: tpu.COMPILED, dispatch.needs_platform('tpu'), automatic=False
  ),
  'cpu': dispatch.Backend(lambda: cpu, cpu.why_not),
  'xla': dispatch.Backend(lambda: xla),
  'reference': dispatch.Backend(lambda: reference, automatic=False),
  'interpret': dispatch.Backend(lambda: tpu.INTERPRETED, automatic=False),
}


def embedding_bag(
  table: jax.Array,
  ids: jax.Array,
  lengths: jax.Array,
  *,
  mode: str = 'sum',
  weights: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """Sums or averages the rows of each bag of ids.

  `bags[b] = sum_k weights[k] * table[ids[k]]` over the ids k of bag b, divided
  by `max(lengths[b], 1)` if mode is 'mean'.

  >>> table = jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
  >>> ids, lengths = jnp.array([0, 3, 3]), jnp.array([2, 1])
  >>> embedding_bag(table, ids, lengths).tolist()
  [[6.0, 8.0], [6.0, 7.0]]

  Args:
    table: `[rows, D]` float32, bfloat16 or float16.
    ids: `[K]` integers, packed.
    lengths: `[B]` integers, ids of each bag. An empty bag gives zeros.
    mode: 'sum', or 'mean': the sum divided by the bag's length.
    weights: `[K]` factor of each id's row (the divisor stays the length).
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[B, D]` in the table's dtype.

  Raises:
    ValueError: shapes, dtypes, lengths or ids are wrong; under jit, where they
      are unknown, wrong ids and lengths give NaN instead.
    NotImplementedError: the implementation cannot run on this machine.
  """
  backend, table = _backend(implementation), checks.check_table(table)
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  checks.check_ids(ids, table.shape[0], lengths=lengths)
  args = manual_axes.vary_alike(table, ids, lengths, weights)
  out = differentiable.bag(backend, mode, *args)
  return jnp.where(wrong, jnp.nan, out)


def gather(
  table: jax.Array,
  ids: jax.Array,
  *,
  lengths: jax.Array | None = None,
  spare: bool = False,
  implementation: str | None = None,
) -> jax.Array:
  """Reads the row of each id.

  >>> table = jnp.array([[0.0, 1.0], [2.0, 3.0]])
  >>> gather(table, jnp.array([1, 0, 1]), lengths=jnp.array([2])).tolist()
  [[2.0, 3.0], [0.0, 1.0], [0.0, 0.0]]

  Args:
    table: `[rows, D]` float32, bfloat16 or float16.
    ids: `[K]` integers.
    lengths: `[B]` of the packed sequences: ids after them are padding, which
      gives zeros. None: there is no padding.
    spare: whether an id equal to the number of rows is an unused entry, as in
      `MergedRows.ids`, and gives zeros.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[K, D]` in the table's dtype.

  Raises:
    ValueError, NotImplementedError: as for `embedding_bag`.
  """
  backend, table = _backend(implementation), checks.check_table(table)
  ids, lengths, _, wrong = checks.check_bags(ids, lengths, None, 'sum')
  checks.check_ids(ids, table.shape[0], lengths=lengths, spare=spare)
  count = jnp.int32(ids.shape[0])
  if lengths is not None:
    count = jnp.sum(lengths, dtype=jnp.int32)
  args = manual_axes.vary_alike(table, ids, count)
  out = differentiable.gather(backend, spare, *args)
  return out if lengths is None else jnp.where(wrong, jnp.nan, out)


def merge_rows(
  ids: jax.Array,
  grads: jax.Array,
  rows: int,
  *,
  implementation: str | None = None,
) -> MergedRows:
  """Adds up the gradient rows of equal ids, in the order they occur.

  >>> grads = jnp.array([[1.0], [2.0], [4.0]])
  >>> merged = merge_rows(jnp.array([3, 0, 3]), grads, rows=4)
  >>> merged.ids.tolist(), merged.grads.tolist()
  ([0, 3, 4], [[2.0], [5.0], [0.0]])

  Args:
    ids: `[K]` integers. Of those outside 0 .. rows - 1, `rows` marks an unused
      entry, which is left out; others raise, or are left out under jit.
    grads: `[K, D]` gradient of each id's row.
    rows: number of rows of the table.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `ids` `[N]` and `grads` `[N, D]`, with N = min(K, rows).

  Raises:
    ValueError: shapes, dtypes or known ids are wrong.
    NotImplementedError: the implementation cannot run on this machine.
  """
  backend, grads = _backend(implementation), jnp.asarray(grads)
  ids = checks.check_integers('ids', ids)
  checks.check_grads(grads, ids.shape[0], 'ids')
  checks.check_ids(ids, rows, spare=True)
  return backend.merge(ids, None, None, grads.astype(jnp.float32), rows)


def distinct_rows(
  ids: jax.Array, rows: int, *, implementation: str | None = None
) -> jax.Array:
  """Sorts the distinct ids, as in `MergedRows.ids`.

  >>> distinct_rows(jnp.array([3, 0, 3]), rows=4).tolist()
  [0, 3, 4]

  Args:
    ids: `[K]` integers, as for `merge_rows`.
    rows: number of rows of the table.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[N]` int32 with N = min(K, rows); unused entries at the end hold `rows`.

  Raises:
    ValueError, NotImplementedError: as for `merge_rows`.
  """
  nothing = jnp.zeros((len(ids), 0), jnp.float32)
  return merge_rows(ids, nothing, rows, implementation=implementation).ids


def bag_row_gradient(
  grads: jax.Array,
  ids: jax.Array,
  lengths: jax.Array,
  rows: int,
  *,
  mode: str = 'sum',
  weights: jax.Array | None = None,
  implementation: str | None = None,
) -> MergedRows:
  """Merges the gradients of the rows that `embedding_bag` has read.

  `grads[n] = sum_k weights[k] * bag_grads[bag(k)]` over all k with
  `ids[k] = n`, each divided by its bag's length if mode is 'mean'.

  >>> grads, ids = jnp.array([[1.0], [10.0]]), jnp.array([0, 3, 3])
  >>> merged = bag_row_gradient(grads, ids, jnp.array([2, 1]), rows=4)
  >>> merged.ids.tolist(), merged.grads.tolist()
  ([0, 3, 4], [[1.0], [11.0], [0.0]])

  Args:
    grads: `[B, D]` gradient of each bag.
    ids: `[K]`, as given to `embedding_bag`, with the options of that call.
    lengths: `[B]`.
    rows: number of rows of the table.
    mode: 'sum' or 'mean'.
    weights: `[K]` or None.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `ids` `[N]` and `grads` `[N, D]`, with N = min(K, rows).

  Raises:
    ValueError, NotImplementedError: as for `embedding_bag`.
  """
  backend, grads = _backend(implementation), jnp.asarray(grads)
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  checks.check_grads(grads, lengths.shape[0], 'lengths')
  checks.check_ids(ids, rows, lengths=lengths)
  grads = _bag_grads(grads, lengths, mode, wrong)
  return backend.merge(ids, lengths, weights, grads, rows)


def bag_weight_gradient(
  table: jax.Array,
  grads: jax.Array,
  ids: jax.Array,
  lengths: jax.Array,
  *,
  mode: str = 'sum',
  implementation: str | None = None,
) -> jax.Array:
  """The gradient with respect to the weights of `embedding_bag`.

  `out[k] = table[ids[k]] . grads[bag(k)]`, divided by the bag's length if mode
  is 'mean'.

  >>> table = jnp.array([[0.0, 1.0], [2.0, 3.0]])
  >>> ids, lengths = jnp.array([0, 1, 1]), jnp.array([1, 2])
  >>> bag_weight_gradient(table, jnp.ones((2, 2)), ids, lengths).tolist()
  [1.0, 5.0, 5.0]

  Args:
    table: `[rows, D]`.
    grads: `[B, D]` gradient of each bag.
    ids: `[K]`.
    lengths: `[B]`.
    mode: 'sum' or 'mean'.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[K]` float32, zeros in padding.

  Raises:
    ValueError, NotImplementedError: as for `embedding_bag`.
  """
  backend = _backend(implementation)
  table, grads = checks.check_table(table), jnp.asarray(grads)
  ids, lengths, _, wrong = checks.check_bags(ids, lengths, None, mode)
  checks.check_grads(grads, lengths.shape[0], 'lengths', table.shape[1])
  checks.check_ids(ids, table.shape[0], lengths=lengths)
  grads = _bag_grads(grads, lengths, mode, wrong)
  return backend.weight_gradient(table, ids, lengths, grads)


def init_slots(
  table: jax.Array, optimizer: str | Rule, **options
) -> dict[str, jax.Array]:
  """Zeros for what an optimizer remembers of each row.

  >>> slots = init_slots(jnp.ones((4, 2)), 'row_adam')
  >>> {name: slot.shape for name, slot in slots.items()}
  {'mean': (4, 2), 'variance': (4,), 'count': ()}

  Args:
    table: `[rows, D]`; only its shape counts.
    optimizer: as in `update_rows`, with the options to be given there; of
      several `Rule`s any one, since they share what is remembered.
    **options: see `Rule`.

  Returns:
    Name -> zeros, float32 `[rows, D]` or `[rows]`, or an int32 count `[]`;
    empty for an optimizer that remembers nothing.

  Raises:
    ValueError: no such optimizer or option exists.
  """
  return spec.init_slots(table, checks.check_rule(optimizer, options))


def update_rows(
  table: jax.Array,
  slots: dict[str, jax.Array],
  ids: jax.Array,
  grads: jax.Array,
  *,
  learning_rate: float | jax.Array,
  optimizer: str | Rule | Sequence[Rule] = 'row_adagrad',
  groups: jax.Array | None = None,
  stochastic_rounding_seed: jax.Array | int | None = None,
  row_numbers: jax.Array | None = None,
  first_column: jax.Array | int = 0,
  implementation: str | None = None,
  **options,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Moves the rows of distinct ids, reading and writing those rows alone.

  `rules` has the formula of each optimizer, `spec.SLOTS` what it remembers, and
  `Rule` its options. All are lazy: a row that is not among the ids gets no
  decay and no momentum, and its means do not change. Momentum, Adam and weight
  decay therefore differ from optimizers of whole tables. A row among the ids
  with a gradient of zeros does get them. `count` counts the updates, of all
  rows or, with `row_count=True`, of each.

  The rows of one array may belong to several groups, such as tables that share
  it, each with a learning rate and options of its own. A row becomes what it
  would become in a call with the settings of its group alone:

    >>> table, slots = jnp.ones((4, 1)), {}
    >>> table, slots = update_rows(
    ...   table, slots, jnp.array([0, 2, 3]), jnp.ones((3, 1)),
    ...   optimizer=[Rule('sgd'), Rule('sgd', max_norm=0.5)],
    ...   learning_rate=[0.25, 0.125], groups=jnp.array([0, 0, 1]))
    >>> table[:, 0].tolist()
    [0.75, 1.0, 0.75, 0.5]

  Args:
    table: `[rows, D]` float32, bfloat16 or float16; donate it.
    slots: as from `init_slots`; donate them.
    ids: `[N]` sorted and distinct, as from `merge_rows`: entries that hold the
      number of rows, at the end, are unused and do nothing.
    grads: `[N, D]` gradient of each row.
    learning_rate: factor of the step, or `[G]`, that of each group.
    optimizer: a name in `SLOTS`, or a `Rule`, which carries its options, or a
      sequence of G rules. Those of groups may differ in every number and in
      `decay`, not in the kind of optimizer and `row_count`.
    groups: `[N]` integers in 0 .. G - 1, the group of each id; whatever they
      are in unused entries does not matter. None: there are no groups.
    stochastic_rounding_seed: a new number for each step rounds a 16-bit table
      without bias: steps that are much smaller than a row's last bit count on
      average. None rounds to the nearest. It has no effect on float32.
    row_numbers: `[N]` uint32 or int32, which stochastic rounding hashes instead
      of the ids: a shard passes the row numbers of the whole table, so that it
      rounds as the whole table would. None: the ids.
    first_column: number of the table's first column in the whole table, hashed
      likewise, or `[N]`, one for each row.
    implementation: None for the best one here, or a name in `BACKENDS`.
    **options: see `Rule`.

  Returns:
    The new table and slots.

  Raises:
    ValueError: shapes, dtypes, slots or options are wrong, or known ids are not
      sorted, distinct rows. Where ids are not known, such ones make all rows
      NaN that they name.
    NotImplementedError: the implementation cannot run on this machine.
  """
  backend = _backend(implementation)
  table = checks.check_table(table)
  slots, grads = jax.tree.map(jnp.asarray, (slots, grads))
  ids = checks.check_integers('ids', ids)
  rules, rates, groups = checks.check_groups(
    optimizer, options, learning_rate, groups, ids, table.shape[0]
  )
  arrays = checks.check_slots(table, slots, rules[0])
  checks.check_grads(grads, ids.shape[0], 'ids', table.shape[1])
  checks.check_ids(ids, table.shape[0], spare=True, merged=True)
  chance = _chance(table, stochastic_rounding_seed)
  # Refused only where they matter: float32 rows are not rounded.
  if chance is not None:
    numbers = checks.check_numbers(row_numbers, first_column, ids.shape[0])
    chance = RoundingChance(chance.seed, *numbers)
  # Two threads could move such a row, and one more often than once.
  repeats = checks.find_repeats(ids, table.shape[0])
  rates = jnp.where(repeats, jnp.nan, rates)
  moved_by, slots = settings.start_update(rules, rates, groups, slots)
  table, arrays = backend.update(
    moved_by,
    chance,
    table,
    arrays,
    ids,
    grads.astype(jnp.float32),
  )
  return table, _with_arrays(rules[0], slots, arrays)


def embedding_bag_backward_and_update(
  table: jax.Array,
  slots: dict[str, jax.Array],
  ids: jax.Array,
  lengths: jax.Array | None,
  grads: jax.Array,
  *,
  learning_rate: float | jax.Array,
  mode: str = 'sum',
  weights: jax.Array | None = None,
  optimizer: str | Rule = 'row_adagrad',
  stochastic_rounding_seed: jax.Array | int | None = None,
  implementation: str | None = None,
  **options,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes `bag_row_gradient` and `update_rows` in one pass.

  >>> table, ids, lengths = jnp.ones((4, 1)), jnp.array([0, 3, 3]), [2, 1]
  >>> table, slots = embedding_bag_backward_and_update(
  ...   table, {}, ids, lengths, jnp.array([[1.0], [2.0]]),
  ...   optimizer='sgd', learning_rate=0.125)
  >>> table[:, 0].tolist()
  [0.875, 1.0, 1.0, 0.625]

  Args:
    table: `[rows, D]`; donate it.
    slots: as from `init_slots`; donate them.
    ids: `[K]` as given to `embedding_bag` or `gather`.
    lengths: `[B]` as given to `embedding_bag`; None after a `gather`.
    grads: `[B, D]` gradient of each bag; without lengths `[K, D]`, of each id.
    learning_rate: factor of the step.
    mode: 'sum' or 'mean', as in `embedding_bag`.
    weights: `[K]` as given to `embedding_bag`. If they are learned, compute
      their gradient with `bag_weight_gradient` before the rows move.
    optimizer: as in `update_rows`.
    stochastic_rounding_seed: as in `update_rows`.
    implementation: None for the best one here, or a name in `BACKENDS`.
    **options: see `Rule`.

  Returns:
    The new table and slots.

  Raises:
    ValueError, NotImplementedError: as for `embedding_bag` and `update_rows`.
  """
  backend = _backend(implementation)
  table = checks.check_table(table)
  slots, grads = jax.tree.map(jnp.asarray, (slots, grads))
  rule = checks.check_rule(optimizer, options)
  arrays = checks.check_slots(table, slots, rule)
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  if lengths is None:
    checks.check_grads(grads, ids.shape[0], 'ids', table.shape[1])
  else:
    checks.check_grads(grads, lengths.shape[0], 'lengths', table.shape[1])
  checks.check_ids(ids, table.shape[0], lengths=lengths, spare=lengths is None)
  rate = jnp.asarray(learning_rate, jnp.float32)
  moved_by, slots = settings.start_update((rule,), rate, None, slots)
  table, arrays = backend.bag_update(
    moved_by,
    _chance(table, stochastic_rounding_seed),
    table,
    arrays,
    ids,
    lengths,
    weights,
    _bag_grads(grads, lengths, mode, wrong),
  )
  return table, _with_arrays(rule, slots, arrays)


def _backend(implementation: str | None):
  return dispatch.choose('jagged_embedding', BACKENDS, implementation)()


def _bag_grads(grads, lengths, mode, wrong):
  grads = grads.astype(jnp.float32)
  if lengths is None:
    return grads
  # Wrong lengths under jit: NaN in the rows shows what cannot be raised.
  return jnp.where(wrong, jnp.nan, differentiable.divide(grads, lengths, mode))


def _with_arrays(rule: Rule, slots, arrays):
  """The slots with their arrays replaced.

  By name, since jit returns a dict sorted by its keys and not in the order of
  `spec.slot_arrays`.
  """
  names = spec.slot_arrays(rule)
  return {**slots, **dict(zip(names, arrays, strict=True))}


def _chance(table, seed) -> RoundingChance | None:
  if seed is None or table.dtype not in rounding.DTYPES:
    return None
  seed = integers.to_seed('stochastic_rounding_seed', seed)
  return RoundingChance(seed)
