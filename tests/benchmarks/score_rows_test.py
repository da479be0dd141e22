"""The benchmarks of scores, and of the steps of the TPU kernels, in small."""

import numpy as np

from benchmarks import score_rows, tpu_steps


def test_both_programs_are_measured(tmp_path, rows):
  score_rows.main(['--smoke', '--results', str(tmp_path)])
  found = rows('score_rows')
  assert set(found) == {
    f'{shape}/{program}'
    for shape in score_rows.SHAPES
    for program in ('vectors', 'rows')
  }
  assert found['ml1m/rows']['x'] == 1


def test_a_list_has_no_more_steps_than_a_rectangle():
  sizes = np.array([512, 1, 40, 300])
  by_query, by_key = tpu_steps.count_steps('some', 512, sizes)
  # 853 tokens are four blocks of 256. The first and the third one begin with a
  # sequence and see themselves; the others see the block before, too.
  assert (by_query['own_blocks'], by_query['rectangle']) == (4, 8)
  assert (by_query['steps'], by_query['idle']) == (6, 0)
  assert by_key['steps'] - by_key['idle'] == 6
