"""Tests of the tuning of block sizes."""

import json

import pytest

from benchmarks import tune_blocks
from pallas_kernels.hstu_attention import blocks


@pytest.fixture(autouse=True)
def own_table(monkeypatch, tmp_path):
  monkeypatch.setattr(blocks, 'TABLE', dict(blocks.TABLE))
  monkeypatch.setattr(blocks, 'TUNED', tmp_path / 'tuned.json')


def test_the_fastest_is_kept_and_used(monkeypatch, tmp_path, rows):
  def measure(backend, width, backward, biased, args):
    used = blocks.lookup(backend, 'cpu', width, width)
    if used['block_k'] == 64:
      return {'error': 'too large'}
    return {'wall_ms': float(used['block_q'])}

  monkeypatch.setattr(tune_blocks, '_measure', measure)
  options = ['--backend', 'interpret', '--smoke', '--write']
  tune_blocks.main([*options, '--results', str(tmp_path)])
  best = {'block_q': 32, 'block_k': 32}
  assert json.loads(blocks.TUNED.read_text()) == {
    'interpret': {'cpu': {'16': best}}
  }
  assert blocks.lookup('interpret', 'cpu', 16, 8) == best
  found = rows('tune_blocks')
  assert any(row.get('error') == 'too large' for row in found.values())


def test_kernels_are_tuned_one_by_one(monkeypatch, tmp_path):
  monkeypatch.setattr(tune_blocks.dispatch, 'device_kind', lambda: 'Any GPU')
  monkeypatch.setattr(tune_blocks.dispatch, 'platform', lambda: 'cuda')
  calls = []

  def measure(backend, width, backward, biased, args):
    used = blocks.lookup(backend, 'Any GPU', width, width)
    calls.append((backward, biased))
    slow = sum(options['warps'] for options in used.values())
    return {'wall_ms': float(slow)}

  monkeypatch.setattr(tune_blocks, '_measure', measure)
  args = type('Args', (), {'write': False})
  tune_blocks.tune('triton', 64, args)
  used = blocks.lookup('triton', 'Any GPU', 64, 64)
  assert {options['warps'] for options in used.values()} == {4}
  # Each kernel in a call that launches it, and the forward pass alone for it.
  kernels = 7
  assert len(used) == kernels
  assert set(calls) == {(b, c) for b in (True, False) for c in (True, False)}
  assert {options['group'] for options in used.values()} <= {1, 2}
  # Other widths and other devices keep what they had.
  for kind, width in (('Any GPU', 256), ('Another GPU', 64)):
    usual = blocks.lookup('triton', 'default', width, width)
    assert blocks.lookup('triton', kind, width, width) == usual


def test_a_backend_without_blocks_or_device_is_refused():
  with pytest.raises(SystemExit, match='xla has no block sizes to tune'):
    tune_blocks.main(['--smoke'])
  with pytest.raises(SystemExit, match='triton cannot run here'):
    tune_blocks.main(['--smoke', '--backend', 'triton'])
