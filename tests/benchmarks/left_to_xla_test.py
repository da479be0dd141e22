"""Tests of the benchmark of what has no kernel of its own."""

from benchmarks import left_to_xla


def test_smoke_measures_both_ops(tmp_path, rows):
  left_to_xla.main(['--smoke', '--results', str(tmp_path)])
  found = rows('left_to_xla')
  assert {case.split('/')[0] for case in found} == {
    'layer_norm_mul_dropout', 'fm_interaction',
  }  # fmt: skip
  for case, row in found.items():
    assert row['share'] > 0, case
