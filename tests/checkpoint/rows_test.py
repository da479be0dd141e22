"""Rows from any layout, through files, onto any other."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.checkpoint import array_rows, rows, snapshot
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.embedding import relayout
from genrec_jax.features import TableSpec
from tests.checkpoint.laid_out import Setting
from tests.embedding.plans import PLANS, SPECS, plan


@pytest.mark.parametrize('new', PLANS)
@pytest.mark.parametrize('old', PLANS)
def test_every_layout_is_read_onto_every_other(old, new, tmp_path):
  old, new = Setting(old), Setting(new)
  body = old.save(tmp_path, 3)
  found = new.load(tmp_path, [body])
  new.assert_holds(found)
  assert not any(x.any() for x in found.dirty_rows.values())


def test_a_host_that_is_its_device_has_the_rows_once():
  like = jax.ShapeDtypeStruct((40, 8), jnp.float32)
  slots = {'sum': jax.ShapeDtypeStruct((40,), jnp.float32)}
  (stack,) = relayout.sources_of_whole(
    {'t': TableSpec('t', 40, 8, 0.5, 'row_adagrad')}
  ).values()
  rows_of_array = array_rows.ArrayRows(stack, like, slots, None)
  buffers = dict(rows_of_array._buffers)
  values = {name: buffer.values for (name, _), buffer in buffers.items()}
  for name, value in values.items():
    assert not value.any()
    value[3] = 7.0
    array = rows_of_array.array(name)
    assert np.shares_memory(np.asarray(array), value)
    np.testing.assert_array_equal(array[3], 7.0)


def test_devices_gather_what_the_host_would():
  setting = Setting('columns')
  dirty_rows = some_dirty_rows(setting, 0)
  host, device = (
    list(
      snapshot.take_snapshot(
        *(setting.stacks, setting.arrays, setting.slots, dirty_rows, 2),
        chunk_rows=5,
        gather=gather,
      ).chunks
    )
    for gather in (False, True)
  )
  assert len(host) == len(device) > 8
  for a, b in zip(host, device):
    assert (a.table, a.first_column) == (b.table, b.first_column)
    jax.tree.map(
      np.testing.assert_array_equal,
      (a.ids, a.values, a.slots),
      (b.ids, b.values, b.slots),
    )


@pytest.mark.parametrize('gather', [False, True])
def test_rows_for_which_there_is_no_room_are_copied_as_others_are_taken(gather):
  setting = Setting('columns')

  def take(most_bytes):
    return snapshot.take_snapshot(
      *(setting.stacks, setting.arrays, setting.slots),
      chunk_rows=5,
      most_bytes=most_bytes,
      gather=gather,
    )

  whole = list(take(0).chunks)
  sizes = [x.values.nbytes + sum(s.nbytes for s in x.slots.values())
           for x in whole]  # fmt: skip
  room = 3 * max(sizes)
  taken = take(room)
  ends = iter([False, False, True])
  asked = []

  def has_ended():
    asked.append(next(ends))
    return asked[-1]

  found, ahead = [], []
  for chunk in taken.chunks:
    found.append(chunk)
    ahead.append(sum(x.nbytes for *_, c in taken._copied for x in c.values()))
  assert max(sizes) < max(ahead) <= room + max(sizes) < sum(sizes)
  taken.await_copies(has_ended)
  assert not asked  # all is copied, so that nobody waits
  for a, b in zip(whole, found, strict=True):
    assert a.table == b.table
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.values, b.values)

  left = take(1)
  left.await_copies(has_ended)
  assert asked == [False, False, True]
  with pytest.raises(CheckpointError, match='given up before all rows'):
    list(left.chunks)


def some_dirty_rows(setting, seed):
  rng = np.random.default_rng(seed)
  return setting.dirty_rows(lambda rows: rng.choice([0, 1, 2, 3, 7], rows))


@pytest.mark.parametrize('old, new', [('rows', 'columns'), ('hosts', 'rows')])
def test_deltas_lie_upon_their_base(old, new, tmp_path):
  setting = Setting(old)
  bodies = [setting.save(tmp_path, 0)]
  for step in (1, 2):
    dirty_rows = some_dirty_rows(setting, step)

    def moved(x, mark, step=step):
      hit = ((mark & jnp.uint8(2)) > 0).reshape(-1, *[1] * (x.ndim - 1))
      return jnp.where(hit, x + jnp.asarray(step, x.dtype), x)

    setting.arrays = {
      n: moved(x, dirty_rows[n]) for n, x in setting.arrays.items()
    }
    setting.slots = {
      n: {s: moved(x, dirty_rows[n]) for s, x in own.items()}
      for n, own in setting.slots.items()
    }
    bodies.append(setting.save(tmp_path, step, 'delta', dirty_rows, [[0, 0]]))
  found = setting.load(tmp_path, bodies)
  for name, stack in setting.stacks.items():
    for d in range(stack.devices):
      number, _ = stack.identify(d, np.arange(stack.depth))
      real = slice(d * stack.depth, (d + 1) * stack.depth)
      real = np.arange(real.start, real.stop)[number >= 0]
      for x, y in [
        (found.arrays[name], setting.arrays[name]),
        (found.slots[name]['sum'], setting.slots[name]['sum']),
      ]:
        np.testing.assert_array_equal(np.asarray(x)[real], np.asarray(y)[real])
  other = Setting(new)
  onto = other.load(tmp_path, bodies)
  whole = {n: np.asarray(x) for n, x in onto.arrays.items()}
  held = {n: np.asarray(x) for n, x in setting.arrays.items()}
  for table in SPECS:
    np.testing.assert_array_equal(
      relayout.gather_table(other.layout, whole, table),
      relayout.gather_table(setting.layout, held, table),
    )
  assert any(x.any() for x in onto.dirty_rows.values())


def test_replicas_are_saved_once_and_loaded_everywhere(tmp_path):
  two = plan(
    1, 2, a=('row_wise',), b=('table_wise', (1,)), c=('column_wise', (0, 1))
  )
  setting, one = Setting(two, replicas=2), Setting('whole')
  body = setting.save(tmp_path, 1)
  assert sum(len(list((tmp_path / '1/rows/a').iterdir())) for _ in '1') == 6
  setting.assert_holds(setting.load(tmp_path, [body]))
  one.assert_holds(one.load(tmp_path, [body]))


def test_a_base_that_lacks_rows_is_refused(tmp_path):
  setting = Setting('rows')
  body = setting.save(tmp_path, 1)
  del body['files'][next(f for f in body['files'] if f.startswith('rows/c'))]
  with pytest.raises(CheckpointError, match="lacks . rows, of table 'c'"):
    setting.load(tmp_path, [body])


def test_other_tables_are_refused_and_resized_ones_on_request(tmp_path):
  setting = Setting('rows')
  body = setting.save(tmp_path, 1)
  resized = copy.deepcopy(body)
  resized['rows']['tables']['a']['rows'] = 40
  with pytest.raises(CheckpointError, match="table 'a' was saved as"):
    setting.load(tmp_path, [resized])
  # A row that was never saved is as it is in a fresh state.
  for name in list(resized['files']):
    if name.startswith('rows/a'):
      del resized['files'][name]
  fresh = jax.tree.map(jnp.zeros_like, (setting.arrays, setting.slots))
  found = setting.load(tmp_path, [resized], fresh=fresh)
  whole = {n: np.asarray(x) for n, x in found.arrays.items()}
  assert not relayout.gather_table(setting.layout, whole, 'a').any()
  np.testing.assert_array_equal(
    relayout.gather_table(setting.layout, whole, 'c'),
    relayout.gather_table(setting.layout, setting.host[0], 'c'),
  )
  del body['rows']['tables']['b']
  with pytest.raises(CheckpointError, match="no table 'b'; there are: a, c"):
    setting.load(tmp_path, [body])


def test_some_tables_alone(tmp_path):
  body = Setting('rows').save(tmp_path, 1)
  wanted = Setting('whole')
  stacks = {
    n: stack
    for n, stack in wanted.stacks.items()
    if {piece.table for piece in stack.pieces} == {'c'}
  }
  arrays, slots = wanted.like()
  found = rows.load_rows(tmp_path, [body], stacks, arrays, {})
  assert found.arrays.keys() == stacks.keys() and not found.slots[min(stacks)]
  for name, array in found.arrays.items():
    np.testing.assert_array_equal(array, wanted.host[0][name])
