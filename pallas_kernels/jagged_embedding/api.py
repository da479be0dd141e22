"""`jagged_embedding`: rows of a table for packed ids, and the way back.

A batch holds packed ids `[K]`, bag behind bag, and `lengths` `[B]`; the ids
behind the last bag are padding and are never read.

    @functools.partial(jax.jit, donate_argnames=('table', 'slots'))
    def step(table, slots, ids, lengths):
      bags = embedding_bag(table, ids, lengths)
      loss, grad = jax.value_and_grad(loss_fn)(bags)
      return loss, *embedding_bag_backward_and_update(
        table, slots, ids, lengths, grad, learning_rate=0.1)

That is the fast way: no gradient of the table's size exists, rows that no id
names are not touched, and with donated arguments the table is changed in place.
(Without donation XLA copies it, and also where the gradient does not depend on
the lookup, since then nothing says which comes first. The result is the same.)
The steps on their own: `bag_row_gradient` or `merge_rows` give one gradient row
for each distinct id, `update_rows` moves those rows. An id that occurs often
moves its row once, by its summed gradient: AdaGrad and Adam are exact.

`jax.grad` with respect to the table works too and is dense, `[rows, D]`: right
for a small table. It is of first order only.

An id that is no row of the table (0 .. rows - 1) raises where ids are known.
Under jit, where they are not, what it reads is NaN, so that the loss shows it;
on the way back it is skipped, since it has no row to move. Lengths that are
negative or add up to more than there are ids raise, or make NaN of all bags and
of the rows that are moved.

Sums are float32 whatever the table's dtype. Slots (`init_slots`) are float32.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import (
  checks,
  cpu,
  reference,
  rounding,
  settings,
  spec,
  xla,
)
from pallas_kernels.jagged_embedding.spec import (
  MergedRows,
  RoundingChance,
  Rule,
)

BACKENDS = {
  'cpu': dispatch.Backend(lambda: cpu, cpu.why_not),
  'xla': dispatch.Backend(lambda: xla),
  'reference': dispatch.Backend(lambda: reference, automatic=False),
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
  """The sum or mean of each bag's rows, `[B, D]` in the table's dtype.

  Args:
    table: `[rows, D]` float32, bfloat16 or float16.
    ids: `[K]` integers, packed.
    lengths: `[B]` integers, ids of each bag. An empty bag gives zeros.
    mode: 'sum', or 'mean': the sum divided by the bag's length.
    weights: `[K]` factor of each id's row (the divisor stays the length).
    implementation: None for the best one here, or a name in `BACKENDS`.
  """
  backend = _backend(implementation)
  checks.check_table(table)
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  checks.check_ids(ids, table.shape[0], lengths=lengths)
  out = _bag(backend, mode, table, ids, lengths, weights)
  return jnp.where(wrong, jnp.nan, out)


def gather(
  table: jax.Array,
  ids: jax.Array,
  *,
  lengths: jax.Array | None = None,
  spare: bool = False,
  implementation: str | None = None,
) -> jax.Array:
  """The row of each id, `[K, D]` in the table's dtype.

  Args:
    table: `[rows, D]` float32, bfloat16 or float16.
    ids: `[K]` integers.
    lengths: `[B]` of the packed sequences: ids behind them are padding, which
      gives zeros. None: there is no padding.
    spare: an id equal to the number of rows is a spare place, as in
      `MergedRows.ids`, and gives zeros.
    implementation: None for the best one here, or a name in `BACKENDS`.
  """
  backend = _backend(implementation)
  checks.check_table(table)
  ids, lengths, _, wrong = checks.check_bags(ids, lengths, None, 'sum')
  checks.check_ids(ids, table.shape[0], lengths=lengths, spare=spare)
  count = jnp.int32(ids.shape[0])
  if lengths is not None:
    count = jnp.sum(lengths, dtype=jnp.int32)
  out = _gather(backend, spare, table, ids, count)
  return out if lengths is None else jnp.where(wrong, jnp.nan, out)


def merge_rows(
  ids: jax.Array,
  grads: jax.Array,
  rows: int,
  *,
  implementation: str | None = None,
) -> MergedRows:
  """Adds up the gradient rows of equal ids, in the order they stand.

  Args:
    ids: `[K]` integers; those that are no row are left out.
    grads: `[K, D]` gradient of each id's row.
    rows: rows of the table.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `ids` `[N]` and `grads` `[N, D]`, with N = min(K, rows).
  """
  backend = _backend(implementation)
  ids = checks.check_integers('ids', ids)
  checks.check_grads(grads, ids.shape[0], 'ids')
  checks.check_ids(ids, rows, spare=True)
  return backend.merge(ids, None, None, grads.astype(jnp.float32), rows)


def distinct_rows(
  ids: jax.Array, rows: int, *, implementation: str | None = None
) -> jax.Array:
  """The distinct ids that are rows, sorted, as `MergedRows.ids`.

  Args:
    ids: `[K]` integers; those that are no row are left out.
    rows: rows of the table.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[N]` int32 with N = min(K, rows); spare places at the end hold `rows`.
  """
  nothing = jnp.zeros((jnp.shape(ids)[0], 0), jnp.float32)
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
  """Merged gradients of the rows that `embedding_bag` has read.

  Args:
    grads: `[B, D]` gradient of each bag.
    ids: `[K]`, as given to `embedding_bag`, with the options of that call.
    lengths: `[B]`.
    rows: rows of the table.
    mode: 'sum' or 'mean'.
    weights: `[K]` or None.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `ids` `[N]` and `grads` `[N, D]`, with N = min(K, rows).
  """
  backend = _backend(implementation)
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
  """Gradient of `embedding_bag`'s weights, `[K]` float32, zeros in padding.

  Args:
    table: `[rows, D]`.
    grads: `[B, D]` gradient of each bag.
    ids: `[K]`.
    lengths: `[B]`.
    mode: 'sum' or 'mean'.
    implementation: None for the best one here, or a name in `BACKENDS`.
  """
  backend = _backend(implementation)
  checks.check_table(table)
  ids, lengths, _, wrong = checks.check_bags(ids, lengths, None, mode)
  checks.check_grads(grads, lengths.shape[0], 'lengths', table.shape[1])
  checks.check_ids(ids, table.shape[0], lengths=lengths)
  grads = _bag_grads(grads, lengths, mode, wrong)
  return backend.weight_gradient(table, ids, lengths, grads)


def init_slots(
  table: jax.Array, optimizer: str | Rule, **options
) -> dict[str, jax.Array]:
  """What an optimizer remembers of each row, before the first step.

  Args:
    table: `[rows, D]`; only its shape counts.
    optimizer: as in `update_rows`, with the options to be given there.
    **options: see `Rule`.
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
  """Moves the rows of distinct ids: reads and writes those rows alone.

  What each optimizer does with a gradient stands in `rules`, what it remembers
  in `spec.SLOTS`, its options in `Rule`. All
  are lazy: a row that is not among the ids gets no decay and no momentum, and
  its means rest; so momentum, Adam and weight decay differ from optimizers of
  whole tables. A row among the ids with a gradient of zeros does get them.
  `count` counts the updates, of all rows or, with `row_count=True`, of each.

  Rows of one array may be of several groups, such as tables that lie in it
  together, each with a learning rate and options of its own. A row becomes what
  it would become in a call with the settings of its group alone:

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
    ids: `[N]` sorted and distinct, as from `merge_rows`: places that hold the
      number of rows, at the end, are spare and do nothing.
    grads: `[N, D]` gradient of each row.
    learning_rate: factor of the step, or `[G]`, that of each group.
    optimizer: a name in `SLOTS`, or a `Rule`, which carries its options, or a
      sequence of G rules. Those of groups may differ in every number and in
      `decay`, not in the kind of optimizer and `row_count`.
    groups: `[N]` integers in 0 .. G - 1, the group of each id; whatever they
      are in spare places does not matter. None: there are no groups.
    stochastic_rounding_seed: a new number for each step rounds a 16-bit table
      without bias: steps that are much smaller than a row's last bit count on
      average. None rounds to the nearest. No meaning for float32.
    row_numbers: `[N]` uint32 or int32, numbers that the chance of stochastic
      rounding depends on, such as those of rows that lie elsewhere in the table
      of a shard; nothing else does. None: the ids.
    first_column: number of the table's first column, or `[N]` of each row's,
      for blocks of columns that lie elsewhere.
    implementation: None for the best one here, or a name in `BACKENDS`.
    **options: see `Rule`.

  Returns:
    The new table and slots.
  """
  backend = _backend(implementation)
  ids = checks.check_integers('ids', ids)
  rules, rates, groups = checks.check_groups(
    optimizer, options, learning_rate, groups, ids, table.shape[0]
  )
  arrays = checks.check_slots(table, slots, rules[0])
  checks.check_grads(grads, ids.shape[0], 'ids', table.shape[1])
  checks.check_ids(ids, table.shape[0], spare=True, merged=True)
  chance = _chance(table, stochastic_rounding_seed)
  if chance is not None:
    numbers = checks.check_numbers(row_numbers, first_column, ids.shape[0])
    chance = RoundingChance(chance.seed, *numbers)
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
  """`bag_row_gradient` and `update_rows` in one.

  Args:
    table: `[rows, D]`; donate it.
    slots: as from `init_slots`; donate them.
    ids: `[K]` as given to `embedding_bag` or `gather`.
    lengths: `[B]` as given to `embedding_bag`; None after a `gather`.
    grads: `[B, D]` gradient of each bag; without lengths `[K, D]`, of each id.
    learning_rate: factor of the step.
    mode: 'sum' or 'mean', as in `embedding_bag`.
    weights: `[K]` as given to `embedding_bag`. Their own gradient, if they are
      learned: `bag_weight_gradient`, before the rows move.
    optimizer: as in `update_rows`.
    stochastic_rounding_seed: see there.
    implementation: None for the best one here, or a name in `BACKENDS`.
    **options: see `Rule`.

  Returns:
    The new table and slots.
  """
  backend = _backend(implementation)
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


# --- Lookups and their gradients.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _bag(backend, mode, table, ids, lengths, weights):
  if weights is not None:
    weights = weights.astype(jnp.float32)
  out = backend.bag(table, ids, lengths, weights)
  return _divide(out, lengths, mode).astype(table.dtype)


def _bag_forward(backend, mode, *args):
  return _bag(backend, mode, *args), args


def _bag_backward(backend, mode, saved, grads):
  table, ids, lengths, weights = saved
  grads = _divide(grads.astype(jnp.float32), lengths, mode)
  factors = None if weights is None else weights.astype(jnp.float32)
  merged = backend.merge(ids, lengths, factors, grads, table.shape[0])
  weights_grad = None
  if weights is not None:
    weights_grad = backend.weight_gradient(table, ids, lengths, grads)
    weights_grad = weights_grad.astype(weights.dtype)
  return _dense(merged, table), None, None, weights_grad


_bag.defvjp(_bag_forward, _bag_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(backend, spare, table, ids, count):
  return backend.gather(table, ids, count, spare)


def _gather_forward(backend, spare, table, ids, count):
  return _gather(backend, spare, table, ids, count), (table, ids, count)


def _gather_backward(backend, spare, saved, grads):
  table, ids, count = saved
  ids = jnp.where(jnp.arange(ids.shape[0]) < count, ids, table.shape[0])
  merged = backend.merge(
    ids, None, None, grads.astype(jnp.float32), table.shape[0]
  )
  return _dense(merged, table), None, None


_gather.defvjp(_gather_forward, _gather_backward)


def _dense(merged: MergedRows, table: jax.Array) -> jax.Array:
  return (
    jnp.zeros_like(table)
    .at[merged.ids]
    .set(
      merged.grads.astype(table.dtype),
      mode='drop',
      indices_are_sorted=True,
      unique_indices=True,
    )
  )


def _divide(x, lengths, mode):
  if mode == 'sum':
    return x
  return x / jnp.maximum(lengths, 1).astype(jnp.float32)[:, None]


def _bag_grads(grads, lengths, mode, wrong):
  grads = grads.astype(jnp.float32)
  if lengths is None:
    return grads
  return jnp.where(wrong, jnp.nan, _divide(grads, lengths, mode))


# --- Options of updates.


def _with_arrays(rule: Rule, slots, arrays):
  """The slots with their arrays replaced; they may be sorted by name."""
  names = spec.slot_arrays(rule)
  return {**slots, **dict(zip(names, arrays, strict=True))}


def _chance(table, seed) -> RoundingChance | None:
  if seed is None or table.dtype not in rounding.DTYPES:
    return None
  return RoundingChance(rounding.uint32(seed))
