"""Tests of the comparison with other libraries; the peers are played."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks import numerics_peers
from genrec_jax.numerics import blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.packed_formats import join_parts


@pytest.fixture
def peers_of_ours(monkeypatch):
  """Peers that find what we find, but for one number of each."""

  def run(command, check, env):
    _, program, source, target = command
    assert program.endswith('peer_numerics.py') and check
    data = np.load(source)
    out = {f'version/{p}': '9' for p in ('microxcaling', 'torchao', 'fbgemm')}
    for name, x in data.items():
      f = BLOCK_FORMATS['mxfp4_e2m1']
      encoded = blocks.encode(x, f)
      values = blocks.decode(encoded, f)
      codes = encoded.codes[:, ::2] | encoded.codes[:, 1::2] << 4
      fused = join_parts(FUSED_ROWS['fbgemm_int4'], x)
      if name == 'normal':
        values[3, 4] += 1
        codes[3, 4] ^= 1
        fused[3, 4] ^= 1
      out[f'microxcaling/{name}/mxfp4_e2m1/even'] = values
      key = f'torchao/{name}/mxfp4_e2m1/floor'
      out[f'{key}/codes'], out[f'{key}/scales'] = codes, encoded.scales
      out[f'fbgemm/{name}/fbgemm_int4/bytes'] = fused
    np.savez(target, **out)

  monkeypatch.setattr(subprocess, 'run', run)


def test_smoke_beside_peers(tmp_path, rows, peers_of_ours):
  numerics_peers.main(
    ['--smoke', '--results', str(tmp_path), '--peer_python', sys.executable]
  )
  found = rows('numerics_peers')
  assert {case: row['differ'] for case, row in found.items()} == {
    'microxcaling/mxfp4_e2m1/even': 1,
    'torchao/mxfp4_e2m1/floor': 1,
    'fbgemm/fbgemm_int4': 1,
  }
  assert {row['version'] for row in found.values()} == {'9'}


def test_without_a_peer_there_is_nothing(tmp_path, rows):
  numerics_peers.main(['--smoke', '--results', str(tmp_path)])
  assert not rows('numerics_peers')
