"""Products of queries with rows, by every backend, against NumPy."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels.jagged_embedding import cpu, scores
from tests.tolerances import assert_close

HERE = [n for n, b in scores.BACKENDS.items() if b.why_not() is None]
# Narrower than a vector, as wide, with a last vector that overlaps, many.
WIDTHS = (1, 5, 16, 17, 31, 50, 64, 150)


def make(width: int, tokens: int = 37, each: int = 21, rows: int = 150):
  rng = np.random.default_rng(width)
  return (
    rng.normal(size=(tokens, width)).astype(np.float32),
    rng.normal(size=(rows, width)).astype(np.float32),
    rng.integers(0, rows, (tokens, each)).astype(np.int32),
    rng.normal(size=(tokens, each)).astype(np.float32),
  )


def differentiate(name, queries, table, ids, grads):
  """Scores, and the gradients of queries and table, in one program."""

  def run(queries, table, ids, grads):
    out, pullback = jax.vjp(
      lambda q, t: pallas_kernels.score_rows(q, t, ids, implementation=name),
      queries,
      table,
    )
    return out, *pullback(grads)

  return jax.jit(run)(queries, table, ids, grads)


@pytest.mark.parametrize('name', HERE)
def test_arrays_of_numpy_are_taken(name):
  queries, table, ids, _ = make(5)
  found = pallas_kernels.score_rows(queries, table, ids, implementation=name)
  assert_close(found, np.einsum('td,trd->tr', queries, table[ids]))
  found = pallas_kernels.score_rows(
    [[2.0]], np.ones((2, 1), 'f'), [[0, 1]], implementation=name
  )
  assert found.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('tokens', [37, 2], ids=['', 'few'])
@pytest.mark.parametrize('width', WIDTHS)
def test_scores_and_gradients_are_those_of_numpy(name, width, tokens):
  queries, table, ids, grads = make(width, tokens)
  found = differentiate(name, queries, table, ids, grads)
  q, t, g = (x.astype(np.float64) for x in (queries, table, grads))
  of_table = np.zeros_like(t)
  np.add.at(of_table, ids, g[..., None] * q[:, None])
  expected = (
    np.einsum('td,trd->tr', q, t[ids]),
    np.einsum('tr,trd->td', g, t[ids]),
    of_table,
  )
  for x, y in zip(found, expected, strict=True):
    assert_close(x, y)


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('bad', [-1, 150, 2**31 - 1])
def test_what_is_no_row_gives_nan_and_moves_nothing(name, bad):
  queries, table, ids, grads = make(17)
  ids[3, 4] = bad
  out, of_queries, of_table = differentiate(name, queries, table, ids, grads)
  assert np.argwhere(np.isnan(out)).tolist() == [[3, 4]]
  assert np.isnan(of_queries[3]).all() and np.isfinite(of_table).all()
  assert np.isfinite(np.delete(of_queries, 3, 0)).all()


@pytest.mark.parametrize('name', HERE)
def test_a_score_without_gradient_adds_nothing(name):
  """A negative that is masked, or padding, may name a row of NaN, or none."""
  queries, table, ids, grads = make(50)
  table[7] = np.nan
  ids[0, :3] = 7, -1, 150
  grads[ids == 7] = 0
  grads[0, :3] = 0
  _, of_queries, of_table = differentiate(name, queries, table, ids, grads)
  assert np.isfinite(of_queries).all() and np.isfinite(of_table).all()
  np.testing.assert_array_equal(of_table[7], 0.0)


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('width', [5, 16, 17])
def test_an_infinite_number_reaches_the_scores_of_its_row_alone(name, width):
  """Infinite times zero is NaN, of a query or of a vector that overlaps."""
  queries, table, ids, _ = make(width)
  queries[0, -1] = 0.0
  clean = pallas_kernels.score_rows(queries, table, ids, implementation=name)
  column = width // 2  # of width 17 the overlapping vectors read it twice
  table[7, column], table[8, -1] = np.inf, -np.inf
  out = pallas_kernels.score_rows(queries, table, ids, implementation=name)
  spoiled = (ids == 7) | (ids == 8)
  assert spoiled.sum() > 5 and not np.isfinite(out[spoiled]).any()
  np.testing.assert_array_equal(out[~spoiled], clean[~spoiled])
  # Where nothing is zero and no vector overlaps, a score is what NumPy says.
  if name != 'cpu' or width % 16 == 0:
    with np.errstate(invalid='ignore'):
      expected = np.einsum('td,trd->tr', queries, table[ids])
    np.testing.assert_array_equal(out[spoiled], expected[spoiled])


@pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
def test_the_number_of_threads_changes_no_bit(monkeypatch):
  # Many blocks of rows, so that each thread owns some.
  case = make(50, tokens=300, each=40, rows=1_000)
  runs = []
  for threads in ('1', '2', '5', '40'):
    monkeypatch.setenv(cpu.THREADS, threads)
    runs.append(differentiate('cpu', *case))
  for other in runs[1:]:
    jax.tree.map(np.testing.assert_array_equal, runs[0], other)


def test_many_chunks_are_one(monkeypatch):
  case = make(16)
  whole = differentiate('xla', *case)
  monkeypatch.setattr(scores, '_CHUNK', 16 * 21 * 5)  # 37 tokens by 5
  cut = differentiate('xla', *case)
  jax.tree.map(assert_close, cut, whole)


def test_dtypes_of_the_arguments_come_back():
  queries, table, ids, grads = make(16)
  table = jnp.asarray(table, jnp.bfloat16)
  out, pullback = jax.vjp(
    lambda q, t: pallas_kernels.score_rows(q, t, ids), queries, table
  )
  of_queries, of_table = pullback(jnp.asarray(grads))
  assert (out.dtype, of_queries.dtype) == (jnp.float32, jnp.float32)
  assert of_table.dtype == jnp.bfloat16
  plain = np.einsum('td,trd->tr', queries, np.asarray(table, np.float32)[ids])
  assert_close(out, plain)


@pytest.mark.parametrize('name', HERE)
def test_nothing_is_asked(name):
  queries, table, ids, _ = make(16)
  for q, i in ((queries[:0], ids[:0]), (queries, ids[:, :0])):
    out = pallas_kernels.score_rows(q, table, i, implementation=name)
    assert out.shape == i.shape


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(queries=np.ones((37, 8), 'f')), r'queries must be \[T, 16\], .*\(37'),
    (dict(queries=np.ones((37, 16), int)), 'queries must be floats, not int'),
    (dict(ids=np.ones((36, 4), 'i')), r'ids must be \[37, R\] .*\(36, 4\)'),
    (dict(ids=np.ones(37, 'i')), r'ids must be \[37, R\]'),
    (dict(ids=np.full((37, 4), 150)), 'ids holds 150, but .* 0 .. 149'),
    (dict(ids=np.ones((37, 4), 'f')), 'ids must be integers'),
    (dict(table=np.ones((4, 16))), 'table is float64'),
  ],
)
def test_mistakes_are_errors_that_name_the_argument(change, message):
  queries, table, ids, _ = make(16)
  given = dict(queries=queries, table=table, ids=ids) | change
  with pytest.raises(ValueError, match=message):
    pallas_kernels.score_rows(**given)


def test_the_example_is_right():
  assert doctest.testmod(scores).failed == 0


def test_few_rows_of_a_large_table():
  """As docs/kernels.md says: scores see the rows that occur alone."""
  queries, table, ids, grads = make(8, tokens=3, each=4)
  slots = pallas_kernels.init_slots(table, 'row_adagrad')
  rows = pallas_kernels.distinct_rows(ids.ravel(), len(table))
  few = pallas_kernels.gather(table, rows, spare=True)

  def loss(queries, few):
    places = jnp.searchsorted(rows, ids)
    return (grads * pallas_kernels.score_rows(queries, few, places)).sum()

  of_queries, of_rows = jax.grad(loss, argnums=(0, 1))(queries, few)
  _, expected_queries, of_table = differentiate(
    'reference', queries, table, ids, grads
  )
  assert_close(of_queries, expected_queries)
  expected = np.zeros_like(table)
  real = np.asarray(rows) < len(table)
  expected[rows[real]] = of_rows[real]
  assert_close(of_table, expected)
  new, _ = pallas_kernels.update_rows(
    table, slots, rows, of_rows, learning_rate=0.1
  )
  moved = np.flatnonzero((new != table).any(1))
  assert moved.tolist() == sorted(set(ids.ravel().tolist()))
