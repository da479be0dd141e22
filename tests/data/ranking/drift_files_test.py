import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from genrec_jax.data.ranking import drift, drift_files

STREAMS = {'feed': (0, 2), 'video': (1,), 'both': (0, 1)}


def make_log(**changes):
  options = dict(windows=6, rows=800, segments=3, fields=3, pairs=2, values=9)
  return drift.DriftLog(**(options | dict(rate=0.2, delay=1.0) | changes))


def write(log, directory, streams=STREAMS, first=0, last=None):
  return list(drift_files.write_events(log, directory, streams, first, last))


def read(directory, stream, k):
  return [
    {name: column.to_numpy() for name, column in zip(t.column_names, t.columns)}
    for t in map(pq.read_table, drift_files.name_files(directory, stream, k))
  ]


def list_bytes(directory):
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in sorted(directory.rglob('*'))
    if path.is_file()
  }


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  directory = tmp_path_factory.mktemp('events')
  return make_log(lost=0.2), directory, write(make_log(lost=0.2), directory)


def test_impressions_are_the_rows_of_the_segments(written):
  log, directory, told = written
  stream = drift.DriftStream(log)
  assert [k for k, _, _ in told] == list(range(6))
  for k in range(log.windows):
    window = stream.window(k)
    for name, segments in STREAMS.items():
      impressions, _ = read(directory, name, k)
      keep = np.isin(window.segment, segments)
      columns = ['example_id', 'time', 'segment', 'c0', 'c1', 'c2']
      assert list(impressions) == columns
      for column in columns[:3]:
        wanted = getattr(window, column)[keep]
        np.testing.assert_array_equal(impressions[column], wanted)
      for i in range(log.fields):
        np.testing.assert_array_equal(impressions[f'c{i}'], window.ids[keep, i])
    rows = sum(len(read(directory, s, k)[0]['time']) for s in STREAMS)
    labels = sum(len(read(directory, s, k)[1]['time']) for s in STREAMS)
    assert told[k] == (k, rows, labels)


def test_labels_come_in_the_window_in_which_they_arrive(written):
  log, directory, _ = written
  stream = drift.DriftStream(log)
  windows = [stream.window(k) for k in range(log.windows)]
  for name, segments in STREAMS.items():
    wanted = {}  # window -> the labels that arrive in it, one by one
    for window in windows:
      for i in range(len(window)):
        if window.label[i] and window.segment[i] in segments:
          time = int(window.label_time[i])
          if time != drift.NEVER:
            event = (int(window.example_id[i]), time, 1)
            wanted.setdefault(time // log.window_s, set()).add(event)
    late = 0
    for k in range(log.windows):
      impressions, labels = read(directory, name, k)
      assert list(labels) == ['example_id', 'time', 'label']
      found = list(zip(*(x.tolist() for x in labels.values()), strict=True))
      assert set(found) == wanted[k] and len(found) == len(wanted[k])
      late += (~np.isin(labels['example_id'], impressions['example_id'])).sum()
      # In no order: neither that of the rows nor that of the labels.
      assert 0.3 < np.mean(np.diff(labels['time']) > 0) < 0.7
      assert 0.3 < np.mean(np.diff(labels['example_id']) > 0) < 0.7
    assert late > 50


def test_a_segment_in_two_streams_has_the_same_rows(written):
  log, directory, _ = written
  for k in range(log.windows):
    for which in (0, 1):
      of_feed, of_both = (
        set(read(directory, s, k)[which]['example_id'])
        for s in ('feed', 'both')
      )
      assert of_feed & of_both and of_feed - of_both and of_both - of_feed
    feed, both = (read(directory, s, k)[0] for s in ('feed', 'both'))
    for name in feed:
      np.testing.assert_array_equal(
        feed[name][feed['segment'] == 0], both[name][both['segment'] == 0]
      )


def test_bytes_depend_on_the_log_alone(written, tmp_path):
  log, directory, _ = written
  wanted = list_bytes(directory)
  assert len(wanted) == 3 * (2 * log.windows + 1)
  # The last windows alone, then more of a log that was shorter.
  assert [k for k, _, _ in write(log, tmp_path, first=4)] == [4, 5]
  shorter = make_log(lost=0.2, windows=3)
  assert [k for k, _, _ in write(shorter, tmp_path, last=2)] == [0, 1]
  assert [k for k, _, _ in write(log, tmp_path)] == [2, 3]
  assert list_bytes(tmp_path) == wanted
  assert write(log, tmp_path) == []
  # A file that is missing is written again, and no other one.
  gone = drift_files.name_files(tmp_path, 'video', 3)[1]
  others = {p: p.stat().st_mtime_ns for p in tmp_path.rglob('*.parquet')}
  gone.unlink()
  del others[gone]
  assert [k for k, _, _ in write(log, tmp_path)] == [3]
  assert list_bytes(tmp_path) == wanted
  assert {p: p.stat().st_mtime_ns for p in others} == others


def test_windows_long_ago_bring_no_labels(tmp_path):
  log = make_log(windows=15, rows=50, delay=0.2, rate=0.5)
  write(log, tmp_path / 'all')
  write(log, tmp_path / 'late', first=12)
  late = list_bytes(tmp_path / 'late')
  every = list_bytes(tmp_path / 'all')
  assert late == {name: every[name] for name in late}


@pytest.mark.parametrize(
  'streams, first, last, wanted',
  [
    ({}, 0, 6, 'no streams'),
    ({'a/b': (0,)}, 0, 6, "stream 'a/b' names a directory"),
    ({'a': ()}, 0, 6, "stream 'a' has no segments"),
    ({'a': (3,)}, 0, 6, "stream 'a' has segment 3; segments are 0 to 2"),
    ({'a': (1, 1)}, 0, 6, "stream 'a' has segment 1 twice"),
    ({'a': (1,)}, 0, 7, 'windows 0 to 6 are not .* 0 to 5'),
    ({'a': (1,)}, 3, 3, 'windows 3 to 2 are not'),
  ],
)
def test_what_cannot_be_written_is_refused(
  tmp_path, streams, first, last, wanted
):
  with pytest.raises(ValueError, match=wanted):
    write(make_log(), tmp_path, streams, first, last)
  assert not list(tmp_path.iterdir())


def test_files_of_another_stream_are_not_added_to(written):
  log, directory, _ = written
  with pytest.raises(ValueError, match=r'feed has files .* rows=800 and not 9'):
    write(make_log(lost=0.2, rows=900), directory)
  with pytest.raises(ValueError, match=r'video has .* in_stream=\[1\] and not'):
    write(log, directory, {'video': (1, 2)})


def test_the_command(written, tmp_path, capsys):
  log, directory, _ = written
  words = [f'--out={tmp_path}', '--streams', 'feed=0,2', 'video=1', 'both=0,1']
  words += ['--windows=6', '--rows=800', '--segments=3', '--fields=3']
  words += ['--pairs=2', '--values=9', '--rate=.2', '--delay=1', '--lost=.2']
  assert drift_files.main(words) == 0
  said = capsys.readouterr()
  assert 'wrote 6 windows of feed, video, both' in said.out
  assert 'window 6/6' in said.err
  assert list_bytes(tmp_path) == list_bytes(directory)
  drift_files.main(words)
  assert 'wrote 0 windows' in capsys.readouterr().out
  drift_files.main([f'--out={tmp_path}', '--rows=20', '--last=2'])
  impressions, _ = read(tmp_path, 'all', 1)
  assert len(impressions['time']) == 20
  assert not drift_files.name_files(tmp_path, 'all', 2)[0].exists()


def test_the_command_explains_itself(tmp_path, capsys):
  with pytest.raises(SystemExit):
    drift_files.main(['--help'])
  said = ' '.join(capsys.readouterr().out.split())
  assert '--rows INT rows of a window (10000)' in said
  assert '--lost FLOAT share of the clicks whose label never arrives' in said
  with pytest.raises(SystemExit):
    drift_files.main([f'--out={tmp_path}', '--streams', 'feed'])
  assert "'feed' is not a name and its segments" in capsys.readouterr().err
  with pytest.raises(ValueError, match="'feed' twice"):
    drift_files.main([f'--out={tmp_path}', '--streams', 'feed=0', 'feed=1'])
  command = [sys.executable, '-m', 'genrec_jax.data.ranking.drift_files']
  ended = subprocess.run(
    [*command, f'--out={tmp_path}', '--rows=0'], capture_output=True, text=True
  )
  assert ended.returncode and 'data.drift.rows must be' in ended.stderr


def test_a_label_at_the_border_belongs_to_the_window_that_begins(tmp_path):
  """Seconds are few here, so that many labels arrive at a border."""
  log = make_log(window_s=4, rate=0.5)
  write(log, tmp_path, {'all': (0, 1, 2)})
  at_border = 0
  for k in range(log.windows):
    _, labels = read(tmp_path, 'all', k)
    assert (labels['time'] // log.window_s == k).all()
    at_border += int((labels['time'] == k * log.window_s).sum())
  assert at_border > 10
