"""Rows from any layout, through files, onto any other."""

import copy
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from genrec_jax.checkpoint import manifest, rows, snapshot
from genrec_jax.checkpoint.chunks import Encoding
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.embedding import relayout, touched
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.sharded import ShardedTables
from genrec_jax.parallel import mesh as mesh_lib
from tests.embedding.plans import PLANS, SPECS, filled, plan

_made = {}


def _filled(which, key):
  if str(which) not in _made:
    layout = lay_out(PLANS[which] if isinstance(which, str) else which)
    _made[str(which)] = filled(layout, key)
  return _made[str(which)]


class Setting:
  """A layout, its arrays on a mesh, and how to save and load them."""

  def __init__(self, which, key, replicas=1):
    self.layout = lay_out(PLANS[which] if isinstance(which, str) else which)
    self.stacks = relayout.sources(self.layout)
    self.tables = ShardedTables(self.layout, SPECS)
    p = self.layout.plan
    self.mesh = mesh_lib.make(replicas, p.hosts, p.devices)
    self.replicas = replicas
    self.host = _filled(which, key)
    self.arrays, self.slots = self.put(self.host)

  def put(self, tree):
    arrays, slots = tree

    def onto(spec, x):
      copies = self.replicas if spec and x.ndim else 1
      x = np.concatenate([x] * copies) if copies > 1 else x
      return jax.device_put(x, NamedSharding(self.mesh, spec))

    return (
      jax.tree.map(onto, self.tables.partition(arrays), arrays),
      jax.tree.map(onto, self.tables.partition(slots), slots),
    )

  def like(self):
    def abstract(x):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(abstract, (self.arrays, self.slots))

  def save(self, directory, step, kind='base', marks=None, parents=(), **more):
    taken = snapshot.take(
      self.stacks,
      self.arrays,
      self.slots,
      marks,
      touched.SINCE_BASE,
      chunk_rows=7,
      **more,
    )
    path = pathlib.Path(directory) / str(step) / 'rows'
    path.mkdir(parents=True)
    rows.write(path, taken.chunks, Encoding())
    about = {'kind': kind, 'parents': list(parents)}
    about['tables'] = rows.describe(self.stacks, self.slots)
    manifest.write(path.parent, step, rows=about)
    return manifest.read(path.parent)

  def load(self, directory, bodies, **more):
    return rows.load(directory, bodies, self.stacks, *self.like(), **more)

  def assert_holds(self, found, tree=None):
    wanted = self.put(tree or self.host)
    jax.tree.map(
      np.testing.assert_array_equal, (found.arrays, found.slots), wanted
    )
    for x, like in zip(*map(jax.tree.leaves, (found.arrays, self.arrays))):
      assert x.sharding == like.sharding


@pytest.mark.parametrize('old, new', itertools.product(PLANS, PLANS))
def test_every_layout_is_read_onto_every_other(old, new, key, tmp_path):
  old, new = Setting(old, key), Setting(new, key)
  body = old.save(tmp_path, 3)
  found = new.load(tmp_path, [body])
  new.assert_holds(found)
  assert not any(x.any() for x in found.marks.values())


def test_devices_gather_what_the_host_would(key):
  setting = Setting('columns', key)
  marks = some_marks(setting, 0)
  parts = [
    snapshot.take(
      *(setting.stacks, setting.arrays, setting.slots, marks, 2),
      chunk_rows=5,
      gather=gather,
    )
    for gather in (False, True)
  ]
  assert len(parts[0].chunks) == len(parts[1].chunks) > 8
  for a, b in zip(parts[0].chunks, parts[1].chunks):
    assert (a.table, a.first_column) == (b.table, b.first_column)
    jax.tree.map(
      np.testing.assert_array_equal,
      (a.ids, a.values, a.slots),
      (b.ids, b.values, b.slots),
    )


def some_marks(setting, seed):
  rng = np.random.default_rng(seed)
  marks = {
    n: rng.choice([0, 1, 2, 3, 7], x.shape[0]).astype(np.uint8)
    for n, x in setting.arrays.items()
  }
  specs = setting.tables.partition(marks)
  return {
    n: jax.device_put(x, NamedSharding(setting.mesh, specs[n]))
    for n, x in marks.items()
  }


@pytest.mark.parametrize('old, new', [('rows', 'columns'), ('hosts', 'rows')])
def test_deltas_lie_upon_their_base(old, new, key, tmp_path):
  setting = Setting(old, key)
  bodies = [setting.save(tmp_path, 0)]
  for step in (1, 2):
    marks = some_marks(setting, step)

    def moved(x, mark, step=step):
      hit = ((mark & jnp.uint8(2)) > 0).reshape(-1, *[1] * (x.ndim - 1))
      return jnp.where(hit, x + jnp.asarray(step, x.dtype), x)

    setting.arrays = {n: moved(x, marks[n]) for n, x in setting.arrays.items()}
    setting.slots = {
      n: {s: moved(x, marks[n]) for s, x in own.items()}
      for n, own in setting.slots.items()
    }
    bodies.append(setting.save(tmp_path, step, 'delta', marks, [[0, 0]]))
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
  other = Setting(new, key)
  onto = other.load(tmp_path, bodies)
  whole = {n: np.asarray(x) for n, x in onto.arrays.items()}
  held = {n: np.asarray(x) for n, x in setting.arrays.items()}
  for table in SPECS:
    np.testing.assert_array_equal(
      relayout.table(other.layout, whole, table),
      relayout.table(setting.layout, held, table),
    )
  assert any(x.any() for x in onto.marks.values())


def test_replicas_are_saved_once_and_loaded_everywhere(key, tmp_path):
  two = plan(
    1, 2, a=('row_wise',), b=('table_wise', (1,)), c=('column_wise', (0, 1))
  )
  setting, one = Setting(two, key, replicas=2), Setting('whole', key)
  body = setting.save(tmp_path, 1)
  assert sum(len(list((tmp_path / '1/rows/a').iterdir())) for _ in '1') == 6
  setting.assert_holds(setting.load(tmp_path, [body]))
  one.assert_holds(one.load(tmp_path, [body]))


def test_a_base_that_lacks_rows_is_refused(key, tmp_path):
  setting = Setting('rows', key)
  body = setting.save(tmp_path, 1)
  del body['files'][next(f for f in body['files'] if f.startswith('rows/c'))]
  with pytest.raises(CheckpointError, match="lacks . rows, of table 'c'"):
    setting.load(tmp_path, [body])


def test_other_tables_are_refused_and_resized_ones_on_request(key, tmp_path):
  setting = Setting('rows', key)
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
  assert not relayout.table(setting.layout, whole, 'a').any()
  np.testing.assert_array_equal(
    relayout.table(setting.layout, whole, 'c'),
    relayout.table(setting.layout, setting.host[0], 'c'),
  )
  del body['rows']['tables']['b']
  with pytest.raises(CheckpointError, match="no table 'b'; there are: a, c"):
    setting.load(tmp_path, [body])
