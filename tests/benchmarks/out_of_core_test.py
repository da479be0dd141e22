"""Tests of the out-of-core benchmark."""

import argparse

import numpy as np
import pytest

from benchmarks import out_of_core


@pytest.fixture(scope='module')
def args(tmp_path_factory):
  directory = tmp_path_factory.mktemp('log')
  return argparse.Namespace(
    events=[20_000],
    users=300,
    items=200,
    steps=2,
    directory=str(directory),
    stage='convert',
  )


def test_a_process_converts_and_reports_its_memory(args):
  row = out_of_core._child(args, 20_000, args.directory, 'convert')
  assert row['case'] == '20000/convert'
  assert 0 < row['users'] <= 300
  # Items, times, offsets and ids.
  assert row['log_bytes'] >= 20_000 * 12
  assert row['peak_anon_bytes'] >= row['start_anon_bytes'] > 1 << 20
  assert row['events_per_s'] > 0


def test_training_reports_steps_and_memory(args):
  row = out_of_core.stage(argparse.Namespace(**{**vars(args), 'stage': 'all'}))
  assert row['steps'] == 2 and row['steps_per_s'] > 0
  # 201 rows of 32 float32, and one number a row of the optimizer.
  assert row['table_bytes'] == 201 * 33 * 4
  assert row['examples'] > row['users']
  assert 0 < row['tokens_per_step'] <= 128 * 64


def test_a_failing_stage_is_told(args):
  with pytest.raises(SystemExit, match='stage all of 7 events ended with'):
    out_of_core._child(args, 7, args.directory + '/absent', 'all')


def test_the_peak_of_memory_is_seen():
  with out_of_core.Memory() as memory:
    block = np.ones(64 << 20, np.uint8)
  assert block[-1] == 1
  assert memory.row()['grown_anon_bytes'] > 60 << 20
