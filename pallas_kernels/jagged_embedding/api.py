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

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import checks, cpu, reference, spec, xla
from pallas_kernels.jagged_embedding.spec import SLOTS, MergedRows, Rule

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
    table: `[rows, D]` float32 or bfloat16.
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
    table: `[rows, D]` float32 or bfloat16.
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


def init_slots(table: jax.Array, optimizer: str) -> dict[str, jax.Array]:
  """What an optimizer remembers of each row, before the first step."""
  checks.check_optimizer(optimizer)
  return spec.init_slots(table, optimizer)


def update_rows(
  table: jax.Array,
  slots: dict[str, jax.Array],
  ids: jax.Array,
  grads: jax.Array,
  *,
  learning_rate: float | jax.Array,
  optimizer: str = 'row_adagrad',
  eps: float = 1e-8,
  beta1: float = 0.9,
  beta2: float = 0.999,
  stochastic_rounding_seed: jax.Array | int | None = None,
  implementation: str | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Moves the rows of distinct ids: reads and writes those rows alone.

  | optimizer   | slots                 | step of a row with gradient g     |
  |-------------|-----------------------|-----------------------------------|
  | sgd         |                       | g                                 |
  | row_adagrad | sum `[rows]`          | sum += mean(g²); g / (√sum + eps) |
  | adagrad     | sum `[rows, D]`       | sum += g²; g / (√sum + eps)       |
  | adam        | mean, variance, count | Adam's, with the count of all     |
  |             |                       | updates; other rows' means rest   |

  Args:
    table: `[rows, D]` float32 or bfloat16; donate it.
    slots: as from `init_slots`; donate them.
    ids: `[N]` sorted and distinct, as from `merge_rows`: places that hold the
      number of rows, at the end, are spare and do nothing.
    grads: `[N, D]` gradient of each row.
    learning_rate: factor of the step.
    optimizer: a name in `SLOTS`.
    eps: added to the root of the squares.
    beta1: decay of Adam's mean.
    beta2: decay of Adam's mean square.
    stochastic_rounding_seed: a new number for each step rounds a bfloat16 table
      without bias: steps that are much smaller than a row's last bit count on
      average. None rounds to the nearest. No meaning for float32.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    The new table and slots.
  """
  backend = _backend(implementation)
  rule, arrays, slots = checks.check_update(
    table, slots, optimizer, eps, beta1, beta2
  )
  ids = checks.check_integers('ids', ids)
  checks.check_grads(grads, ids.shape[0], 'ids', table.shape[1])
  checks.check_ids(ids, table.shape[0], spare=True, merged=True)
  table, arrays = backend.update(
    rule,
    _scalars(rule, learning_rate, slots),
    _seed(stochastic_rounding_seed),
    table,
    arrays,
    ids,
    grads.astype(jnp.float32),
  )
  return table, {**slots, **dict(zip(SLOTS[optimizer], arrays, strict=True))}


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
  optimizer: str = 'row_adagrad',
  eps: float = 1e-8,
  beta1: float = 0.9,
  beta2: float = 0.999,
  stochastic_rounding_seed: jax.Array | int | None = None,
  implementation: str | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """`bag_row_gradient` and `update_rows` in one.

  Args:
    table: `[rows, D]` float32 or bfloat16; donate it.
    slots: as from `init_slots`; donate them.
    ids: `[K]` as given to `embedding_bag` or `gather`.
    lengths: `[B]` as given to `embedding_bag`; None after a `gather`.
    grads: `[B, D]` gradient of each bag; without lengths `[K, D]`, of each id.
    learning_rate: factor of the step.
    mode: 'sum' or 'mean', as in `embedding_bag`.
    weights: `[K]` as given to `embedding_bag`. Their own gradient, if they are
      learned: `bag_weight_gradient`, before the rows move.
    optimizer: this and the others as in `update_rows`.
    eps: see there.
    beta1: see there.
    beta2: see there.
    stochastic_rounding_seed: see there.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    The new table and slots.
  """
  backend = _backend(implementation)
  rule, arrays, slots = checks.check_update(
    table, slots, optimizer, eps, beta1, beta2
  )
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  if lengths is None:
    checks.check_grads(grads, ids.shape[0], 'ids', table.shape[1])
  else:
    checks.check_grads(grads, lengths.shape[0], 'lengths', table.shape[1])
  checks.check_ids(ids, table.shape[0], lengths=lengths, spare=lengths is None)
  table, arrays = backend.bag_update(
    rule,
    _scalars(rule, learning_rate, slots),
    _seed(stochastic_rounding_seed),
    table,
    arrays,
    ids,
    lengths,
    weights,
    _bag_grads(grads, lengths, mode, wrong),
  )
  return table, {**slots, **dict(zip(SLOTS[optimizer], arrays, strict=True))}


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


def _scalars(rule: Rule, learning_rate, slots) -> jax.Array:
  """Learning rate and Adam's corrections, `[3]` float32; counts the step."""
  rate = jnp.asarray(learning_rate, jnp.float32)
  one = jnp.float32(1)
  if rule.optimizer != 'adam':
    return jnp.stack([rate, one, one])
  slots['count'] = slots['count'] + 1
  count = slots['count'].astype(jnp.float32)
  return jnp.stack(
    [rate, *(one / (1 - b**count) for b in (rule.beta1, rule.beta2))]
  )


def _seed(seed):
  return None if seed is None else jnp.asarray(seed).astype(jnp.uint32)
