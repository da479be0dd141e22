"""What launching measures, in small."""

import json

import pytest

from benchmarks import launching


@pytest.mark.slow
@pytest.mark.parametrize('part', launching.PARTS)
def test_smoke(part, tmp_path, rows):
  launching.main(
    ['--smoke', '--part', part, '--results', str(tmp_path)]
    + ['--directory', str(tmp_path)]
  )
  for row in rows('launching').values():
    assert row.get('complete', 1) and row.get('equal_curves', 1)
    assert not row.get('wrong')


def test_times_are_no_part_of_a_curve(tmp_path):
  for name, rate in (('a', 1.0), ('b', 2.0)):
    (tmp_path / name / 'run').mkdir(parents=True)
    lines = [
      {'step': 1, 'train/loss': 0.5, 'perf/steps_per_s': rate},
      {'step': 2, 'perf/steps_per_s': rate},
    ]
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    (tmp_path / name / 'run' / 'metrics.jsonl').write_text(text)
  a, b = (launching.read_curves(tmp_path / name) for name in 'ab')
  assert a == b == {'run': [{'step': 1, 'train/loss': 0.5}]}
