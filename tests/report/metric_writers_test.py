"""Tests of metrics.jsonl and the TensorBoard events, resumed and not."""

import doctest
import json
import math
import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from genrec_jax.report import event_files, metric_writers


def _masked(data):
  crc = crc32c(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def _events(workdir):
  """The events of all files, in the order in which TensorBoard reads them."""
  events = []
  for path in sorted(workdir.glob('events.*')):
    data = path.read_bytes()
    while data:  # record: length 8, crc 4, payload, crc 4
      size = int.from_bytes(data[:8], 'little')
      message, behind = data[12 : 12 + size], data[12 + size : 16 + size]
      assert int.from_bytes(data[8:12], 'little') == _masked(data[:8])
      assert int.from_bytes(behind, 'little') == _masked(message)
      events.append(Event.FromString(message))
      data = data[16 + size :]
  return events


def _run(workdir, steps, resume_step=None):
  with metric_writers.MetricWriters(workdir, resume_step, log=None) as w:
    for step in steps:
      w.scalars(step, {'train/loss': 1 / (step + 1)})
      if step % 2 == 0:
        w.scalars(step, {'valid/ndcg@10': step / 7, 'valid/mrr': step / 9})


def test_lines_hold_the_step_and_the_numbers(tmp_path):
  lines = []
  with metric_writers.MetricWriters(tmp_path / 'new', log=lines.append) as w:
    w.scalars(12, {'train/loss': jnp.float32(0.1), 'n': np.int64(3)})
    w.scalars(13, {'train/loss': jnp.bfloat16(0.5), 'perf/x': 1.5})
  rows = metric_writers.read_jsonl(tmp_path / 'new' / 'metrics.jsonl')
  assert rows == [
    {'step': 12, 'train/loss': float(np.float32(0.1)), 'n': 3},
    {'step': 13, 'train/loss': 0.5, 'perf/x': 1.5},
  ]
  assert lines == [
    'step 12: train/loss 0.1, n 3',
    'step 13: train/loss 0.5, perf/x 1.5',
  ]


def test_a_line_is_out_of_the_process_when_scalars_returns(tmp_path):
  w = metric_writers.MetricWriters(tmp_path, log=None)
  w.scalars(1, {'a': 1.0})
  assert len(metric_writers.read_jsonl(tmp_path / 'metrics.jsonl')) == 1
  assert [e.step for e in _events(tmp_path) if e.summary.value] == [1]
  w.flush()
  w.close()
  w.close()


def test_tensorboard_holds_the_same_scalars(tmp_path):
  _run(tmp_path, [0, 1])
  found = [
    (e.step, v.tag, v.simple_value)
    for e in _events(tmp_path)
    for v in e.summary.value
  ]
  assert found == [
    (0, 'train/loss', 1.0),
    (0, 'valid/ndcg@10', 0.0),
    (0, 'valid/mrr', 0.0),
    (1, 'train/loss', 0.5),
  ]


def test_events_are_those_of_the_format(tmp_path):
  assert doctest.testmod(event_files).failed == 0
  file = event_files.EventFile(tmp_path)
  file.start_session(0)
  values = {'ü' * 100: 1e300, 'b': -math.inf, 'c': math.nan, 'd': 0.1}
  file.write_scalars(1 << 40, values)
  file.close()
  version, start, scalars = _events(tmp_path)
  assert version.file_version == 'brain.Event:2'
  assert start.session_log.status == start.session_log.START
  assert 0 < version.wall_time <= start.wall_time <= time.time()
  assert scalars.step == 1 << 40
  found = {v.tag: v.simple_value for v in scalars.summary.value}
  assert list(found) == list(values)
  np.testing.assert_array_equal(
    list(found.values()), [np.inf, -np.inf, np.nan, np.float32(0.1)]
  )


@pytest.mark.parametrize('resume_step', [None, 0, 3, 4])
def test_interrupted_and_uninterrupted_runs_leave_the_same_lines(
  tmp_path, resume_step
):
  _run(tmp_path / 'whole', range(10))
  _run(tmp_path / 'parts', range(7))
  with open(tmp_path / 'parts' / 'metrics.jsonl', 'a') as f:
    f.write('{"step": 7, "train/lo')  # killed while writing
  first = 0 if resume_step is None else resume_step + 1
  _run(tmp_path / 'parts', range(first, 10), resume_step)
  lines = [(tmp_path / d / 'metrics.jsonl') for d in ('whole', 'parts')]
  assert lines[0].read_bytes() == lines[1].read_bytes()
  # TensorBoard forgets earlier events from the step of a START event onwards.
  starts = [e.step for e in _events(tmp_path / 'parts') if e.session_log.status]
  assert starts == [0, first]


def test_a_killed_process_loses_no_line(tmp_path):
  code = (
    'import os, signal, sys\n'
    'from genrec_jax.report import metric_writers\n'
    'w = metric_writers.MetricWriters(sys.argv[1], log=None)\n'
    'for step in range(20):\n'
    '  w.scalars(step, {"a": step / 3})\n'
    'os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  process = subprocess.run([sys.executable, '-c', code, str(tmp_path)])
  assert process.returncode == -signal.SIGKILL
  rows = metric_writers.read_jsonl(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(20))


def test_non_finite_numbers_are_json_and_come_back(tmp_path):
  values = {'a': math.nan, 'b': math.inf, 'c': -math.inf}
  with metric_writers.MetricWriters(tmp_path, log=None) as w:
    w.scalars(1, values)
  path = tmp_path / 'metrics.jsonl'
  assert path.read_text() == (
    '{"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity"}\n'
  )
  (row,) = metric_writers.read_jsonl(path)
  assert math.isnan(row['a']) and row['b'] == math.inf
  assert row['c'] == -math.inf


@pytest.mark.parametrize(
  'value, message',
  [
    (np.zeros(3), r"'train/x' must be one number.*shape \(3,\)"),
    ('0.5', "'train/x' must be one number, not a str"),
    (None, "'train/x' must be one number, not a NoneType"),
  ],
)
def test_only_numbers_are_written(tmp_path, value, message):
  with metric_writers.MetricWriters(tmp_path, log=None) as w:
    with pytest.raises(ValueError, match=message):
      w.scalars(1, {'train/x': value})
    with pytest.raises(ValueError, match="'step' names the step"):
      w.scalars(1, {'step': 2})
  assert (tmp_path / 'metrics.jsonl').read_text() == ''


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
  with pytest.raises(ValueError, match='is damaged: line 2 is not a JSON'):
    metric_writers.read_jsonl(path)
  path.write_text('[1]\n')
  with pytest.raises(ValueError, match='line 1 is not a JSON object'):
    metric_writers.read_jsonl(path)
  for foreign in ('{"loss": 1}\n', '[1]\n'):
    path.write_text(foreign)
    with pytest.raises(ValueError, match='line 1 has no "step"'):
      metric_writers.MetricWriters(tmp_path)
    assert path.read_text() == foreign


@pytest.mark.parametrize('target', ['pipe', '/dev/zero'])
def test_what_is_no_file_is_not_waited_for(tmp_path, target):
  path = tmp_path / 'metrics.jsonl'
  os.mkfifo(path) if target == 'pipe' else path.symlink_to(target)
  for read in (metric_writers.read_jsonl, lambda p: _run(p.parent, [1])):
    with pytest.raises(ValueError, match='is damaged .it is not a file.; remo'):
      read(path)


def test_links_are_not_written_to(tmp_path):
  outside, path = tmp_path / 'outside.txt', tmp_path / 'w' / 'metrics.jsonl'
  for content in (None, '{"step": 1}\n'):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    if content:
      outside.write_text(content)
    _run(path.parent, [2])
    assert not path.is_symlink() and len(metric_writers.read_jsonl(path)) == 2
  assert outside.read_text() == content


def test_numbers_that_no_run_measures_are_left_out(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  huge = '1' + '0' * 400
  path.write_text(f'{{"step": 1, "a": {huge}, "b": -{huge}, "c": 7}}\n')
  assert metric_writers.read_jsonl(path) == [
    {'step': 1, 'a': math.inf, 'b': -math.inf, 'c': 7}
  ]
  for step in (huge, f'-{huge}', f'-{huge[:200]}'):
    path.write_text(f'{{"step": 1}}\n{{"step": {step}}}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match='is damaged: line 2'):
      metric_writers.read_jsonl(path)
    with metric_writers.MetricWriters(tmp_path, 2, log=None) as w:
      assert w.hole['unreadable'] == 1


def test_a_line_without_end_is_not_kept_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(metric_writers, '_MOST_LINE', 20)
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"step": 1}\n{"step": 2, "a": 123456789012345}\n' + 'a' * 40)
  with pytest.raises(ValueError, match='is damaged: line 2'):
    metric_writers.read_jsonl(path)
  with metric_writers.MetricWriters(tmp_path, 2, log=None):
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(
  'damage, missing, unreadable, after',
  [
    (lambda text: text, None, 0, None),
    (lambda text: text + text[-60:].split('\n', 1)[1], None, 0, None),
    (lambda text: text[:90], 6, 0, 0),  # torn in the second line
    (lambda text: '', 8, 0, 0),
    (lambda text: None, 8, 0, 0),
    (lambda text: text.replace('0.25', '0.26'), 0, 0, None),
    (lambda text: text.replace('"step": 2', '"step": 9', 1), 1, 0, None),
    (lambda text: '\0' * 20 + text[20:], 1, 1, 0),
    (lambda text: text[:-30] + '\0' * 30, 1, 0, None),
    (lambda text: text.replace('mrr', '\udcff', 1), 1, 1, 0),
    (lambda text: '[' * 100_000 + '\n' + text, None, 0, None),
    (lambda text: text.split('\n', 1)[1], 1, 0, None),
  ],
)
def test_a_resumed_run_knows_what_it_lacks(
  tmp_path, damage, missing, unreadable, after
):
  """And goes on; a checkpoint of earlier versions expects nothing."""
  _run(tmp_path, range(5))
  path = tmp_path / 'metrics.jsonl'
  with metric_writers.MetricWriters(tmp_path, 4, log=None) as w:
    expected = w.position
    assert w.hole is None and expected['lines'] == 8
  text = damage(path.read_text())
  if text is None:
    path.unlink()
  else:
    path.write_bytes(text.encode(errors='surrogateescape'))
  with metric_writers.MetricWriters(
    tmp_path, 4, log=None, expected=expected
  ) as w:
    hole = w.hole
    w.scalars(5, {'a': 1.0})
    assert w.position['lines'] == len(metric_writers.read_jsonl(path))
  if missing is None:
    assert hole is None
    return
  assert hole == {
    'step': 4, 'after': after, 'missing': missing, 'unreadable': unreadable
  }  # fmt: skip
  said = metric_writers.describe_hole(hole)
  assert said.startswith(
    'metrics.jsonl lacks' if missing else 'metrics.jsonl w'
  )


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='no /dev/full')
def test_a_full_disk_stops_the_run(tmp_path):
  os.symlink('/dev/full', tmp_path / 'full')
  with metric_writers.MetricWriters(tmp_path, log=None) as w:
    file, w._jsonl = w._jsonl, open(tmp_path / 'full', 'w')
    with pytest.raises(OSError, match='No space left'):
      w.scalars(1, {'a': 1.0})
    os.dup2(file.fileno(), w._jsonl.fileno())  # else close would fail as well
    file.close()


def test_dump_json_takes_what_reports_hold():
  value = {
    'array': np.arange(2),
    'tuple': (1, jnp.int32(2)),
    'flag': np.bool_(True),
    'none': None,
    3: np.float64(0.25),
  }
  assert json.loads(metric_writers.dump_json(value)) == {
    'array': [0, 1],
    'tuple': [1, 2],
    'flag': True,
    'none': None,
    '3': 0.25,
  }
  with pytest.raises(ValueError, match='one number, not a object'):
    metric_writers.dump_json({'a': object()})


def test_write_atomically_leaves_the_old_file_when_it_fails(tmp_path):
  path = tmp_path / 'file'
  metric_writers.write_atomically(path, 'old')
  with pytest.raises(UnicodeEncodeError):
    metric_writers.write_atomically(path, 'new \udc80')
  assert path.read_text() == 'old'


def test_a_workdir_may_be_text(tmp_path):
  with metric_writers.MetricWriters(str(tmp_path / 'new'), log=None) as w:
    w.scalars(1, {'train/loss': 0.5})
  assert (tmp_path / 'new' / 'metrics.jsonl').exists()


def test_text_is_utf_8_whatever_the_locale(tmp_path):
  code = (
    'from genrec_jax.report import metric_writers\n'
    f'metric_writers.write_atomically({str(tmp_path / "x")!r}, chr(0x1F3AC))'
  )
  env = os.environ | {
    'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0',
    'PYTHONPATH': os.getcwd(),
  }  # fmt: skip
  subprocess.run([sys.executable, '-c', code], env=env, check=True)
  assert (tmp_path / 'x').read_text(encoding='utf-8') == '\U0001f3ac'
