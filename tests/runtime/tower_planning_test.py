"""What `genrec plan` says of a model that stands on towers."""

import dataclasses
import json

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.embedding.plan import PlanError
from genrec_jax.features import FeatureSpec
from genrec_jax.planner import InsufficientMemory
from genrec_jax.runtime import planning
from genrec_jax.tasks.ranking import Ranking

SHAPE = {'replicas': 1, 'hosts': 2, 'devices': 4}
FEATURES = [
  FeatureSpec(f'f{i}', 'multi_hot' if i % 2 else 'categorical', rows=1_000,
              max_len=3 * (i % 2))
  for i in range(8)
] + [FeatureSpec('price', 'numeric')]  # fmt: skip
TOWERS = [['f0', 'f1', 'f2', 'f3', 'f4'], ['f5', 'f6', 'f7']]


@pytest.fixture
def config():
  found = config_lib.ranking()
  found.model = config_lib.dlrm(dim=16, bottom=(8,), top=(8,), towers='2')
  found.train.batch_size = 8 * 96
  found.optimizer.rows.name = 'row_adagrad'
  found.parallel.update(hosts=2, devices=4, topology='h100')
  return found


def make_task(config, towers=TOWERS):
  return Ranking.from_config(config, FEATURES, ('label',), towers=towers)


@pytest.mark.parametrize('scheme', ['', 'auto', 'table_row_wise'])
def test_a_report_shows_towers_whatever_the_scheme(config, tmp_path, scheme):
  config.parallel.scheme = scheme
  text = planning.describe_plan(config, make_task(config), tmp_path)
  # Three vectors of five and two of three: half, rounded up.
  assert (
    '2 towers on 2 hosts: 8 vectors of 16 go in and 5 of 16 come out' in text
  )
  assert 'flat, tables in the same places' in text and 'these towers' in text
  plan = json.loads((tmp_path / 'plan.json').read_text())
  assert plan['extra']['towers'] == {'features': TOWERS}
  # The plan that was written is one that a run can follow.
  config.parallel.update(plan=str(tmp_path / 'plan.json'), scheme='')
  again = planning.describe_plan(config, make_task(config), tmp_path / 'again')
  assert again.split('\n\n')[3] == text.split('\n\n')[3]


def test_formats_within_hosts_and_between_them(config, tmp_path):
  def list_sent(**formats):
    config.parallel.exchange.update(**formats)
    text = planning.describe_plan(config, make_task(config), tmp_path)
    return {
      line[:42].strip(): line.split()[-2:]
      for line in text.splitlines()
      if line.startswith(('sums to', 'what the towers', 'gradients of'))
    }

  # Three vectors of 16 for 96 examples, of each of two towers.
  assert list_sent()['what the towers make'] == ['18.4', 'kB']
  sums = list_sent()['sums to all devices of the host']
  narrow = list_sent(forward='float16')
  assert narrow['what the towers make'] == ['9.22', 'kB']
  assert float(narrow['sums to all devices of the host'][0]) == pytest.approx(
    float(sums[0]) / 2, rel=0.01
  )
  mixed = list_sent(near_forward='float32', near_backward='bfloat16')
  assert mixed['sums to all devices of the host'] == sums
  assert mixed['what the towers make'] == ['9.22', 'kB']
  assert mixed['gradients of what they make'] == ['18.4', 'kB']
  assert mixed['gradients of sums'] == narrow['sums to all devices of the host']


def test_formats_on_the_way_to_no_tower(config):
  config.model.towers = ''
  config.parallel.exchange.near_backward = 'int8'
  with pytest.raises(ConfigError, match='near_backward are formats .* towers'):
    planning.make_plan(config, make_task(config, ()), SHAPE)


def test_a_large_table_is_spread_over_its_host(config):
  features = [
    dataclasses.replace(f, rows=200_000) if f.name == 'f5' else f
    for f in FEATURES
  ]
  task = Ranking.from_config(config, features, ('label',), towers=TOWERS)
  plan = planning.make_plan(config, task, SHAPE)
  schemes = {name: table.scheme for name, table in plan.tables.items()}
  assert schemes.pop('f5') == 'table_row_wise'
  assert {*schemes.values()} == {'table_wise'}


def test_a_plan_of_other_towers_is_refused(config, tmp_path):
  planning.describe_plan(config, make_task(config), tmp_path)
  path = tmp_path / 'plan.json'
  config.parallel.plan = str(path)
  other = make_task(config, [TOWERS[1], TOWERS[0]])
  with pytest.raises(PlanError, match='for the towers f0, f1.* has f5, f6'):
    planning.make_plan(config, other, SHAPE)
  config.model.towers = ''
  with pytest.raises(PlanError, match='f6, f7, and the model has none'):
    planning.make_plan(config, make_task(config, ()), SHAPE)
  plan = json.loads(path.read_text())
  plan['extra']['towers'] = None
  path.write_text(json.dumps(plan))
  with pytest.raises(PlanError, match='"towers" of the plan: it must hold'):
    planning.make_plan(config, make_task(config, ()), SHAPE)


def test_towers_from_outside_that_are_a_number(config):
  config.model.towers = ''
  with pytest.raises(TypeError, match='must be an embedding.towers.Towers'):
    outside = Extensions(towers=5)
    planning.make_plan(config, make_task(config, ()), SHAPE, outside)


def test_memory_is_checked_with_towers(config):
  task = make_task(config)
  plan = planning.make_plan(config, task, SHAPE)
  planning.check_memory(config, task, plan)
  config.parallel.memory_gb = 1e-4
  with pytest.raises(InsufficientMemory):
    planning.check_memory(config, task, plan)


def test_a_device_has_the_weights_of_its_hosts_towers(config):
  task = make_task(config)
  one = dict(SHAPE, hosts=1)
  alone, own = (planning.dense_part(config, task, x) for x in (one, SHAPE))
  # A tower: 5 vectors of 16 to 3 of 16.
  assert alone.parameters - own.parameters == 5 * 16 * 3 * 16
