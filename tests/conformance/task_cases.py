"""Every implementer of `contracts.Task`; another one is one more line.

A case packs the same ten examples for any number of shards, with padding
behind them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data import histories, pipeline, splits
from genrec_jax.data.ranking import batches as ranking_batches
from genrec_jax.data.ranking import collation
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from genrec_jax.data.requests import batches as request_batches
from genrec_jax.data.requests.streaming import generate_requests
from genrec_jax.features import ExpectedRead, FeatureSpec, Read, TableSpec
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.tasks.request_ranking import RequestRanking
from genrec_jax.tasks.retrieval import Retrieval
from tests.evaluators import ranking_cases
from tests.runtime import toy_task
from tests.tasks import ranking_test

EXAMPLES, PADDED = 10, 16  # real examples, places of a batch
ITEMS, MAX_LEN, WIDTH = 19, 8, 4

# ---- A task of the tests: every kind of read, every kind of measurement -----


class EveryRead:
  """Predicts a number; reads rows, bags with weights, and a dense table."""

  measurements = {'loss': 'mean', 'errors': 'sum', 'worst': 'max'}
  progress_unit = 'examples'

  def __init__(self, update='row_sgd'):
    self._update = update

  def tables(self):
    return {
      'one': TableSpec('one', ITEMS, WIDTH, 0.5, self._update),
      'bag': TableSpec('bag', ITEMS, WIDTH, 0.5, self._update),
      'small': TableSpec('small', ITEMS, WIDTH, 0.5),
    }

  def init(self, key):
    return {'w': jax.random.normal(key, (WIDTH,))}

  def reads(self, batch, key):
    del key
    return self.reads_for('predict', batch)

  def reads_for(self, purpose, batch):
    del purpose
    bag, lengths = batch['bag'], batch['lengths']
    return {
      'one': Read(batch['one'], 'one'),
      'sum': Read(bag, 'bag', lengths, batch['factors'], 'sum'),
      'mean': Read(bag, 'bag', lengths, pooling='mean'),
      'small': Read(batch['one'], 'small'),
    }

  def expected_reads(self):
    return {
      'one': ExpectedRead('one', 1.0),
      'sum': ExpectedRead('bag', 1.5, 'sum'),
      'mean': ExpectedRead('bag', 1.5, 'mean'),
      'small': ExpectedRead('small', 1.0),
    }

  def predict(self, params, rows, batch):
    del batch
    x = sum(rows[name].all() for name in ('one', 'sum', 'mean', 'small'))
    return jnp.tanh(x) @ params['w']

  def loss(self, params, rows, batch, key):
    # Noise of the step, so that a key that is not handed on is noticed.
    noise = 1.0 + 0.1 * jax.random.normal(key, ())
    score = self.predict(params, rows, batch) * noise
    error, real = jnp.abs(score - batch['y']), batch['weight'] > 0
    count = jnp.sum(batch['weight'])
    return {
      'loss': (jnp.sum(jnp.where(real, jnp.square(error), 0.0)), count),
      'errors': (jnp.sum(real & (error > 1.0)), count),
      'worst': (jnp.max(jnp.where(real, error, 0.0)), count),
    }

  def count(self, batch):
    examples = jnp.sum(batch['weight'] > 0)
    return examples, examples


def pack_numbers(size: int, parts: int, seed: int = 0) -> dict:
  """A batch of `EveryRead`; an example has at most three ids in its bag."""
  rng = np.random.default_rng(seed)
  lengths = np.pad(rng.integers(0, 4, EXAMPLES), (0, size - EXAMPLES))
  drawn = rng.integers(0, ITEMS, (EXAMPLES, 3)).astype(np.int32)
  factors = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)

  def fill(values):
    return np.pad(values, [(0, size - EXAMPLES)])

  def pack(values):
    packed = np.zeros((parts, size // parts * 3), values.dtype)
    for part, rows in enumerate(np.split(np.arange(size), parts)):
      own = [values[i, : lengths[i]] for i in rows if i < EXAMPLES]
      own = np.concatenate([values[:0, 0], *own])
      packed[part, : len(own)] = own
    return packed.reshape(-1)

  return {
    'one': fill(rng.integers(0, ITEMS, EXAMPLES).astype(np.int32)),
    'bag': pack(drawn),
    'factors': pack(factors),
    'lengths': lengths.astype(np.int32),
    'y': fill(rng.normal(size=EXAMPLES).astype(np.float32)),
    'weight': fill(np.ones(EXAMPLES, np.float32)),
  }


# ---- The tasks of the library ------------------------------------------------


def retrieve(table_update='dense', **loss) -> Retrieval:
  """A small retrieval task; other fields are those of the loss."""
  model = config_lib.sasrec(
    dim=WIDTH, ffn_dim=WIDTH, blocks=1, max_len=MAX_LEN
  ).to_dict()
  fields = config_lib.retrieval().loss.to_dict() | {'negatives': 5, **loss}
  return Retrieval(
    model.pop('name'),
    model,
    fields,
    corpus=np.arange(1, ITEMS),
    rows=ITEMS,
    item_counts=np.arange(ITEMS),
    table_update=table_update,
    init_std=0.5,
  )


@functools.cache
def make_histories(seed: int = 0):
  """Ten users with two to nine events each."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(2, MAX_LEN + 2, EXAMPLES)
  user = np.repeat(np.arange(EXAMPLES), lengths)
  item = rng.integers(1, ITEMS, len(user))
  item[: ITEMS - 1] = np.arange(1, ITEMS)  # every item, so that all have a row
  return histories.from_arrays(user, item, np.arange(len(user)))


def pack_histories(size: int, parts: int, seed: int = 0):
  log = make_histories(seed)
  examples = splits.keep_whole(log)
  return pipeline.collate_examples(
    log,
    examples,
    np.arange(EXAMPLES),
    max_len=MAX_LEN,
    batch_size=size,
    capacity=96 if parts == 1 else 32,
    shards=parts,
  )


RANKED = (
  *ranking_cases.FEATURES[:3],
  FeatureSpec(
    'tags',
    kind='multi_hot',
    rows=ranking_cases.ROWS,
    pooling='mean',
    table='item',
    max_len=4,
  ),
  ranking_cases.FEATURES[4],
)


def rank(model: str, **options):
  return ranking_test.task_of(
    model, features=RANKED, labels=('label',), **options
  )


def pack_impressions(size: int, parts: int, seed: int = 0):
  part = ranking_cases.part_of(
    ranking_cases.examples(count=EXAMPLES, seed=seed)
  )
  return next(
    iter(
      ranking_batches.train_batches(
        part, batch_size=size, seed=0, shuffle=False, shards=parts, prefetch=0
      )
    )
  )


MOST_VISITS = 4
VISITED = (
  FeatureSpec('item', rows=ITEMS),
  FeatureSpec('items', 'sequence', ITEMS, 'item', history='visits'),
  FeatureSpec('places', 'sequence', 7, pooling='mean', history='visits'),
)


def pack_visits(size: int, parts: int, seed: int = 0):
  """Ten examples with histories; items and places of 0 are missing."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, MOST_VISITS + 1, EXAMPLES).astype(np.int32)
  total = lengths.sum()
  made = Rows(
    rng.integers(0, 2, (EXAMPLES, 1)).astype(np.uint8),
    rng.integers(0, ITEMS, (EXAMPLES, 1)).astype(np.int32),
    np.zeros((EXAMPLES, 0), np.float32),
    None,
    {
      'items': Bags(rng.integers(0, ITEMS, total).astype(np.int32), lengths),
      'places': Bags(rng.integers(0, 7, total).astype(np.int32), lengths),
    },
  )
  return collation.collate_rows(
    made,
    ColumnNames(('label',), ('item',), (), (('visits', ('items', 'places')),)),
    batch_size=size,
    shards=parts,
  )


REQUESTED = StreamOptions(
  users=EXAMPLES, items=ITEMS, categories=3, categories_per_user=2, steps=2,
  train_steps=1, activity=1.0, events=6.0, deviation=1.0, train_candidates=3,
  inference_candidates=3, inference_events=6, true_time=True,
)  # fmt: skip


@functools.cache
def make_requests(seed: int = 0):
  """Ten users; each asks for three candidates in a training step."""
  return generate_requests(dataclasses.replace(REQUESTED, seed=seed))


def rank_requests(section, update: str) -> RequestRanking:
  """A small task of requests; `section` is that of its model."""
  fields = section.to_dict()
  return RequestRanking(
    fields.pop('name'),
    fields,
    {},
    spec=make_requests().spec,
    max_history=MAX_LEN,
    max_candidates=REQUESTED.train_candidates,
    table_update=update,
    init_std=0.5,
  )


def pack_requests(size: int, parts: int, seed: int = 0):
  data = make_requests(seed)
  return request_batches.collate_requests(
    data,
    data.splits['train'],
    np.arange(EXAMPLES),
    batch_size=size,
    max_history=MAX_LEN,
    max_candidates=REQUESTED.train_candidates,
    chunks=np.zeros(EXAMPLES, np.int64),
    capacity=(96, 48) if parts == 1 else (40, 16),
    shards=parts,
  )


def pack_ids(size: int, parts: int, seed: int = 0):
  """A batch of `toy_task.Toy`, which knows no padding."""
  del parts
  return toy_task.batch(seed, size=size)


# ---- All of them ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
  """A task and its batches.

  Attributes:
    make: the task; called with the `update` of its tables.
    pack: (places, parts) -> a batch in so many parts, as NumPy arrays.
    pads: whether there may be more places than examples.
    adds_up: whether microbatches measure what the batch does; batch norms see
      a microbatch, and another one whatever stands in it.
    needs_whole: whether it reads a whole table, which only optax may update.
  """

  make: Callable[[str], Any]
  pack: Callable[[int, int], Any]
  pads: bool = True
  adds_up: bool = True
  needs_whole: bool = False


def of_histories(**loss) -> Case:
  return Case(
    lambda update: retrieve(update, **loss),
    pack_histories,
    needs_whole=loss.get('name') == 'full_softmax',
  )


def of_impressions(model: str, **fields) -> Case:
  return Case(
    lambda update: rank(model, table_update=update), pack_impressions, **fields
  )


def of_visits(model: str, **fields) -> Case:
  def make(update: str):
    return ranking_test.task_of(
      model, features=VISITED, labels=('label',), table_update=update
    )

  return Case(make, pack_visits, **fields)


def compare_events(update: str):
  """TBSM, which reads the items of the same visits one by one."""
  features = [
    dataclasses.replace(f, max_len=MOST_VISITS) if f.history else f
    for f in VISITED
  ]
  section = config_lib.tbsm(
    dim=4, width=3, top=(4,), attention_hidden=(4,), hidden=(4,),
    leave_out=('places',),
  ).to_dict()  # fmt: skip
  return Ranking(
    section.pop('name'), section, {}, features=features, labels=('label',),
    table_update=update, init_std=0.5,
  )  # fmt: skip


def of_requests(section) -> Case:
  return Case(lambda update: rank_requests(section, update), pack_requests)


CASES = {
  'retrieval, uniform': of_histories(sampler='uniform'),
  'retrieval, shared': of_histories(sampler='shared'),
  'retrieval, in_batch': of_histories(sampler='in_batch'),
  'retrieval, in_batch_unique': of_histories(sampler='in_batch_unique'),
  'retrieval, full softmax': of_histories(name='full_softmax'),
  'ranking, lr': of_impressions('lr'),
  'ranking, deepfm': of_impressions('deepfm', adds_up=False),
  'ranking, dlrm': of_impressions('dlrm', adds_up=False),
  'ranking, wukong': of_impressions('wukong'),
  'ranking, dnn that pools a history': of_visits('dnn', adds_up=False),
  'ranking, tbsm': Case(compare_events, pack_visits),
  'requests, stu': of_requests(
    config_lib.stu(
      dim=WIDTH,
      heads=1,
      dqk=4,
      dv=4,
      token_hidden=4,
      head_hidden=4,
      layout='interleaved',
      postprocessor='timestamp',
      min_context_events=0,
    )  # fmt: skip
  ),
  'requests, dnn': of_requests(
    config_lib.pool_history(
      config_lib.dnn(dim=WIDTH, hidden=(4,), batch_norm=False),
      unmarked=True,
      min_context_events=0,
    )
  ),
  'toy': Case(toy_task.Toy, pack_ids, pads=False),
  'every read': Case(EveryRead, pack_numbers),
}


@functools.cache
def task_of(name: str, update: str = 'row_sgd'):
  case = CASES[name]
  return case.make('dense' if case.needs_whole else update)


def batch_of(name: str, parts: int = 1, size: int = PADDED, seed: int = 0):
  return CASES[name].pack(size, parts, seed)
