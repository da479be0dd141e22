"""Tables whose ids have two rows, against one table with a row for each id."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.config import TableSettings
from genrec_jax.embedding import id_maps, lookup
from genrec_jax.embedding.several_rows import SECOND
from genrec_jax.features import Columns, Examples, FeatureSpec, Jagged
from genrec_jax.tasks.ranking import Ranking
from tests.tolerances import assert_close

IDS, DIM, B = 40, 4, 6
DOUBLE = {'id_map': 'double', 'rows': 9, 'private': 3}
QR = {'id_map': 'qr', 'rows': 15}
PRODUCT = QR | {'combine': 'product'}


def make_task(settings=None, pooling='sum', weighted=True):
  features = [
    FeatureSpec('user', rows=IDS),
    FeatureSpec(
      'tags', 'multi_hot', rows=IDS, table='user', pooling=pooling,
      weighted=weighted,
    ),
    FeatureSpec('price', 'numeric'),
  ]  # fmt: skip
  if settings and settings.get('combine') == 'product':
    del features[1]
  model = dict(dim=DIM, bottom=(4,), top=(4,))
  return Ranking(
    'dlrm',
    model,
    {},
    features=features,
    labels=['label'],
    init_std=0.5,
    settings=TableSettings((('user', settings),) if settings else ()),
  )


def make_batch() -> Examples:
  rng = np.random.default_rng(0)
  lengths = np.int32([2, 0, 3, 1, 0, 0])
  weights = np.float32([1, 1, 1, 1, 1, 0])
  tags = np.int32([1, 9, 3, 25, 0, 39, 0, 0])
  return Examples(
    weights=jnp.asarray(weights),
    ids=Columns(jnp.int32([[0], [2], [3], [4], [39], [7]]), ('user',)),
    dense=Columns(jnp.asarray(rng.normal(size=(B, 1)), 'float32'), ('price',)),
    labels=Columns(jnp.ones((B, 1)), ('label',)),
    jagged={
      'tags': Jagged(
        Columns(jnp.asarray(tags)[:, None], ('tags',)),
        jnp.asarray(lengths),
        Columns(jnp.asarray(rng.normal(size=(8, 1)), 'float32'), ('weight',)),
      )
    },
  )


def rows_of(settings):
  """Each id's two rows, the second -1 for none; by the map alone."""
  spec = make_task(settings).tables()['user']
  a_map, ids = id_maps.build_map(spec), np.arange(IDS)
  first = np.asarray(a_map.lookup({}, jnp.asarray(ids)))
  second = np.array(a_map.lookup({}, jnp.asarray(ids + IDS)))
  second[ids <= spec.private] = -1
  return first, second


def read(task, reads, table):
  maps = id_maps.collect_maps(task)
  return lookup.view_tables({'user': table}, reads, maps.lookup({}, reads))


@pytest.mark.parametrize('pooling', ['sum', 'mean'])
@pytest.mark.parametrize('settings', [DOUBLE, QR, PRODUCT])
def test_both_rows_make_the_vector(settings, pooling):
  task, whole = make_task(settings, pooling), make_task(None, pooling)
  spec = task.tables()['user']
  assert (spec.rows, spec.ids) == (settings['rows'], IDS)
  table = jnp.asarray(
    np.random.default_rng(1).normal(size=(spec.rows, DIM)), 'float32'
  )
  first, second = rows_of(settings)
  extended = np.concatenate([table, np.zeros((1, DIM))]).astype('float32')
  if settings is PRODUCT:
    expanded = extended[first] * (1 + extended[second])
  else:
    expanded = extended[first] + extended[second]
  batch, params = make_batch(), task.init(jax.random.key(0))
  inputs = task.inputs(read(task, task.reads_for('eval', batch), table), batch)
  if settings is PRODUCT:
    ids = np.asarray(batch.ids['user'])
    assert_close(inputs.vectors[0], expanded[ids])
    return
  wanted_reads = whole.reads_for('eval', batch)
  views = lookup.view_tables({'user': jnp.asarray(expanded)}, wanted_reads)
  wanted = whole.inputs(views, batch)
  for found, vector in zip(inputs.vectors, wanted.vectors, strict=True):
    assert_close(found, vector)
  # In training, what fills up a batch reads nothing, and changes nothing.
  training = task.predict(params, read(task, task.reads(batch), table), batch)
  evaluation = task.predict(
    params, read(task, task.reads_for('eval', batch), table), batch
  )
  assert_close(training[:-1], evaluation[:-1])


def test_private_ids_touch_one_row():
  task = make_task(DOUBLE)
  table = jnp.ones((9, DIM))

  def add_up(table):
    views = read(task, task.reads(make_batch()), table)
    vectors = task.inputs(views, make_batch()).vectors
    return vectors[0][2].sum()  # the user 3

  grads = jax.grad(add_up)(table)
  assert np.flatnonzero(np.any(grads != 0, axis=1)).tolist() == [3]


def test_planners_are_told_of_both():
  reads = make_task(DOUBLE).expected_reads()
  assert set(reads) == {
    f'{n}{x}' for n in ('user', 'tags') for x in ('', SECOND)
  }
  assert set(make_task().expected_reads()) == {'user', 'tags'}


def test_a_product_of_sums_is_refused():
  features = [FeatureSpec('t', 'multi_hot', rows=IDS), FeatureSpec('u', rows=9)]
  with pytest.raises(ValueError, match="'t' pools rows of table 't'"):
    Ranking(
      'dlrm', dict(dim=DIM, bottom=(4,), top=(4,)), {}, features=features,
      labels=['x'], settings=TableSettings((('t', PRODUCT), ('.*', {}))),
    )  # fmt: skip
