"""Any ranking model over requests, beside pools added up one by one."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import gr_requests
from genrec_jax.config.request_models import PooledRequests as Config
from genrec_jax.features import FeatureSpec
from genrec_jax.models import RANKERS, pooled_requests
from genrec_jax.models.pooled_requests import PooledRanker
from genrec_jax.models.request_models import POOLED

SPEC = gr_requests.SPEC
REQUESTS = [
  gr_requests.draw(6, 2, 0),
  None,
  gr_requests.draw(0, 3, 1),
  gr_requests.draw(3, 0, 2),
  gr_requests.draw(9, 1, 3),
]
ROOM = 22, 9
SIZES = {
  'dlrm': dict(dim=4, bottom=(5,), top=(6,)),
  'dcn': dict(dim=4, hidden=(6,)),
  'finalmlp': dict(dim=4, hidden1=(6,), hidden2=(6,), heads=2),
  'wukong': dict(dim=4, layers=1, fmb_hidden=(6,), bottom=(5,), top=(6,)),
  'dnn': dict(dim=4, hidden=(6,)),
  'deepfm': dict(dim=4, hidden=(6,)),
  'fm': dict(dim=4),
  'lr': {},
}


def build(name: str, config=Config(), spec=SPEC, **fields) -> PooledRanker:
  kind = RANKERS[name]
  sizes = kind.Config(**(SIZES[name] | fields))
  return PooledRanker(kind, sizes, config, spec, nnx.Rngs(0))


def read(model, spec=SPEC):
  """(tables, rows of all reads, batch)."""
  batch = gr_requests.pack(REQUESTS, spec, *ROOM)
  reads = model.list_reads()
  tables = jax.tree.map(jnp.asarray, gr_requests.draw_tables(reads))
  return tables, gr_requests.read_rows(tables, reads, batch), batch


def candidates():
  """(request, number of the candidate in it), in the order of a batch."""
  for request in filter(None, REQUESTS):
    for place in range(len(request.candidates['weight'])):
      yield request, place


def pool(table, request, column, chosen, pooling):
  """Sum or mean of the rows of the events that are chosen."""
  ids = [
    item
    for item, action, watched in zip(
      request.history[column],
      request.history['action'],
      request.history['watch_time'],
      strict=True,
    )
    if chosen(int(action), watched)
  ]
  total = sum((table[i] for i in ids), np.zeros(table.shape[1]))
  return total / max(len(ids), 1) if pooling == 'mean' else total


POOLS = {
  'click': lambda action, watched: action & 1,
  'like': lambda action, watched: action & 2 or watched >= 20,
  'share': lambda action, watched: action & 8,
  'watch_40_s': lambda action, watched: watched >= 40,
  'unmarked': lambda action, watched: not action & 11 and watched < 20,
}


@pytest.mark.parametrize('pooling', ['mean', 'sum'])
def test_a_candidate_is_told_what_its_request_says(pooling):
  config = Config(
    pooling=pooling,
    unmarked=True,
    counts=True,
    min_context_events=4,
    watch_times=((40, 16), (20, 2)),
  )
  model = build('dlrm', config)
  tables, rows, batch = read(model)
  inputs = model.make_inputs(rows, batch)
  tables = {name: np.asarray(x, np.float64) for name, x in tables.items()}
  names = [f.name for f in pooled_requests.make_features(config, SPEC)]
  assert names[:4] == [
    'candidates.item', 'candidates.category', 'context.user',
    'context.age_group',
  ]  # fmt: skip
  for n, (request, place) in enumerate(candidates()):
    expected = [
      tables[name][request.candidates[name][place]]
      for name in ('item', 'category')
    ]
    events = len(request.history['age']) + len(request.candidates['weight'])
    expected += [
      tables[name][request.context[name]] * (events >= 4)
      for name in ('user', 'age_group')
    ]
    for column in ('item', 'category'):
      expected += [
        pool(tables[column], request, column, chosen, pooling)
        for chosen in POOLS.values()
      ]
    found = np.stack([vector[n] for vector in inputs.vectors])
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)
    counts = [
      pool(np.ones((50, 1)), request, 'item', chosen, 'sum')[0]
      for chosen in POOLS.values()
    ]
    np.testing.assert_allclose(
      inputs.numbers[n], [math.log1p(count) for count in counts], rtol=1e-6
    )
    assert inputs.weights[n] == request.candidates['weight'][place]
  assert n == 5
  assert not inputs.weights[6:].any()


@pytest.mark.parametrize('first_order', ['feature', 'table'])
def test_first_order_weights_are_added_up(first_order):
  config = Config(unmarked=False, min_context_events=0)
  model = build('lr', config, first_order=first_order)
  tables, rows, batch = read(model)
  if first_order == 'table':
    assert set(tables) == {
      'item.linear', 'category.linear', 'user.linear', 'age_group.linear'
    }  # fmt: skip
  found = model.make_inputs(rows, batch).linear
  tables = {name: np.asarray(x, np.float64) for name, x in tables.items()}

  def weights(feature, source):
    by_feature = first_order == 'feature'
    return tables[(feature if by_feature else source) + '.linear']

  for n, (request, place) in enumerate(candidates()):
    total = 0.0
    for name in ('item', 'category'):
      one = request.candidates[name][place]
      total += weights(f'candidates.{name}', name)[one, 0]
      for action in ('click', 'like', 'share'):
        bit = dict(SPEC.actions)[action]
        total += pool(
          weights(f'history.{name}.{action}', name),
          request,
          name,
          lambda a, watched, bit=bit: a & bit,
          'sum' if first_order == 'feature' else 'mean',
        )[0]
    for name in ('user', 'age_group'):
      total += weights(f'context.{name}', name)[request.context[name], 0]
    np.testing.assert_allclose(found[n], total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', POOLED)
def test_every_ranking_model_scores_the_candidates(name):
  model = build(name)
  _, rows, batch = read(model)
  key = jax.random.key(0)
  scores = jax.eval_shape(model, rows, batch, key, True)
  assert set(scores) == {label.name for label in SPEC.labels}
  for y in scores.values():
    assert y.shape == (ROOM[1],) and y.dtype == jnp.float32


def test_candidates_of_a_request_do_not_see_each_other_or_the_company():
  model = build('dlrm', batch_norm=False)
  _, rows, batch = read(model)
  whole = model(rows, batch)['click']
  alone = gr_requests.pack([REQUESTS[4], None, None, None, None], SPEC, *ROOM)
  reads = model.list_reads()
  tables = jax.tree.map(jnp.asarray, gr_requests.draw_tables(reads))
  score = model(gr_requests.read_rows(tables, reads, alone), alone)['click']
  np.testing.assert_array_equal(score[0], whole[5])
  assert len(set(np.asarray(whole[:6]).tolist())) == 6


def test_candidates_are_told_what_they_alone_have():
  own = FeatureSpec('place', rows=6), FeatureSpec('near', rows=40, table='item')
  spec = dataclasses.replace(SPEC, candidates=own)
  names = [f.name for f in pooled_requests.make_features(Config(), spec)]
  assert names[:5] == [
    'candidates.item', 'candidates.category', 'candidates.place',
    'candidates.near', 'context.user',
  ]  # fmt: skip
  assert not [n for n in names if n.startswith('history') and 'place' in n]
  model = build('dlrm', spec=spec)
  requests = [gr_requests.draw(3, 4, 5, spec)]
  batch = gr_requests.pack(requests, spec, *ROOM)
  reads = model.list_reads()
  tables = gr_requests.draw_tables(reads)
  rows = gr_requests.read_rows(jax.tree.map(jnp.asarray, tables), reads, batch)
  vectors = model.make_inputs(rows, batch).vectors
  asked = requests[0].candidates
  np.testing.assert_array_equal(vectors[2][:4], tables['place'][asked['place']])
  np.testing.assert_array_equal(vectors[3][:4], tables['item'][asked['near']])
  assert np.isfinite(model(rows, batch)['click'][:4]).all()


@pytest.mark.parametrize('pooling', ['mean', 'sum'])
@pytest.mark.parametrize('first_order', ['feature', 'table'])
def test_slots_of_the_context_are_pooled(pooling, first_order):
  tags = FeatureSpec(
    'tag', 'multi_hot', rows=3, table='label', pooling=pooling, max_len=3
  )
  context = (SPEC.context[0], tags, SPEC.context[1])
  spec = dataclasses.replace(SPEC, context=context)
  config = Config(min_context_events=4)
  model = build('deepfm', config, spec, first_order=first_order)
  plain = build('deepfm', config, first_order=first_order)
  requests, used = [], []
  slots = (1, 2, 1), (0, 0, 0), (2, 0, 1), (2, 1, 2), (0, 1, 0)
  for n, ids in enumerate(slots):
    request = gr_requests.draw(3 + n, 1, n, spec)
    for i, one in enumerate(ids):
      request.context[f'tag.{i}'] = one
    requests.append(request)
  batch = gr_requests.pack(requests, spec, 30, 9)
  reads = model.list_reads()
  tables = gr_requests.draw_tables(reads)
  rows = gr_requests.read_rows(jax.tree.map(jnp.asarray, tables), reads, batch)
  inputs = model.make_inputs(rows, batch)
  few = gr_requests.pack(requests, SPEC, 30, 9)
  known = {name: rows[name] for name in plain.list_reads()}
  others = plain.make_inputs(known, few)
  for n, request in enumerate(requests):
    ids = [request.context[f'tag.{i}'] for i in range(3)]
    ids = [i for i in ids if i] if len(request.history['age']) >= 4 else []
    used.append(len(ids))

    def add_up(table, how, ids=ids):
      total = sum((table[i] for i in ids), np.zeros(table.shape[1]))
      return total / max(len(ids), 1) if how == 'mean' else total

    np.testing.assert_allclose(
      inputs.vectors[3][n], add_up(tables['label'], pooling), rtol=1e-5
    )
    of_feature = first_order == 'feature'
    table = tables['context.tag.linear' if of_feature else 'label.linear']
    weight = add_up(table, 'sum' if of_feature else pooling)[0]
    np.testing.assert_allclose(
      inputs.linear[n], others.linear[n] + weight, rtol=1e-4, atol=1e-5
    )
  assert used == [0, 0, 2, 3, 1]


def test_histories_without_actions_are_one_pool():
  spec = dataclasses.replace(SPEC, actions=())
  assert pooled_requests.list_pools(Config(), spec) == {'all': 0}
  model = build('dlrm', spec=spec)
  tables, rows, batch = read(model, spec)
  vector = model.make_inputs(rows, batch).vectors[4]
  ids = REQUESTS[0].history['item']
  expected = np.asarray(tables['item'])[ids].mean(axis=0)
  np.testing.assert_allclose(vector[0], expected, rtol=1e-5)


def test_pools_of_two_widths_are_refused():
  with pytest.raises(ValueError, match="table 'item' .* must have one width"):
    build('wukong', important={'history.item.click': 2})
