"""Tests of the benchmark of marking touched rows."""

import jax
import numpy as np
import pytest

from benchmarks import touched_rows as bench


def test_smoke_writes_both_cases(tmp_path, rows, monkeypatch):
  monkeypatch.delenv('NPROC')
  bench.main(['--smoke', '--results', str(tmp_path)])
  found = rows('touched_rows')
  assert set(found) == {'step', 'update'}
  for row in found.values():
    assert row['core_ms'] >= row['min_core_ms'] > 0
    assert row['share'] == pytest.approx(
      row['mark_core_ms'] / row['core_ms'], rel=1e-3
    )
  assert found['step']['marks_bytes'] == 3 * 50
  assert found['step']['bytes_x'] == pytest.approx(1 / (4 * (4 + 1)), rel=1e-3)


def test_what_is_marked_alone_is_what_the_step_marks():
  step, state, batches, rows = bench.update_alone(bench.SMALL)
  ids = np.asarray(rows[0]['table'])
  marks = np.zeros(bench.SMALL.update.rows, np.uint8)
  marks[ids[ids < len(marks)]] = 15
  assert 0 < (marks > 0).sum() < len(marks)
  after, _ = jax.jit(step)(state, batches[0])
  np.testing.assert_array_equal(after.dirty_rows['table'], marks)
  often = jax.jit(bench.mark_often)(state.dirty_rows, rows[0])
  np.testing.assert_array_equal(often['table'], marks)


def test_the_ids_of_a_batch_are_those_it_reads():
  batch = bench.make_examples(bench.SMALL, 0)
  assert batch.ids.values.shape == (16, 3) and batch.ids.values.min() > 0
  assert batch.ids.values.max() < bench.SMALL.rows
