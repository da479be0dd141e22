"""Tests of the benchmark of quantisers."""

import subprocess
import sys

import numpy as np

from benchmarks import quantiser_speed


def test_smoke_beside_a_peer(tmp_path, rows, monkeypatch):
  def run(command, check):
    assert check and command[1].endswith('peer_fused_rows.py')
    out = {'version': '9'}
    for name in quantiser_speed.TABLE_ROWS:
      out |= {f'{name}/s': 1.0, f'{name}/back_s': 2.0}
    np.savez(command[3], **out)

  monkeypatch.setattr(subprocess, 'run', run)
  quantiser_speed.main([
    '--smoke', '--repeats=1', '--results', str(tmp_path),
    '--peer_python', sys.executable,
  ])  # fmt: skip
  found = rows('quantiser_speed')
  assert found['copy']['copy_x'] == 1
  assert found['mx6, encode']['gelem_s'] > 0
  assert found['rows in fbgemm_int4, program']['peer_back_ms'] == 2000
