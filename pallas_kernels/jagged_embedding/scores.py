"""`score_rows`: products of queries with rows of a table, for sampled losses.

In C++ the rows of a query go from the table into its products, and gradients go
back: no `[T, R, D]` array exists. XLA has one, a chunk of tokens at a time.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch, integers, manual_axes
from pallas_kernels.jagged_embedding import checks, cpu

# Numbers of the rows of a chunk.
_CHUNK = 1 << 22


def score_rows(
  queries: jax.Array,
  table: jax.Array,
  ids: jax.Array,
  *,
  implementation: str | None = None,
) -> jax.Array:
  """Multiplies each query with rows of a table of its own choice.

  `scores[t, r] = queries[t] . table[ids[t, r]]`

  This is what a loss with sampled negatives needs. Gradients flow to the
  queries and, as a `[rows, D]` array, to the table. A row gets its summands in
  the order of the queries, so that the same call gives the same bits, whatever
  the number of threads. A score whose gradient is zero adds nothing, even if
  its row is not finite. Where a row holds an infinite number, a score may be
  NaN instead of infinite.

  >>> table = jnp.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
  >>> queries, ids = jnp.array([[1.0, 10.0]]), jnp.array([[2, 0, 2]])
  >>> score_rows(queries, table, ids).tolist()
  [[33.0, 1.0, 33.0]]

  Args:
    queries: `[T, D]` floats.
    table: `[rows, D]` float32, bfloat16 or float16.
    ids: `[T, R]` integers.
    implementation: None for the best one here, or a name in `BACKENDS`.

  Returns:
    `[T, R]` float32.

  Raises:
    ValueError: shapes, dtypes or known ids are wrong; under jit, where ids are
      unknown, one that is not a row gives NaN, and moves no row.
    NotImplementedError: the implementation cannot run on this machine.
  """
  backend = dispatch.choose('score_rows', BACKENDS, implementation)
  table, queries = checks.check_table(table), jnp.asarray(queries)
  if queries.ndim != 2 or queries.shape[1] != table.shape[1]:
    raise ValueError(
      f'queries must be [T, {table.shape[1]}], as wide as the table, not '
      f'{queries.shape}.'
    )
  if not jnp.issubdtype(queries.dtype, jnp.floating):
    raise ValueError(f'queries must be floats, not {queries.dtype}.')
  if np.ndim(ids) != 2 or len(ids) != len(queries):
    raise ValueError(
      f'ids must be [{len(queries)}, R] (queries has {len(queries)}), not '
      f'{np.shape(ids)}.'
    )
  ids = integers.to_int32('ids', ids)
  checks.check_ids(ids.reshape(-1), table.shape[0])
  if not ids.size:
    return jnp.zeros(ids.shape, jnp.float32)
  table, queries, ids = manual_axes.vary_alike(table, queries, ids)
  return _score(
    backend, table.astype(jnp.float32), queries.astype(jnp.float32), ids
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _score(backend, table, queries, ids):
  score, _ = backend
  return score(table, queries, ids)


def _score_forward(backend, table, queries, ids):
  return _score(backend, table, queries, ids), (table, queries, ids)


def _score_backward(backend, saved, grads):
  _, score_gradients = backend
  return *score_gradients(*saved, grads), None


_score.defvjp(_score_forward, _score_backward)


def _rows_of(table, ids):
  """`[..., D]`, NaN where an id is not a row."""
  return table.at[ids].get(
    mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
  )


def _score_plainly(table, queries, ids):
  return jnp.einsum('td,trd->tr', queries, _rows_of(table, ids))


def _add_gradients(of_table, table, queries, ids, grads):
  """Adds to the gradient of the table; returns that of the queries, too."""
  used = (grads != 0)[..., None]
  rows = jnp.where(used, _rows_of(table, ids), 0.0)
  steps = jnp.where(used, grads[..., None] * queries[:, None], 0.0)
  of_table = of_table.at[ids].add(
    steps, mode='drop', wrap_negative_indices=False
  )
  return of_table, jnp.einsum('tr,trd->td', grads, rows)


def _differentiate_plainly(table, queries, ids, grads):
  return _add_gradients(jnp.zeros_like(table), table, queries, ids, grads)


def _split(ids, dim: int, *arrays):
  """Chunks of tokens `[N, tokens, ...]` of the ids and of all arrays.

  Tokens are added at the end, whose ids are no rows and other numbers zero.
  """
  count, each = ids.shape
  tokens = min(count, max(1, _CHUNK // (each * dim)))
  more = -count % tokens

  def cut(x, fill):
    x = jnp.pad(x, ((0, more), (0, 0)), constant_values=fill)
    return x.reshape(-1, tokens, x.shape[1])

  return cut(ids, -1), *(cut(x, 0) for x in arrays)


def _score_in_chunks(table, queries, ids):
  chunks = _split(ids, table.shape[1], queries)
  found = jax.lax.map(lambda x: _score_plainly(table, x[1], x[0]), chunks)
  return found.reshape(-1, ids.shape[1])[: len(ids)]


def _differentiate_in_chunks(table, queries, ids, grads):
  def add(of_table, chunk):
    ids, queries, grads = chunk
    return _add_gradients(of_table, table, queries, ids, grads)

  of_table, of_queries = jax.lax.scan(
    add, jnp.zeros_like(table), _split(ids, table.shape[1], queries, grads)
  )
  return of_table, of_queries.reshape(-1, queries.shape[1])[: len(ids)]


# Name -> (scores, their gradients).
BACKENDS = {
  'cpu': dispatch.Backend((cpu.score, cpu.score_gradients), cpu.why_not),
  'xla': dispatch.Backend((_score_in_chunks, _differentiate_in_chunks)),
  'reference': dispatch.Backend(
    (_score_plainly, _differentiate_plainly), automatic=False
  ),
}
