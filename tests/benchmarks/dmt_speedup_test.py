"""Tests of the time model of towers: it is arithmetic, checked by hand."""

import doctest
import json
import math
import xml.etree.ElementTree as ET

import pytest

from benchmarks import dmt_model, dmt_picture, dmt_speedup, result
from genrec_jax.planner import exchange_time, hardware

SVG = '{http://www.w3.org/2000/svg}'


def test_smoke_prints_assumptions_and_writes_rows(tmp_path, rows, capsys):
  dmt_speedup.main(['--smoke', '--results', str(tmp_path)])
  printed = capsys.readouterr().out
  assert 'a model of step times and not a measurement' in printed
  for group in ('model', 'towers', 'step', 'exchange', 'published'):
    for name in dmt_model.ASSUMED[group]:
      assert f'{group}.{name} = ' in printed
  found = rows('dmt_speedup')
  step = found['step/h100/small/64']
  for c in dmt_model.COMPRESSIONS:
    low, high = step[f'speedup_{c}_low_x'], step[f'speedup_{c}_high_x']
    assert low <= step[f'speedup_{c}_x'] <= high
  # Exchange alone cannot give more than a step without it.
  for row in found.values():
    if row['kind'] == 'share':
      assert row['at_paper_share_x'] < 1 / (1 - 0.275)


def test_assumptions_have_a_tag_and_a_sentence():
  for group in ('model', 'towers', 'step', 'exchange', 'published'):
    for name, entry in dmt_model.ASSUMED[group].items():
      assert entry['tag'] in dmt_model.ASSUMED['tags'], name
      assert entry['why'].endswith('.'), name
      assert (
        'value' in entry or entry['low'] <= entry['middle'] <= (entry['high'])
      )
  with pytest.raises(ValueError, match='no guesses'):
    dmt_model.choose(luck='high')


@pytest.mark.parametrize(
  'macs, cheaper, compression, expected',
  [
    (5e6, 1.0, 1, 1.07),
    (5e6, 1.0, 2, 1.56),
    (5e6, 1.0, 4, 2.03),  # 2.0 there
    (100e6, 1.3, 1, 1.27),
    (100e6, 1.3, 2, 1.36),
    (100e6, 1.3, 4, 1.40),
  ],
)
def test_the_figures_of_an_earlier_model(macs, cheaper, compression, expected):
  """64 H100 at full rates, all exposed, MLPs alone: as computed before."""
  machine = hardware.find_topology(
    'h100', hosts=8, near_latency=2e-6, far_latency=8e-6
  )
  rest = 2 * 3 * macs * 16_384 / (0.3 * 989e12)
  flat, towers = (
    dmt_model.time_vectors(c, machine).total for c in (0, compression)
  )
  found = (rest + flat) / (rest / cheaper + towers)
  assert found == pytest.approx(expected, abs=0.006)


def test_work_by_hand():
  flat, half = (dmt_model.count_work('small', c, 8) for c in (1, 2))
  assert flat.macs == 5e6 + 351 * 128 and flat.module == 0
  assert half.dots == 91 * 128
  assert half.layers == 5e6 - 1024 * (351 - 91)
  # 8 towers of 416 inputs and 208 outputs.
  assert half.module == 8 * 416 * 208
  cross = dmt_model.count_work('cross', 1, 8)
  bottom = 13 * 512 + 512 * 256 + 256 * 128
  top = 3456 * 1024 + 1024**2 + 1024 * 512 + 512 * 256 + 256
  assert cross.macs == 3 * 2 * 3456 * 512 + bottom + top


@pytest.mark.parametrize('model', dmt_model.MODELS)
@pytest.mark.parametrize('compression', dmt_model.COMPRESSIONS)
def test_factors_multiply_to_the_speedup(model, compression):
  guess = dmt_model.choose()
  factors = dmt_model.split_gain('h100', 64, model, compression, guess)
  total = dmt_speedup.speed_up('h100', 64, model, compression, guess)
  assert math.prod(factors.values()) == pytest.approx(total)
  assert factors['peers_x'] > 1 > factors['near_x']
  if compression == 1:
    assert factors['compression_x'] == factors['rest_x'] == 1


@pytest.mark.parametrize('ratio, cheaper', [(0.5, 1.0), (0.3, 1.2), (0.6, 0.9)])
def test_the_least_share_is_enough_and_no_more(ratio, cheaper):
  share = dmt_speedup.find_least_share(ratio, cheaper)
  assert 1 / ((1 - share) / cheaper + share * ratio) == pytest.approx(1.5)


def test_byte_counts_are_those_of_the_formulas():
  (row,) = (r for r in dmt_speedup.list_checks() if r['case'] == 'check/bytes')
  held = 16_384 * 26 * 128 * 2
  assert row['flat_bytes'] == pytest.approx(held * 63 / 64)
  assert row['flat_far_bytes'] == pytest.approx(held * 56 / 64)
  assert row['towers_near_bytes'] == pytest.approx(held * 7 / 8)
  assert row['towers_far_bytes'] == pytest.approx(held / 2 * 7 / 8)


def test_the_picture_says_what_it_is():
  path = result.RESULTS / 'cpu2' / 'dmt_speedup.json'
  rows = json.loads(path.read_text())['rows']
  texts = [
    t.text for t in ET.fromstring(dmt_picture.draw(rows)).iter(SVG + 'text')
  ]
  assert sum('(model' in text for text in texts) == 2
  assert texts.count('paper, at most') == 2


def test_examples_in_docstrings():
  for module in (dmt_model, dmt_speedup, exchange_time):
    assert doctest.testmod(module).failed == 0
