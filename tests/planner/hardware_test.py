"""Descriptions of machines."""

import dataclasses
import json

import pytest

from genrec_jax.planner import calibrate, hardware


@pytest.mark.parametrize('name', hardware.PRESETS)
def test_presets_survive_a_file(name, tmp_path):
  preset = hardware.find_topology(name)
  assert preset.name == name and preset.source
  path = tmp_path / 'machine.json'
  path.write_text(preset.to_json())
  assert hardware.find_topology(str(path)) == preset
  assert hardware.find_topology(str(path), hosts=3) == hardware.find_topology(
    name, hosts=3
  )


@pytest.mark.parametrize('name, rate', [('v5e', 1.6e12), ('v6e', 3.2e12)])
def test_bisection_of_a_pod_is_the_documented_one(name, rate):
  pod = hardware.find_topology(name, hosts=64, devices=4)
  assert pod.bisection == pytest.approx(rate)


@pytest.mark.parametrize('name', hardware.PRESETS)
def test_presets_know_no_latency(name, tmp_path):
  preset = hardware.find_topology(name)
  fields = [
    f'{link}_{what}'
    for link in ('near', 'far')
    for what in ('latency', 'half_message')
  ]
  assert [getattr(preset, field) for field in fields] == [0.0] * 4
  path = tmp_path / 'machine.json'
  # A file from before these fields existed says the same.
  old = dataclasses.asdict(preset)
  path.write_text(json.dumps({k: v for k, v in old.items() if k not in fields}))
  assert hardware.find_topology(str(path)) == preset
  late = hardware.find_topology(str(path), far_latency=3e-6)
  assert hardware.from_json(late.to_json()) == late != preset


def test_bisection_of_a_network():
  assert hardware.find_topology('h100', hosts=2).bisection == 8 * 50e9
  assert hardware.find_topology('h100').bisection == 4 * 450e9


@pytest.mark.parametrize(
  'call, message',
  [
    (
      lambda: hardware.find_topology('h10'),
      "no topology 'h10'.*Did you mean 'h100'",
    ),
    (
      lambda: hardware.find_topology('h100', host=2),
      "no 'host'. Did you mean 'hosts'",
    ),
    (lambda: hardware.find_topology('h100', hosts=0), 'hosts is 0'),
    (lambda: hardware.find_topology('h100', devices=1.5), 'devices is 1.5'),
    (lambda: hardware.find_topology('h100', memory=-1), 'memory is -1'),
    (lambda: hardware.find_topology('h100', reserve=1.0), 'reserve is 1.0'),
    (
      lambda: hardware.find_topology('h100', far_latency=-1e-6),
      'far_latency is -1e-06, must be a number of seconds',
    ),
    (
      lambda: hardware.find_topology('h100', near_half_message=float('nan')),
      'near_half_message is nan, must be a number of bytes',
    ),
    (lambda: hardware.from_json('{"nam": "x"}'), r"has no \['nam'\]"),
    (lambda: hardware.from_json('{"name": "x"}'), 'not a topology'),
  ],
)
def test_what_cannot_be_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize(
  'text', ['[[1]]', '5', 'null', '[' * 10**5, '{"a": ' * 10**5, '{', '']
)
def test_a_file_that_is_no_topology(tmp_path, text):
  path = tmp_path / 'machine.json'
  path.write_text(text)
  with pytest.raises(ValueError, match=f'^{path}: '):
    hardware.find_topology(str(path))


@pytest.mark.parametrize('number', ['"4"', 'Infinity', 'NaN', '[]', 'null'])
def test_a_number_that_is_none(tmp_path, number):
  path = tmp_path / 'machine.json'
  text = hardware.find_topology('v5e').to_json()
  path.write_text(text.replace('"hosts": 4', f'"hosts": {number}'))
  with pytest.raises(ValueError, match=f'^{path}: '):
    hardware.find_topology(str(path))


def test_a_file_that_is_not_there():
  with pytest.raises(
    FileNotFoundError, match='planner.calibrate --out no.json'
  ):
    hardware.find_topology('no.json')


def test_calibration_measures_and_writes(tmp_path, capsys):
  path = tmp_path / 'machine.json'
  calibrate.main(['--out', str(path), '--size', '4000000', '--name', 'mine'])
  printed = capsys.readouterr().out
  for word in ('lookup', 'row update', 'all_to_all', 'psum_scatter'):
    assert word in printed
  found = hardware.find_topology(str(path))
  assert (found.name, found.hosts, found.devices) == ('mine', 1, 8)
  rates = ('memory_bandwidth', 'intra', 'flops', 'backward')
  assert all(getattr(found, rate) > 0 for rate in rates)
  # A topology for planning more of the same.
  assert dataclasses.replace(found, hosts=4).group_size == 32
