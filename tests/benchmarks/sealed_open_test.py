"""Tests of the benchmark of opening sealed histories."""

from benchmarks import sealed_open
from genrec_jax.data.histories import Histories


def test_a_case_is_written_opened_and_measured(tmp_path):
  row = sealed_open.measure(tmp_path, 2_000, 30, 20, True)
  assert row['events'] == 2_000
  assert row['bytes'] >= 2_000 * 12
  assert all(row[f'{x}_s'] > 0 for x in ('seal', 'open', 'unsealed', 'count'))
  found = Histories.open(tmp_path)
  assert len(found) == 30 and found.has_times and found.items.max() == 20
