"""The benchmark of the prebuilt libraries, on a small table."""

import pytest

from benchmarks import native_op
from pallas_kernels.jagged_embedding import api


@pytest.mark.skipif(
  api.BACKENDS['cpu'].why_not() is not None, reason='there is no library'
)
def test_smoke_compares_all_programs(tmp_path, rows):
  native_op.main(['--smoke', '--results', str(tmp_path)])
  found = rows('native_op')
  assert {row['program'] for row in found.values()} >= {'XLA alone'}
  for row in found.values():
    assert 0 < row['min_core_ms'] <= row['core_ms'] and row['xla_x'] > 0
    assert (row['program'] == 'XLA alone') == ('ready_wall_s' not in row)
