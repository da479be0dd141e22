"""Tests of the benchmark of lookups and row updates."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import jagged_embedding
from pallas_kernels.jagged_embedding import shapes
from tests.tolerances import assert_close


@pytest.fixture(scope='module')
def narrow():
  shape = shapes.SHAPES['narrow']
  return (
    shape,
    jnp.asarray(shapes.lengths(shape)),
    jnp.asarray(jagged_embedding.bag_gradient(shape)),
  )


def test_smoke_compares_with_the_naive_program_and_a_peer(
  tmp_path, rows, monkeypatch
):
  monkeypatch.setattr(jagged_embedding, 'COPY', 4000)
  peer = tmp_path / 'peer.json'
  peer.write_text(
    json.dumps(
      [
        {'case': f'narrow/peer/{ms}', 'shape': 'narrow', 'program': 'peer',
         'core_ms': ms, 'min_core_ms': ms, 'versions': {'peer': '1.0'}}
        for ms in (1000.0, 500.0)
      ]
    )
  )  # fmt: skip
  jagged_embedding.main(
    ['--smoke', '--results', str(tmp_path), '--peer', str(peer)]
  )
  found = rows('jagged_embedding')
  assert set(found) >= {'narrow/xla', 'narrow/naive', 'narrow/peer/500.0'}
  ours = found.get('narrow/cpu', found['narrow/xla'])
  assert ours['peer_x'] == pytest.approx(500 / ours['core_ms'], rel=1e-3)
  assert 'peer_x' not in found['narrow/naive']
  assert found['narrow/peer/1000.0']['versions'] == {'peer': '1.0'}
  for name in ('narrow/xla', 'narrow/naive'):
    row = found[name]
    assert 0 < row['min_core_ms'] <= row['core_ms']
    assert row['bytes'] == row['distinct'] * (3 * 7 * 4 + 8)


@pytest.mark.parametrize('program', ['xla', None])
def test_the_programs_do_the_same(narrow, program):
  shape, lengths, grads = narrow
  ids = jagged_embedding.batches(shape)[0]
  got, expected = (
    jagged_embedding.step(
      name, *jagged_embedding.fresh(shape), ids, lengths, grads
    )
    for name in (program, 'naive')
  )
  for a, b in zip(got[:2], expected[:2], strict=True):
    assert_close(a, b)
  assert_close(got[2]['sum'], expected[2]['sum'])


def test_what_is_saved_can_be_repeated(narrow, tmp_path, capsys):
  shape, lengths, grads = narrow
  jagged_embedding.save('narrow', tmp_path, steps=2)
  found = np.load(tmp_path / 'narrow.npz')
  table = jnp.asarray(np.load(tmp_path / 'narrow.table.npy'))
  slots = {'sum': jnp.zeros(shape.rows)}
  for ids in found['ids'][:2]:
    bags, table, slots = jagged_embedding.step(
      'naive', table, slots, jnp.asarray(ids), lengths, grads
    )
  assert_close(found['bags'], bags)
  assert_close(found['expected'], table[found['seen']])
