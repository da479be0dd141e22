"""Tests of the benchmark of row quantisers."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks import row_quant
from genrec_jax.numerics import range_search
from genrec_jax.numerics.row_quant import quantize


@pytest.fixture
def torch_of_ours(monkeypatch):
  """A peer that finds what we find, but for one row of `adaptive/4`."""

  def run(command, check):
    _, program, source, target = command
    assert program.exists() and check
    rows = np.load(source)
    out = {'torch': '9.9'}
    for bits in (2, 4):
      arrays = quantize(rows, bits)
      packed = np.concatenate(
        [
          arrays['codes'],
          arrays['scale'][:, None].view(np.uint8),
          arrays['bias'][:, None].view(np.uint8),
        ],
        axis=1,
      )
      packed[7, 3] ^= bits == 4
      out[f'adaptive/{bits}'] = packed
      out[f'adaptive/{bits}/core_s'] = 1.0
    some = rows[:9]
    out['adaptive/3'] = np.transpose(
      range_search.search_ranges(
        np.ascontiguousarray(some.T),
        some.min(axis=1),
        some.max(axis=1),
        bits=3,
        bins=25,
        ratio=0.5,
        half=True,
      )
    )
    np.savez(target, **out)

  monkeypatch.setattr(subprocess, 'run', run)


def test_smoke_beside_a_peer(tmp_path, rows, torch_of_ours):
  few = range_search.FEW
  row_quant.main(
    ['--smoke', '--results', str(tmp_path), '--peer_python', sys.executable]
  )
  assert range_search.FEW == few
  found = rows('row_quant')
  assert len(found) == 15 + 3 and 'kmeans/8' not in found
  for case, row in found.items():
    assert row['rows'] == row_quant.SMOKE_ROWS and row['min_core_s'] > 0
    if case.endswith('numpy'):
      assert 'row_bytes' not in row
    else:
      assert row['float32_x'] == pytest.approx(256 / row['row_bytes'], rel=1e-4)
  assert found['asymmetric/2']['t3_x'] == found['adaptive/8']['t3_x'] == 1
  assert found['adaptive/2']['t3_x'] < 1 < found['symmetric/2']['t3_x']
  differ = {c: row.get('peer_differ') for c, row in found.items()}
  assert [differ[f'adaptive/{b}'] for b in (2, 3, 4, 8)] == [0, 0, 1, None]
  assert found['adaptive/3']['peer_rows'] == 9
  assert found['adaptive/4']['peer'] == 'torch 9.9'
  assert found['adaptive/4']['peer_x'] == pytest.approx(
    1 / found['adaptive/4']['core_s'], rel=1e-3
  )


def test_a_peer_without_torch_is_an_error():
  with pytest.raises(SystemExit, match='must be a Python with torch'):
    row_quant.beside_torch([], np.zeros((2, 64), np.float32), '/no/python')
