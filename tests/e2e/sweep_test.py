"""A sweep of real trainings, as a user starts it: killed, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time

from genrec_jax.processes import notes
from genrec_jax.sweep import record
from tests.e2e.commands import OF_TESTS, ROOT, list_arguments
from tests.train.tiny_run import curve


def start_sweep(root, *words):
  env = {k: v for k, v in os.environ.items() if k not in OF_TESTS}
  config, _, *overrides = list_arguments(root)
  return subprocess.Popen(
    [sys.executable, '-m', 'genrec_jax.main', 'sweep', config,
     f'--workdir={root}', *overrides, '--set', 'seed=0..1', *words],
    cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    text=True,
  )  # fmt: skip


def test_a_killed_sweep_ends_as_if_nothing_had_happened(commands, tmp_path):
  root = tmp_path / 'sweep'
  launcher = start_sweep(root, '--jobs=1', '--threads=0')
  first = root / '000_seed=0'
  while not (first / 'metrics.jsonl').exists():
    assert launcher.poll() is None, launcher.communicate()[0]
    time.sleep(0.02)
  note = notes.read_note(root / 'logs/000_seed=0.json')
  os.killpg(note.pid, signal.SIGKILL)
  launcher.kill()
  launcher.communicate()
  launcher = start_sweep(root, '--jobs=1', '--threads=0')
  said, _ = launcher.communicate(timeout=500)
  assert launcher.returncode == 0, said
  assert '2 done' in said and 'sweep.html' in said
  assert curve(first) == curve(commands.whole)
  assert (root / 'sweep.html').stat().st_size > 5_000
  sweep = record.require_sweep(root)
  assert [notes.read_note(sweep.note(v)).tries for v in sweep.variants] == [
    2,
    1,
  ]
  best = json.loads((first / 'report.json').read_text())['metrics']
  assert str(best['valid']['mrr']) in (root / 'sweep.csv').read_text()
