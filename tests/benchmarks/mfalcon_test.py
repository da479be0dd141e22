"""The cost of many candidates: its rows, and its picture."""

import xml.dom.minidom

import pytest

from benchmarks import (
  cache_stream,
  gr_inference_parity,
  kept_copies,
  kept_retrieval,
  long_histories,
  mfalcon,
)


def test_the_picture_has_a_panel_for_each_history():
  rows = [
    {'case': f'{way}/{history}/{count}', 'core_ms': 3.0 * count / history}
    for way in ('one pass', 'M-FALCON 256', 'DLRM')
    for history in (512, 2048)
    for count in (128, 1024)
  ]
  picture = mfalcon.draw(rows)
  xml.dom.minidom.parseString(picture)
  for words in ('512 events', '2,048 events', 'M-FALCON 256', 'in proportion'):
    assert words in picture
  assert 'DLRM' not in picture


@pytest.mark.slow
def test_every_way_gives_a_row(capsys):
  mfalcon.main(['--smoke'])
  table = capsys.readouterr().out
  for way in ('one by one/24/20', 'one pass/24/20', 'micro-batches of 8/24/20',
              'M-FALCON 8/24/20', 'kept 8/24/20', 'appended 8/24/20',
              'DLRM/24/20'):  # fmt: skip
    assert way in table


@pytest.mark.slow
def test_kept_histories_are_compared(capsys):
  gr_inference_parity.main(['--smoke'])
  words = capsys.readouterr().out.splitlines()[1].split()
  assert words[0] == 'start' and all(float(x) < 1e-5 for x in words[1:5])


@pytest.mark.slow
def test_kept_users_of_retrieval_are_measured(tmp_path, rows):
  kept_retrieval.main(['--smoke', '--results', str(tmp_path)])
  found = rows('kept_retrieval')
  ways = {row['way'] for row in found.values()}
  assert ways == {'anew', 'first', 'appended', 'again', 'search'}
  assert found['again/24']['users_per_gb'] > 0


def test_the_picture_of_long_histories():
  found = [
    {'way': way, 'history': n, 'pass_core_ms': n, 'step_core_ms': 3.0 * n,
     'kept_core_ms': 1.0 + n}
    for way in long_histories.list_ways()
    for n in (1024, 4096)
  ]  # fmt: skip
  picture = long_histories.draw(found)
  xml.dom.minidom.parseString(picture)
  for words in ('semi-local', 'history kept', 'with gradients'):
    assert words in picture
  rows = long_histories.add_ratios(
    [row | {'case': f'{row["way"]}/{row["history"]}'} for row in found]
  )
  assert rows[-1]['of_full_x'] == 1.0


@pytest.mark.slow
def test_long_histories_are_measured(tmp_path, rows):
  long_histories.main(['--smoke', '--results', str(tmp_path)])
  assert set(rows('long_histories')) == {
    f'{way}/96' for way in long_histories.list_ways()
  }


@pytest.mark.slow
def test_a_stream_of_requests_gets_the_scores_of_nothing_kept(tmp_path, rows):
  cache_stream.main(['--smoke', '--results', str(tmp_path)])
  found = rows('cache_stream')
  assert len(found) == len(cache_stream.list_cases())
  assert not any(row['wrong'] for row in found.values())
  assert found['device 5 %']['evicted'] > 0
  assert found['device 5 % + host']['host_hit_%'] > 0


@pytest.mark.slow
def test_copies_are_a_share_of_a_call(tmp_path, rows):
  kept_copies.main(['--smoke', '--results', str(tmp_path)])
  assert all(0 < row['share_%'] for row in rows('kept_copies').values())
