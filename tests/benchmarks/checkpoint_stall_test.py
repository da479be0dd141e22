"""Tests of the benchmark of what saves cost a training."""

import pytest

from benchmarks import checkpoint_stall as bench


def test_smoke_compares_all_ways(tmp_path, rows):
  bench.main(['--smoke', '--results', str(tmp_path)])
  found = rows('checkpoint_stall')
  shares = [f'delta {share:.0%}' for share in bench.SHARES]
  assert list(found) == [
    *('2000/orbax/32', '2000/whole/32'),
    *(f'2000/{w}/{b}' for b in bench.BITS for w in ('base', *shares)),
  ]
  plain = found['2000/orbax/32']
  assert plain['of_orbax_x'] == plain['of_orbax_core_x'] == 1
  for row in found.values():
    assert 0 < row['call_ms'] <= row['stop_ms'] == row['min_stop_ms']
    assert row['call_ms'] <= 1e3 * row['complete_s']
    assert row['of_orbax_x'] == pytest.approx(
      plain['stop_ms'] / row['stop_ms'], rel=1e-3
    )
  sizes = {case: row['written_bytes'] for case, row in found.items()}
  assert sizes['2000/delta 5%/32'] < sizes['2000/delta 52%/32']
  assert sizes['2000/delta 52%/32'] < sizes['2000/base/32']
  assert sizes['2000/base/4'] < sizes['2000/base/32'] / 4


def test_a_save_that_fails_is_no_measurement(tmp_path):
  def fails():
    raise OSError('disk full')

  with pytest.raises(OSError, match='disk full'):
    way = bench.Way('broken', lambda: None, fails, tmp_path)
    bench.one(bench.Training(100, 4), way)
