"""More of `robustness_damage`: the copies of followers, and whole commands."""

import logging
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks.checkpoint_faults_run import Run
from benchmarks.robustness_damage import (
  DAMAGES,
  GOOD,
  Target,
  damage_file,
  make_targets,
  walk,
)
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.serving_copy import ServingCopy

ROOT = pathlib.Path(__file__).parent.parent
LOG = logging.getLogger('genrec_jax')
STEPS = 3
_APPLIED = re.compile(r'step \d+: (base|delta), ')
_CONFIG = '''
import pathlib
from benchmarks import robustness_damage

def get_config(arg=None):
  return robustness_damage.CONFIGS[{kind!r}](pathlib.Path({root!r}))
'''
_MODES = ('predict', 'eval', 'train')
_LIMIT_S = 300
_CHANGING = re.compile(r'"[^"]*(_s|workdir|time|per_s|restores)":[^,}]*')


# --- Copies


def make_copy_target(root: pathlib.Path) -> Target:
  """Published steps, and a copy that is behind them."""
  directory = root / 'followed'
  run = Run(directory / 'run', keep=9, policy='consecutive')
  for step in range(1, STEPS + 1):
    if step == STEPS:
      _follow(directory)
    run.train()
    run.save()
  run.checkpoints.close()
  return Target(
    'serving copy',
    directory,
    {'serve': _serve, 'follow': _follow},
    newest=((f'run/{STEPS}',), (f'run/{STEPS - 1}', f'run/{STEPS}')),
  )


def _serve(place: pathlib.Path) -> list:
  """All that a service reads, block by block."""
  copy = ServingCopy(place / 'copy')
  rows = {
    name: copy.read(name, np.arange(about['rows']))[0]
    for name, about in copy.tables.items()
  }
  return [copy.step, rows]


def _follow(place: pathlib.Path) -> list:
  """What a follower that starts again makes of its copy."""

  def log(line):
    if not _APPLIED.match(line):
      LOG.warning('%s', line)

  with Follower(place / 'run', place / 'copy', log=log) as follower:
    follower.update()
  return _serve(place)


# --- Commands


def run_commands(
  root: pathlib.Path, targets: Sequence[Target], count: int, seed: int
) -> list[dict]:
  """Rows of whole commands that meet a damaged workdir.

  Args:
    root: where the raw data of the configs are.
    targets: what may be damaged; only workdirs are.
    count: commands.
    seed: of what is damaged, and how.
  """
  rng, rows = random.Random(seed), []
  workdirs = [t for t in targets if 'predict' in t.openings]
  wanted = {}
  for number in range(count):
    target = workdirs[number % len(workdirs)]
    mode = _MODES[number // len(workdirs) % len(_MODES)]
    if (target.name, mode) not in wanted:
      wanted[target.name, mode] = _run(root, target, mode, None)[1]
    file, damage = rng.choice(target.files()), rng.choice(DAMAGES)
    status, results, said = _run(
      root, target, mode, lambda path, how=damage: damage_file(path, how, rng),
      file,
    )  # fmt: skip
    same = results == wanted[target.name, mode]
    rows.append(
      {
        'kind': f'{target.name}, --mode={mode}',
        'file': file,
        'damage': damage,
        'outcome': _judge(status, same, said, file),
        'told': said,
      }
    )
  return rows


def _run(root, target: Target, mode: str, change, file: str = ''):
  """(status, results, what was said) of a command on a copy of a workdir."""
  kind = target.name.split()[0]
  config = root / f'{kind}_config.py'
  config.write_text(_CONFIG.format(kind=kind, root=str(root)))
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    shutil.copytree(target.directory, workdir)
    if change:
      change(workdir / file)
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'genrec_jax.main', f'--config={config}'),
        *(f'--workdir={workdir}', f'--mode={mode}'),
      ],
      cwd=ROOT,
      env={**os.environ, 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
    )
    name = {'predict': 'predictions.csv', 'eval': 'eval.json'}.get(mode)
    path = workdir / (name or 'report.json')
    results = path.read_text() if done.returncode == 0 else ''
  # A report has timings, and eval.json the path.
  results = re.sub(
    r'"[^"]*(_s|workdir|time|per_s|restores)":[^,}]*', '', results
  )
  return done.returncode, results, done.stdout + done.stderr


def _judge(status: int, same: bool, said: str, file: str) -> str:
  named = any(part in said for part in pathlib.Path(file).parts)
  if status < 0:
    return 'crash'
  if 'Traceback' in said or status == 70:
    return 'traceback'
  if status:
    return 'sentence' if named else 'traceback'
  if same:
    return 'same'
  return 'earlier_step' if named or 'skipped' in said else 'silent'


# --- All of it


def measure_damage(count: int, seed: int = 0) -> list[dict]:
  """Rows of all openings, the commands among them; bad ones are printed."""
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    targets = make_targets(root)
    commands = run_commands(root, targets, max(2, count // 15), seed)
    targets.append(make_copy_target(root))
    rows = [*walk(targets, count, seed), *commands]
  for row in rows:
    if row['outcome'] not in GOOD:
      print(row, flush=True)
  return rows
