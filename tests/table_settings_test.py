"""Settings by table: what a config says, and what the tables do."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks import hlo
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir
from genrec_jax.config import ConfigError, TableSettings
from genrec_jax.config import tables as tables_lib
from genrec_jax.embedding import init, lookup, relayout, single_scheme
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.runtime import planning
from tests.tolerances import assert_close

SPEC = TableSpec('item', 40, 8, update='row_adagrad')
NAMES = [f't{i:02}' for i in range(26)]


def settings(*entries) -> TableSettings:
  return TableSettings(entries)


def test_the_first_match_counts():
  some = settings(
    ('item', {'rate': 0.1, 'b1': 0.5, 'codec': 'int8', 'init': 0.3}),
    ('.*', {'optimizer': 'dense'}),
  )
  item = some(SPEC)
  assert (item.rate, item.init_std, item.update) == (0.1, 0.3, 'row_adagrad')
  assert item.options == (('beta1', 0.5),) and item.codec == ('int8', 'int8')
  other = dataclasses.replace(SPEC, name='user')
  assert some(other).update == 'dense'
  assert settings()(SPEC) == SPEC  # no entries: every table stays as it is


def test_a_table_is_drawn_from_a_distribution_of_its_own():
  item = settings(('item', {'distribution': 'normal', 'init': 1e-4}))(SPEC)
  assert (item.distribution, item.init_std) == ('normal', 1e-4)
  assert SPEC.distribution == 'truncated_normal'
  assert {*tables_lib.DISTRIBUTIONS} == {*init.DISTRIBUTIONS}


def test_frequent_ids_have_rows_of_their_own():
  own = {'id_map': 'frequency', 'rows': 7, 'private': 3}
  item = settings(('item', own))(SPEC)
  assert (item.rows, item.ids, item.private) == (7, 40, 3)


def test_hashed_ids_have_a_table_of_fewer_rows():
  item = settings(('item', {'id_map': 'hash', 'rows': 7}))(SPEC)
  assert (item.rows, item.ids, item.id_map) == (7, 40, 'hash')


@pytest.mark.parametrize(
  'entries, told',
  [
    ([('user', {})], "no entry of config.tables matches table 'item'"),
    ([('item', {'optimzer': 'adam'})], "did you mean 'optimizer'"),
    ([('it(em', {})], 'is not a regex'),
    ([('item', 3)], 'must be pairs'),
    ([('item', {'optimizer': 'dense', 'rate': 0.1})], 'optimizer.groups'),
    ([('item', {'optimizer': 'dense', 'dtype': 'bfloat16'})], 'may be narrow'),
    ([('item', {'l2': 0.1})], 'optimizer.rows.weight_decay'),
    ([('item', {'rows': 7})], 'needs an id_map'),
    ([('item', {'rows': 7, 'id_map': 'frequency', 'private': -1})], 'zero or'),
    ([('item', {'rate': -1.0})], 'zero or more'),
    ([('item', {'rows': 0, 'id_map': 'hash'})], 'must be 1 or more'),
    ([('item', {'rows': 10**12, 'id_map': 'hash'})], 'ids have 32 bits'),
    ([('item', {'distribution': 'uniform'})], 'must be one of truncated_norm'),
    ([('item', {'distribution': 'uniform_rows', 'init': 1})], "out 'init'"),
    ([('item', {'rate': True})], 'must be a number'),
    ([('item', {'eps': '1'})], "eps is '1', must be a number"),
    ([('item', {'b1': None})], 'b1 is None, must be a number'),
    ([('item', {'codec': ()})], 'a name, or a pair of names'),
    ([('item', {'codec': ('int8', 5)})], 'a name, or a pair of names'),
    ([('item', {'scheme': 5})], 'must be the name of a scheme'),
    ([('item', {'stochastic_rounding': 'no'})], 'must be True or False'),
    ([('item', {'optimizer': 'dense', 'foo': 1})], "unknown key 'foo'"),
  ],
)
def test_what_is_no_setting(entries, told):
  with pytest.raises(ConfigError, match=told):
    settings(*entries)(SPEC)


@pytest.mark.parametrize(
  'entries, told',
  [
    ([('itm', {}), ('.*', {})], "'itm' matches no table.*mean 'item'"),
    ([('i.*', {}), ('item', {})], 'this entry decides nothing'),
    ([('seen', {}), ('.*', {})], "feature 'seen' reads table 'item'"),
    ([('item', {}), ('item', {})], 'this entry decides nothing'),
    ([('.*', {}), ('.*', {})], 'this entry decides nothing'),
  ],
)
def test_entries_that_decide_nothing(entries, told):
  """Two patterns for one table, or a feature's name for that of its table."""
  with pytest.raises(ConfigError, match=told):
    settings(*entries).check(['item'], {'item': 'item', 'seen': 'item'})
  # What stands for all other tables may stand for none.
  settings(('item', {}), ('.*', {})).check(['item'])


def test_where_a_table_lies_may_change_and_how_it_learns_may_not(tmp_path):
  def config(**entry):
    c = config_lib.retrieval()
    c.tables = (('items', {'optimizer': 'adam', **entry}),)
    return c

  path = tmp_path / 'config.json'
  config_lib.save(config(rate=0.1, scheme='row_wise'), path)
  workdir.check_trained(tmp_path, config(rate=0.1, scheme='grid', codec='int8'))
  with pytest.raises(ConfigError, match='tables: saved'):
    workdir.check_trained(tmp_path, config(rate=0.2, scheme='row_wise'))


def test_entries_of_the_command_line():
  c = config_lib.retrieval()
  text = "(('items', {'optimizer': 'adam', 'rate': 0.1}),)"
  config_lib.apply_override(c, f'tables={text}')
  assert tables_lib.table_settings(c).entries == (
    ('items', {'optimizer': 'adam', 'rate': 0.1}),
  )
  with pytest.raises(ConfigError, match='tables'):
    config_lib.apply_override(c, "tables=(('items', {'optimizer': 'adam'),)")


@pytest.mark.parametrize('tables', [None, 7, 'items'])
def test_entries_that_are_none(tables):
  c = config_lib.retrieval()
  with c.ignore_type():
    c.tables = tables
  with pytest.raises(ConfigError, match='must be pairs'):
    tables_lib.table_settings(c)


class Nothing:
  """A task whose tables are all updated by optax."""

  def tables(self):
    return {'t': TableSpec('t', 9, 4)}

  def init(self, key):
    del key
    return {}

  def expected_reads(self):
    return {}


@pytest.mark.parametrize('key', ['scheme', 'plan'])
def test_a_scheme_without_rows_is_an_error_that_names_the_key(key):
  c = config_lib.ranking()
  c.parallel[key] = 'table_wise'
  shape = {'replicas': 1, 'hosts': 2, 'devices': 4}
  with pytest.raises(ConfigError, match=f"parallel.{key} is 'table_wise'"):
    planning.make_plan(c, Nothing(), shape)
  c.parallel[key] = ''
  assert planning.make_plan(c, Nothing(), shape).tables == {}


def test_one_table_cannot_follow_two_schemes():
  class Rows(Nothing):
    def tables(self):
      return {'t': dataclasses.replace(SPEC, name='t', scheme='grid')}

  c = config_lib.ranking()
  c.parallel.scheme = 'auto'
  shape = {'replicas': 1, 'hosts': 2, 'devices': 4}
  with pytest.raises(ConfigError, match="the scheme 'grid', and parallel"):
    planning.make_plan(c, Rows(), shape)


# --- What the tables do


def many_specs(**fields) -> dict[str, TableSpec]:
  return {
    name: TableSpec(name, 20 + i, 8, 0.5, 'adam', rate=0.01 * (i + 1), **fields)
    for i, name in enumerate(NAMES)
  }


def options_of(number: int) -> tuple:
  return (('beta1', 0.5 + 0.01 * number), ('eps', 10.0 ** -(3 + number % 4)))


def step(tables, arrays, slots, ids, rates):
  """One lookup of the same ids in every table, and an update."""
  reads = {name: Read(ids[None], name) for name in tables.specs}
  routes = tables.route(reads)
  rows, *rest = tables.fetch(arrays, routes)
  pulled = jax.tree.map(jnp.sin, rows)  # some gradients
  pushed = tables.push(arrays, slots, routes, (pulled, *rest), rates, 0)
  seen = {
    name: lookup.take_rows(rows[name], routes.index[name][0]) for name in rows
  }
  return pushed.arrays, pushed.slots, seen


@functools.cache
def on_one_device(specs) -> dict[str, np.ndarray]:
  specs = dict(specs)
  tables, rates = LocalTables(specs), rates_of(specs)

  @jax.jit  # in one program, as a runtime does; each operation is compiled else
  def run(key):
    arrays = tables.init(key)
    slots = tables.init_slots(arrays)
    ids = jnp.arange(16, dtype=jnp.int32)
    for _ in range(2):
      arrays, slots, _ = step(tables, arrays, slots, ids, rates)
    return arrays

  return jax.device_get(run(jax.random.key(0)))


def rates_of(specs) -> dict:
  return {name: jnp.float32(spec.rate) for name, spec in specs.items()}


def sharded(specs, compiled_only=False):
  plan = single_scheme.plan_with_scheme(specs, 'row_wise', hosts=2, devices=4)
  tables = ShardedTables(lay_out(plan), specs)
  mesh, rates = mesh_lib.make_mesh(1, 2, 4), rates_of(specs)
  like = tables.layout.shapes()
  arrays_spec = tables.partition(like)
  slots_spec = tables.partition(jax.eval_shape(tables.init_slots, like))

  def mapped(fn, takes, gives):
    return jax.jit(
      jax.shard_map(
        fn, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False
      )
    )

  split = PartitionSpec(mesh_lib.AXES)
  arrays = mapped(tables.init, PartitionSpec(), arrays_spec)(jax.random.key(0))
  slots = mapped(tables.init_slots, (arrays_spec,), slots_spec)(arrays)
  run = mapped(
    lambda a, s, ids: step(tables, a, s, ids, rates)[:2],
    (arrays_spec, slots_spec, split),
    (arrays_spec, slots_spec),
  )
  ids = jnp.arange(16, dtype=jnp.int32)
  if compiled_only:
    return tables, hlo.find_collectives(run.lower(arrays, slots, ids).compile())
  for _ in range(2):
    arrays, slots = run(arrays, slots, ids)
  host = jax.device_get(arrays)
  return {n: relayout.gather_table(tables.layout, host, n) for n in specs}


@pytest.mark.parametrize('with_options', [False, True])
def test_each_table_moves_by_its_own_settings(with_options):
  specs = many_specs()
  if with_options:
    specs = {
      name: dataclasses.replace(spec, options=options_of(i))
      for i, (name, spec) in enumerate(specs.items())
    }
  wanted = on_one_device(tuple(specs.items()))
  found = sharded(specs)
  for name in NAMES:
    assert_close(found[name], wanted[name])
  # And they do differ: the first table with the settings of the last is not it.
  other = dataclasses.replace(
    specs['t00'], rate=specs['t25'].rate, options=specs['t25'].options
  )
  changed = on_one_device((('t00', other),))
  assert np.abs(changed['t00'] - wanted['t00']).max() > 1e-3


def test_many_rates_are_still_one_exchange():
  """The collectives are those of equal rates, one by one."""
  tables, found = sharded(many_specs(), compiled_only=True)
  assert len(tables.layout.stacks) == 1
  alike = {
    name: dataclasses.replace(spec, rate=0.1)
    for name, spec in many_specs().items()
  }
  _, wanted = sharded(alike, compiled_only=True)

  def shape(collectives):
    return sorted((c.op, c.shapes, c.count) for c in collectives)

  assert shape(found) == shape(wanted)


def test_a_codec_of_its_own_changes_one_table():
  plain = {n: s for n, s in many_specs().items() if n in NAMES[:3]}
  narrow = dict(plain)
  narrow['t01'] = dataclasses.replace(plain['t01'], codec=('int8', 'bfloat16'))
  one, other = sharded(plain), sharded(narrow)
  for name in ('t00', 't02'):
    np.testing.assert_array_equal(one[name], other[name])
  assert np.any(one['t01'] != other['t01'])
  np.testing.assert_allclose(one['t01'], other['t01'], atol=0.05)
