"""Weighted bags in a step, against the same step in NumPy."""

import functools

import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import collation
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from genrec_jax.embedding import relayout
from genrec_jax.features import FeatureSpec
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.tasks.ranking import Ranking
from tests.tolerances import assert_close

VALUES, EXAMPLES, MOST, RATE = 29, 32, 5, 0.5
TABLES = ('sum', 'mean')
FEATURES = tuple(
  FeatureSpec(
    name,
    'multi_hot',
    rows=VALUES,
    pooling=name,
    max_len=MOST,
    weighted=True,
  )
  for name in TABLES
)


@functools.cache
def make_rows(order: int = 1) -> Rows:
  """Examples; with `order=-1` the values of each list stand the other way."""
  rng = np.random.default_rng(0)
  bags = {}
  for name in TABLES:
    lengths = rng.integers(0, MOST + 1, EXAMPLES).astype(np.int32)
    pairs = [
      (rng.integers(0, VALUES, n)[::order], rng.normal(size=n)[::order])
      for n in lengths
    ]
    values, weights = map(np.concatenate, zip(*pairs, strict=True))
    bags[name] = Bags(values.astype(np.int32), lengths, np.float32(weights))
  return Rows(
    rng.integers(0, 2, (EXAMPLES, 1)).astype(np.uint8),
    np.zeros((EXAMPLES, 0), np.int32),
    np.zeros((EXAMPLES, 0), np.float32),
    None,
    bags,
  )


def make_batch(shards: int, order: int = 1):
  return collation.collate_rows(
    make_rows(order), ColumnNames(('y',)), batch_size=EXAMPLES, shards=shards
  )


def shares_of(rows: Rows, name: str) -> np.ndarray:
  """`[EXAMPLES, VALUES]`: by what each row of the table is multiplied."""
  bags, matrix = rows.bags[name], np.zeros((EXAMPLES, VALUES))
  for i, (a, n) in enumerate(zip(bags.begin, bags.lengths, strict=True)):
    for k in range(a, a + n):
      share = 1 / n if name == 'mean' else 1
      matrix[i, bags.values[k]] += share * float(bags.weights[k])
  return matrix


@functools.cache
def step_once(hosts: int, devices: int, scheme: str, pool: str, order: int = 1):
  """(loss, tables before, tables behind, pooling) of a step."""
  config = config_lib.ranking()
  config.optimizer.rows.learning_rate = RATE
  config.parallel.update(
    dict(hosts=hosts, devices=devices, scheme=scheme, pool=pool)
  )
  section = config_lib.lr(first_order='table').to_dict()
  name = section.pop('name')
  task = Ranking(
    name,
    section,
    {},
    features=FEATURES,
    labels=('y',),
    table_update='sgd',
    init_std=0.5,
  )
  runtime = MeshRuntime(config, task, optax.sgd(RATE))
  layout = runtime._tables.layout

  def gather(state):
    return {
      n: np.asarray(
        relayout.gather_table(layout, state.tables, f'{n}.linear'), np.float64
      )[:, 0]
      for n in TABLES
    }

  state = runtime.fresh_state()
  before = gather(state)
  batch = runtime.put_on_devices(make_batch(hosts * devices, order))
  state, loss = runtime.step()(state, batch)
  return float(loss), before, gather(state), runtime.plan.pooling


@pytest.mark.parametrize(
  'hosts, devices, scheme, pool',
  [
    (1, 1, 'table_wise', 'auto'),
    (2, 4, 'table_wise', 'sums'),
    (2, 4, 'row_wise', 'rows'),
  ],
)
def test_a_step_is_that_of_numpy(hosts, devices, scheme, pool):
  loss, before, after, pooling = step_once(hosts, devices, scheme, pool)
  if pool != 'auto':
    assert set(pooling.values()) == {pool}
  rows = make_rows()
  shares = {n: shares_of(rows, n) for n in TABLES}
  logits = sum(shares[n] @ before[n] for n in TABLES)
  y = rows.labels[:, 0]
  assert_close(loss, np.mean(np.logaddexp(0, logits) - y * logits))
  error = (1 / (1 + np.exp(-logits)) - y) / EXAMPLES
  for name in TABLES:
    want = before[name] - RATE * (error @ shares[name])
    assert_close(after[name], want)


def test_the_order_of_values_changes_nothing():
  loss, _, after, _ = step_once(1, 1, 'table_wise', 'auto')
  turned, _, others, _ = step_once(1, 1, 'table_wise', 'auto', order=-1)
  assert_close(turned, loss)
  for name in TABLES:
    assert_close(others[name], after[name])
