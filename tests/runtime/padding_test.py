"""What a step trains does not depend on how much padding its batch has."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.features import EVENTS, Examples, Jagged, TableSpec
from genrec_jax.runtime.build import build_runtime
from genrec_jax.tasks.retrieval import Retrieval
from tests import sequences
from tests.tolerances import assert_close

ITEMS, WIDTH, SHARDS, STEPS = 60, 4, 4, 3
SAMPLERS = ('uniform', 'shared', 'in_batch', 'in_batch_unique')
LOSSES = ('sampled_softmax', 'bce', 'gbce')
TIGHT, WIDE = 8, 32  # tokens of a shard

pytestmark = pytest.mark.usefixtures('optax_promotes')


class Factors(Retrieval):
  """A query is the row of the last item, times a learned factor each."""

  def init(self, key):
    return {'w': jax.random.normal(key, (WIDTH,))}

  def encode(self, params, rows, batch, key=None):
    return rows['history'].all() * params['w']


def make_config(devices=1, **rows):
  config = config_lib.retrieval()
  config.parallel.update(devices=devices, scheme='row_wise')
  config.optimizer.rows.update(rows)
  # Dirty rows are marked for deltas alone.
  config.checkpoint.policy = 'consecutive'
  return config


def make_task(update, sampler, loss='sampled_softmax') -> Factors:
  fields = config_lib.retrieval().loss.to_dict()
  fields |= {'name': loss, 'sampler': sampler, 'negatives': 3}
  model = config_lib.sasrec(dim=WIDTH, ffn_dim=WIDTH, blocks=1, max_len=8)
  model = model.to_dict()
  model.pop('name')
  return Factors(
    'sasrec',
    model,
    fields,
    corpus=np.arange(1, ITEMS + 1),
    rows=ITEMS + 1,
    table_update=update,
    init_std=0.5,
  )


def make_batch(capacity: int, shards=SHARDS, empty=False) -> Examples:
  """A few tokens and much padding; one token has no target, one shard none."""
  drawn = sequences.draw((3, 2, 1, 3, 0, 0, 2, 1), ITEMS, seed=3)
  drawn[3].next_item[-1:] = 0
  for one in drawn if empty else drawn[6:]:
    one.next_item[:] = 0
  each = len(drawn) // shards
  parts = [
    sequences.pack(drawn[i : i + each], capacity * SHARDS // shards)
    for i in range(0, len(drawn), each)
  ]
  whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  tokens = np.cumsum([0, *[int(p.jagged[EVENTS].lengths.sum()) for p in parts]])
  events = dataclasses.replace(
    whole.jagged[EVENTS], first=tokens[:-1].astype(np.int32)
  )
  return dataclasses.replace(whole, jagged={EVENTS: events})


@functools.cache
def train(update, sampler, loss, capacity, devices=1, empty=False, **rows):
  """(the state behind some steps, in NumPy, the loss of each)."""
  task = make_task(update, sampler, loss)
  run = build_runtime(make_config(devices, **rows), task, optax.sgd(0.1))
  batch = make_batch(capacity, shards=devices, empty=empty)
  step, state, losses = run.step(), run.fresh_state(), []
  for _ in range(STEPS):
    state, value = step(state, run.put_on_devices(batch))
    losses.append(float(value))
  return jax.device_get(state), losses


def assert_same(found, wanted, exact=True):
  for (found, one), (wanted, other) in [(found, wanted)]:
    assert_close(one, other)
    for name, marks in wanted.dirty_rows.items():
      np.testing.assert_array_equal(found.dirty_rows[name], marks)
      np.testing.assert_array_equal(found.tables[name], wanted.tables[name])
    jax.tree.map(
      np.testing.assert_array_equal, found.row_opt_state, wanted.row_opt_state
    )
    jax.tree.map(assert_close, found.params, wanted.params)


def read_rows(sampler, empty=False) -> set:
  """The rows that the loss needs, of all steps, by what the task announces."""
  task, batch = make_task('adam', sampler), make_batch(TIGHT, 1, empty)
  events = batch.jagged[EVENTS]
  real = np.arange(len(events['item'])) < events.lengths.sum()
  needed = set(events['item'][real].tolist())
  needed |= set(events['next_item'].tolist()) - {0}
  for step in range(STEPS):
    key = jax.random.fold_in(jax.random.key(0), step)
    ids = np.asarray(task.reads(batch, key)['negatives'].ids)
    if ids.ndim == 2:
      ids = ids[events['next_item'] > 0]
    if not empty:
      needed |= set(ids.ravel().tolist())
  return needed


DECAYS = {
  'none': {},
  'l2': dict(weight_decay=0.1, decay='l2'),
  'decoupled': dict(weight_decay=0.1, decay='decoupled'),
}


@pytest.mark.parametrize('decay', ['l2', 'decoupled'])
@pytest.mark.parametrize('update', sorted(ROW_OPTIMIZERS))
def test_every_row_optimizer(update, decay):
  case = update, 'uniform', 'sampled_softmax'
  tight = train(*case, TIGHT, **DECAYS[decay])
  assert_same(train(*case, WIDE, **DECAYS[decay]), tight)
