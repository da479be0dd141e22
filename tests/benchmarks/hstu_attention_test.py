"""Tests of the attention benchmark and of the programs it compares with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from benchmarks import hstu_attention, peer_attention
from pallas_kernels.hstu_attention import shapes
from tests.tolerances import assert_close


@pytest.mark.slow
def test_smoke_measures_every_program(tmp_path, rows):
  hstu_attention.main(['--smoke', '--results', str(tmp_path)])
  found = rows('hstu_attention')
  programs = {row['program'] for row in found.values()}
  assert programs == {
    'xla', 'xla + both biases', 'padded HSTU', 'padded softmax',
    'HSTU layer (xla)', 'Transformer layer, padded',
  }  # fmt: skip
  for row in found.values():
    assert 'error' not in row
    assert row['core_s'] > 0 and row['vs_ours_x'] > 0
    if row['part'] == 'kernel':
      assert 0 < row['tflops'] and 0 < row['matmul_share']


def test_the_padded_programs_compute_the_same():
  shape = shapes.Shape(3, 16, 2, 8, 8, 0, False, False)
  arguments = shapes.inputs(shape, sizes=[16, 3, 9])
  lengths = arguments['lengths']
  dense = peer_attention.pad(arguments)

  def packed(program):
    out = program.run(program.trained, program.data)
    return pallas_kernels.to_jagged(out, lengths, arguments['q'].shape[0])

  ours = pallas_kernels.hstu_attention(**arguments)
  assert_close(packed(peer_attention.padded_hstu(dense, 16.0)), ours)
  softmax = pallas_kernels.hstu_attention(
    **arguments, mode='softmax', alpha=8**-0.5
  )
  assert_close(packed(peer_attention.padded_softmax(dense)), softmax)


def test_flops_are_the_published_formula():
  sizes = hstu_attention.Sizes(0, 4, 128, 'bfloat16', 1)
  batch = np.array([3, 5])
  forward = sum((2 * 4 * 128 * n**2 + 2 * 4 * 128 * n**2) / 2 for n in batch)
  assert hstu_attention.flops(sizes, batch, False) == forward
  half = forward / 2
  assert hstu_attention.flops(sizes, batch, True) == 4 * half + 3 * half


def test_lengths_have_the_fill_that_was_asked_for():
  for fill in (0.2, 0.5, 0.9):
    drawn = hstu_attention.lengths(4000, 1000, fill)
    assert abs(drawn.mean() / 1000 - fill) < 0.01
    assert 1 <= drawn.min() and drawn.max() <= 1000
  assert np.all(hstu_attention.lengths(5, 64, 1.0) == 64)


def test_a_program_that_cannot_run_says_why():
  def run(x, data):
    raise NotImplementedError('no such device\nmore')

  program = peer_attention.Program(run, jnp.ones(2), None)
  assert hstu_attention.measure(program, False, 1) == {
    'error': 'no such device'
  }


def test_both_layers_train():
  sizes = hstu_attention.SMOKE
  batch = np.array([16, 5], np.int32)
  for make in (peer_attention.hstu_layer, peer_attention.transformer_layer):
    program = make(sizes, 16, batch)
    grads = jax.grad(lambda x, p=program: jnp.sum(p.run(x, p.data)))(
      program.trained
    )
    assert all(np.any(g) for g in jax.tree.leaves(grads))
