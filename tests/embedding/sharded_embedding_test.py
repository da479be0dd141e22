"""ShardedEmbedding against a dense table, on meshes, saved and restored."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh

from genrec_jax.embedding import row_optimizers
from genrec_jax.embedding.lookup_requests import Lookup
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.embedding.sharded_embedding import (
  EmbeddingTable,
  ShardedEmbedding,
)
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

ROWS, WIDTH, BATCH, LENGTH, STEPS = 37, 8, 16, 5, 3
TABLES = {
  'item': EmbeddingTable(ROWS, WIDTH, rate=0.1),
  'user': EmbeddingTable(11, WIDTH, optimizer='adam', rate=0.03),
}


def mesh_of(devices: int) -> Mesh:
  """A mesh as somebody else makes it, with names of their own."""
  return Mesh(np.array(jax.devices()[:devices]), ('data',))


def batch_of(number: int) -> dict:
  """Ids with repetitions, empty bags, weights, and what to predict."""
  rng = np.random.default_rng(number)
  lengths = rng.integers(0, LENGTH + 1, BATCH)
  lengths[0] = 0
  return {
    'ids': {
      'item': rng.integers(0, ROWS, (BATCH, 2)),
      'bag': Lookup(
        rng.integers(0, ROWS, (BATCH, LENGTH)),
        'item',
        'mean',
        lengths,
        rng.normal(size=(BATCH, LENGTH)).astype(np.float32),
      ),
      'user': rng.integers(0, 11, BATCH),
    },
    'wanted': rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
  }


def loss_of(rows, params, wanted):
  mixed = rows['item'].sum(axis=1) + rows['bag'] * rows['user']
  return jnp.mean(jnp.sum((mixed @ params - wanted) ** 2, axis=1))


def dense_rows(tables, ids) -> dict:
  """The same lookups in whole tables, example by example."""
  bag = ids['bag']
  real = np.arange(LENGTH)[None] < bag.lengths[:, None]
  share = np.where(real, bag.weights, 0) / np.maximum(bag.lengths, 1)[:, None]
  of_bag = tables['item'][bag.ids] * share.astype(np.float32)[..., None]
  return {
    'item': tables['item'][ids['item']],
    'bag': of_bag.sum(axis=1),
    'user': tables['user'][ids['user']],
  }


def make_step(emb):
  @jax.jit
  def step(state, params, batch):
    (value, grads), state = emb.value_and_grad(loss_of)(
      state, batch['ids'], params, batch['wanted']
    )
    return state, params - 0.1 * grads, value

  return step


def train(emb, steps=range(STEPS), state=None, params=None):
  """(state, parameters, losses) after some steps."""
  step = make_step(emb)
  state = emb.init(jax.random.key(0)) if state is None else state
  params = jnp.eye(WIDTH) if params is None else params
  losses = []
  for number in steps:
    state, params, value = step(state, params, batch_of(number))
    losses.append(float(value))
  return state, params, losses


@pytest.fixture(scope='module')
def one_device():
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(1))
  return emb, *train(emb)


def test_equals_a_dense_table_and_the_plain_row_optimizer(one_device):
  emb, state, params, losses = one_device
  start = emb.init(jax.random.key(0))
  tables = {name: emb.table(start, name) for name in TABLES}
  slots = {
    'item': {'sum': np.zeros(ROWS)},
    'user': {
      'mean': np.zeros((11, WIDTH)),
      'variance': np.zeros((11, WIDTH)),
      'count': np.zeros(()),
    },
  }
  weights, expected = jnp.eye(WIDTH), []
  for number in range(STEPS):
    batch = batch_of(number)
    ids = batch['ids']

    def loss(tables, weights, batch=batch):
      rows = dense_rows(tables, batch['ids'])
      return loss_of(rows, weights, batch['wanted'])

    tables = {name: jnp.asarray(x, jnp.float32) for name, x in tables.items()}
    value, (grads, of_weights) = jax.value_and_grad(loss, argnums=(0, 1))(
      tables, weights
    )
    expected.append(float(value))
    weights = weights - 0.1 * of_weights
    real = np.arange(LENGTH)[None] < ids['bag'].lengths[:, None]
    touched = {
      'item': np.union1d(ids['item'], ids['bag'].ids[real]),
      'user': np.unique(ids['user']),
    }
    for name, table in TABLES.items():
      tables[name], slots[name] = plain_update(
        row_optimizers.ROW_OPTIMIZERS[table.optimizer],
        table.rate,
        tables[name],
        slots[name],
        touched[name],
        np.asarray(grads[name])[touched[name]],
      )
  assert_close(losses, expected, 'curve', axis=None)
  assert_close(params, weights, name='parameters')
  for name in TABLES:
    assert_close(emb.table(state, name), tables[name], name=name)


QUICK = ((2, 'column_wise'), (4, 'table_wise'), (8, 'row_wise'))
SLOW = [
  *itertools.product((2, 4, 8), ('column_wise', 'table_wise', 'row_wise')),
  *((8, scheme) for scheme in SCHEMES),
]


@pytest.mark.parametrize(
  'devices, scheme',
  [
    *QUICK,
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in dict.fromkeys(SLOW)
      if case not in QUICK
    ),
  ],
)
def test_is_the_same_on_any_mesh(one_device, devices, scheme):
  whole, wanted, wanted_params, wanted_losses = one_device
  emb = ShardedEmbedding(
    TABLES,
    mesh=mesh_of(devices),
    hosts=min(2, devices // 2),
    scheme=scheme,
    pooled_as='rows' if devices == 4 else 'sums',
  )
  state, params, losses = train(emb)
  assert_close(losses, wanted_losses, 'curve', axis=None)
  assert_close(params, wanted_params, name='parameters')
  for name in TABLES:
    assert_close(emb.table(state, name), whole.table(wanted, name), name=name)


def test_a_saved_state_continues_the_same(one_device, tmp_path):
  emb, state, params, losses = one_device
  first, weights, _ = train(emb, range(1))
  again = ShardedEmbedding(TABLES, mesh=mesh_of(1))
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / 'state', first)
    checkpointer.wait_until_finished()
    fresh = again.init(jax.random.key(1))
    restored = checkpointer.restore(tmp_path / 'state', fresh)
  assert jax.tree.map(lambda x: x.sharding, restored) == again.state_sharding
  later, weights, rest = train(again, range(1, STEPS), restored, weights)
  assert rest == losses[1:]
  assert np.asarray(weights).tobytes() == np.asarray(params).tobytes()
  for name in TABLES:
    assert emb.table(later, name).tobytes() == emb.table(state, name).tobytes()


@pytest.mark.parametrize('scheme', ['column_wise', 'data_parallel'])
def test_begins_with_tables_that_are_there(scheme):
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(4), scheme=scheme)
  given = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
  state = emb.init(jax.random.key(0), {'item': given})
  np.testing.assert_array_equal(emb.table(state, 'item'), given)
  fresh = emb.init(jax.random.key(0))
  np.testing.assert_array_equal(
    emb.table(state, 'user'), emb.table(fresh, 'user')
  )
  rows = emb.lookup(state, {'item': np.arange(8).reshape(4, 2)})['item']
  np.testing.assert_array_equal(rows, given[np.arange(8).reshape(4, 2)])


def test_an_id_that_is_no_row_reads_nan():
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(2))
  state = emb.init(jax.random.key(0))
  # The last one is 5 in its lower 32 bits.
  ids = np.array([3, -1, ROWS, 5, 2**31, 2**32 + 5])
  rows = emb.lookup(state, {'item': ids})['item']
  bad = np.isnan(np.asarray(rows)).all(axis=1)
  assert bad.tolist() == [False, True, True, False, True, True]
  bags = Lookup(np.array([[1, ROWS], [2, 3]]), 'item', 'sum')
  # The last length is 1 in its lower 32 bits, and more than there are.
  ignored = dataclasses.replace(bags, lengths=np.array([1, 2**32 + 1]))
  found = emb.lookup(state, {'bad': bags, 'good': ignored})
  assert np.isnan(np.asarray(found['bad'])[0]).all()
  assert np.isfinite(np.asarray(found['good'])).all()
  np.testing.assert_array_equal(
    found['good'][1], emb.table(state, 'item')[[2, 3]].sum(axis=0)
  )


def test_a_state_that_was_given_away_is_no_state():
  """JAX itself crashes where a compiled step is called with it again."""
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(2))
  state, ids = emb.init(jax.random.key(0)), {'item': np.arange(4)}
  jax.tree.map(lambda leaf: leaf.delete(), state)  # as a donation does
  step = emb.value_and_grad(lambda rows, w: jnp.sum(rows['item']) * w)
  for read in (
    lambda: emb.table(state, 'item'),
    lambda: emb.lookup(state, ids),
    lambda: step(state, ids, jnp.float32(1)),
  ):
    with pytest.raises(ValueError, match='the state was given away'):
      read()
  with pytest.raises(ValueError, match='state is a dict, must be an Embedding'):
    emb.table({'arrays': {}}, 'item')
  other = ShardedEmbedding(TABLES, mesh=mesh_of(4))
  other = jax.eval_shape(other.init, jax.random.key(0))
  with pytest.raises(ValueError, match='of other tables or another mesh'):
    emb.table(other, 'item')


@pytest.mark.parametrize(
  'tables, words',
  [
    ([np.ones((ROWS, WIDTH))], 'tables is a list, must be a mapping'),
    ({'shop': np.ones((4, 4))}, "no table 'shop'; the tables are item, user"),
    ({'item': np.ones((3, WIDTH))}, "table 'item' is given as .3, 8., must be"),
    (
      {'item': np.ones((ROWS, WIDTH), complex)},
      'of type complex128, must be r',
    ),
  ],
)
def test_wrong_tables_to_begin_with_are_refused(tables, words):
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(2))
  with pytest.raises(ValueError, match=words):
    emb.init(jax.random.key(0), tables)


def test_a_rate_of_many_numbers_is_refused():
  table = EmbeddingTable(9, 2, rate=lambda step: jnp.ones(3))
  emb = ShardedEmbedding({'t': table}, mesh=mesh_of(1))
  state = jax.eval_shape(emb.init, jax.random.key(0))
  step = emb.value_and_grad(lambda rows, w: jnp.sum(rows['t']) * w)
  with pytest.raises(ValueError, match="rate of table 't' has the shape .3,."):
    jax.eval_shape(step, state, {'t': np.arange(4)}, jnp.float32(1))


@dataclasses.dataclass(frozen=True)
class SignSgd:
  """A row optimizer from outside the library."""

  scale: float = 1.0
  takes_pieces, needs_row_squares = True, False

  def init(self, table):
    return {}

  def slot_shapes(self, rows, dim):
    return {}

  def slot_floats(self, dim):
    return 0

  def update(self, table, slots, ids, grads, learning_rate, **_):
    step = learning_rate * self.scale * jnp.sign(grads)
    return table.at[ids].add(-step, mode='drop'), slots


@dataclasses.dataclass
class Jump:
  """A schedule that has no hash."""

  start: float

  def __call__(self, step):
    return jnp.where(step < 1, self.start, 2 * self.start)


def test_own_optimizer_schedule_and_more_than_a_value():
  emb = ShardedEmbedding(
    {'t': EmbeddingTable(9, 2, SignSgd(0.5), rate=Jump(1.0))},
    mesh=mesh_of(2),
  )
  state = emb.init(jax.random.key(0), {'t': np.zeros((9, 2))})
  ids = np.array([1, 1, 4, 8])

  def loss(rows, params):
    return jnp.sum(rows['t']) * params, {'seen': rows['t'].shape}

  @jax.jit
  def step(state):
    run = emb.value_and_grad(loss, has_aux=True)
    ((value, more), grads), state = run(state, {'t': ids}, jnp.float32(1))
    assert more == {'seen': (4, 2)}
    return state, grads

  for moved in (-0.5, -1.5):  # the rate of the second step is twice the first
    state, _ = step(state)
    table = emb.table(state, 't')
    np.testing.assert_array_equal(table[[1, 4, 8]], np.full((3, 2), moved))
    assert not table[[0, 2, 3, 5, 6, 7]].any()
  assert int(state.step) == 2


def test_rows_of_16_bits_move_by_less_than_their_last_bit():
  table = EmbeddingTable(
    4096, 1, optimizer='sgd', rate=2.0**-10, dtype='bfloat16'
  )
  emb = ShardedEmbedding({'t': table}, mesh=mesh_of(1))
  state = emb.init(jax.random.key(0), {'t': np.ones((4096, 1))})
  run = emb.value_and_grad(lambda rows, _: jnp.sum(rows['t']))
  _, state = run(state, {'t': np.arange(4096)}, ())
  moved = 1 - emb.table(state, 't').astype(np.float64)
  assert 0.5 < moved.mean() / 2.0**-10 < 1.5


@pytest.mark.parametrize(
  'ids, words',
  [
    ({}, 'ids is empty'),
    ({'shop': np.arange(4)}, "feature 'shop': there is no table 'shop'"),
    ({'item': np.arange(3)}, 'must be a multiple of the 2 devices'),
    ({'item': np.zeros(4)}, 'are of type float.., must be integers'),
    (
      {'x': Lookup(np.zeros((2, 3), int), 'item', 'max')},
      "pooling of feature 'x' is 'max'",
    ),
    (
      {'x': Lookup(np.zeros((2, 3), int), 'item', 'sum', np.zeros(3, int))},
      'the lengths of feature',
    ),
    (
      {'x': Lookup(np.zeros((2, 3), int), 'item', lengths=np.zeros(2, int))},
      "set pooling to 'sum' or 'mean'",
    ),
    ({'x': Lookup(np.zeros(4, int), 'item', 'sum')}, 'must be \\[B, L\\]'),
    (np.arange(4), 'ids is a ndarray; give {feature: ids}'),
    (
      {'item': [[1], [2, 3]]},
      "ids of feature 'item' do not form an array",
    ),
    ({'item': ['a', 'b']}, "ids of feature 'item' are of type <U1, must be in"),
    ({'item': None}, 'are of type object, must be integers'),
    ({'item': np.zeros(4, 'm8[s]')}, 'are of type timedelta64.s., must be int'),
    (
      {'x': Lookup(np.zeros(4, int), ['item'])},
      "there is no table .'item'.; t",
    ),
    (
      {'x': Lookup(np.zeros((2, 3), int), 'item', 'sum', np.ones(2))},
      "lengths of feature 'x' are of type float64, must be integers",
    ),
    (
      {'x': Lookup(np.zeros((2, 3), int), 'item', 'sum', weights=[['a'] * 3])},
      "weights of feature 'x' are of type <U1, must be real numbers",
    ),
  ],
)
def test_wrong_lookups_are_refused(ids, words):
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(2))
  state = jax.eval_shape(emb.init, jax.random.key(0))
  with pytest.raises(ValueError, match=words):
    jax.eval_shape(lambda s: emb.lookup(s, ids), state)


def test_a_mesh_in_force_must_be_that_of_the_tables():
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(2))
  state, ids = emb.init(jax.random.key(0)), {'item': np.arange(4)}
  with jax.set_mesh(emb.mesh):
    emb.lookup(state, ids)
  with jax.set_mesh(mesh_of(2)):
    with pytest.raises(ValueError, match='use jax.set_mesh.emb.mesh., or none'):
      emb.lookup(state, ids)


@pytest.mark.parametrize(
  'make, words',
  [
    (lambda: ShardedEmbedding({}), 'tables is empty'),
    (
      lambda: ShardedEmbedding({**TABLES, 3: EmbeddingTable(4, 4)}),
      'the name of a table is 3, must be text',
    ),
    (lambda: ShardedEmbedding([TABLES]), 'must be a mapping of names to'),
    (lambda: ShardedEmbedding({'t': (4, 4)}), 'must be a mapping of names to'),
    (lambda: EmbeddingTable(0, 4), 'rows of an EmbeddingTable is 0'),
    (lambda: EmbeddingTable(True, 4), 'rows of an EmbeddingTable is True'),
    (lambda: EmbeddingTable(2.5, 4), 'rows of an EmbeddingTable is 2.5'),
    (lambda: EmbeddingTable(4, 0), 'width of an EmbeddingTable is 0'),
    *(
      (
        lambda rate=rate: EmbeddingTable(4, 4, rate=rate),
        f'rate of an EmbeddingTable is {rate}, must be a finite number of at '
        'least 0, or a function',
      )
      for rate in (float('nan'), float('inf'), -1, None, True)
    ),
    *(
      (
        lambda std=std: EmbeddingTable(4, 4, init_std=std),
        f'init_std of an EmbeddingTable is {std}, must be a finite number',
      )
      for std in (float('nan'), float('inf'), -1)
    ),
    (
      lambda: EmbeddingTable(4, 4, dtype='int8'),
      "dtype of a table is 'int8', must be one of float32, float16, bfloat16",
    ),
    (
      lambda: EmbeddingTable(4, 4, options=[]),
      'options of an EmbeddingTable a',
    ),
    (
      lambda: EmbeddingTable(4, 4, options={'eps': 'small'}),
      "options {'eps': 'small'} do not suit the row optimizer 'row_adagrad'",
    ),
    (
      lambda: EmbeddingTable(4, 4, SignSgd(), options={'scale': 2.0}),
      'make SignSgd with them',
    ),
    (
      lambda: EmbeddingTable(4, 4, 'dense'),
      "no row optimizer 'dense'",
    ),
    (
      lambda: EmbeddingTable(4, 4, options={'b': 1}),
      "has no option \\['b'\\]",
    ),
    (lambda: ShardedEmbedding(TABLES, scheme='rows'), 'rows'),
    (lambda: ShardedEmbedding(TABLES, pooled_as='bags'), "is 'bags'"),
    (
      lambda: ShardedEmbedding(TABLES, mesh=mesh_of(4), hosts=3),
      'must divide the 4 devices',
    ),
    (lambda: ShardedEmbedding(TABLES, hosts=1.5), 'hosts is 1.5, must be a wh'),
    (lambda: ShardedEmbedding(TABLES, mesh=4), 'mesh is 4, must be a jax.shar'),
    (
      lambda: ShardedEmbedding(TABLES, mesh=jax.make_mesh((2,), ('data',))),
      'make it with jax.make_mesh',
    ),
  ],
)
def test_wrong_settings_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()


@pytest.mark.parametrize(
  'shape, pooling', [((0,), 'none'), ((8, 0), 'none'), ((0, 3), 'mean')]
)
def test_a_batch_without_ids(shape, pooling):
  emb = ShardedEmbedding({'t': EmbeddingTable(rows=10, width=4, rate=0.1)})
  state, ids = emb.init(jax.random.key(0)), np.zeros(shape, np.int32)
  ids = {'t': Lookup(ids, pooling=pooling)}
  rows = shape if pooling == 'none' else shape[:1]
  assert emb.lookup(state, ids)['t'].shape == (*rows, 4)
  loss = emb.value_and_grad(lambda rows, w: jnp.sum(rows['t']) * w)
  before = np.asarray(emb.table(state, 't'))
  (value, grad), state = loss(state, ids, jnp.float32(2))
  assert value == grad == 0
  np.testing.assert_array_equal(emb.table(state, 't'), before)
