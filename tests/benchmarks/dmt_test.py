"""Tests of the benchmark of towers."""

import pytest

from benchmarks import dmt as bench
from benchmarks import dmt_steps as steps_lib
from benchmarks.hlo import Collective


def test_smoke_counts_what_ways_send(tmp_path, rows, capsys):
  options = ['--smoke', '--results', str(tmp_path)]
  bench.main(options)
  found = rows('dmt')
  flat, alone = found['2x4/flat'], found['2x4/sptt']
  # A table a device: to 3 peers near and 4 far, sums of 8 examples.
  sums, lists = 8 * 64 * 4, 4 * (8 + 8 + 1)
  assert flat['values_near_bytes'] == 2 * 3 * sums
  assert flat['values_far_bytes'] == 2 * 4 * sums
  assert flat['far_bytes'] == 2 * 4 * sums + 4 * lists
  # The same bytes between hosts, to one peer, in a message of four.
  assert alone['far_bytes'] == flat['far_bytes']
  assert (flat['far_peers'], alone['far_peers']) == (4, 1)
  assert (flat['far_message_bytes'], alone['far_message_bytes']) == (
    sums, 4 * sums,
  )  # fmt: skip
  # Within hosts each device gets all of its host, for two peers.
  assert alone['values_near_bytes'] == 2 * 2 * 3 * sums
  narrow = found['2x4/dmt 4, narrow']
  # Two bytes near; far a quarter of the numbers, 16 in 16 bytes and 8 more.
  assert narrow['values_near_bytes'] == alone['values_near_bytes'] / 2
  assert narrow['values_far_bytes'] == 2 * 8 * 2 * 4 * (16 + 8) / 2
  assert narrow['groups'] == alone['groups'] == '2, 4'
  assert all(row.get('formula_off', 0) == 0 for row in found.values())
  capsys.readouterr()
  bench.main(options)  # all of it is in the file
  assert capsys.readouterr().out == ''


def test_towers_whose_exchange_spans_all_devices_are_an_error():
  setting = steps_lib.Setting(2, 4, steps_lib.ALONE)
  bench.require_steps(setting, {('all-to-all', ('host',)): []})
  with pytest.raises(SystemExit, match='bring all devices together'):
    bench.require_steps(setting, {('all-to-all', ('host', 'dev')): []})


def test_bytes_by_link():
  setting = steps_lib.Setting(2, 4, steps_lib.FLAT)

  def split(op, *group):
    shapes = (('f32', (len(group), 7)),)
    return bench.split_by_link(Collective(op, shapes, (group,)), setting)

  assert split('all-to-all', *range(8)) == pytest.approx((3 * 28, 4 * 28))
  assert split('all-to-all', 1, 5) == (0.0, 28)
  assert split('all-gather', 4, 5, 6, 7) == (3 * 28, 0.0)
  with pytest.raises(ValueError, match='within hosts and between them'):
    split('all-gather', *range(8))


def test_every_setting_has_a_case_of_its_own():
  found = [setting.case for setting in steps_lib.settings(smoke=False)]
  assert len(set(found)) == len(found)
  for mesh in ('2x4', '4x2', '4x4', '8x8'):
    ways = {case.split('/')[1] for case in found if case.startswith(mesh)}
    assert {'flat', 'sptt', 'dmt 16'} <= ways


@pytest.mark.slow
def test_smoke_times_ways_in_turns(tmp_path, rows):
  bench.main(['--smoke', '--part', 'steps', '--results', str(tmp_path)])
  found = rows('dmt')
  assert len(found) == 6
  for row in found.values():
    assert row['core_ms'] >= row['min_core_ms'] > 0 and row['turns'] == 2
