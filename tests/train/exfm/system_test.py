"""How the driver of ExFM starts, watches and stops; its processes are fake."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from genrec_jax import interruption
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.train.exfm import __main__ as command
from genrec_jax.train.exfm import commands, settings, status, system

NAMES = ('writer', 'service', 'teacher', 'feed-adapter', 'video-adapter')
END = 'import sys; sys.exit({})'
# Dies by a signal until it has been started often enough.
DIE = (
  'import os, pathlib, signal\n'
  'path = pathlib.Path({path!r})\n'
  'tries = int(path.read_text()) if path.exists() else 0\n'
  'path.write_text(str(tries + 1))\n'
  'if tries < {often}: os.kill(os.getpid(), signal.SIGKILL)\n'
)
WAIT = (
  'import signal, sys, time\n'
  'signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n'
  'print("ready", flush=True)\n'
  'time.sleep(60)\n'
)


class Fake:
  """A system whose processes are words of Python."""

  def __init__(self, root):
    words = ['--students', 'feed=dlrm', 'video=dcn', '--compare', '--windows=4']
    args = command.make_parser().parse_args([str(root), *words])
    self.layout = commands.Layout(root, command.read_settings(args))
    (root / 'events').mkdir()
    configs = commands.load_configs(self.layout)
    self.record = settings.Record(self.layout.settings, configs)
    self.lines = []

  def make(self, codes=None, **options):
    codes = dict.fromkeys(NAMES, END.format(0)) | (codes or {})
    return system.System(
      self.record,
      self.layout,
      system.RunOptions(**options),
      self.lines.append,
      {name: [sys.executable, '-c', code] for name, code in codes.items()},
    )

  def run(self, codes=None, **options) -> bool:
    return self.make(codes, **options).run()

  def note(self, name) -> notes.Note:
    return notes.read_note(self.layout.note(name))

  @property
  def said(self) -> str:
    return '\n'.join(self.lines)


@pytest.fixture
def fake(tmp_path):
  return Fake(tmp_path)


def test_all_run_to_their_ends(fake):
  assert fake.run()
  assert {fake.note(name).state for name in NAMES} == {notes.DONE}
  # The writer has come to its end, so that the service may.
  assert (fake.layout.events / 'END').exists()
  assert 'events 0/4' in fake.lines[-1]


def test_what_is_done_is_not_started_again(fake):
  assert fake.run()
  assert fake.run(dict.fromkeys(NAMES, END.format(1)))
  assert {fake.note(name).tries for name in NAMES} == {1}


def test_a_process_that_a_signal_ends_is_started_again(fake, tmp_path):
  code = DIE.format(path=str(tmp_path / 'tries'), often=2)
  assert fake.run({'service': code}, retries=2)
  assert fake.note('service').tries == 3
  assert 'service: killed by SIGKILL' in fake.said
  assert 'started again (2 of 2 times)' in fake.said


def test_it_is_not_started_for_ever(fake, tmp_path):
  code = DIE.format(path=str(tmp_path / 'tries'), often=9)
  assert not fake.run({'teacher': code, 'service': WAIT}, retries=1)
  assert 'more than --retries' in fake.said
  assert fake.note('teacher').tries == 2


@pytest.mark.parametrize('code', [1, 70])
def test_an_error_ends_all_and_shows_its_last_lines(fake, code):
  tells = 'print("error: no column price"); ' + END.format(code)
  assert not fake.run({'feed-adapter': tells, 'service': WAIT})
  assert f'feed-adapter: exit status {code}' in fake.said
  assert '    error: no column price' in fake.said
  assert str(fake.layout.log('feed-adapter')) in fake.said
  assert fake.note('service').state == notes.STOPPED
  # What was stopped goes on, and the error is tried again.
  assert fake.run()


def test_a_signal_stops_all_and_is_passed_on(fake):
  waits = dict.fromkeys(NAMES, WAIT)

  def interrupt():
    while not all(fake.layout.log(name).exists() for name in NAMES) or any(
      b'ready' not in fake.layout.log(name).read_bytes() for name in NAMES
    ):
      time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=interrupt).start()
  with pytest.raises(interruption.Stopped):
    fake.run(waits)
  assert {fake.note(name).state for name in NAMES} == {notes.STOPPED}
  assert {fake.note(name).status for name in NAMES} == {75}
  assert 'save and end; the same command continues' in fake.said
  assert fake.run()


def test_students_wait_for_their_turn(fake, tmp_path):
  log = tmp_path / 'order'
  code = (
    f'import time\nopen({str(log)!r}, "a").write("+")\n'
    f'time.sleep(.3)\nopen({str(log)!r}, "a").write("-")\n'
  )
  students = {'feed-adapter': code, 'video-adapter': code}
  assert fake.run(students, jobs=1)
  assert log.read_text() == '+-+-'


def test_a_config_that_changes_meanwhile_ends_the_run(fake):
  config = fake.record.configs['video-adapter']
  config['train']['batch_size'] += 1
  with pytest.raises(ConfigError, match='video-adapter has train.batch_size'):
    fake.run({'service': WAIT})
  assert fake.note('service').state == notes.STOPPED


def test_processes_of_a_driver_that_was_killed_are_waited_for(fake):
  path = fake.layout.note('service')
  path.parent.mkdir()
  other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1)'])
  before = notes.describe_this_process(notes.Note())
  note = dict(pid=other.pid, started=notes._read_start(other.pid))
  notes.write_note(path, before.__class__(**{**vars(before), **note}))
  began = time.monotonic()
  threading.Thread(target=other.wait).start()
  assert fake.run()
  assert time.monotonic() - began > 0.7
  assert 'service: still there from before' in fake.said
  assert fake.note('service').tries == 2


def test_options_that_cannot_be_are_refused():
  with pytest.raises(ConfigError, match='--jobs is -1'):
    system.RunOptions(jobs=-1)


def test_the_status_counts_windows(fake):
  layout = fake.layout
  for name in ('feed', 'video'):
    (layout.events / name).mkdir()
    for k in range(3):
      for kind in ('impressions', 'labels'):
        (layout.events / name / f'{kind}-{k:06d}.parquet').touch()
  (layout.events / 'video' / 'labels-000002.parquet').unlink()
  (layout.annotated / 'feed').mkdir(parents=True)
  (layout.annotated / 'feed' / 'window-0000000000.parquet').touch()
  student, method = next(layout.settings.runs())
  workdir = layout.student(student, method)
  workdir.mkdir(parents=True)
  (workdir / 'metrics.jsonl').write_text(
    '{"step": 1, "train/logloss": 0.5}\n{"step": 2, "train/loss": 0.5}\n'
  )
  line = status.Status(layout).describe()
  assert 'events 2/4 · service 1 · teacher 0 · feed 1 · video 0' in line
