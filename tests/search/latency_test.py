"""Tables of latencies: what they say, and whose they are."""

import dataclasses
import json

import pytest

from genrec_jax.search import latency
from genrec_jax.search.latency import LatencyTable
from tests.search import spaces


@pytest.fixture(scope='module')
def table():
  """One in which a matrix takes as long as it has weights."""
  sizes = (1, 3, 5, 40)
  times = tuple(tuple(float(a * b) for b in sizes) for a in sizes)
  return LatencyTable(latency.name_machine(), 8, sizes, times)


def test_latency_is_the_sum_of_the_matrices(table):
  space = dataclasses.replace(spaces.make_space(), latency=table)
  for architecture in list(space.list_architectures())[::97]:
    costs = space.measure_architecture(architecture)
    # Without biases, two operations are one weight.
    assert costs['latency_us'] == pytest.approx(costs['flops'] / 2)
  weights = spaces.draw_weights(space.choices)
  found = space.measure(weights)
  assert found['latency_us'] == pytest.approx(found['flops'] / 2)


def test_a_table_is_measured_and_read(tmp_path, capsys):
  path = tmp_path / 'latency.json'
  latency.main([str(path), '--sizes', '8', '256', '--batch', '16'])
  assert 'input by output size' in capsys.readouterr().out
  found = LatencyTable.load(path)
  assert found.sizes == (8, 256) and found.batch == 16
  assert found.times[1][1] > found.times[0][0] > 0
  assert found == LatencyTable.load(path)  # tasks that have it are compared
  with pytest.raises(SystemExit):
    latency.main([str(path), '--sizes', '8'])


def test_extremes_are_those_of_time(table):
  """A wider layer may be the quicker one."""
  quick = {(3, 5), (5, 5)}
  times = tuple(
    tuple(0.1 if (a, b) in quick else float(a * b) for b in table.sizes)
    for a in table.sizes
  )
  odd = dataclasses.replace(table, times=times)
  space = dataclasses.replace(spaces.make_space(), latency=odd)
  least, most = (
    space.measure_architecture(a)['latency_us']
    for a in space.find_extremes('latency_us')
  )
  every = [
    space.measure_architecture(a)['latency_us']
    for a in list(space.list_architectures())[::7]
  ]
  assert least <= min(every) + 1e-9 and most >= max(every) - 1e-9
  by_size = space.measure_architecture(space.find_extremes()[0])
  assert least <= by_size['latency_us']


def test_tables_of_another_machine_or_none_are_refused(table, tmp_path):
  path = tmp_path / 'latency.json'
  dataclasses.replace(table, machine='tpu, v9').save(path)
  with pytest.raises(ValueError, match=r'another machine \(tpu, v9\)'):
    LatencyTable.load(path)
  with pytest.raises(ValueError, match='latency_table=.*nothing.json cannot'):
    LatencyTable.load(tmp_path / 'nothing.json')
  path.write_text('{}')
  with pytest.raises(ValueError, match='is no table of latencies'):
    LatencyTable.load(path)
  table.save(path)
  found = json.loads(path.read_text())
  path.write_text(json.dumps(found | {'times': [[1.0]]}))
  with pytest.raises(ValueError, match='its times are damaged'):
    LatencyTable.load(path)


def test_sizes_beyond_a_table_are_refused(table):
  with pytest.raises(ValueError, match='sizes from 1 to 40, .* has 64'):
    table.find(3, 64)
  with pytest.raises(ValueError, match='has 90'):
    table.find(90, 3)
