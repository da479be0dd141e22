"""The cost of many candidates: its rows, and its picture."""

import xml.dom.minidom

import pytest

from benchmarks import gr_inference_parity, mfalcon


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
