"""Tests of the compile benchmark; the compiler itself is not asked."""

import types

import pytest

from benchmarks import aot_compile
from genrec_jax.parallel import slices

MEMORY = types.SimpleNamespace(
  temp_size_in_bytes=3, argument_size_in_bytes=2, output_size_in_bytes=1
)


def compile_on_v5e_alone(chip, function, arguments):
  if chip != 'v5e':
    raise RuntimeError('VMEM is full.\nMore about it.')
  return types.SimpleNamespace(memory_analysis=lambda: MEMORY)


def test_a_row_for_each_program_whether_it_compiles_or_not(monkeypatch):
  monkeypatch.setattr(aot_compile, 'compile_for', compile_on_v5e_alone)
  rows = [
    *aot_compile.measured('v5e', ['tiny'], ['float32'], aot_compile.PASSES),
    *aot_compile.measured('v5p', ['tiny'], ['bfloat16'], ['forward']),
  ]
  assert [row['case'] for row in rows] == [
    'v5e/tiny/silu/float32/forward',
    'v5e/tiny/silu/float32/forward+backward',
    'v5p/tiny/silu/bfloat16/forward',
  ]
  assert [row['compiled'] for row in rows] == [True, True, False]
  assert rows[0]['temp_bytes'] == 3
  assert rows[2]['error'] == 'VMEM is full.'
  assert 'temp_bytes' not in rows[2]


def test_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(slices.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(SystemExit, match='pip install --no-deps libtpu'):
    aot_compile.main(['--smoke'])
