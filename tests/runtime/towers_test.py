"""Towers between two exchanges: as identity nothing, as a network the same.

The flat lookup of sums is what the identity is compared with, to the bit; one
device with all towers is what a network is compared with.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import hlo
from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import ExpectedRead, Read, TableSpec
from genrec_jax.parallel.cuts import Cut
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from tests.marks import slow
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures('optax_promotes')

ROWS, WIDTH, EXAMPLES, ROOM, STEPS = 37, 4, 32, 3, 3
# (hosts, devices of a host), scheme
PLACED = [
  ((2, 4), 'table_row_wise'),
  ((2, 4), 'table_wise'),
  ((4, 2), 'table_column_wise'),
  ((8, 1), 'table_row_wise'),
  ((1, 8), 'table_wise'),
]
# Uneven: e has two vectors, and a and d share a table.
TOWERS = (
  ('a', 'd'), ('b',), ('c',), ('e', 'f', 'g'),
  ('h',), ('i',), ('j',), ('k',),
)  # fmt: skip
FEATURES = tuple(sorted(name for own in TOWERS for name in own))
TABLES = {name: 'a' if name == 'd' else name for name in FEATURES}
POOLINGS = {name: 'sum' for name in FEATURES} | {'b': 'mean', 'e': 'mean'}
WEIGHTED = ('c', 'e', 'f')  # of e a mean
OPTIMIZERS = {'f': 'adagrad', 'h': 'sgd'}


def find_width(feature: str) -> int:
  return 2 * WIDTH if feature == 'e' else WIDTH


def make_towers(init, apply, vectors=None, **fields) -> Towers:
  widths = tuple(tuple(map(find_width, own)) for own in TOWERS)
  counts = [sum(own) // WIDTH for own in widths]
  kept = tuple(tuple(range(vectors or count)) for count in counts)
  return Towers(TOWERS, widths, WIDTH, kept, init, apply, **fields)


IDENTITY = make_towers(lambda key: {}, lambda params, x, mask, draws: x)


def init_network(key):
  return {
    'kernel': jax.random.normal(key, (len(TOWERS), WIDTH, 3)),
    # Of the scale of its gradients, which are sums with much cancelled.
    'bias': jax.random.normal(jax.random.fold_in(key, 1), (len(TOWERS), 3)),
  }


def apply_network(params, x, mask, draws):
  # Over the vectors too, so that a tower sees all that its host has.
  mixed = x + jnp.sum(x * mask[None, :, None], axis=1, keepdims=True)
  made = jnp.tanh(mixed @ params['kernel'] + params['bias'][None, None])
  if draws is not None:  # a factor of each example
    made *= jax.vmap(
      lambda n: jax.random.uniform(jax.random.fold_in(draws.key, n))
    )(draws.numbers)[:, None, None]
  return made


NETWORK = make_towers(init_network, apply_network)
DRAWS = dataclasses.replace(NETWORK, draws=True)


class Sums:
  """Predicts a number from the sums of bags, or from what towers made."""

  measurements, progress_unit = {'loss': 'mean'}, 'examples'

  def __init__(self, outputs=WIDTH, whole_numbers=False):
    self._outputs, self._whole = outputs, whole_numbers

  def tables(self):
    return {
      name: TableSpec(
        name, ROWS, find_width(name), 0.5, OPTIMIZERS.get(name, 'row_adagrad')
      )
      for name in sorted(set(TABLES.values()))
    }

  def init(self, key):
    count = len(FEATURES) + 1  # vectors: e has two
    return {'w': jax.random.normal(key, (count, self._outputs))}

  def expected_reads(self):
    return {f: ExpectedRead(TABLES[f], ROOM / 2, POOLINGS[f]) for f in FEATURES}

  def reads(self, batch, key=None):
    del key
    return {
      f: Read(
        batch[f],
        TABLES[f],
        batch[f'{f} lengths'],
        batch[f'{f} weights'] if f in WEIGHTED else None,
        pooling=POOLINGS[f],
      )
      for f in FEATURES
    }

  def number_examples(self, batch):
    return batch['number']

  def loss(self, params, rows, batch, key):
    del key
    if towers_lib.NAME in rows:
      x = rows[towers_lib.NAME].all()
    else:
      sums = [rows[f].all() for own in TOWERS for f in own]
      x = jnp.concatenate(sums, axis=1)
      x = x.reshape(x.shape[0], -1, WIDTH)
    # An order of sums that no compiler changes: vector by vector.
    scores = jnp.zeros(x.shape[0])
    for i in range(x.shape[1]):
      scores += jnp.tanh(x[:, i]) @ params['w'][i]
    error = jnp.square(scores - batch['y']) * batch['weight']
    return {'loss': (jnp.sum(error), jnp.sum(batch['weight']))}


def batch(seed: int, parts: int) -> dict:
  """The same examples, packed for so many shards and microbatches."""
  rng = np.random.default_rng(seed)
  made = {
    'y': rng.normal(size=EXAMPLES).astype(np.float32),
    'weight': rng.integers(0, 3, EXAMPLES).astype(np.float32),
    'number': np.arange(EXAMPLES, dtype=np.int32),
  }
  for feature in FEATURES:
    lengths = rng.integers(0, ROOM + 1, EXAMPLES).astype(np.int32)
    ids = rng.integers(0, ROWS, (EXAMPLES, ROOM)).astype(np.int32)
    weights = rng.integers(1, 5, (EXAMPLES, ROOM)).astype(np.float32)
    for name, dtype, values in (
      (feature, np.int32, ids),
      (f'{feature} weights', np.float32, weights),
    ):
      packed = np.zeros((parts, EXAMPLES // parts * ROOM), dtype)
      for part, rows in enumerate(np.split(np.arange(EXAMPLES), parts)):
        own = np.concatenate([values[i, : lengths[i]] for i in rows])
        packed[part, : len(own)] = own
      made[name] = packed.reshape(-1)
    made[f'{feature} lengths'] = lengths
  return made


def settings(hosts=2, devices=4, scheme='table_row_wise', **parallel):
  c = config_lib.ranking()
  c.optimizer.rows.learning_rate = 0.1
  c.parallel.update(
    pool='sums', scheme=scheme, hosts=hosts, devices=devices, **parallel
  )
  return c


def build(c, towers, outputs=WIDTH):
  task, tx = Sums(outputs), optax.sgd(0.01)
  alone = c.parallel.hosts * c.parallel.devices * c.parallel.replicas == 1
  runtime = SingleDeviceRuntime if alone else MeshRuntime
  return runtime(c, task, tx, Extensions(towers=towers))


@functools.cache
def train(
  towers, mesh=(2, 4), scheme='table_row_wise', pipeline='none',
  microbatches=1, codecs=None, replicas=1, placed=False, outputs=WIDTH,
):  # fmt: skip
  """(losses and norms, tables, other weights) after some steps, in NumPy.

  `placed` keeps the flat lookup's tables where towers would have them: where a
  row lies decides in which order its gradients are added.
  """
  hosts, devices = mesh
  c = settings(
    hosts, devices, scheme, replicas=replicas, pipeline=pipeline,
    microbatches=microbatches,
  )  # fmt: skip
  if codecs:
    c.parallel.exchange.update(forward=codecs[0], backward=codecs[1])
  if placed:
    own = build(c, placed)
    runtime = MeshRuntime(c, Sums(outputs), optax.sgd(0.01), plan=(
      dataclasses.replace(own.plan, extra={})
    ))  # fmt: skip
  else:
    runtime = build(c, towers, outputs)
  parts = runtime.shards if hosts * devices > 1 else 1
  batches = [runtime.put_on_devices(batch(i, parts)) for i in range(STEPS)]
  state, step, measured = runtime.fresh_state(), runtime.step(), []
  for number, now in enumerate(batches):
    if pipeline != 'none':
      following = batches[number + 1] if number + 1 < STEPS else None
      now = now, following
    state, loss = step(state, now)
    measured.append((float(loss), float(state.metric_sums['grad_norm'][0])))
  weights = jax.device_get({'params': state.params, 'modules': state.modules})
  return measured, jax.device_get(state.tables), weights


def assert_same(one, other):
  assert one[0] == other[0]
  for part in (1, 2):
    jax.tree.map(np.testing.assert_array_equal, one[part], other[part])


def mark_slow(cases, *quick):
  """Cases of which all but some wait for the slow tests."""
  return [
    case if at in quick else pytest.param(*case, marks=pytest.mark.slow)
    for at, case in enumerate(cases)
  ]


@pytest.mark.parametrize('mesh, scheme', mark_slow(PLACED, 3))
def test_an_identity_changes_no_bit(scheme, mesh):
  flat = train(None, mesh, scheme, placed=IDENTITY)
  under = train(IDENTITY, mesh, scheme)
  assert flat[0] == under[0]
  jax.tree.map(np.testing.assert_array_equal, flat[1], under[1])


@pytest.mark.parametrize(
  'options',
  [
    slow({'microbatches': 4}),
    slow({'pipeline': 'exact'}),
    {'pipeline': 'stale', 'microbatches': 4},
    {'replicas': 2, 'mesh': (2, 2)},
  ],
  ids=str,
)
def test_an_identity_changes_no_bit_however_it_runs(options):
  flat = train(None, placed=IDENTITY, **options)
  assert_same(flat, train(IDENTITY, **options))


@pytest.mark.parametrize(
  'forward, backward',
  mark_slow([('bfloat16', 'float16'), ('int8', 'fp8'), ('float32', 'int8')], 1),
)
def test_an_identity_with_codecs(forward, backward):
  """Gradients are encoded on each of two ways instead of once for both.

  What is a cast, or scaled by its largest element, encodes to the same bits
  again; not so a mean, which is multiplied in between, nor int8, whose steps
  are counted from the least value to the greatest.
  """
  codecs = forward, backward
  flat = train(None, codecs=codecs, placed=IDENTITY)
  under = train(IDENTITY, codecs=codecs)
  np.testing.assert_allclose(flat[0], under[0], rtol=3e-2)
  exact = train(None, placed=IDENTITY)
  assert under[0] != exact[0]  # the codecs are there


@pytest.mark.parametrize(
  'mesh, scheme', mark_slow([*PLACED, ((2, 4), 'auto')], 2, 3)
)
def test_a_network_learns_what_it_would_on_one_device(scheme, mesh):
  one, many = train(NETWORK, (1, 1), outputs=3), train(
    NETWORK, mesh, scheme, outputs=3
  )  # fmt: skip
  assert_close(many[0], one[0])
  jax.tree.map(assert_close, many[2], one[2])


@pytest.mark.parametrize(
  'options',
  [{'microbatches': 4}, {'pipeline': 'exact'}, {'replicas': 2, 'mesh': (2, 2)}],
  ids=str,
)
def test_a_network_learns_the_same_however_it_runs(options):
  one = train(NETWORK, (1, 1), outputs=3)
  many = train(NETWORK, outputs=3, **options)
  if 'replicas' in options:  # each replica moves its own copy of the rows
    assert_close(many[0][0][0], one[0][0][0])
    return
  assert_close(many[0], one[0])
  jax.tree.map(assert_close, many[2], one[2])


@pytest.mark.parametrize('mesh', [(2, 4), (8, 1)], ids=str)
def test_draws_go_by_the_number_of_the_example(mesh):
  one = train(DRAWS, (1, 1), outputs=3)
  many = train(DRAWS, mesh, outputs=3)
  assert_close(many[0], one[0])
  assert many[0] != train(NETWORK, mesh, outputs=3)[0]


def test_every_tower_has_draws_of_its_own():
  """Also on another host, where other towers come first."""
  draws = towers_lib.TowerDraws(jax.random.key(0), jnp.arange(4))
  like = dict(
    params={
      'kernel': jnp.ones((3, WIDTH, 3)), 'bias': jnp.ones((3, 3)),
    },
    x=jnp.ones((3, 4, 1, WIDTH)),
    mask=jnp.ones((3, 1)),
    draws=draws,
  )  # fmt: skip
  made = np.asarray(towers_lib.run_towers(DRAWS, **like))
  assert len({one.tobytes() for one in made}) == 3
  later = towers_lib.run_towers(DRAWS, **like, first=1)
  np.testing.assert_array_equal(later[:2], made[1:])


class Pulled(Sums):
  """With decay of a weight above the towers, and of those within."""

  param_l2 = {'w': 0.1}
  tower_l2 = {'kernel': 0.1}


def move_once(mesh, task, weight=None, clip=0.0):
  """(weights, weights after one step of SGD with rate 1)."""
  c = settings(*mesh)
  c.optimizer.clip_norm = clip
  runtime = (MeshRuntime if mesh != (1, 1) else SingleDeviceRuntime)(
    c, task, optax.sgd(1.0), Extensions(towers=NETWORK)
  )
  state = runtime.fresh_state()
  before = jax.device_get({'params': state.params, 'modules': state.modules})
  data = batch(0, runtime.shards if mesh != (1, 1) else 1)
  if weight is not None:
    data['weight'] = np.full(EXAMPLES, weight, np.float32)
  state, _ = runtime.step()(state, runtime.put_on_devices(data))
  after = {'params': state.params, 'modules': state.modules}
  return before, jax.device_get(after)


@pytest.mark.parametrize('mesh', [(1, 1), (2, 4)], ids=str)
def test_towers_are_clipped_with_the_rest(mesh):
  before, after = move_once(mesh, Sums(3), clip=0.5)
  moved = jax.tree.map(lambda a, b: np.square(a - b).sum(), before, after)
  assert sum(jax.tree.leaves(moved)) == pytest.approx(0.25, rel=1e-4)
  assert sum(jax.tree.leaves(moved['modules'])) > 0.01


@pytest.mark.parametrize('mesh', [(1, 1), (2, 4)], ids=str)
def test_decay_pulls_once_and_not_at_all_where_nothing_counts(mesh):
  before, plain = move_once(mesh, Sums(3))
  _, pulled = move_once(mesh, Pulled(3))
  for part, name in (('params', 'w'), ('modules', 'kernel')):
    wanted = plain[part][name] - 0.1 * before[part][name]
    assert_close(pulled[part][name], wanted)
  before, still = move_once(mesh, Pulled(3), weight=0.0)
  jax.tree.map(np.testing.assert_array_equal, still, before)


def step_once(towers, mesh, replicas=1):
  hosts, devices = mesh
  runtime = build(settings(hosts, devices, replicas=replicas), towers, 3)
  state = runtime.fresh_state()
  parts = runtime.shards if hosts * devices * replicas > 1 else 1
  data = runtime.put_on_devices(batch(0, parts))
  state, _ = runtime.step()(state, data)
  return jax.device_get(state.modules)


@pytest.mark.parametrize(
  'summed, replicas',
  [
    (('dev',), 2),  # not over replicas
    (('rep',), 1),  # not over the devices of the host
  ],
)
def test_a_sum_over_the_wrong_axes_is_noticed(monkeypatch, summed, replicas):
  wanted = step_once(NETWORK, (1, 1))
  mesh = 2, 4 // replicas
  jax.tree.map(assert_close, step_once(NETWORK, mesh, replicas), wanted)
  monkeypatch.setattr(towers_lib, 'CUT', Cut(0, ('host',), summed))
  with pytest.raises(AssertionError):
    jax.tree.map(assert_close, step_once(NETWORK, mesh, replicas), wanted)


@pytest.mark.parametrize('scheme', ['table_row_wise', 'table_wise'])
def test_no_exchange_of_sums_spans_all_devices(scheme):
  """Groups have the size of a host, or one device of each host."""
  runtime = build(settings(2, 4, scheme), NETWORK, 3)
  data = runtime.put_on_devices(batch(0, 8))
  lowered = runtime.step().lower(runtime.fresh_state(), data)
  found = hlo.find_collectives(lowered.compile())
  moved = [c for c in found if c.op != 'all-reduce']  # of dense gradients
  assert {c.group_size for c in moved} == {2, 4}
  # Sums there, gradients back: widths, optimizers and stacks share them.
  exchanges = [c for c in moved if c.op == 'all-to-all' and 'f32' in c.dtype]
  for size in (2, 4):
    sums = [c for c in exchanges if c.group_size == size and len(c.shape) != 3]
    assert sum(c.count for c in sums) >= 2


def test_what_no_tower_can_see():
  def route(c, towers):
    runtime = build(c, towers)
    state = runtime.fresh_state()
    runtime.step()(state, runtime.put_on_devices(batch(0, runtime.shards)))

  with pytest.raises(ValueError, match='8 towers .* divided among 3 hosts'):
    route(settings(3, 2), IDENTITY)
  rows = settings()
  rows.parallel.pool = 'rows'
  with pytest.raises(ValueError, match="parallel.pool='rows' and towers"):
    route(rows, IDENTITY)
  for scheme in ('row_wise', 'data_parallel'):
    with pytest.raises(ValueError, match='is under a tower, whose host'):
      route(settings(scheme=scheme), IDENTITY)


class OneCodec(Sums):
  """The table of h travels in another format than the others."""

  def tables(self):
    specs = super().tables()
    codec = 'bfloat16', 'bfloat16'
    return specs | {'h': dataclasses.replace(specs['h'], codec=codec)}


def test_tables_under_towers_have_one_codec():
  c = settings()
  with pytest.raises(ValueError, match='must have one codec'):
    runtime = MeshRuntime(
      c, OneCodec(3), optax.sgd(0.01), Extensions(towers=NETWORK)
    )
    data = runtime.put_on_devices(batch(0, runtime.shards))
    runtime.step()(runtime.fresh_state(), data)


@functools.cache
def step_with(ways=(), ids=None):
  """(loss, tables) after a step on 2x4, with some formats and ids."""
  c = settings()
  c.parallel.exchange.update(dict(ways))
  runtime = build(c, NETWORK, 3)
  made = batch(0, runtime.shards)
  if ids is not None:
    made['b'][0] = ids  # the first bag of a device
    made['b lengths'][0] = max(made['b lengths'][0], 1)
  state, loss = runtime.step()(
    runtime.fresh_state(), runtime.put_on_devices(made)
  )
  return float(loss), jax.device_get(state.tables)


# What each way rounds: sums and vectors show in the loss, gradients in tables.
@pytest.mark.parametrize(
  'ways, in_loss, in_tables',
  [
    ({'near_forward': 'bfloat16'}, 3e-2, 0.2),
    ({'forward': 'bfloat16', 'near_forward': 'float32'}, 3e-2, 0.2),
    ({'near_backward': 'float16'}, 0, 1e-3),
    ({'backward': 'float16', 'near_backward': 'float32'}, 0, 1e-3),
    ({'near_backward': 'bfloat16'}, 0, 1e-2),
  ],
  ids=str,
)
def test_each_way_has_a_format_of_its_own(ways, in_loss, in_tables):
  loss, tables = step_with(tuple(ways.items()))
  exact, wanted = step_with()
  assert (loss == exact) == (in_loss == 0)
  assert loss == pytest.approx(exact, rel=in_loss or 1e-12)
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), tables, wanted)
  assert 0 < max(moved.values())
  # AdaGrad divides gradients by themselves: a tenth is the longest step, and
  # one of the other sign twice as far away.
  assert max(moved.values()) < in_tables


def test_an_id_that_is_no_row_is_not_read_in_silence():
  assert np.isnan(step_with(ids=ROWS)[0])
  assert np.isfinite(step_with(ids=ROWS - 1)[0])
