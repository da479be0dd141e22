"""The loss of the task retrieval: every loss and sampler against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import lookup
from genrec_jax.embedding.init import init_table
from genrec_jax.features import PAD
from genrec_jax.tasks import retrieval
from tests import row_views
from tests.tasks.retrieval_cases import (
  ITEMS,
  LENGTHS,
  REAL,
  TOKENS,
  WIDTH,
  Queries,
  drawn,
  make_batch,
  make_task,
  targets_of,
)
from tests.tolerances import assert_close


@functools.cache
def task_of(case):
  return make_task(**CASES[case])


def make_values(rows=ITEMS + 1, capacity=TOKENS):
  rng = np.random.default_rng(3)
  queries = rng.standard_normal((capacity, WIDTH))
  return queries, rng.standard_normal((rows, WIDTH))


def evaluate(task, queries, table, batch, key):
  """(loss, (gradient of the queries, gradient of the table))."""
  return _compiled(task)(jnp.float32(queries), jnp.float32(table), batch, key)


@functools.cache
def _compiled(task):
  def loss(queries, table, batch, key):
    rows = lookup.view_tables({'items': table}, task.reads(batch, key))
    return mean_loss(task, queries, rows, batch, key)

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def mean_loss(task, queries, rows, batch, key):
  total, count = task.loss(queries, rows, batch, key)['loss']
  return total / jnp.maximum(count, 1)


# --- The oracle: one token after the other, float64


def oracle(task, queries, table, batch, negatives):
  c, corpus = task.loss_config, task.corpus
  queries = queries / c.temperature
  norm = np.linalg.norm(table, axis=1, keepdims=True)
  vectors = table / norm if c.l2_normalize else table
  log_q = np.zeros(len(table))
  if c.logq:
    counts = np.arange(len(table))
    share = np.maximum(counts, 0.5) / counts.sum()
    if c.sampler == 'in_batch_unique':
      share = 1 - (1 - share) ** REAL
    log_q = np.log(share)
  total, by_query, by_vector = 0.0, 0 * queries, 0 * vectors
  targets = targets_of(batch)
  for t in range(REAL):
    positive = int(targets[t])
    if c.name == 'full_softmax':
      others = corpus[corpus != positive]
      hit = np.zeros(len(others), bool)
    else:
      others = negatives[t]
      hit = (others == positive) & c.mask_collisions
    score = vectors @ queries[t] - log_q
    loss, slope, slopes = one(c, score[positive], score[others], hit)
    total += loss
    for row, s in [(positive, slope), *zip(others, slopes, strict=True)]:
      by_query[t] += s * vectors[row]
      by_vector[row] += s * queries[t]
  if c.l2_normalize:
    along = (vectors * by_vector).sum(1, keepdims=True)
    by_vector = (by_vector - vectors * along) / norm
  return total / REAL, by_query / c.temperature / REAL, by_vector / REAL


def one(c, positive, negative, hit):
  """Loss of a token, its slope in the positive, its slopes in the others."""
  if c.name.endswith('softmax'):
    kept = np.where(hit, 0.0, np.exp(negative))
    every = np.exp(positive) + kept.sum()
    share = np.exp(positive) / every
    return -np.log(share), share - 1.0, kept / every

  def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))

  right, wrong = -np.log(sigmoid(positive)), -np.log(sigmoid(-negative))
  if c.name == 'gbce':
    alpha = c.negatives / (ITEMS - 1)
    beta = 1.0 + c.gbce_t * (alpha - 1.0)
    places = c.negatives + 1
    return (
      (beta * right + wrong.sum()) / places,
      -beta * sigmoid(-positive) / places,
      sigmoid(negative) / places,
    )
  if hit.all():
    return 0.0, 0.0, 0.0 * negative
  count = (~hit).sum()
  return (
    0.5 * (right + wrong[~hit].sum() / count),
    -0.5 * sigmoid(-positive),
    np.where(hit, 0.0, 0.5 * sigmoid(negative) / count),
  )


CASES = {
  'softmax, uniform': dict(),
  'softmax, shared': dict(sampler='shared'),
  'softmax, in_batch': dict(sampler='in_batch'),
  'softmax, in_batch_unique': dict(sampler='in_batch_unique'),
  'softmax, one negative': dict(negatives=1),
  'collisions count': dict(mask_collisions=False, l2_normalize=False),
  'logq, in_batch': dict(sampler='in_batch', logq=True),
  'logq, in_batch_unique': dict(sampler='in_batch_unique', logq=True),
  'full softmax': dict(name='full_softmax'),
  'full softmax, plain': dict(name='full_softmax', l2_normalize=False),
  'bce': dict(name='bce', l2_normalize=False, temperature=1.0),
  'bce, one negative': dict(name='bce', negatives=1),
  'bce, shared': dict(name='bce', sampler='shared'),
  'gbce, t=0': dict(name='gbce', gbce_t=0.0),
  'gbce, t=0.75': dict(name='gbce', gbce_t=0.75, l2_normalize=False),
  'gbce, t=1': dict(name='gbce', gbce_t=1.0, sampler='in_batch'),
}


@pytest.mark.parametrize('case', CASES)
def test_loss_and_gradients_match_the_oracle(case, key):
  task, batch = task_of(case), make_batch()
  queries, table = make_values()
  negatives = drawn(task, batch, key)
  if negatives is not None and negatives.shape[1] > 1:
    hits = negatives[:REAL] == np.asarray(targets_of(batch))[:REAL, None]
    assert hits.any() and not hits.all()
  loss, grads = evaluate(task, queries, table, batch, key)
  expected, *slopes = oracle(task, queries, table, batch, negatives)
  assert_close(loss, expected)
  for found, wanted in zip(grads, slopes, strict=True):
    assert_close(found, wanted)


@pytest.mark.parametrize('name', ['sampled_softmax', 'full_softmax'])
def test_chunks_change_nothing(name, key):
  batch = make_batch()
  results = []
  for chunk in (1, 64):
    task = make_task(name=name, chunk=chunk)
    results.append(evaluate(task, *make_values(), batch, key))
  for loss, grads in results[1:]:
    assert_close(loss, results[0][0])
    for found, wanted in zip(grads, results[0][1], strict=True):
      assert_close(found, wanted)


# --- Padding


@pytest.mark.parametrize('case', CASES)
def test_padding_contributes_nothing(case, key):
  task, batch = task_of(case), make_batch()
  queries, table = make_values()
  loss, grads = evaluate(task, queries, table, batch, key)
  assert not np.any(grads[0][REAL:])
  queries[REAL:] = 1e3  # whatever the model makes of padding
  other, other_grads = evaluate(task, queries, table, batch, key)
  assert loss == other
  for found, wanted in zip(grads, other_grads, strict=True):
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize('name', ['sampled_softmax', 'full_softmax', 'gbce'])
def test_more_padding_changes_nothing(name, key):
  task = make_task(name=name, sampler='shared')
  queries, table = make_values(capacity=2 * TOKENS)
  wide = evaluate(task, queries, table, make_batch(2 * TOKENS), key)
  loss, grads = evaluate(task, queries[:TOKENS], table, make_batch(), key)
  assert_close(wide[0], loss)
  assert_close(wide[1][0][:TOKENS], grads[0])
  assert_close(wide[1][1], grads[1])


def test_an_empty_batch_is_no_nan(key):
  task, batch = make_task(sampler='in_batch'), make_batch()
  nothing = jax.tree.map(jnp.zeros_like, batch)
  loss, grads = evaluate(task, *make_values(), nothing, key)
  assert loss == 0.0
  assert all(not np.any(g) for g in grads)


# --- Rows touched, or the whole table


@pytest.mark.parametrize(
  'case', ['softmax, uniform', 'softmax, shared', 'gbce, t=1']
)
def test_touched_rows_give_the_gradients_of_the_table(case, key):
  task, batch = task_of(case), make_batch()
  queries, table = make_values()
  loss, (by_query, by_table) = evaluate(task, queries, table, batch, key)
  table = jnp.float32(table)
  reads = task.reads(batch, key)
  ids = lookup.distinct_ids([r.ids for r in reads.values()], len(table))
  fetched, view = row_views.fetch({'items': table}, reads)

  def of_touched(queries, fetched):
    return mean_loss(task, queries, view(fetched), batch, key)

  differentiated = jax.jit(jax.value_and_grad(of_touched, argnums=(0, 1)))
  other, (by_query_too, (by_row, _)) = differentiated(
    jnp.float32(queries), fetched
  )
  by_row = by_row['items']
  assert_close(other, loss)
  assert_close(by_query_too, by_query)
  scattered = np.zeros(table.shape)
  real = ids < len(table)
  scattered[ids[real]] = by_row[real]
  assert_close(scattered, by_table)
  assert not np.any(by_row[~real])


def test_a_full_softmax_refuses_touched_rows(key):
  task, batch = make_task(name='full_softmax'), make_batch()
  queries, table = make_values()
  reads = task.reads(batch, key)
  rows = lookup.Views(
    {name: lookup.RowView(None, None, read) for name, read in reads.items()}
  )
  with pytest.raises(ValueError, match="the whole table 'items'"):
    task.loss(jnp.float32(queries), rows, batch, key)


# --- Relations between losses


class EveryItem(Queries):
  def _draw_negatives(self, batch, key):
    return jnp.broadcast_to(
      jnp.asarray(self.corpus), (len(targets_of(batch)), len(self.corpus))
    )


def test_full_softmax_is_sampled_softmax_over_every_item(key):
  batch, values = make_batch(), make_values()
  full = evaluate(make_task(name='full_softmax'), *values, batch, key)
  task = make_task(EveryItem, negatives=ITEMS)
  sampled = evaluate(task, *values, batch, key)
  assert_close(sampled[0], full[0])
  for found, wanted in zip(sampled[1], full[1], strict=True):
    assert_close(found, wanted)


def test_full_softmax_over_a_large_catalogue_keeps_its_chunks(key, monkeypatch):
  """Logits alive at once are bounded, by chunks that divide the capacity."""
  seen = []
  walk = retrieval.losses.sum_over_chunks

  def spy(fn, chunk, *args):
    seen.append(chunk)
    return walk(fn, chunk, *args)

  monkeypatch.setattr(retrieval.losses, 'sum_over_chunks', spy)
  monkeypatch.setattr(retrieval, 'MAX_LOGITS', 13 * ITEMS)
  task = make_task(name='full_softmax', chunk=256)
  evaluate(task, *make_values(), make_batch(), key)
  assert set(seen) == {8}


# --- The rest of the task


def test_queries_and_candidates(key):
  """`predict` is `encode` at the last token; scores are cosines."""
  task = make_task(retrieval.Retrieval, corpus=(1, 2, 4, 12))
  params = task.init(key)
  tables = {'items': init_table(task.table, key)}
  batch = make_batch()
  rows = lookup.view_tables(tables, task.reads_for('predict', batch))
  every = jax.jit(task.encode)(params, rows, batch)
  last = np.cumsum(LENGTHS)[[0, 2, 3]] - 1
  found = jax.jit(task.predict)(params, rows, batch)
  assert_close(found[jnp.array([0, 2, 3])], every[last])
  items = lookup.view_tables(
    tables, task.reads_for('items', jnp.asarray(task.corpus))
  )
  vectors = task.vectors(items)
  assert vectors.shape == (4, WIDTH)
  for x in (found[jnp.array([0, 2, 3])], vectors):
    assert_close(np.linalg.norm(x, axis=1), np.ones(len(x)))


@pytest.mark.parametrize(
  'loss, message',
  [
    (dict(name='softmax'), "loss.name is 'softmax', must be one of"),
    (dict(sampler='popular'), "loss.sampler is 'popular', must be one of"),
    (dict(negatives=0), 'loss.negatives is 0'),
    (dict(temperature=0.0), 'loss.temperature is 0.0'),
    (dict(gbce_t=1.5), 'loss.gbce_t is 1.5'),
    (dict(chunk=100), 'loss.chunk is 100, must be a power of two'),
    (dict(logq=True), 'needs none'),
    (dict(logq=True, name='full_softmax', sampler='in_batch'), 'needs none'),
  ],
)
def test_settings_that_mean_nothing(loss, message):
  with pytest.raises(ValueError, match=message):
    make_task(**loss)


def test_a_catalogue_of_one_item():
  with pytest.raises(ValueError, match='the catalogue has 1 items'):
    make_task(corpus=[1])


def test_pad_is_no_candidate():
  assert PAD not in make_task().corpus
