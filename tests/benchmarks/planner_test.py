"""Tests of the benchmark of partitioners and planning."""

import os
import pathlib

import pytest

from benchmarks import planner

STATS = pathlib.Path('dlrm_locality') / 'locality_stats_2021.txt'


def test_smoke_measures_the_grid(tmp_path, rows, monkeypatch):
  monkeypatch.setenv('GENREC_DATA', str(tmp_path / 'none'))
  planner.main(['--smoke', '--results', str(tmp_path)])
  found = rows('planner')
  assert set(found) == {'uniform/20/4'}
  row = found['uniform/20/4']
  assert row['draws'] == 2 and row['published_ldm_x'] == 1.0063
  assert row['random_x'] > row['lpt_x'] >= row['split_x'] >= 1
  assert row['ldm_x'] >= row['bound_x'] >= 1


def test_smoke_plans_a_trace(tmp_path, rows):
  data = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
  if not (data / STATS).exists():
    pytest.skip(f'{STATS} is not under GENREC_DATA or ../shared/data')
  planner.main(['--smoke', '--results', str(tmp_path)])
  found = rows('planner')
  trace, plan = found['trace2021/80/8'], found['plan2021/80/8']
  assert trace['memory_balanced_bytes_x'] <= trace['lpt_bytes_x']
  assert plan['plan_step_ms'] <= 1.001 * trace['step_ms']
  assert plan['plan_wall_s'] > 0
