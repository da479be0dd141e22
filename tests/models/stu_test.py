"""STU beside an oracle that scores one request at a time, token by token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import gr_models, gr_requests
from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import CANDIDATES, HISTORY, FeatureSpec
from genrec_jax.models.stu import STU
from genrec_jax.numerics import products
from tests.models.products_test import traced, weight_products
from tests.tolerances import TOLERANCE, assert_close

SPEC = gr_requests.SPEC
# Candidates have what events do not, once of a table of events.
ENRICHED = dataclasses.replace(
  SPEC,
  candidates=(
    FeatureSpec('place', rows=6),
    FeatureSpec('shown_before', rows=40, table='item'),
  ),
  # Two slots, of which some are not used.
  context=(*SPEC.context, FeatureSpec('tag', 'multi_hot', 2, max_len=2)),
)
NO_CONTEXT = dataclasses.replace(
  SPEC, items=SPEC.items[:1], context=(), candidates=ENRICHED.candidates[:1]
)
SIZES = dict(
  dim=8,
  heads=2,
  dqk=4,
  dv=3,
  token_hidden=6,
  head_hidden=5,
  table_dim=4,
  action_dim=3,
  max_history=14,
  max_candidates=5,
  # The first request has just as many.
  min_context_events=5,
  time_buckets=12,
)
# Each case turns several options, so that few programs are compiled.
CASES = {
  'summed': (
    SPEC,
    dict(window=4, prefix=3, watch_times=((30, 2), (50, 64))),
  ),
  'interleaved': (
    SPEC,
    dict(layout='interleaved', truncated_layers=1, truncated_to=5),
  ),
  'no_actions': (
    NO_CONTEXT,
    dict(
      layout='no_actions',
      postprocessor='l2norm',
      position_bias=True,
      time_bias=True,
      time_bucket_fn='log',
      counted_from='start',
    ),
  ),
  'published': (
    SPEC,
    dict(
      context_mask='causal',
      window=6,
      prefix=2,
      postprocessor='timestamp',
      group_norm=True,
      positions=9,
      counted_from='start',
      table_dim=0,
      alpha=0.7,
      normaliser=11.0,
      remat=True,
    ),
  ),
  'context_mlps': (
    ENRICHED,
    dict(
      layout='interleaved',
      context_mlps=True,
      gate='sigmoid',
      window=3,
      full_tail=2,
      token_scale=1.5,
      joint_content=True,
      head_inputs='all',
      counted_from='start',
    ),
  ),
  'listwise': (
    ENRICHED,
    dict(
      listwise=True,
      gate='silu',
      truncated_layers=2,
      truncated_to=4,
      position_bias=True,
    ),
  ),
}
EVENTS, CANDIDATE_COUNTS = (5, 0, 14, 1), (2, 3, 5, 1)
ALL = sum(CANDIDATE_COUNTS)
ROOM = 24, 14
# What is laid out otherwise in training.
TRAINED = ('interleaved', 'context_mlps')
# Quick to compile rather than to run.
QUICK = {'xla_backend_optimization_level': 0}


@functools.cache
def build(name: str, train: bool = False, **changed) -> gr_models.Model:
  spec, options = CASES[name]
  config = Config(**(SIZES | options | changed))
  return gr_models.build(config, spec, train, QUICK)


def draw(spec=SPEC):
  return [
    gr_requests.draw(*sizes, seed, spec)  # seeds that use both slots of `tag`
    for seed, sizes in enumerate(zip(EVENTS, CANDIDATE_COUNTS, strict=True), 43)
  ]


def run(model, requests, key=None):
  batch = model.pack(requests, *ROOM)
  return model.run(model.params, model.read(batch), batch, key)


def score(model, requests):
  """What `run` begins with, of models whose gradients nobody asks for."""
  batch = model.pack(requests, *ROOM)
  return model.score(model.params, model.read(batch), batch)


def join(scores):
  return np.stack([np.asarray(scores[n]) for n in sorted(scores)], axis=1)


@pytest.fixture(params=CASES)
def name(request):
  return request.param


@pytest.fixture
def model(name):
  return build(name)


@pytest.mark.parametrize('train', [False, True])
def test_scores_and_gradients_are_those_of_the_oracle(name, train):
  if train and name not in TRAINED:
    pytest.skip('is laid out in one way')
  model = build(name, train)
  requests = draw(model.spec)
  scores, loss, grads = run(model, requests)
  oracle = model.oracle()
  expected = [join(oracle.score(r, train)) for r in requests]
  assert_close(join(scores)[:ALL], np.concatenate(expected))
  assert_close(loss, oracle.loss(requests, train))
  tables = model.add_up_rows(grads[1], model.pack(requests, *ROOM))
  apart = gr_models.compare_gradients(model, requests, grads[0], tables, train)
  assert not {n: error for n, error in apart.items() if not error < 1e-5}
  without = {
    n for n, g in gr_models.name_leaves(grads[0]).items() if not g.any()
  }
  # Nothing sees the action of an interleaved candidate.
  unseen = {'tokens/actions/unknown'} & set(apart)
  assert without == (unseen if name in TRAINED else set())


def test_swapped_candidates_have_swapped_scores_and_gradients(name, model):
  if model.config.listwise:
    pytest.skip('candidates see each other')
  requests = draw(model.spec)
  swapped = [*requests[:2], requests[2].reorder([3, 1, 2, 0, 4]), requests[3]]
  order = np.arange(ALL)
  order[[5, 8]] = [8, 5]
  one, _, (_, grads) = run(model, requests)
  other, _, (_, swapped_grads) = run(model, swapped)
  np.testing.assert_array_equal(join(other)[:ALL], join(one)[:ALL][order])
  for read, grad in grads.items():
    if read.startswith(CANDIDATES):
      np.testing.assert_array_equal(
        swapped_grads[read][:ALL], grad[:ALL][order]
      )
    else:
      assert_close(swapped_grads[read], grad)


def test_a_request_does_not_see_the_company(name, model):
  requests = draw(model.spec)
  alone = run(model, [None, None, requests[2], None])[0]
  among = run(model, requests)[0]
  np.testing.assert_array_equal(join(alone)[:5], join(among)[5:10])
  last = run(model, [requests[2], None, requests[0], requests[3]])[0]
  np.testing.assert_array_equal(join(last)[:5], join(among)[5:10])


@pytest.mark.parametrize('name', TRAINED)
def test_the_layout_of_the_training_changes_no_score(name):
  requests = draw(CASES[name][0])
  trained, inferred = (run(build(name, t), requests)[0] for t in (True, False))
  assert_close(join(trained)[:ALL], join(inferred)[:ALL])


def test_tokens_of_candidates_actions_are_not_needed():
  requests = draw()
  scores, _, grads = run(build('interleaved', True), requests)
  lean = build('interleaved', True, candidate_actions=False)
  lean_scores, _, lean_grads = run(lean, requests)
  assert_close(join(lean_scores)[:ALL], join(scores)[:ALL])
  jax.tree.map(assert_close, lean_grads, grads)


def test_more_padding_and_jit_change_nothing():
  model, requests = build('interleaved'), draw()
  expected = join(run(model, requests)[0])[:ALL]
  batch = model.pack([*requests, None], 40, 17)
  scores = model.make(model.params)(model.read(batch), batch)
  assert_close(join(scores)[:ALL], expected)


def test_arithmetic_in_bfloat16_gives_float32_scores(name, model):
  requests = draw(model.spec)
  batch = model.pack(requests, *ROOM)
  narrow = gr_models.build(
    dataclasses.replace(model.config, dtype='bfloat16'), model.spec, True, QUICK
  )
  arguments = model.params, model.read(batch), batch
  scores = jax.eval_shape(narrow.score, *arguments, jax.random.key(0))
  assert {y.dtype for y in scores.values()} == {jnp.dtype('float32')}
  if name == 'summed':
    expected = join(model.run(*arguments)[0])[:ALL]
    error = join(narrow.score(*arguments))[:ALL] - expected
    # Of all scores together: each is behind some twenty roundings, the sum of
    # which is now and then three times its usual size.
    size = np.linalg.norm(error) / np.linalg.norm(expected)
    assert size < TOLERANCE['bfloat16']


def test_a_request_without_weight_is_scored_all_the_same():
  model, requests = build('summed'), draw()
  batch = model.pack(requests, *ROOM)
  light = dataclasses.replace(batch, weights=batch.weights.at[2].set(0.0))
  rows = model.read(batch)
  one, other = (model.run(model.params, rows, b)[0] for b in (batch, light))
  np.testing.assert_array_equal(join(one), join(other))


def test_what_is_too_long_is_nan_and_not_cut():
  model, requests = build('summed'), draw()
  expected = join(run(model, requests)[0])
  long = [gr_requests.draw(15, 2, 7), *requests[1:]]
  scores = join(run(model, [*long[:2], None, long[3]])[0])
  assert np.all(np.isnan(scores[:2]))
  np.testing.assert_array_equal(scores[2:5], expected[2:5])
  many = [gr_requests.draw(3, 6, 7), None, None, requests[3]]
  scores = join(run(model, many)[0])
  assert np.all(np.isnan(scores[:6])) and not np.isnan(scores[6:7]).any()


def test_dropout_does_not_depend_on_the_shards():
  model, requests = build('interleaved', True), draw()
  key = jax.random.key(3)

  def shard(part, first):
    batch = gr_requests.pack([*part, None, None], SPEC, *ROOM)
    one, history, candidates = (jnp.array([n], jnp.int32) for n in first)
    jagged = {
      HISTORY: dataclasses.replace(batch.jagged[HISTORY], first=history),
      CANDIDATES: dataclasses.replace(
        batch.jagged[CANDIDATES], first=candidates
      ),
    }
    batch = dataclasses.replace(batch, first=one, jagged=jagged)
    return join(model.score(model.params, model.read(batch), batch, key))

  batch = model.pack(requests, *ROOM)
  rows = model.read(batch)
  whole = join(model.score(model.params, rows, batch, key))
  assert_close(shard(requests[:2], (0, 0, 0))[:5], whole[:5])
  behind = shard(requests[2:], (2, EVENTS[0] + EVENTS[1], 5))
  assert_close(behind[:6], whole[5:ALL])
  other = join(model.score(model.params, rows, batch, jax.random.key(4)))
  assert np.all(np.any(whole[:ALL] != other[:ALL], axis=1))


def test_the_quirks_of_the_published_code():
  quirks = (
    'batch_normaliser',
    'context_by_candidates',
    'pi_3_14',
    'time_clip_at_width',
  )
  model = build('published', reference_compat=quirks)
  requests, oracle = draw(), model.oracle()
  longest = max(EVENTS[i] + CANDIDATE_COUNTS[i] + 2 for i in range(4))
  expected = [join(oracle.score(r, longest=longest)) for r in requests]
  scores = join(score(model, requests))[:ALL]
  assert_close(scores, np.concatenate(expected))
  plain = join(run(build('published'), requests)[0])
  assert np.all(np.any(scores != plain[:ALL], axis=1))


def test_listwise_candidates_see_each_other_in_inference_unless_asked_not_to():
  requests = draw(ENRICHED)
  listwise = join(run(build('listwise'), requests)[0])[:ALL]
  published = build('listwise', reference_compat=('listwise_in_training',))
  scores = join(score(published, requests))[:ALL]
  oracle = published.oracle()
  assert_close(
    scores, np.concatenate([join(oracle.score(r)) for r in requests])
  )
  assert np.all(np.any(scores != listwise, axis=1))


# --- The stack


@functools.cache
def encoder(**options):
  """(tokens, sequences, what the layers make of them) of a config."""
  config = Config(**(SIZES | options), input_dropout=0.0, dropout=0.0)
  model = STU(config, SPEC, nnx.Rngs(0))
  batch = gr_requests.pack(draw(), SPEC, *ROOM)
  reads = model.list_reads()
  tables = gr_requests.draw_tables(reads)
  rows = gr_requests.read_rows(jax.tree.map(jnp.asarray, tables), reads, batch)
  graphdef, state = nnx.split(model)

  @functools.partial(jax.jit, compiler_options=QUICK)
  def prepare(rows, batch):
    return nnx.merge(graphdef, state).prepare(rows, batch)

  x, sequences = prepare(rows, batch)

  @functools.partial(jax.jit, compiler_options=QUICK)
  def encode(key):
    return nnx.merge(graphdef, state).encode(x, sequences, key)

  return x, sequences, encode


def test_truncated_layers_leave_what_they_do_not_see_as_it_is():
  x, sequences, encode = encoder(truncated_layers=2, truncated_to=5)
  changed = np.any(np.asarray(encode(None) != x), axis=1)
  expected = []
  for events, asked in zip(EVENTS, CANDIDATE_COUNTS, strict=True):
    bypassed = max(events - 5, 0)
    seen = [True] * 2 + [False] * bypassed
    expected += seen + [True] * (events - bypassed + asked)
  np.testing.assert_array_equal(changed[: len(expected)], expected)


def test_layers_are_skipped_together_in_a_share_of_the_steps():
  x, sequences, encode = encoder(skipped_layers=2, skip_rate=0.25)
  real = int(sequences.lengths.sum())
  whole, skipped = encode(None)[:real], 0
  for seed in range(40):
    found = encode(jax.random.key(seed))[:real]
    if np.array_equal(found, x[:real]):
      skipped += 1
    else:
      assert_close(found, whole)
  assert 3 <= skipped <= 20  # 10 expected, 2.7 the deviation


# --- Retrieval on the same tokens


def test_items_of_events_lack_what_candidates_alone_have():
  model = build('listwise')
  requests, oracle = draw(model.spec), model.oracle()
  rows = model.read(model.pack(requests, *ROOM))
  found = model.make(model.params).encode_items(rows, HISTORY)
  expected = [
    oracle.mlp('tower', np.concatenate(oracle.event(request, place)))
    for request in requests
    for place in range(len(request.history['age']))
  ]
  assert_close(found[: len(expected)], np.stack(expected))


def encode_history(model, requests):
  batch = model.pack(requests, *ROOM)

  @functools.partial(jax.jit, compiler_options=QUICK)
  def encode(params, rows, batch):
    return model.make(params).encode_history(rows, batch)

  return np.asarray(encode(model.params, model.read(batch), batch))


def test_events_are_encoded_without_what_follows():
  model, requests = build('published'), draw()
  before = encode_history(model, requests)
  assert before.shape == (ROOM[0], 8)
  items = dict(requests[2].history)
  items['item'] = items['item'].copy()
  items['item'][10] += 1
  changed = list(requests)
  changed[2] = requests[2]._replace(history=items)
  after = encode_history(model, changed)
  moved = np.any(before != after, axis=1)
  # Of the third request, events 10 to 13 have seen what changed.
  np.testing.assert_array_equal(np.flatnonzero(moved), [15, 16, 17, 18])


def test_context_that_sees_the_future_is_not_supervised():
  with pytest.raises(ValueError, match="model.context_mask='both'.*'causal'"):
    encode_history(build('summed'), draw())


# --- Products with weights


@pytest.mark.parametrize('name', ['summed', 'published', 'context_mlps'])
def test_every_product_with_a_weight_has_a_site(name):
  spec, options = CASES[name]
  config = Config(**(SIZES | options))

  def make():
    return products.assign_products(STU(config, spec, nnx.Rngs(0)))

  model = nnx.eval_shape(make)
  batch = gr_requests.pack(draw(spec), spec, *ROOM)
  tables = gr_requests.draw_tables(model.list_reads())
  rows = gr_requests.read_rows(
    jax.tree.map(jnp.asarray, tables), model.list_reads(), batch
  )
  _, sites = weight_products(*traced(model, rows, batch, jax.random.key(0)))
  assert None not in sites
  assert set(sites) == set(products.find_sites(model))
