"""Tests of the benchmark of rows or sums."""

import jax
import numpy as np
import pytest

from benchmarks import multi_hot as bench
from benchmarks import multi_hot_steps as steps_lib


def test_smoke_compares_what_rows_and_sums_send(tmp_path, rows, capsys):
  options = ['--smoke', '--part', 'bytes', '--results', str(tmp_path)]
  bench.main(options)
  (row,) = rows('multi_hot').values()
  # Sums over all devices: lists and gradients go to 7 others, sums to 1 in 8.
  lists, sums = 2 * 4 * (8 * 5 + 8 + 1), 2 * 8 * 32 * 4
  assert row['sums_all_gather_bytes'] == 7 * (lists + sums)
  assert row['sums_all_to_all_bytes'] == 7 * sums
  assert row['sums_bytes'] == 7 * (lists + 2 * sums)
  # Rows by all-to-all, with room for two even shares, of 80 ids in all.
  assert row['rows_bytes'] == 7 / 8 * 2 * 80 * (4 + 2 * 32 * 4)
  assert row['auto'] == 'sums' and row['auto_bytes'] == row['sums_bytes']
  assert row['sums_x'] == pytest.approx(
    row['sums_bytes'] / row['rows_bytes'], rel=1e-4
  )
  capsys.readouterr()
  bench.main(options)  # all of it is in the file
  assert capsys.readouterr().out == ''


@pytest.mark.parametrize('part', ['one_device', 'mesh'])
def test_smoke_times_the_ways_in_turns(part, tmp_path, rows):
  bench.main(['--smoke', '--part', part, '--results', str(tmp_path)])
  (row,) = rows('multi_hot').values()
  assert row['auto'] == 'sums'
  for way in ('rows', 'sums', 'auto'):
    assert row[f'{way}_core_ms'] >= row[f'{way}_min_core_ms'] > 0
  assert row['turns'] == 2 and row['twin_x'] > 0


def test_losses_that_differ_are_an_error():
  setting = next(steps_lib.settings('one_device', smoke=True))
  runtimes = {way: steps_lib.build(setting, way) for way in ('rows', 'sums')}
  steps = {w: steps_lib.compiled(r, setting) for w, r in runtimes.items()}
  steps['auto'] = steps['sums']
  state = runtimes['rows'].fresh_state()
  batches = [jax.device_put(steps_lib.batch(setting, i)) for i in range(3)]
  bench.check_losses(steps, state, batches)

  def a_little_off(state, batch):
    state, loss = steps['rows'](state, batch)
    return state, loss * (1 + 1e-4)

  other = {**steps, 'sums': a_little_off}
  with pytest.raises(SystemExit, match='losses of rows .* and of sums'):
    bench.check_losses(other, state, batches)


def test_features_that_differ_have_every_length_and_size():
  every = {s.bag: s for s in steps_lib.settings('mesh', smoke=False)}
  shapes = every[steps_lib.MIXED].shapes
  assert len(shapes) == 24 and len(set(shapes)) == 6
  setting = steps_lib.Setting(
    'mesh', 8, 'row_wise', 5, 1_000, tables=3, batch=2
  )
  made = steps_lib.batch(setting)
  ids = [made.jagged[f'f{i:03}'][f'f{i:03}'] for i in range(3)]
  assert [x.shape for x in ids] == [(80,)] * 3
  assert made.labels['label'].shape == (16,)
  assert 1 <= np.min(ids[0]) < 1_000


def test_every_setting_has_a_case_of_its_own():
  for part in steps_lib.PARTS:
    found = list(steps_lib.settings(part, smoke=False))
    assert len({s.case for s in found}) == len(found)
    assert {s.part for s in found} == {part}
