"""What a step trains does not depend on how much padding its batch has."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.features import EVENTS, PAD, Examples
from genrec_jax.runtime.build import build_runtime
from genrec_jax.tasks.retrieval import Retrieval
from tests import sequences
from tests.tolerances import assert_close

ITEMS, WIDTH, SHARDS, STEPS = 60, 4, 4, 3
SAMPLERS = ('uniform', 'shared', 'in_batch', 'in_batch_unique')
LOSSES = ('sampled_softmax', 'bce', 'gbce')

pytestmark = pytest.mark.usefixtures('optax_promotes')


class Factors(Retrieval):
  """A query is the row of the last item, times a learned factor each."""

  def init(self, key):
    return {'w': jax.random.normal(key, (WIDTH,))}

  def encode(self, params, rows, batch, key=None):
    return rows['history'].all() * params['w'][None]


@functools.cache
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


def make_batch(capacity: int, shards: int, empty: bool) -> Examples:
  """A few tokens and much padding; some tokens, or all, have no target."""
  drawn = sequences.draw((3, 2, 1, 3, 0, 0, 2, 1), ITEMS, seed=3)
  drawn = [e._replace(next_item=e.next_item.copy()) for e in drawn]
  drawn[3].next_item[-1:] = PAD
  for events in drawn if empty else drawn[6:]:  # of the last shard, all
    events.next_item[:] = PAD
  each = len(drawn) // shards
  parts = [
    sequences.pack(drawn[i : i + each], capacity * SHARDS // shards)
    for i in range(0, len(drawn), each)
  ]
  whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  tokens = np.cumsum([0, *(int(p.jagged[EVENTS].lengths.sum()) for p in parts)])
  events = dataclasses.replace(
    whole.jagged[EVENTS], first=tokens[:-1].astype(np.int32)
  )
  return dataclasses.replace(whole, jagged={EVENTS: events})


@functools.cache
def train(task, capacity, devices=1, empty=False, decay=None):
  """(the state behind some steps, in NumPy; the loss of each)."""
  config = config_lib.retrieval()
  config.parallel.update(devices=devices, scheme='row_wise')
  config.optimizer.rows.update(weight_decay=0.1 * bool(decay), decay=decay)
  config.checkpoint.policy = 'consecutive'  # which marks the dirty rows
  runtime = build_runtime(config, task, optax.sgd(0.1))
  batch = make_batch(capacity, devices, empty)
  step, state, losses = runtime.step(), runtime.fresh_state(), []
  for _ in range(STEPS):
    state, value = step(state, runtime.put_on_devices(batch))
    losses.append(float(value))
  return jax.device_get(state), losses


def assert_padding_changes_nothing(task, **options):
  """The same tokens in 8 and in 32 places of a shard."""
  tight, losses = train(task, 8, **options)
  wide, other_losses = train(task, 32, **options)
  assert_close(other_losses, losses)
  # One product with all queries adds up their terms as their number suggests.
  shared = task.loss_config.sampler in ('shared', 'in_batch')
  same = assert_close if shared else np.testing.assert_array_equal
  for part in ('tables', 'row_opt_state'):
    jax.tree.map(same, getattr(wide, part), getattr(tight, part))
  jax.tree.map(np.testing.assert_array_equal, wide.dirty_rows, tight.dirty_rows)
  jax.tree.map(assert_close, wide.params, tight.params)
  return tight


@pytest.mark.parametrize(
  'update, decay',
  [
    *((name, 'l2') for name in sorted(ROW_OPTIMIZERS)),
    ('momentum', None),
    ('sgd', 'decoupled'),
    ('adam', 'decoupled'),
  ],
)
def test_every_row_optimizer(update, decay):
  task = make_task(update, 'uniform')
  assert_padding_changes_nothing(task, decay=decay)


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('sampler', SAMPLERS)
def test_every_sampler_and_loss(sampler, loss):
  task = make_task('adam', sampler, loss)
  state = assert_padding_changes_nothing(task, decay='l2')
  dirty = np.flatnonzero(state.dirty_rows['items'])
  assert dirty.tolist() == sorted(rows_needed(task))


@pytest.mark.parametrize('sampler', SAMPLERS)
def test_every_sampler_in_shards(sampler):
  task = make_task('adam', sampler)
  state = assert_padding_changes_nothing(task, devices=SHARDS, decay='l2')
  dirty = sum(int(np.sum(x > 0)) for x in state.dirty_rows.values())
  assert dirty == len(rows_needed(task))


@pytest.mark.parametrize(
  'sampler, devices', [*((s, 1) for s in SAMPLERS), ('shared', SHARDS)]
)
def test_without_any_target_only_histories_are_read(sampler, devices):
  task = make_task('adam', sampler)
  state = assert_padding_changes_nothing(
    task, devices=devices, empty=True, decay='l2'
  )
  events = make_batch(8, 1, empty=True).jagged[EVENTS]
  dirty = sum(int(np.sum(x > 0)) for x in state.dirty_rows.values())
  assert dirty == len(set(events['item'].tolist()) - {PAD})


def rows_needed(task) -> set[int]:
  """What the losses of all steps need, token by token."""
  batch = make_batch(8, 1, empty=False)
  events = batch.jagged[EVENTS]
  needed = {*events['item'].tolist(), *events['next_item'].tolist()}
  for step in range(STEPS):
    key = jax.random.fold_in(jax.random.key(0), step)
    ids = np.asarray(jax.jit(task.reads)(batch, key)['negatives'].ids)
    ids = ids[events['next_item'] != PAD] if ids.ndim == 2 else ids
    needed |= set(ids.ravel().tolist())
  return needed - {PAD}
