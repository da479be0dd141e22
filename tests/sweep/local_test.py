"""The launcher: each run once, bounds, signals, failures, restarts."""

import dataclasses
import doctest
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import children, notes
from genrec_jax.processes.children import Bounds
from genrec_jax.sweep import live_table, local, record, run_states


def test_examples():
  assert doctest.testmod(local).failed == 0


def starts_of(sweep, variant):
  """(first step, pid, NPROC) of each time that a run was started."""
  lines = (sweep.workdir(variant) / 'starts').read_text().splitlines()
  return [line.split(' ') for line in lines]


def test_all_runs_end_and_none_runs_twice(make_sweep, launch):
  sweep, wanted = make_sweep('seed=0..4')
  counts, text = launch(sweep, wanted, jobs=2)
  assert counts == {'done': 5}
  assert all(f'{v.name}: done' in text for v in wanted)
  counts, text = launch(sweep, wanted, jobs=2)
  assert counts == {'done': 5} and 'started' not in text
  assert [len(starts_of(sweep, v)) for v in wanted] == [1] * 5
  note = notes.read_note(sweep.note(wanted[0]))
  assert (note.state, note.tries, note.status) == ('done', 1, 0)
  assert note.wall_s > 0.05


def test_no_more_at_a_time_than_jobs(make_sweep, launch, monkeypatch):
  most, start = [0], local.Launcher._start

  def count(self, variant, slot):
    start(self, variant, slot)
    most[0] = max(most[0], len(self._running))
    assert len({*self._slots.values()}) == len(self._running)

  monkeypatch.setattr(local.Launcher, '_start', count)
  sweep, wanted = make_sweep('seed=0..5')
  launch(sweep, wanted, jobs=3, bounds=Bounds(threads=2))
  assert most == [3]
  assert {starts_of(sweep, v)[0][2] for v in wanted} == {'2'}


def test_gpus_are_shared_out(make_sweep, launch, monkeypatch):
  seen, real = [], subprocess.Popen

  def watch(command, **options):
    seen.append(options['env'].get('CUDA_VISIBLE_DEVICES'))
    return real(command, **options)

  monkeypatch.setattr(children.subprocess, 'Popen', watch)
  sweep, wanted = make_sweep('seed=0..3')
  launch(sweep, wanted, jobs=2, gpus=('4', '7'))
  assert {*seen} == {'4', '7'}


def test_a_failure_stops_nobody_and_is_shown(make_sweep, launch):
  sweep, wanted = make_sweep('data.path=fails,once,fine')
  counts, text = launch(sweep, wanted, jobs=1)
  assert counts == {'failed': 2, 'done': 1}
  assert 'error: the file has no column "user"' in text
  assert str(sweep.log(wanted[0])) in text
  counts, text = launch(sweep, wanted)
  assert counts == {'failed': 1, 'done': 2}
  assert notes.read_note(sweep.note(wanted[1])).tries == 2


def test_retries(make_sweep, launch):
  sweep, wanted = make_sweep('data.path=once,fails')
  counts, text = launch(sweep, wanted, retries=2)
  assert counts == {'done': 1, 'failed': 1}
  assert text.count('is tried again') == 3
  assert notes.read_note(sweep.note(wanted[1])).tries == 3
  assert text.count('no column') == 1  # told once, at the end


def test_the_file_decides_whether_a_run_is_done(make_sweep, launch):
  sweep, wanted = make_sweep('data.path=silent')
  counts, text = launch(sweep, wanted)
  assert counts == {'failed': 1} and 'ended without a report' in text


def test_half_a_report_is_none(make_sweep, launch):
  sweep, (variant,) = make_sweep('seed=0')
  assert launch(sweep, [variant])[0] == {'done': 1}
  report = sweep.workdir(variant) / 'report.json'
  whole = report.read_bytes()
  report.write_bytes(whole[: len(whole) // 2])
  assert run_states.find_state(sweep, variant)[0] == notes.STOPPED
  assert launch(sweep, [variant])[0] == {'done': 1}
  assert report.read_bytes() == whole


def test_a_run_that_is_killed_says_so_with_its_peak(make_sweep, launch):
  sweep, wanted = make_sweep('data.path=dies')
  counts, text = launch(sweep, wanted)
  assert counts == {'failed': 1}
  assert re.search(
    'killed by SIGKILL, .*; it had [0-9.]+ k?M?G?B at most', text
  )


def test_the_peak_is_that_of_the_run_and_not_of_its_launcher(
  make_sweep, launch, monkeypatch
):
  monkeypatch.setenv('FAKE_STEP_S', '0.5')
  eaten = bytearray(400 << 20)
  eaten[::4096] = b'x' * len(eaten[::4096])
  sweep, wanted = make_sweep('seed=0')
  launch(sweep, wanted)
  del eaten
  assert 5e6 < notes.read_note(sweep.note(wanted[0])).peak_bytes < 200e6


def test_a_run_with_too_much_memory_is_ended(make_sweep, launch, monkeypatch):
  monkeypatch.setenv('FAKE_STEP_S', '2')
  sweep, wanted = make_sweep('data.path=eats,fine')
  bounds = Bounds(memory_gb=0.15)
  counts, text = launch(sweep, wanted[:1], bounds=bounds)
  assert counts == {'failed': 1}
  assert 'may have 0.15 GB (--memory_gb)' in text


@pytest.mark.parametrize(
  'options, message',
  [
    ({'jobs': 0}, '--jobs is 0, must be at least 1'),
    ({'retries': -1}, 'at least 0'),
    ({'grace_s': float('nan')}, 'at least 0'),
  ],
)
def test_bounds_that_cannot_be(options, message):
  with pytest.raises(ConfigError, match=message):
    local.LocalOptions(**options)


LAUNCHER = """
import sys
sys.path[:0] = {paths!r}
from tests.sweep.conftest import fake_command
from genrec_jax.processes import children
from genrec_jax.sweep import __main__ as sweep
children.command_of.__code__ = fake_command.__code__
children.FAKE, children.sys = {fake!r}, sys
sweep.run(sys.argv[1:])
"""


def start_launcher(root, *words, step_s='0.05'):
  here = pathlib.Path(__file__).parent
  code = LAUNCHER.format(
    paths=[str(here.parent.parent)], fake=str(here / 'fake_run.py')
  )
  return subprocess.Popen(
    [sys.executable, '-c', code, 'quickstart:smoke', f'--workdir={root}',
     '--config.train.steps=40', '--set', 'seed=0..3', *words],
    env={**os.environ, 'FAKE_STEP_S': step_s},
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    # Tests that run in the background of a script have it switched off.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
  )  # fmt: skip


def await_steps(root, count=2, seconds=60):
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if len(list(pathlib.Path(root).glob('*/metrics.jsonl'))) >= count:
      return
    time.sleep(0.05)
  raise AssertionError('no run has begun')


def read_steps(sweep, variant):
  text = (sweep.workdir(variant) / 'metrics.jsonl').read_text()
  return [json.loads(line)['step'] for line in text.splitlines()]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_all_goes_on_later(number, tmp_path):
  root = tmp_path / 'sweep'
  launcher = start_launcher(root, '--jobs=2')
  await_steps(root)
  launcher.send_signal(number)
  out, _ = launcher.communicate(timeout=60)
  assert launcher.returncode == {signal.SIGINT: 130, signal.SIGTERM: 75}[number]
  assert '2 runs save and end; the same command continues' in out
  assert '2 stopped, 2 waiting' in out
  sweep = record.read_sweep(root)
  assert not any(
    notes.is_alive(notes.read_note(sweep.note(v)), sweep.log(v))
    for v in sweep.variants
  )
  launcher = start_launcher(root, '--jobs=2', step_s='0.001')
  out, _ = launcher.communicate(timeout=60)
  assert launcher.returncode == 0, out
  for variant in sweep.variants:  # nothing twice, nothing left out
    assert read_steps(sweep, variant) == list(range(1, 41))


def test_a_killed_launcher_takes_its_runs_with_it(tmp_path):
  root = tmp_path / 'sweep'
  launcher = start_launcher(root, '--jobs=2')
  await_steps(root)
  launcher.kill()
  launcher.communicate(timeout=60)
  launcher = start_launcher(root, '--jobs=2', step_s='0.001')
  out, _ = launcher.communicate(timeout=60)
  assert launcher.returncode == 0, out
  sweep = record.read_sweep(root)
  for variant in sweep.variants:
    assert read_steps(sweep, variant) == list(range(1, 41))


def test_two_launchers_are_one_too_many(tmp_path):
  root = tmp_path / 'sweep'
  launcher = start_launcher(root)
  await_steps(root, 1)
  second = start_launcher(root)
  out, _ = second.communicate(timeout=60)
  assert second.returncode == 1
  assert 'another launcher is at work' in out
  launcher.terminate()
  launcher.communicate(timeout=60)


def test_runs_of_a_launcher_that_is_gone_are_waited_for(
  make_sweep, launch, tmp_path
):
  """Where a run does not end with its launcher, it is not started twice."""
  sweep, wanted = make_sweep('seed=0..1')
  (sweep.root / 'logs').mkdir()
  child = children.Child(
    [sys.executable, '-c', 'import time; time.sleep(2)'],
    directory=str(tmp_path), log=sweep.log(wanted[0]),
    note=sweep.note(wanted[0]), bounds=Bounds(),
  )  # fmt: skip
  state, note = run_states.find_state(sweep, wanted[0])
  assert state == notes.RUNNING and note.pid == child.pid
  import threading

  reaper = threading.Thread(target=child._process.wait)
  reaper.start()
  began = time.monotonic()
  counts, text = launch(sweep, wanted, jobs=1)
  assert 'runs already; waiting' in text and counts == {'done': 2}
  assert time.monotonic() - began > 1
  reaper.join()


def test_a_number_of_a_process_that_is_another_by_now(make_sweep):
  sweep, (variant,) = make_sweep('seed=0')
  (sweep.root / 'logs').mkdir()
  note = notes.describe_this_process(notes.Note())
  assert notes.is_alive(note, sweep.log(variant))
  import dataclasses

  other = dataclasses.replace(note, started='1')
  assert not notes.is_alive(other, sweep.log(variant))
  elsewhere = dataclasses.replace(note, host='elsewhere')
  assert not notes.is_alive(elsewhere, sweep.log(variant))
  sweep.log(variant).write_text('step 1')
  assert notes.is_alive(elsewhere, sweep.log(variant))


def test_notes_that_are_damaged_say_nothing(make_sweep):
  sweep, (variant,) = make_sweep('seed=0')
  path = sweep.note(variant)
  path.parent.mkdir()
  for text in ('', '{', '[]', '{"state": "odd"}', '{"tries": "x"}', '{"a": 1}'):
    path.write_text(text)
    assert notes.read_note(path) == notes.Note()


def test_stop_bad_stops_who_falls_behind(make_sweep, launch, monkeypatch):
  monkeypatch.setattr(local, '_LOOK_S', 0.05)
  monkeypatch.setenv('FAKE_STEP_S', '0.1')
  sweep, wanted = make_sweep(
    'optimizer.learning_rate=5,6,7,1', 'train.steps=30'
  )
  counts, text = launch(sweep, wanted, jobs=4, stop_bad=True)
  assert counts[notes.BAD] >= 1 and counts['done'] >= 2
  assert run_states.find_state(sweep, wanted[3])[0] == notes.BAD
  assert 'behind the median' in text
  # It is not started again.
  counts, text = launch(sweep, wanted)
  assert counts[notes.BAD] >= 1 and f'{wanted[3].name}: started' not in text
  # Unless somebody asks for that.
  counts, text = launch(sweep, wanted, revive=True)
  assert counts == {'done': 4} and f'{wanted[3].name}: started' in text


def test_stop_bad_leaves_runs_that_are_trained(
  make_sweep, launch, monkeypatch, tmp_path
):
  """They have but their reports to make."""
  monkeypatch.setattr(local, '_LOOK_S', 0.05)
  monkeypatch.setattr(local.curves, 'falls_behind', lambda *a, **k: True)
  monkeypatch.setattr(local.Launcher, '_is_trained', lambda *a: True)
  monkeypatch.setenv('FAKE_STEP_S', '0.1')
  sweep, wanted = make_sweep('optimizer.learning_rate=5,6', 'train.steps=8')
  counts, _ = launch(sweep, wanted, jobs=2, stop_bad=True)
  assert counts == {'done': 2}


def test_how_far_a_run_is_stands_in_its_log(make_sweep):
  sweep, (variant,) = make_sweep('seed=0')
  launcher = local.Launcher(sweep, [variant], local.LocalOptions(), None)
  log = sweep.log(variant)
  log.parent.mkdir()
  assert not launcher._is_trained(variant, 30)
  log.write_text('step 30/30 · 0.0s left · batch loss 0.5 · 9 steps/s\n')
  assert launcher._is_trained(variant, 30)
  assert not launcher._is_trained(variant, 29)


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_the_table_names_what_is_monitored():
  row = live_table.Row('000', 'running', '1/4', metric='0.5')
  for monitored, header in (('valid/auc', 'valid/auc'), ('', 'metric')):
    table = live_table.LiveTable(stream := Terminal())
    table.draw(
      [
        dataclasses.replace(row, monitored=monitored),
        live_table.Row('001', 'waiting'),
      ]
    )
    assert stream.getvalue().splitlines()[0].split()[-1] == header
