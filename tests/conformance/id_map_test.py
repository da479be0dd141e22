"""What `contracts.IdMap` promises, and the way of its state through a run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from genrec_jax import contracts
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import id_maps, lookup
from genrec_jax.embedding.computed_maps import (
  DoubleIdMap,
  HashIdMap,
  OrderedIdMap,
  PermutedIdMap,
  QuotientIdMap,
)
from genrec_jax.features import UNREAD, Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.step import make_step
from tests.conformance.admitting import Admitting
from tests.conformance.drawn import Drawn
from tests.conformance.runtime_cases import (
  MAPS,
  MEETING,
  STEPS,
  Mapped,
  curve_of,
  host,
  training_of,
)
from tests.conformance.task_cases import (
  EXAMPLES,
  ITEMS,
  PADDED,
  EveryRead,
  pack_numbers,
)
from tests.tolerances import assert_close

# Every implementer.
IMPLEMENTERS = {
  'hashed': HashIdMap('t', ITEMS, MEETING),
  'ordered': OrderedIdMap(ITEMS, MEETING),
  'frequency': HashIdMap('t', ITEMS, MEETING, private=2),
  'permutation': PermutedIdMap('t', ITEMS, MEETING),
  'double': DoubleIdMap('t', ITEMS, MEETING, private=1),
  'qr': QuotientIdMap('t', ITEMS, ITEMS),
  'learned': Drawn('t', ITEMS, MEETING, ''),
  'admitting': Admitting(ITEMS, MEETING),
}
RUNTIMES = ('one device', 'mesh', 'mesh, exact')


@pytest.fixture(params=IMPLEMENTERS)
def id_map(request):
  return IMPLEMENTERS[request.param]


def draw(seed: int, *shape: int):
  """(ids, which are real): some are not ids at all, where there is padding."""
  rng = np.random.default_rng(seed)
  ids = rng.integers(0, ITEMS, shape).astype(np.int32)
  real = rng.random(shape) < 0.8
  return np.where(real, ids, rng.choice([-7, 10**6], shape)).astype('int32'), (
    real
  )


def behind(id_map, batches: int):
  """The state behind some batches."""
  state = id_map.init()
  if hasattr(id_map, 'load'):
    state = jax.tree.map(jnp.asarray, id_map.load())
  for seed in range(batches):
    _, state = id_map.assign(state, *draw(seed, 8, 3))
  return state


# ---- A map by itself --------------------------------------------------------


def test_it_is_an_id_map(id_map):
  assert isinstance(id_map, contracts.IdMap)
  state = id_map.init()
  for leaf in jax.tree.leaves(state):
    assert isinstance(leaf, jax.Array)


@pytest.mark.parametrize('shape', [(24,), (4, 3, 2)])
def test_rows_are_those_of_the_table(id_map, shape):
  state = behind(id_map, 2)
  ids, real = draw(9, *shape)
  rows, _ = id_map.assign(state, ids, real)
  assert rows.shape == shape and rows.dtype == jnp.int32
  assert np.all((rows[real] >= 0) & (rows[real] < id_map.rows))


def test_what_is_assigned_is_found_again(id_map):
  ids, real = draw(9, 24)
  rows, after = id_map.assign(behind(id_map, 2), ids, real)
  np.testing.assert_array_equal(id_map.lookup(after, ids)[real], rows[real])


def test_no_row_for_what_is_no_id(id_map):
  state = behind(id_map, 2)
  # The second rows of ids are those of the numbers behind them.
  two = isinstance(id_map, (DoubleIdMap, QuotientIdMap))
  wrong = jnp.int32([-1, ITEMS * (1 + two), 10**6])
  assert np.all(id_map.lookup(state, wrong) < 0)
  rows, _ = id_map.assign(state, wrong, jnp.ones(3, bool))
  assert np.all(rows < 0)


def test_padding_leaves_no_trace(id_map):
  ids, real = draw(3, 24)
  _, state = id_map.assign(behind(id_map, 2), ids, real)
  _, other = id_map.assign(behind(id_map, 2), np.where(real, ids, 1), real)
  _, short = id_map.assign(behind(id_map, 2), ids[real], real[real])
  jax.tree.map(np.testing.assert_array_equal, state, other)
  jax.tree.map(np.testing.assert_array_equal, state, short)


def test_what_is_not_there_is_padding(id_map):
  maps, state = id_maps.IdMaps({'t': id_map}), behind(id_map, 2)
  ids, real = draw(3, 1, 24)
  states = {'t': state} if state else {}
  reads = {'f': Read(jnp.where(real, ids, UNREAD), 't')}
  rows, after = maps.assign(states, reads)
  wanted, state = id_map.assign(state, ids, real)
  for found in (rows['f'], maps.lookup(after, reads)['f']):
    np.testing.assert_array_equal(found, jnp.where(real, wanted, UNREAD))
  jax.tree.map(np.testing.assert_array_equal, after.get('t', {}), state)


def test_it_is_a_function_of_state_and_ids(id_map):
  state, args = behind(id_map, 2), draw(3, 24)
  first = id_map.assign(state, *args)
  for again in (
    id_map.assign(state, *args),
    jax.jit(id_map.assign)(state, *args),
  ):
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_a_mesh_gives_the_rows_and_the_state_of_one_device(id_map):
  mesh, split = mesh_lib.make_mesh(1, 2, 2), PartitionSpec(mesh_lib.AXES)
  assign = jax.jit(
    jax.shard_map(
      # Every device tells its own state.
      lambda state, ids, real: jax.tree.map(
        lambda x: x[None], id_map.assign(state, ids, real)
      ),
      mesh=mesh,
      in_specs=(PartitionSpec(), split, split),
      out_specs=split,
      check_vma=False,
    )
  )
  state, args = behind(id_map, 2), draw(3, 8, 3)
  rows, after = id_map.assign(state, *args)
  found, states = assign(state, *args)
  np.testing.assert_array_equal(np.reshape(found, rows.shape), rows)
  for wanted, leaf in zip(
    jax.tree.leaves(after), jax.tree.leaves(states), strict=True
  ):
    for device in range(4):
      np.testing.assert_array_equal(leaf[device], wanted)


# ---- Its state in a run -----------------------------------------------------


@functools.cache
def counted() -> list[dict[str, np.ndarray]]:
  """NumPy's count of the ids of both tables, behind each batch."""
  met, found = {'one': np.zeros(ITEMS, int), 'bag': np.zeros(ITEMS, int)}, []
  for seed in range(STEPS):
    batch = pack_numbers(PADDED, 1, seed)
    np.add.at(met['one'], batch['one'], 1)
    used = batch['lengths'].sum()
    # Two features read the bags.
    np.add.at(met['bag'], batch['bag'][:used], 2)
    found.append({name: count.copy() for name, count in met.items()})
  return found


@pytest.mark.parametrize('name', RUNTIMES)
def test_the_state_is_that_behind_the_batch_trained(name):
  """Also where the next one has been routed already."""
  curve = curve_of(name, 'admitting')
  for state, wanted in zip(curve.states, counted(), strict=True):
    for table, met in wanted.items():
      np.testing.assert_array_equal(state[f'id_states/{table}/met'], met)
      rows = state[f'id_states/{table}/row']
      assert np.all((rows > 0) <= (met >= 2))
      own = rows[rows > 0]
      assert len(set(own.tolist())) == len(own)


@pytest.mark.parametrize('maps', ['hashed', 'admitting', 'learned'])
@pytest.mark.parametrize('name', RUNTIMES)
def test_every_runtime_maps_alike(name, maps):
  found, wanted = curve_of(name, maps), curve_of('one device', maps)
  assert_close(found.losses, wanted.losses, 'curve')
  for one, other in zip(found.states, wanted.states, strict=True):
    paths = [path for path in other if path.startswith('id_states/')]
    assert bool(paths) == (maps != 'hashed')
    for path in paths:
      np.testing.assert_array_equal(one[path], other[path], err_msg=path)
  plain = curve_of('one device', 'identity')
  assert found.losses != plain.losses, 'no id was mapped'


@pytest.mark.parametrize('name', RUNTIMES)
def test_a_map_of_a_file_is_the_state_of_a_fresh_run(name):
  state = training_of(name, 'learned').runtime.fresh_state()
  for table, found in state.id_states.items():
    wanted = Drawn(table, ITEMS, MEETING, '').load()
    np.testing.assert_array_equal(found['words'], wanted['words'])


@pytest.mark.parametrize('maps', ['admitting', 'learned'])
@pytest.mark.parametrize('name', RUNTIMES)
def test_a_resumed_run_goes_on_to_the_bit(name, maps, tmp_path):
  training, whole = training_of(name, maps), curve_of(name, maps)
  batches, stop = training.batches(), 2
  state, _ = training.run(batches=[next(batches) for _ in range(stop)])
  arrays = state_lib.flatten_state(state)
  back = state_lib.unflatten_state(training.runtime.abstract_state(), arrays)
  jax.tree.map(np.testing.assert_array_equal, back.id_states, state.id_states)
  with CheckpointManager(tmp_path) as checkpoints:
    plan = training.runtime.plan
    about = {'plan': plan and plan.to_json()}
    checkpoints.save(stop, arrays, data=batches, host=about)
  state, batches = training.restored(tmp_path)
  for path, array in host(state).items():
    wanted = whole.states[stop - 1][path]
    np.testing.assert_array_equal(array, wanted, err_msg=path)
  _, after = training.run(state, batches)
  assert after.losses == whole.losses[stop:]
  for path, array in whole.states[-1].items():
    np.testing.assert_array_equal(after.states[-1][path], array, err_msg=path)


@functools.cache
def evaluated_run_of(name: str):
  """(curve, predictions before each step) of a run that is also evaluated."""
  training, task = training_of(name, 'admitting'), Mapped()
  runtime = training.runtime

  def predict(weights, batch):
    reads = task.reads_for('predict', batch)
    params, rows = runtime.read_rows(task, weights, reads)
    return task.predict(params, rows, batch)

  compiled, seen = runtime.jit(predict, ('split',)), []

  def between(state, batch):
    del batch
    # Ids that training has not met, among others.
    batch = pack_numbers(PADDED, runtime.eval_shards, seed=77)
    found = compiled(contracts.weights_of(state), runtime.put_on_devices(batch))
    seen.append(np.asarray(found)[:EXAMPLES])

  return training.run(between=between)[1], seen


@pytest.mark.parametrize('name', RUNTIMES)
def test_an_evaluation_changes_nothing(name):
  curve, whole = evaluated_run_of(name)[0], curve_of(name, 'admitting')
  assert curve.losses == whole.losses
  for path, array in whole.states[-1].items():
    np.testing.assert_array_equal(curve.states[-1][path], array, err_msg=path)


def test_an_evaluation_reads_the_rows_of_the_state():
  """By the definition: NumPy looks the rows up that training has assigned."""
  task, state = Mapped(), curve_of('one device', 'admitting').states[0]
  batch = pack_numbers(PADDED, 1, seed=77)
  tables = {n: jnp.asarray(state[f'tables/{n}']) for n in task.tables()}
  reads = task.reads_for('predict', batch)
  rows = {
    feature: jnp.asarray(state[f'id_states/{read.table}/row'][read.ids])
    for feature, read in reads.items()
    if read.table in MAPS['admitting'][1]
  }
  wanted = task.predict(
    {'w': jnp.asarray(state['params/w'])},
    lookup.view_tables(tables, reads, rows),
    batch,
  )
  _, seen = evaluated_run_of('one device')
  assert_close(seen[1], wanted[:EXAMPLES])


@pytest.mark.parametrize('name', RUNTIMES)
def test_evaluations_see_the_same_everywhere(name):
  _, found = evaluated_run_of(name)
  _, wanted = evaluated_run_of('one device')
  assert len(found) == STEPS
  for one, other in zip(found, wanted, strict=True):
    assert_close(one, other)


def test_a_map_of_a_table_that_there_is_not():
  with pytest.raises(ValueError, match='maps names users; the tables of the'):
    id_maps.collect_maps(EveryRead(), {'users': Admitting(3, 3)})


def test_a_step_takes_the_maps_of_its_caller():
  task, tx = Mapped(), optax.sgd(0.1)
  own = MAPS['admitting'][1]
  step = make_step(task, tx, seed=0, maps=own)
  fresh = state_lib.create_state(task, tx, 0, ['grad_norm', 'loss'], maps=own)
  assert set(fresh.id_states) == {'one', 'bag'}
  _, after = jax.jit(step.route)(
    pack_numbers(PADDED, 1), fresh.step, fresh.id_states
  )
  for table, met in counted()[0].items():
    np.testing.assert_array_equal(after[table]['met'], met)


@pytest.mark.parametrize(
  ('changes', 'told'),
  [
    (dict(id_map='hash', rows=1), 'has 1 rows: .* needs 2, one for padding'),
    (dict(id_map='frequency', private=8), 'needs 10, 8 private ones, one for'),
    (dict(id_map='hash', private=3), "is for id_map='frequency'"),
    (dict(private=3), "its id_map is 'identity'"),
    (dict(id_map='learnt'), "must be one of .*'ordered', 'frequency'"),
    (dict(id_map='hash', map_file='x'), "is for id_map='learned'"),
    (dict(id_map='learned'), "'learned', which needs one"),
    (dict(id_map='hash', combine='product'), "which is for id_map='qr'"),
    (dict(id_map='qr'), "id_map='qr' needs 14 at least for 40 ids"),
  ],
)
def test_maps_that_cannot_be(changes, told):
  spec = TableSpec('t', **dict(rows=9, dim=4, ids=40) | changes)
  with pytest.raises(ValueError, match=told):
    id_maps.build_map(spec)


def test_frequent_ids_are_apart():
  ids = jnp.arange(40)
  spec = TableSpec('t', rows=9, dim=4, ids=40)

  def build(**changes):
    return id_maps.build_map(dataclasses.replace(spec, **changes))

  rows = np.asarray(build(id_map='frequency', private=5).lookup({}, ids))
  assert rows[:6].tolist() == [0, 1, 2, 3, 4, 5]
  assert {*rows[6:].tolist()} == {6, 7, 8}
  rows = np.asarray(build(id_map='ordered').lookup({}, ids))
  assert rows.tolist() == [0, *(1 + i % 8 for i in range(39))]


def test_a_read_of_the_whole_table_knows_no_map():
  """Its columns are rows, and the map says which ids they have."""
  maps = id_maps.IdMaps({'t': HashIdMap('t', ids=9, rows=4)})
  reads = {'all': Read(None, 't')}
  with pytest.raises(ValueError, match="'all' reads the whole table 't'"):
    maps.lookup({}, reads)
  with pytest.raises(ValueError, match='full_softmax'):
    maps.assign({}, reads)
