"""Tests of the benchmark of marking touched rows."""

import dataclasses

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
  for build in (bench.training_step, bench.update_alone):
    step, state, batches, rows = build(bench.SMALL)
    marks = {n: np.zeros(len(x), np.uint8) for n, x in state.touched.items()}
    for name, ids in rows[0].items():
      marks[name][np.asarray(ids)[np.asarray(ids) < len(marks[name])]] = 7
    after, _ = step(dataclasses.replace(state), batches[0])
    assert after.touched.keys() == marks.keys()
    for name, found in after.touched.items():
      np.testing.assert_array_equal(found, marks[name])
    assert any(x.any() for x in marks.values())
