"""Tests of the benchmark of sparse and dense updates."""

import dataclasses
import json

import jax.numpy as jnp
import pytest

from benchmarks import row_update
from pallas_kernels.jagged_embedding import shapes
from tests.tolerances import assert_close


def test_smoke_compares_sizes_and_a_peer(tmp_path, rows, monkeypatch):
  monkeypatch.setattr(
    row_update,
    'OPTIMIZERS',
    {n: row_update.OPTIMIZERS[n] for n in ('row_adagrad', 'adam')},
  )
  peer = tmp_path / 'peer.json'
  peer.write_text(
    json.dumps(
      [
        {'case': f'peer/{ms}', 'program': 'peer', 'ids': 'uniform',
         'rows': 500, 'optimizer': 'adam', 'core_ms': ms, 'min_core_ms': ms,
         'versions': {'peer': '1.0'}}
        for ms in (1000.0, 500.0)
      ]
    )
  )  # fmt: skip
  row_update.main(['--smoke', '--results', str(tmp_path), '--peer', str(peer)])
  found = rows('row_update')
  best = 'cpu' if 'optimizers/500/uniform/cpu/adam' in found else 'xla'
  ours = found[f'optimizers/500/uniform/{best}/adam']
  assert ours['peer_x'] == pytest.approx(500 / ours['min_core_ms'], rel=1e-3)
  assert ours['slot_floats'] == 2 * 64
  assert 'peer_x' not in found[f'optimizers/500/uniform/{best}/row_adagrad']
  small, large = (
    found[f'sizes/{n}/uniform/{best}/row_adagrad'] for n in (500, 2000)
  )
  assert small['of_smallest_x'] == 1
  assert large['of_smallest_x'] == pytest.approx(
    large['min_core_ms'] / small['min_core_ms'], rel=1e-3
  )
  assert large['dense_x'] > 0
  assert 'dense_x' not in found['sizes/500/uniform/dense/adam']
  assert found['peer/500.0']['versions'] == {'peer': '1.0'}


def test_what_needs_too_much_memory_is_left_out(monkeypatch, capsys):
  monkeypatch.setattr(row_update, 'free_memory', lambda: 1000.0)
  row_update.main(['--smoke', '--parts', 'sizes'])
  assert 'left out sizes/500/uniform/dense/adam: 0.0 GB' in (
    capsys.readouterr().out
  )


@pytest.mark.parametrize('what', row_update.DENSE)
def test_sparse_and_dense_do_the_same_first_step(what):
  shape = dataclasses.replace(
    shapes.SHAPES['million_uniform'], rows=300, bags=16
  )
  ids, lengths = (jnp.asarray(f(shape)) for f in (shapes.ids, shapes.lengths))
  grads = jnp.asarray(row_update.jagged_embedding.bag_gradient(shape))
  made = []
  for program in ('xla', 'dense'):
    case = row_update.Case('sizes', 300, 'uniform', program, what)
    step, init = row_update.program(case, shape)
    table = row_update.first_table(case, shape)
    made.append(step(table, init(table), ids, lengths, grads)[:2])
  for sparse, dense in zip(*made, strict=True):
    assert_close(sparse, dense)
