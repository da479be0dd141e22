"""The annotation service with a real teacher, window by window."""

import pathlib
import shutil

import numpy as np
import pytest

from genrec_jax.checkpoint import manifest
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import drift
from genrec_jax.distill.teacher_store import TeacherStore
from genrec_jax.serve import annotate
from genrec_jax.serve.annotator import (
  AnnotateOptions,
  Annotator,
)
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.snapshots import (
  Snapshots,
  fingerprint_run,
  number_window,
)
from tests.distill import kills
from tests.serve.taught_events import (
  ATTRIBUTION_S,
  LOG,
  STREAMS,
  options_of,
)


def read_parts(folder: pathlib.Path) -> dict[int, pa.Table]:
  return {
    number_window(path.name): pq.read_table(path)
    for path in sorted(folder.glob('*.parquet'))
  }


def join_naively(segments) -> dict[int, list[tuple]]:
  """Window -> (id, time, label) by a loop over all events."""
  stream, found = drift.DriftStream(LOG), {}
  for k in range(LOG.windows):
    window = stream.window(k)
    for i in range(len(window)):
      if window.segment[i] not in segments:
        continue
      arrival = window.label_time[i]
      in_time = 0 <= arrival <= window.time[i] + ATTRIBUTION_S
      # A label that arrives behind the last window is never read.
      in_time &= arrival < LOG.windows * LOG.window_s
      label = float(window.label[i] if in_time else 0)
      found.setdefault(k, []).append(
        (int(window.example_id[i]), int(window.time[i]), label)
      )
  return {k: sorted(rows, key=lambda r: (r[1], r[0])) for k, rows in
          found.items()}  # fmt: skip


def test_parts_have_the_examples_and_labels_of_their_stream(done):
  folder, facts = done
  for name, segments in (*STREAMS.items(), ('teacher', (0, 1, 2))):
    parts = read_parts(folder / 'out' / name)
    wanted = join_naively(segments)
    assert parts.keys() == wanted.keys()
    for k, table in parts.items():
      columns = [table[c].to_pylist() for c in ('example_id', 'time', 'label')]
      assert list(zip(*columns, strict=True)) == wanted[k]
    assert (folder / 'out' / name / 'END').exists()
  total = LOG.windows * LOG.rows
  assert facts['examples'] == total and facts['scored'] == total - LOG.rows
  assert facts['rows'] > facts['examples']  # segment 1 is in both
  assert 0 < facts['labels_lost'] < 0.5


def test_scores_are_those_of_the_teacher_of_the_window_before(done):
  folder, _ = done
  snapshots = Snapshots(folder / 'teacher').list_windows()
  assert list(snapshots) == list(range(LOG.windows - 1))
  for name in STREAMS:
    for k, table in read_parts(folder / 'out' / name).items():
      weight = table['teacher_weight'].to_numpy()
      assert (weight == (k > 0)).all()
      if not k:
        continue
      scorer = Scorer.load(folder / 'teacher', checkpoint=snapshots[k - 1])
      columns = {c: table[c].to_numpy() for c in scorer.encoder.schema.sources}
      np.testing.assert_allclose(
        table['teacher'].to_numpy(), scorer.score(columns)[:, 0], rtol=1e-6
      )
  store = TeacherStore.open_existing(folder / 'out' / 'scores')
  assert len(store) == (LOG.windows - 1) * LOG.rows
  for scores in store.iterate():
    window = scores.time // LOG.window_s
    np.testing.assert_array_equal(scores.snapshot_window, window - 1)


@pytest.mark.parametrize('lag', [1, 2])
def test_a_lag_takes_an_older_teacher(done, lag):
  folder, _ = done
  facts = Annotator(options_of(folder, f'lag{lag}', lag=lag)).run()
  assert facts['scored'] == (LOG.windows - 1 - lag) * LOG.rows
  store = TeacherStore.open_existing(folder / f'lag{lag}' / 'scores')
  for scores in store.iterate():
    window = scores.time // LOG.window_s
    np.testing.assert_array_equal(scores.snapshot_window, window - 1 - lag)


def list_files(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and not path.name.startswith('.')
  }


def test_a_service_that_is_killed_writes_the_same(done, tmp_path):
  folder, _ = done
  expected = list_files(folder / 'out')
  options = options_of(folder)

  def run(out: pathlib.Path) -> None:
    about = AnnotateOptions(**vars(options) | {'out': str(out)})
    Annotator(about).run()

  moments = 0
  for out in kills.walk(tmp_path, lambda path: path.mkdir(), run, every=40):
    before = list_files(out)
    run(out)
    found = list_files(out)
    assert found == expected
    for name in before:  # what has its name once does not change
      if name.endswith('.parquet'):
        assert before[name] == found[name]
    moments += 1
  assert moments > 5


def test_a_teacher_that_knows_an_example_is_refused(done, monkeypatch):
  folder, _ = done
  service = Annotator(options_of(folder, 'cheating'))
  monkeypatch.setattr(service, '_find_source', lambda number: (number,))
  with pytest.raises(AssertionError, match='has been trained on'):
    service.run()


def test_a_teacher_that_knows_an_id_is_refused(done, monkeypatch):
  """Also where its times say otherwise."""
  folder, _ = done
  service = Annotator(options_of(folder, 'again'))
  service._taught_ids[-1] = pq.read_table(
    folder / 'out' / 'teacher' / 'window-0000000001.parquet'
  )['example_id'].to_numpy()
  with pytest.raises(AssertionError, match='has examples of window -1'):
    service.run()


def test_who_does_not_wait_goes_without_scores(done, tmp_path):
  folder, _ = done
  options = options_of(folder, 'fast', is_patient=False)
  options = AnnotateOptions(**vars(options) | {'teacher': str(tmp_path / 'no')})
  facts = Annotator(options).run()
  assert facts['finished'] and not facts['scored']
  for table in read_parts(folder / 'fast' / 'feed').values():
    assert not table['teacher_weight'].to_numpy().any()


def test_another_teacher_in_one_directory_is_refused(done, tmp_path):
  folder, _ = done
  with pytest.raises(ValueError, match='begun with lag=0, not 1'):
    Annotator(options_of(folder, lag=1))
  config = (folder / 'teacher' / 'config.json').read_text()
  other = tmp_path / 'other'
  shutil.copytree(folder / 'teacher', other / 'teacher')
  (other / 'teacher' / 'config.json').write_text(
    config.replace('\n  "seed": 0', '\n  "seed": 1')
  )
  with pytest.raises(ValueError, match='a store is of one teacher'):
    store = TeacherStore.open_existing(folder / 'out' / 'scores')
    TeacherStore.open(
      folder / 'out' / 'scores',
      teacher=store.teacher,
      labels=store.labels,
      fingerprint=fingerprint_run(other / 'teacher'),
    )


def test_a_snapshot_that_is_gone_is_said(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'teacher', tmp_path / 'teacher')
  step = Snapshots(tmp_path / 'teacher').list_windows()[1]
  shutil.rmtree(tmp_path / 'teacher' / 'checkpoints' / str(step))
  options = options_of(folder, 'gone')
  options = AnnotateOptions(
    **vars(options) | {'teacher': str(tmp_path / 'teacher')}
  )
  with pytest.raises(ValueError, match='no checkpoint of window 1 any more'):
    Annotator(options).run()


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(lag=-1), 'the lag is -1'),
    (dict(poll_s=0.0), '--poll is 0.0'),
    (dict(poll_s=1e18), '--poll is 1e'),
    (dict(window_s=1 << 40), 'window_s is 1099511627776'),
    (dict(most_lost=2.0), '--most_lost is 2.0'),
    (dict(streams=('teacher',)), "cannot be called 'teacher'"),
    (dict(streams=('END',)), "cannot be called 'END'"),
    (dict(streams=('my feed',)), "called 'my feed', and so are directories"),
    (dict(streams=('..',)), "called '..', and so are directories"),
  ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    options_of(tmp_path, **changes)


def test_streams_that_are_not_there_are_said(tmp_path):
  with pytest.raises(FileNotFoundError, match='no such directory of streams'):
    Annotator(options_of(tmp_path))
  (tmp_path / 'events').mkdir()
  with pytest.raises(ValueError, match='has no streams'):
    Annotator(options_of(tmp_path))


def test_the_command_says_what_it_did(done, capsys):
  folder, _ = done
  words = [
    str(folder / 'events'), str(folder / 'command'),
    f'--teacher={folder / "teacher"}', f'--window_s={LOG.window_s}',
    f'--attribution_s={ATTRIBUTION_S}', '--poll=0.01',
  ]  # fmt: skip
  assert annotate.main(words) == 0
  said = capsys.readouterr().out
  assert 'teacher calls saved' in said
  assert 'annotated 1,000 examples' in said
  assert list_files(folder / 'command') == list_files(folder / 'out')


def test_a_damaged_unit_is_named(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'events', tmp_path / 'events')
  path = tmp_path / 'events' / 'feed' / 'labels-000002.parquet'
  path.write_bytes(path.read_bytes()[:50])
  options = options_of(folder, 'damaged', events=str(tmp_path / 'events'))
  with pytest.raises(ValueError, match='labels-000002.parquet cannot be read'):
    Annotator(options).run()


def test_windows_have_numbers():
  with pytest.raises(ValueError, match='does not say which window'):
    number_window('last.parquet')


@pytest.mark.parametrize('missing', ['labels-000002', 'impressions-000004'])
def test_a_unit_that_is_missing_before_the_end_is_named(
  done, tmp_path, missing
):
  folder, _ = done
  shutil.copytree(folder / 'events', tmp_path / 'events')
  (tmp_path / 'events' / 'feed' / f'{missing}.parquet').unlink()
  options = options_of(folder, missing, events=str(tmp_path / 'events'))
  unit = int(missing[-1])
  with pytest.raises(ValueError, match=f'unit {unit} is not whole'):
    Annotator(options).run()


def test_a_teacher_that_has_read_other_parts_is_refused(done, tmp_path):
  """As one of other windows, or one that has seen what is to come."""
  folder, _ = done
  shutil.copytree(folder / 'teacher', tmp_path / 'teacher')
  steps = Snapshots(tmp_path / 'teacher')
  step = steps.list_windows()[0]
  assert [*steps.read_parts(step)] == ['window-0000000000.parquet']
  state = (
    tmp_path / 'teacher' / 'checkpoints' / str(step) / 'data'
    / 'process_0-of-1.json'
  )  # fmt: skip
  text = state.read_text()
  crc = str(steps.read_parts(step)['window-0000000000.parquet'])
  for number, other in enumerate(
    (
      text.replace('0000000000', '0000000001'),
      text.replace(crc, '1' * len(crc)),
    )
  ):
    state.write_text(other)
    options = options_of(folder, f'other{number}')
    options = AnnotateOptions(
      **vars(options) | {'teacher': str(tmp_path / 'teacher')}
    )
    with pytest.raises(
      ValueError, match='has been trained on window-000000000'
    ):
      Annotator(options).run()


def test_times_before_zero_are_refused(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'events', tmp_path / 'events')
  for name in STREAMS:
    path = tmp_path / 'events' / name / 'impressions-000000.parquet'
    table = pq.read_table(path)
    at = table.column_names.index('time')
    early = pa.array(table['time'].to_numpy() - 1_000)
    pq.write_table(table.set_column(at, 'time', early), path)
  options = options_of(folder, 'early', events=str(tmp_path / 'events'))
  with pytest.raises(ValueError, match='times are whole seconds, 0 or more'):
    Annotator(options).run()


def test_a_window_without_examples_leaves_the_teacher_of_before(done, tmp_path):
  """Window 3 is scored behind window 1 where there is no window 2."""
  folder, _ = done
  service = Annotator(options_of(folder))
  notes = {k: v for k, v in service._parts.notes.items() if '0002' not in k}
  service._parts = type('Parts', (), {'notes': notes})()
  assert service._find_source(3) == (1,)
  assert service._find_source(4) == (3,)
  assert service._find_source(0) is None


def test_the_times_of_all_that_a_teacher_has_read_count(done):
  folder, _ = done
  service = Annotator(options_of(folder))
  notes = {'teacher/window-0000000001.parquet': {'first': 0, 'last': 310}}
  service._parts = type('Parts', (), {'notes': notes})()
  service._taught_ids = {}
  table = pa.table({'example_id': [1], 'time': [310]})
  window = type('Window', (), {'table': table, 'number': 3})()
  with pytest.raises(AssertionError, match='examples of time 310'):
    service._check_age(window, 1)
  service._check_age(window, 0)


def test_a_checkpoint_within_a_part_is_no_snapshot(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'teacher', tmp_path / 'teacher')
  snapshots = Snapshots(tmp_path / 'teacher')
  windows = snapshots.list_windows()
  step_dir = tmp_path / 'teacher' / 'checkpoints' / str(windows[2])
  body = manifest.read(step_dir)
  host = body['host'] | {'part': body['host']['part'] | {'used': 1}}
  keep = {k: body[k] for k in ('tree', 'data') if k in body}
  manifest.write(step_dir, windows[2], host=host, **keep)
  # Also one that has looked before: the run may have begun anew.
  assert snapshots.list_windows() == {
    w: step for w, step in windows.items() if w != 2
  }
