"""A teacher, the service and three students as a user starts them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from genrec_jax.data.parquet import pq
from genrec_jax.processes import notes
from genrec_jax.train.exfm import commands, page, settings
from tests.e2e.commands import OF_TESTS, ROOT
from tests.report.page_parser import parse
from tests.train.tiny_run import curve

pytestmark = pytest.mark.slow
SMALL = (
  '--windows=4', '--rows=400', '--values=20', '--fields=4', '--pairs=2',
  '--rate=0.1', '--attribution_s=3600', '--threads=1', '--status_s=1',
  '--students', 'feed=dlrm:0', 'video=dcn:1', 'search=deepfm:0,2',
  '--set=all.data.hash_rows=64', '--set=all.train.batch_size=64',
)  # fmt: skip


def start(root: pathlib.Path, *more: str, words=SMALL) -> subprocess.Popen:
  env = {k: v for k, v in os.environ.items() if k not in OF_TESTS}
  return subprocess.Popen(
    [sys.executable, '-m', 'genrec_jax.train.exfm', str(root), *words, *more],
    cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    text=True,
  )  # fmt: skip


def open_layout(root: pathlib.Path) -> commands.Layout:
  return commands.Layout(root, settings.read_record(root).settings)


def read_curves(root: pathlib.Path) -> dict[str, list[dict]]:
  workdirs = [root / 'teacher', *sorted((root / 'students').iterdir())]
  return {path.name: curve(path) for path in workdirs}


def wait_for(driver: subprocess.Popen, path: pathlib.Path) -> None:
  while not path.exists():
    assert driver.poll() is None, driver.communicate()[0]
    time.sleep(0.02)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  root = tmp_path_factory.mktemp('exfm') / 'whole'
  driver = start(root)
  said, _ = driver.communicate(timeout=500)
  assert driver.returncode == 0, said
  return root, said


def test_a_system_runs_to_its_page(whole):
  root, said = whole
  assert 'events 4/4 · service 4 · teacher 4 · feed 4' in said
  assert 'exfm.html' in said
  parse((root / page.PAGE).read_text())
  numbers = json.loads((root / page.NUMBERS).read_text())
  assert len(numbers['students']) == 3
  for student in numbers['students']:
    for run in student['methods'].values():
      assert 0.5 < run['ne'] < 5 and len(run['windows']) == 4
  assert numbers['service']['calls_saved'] > 100
  assert numbers['service']['join']['joined'] > 0
  layout = open_layout(root)
  for name in commands.list_processes(layout):
    assert notes.read_note(layout.note(name)).state == notes.DONE


def test_every_example_is_there_once(whole):
  root, _ = whole
  for stream in ('teacher', 'feed', 'video', 'search'):
    files = sorted((root / 'annotated' / stream).glob('*.parquet'))
    ids = np.concatenate([pq.read_table(x)['example_id'] for x in files])
    assert len(files) == 4 and len({*ids}) == len(ids)
    if stream == 'teacher':
      assert len(ids) == 4 * 400


def test_the_same_command_has_nothing_left_to_do(whole):
  root, _ = whole
  before = read_curves(root)
  driver = start(root)
  said, _ = driver.communicate(timeout=100)
  assert driver.returncode == 0, said
  assert read_curves(root) == before
  layout = open_layout(root)
  assert notes.read_note(layout.note('teacher')).tries == 1


def test_a_changed_setting_is_refused(whole):
  root, _ = whole
  driver = start(root, '--lag=1')
  said, _ = driver.communicate(timeout=100)
  assert driver.returncode == 1
  assert 'error:' in said and 'lag=0, not 1' in said


def test_a_system_that_is_stopped_and_killed_ends_with_equal_curves(
  whole, tmp_path
):
  root = tmp_path / 'system'
  driver = start(root)
  wait_for(driver, root / 'annotated' / 'feed' / 'window-0000000000.parquet')
  layout = open_layout(root)
  # A student and the service die, and are started again.
  for name in ('feed-adapter', 'service'):
    note = notes.read_note(layout.note(name))
    os.killpg(note.pid, signal.SIGKILL)
  wait_for(driver, root / 'annotated' / 'feed' / 'window-0000000001.parquet')
  driver.send_signal(signal.SIGTERM)
  said, _ = driver.communicate(timeout=100)
  assert driver.returncode == 75, said
  assert 'service: killed by SIGKILL' in said
  assert 'started again (1 of 5 times)' in said
  assert 'the same command continues' in said
  for name in commands.list_processes(layout):
    note = notes.read_note(layout.note(name))
    assert not notes.is_alive(note, layout.log(name))
  # The driver itself is killed; what it has started saves and ends.
  driver = start(root)
  wait_for(driver, root / 'annotated' / 'feed' / 'window-0000000002.parquet')
  driver.kill()
  driver.communicate()
  driver = start(root)
  said, _ = driver.communicate(timeout=500)
  assert driver.returncode == 0, said
  assert read_curves(root) == read_curves(whole[0])
  for stream in ('teacher', 'feed', 'video', 'search'):
    for path in sorted((root / 'annotated' / stream).glob('*.parquet')):
      again = whole[0] / 'annotated' / stream / path.name
      assert path.read_bytes() == again.read_bytes()


def test_a_key_that_cannot_be_leaves_nothing_behind(tmp_path):
  driver = start(tmp_path / 'system', '--set=video.train.batch_size=0')
  said, _ = driver.communicate(timeout=100)
  assert driver.returncode == 1 and 'video-adapter' in said
  assert 'batch_size' in said and not (tmp_path / 'system').exists()


def test_events_of_ones_own(whole, tmp_path):
  root, _ = whole
  own = (
    f'--events={root / "events"}', f'--base={root / "base/teacher.parquet"}',
    '--window_s=3600', '--students', 'feed=dlrm', 'video=dcn', '--compare',
    '--method=one_head',
  )  # fmt: skip
  kept = [
    word for word in SMALL if word.startswith(('--set', '--thr', '--sta'))
  ]
  driver = start(tmp_path / 'own', *own, words=[*kept, '--attribution_s=3600'])
  said, _ = driver.communicate(timeout=500)
  assert driver.returncode == 0, said
  numbers = json.loads((tmp_path / 'own' / page.NUMBERS).read_text())
  assert [s['name'] for s in numbers['students']] == ['feed', 'video']
  # Nobody knows the truth, and the parts are those of the generated stream.
  assert numbers['students'][0]['floor'] is None
  other = json.loads((root / page.NUMBERS).read_text())
  for mine, its in zip(numbers['students'], other['students'], strict=False):
    assert mine['examples'] == its['examples']
    assert [x['rate'] for x in mine['windows']] == [
      x['rate'] for x in its['windows']
    ]
  parse((tmp_path / 'own' / page.PAGE).read_text())
