"""Faults of teacher, events and parts, which a service must not go on with."""

import json
import shutil

import pytest

from genrec_jax.data.parquet import pa
from genrec_jax.distill.label_join import JoinedWindow
from genrec_jax.serve import annotator
from genrec_jax.serve.annotate_options import AnnotateOptions
from genrec_jax.serve.annotator import Annotator
from genrec_jax.serve.snapshots import fingerprint_run
from tests.serve.taught_events import (
  LOG,
  STREAMS,
  Impatience,
  options_of,
)


def copy_whole(done, tmp_path) -> AnnotateOptions:
  """The options of a copy of all that is there."""
  folder, _ = done
  for name in ('events', 'out', 'teacher'):
    shutil.copytree(folder / name, tmp_path / name)
  return options_of(tmp_path)


def test_a_teacher_that_is_trained_anew_meanwhile_is_refused(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'teacher', tmp_path / 'teacher')
  options = options_of(folder, 'replaced', teacher=str(tmp_path / 'teacher'))
  service, path = Annotator(options), tmp_path / 'teacher' / 'config.json'
  config = path.read_text()
  write = service._write_students

  def replace_teacher(window, *about):
    write(window, *about)
    if window.number == 2:
      path.write_text(config.replace('\n  "seed": 0', '\n  "seed": 1'))

  service._write_students = replace_teacher
  with pytest.raises(ValueError, match='a store is of one teacher'):
    service.run()
  assert service.facts['windows'] == 2


def test_weights_that_a_teacher_began_with_name_it(done, tmp_path):
  folder, _ = done
  shutil.copytree(folder / 'teacher', tmp_path / 'teacher')
  path = tmp_path / 'teacher' / 'config.json'
  body, before = json.loads(path.read_text()), fingerprint_run(path.parent)
  body['train']['log_every'] += 1
  path.write_text(json.dumps(body))
  assert fingerprint_run(path.parent) == before
  start = tmp_path / 'start.safetensors'
  start.write_bytes(b'one')
  body['train']['init_from'] = str(start)
  path.write_text(json.dumps(body))
  one = fingerprint_run(path.parent)
  start.write_bytes(b'two')
  assert len({before, one, fingerprint_run(path.parent)}) == 3


def test_units_behind_the_end_are_refused(done, tmp_path):
  options = copy_whole(done, tmp_path)
  for stream in STREAMS:
    folder = tmp_path / 'events' / stream
    for kind in ('impressions', 'labels'):
      shutil.copy(
        folder / f'{kind}-000000.parquet',
        folder / f'{kind}-{LOG.windows:06d}.parquet',
      )
  with pytest.raises(ValueError, match=f'had ended before unit {LOG.windows}'):
    Annotator(options).run()


def test_an_end_stays_the_end_once_windows_were_given_out(done, tmp_path):
  folder, _ = done
  events = tmp_path / 'events'
  shutil.copytree(folder / 'events', events)
  last = LOG.windows - 1
  held = {}
  for path in events.rglob(f'*-{last:06d}.parquet'):
    held[path] = path.read_bytes()
    path.unlink()
  options = options_of(folder, 'ended', events=str(events))
  service = Annotator(options)
  write, written = service._write_students, []

  def stop_at_last(window, *about):
    if window.number == last - 1:
      raise KeyboardInterrupt
    written.append(window.number)
    return write(window, *about)

  service._write_students = stop_at_last
  with pytest.raises(KeyboardInterrupt):
    service.run()
  for path, content in held.items():
    path.write_bytes(content)
  with pytest.raises(ValueError, match='Begin in another directory'):
    Annotator(options).run()
  for path in held:
    path.unlink()
  (events / 'END').unlink()  # and without it, what was begun is ended
  assert Annotator(options).run()['finished']


def test_an_id_of_long_ago_is_refused(done, tmp_path):
  """Where the join has forgotten it, the store has not."""
  options = copy_whole(done, tmp_path)
  service = Annotator(options)
  service._open_store()
  table = pa.table({'example_id': [LOG.rows], 'time': [5000]})
  window = JoinedWindow(50, table, {})
  with pytest.raises(ValueError, match=f'the example {LOG.rows} of window 50'):
    service._refuse_scored(window)


@pytest.mark.parametrize(
  'damage, message',
  [
    ('feed/window-0000000001.parquet', 'is missing'),
    ('teacher/window-0000000002.parquet', 'is missing'),
    ('scores', 'has no scores of window-0000000001'),
  ],
)
def test_what_has_gone_is_told(done, tmp_path, damage, message):
  options = copy_whole(done, tmp_path)
  path = tmp_path / 'out' / damage
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()
  with pytest.raises((FileNotFoundError, ValueError), match=message):
    Annotator(options)._open_store()


def test_events_with_the_columns_of_scores_are_refused(done):
  folder, _ = done
  options = options_of(folder, 'column', column='c1', events=str(
    folder / 'events'
  ))  # fmt: skip
  with pytest.raises(ValueError, match="have a column 'c1'.*--column"):
    Annotator(options).run()
  assert not list((folder / 'column' / 'teacher').glob('*'))


def test_waiting_is_told_once(done, tmp_path, monkeypatch):
  folder, _ = done
  monkeypatch.setattr(annotator, '_WAITS_S', 0.0)
  lines = []
  options = options_of(folder, 'alone', teacher=str(tmp_path / 'no'))
  Annotator(options, log=lines.append, stop=Impatience()).run()
  waits = [line for line in lines if line.startswith('waiting')]
  assert len(waits) == 1 and 'the workdir of the teacher, is not' in waits[0]
  lines.clear()
  events = tmp_path / 'events'
  (events / 'feed').mkdir(parents=True)
  options = options_of(tmp_path, streams=('feed',), teacher='x')
  Annotator(options, log=lines.append, stop=Impatience()).run()
  (line,) = lines
  assert 'impressions-000000.parquet is not there' in line
