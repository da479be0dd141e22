"""The life of a model in processes with too little memory for it, in small."""

import json
import subprocess
import sys

import pytest

from benchmarks import mesh_life


@pytest.mark.slow
def test_all_commands_stay_within_their_limits(tmp_path):
  """Four processes, each with half of the table at most; and one that dies."""
  mesh_life.main(['--smoke', '--results', str(tmp_path)])
  (file,) = tmp_path.rglob('mesh_life.json')
  rows = {row['case']: row for row in json.loads(file.read_text())['rows']}
  assert rows.pop('ranking/train with the whole table')['status'] != 'done'
  assert len(rows) == len(mesh_life.list_commands(4)) - 1
  for case, row in rows.items():
    assert row['status'] == 'done', case
    assert row['peak_mb'] <= row['limit_mb'] < row['empty_mb'] + row['table_mb']


def test_what_a_limit_counts():
  # In a process of its own: in this one, threads of JAX take and give memory.
  program = (
    'from benchmarks import mesh_life\n'
    'before = mesh_life.read_data_mb()\n'
    'held = bytearray(64 << 20)\n'
    'print(mesh_life.read_data_mb() - before)\n'
  )
  printed = subprocess.run(
    [sys.executable, '-c', program], check=True, capture_output=True, text=True
  ).stdout
  assert 60 < float(printed) < 80
