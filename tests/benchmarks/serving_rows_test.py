"""Tests of the benchmark of packed tables."""

import sys
import types

import numpy as np
import pytest

from benchmarks import serving_rows


def test_speed_beside_a_peer(tmp_path, rows, monkeypatch):
  def run(command, check):
    assert check and str(command[1]).endswith('peer_packed_bags.py')
    given = np.load(command[2])
    assert given['ids'].size == 64 * int(given['lengths'])
    np.savez(command[3], version='9', **{'tbe_int4/s': 1.0})

  # Not the module itself, whose `run` compiles the C++ operator.
  fake = types.SimpleNamespace(run=run)
  monkeypatch.setattr(serving_rows, 'subprocess', fake)
  serving_rows.main([
    '--part=speed', '--smoke', '--repeats=1', '--results', str(tmp_path),
    '--formats', 'tbe_int4', 'tbe_fp8', '--peer_python', sys.executable,
  ])  # fmt: skip
  found = rows('serving_rows')
  assert found['speed/tbe_int4, C++']['peer_ms'] == 1000
  share = found['speed/tbe_int4, XLA']['bytes_x']
  assert share == pytest.approx(36 / 256, rel=1e-3)
  assert 'speed/tbe_fp8, C++' not in found
  assert found['speed/float32, C++']['float32_x'] == 1


def test_quality_is_of_the_same_weights(tmp_path, rows, monkeypatch):
  def evaluate(workdir, number_format):
    worse = 0.1 if number_format == 'tbe_int2' else 0.0
    return {'auc': float(workdir) - worse}, 10.0 if worse else 100.0

  monkeypatch.setattr(serving_rows, 'evaluate', evaluate)
  serving_rows.main([
    '--part=quality', '--results', str(tmp_path), '--run', 'x=0.9,0.7',
    '--formats', 'tbe_int2',
  ])  # fmt: skip
  found = rows('serving_rows')
  assert found['x/float32/auc']['value'] == pytest.approx(0.8)
  row = found['x/tbe_int2/auc']
  assert row['minus'] == pytest.approx(-0.1) and row['bytes_x'] == 0.1
  assert row['minus_se'] == pytest.approx(0.0) and row['seeds'] == 2
