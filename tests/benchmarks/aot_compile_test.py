"""Tests of the compile benchmark; the compiler itself is not asked."""

import doctest
import types

import pytest

from benchmarks import aot_compile
from genrec_jax.parallel import slices
from pallas_kernels.hstu_attention import shapes
from tests.kernels.tpu_lowering import lower_for_tpu

MEMORY = types.SimpleNamespace(
  temp_size_in_bytes=3, argument_size_in_bytes=2, output_size_in_bytes=1
)


def compile_on_v5e_alone(chip, function, arguments):
  if chip != 'v5e':
    raise RuntimeError('VMEM is full.\nMore about it.')
  return types.SimpleNamespace(
    memory_analysis=lambda: MEMORY,
    cost_analysis=lambda: {'bytes accessed': 7.0, 'flops': 5.0},
    as_text=lambda: 'ENTRY main { a = f(), {"estimated_cycles":"9"} }',
  )


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
  # Without a kernel, all is around it.
  assert rows[0]['around_bytes'] == 7
  assert rows[0]['around_cycles'] == 9
  assert 'kernel_bytes' not in rows[0]
  assert rows[2]['error'] == 'VMEM is full.'
  assert 'temp_bytes' not in rows[2]


def test_blocks_count_in_tiles_and_costs_of_kernels_are_told_apart():
  """Heads side by side take half of what 128 lanes a head did."""
  arguments = shapes.inputs(
    shapes.Shape(1, max_len=256, heads=2, dqk=64, dv=64), dtype='bfloat16'
  )
  function, given = aot_compile.program(arguments, 'forward')
  assert given[0]['q'].shape == (256, 128)
  with aot_compile.record_kernels() as kernels:
    lower_for_tpu(function, *given)
  (kernel,) = kernels
  block = 256 * 128 * 2
  tables = 3 * 128 * 128 * 4 + 8 * 128 * 4
  fields = 2 * 2 * 8 * 256 * 4
  # q, k, v and the output twice each, and the sum in float32.
  assert kernel['vmem'] == 2 * 4 * block + 2 * block + fields + tables
  # One pair of blocks may meet, of two heads, in two products.
  assert kernel['flops'] == 2 * 2 * 256 * 256 * (64 + 64)
  assert kernel['bytes'] > 4 * block


def test_the_examples():
  assert doctest.testmod(aot_compile).failed == 0


def test_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(slices.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(SystemExit, match='pip install --no-deps libtpu'):
    aot_compile.main(['--smoke'])
