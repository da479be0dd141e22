"""Plans of an experiment: what the planner is told, and how features travel."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.embedding.plan import PlanError
from genrec_jax.embedding.scheme import ONE, SCHEMES, Scheme
from genrec_jax.features import ExpectedRead, TableSpec
from genrec_jax.planner import InsufficientMemory
from genrec_jax.runtime import build, planning

SHAPE = {'replicas': 1, 'hosts': 2, 'devices': 4}


class Shop:
  """A table of items read one by one and as bags, and one of tags."""

  def tables(self):
    return {
      'items': TableSpec('items', 1_000_000, 64, update='row_adagrad'),
      'tags': TableSpec('tags', 500_000, 64, update='row_adagrad'),
      'days': TableSpec('days', 7, 64),  # optax moves it; nothing to plan
    }

  def init(self, key):
    del key
    return {'w': jnp.zeros(3)}

  def expected_reads(self):
    return {
      'clicked': ExpectedRead('items', 50.0),
      'basket': ExpectedRead('items', 2.0, 'sum'),
      'tags': ExpectedRead('tags', 30.0, 'mean'),
      'day': ExpectedRead('days', 1.0),
    }


@pytest.fixture
def config():
  found = config_lib.ranking()
  found.train.batch_size = 8192
  found.parallel.hosts, found.parallel.devices = 2, 4
  return found


def test_features_are_told_by_name_where_they_are_pooled(config):
  items, tags = planning.expected_loads(config, Shop(), SHAPE)
  assert [(f.name, f.length, f.pooled) for f in items.features] == [
    ('', 50.0, False),
    ('basket', 2.0, True),
  ]
  assert [(f.name, f.length) for f in tags.features] == [('tags', 30.0)]
  assert (items.ids, items.rows, items.optimizer) == (
    52.0,
    1_000_000,
    'row_adagrad',
  )


@pytest.mark.parametrize(
  'scheme, pooling',
  [
    ('row_wise', {'basket': 'rows', 'tags': 'sums'}),
    ('table_wise', {'basket': 'sums', 'tags': 'sums'}),
  ],
)
def test_a_plan_says_what_sends_fewer_bytes(config, scheme, pooling):
  config.parallel.scheme = scheme
  assert planning.make_plan(config, Shop(), SHAPE).pooling == pooling


@pytest.mark.parametrize('scheme', ['row_wise', 'auto'])
@pytest.mark.parametrize('pool', ['rows', 'sums'])
def test_one_way_can_be_wanted_for_all(config, scheme, pool):
  config.parallel.update(pool=pool, scheme=scheme, topology='h100')
  plan = planning.make_plan(config, Shop(), SHAPE)
  assert plan.pooling == {'basket': pool, 'tags': pool}


def test_order_has_sums_of_one_device_alone(config):
  config.parallel.determinism = 'mesh_invariant'
  for scheme, way in (('row_wise', 'rows'), ('table_wise', 'sums')):
    config.parallel.scheme = scheme
    plan = planning.make_plan(config, Shop(), SHAPE)
    assert set(plan.pooling.values()) == {way}
  config.parallel.update(scheme='row_wise', pool='sums')
  with pytest.raises(PlanError, match="only a device that has all of a table"):
    planning.make_plan(config, Shop(), SHAPE)


def test_a_plan_file_keeps_its_ways(config, tmp_path):
  path = tmp_path / 'plan.json'
  made = planning.make_plan(config, Shop(), SHAPE)
  dataclasses.replace(made, pooling={'basket': 'sums'}).save(path)
  config.parallel.plan = str(path)
  plan = planning.make_plan(config, Shop(), SHAPE)
  assert plan.pooling == {'basket': 'sums', 'tags': 'sums'}
  assert plan.same_placement(made) and plan != made


def test_a_way_that_does_not_exist(config):
  config.parallel.pool = 'sum'
  with pytest.raises(ConfigError, match="parallel.pool is 'sum', must be one"):
    planning.make_plan(config, Shop(), SHAPE)


def test_the_report_names_what_travels_as_sums(config, tmp_path):
  config.parallel.update(topology='h100', scheme='row_wise')
  text = planning.describe_plan(config, Shop(), tmp_path)
  assert 'travel as sums: tags\n' in text
  assert 'travel as rows, though pooled: basket\n' in text
  saved = json.loads((tmp_path / 'plan.json').read_text())
  assert saved['pooling'] == {'basket': 'rows', 'tags': 'sums'}


def on_the_last_device(turn, spec, hosts, devices):
  return [hosts * devices - 1]


def test_a_scheme_from_outside_is_planned_with(config):
  schemes = {'last_device': Scheme(ONE, places=on_the_last_device)}
  last = Extensions(schemes=schemes)
  config.parallel.scheme = 'last_device'
  plan = planning.make_plan(config, Shop(), SHAPE, last)
  assert {t.at for t in plan.tables.values()} == {(7,)}
  with pytest.raises(ConfigError, match="parallel.scheme is 'last_device'"):
    planning.make_plan(config, Shop(), SHAPE)
  config.parallel.update(scheme='auto', topology='h100')
  plan = planning.make_plan(config, Shop(), SHAPE, last)
  assert {t.scheme for t in plan.tables.values()} <= {*SCHEMES, *schemes}


def test_one_device_is_told_of_places_that_are_none(config, tmp_path):
  config.parallel.scheme = 'nonsense'
  with pytest.raises(ConfigError, match="parallel.scheme is 'nonsense', must"):
    build.build_runtime(config, Shop(), optax.sgd(0.1))
  config.parallel.update(scheme='', plan=str(tmp_path / 'none.json'))
  with pytest.raises(PlanError, match='parallel.plan: .*none.json cannot be'):
    build.build_runtime(config, Shop(), optax.sgd(0.1))


def test_the_planner_takes_rows_where_no_bit_may_depend_on_the_mesh(config):
  config.parallel.update(scheme='auto', determinism='mesh_invariant')
  for shape in ({**SHAPE, 'hosts': 1, 'devices': 1}, SHAPE):
    plan = planning.make_plan(config, Shop(), shape)
    assert set(plan.pooling.values()) == {'rows'}
  config.parallel.pool = 'sums'
  with pytest.raises(ConfigError, match="parallel.pool='sums' and parallel"):
    planning.make_plan(config, Shop(), SHAPE)


def test_the_share_of_distinct_ids_is_of_one_device(config):
  """A device sees its part of the batch, in which fewer ids repeat."""
  (tags,) = (
    load
    for load in planning.expected_loads(config, Shop(), SHAPE)
    if load.name == 'tags'
  )
  drawn = 30.0 * config.train.batch_size / 8
  expected = 500_000 * -np.expm1(-drawn / 500_000) / drawn
  assert tags.distinct == pytest.approx(expected)


def test_the_planner_knows_what_is_not_in_tables(config, monkeypatch):
  told = {}

  def make_plan(**known):
    told.update(known)
    return None, None

  monkeypatch.setattr(planning.planner, 'make_plan', make_plan)
  config.parallel.scheme = 'auto'
  planning.make_plan(config, Shop(), SHAPE)
  assert told['dense'] == planning.dense_part(config, Shop(), SHAPE)
  assert told['dense'].parameters == 3 + 7 * 64


@pytest.mark.parametrize(
  'dense, devices', [('ddp', 1), ('grad_op', 1), ('hybrid', 4), ('fsdp', 8)]
)
def test_averages_are_one_more_copy_of_what_is_no_table(config, dense, devices):
  config.parallel.dense = dense
  plain = planning.dense_part(config, Shop(), SHAPE)
  # Three parameters and seven rows of 64, their gradients and two moments.
  assert plain.bytes == 4 * 4 * (3 + 7 * 64) // devices
  config.optimizer.average = 0.999
  kept = planning.dense_part(config, Shop(), SHAPE)
  assert kept.bytes == (4 * 4 * (3 + 7 * 64) + 4 * 3) // devices
  assert kept.parameters == plain.parameters == 3 + 7 * 64


@pytest.mark.parametrize(
  'change, words',
  [
    (lambda text: None, r'cannot be read \(No such file or directory\)'),
    (lambda text: text[: len(text) // 2], 'a plan must be JSON'),
    (
      lambda text: text.replace('"hosts": 2', '"hosts": 3'),
      'is a plan for parallel.replicas=1, parallel.hosts=3, parallel.devices=4,'
      ' and the config says parallel.replicas=1, parallel.hosts=2, '
      'parallel.devices=4',
    ),
    (
      lambda text: text.replace('"items"', '"shops"'),
      r"the plan is of the tables \['shops', 'tags'\], the model has",
    ),
    (
      lambda text: text.replace('1000000', '999999'),
      r"table 'items' is planned as .*\(999999, 64",
    ),
  ],
)
@pytest.mark.parametrize('call', [planning.make_plan, planning.describe_plan])
def test_a_plan_file_that_cannot_be_followed(
  config, tmp_path, change, words, call
):
  """One sentence with the key, and what to change."""
  path = tmp_path / 'plan.json'
  planning.make_plan(config, Shop(), SHAPE).save(path)
  text = change(path.read_text())
  path.write_text(text) if text else path.unlink()
  config.parallel.update(plan=str(path), topology='h100')
  last = SHAPE if call is planning.make_plan else tmp_path / 'elsewhere'
  with pytest.raises(PlanError) as refused:
    call(config, Shop(), last)
  said = str(refused.value)
  assert (
    said.startswith('parallel.plan: ') and 'leave parallel.plan out' in said
  )
  assert re.search(words, said)


def test_an_order_that_replicas_would_change(config):
  tables = {'items': Shop().tables()['items']}
  config.parallel.update(determinism='mesh_invariant', replicas=2)
  with pytest.raises(ConfigError, match=r'parallel.replicas=2 .* set parallel'):
    planning.check_parallel(config.parallel, 8, tables)
  planning.check_parallel(config.parallel, 8, {})  # what optax moves is equal
  config.parallel.replicas = 1
  planning.check_parallel(config.parallel, 8, tables)


class Compared(Shop):
  """An evaluation keeps a vector of each item."""

  def count_evaluation_bytes(self, shards):
    return 1_000_000 // shards * 64 * 4


@pytest.mark.parametrize(
  'memory_gb, task, trains, lacking',
  [
    # 48 MB of rows on a device, 0.75 MB of slots, 32 MB of vectors.
    (0.050, Shop(), False, '48.0 MB of rows and 1.80 kB of parameters, and'),
    (0.057, Shop(), False, ''),
    (0.057, Shop(), True, "scheme 'row_wise' does not fit"),
    (0.060, Shop(), True, ''),
    (0.060, Compared(), True, 'with their optimizers, and 32.0 MB of vectors'),
    (0.060, Compared(), False, 'parameters and 32.0 MB of vectors of items'),
    (0.100, Compared(), True, ''),
  ],
)
def test_each_mode_must_fit(config, memory_gb, task, trains, lacking):
  config.parallel.memory_gb, config.train.batch_size = memory_gb, 8
  plan = planning.make_plan(config, task, SHAPE)

  def check():
    planning.check_memory(config, task, plan, trains=trains)

  if not lacking:
    return check()
  with pytest.raises(InsufficientMemory) as refused:
    check()
  assert lacking in str(refused.value)
  if isinstance(task, Compared):
    assert 'set eval.keep_vectors=False, take' in str(refused.value)
    config.eval.keep_vectors = False
    check()
    config.eval.keep_vectors = True
  if trains and isinstance(task, Compared):
    config.eval.splits = ()
    check()
