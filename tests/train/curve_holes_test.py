"""A curve that lost lines between two lives of a run."""

from tests.train.tiny_run import train


def test_a_curve_that_lost_lines(tmp_path, said):
  """A run that continues says so, and so does its report ever after."""
  train(tmp_path, 'train.steps=8')
  path = tmp_path / 'metrics.jsonl'
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:3]))
  report = train(tmp_path, 'train.steps=12')
  lost = f'metrics.jsonl lacks {len(lines) - 3} lines up to step 8'
  assert lost in said() and lost in report['notes'][0]
  assert report['curve_holes'] == [
    {'step': 8, 'after': 4, 'missing': len(lines) - 3, 'unreadable': 0}
  ]
  page = (tmp_path / 'report.html').read_text()
  assert lost in page and 'lines missing up to step 8' in page
  said_before = said().count(lost)
  report = train(tmp_path)
  assert said().count(lost) == said_before and lost in report['notes'][0]
