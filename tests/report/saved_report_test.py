"""`genrec report`: the page of what a workdir holds."""

import json
import math

import pytest

from genrec_jax import sealed
from genrec_jax.contracts import Panel
from genrec_jax.report import saved_report, summary

REPORT = {
  'metrics': {'test': {'hr@10': 0.25, 'mrr': math.nan}},
  'baselines': {'popularity': {'test': {'hr@10': 0.125, 'mrr': math.inf}}},
  'config': {'eval': {'ks': (1, 10), 'splits': ()}},
  'seed': 3,
  'clock': {'ticks': 7},
}
CURVES = [{'step': step, 'train/loss': 1 / step} for step in (1, 2, 3)]
PANELS = (
  Panel('users', measure=None),
  Panel('clock', None, lambda shown: f'<section>{shown["ticks"]} o’clock'),
)


def leave_run(workdir) -> str:
  """What a training leaves of its report; returns its page."""
  lines = ''.join(f'{json.dumps(row)}\n' for row in CURVES)
  (workdir / 'metrics.jsonl').write_text(lines)
  sections = [PANELS[1].draw(REPORT['clock'])]
  summary.write_report(workdir, REPORT, CURVES, sections)
  page = (workdir / 'report.html').read_text()
  (workdir / 'report.html').unlink()
  return page


def test_the_page_is_the_one_of_the_training(tmp_path, capsys):
  page = leave_run(tmp_path)
  before = (tmp_path / 'report.json').read_bytes()
  saved_report.rewrite_page(tmp_path, PANELS)
  assert (tmp_path / 'report.html').read_text() == page
  assert '7 o’clock' in page
  assert (tmp_path / 'report.json').read_bytes() == before
  assert capsys.readouterr().out == summary.format_table(REPORT) + '\n'


def test_a_run_without_curves(tmp_path, caplog):
  leave_run(tmp_path)
  (tmp_path / 'metrics.jsonl').unlink()
  saved_report.rewrite_page(tmp_path)
  assert 'has no metrics.jsonl: the page has no curves' in caplog.text
  assert (tmp_path / 'report.html').exists()


def test_a_training_that_has_not_ended(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(FileNotFoundError, match='its training has not ended'):
    saved_report.rewrite_page(tmp_path)


def test_a_damaged_report(tmp_path):
  leave_run(tmp_path)
  path = tmp_path / 'report.json'
  path.write_text(path.read_text().replace('0.25', '0.95'))
  with pytest.raises(sealed.DamagedError, match='genrec train --workdir='):
    saved_report.rewrite_page(tmp_path)
  assert not (tmp_path / 'report.html').exists()
