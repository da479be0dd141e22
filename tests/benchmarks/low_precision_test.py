"""Tests of the benchmark of products of few bits."""

import doctest

import pytest

from benchmarks import low_precision


@pytest.mark.slow
def test_smoke_trains_casts_and_tunes(tmp_path, rows, monkeypatch):
  assert doctest.testmod(low_precision).failed == 0
  # The small form has numbers, and its first product is of them.
  monkeypatch.setitem(
    low_precision.OUTER, 'dlrm', ('bottom/linear_0/kernel', 'top/out/kernel')
  )
  command = ['--smoke', '--runs', str(tmp_path / 'runs'), '--only', 'dlrm']
  low_precision.main([*command, '--results', str(tmp_path)])
  found = rows('low_precision')
  means = {name for name, row in found.items() if row['kind'] == 'mean'}
  assert means == {
    'dlrm/bfloat16', 'dlrm/bfloat16 tuned', 'dlrm/mx4', 'dlrm/mx4 cast',
    'dlrm/mx4 tuned',
  }  # fmt: skip
  assert found['dlrm/mx4']['products'] == '2 products in bfloat16, 2 in mx4'
  for how in ('', ' cast', ' tuned'):
    row = found[f'dlrm/mx4{how}']
    assert row['pairs'] == 1 and row['ne_minus_%'] != 0
  # What is there is not measured again.
  low_precision.main([*command, '--results', str(tmp_path)])


@pytest.mark.slow
def test_smoke_of_generated_clicks(tmp_path, rows):
  command = ['--smoke', '--runs', str(tmp_path / 'runs'), '--only', 'clicks']
  low_precision.main([*command, '--results', str(tmp_path)])
  row = rows('low_precision')['clicks/mx4_stochastic']
  assert row['products'] == '2 products in bfloat16, 2 in mx4_stochastic'
