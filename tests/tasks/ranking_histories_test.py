"""Histories in a ranking task: what is read, and what models see of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pallas_kernels
from genrec_jax import config as config_lib
from genrec_jax import models
from genrec_jax.data.ranking import collation
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from genrec_jax.embedding import lookup
from genrec_jax.features import UNREAD, ExpectedRead, FeatureSpec
from genrec_jax.models import fields, layers, mlp
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.tasks import ranking
from tests.tolerances import assert_close

SIZE, FILMS, PLACES = 16, 23, 7
VISITS = {'history': 'visits', 'max_len': 5}
FEATURES = (
  FeatureSpec('film', rows=FILMS),
  FeatureSpec('films', 'sequence', FILMS, table='film', **VISITS),
  FeatureSpec('places', 'sequence', PLACES, pooling='mean', **VISITS),
  FeatureSpec('ages', 'numeric_sequence', **VISITS),
  FeatureSpec('gaps', 'numeric_sequence', **VISITS),
)
WITHOUT_NUMBERS = FEATURES[:3]
COLUMNS = ('films', 'places', 'ages', 'gaps')


@dataclasses.dataclass(frozen=True)
class EventsConfig:
  """A model of the tests.

  Attributes:
    dim: width of the rows.
    dropout: rate on the events.
    first_order: as in `config.models`.
  """

  dim: int = 4
  dropout: float = 0.5
  first_order: str = 'table'


class Events(fields.Ranker):
  """Sums a layer over the events of each example."""

  Config = EventsConfig
  reads_histories = True
  linear = True

  def __init__(self, config, features, outputs, rngs):
    self.dropout = config.dropout
    (own,) = fields.list_histories(features).values()
    width = sum(config.dim if f.has_table else 1 for f in own)
    self.event = mlp.make_linear(width, 8, rngs)
    vectors = len(fields.table_features(features)) * config.dim
    self.out = mlp.make_linear(8 + vectors, outputs, rngs)

  def __call__(self, x, key=None):
    (history,) = x.histories.values()
    tokens = [*history.vectors.values(), history.numbers]
    tokens = jax.nn.relu(self.event(jnp.concatenate(tokens, axis=1)))
    tokens = layers.apply_dropout(tokens, self.dropout, key, history.first)
    size = history.lengths.shape[0]
    owner = pallas_kernels.segment_ids(history.lengths, tokens.shape[0])
    sums = jax.ops.segment_sum(tokens, owner, size + 1)[:-1]
    vectors = jnp.concatenate([sums, *x.vectors], axis=1)
    return self.out(vectors) + x.linear[:, None]


@pytest.fixture(autouse=True)
def with_model(monkeypatch):
  monkeypatch.setitem(models.RANKERS, 'events', Events)


def make_task(features=FEATURES, **options):
  return ranking.Ranking(
    'events',
    dataclasses.asdict(EventsConfig()),
    {},
    features=features,
    labels=('y',),
    **{'init_std': 0.5, **options},
  )


@functools.cache
def make_rows(count=SIZE - 3) -> Rows:
  rng = np.random.default_rng(0)
  lengths = rng.integers(0, 6, count).astype(np.int32)
  total = lengths.sum()
  values = {
    'films': rng.integers(0, FILMS, total).astype(np.int32),
    'places': rng.integers(0, PLACES, total).astype(np.int32),
    'ages': rng.normal(size=total).astype(np.float32),
    'gaps': rng.normal(size=total).astype(np.float32),
  }
  return Rows(
    rng.integers(0, 2, (count, 1)).astype(np.uint8),
    rng.integers(0, FILMS, (count, 1)).astype(np.int32),
    np.zeros((count, 0), np.float32),
    None,
    {name: Bags(x, lengths) for name, x in values.items()},
  )


def collate(rows=None, shards=1, columns=COLUMNS):
  names = ColumnNames(('y',), ('film',), (), (('visits', columns),))
  return collation.collate_rows(
    make_rows() if rows is None else rows,
    names,
    batch_size=SIZE,
    shards=shards,
  )


def draw_tables(task):
  rng = np.random.default_rng(1)
  return {
    name: jnp.asarray(rng.normal(size=(s.rows, s.dim)), jnp.float32)
    for name, s in sorted(task.tables().items())
  }


def test_a_model_sees_events_one_by_one():
  task, batch = make_task(), collate()
  tables, rows = draw_tables(task), make_rows()
  x = task.inputs(lookup.view_tables(tables, task.reads(batch)), batch)
  history = x.histories['visits']
  total = rows.bags['films'].lengths.sum()
  for name, table in (('films', 'film'), ('places', 'places')):
    want = np.asarray(tables[table])[rows.bags[name].values]
    np.testing.assert_array_equal(history.vectors[name][:total], want)
    assert np.isfinite(history.vectors[name]).all()
  for i, name in enumerate(('ages', 'gaps')):
    np.testing.assert_array_equal(
      history.numbers[:total, i], rows.bags[name].values
    )
  assert not history.numbers[total:].any()
  np.testing.assert_array_equal(history.lengths, batch.jagged['visits'].lengths)
  assert history.first.tolist() == [0]
  # One vector, of the feature that is no column of the history.
  assert len(x.vectors) == 1 and x.numbers.shape == (SIZE, 0)


def test_first_order_weights_are_of_single_values():
  task = make_task()
  assert set(task.tables()) == {'film', 'places', 'film.linear'}
  assert task.expected_reads() == {
    'film': ExpectedRead('film', 1.0),
    'film.linear': ExpectedRead('film.linear', 1.0),
    'films': ExpectedRead('film', 5.0),
    'places': ExpectedRead('places', 5.0),
  }
  no_limit = [
    dataclasses.replace(f, max_len=0, mean_len=2.5) if f.history else f
    for f in FEATURES
  ]
  assert make_task(no_limit).expected_reads()['films'].ids == 2.5


def test_padding_and_examples_without_weight_are_unread():
  rows = make_rows()
  weight = np.ones(len(rows), np.float32)
  weight[2] = 0
  task = make_task()
  batch = collate(dataclasses.replace(rows, weight=weight))
  bags = rows.bags['films']
  own = bags.values.copy()
  total = len(own)
  predicted = task.reads_for('predict', batch)['films']
  assert predicted.pooling == 'none' and predicted.lengths is None
  np.testing.assert_array_equal(predicted.ids[:total], own)
  assert (predicted.ids[total:] == UNREAD).all()
  assert bags.lengths[2]
  own[bags.begin[2] : bags.begin[2] + bags.lengths[2]] = UNREAD
  trained = task.reads(batch)['films'].ids
  np.testing.assert_array_equal(trained[:total], own)
  assert (trained[total:] == UNREAD).all()


@functools.cache
def train_steps(devices: int, update: str):
  """Losses of three steps and the tables behind them."""
  config = config_lib.ranking()
  config.optimizer.rows.learning_rate = 0.5
  config.parallel.update(devices=devices)
  task = make_task(table_update=update)
  runtime = MeshRuntime(config, task, optax.sgd(0.1))
  state, losses = runtime.fresh_state(), []
  step = runtime.step()
  for _ in range(3):
    batch = runtime.put_on_devices(collate(shards=devices))
    state, loss = step(state, batch)
    losses.append(float(loss))
  return losses


@pytest.mark.parametrize('update', ['dense', 'row_adagrad'])
def test_the_number_of_devices_changes_nothing(update):
  alone, spread = train_steps(1, update), train_steps(4, update)
  assert len(set(alone)) == 3
  assert_close(spread, alone, 'curve')


# ---- Models that read no histories -------------------------------------------


def make_pooling_task(features, name='dlrm', **options):
  section = getattr(config_lib, name)().to_dict() | options
  return ranking.Ranking(
    section.pop('name'),
    section,
    {},
    features=features,
    labels=('y',),
    init_std=0.5,
  )


@functools.cache
def drop_missing() -> Rows:
  """The rows whose lists have no missing values, each of its own length."""
  rows, bags = make_rows(), {}
  for name in ('films', 'places'):
    own = rows.bags[name]
    lists = np.split(own.values, np.cumsum(own.lengths)[:-1])
    lists = [x[x > 0] for x in lists]
    bags[name] = Bags(
      np.concatenate(lists), np.array([len(x) for x in lists], np.int32)
    )
  return dataclasses.replace(rows, bags=bags)


@pytest.mark.parametrize('name', ['dlrm', 'deepfm', 'lr'])
def test_other_models_pool_them_as_if_they_were_none(name):
  both = []
  rows = make_rows()
  of_history = dataclasses.replace(
    rows, bags={n: rows.bags[n] for n in ('films', 'places')}
  )
  assert (rows.bags['places'].values == 0).any()
  plain = tuple(dataclasses.replace(f, history='') for f in WITHOUT_NUMBERS)
  for features, batch in (
    (WITHOUT_NUMBERS, collate(of_history, columns=('films', 'places'))),
    (
      plain,
      collation.collate_rows(
        drop_missing(), ColumnNames(('y',), ('film',)), batch_size=SIZE
      ),
    ),
  ):
    task = make_pooling_task(features, name)
    params = task.init(jax.random.key(0))
    views = lookup.view_tables(draw_tables(task), task.reads(batch))
    logits = task.predict(params, views, batch)
    both.append((task.expected_reads(), task.tables(), np.asarray(logits)))
  assert both[0][:2] == both[1][:2]
  # What the examples of weight 0 read is of no meaning.
  np.testing.assert_array_equal(*(x[2][: len(rows)] for x in both))


def test_numbers_of_a_history_need_a_model_that_reads_them():
  with pytest.raises(
    ValueError,
    match="feature 'ages' is the numbers of history 'visits'.*model.name='dlrm'"
    '.*data.features without it.*choose a model that does: .*events',
  ):
    make_pooling_task(FEATURES)


def test_towers_stand_on_pooled_histories_alone():
  towers = (('film',), ('films', 'places'))
  with pytest.raises(ValueError, match='share'):  # film and films: one table
    ranking.Ranking(
      'dlrm', {}, {}, features=WITHOUT_NUMBERS, labels=('y',), towers=towers
    )
  towers = (('film', 'films'), ('places',))
  pooled = ranking.Ranking(
    'dlrm', {}, {}, features=WITHOUT_NUMBERS, labels=('y',), towers=towers
  )
  reads = pooled.reads(collate(columns=('films', 'places')))
  assert reads['films'].pooling == 'sum' and reads['places'].pooling == 'mean'
  with pytest.raises(ValueError, match="model.towers: feature 'films' is a co"):
    make_task(towers=towers)
