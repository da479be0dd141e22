"""Tables drawn from trace statistics."""

import os
import pathlib

import numpy as np
import pytest

from benchmarks import locality

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
ACCESSES = (
  0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050,
  0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019,
)  # fmt: skip


def test_counts_have_the_shares_asked_for():
  rng = np.random.default_rng(0)
  counts = locality.draw_counts(ACCESSES, 3_000_000, rng)
  assert counts.sum() == 3_000_000 and counts.min() >= 1
  bins = np.ceil(np.log2(counts)).astype(int)
  found = np.bincount(bins, counts, minlength=17) / counts.sum()
  assert np.abs(found - ACCESSES).max() < 0.02
  expected = locality.distinct_share(ACCESSES)
  assert len(counts) / counts.sum() == pytest.approx(expected, rel=0.05)


def test_ids_are_read_as_often_as_the_counts_say():
  rng = np.random.default_rng(0)
  counts = np.array([5, 1, 3])
  ids = locality.draw_ids(counts, 100, rng)
  assert sorted(np.unique(ids, return_counts=True)[1]) == [1, 3, 5]
  with pytest.raises(ValueError, match='3 rows are read, the table has 2'):
    locality.draw_ids(counts, 2, rng)


def test_loads_read_as_much_as_the_trace():
  trace = locality.Locality(100, 1000, 2_000_000, 1, (), ACCESSES)
  loads = locality.draw_loads(trace, 0)
  assert sum(load.ids for load in loads) == pytest.approx(2000)
  assert loads == locality.draw_loads(trace, 0)
  assert loads != locality.draw_loads(trace, 1)
  few = locality.draw_loads(trace, 0, tables=10)
  assert sum(load.ids for load in few) == pytest.approx(200)


def test_a_file_that_is_no_statistics(tmp_path):
  with pytest.raises(FileNotFoundError, match='dlrm_datasets'):
    locality.read(tmp_path / 'x.txt')
  (tmp_path / 'x.txt').write_text('hello')
  with pytest.raises(ValueError, match='holds no statistics'):
    locality.read(tmp_path / 'x.txt')


@pytest.mark.parametrize('year, tables', [(2021, 856), (2022, 788)])
def test_published_statistics(year, tables):
  path = DATA / 'dlrm_locality' / f'locality_stats_{year}.txt'
  if not path.exists():
    pytest.skip(f'{path} is not under GENREC_DATA or ../shared/data')
  trace = locality.read(path)
  assert trace.tables == tables
  assert sum(trace.rows) == pytest.approx(1, abs=0.01)
  assert sum(trace.accesses) == pytest.approx(1, abs=0.01)
  # Two columns of the file agree through the bins' mean.
  share = locality.distinct_share(trace.accesses)
  assert share == pytest.approx(trace.distinct / trace.reads, rel=0.06)
