"""Signals against the real command line, in every phase of its life.

A chain is one workdir: its command is started again and again, and each life
gets a signal in the phase that was planned for it, until nothing is planned any
more and the last life ends by itself. Then its results are compared, to the
last bit, with those of a run that nothing has disturbed.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from benchmarks.robustness_marks import VARIABLE
from benchmarks.robustness_verdicts import (
  BAD,
  SIGNALS,
  End,
  Life,
  judge,
  judge_missed,
)

ROOT = pathlib.Path(__file__).parent.parent
# Seconds: until a life that was told to end has ended, and any life at all.
LEAVES_S, LIVES_S = 45.0, 300.0
# How long a phase lasts, about: the signal comes within it, or soon behind.
LASTS_S = {'start': 2.5, 'save': 0.02, 'publish': 0.03, 'predict': 1.2}
TRIES = 3  # of a life whose run was over before its phase came
TRAIN = ('start', 'compile', 'step', 'save', 'evaluate', 'report')


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of command.

  Attributes:
    config: of it.
    overrides: of that.
    phases: that a signal is aimed at.
    processes: of the job.
  """

  config: str
  overrides: tuple[str, ...]
  phases: tuple[str, ...]
  processes: int = 1


_SHORT = ('train.log_every=2', 'train.eval_every=6', 'train.checkpoint_every=4')
_ROWS = (
  'optimizer.rows.name=row_adagrad',
  'checkpoint.policy=intermittent',
  'checkpoint.publish.every=3',
)
KINDS = {
  'retrieval': Kind(
    'configs/quickstart.py:smoke', ('train.steps=24', *_SHORT), TRAIN
  ),
  'retrieval, deltas': Kind(
    'configs/quickstart.py:smoke',
    ('train.steps=24', *_SHORT, *_ROWS),
    (*TRAIN, 'publish', 'publish', 'publish'),
  ),
  'ranking': Kind(
    'configs/wukong_synthetic.py:smoke', ('train.steps=24', *_SHORT), TRAIN
  ),
  'two processes': Kind(
    'configs/quickstart.py:smoke',
    (
      'train.steps=24',
      *_SHORT,
      *_ROWS,
      'parallel.hosts=2',
      'parallel.join_s=30',  # for one that ended before it could meet the other
    ),
    (*TRAIN, 'publish'),
    processes=2,
  ),
  'predict': Kind(
    'configs/quickstart.py:smoke',
    # Enough users that predicting takes more than a second.
    (
      'train.steps=24',
      *_SHORT,
      'data.synthetic.records=6000',
      'eval.batch_size=2',
    ),
    ('predict',),
  ),
  'follow': Kind('', (), ('follow',)),
}


class Job:
  """The processes of one life; their marks, words and statuses."""

  def __init__(self, words: list[list[str]], log: pathlib.Path, env: dict):
    self._selector, self.phase = selectors.DefaultSelector(), ''
    self._readings, self.processes, self._files = [], [], []
    for number, arguments in enumerate(words):
      reading, writing = os.pipe()
      file = open(log.with_suffix(f'.{number}.log'), 'w+')
      self.processes.append(
        subprocess.Popen(
          [sys.executable, '-m', 'benchmarks.robustness_marks', *arguments],
          cwd=ROOT,
          env={**os.environ, **env, VARIABLE: str(writing)},
          stdin=subprocess.DEVNULL,
          stdout=file,
          stderr=subprocess.STDOUT,
          pass_fds=[writing],
        )
      )
      os.close(writing)
      os.set_blocking(reading, False)
      self._files.append(file)
      self._readings.append(reading)
    self._reading = self._readings[0]
    self._selector.register(self._reading, selectors.EVENT_READ)

  def wait_for(self, phase: str, nth: int, until: float) -> bool:
    """Whether process 0 has begun a phase so many times."""
    seen = 0
    while time.monotonic() < until:
      if not self._selector.select(0.05) and self.is_over():
        return False
      if (marks := self._read_marks()) is None:
        return False
      for mark in marks:
        seen += mark == phase
        if seen == nth:
          return True
    return False

  def _read_marks(self) -> list[str] | None:
    """The phases that have begun since the last call; None at the end."""
    raw = None
    with contextlib.suppress(BlockingIOError):
      raw = os.read(self._reading, 1 << 16)
    if raw == b'':
      return None
    marks = (raw or b'').decode().split()
    self.phase = marks[-1] if marks else self.phase
    return marks

  def find_phase(self) -> str:
    """The phase that process 0 is in."""
    self._read_marks()
    return self.phase

  def is_over(self) -> bool:
    return all(p.poll() is not None for p in self.processes)

  def send(self, steps, whom: list[int]) -> None:
    for step in steps:
      if isinstance(step, float):
        time.sleep(step)
        continue
      for number in whom:
        with contextlib.suppress(ProcessLookupError):
          self.processes[number].send_signal(step)

  def finish(self, seconds: float) -> bool:
    """Whether all have ended in time; else they are killed."""
    until = time.monotonic() + seconds
    for process in self.processes:
      try:
        process.wait(max(until - time.monotonic(), 0.01))
      except subprocess.TimeoutExpired:
        for other in self.processes:
          other.kill()
          other.wait()
        return False
    return True

  def statuses(self) -> list[int]:
    return [p.returncode for p in self.processes]

  def said(self) -> list[str]:
    texts = []
    for file in self._files:
      file.seek(0)
      texts.append(file.read())
    return texts

  def close(self) -> None:
    for reading in self._readings:
      os.close(reading)
    for file in self._files:
      file.close()
    self._selector.close()


class Place:
  """Commands of a kind, with what they need; reference results."""

  def __init__(self, root: pathlib.Path, kind: str, env: dict):
    self.root, self.name, self.kind = root, kind, KINDS[kind]
    self._env = env
    self._reference = root / 'reference' / kind.replace(' ', '_')

  def words(self, workdir: pathlib.Path) -> list[list[str]]:
    """The command lines of the processes of a life."""
    if self.name == 'follow':
      source = str(workdir / 'source')
      follow = 'genrec_jax.checkpoint.follow'
      return [[follow, source, str(workdir / 'copy'), '--poll=0.05']]
    line = [
      'genrec_jax.main',
      f'--config={self.kind.config}',
      f'--workdir={workdir}',
      *(f'--config.{override}' for override in self.kind.overrides),
    ]
    if self.name == 'predict':
      line.append('--mode=predict')
    if self.kind.processes == 1:
      return [line]
    with socket.socket() as free:
      free.bind(('localhost', 0))
      port = free.getsockname()[1]
    line += [f'--coordinator=localhost:{port}', f'--processes={2}']
    return [[*line, f'--process={i}'] for i in range(self.kind.processes)]

  def start(self, workdir: pathlib.Path, log: pathlib.Path) -> Job:
    return Job(self.words(workdir), log, self._env)

  def prepare(self, workdir: pathlib.Path) -> None:
    """What a command finds in its workdir before its first life."""
    if self.name == 'predict':
      shutil.copytree(trained(self.root, 'predict', self._env), workdir)
    elif self.name == 'follow':
      (workdir / 'source').mkdir(parents=True)
    else:
      workdir.mkdir(parents=True)

  def reference(self) -> dict:
    """The results of a run that nothing disturbs."""
    if not (self._reference / 'results.json').exists():
      shutil.rmtree(self._reference, ignore_errors=True)
      self.prepare(self._reference)
      self.complete(self._reference, self._reference.with_suffix('.log'))
      results = self.results(self._reference)
      (self._reference / 'results.json').write_text(json.dumps(results))
    return json.loads((self._reference / 'results.json').read_text())

  def complete(self, workdir: pathlib.Path, log: pathlib.Path) -> None:
    """A last life, undisturbed."""
    if self.name == 'follow':
      self.publish(workdir, 100)
      words = [[*self.words(workdir)[0], '--once']]
      job = Job(words, log, self._env)
    else:
      job = self.start(workdir, log)
    ended = job.finish(LIVES_S)
    said, statuses = '\n'.join(job.said()), job.statuses()
    job.close()
    if not ended or set(statuses) != {0}:
      raise RuntimeError(f'{statuses}: {said[-400:]}')

  def publish(self, workdir: pathlib.Path, count: int) -> None:
    """Lets so many further steps appear in what is followed."""
    made = trained(self.root, 'retrieval, deltas', self._env) / 'published'
    there = {int(p.name) for p in (workdir / 'source').iterdir()}
    steps = sorted(int(p.name) for p in made.iterdir() if p.name.isdigit())
    for step in [s for s in steps if s not in there][:count]:
      partial = workdir / f'partial-{step}'
      shutil.copytree(made / str(step), partial)
      partial.rename(workdir / 'source' / str(step))

  def results(self, workdir: pathlib.Path) -> dict:
    """What must be equal, as JSON values."""
    if self.name == 'predict':
      return {'predictions': (workdir / 'predictions.csv').read_text()}
    if self.name == 'follow':
      from genrec_jax.checkpoint import serving_copy

      copy = serving_copy.ServingCopy(workdir / 'copy')
      rows = {name: copy.table(name).tolist() for name in copy.tables}
      return {'step': copy.step, 'rows': rows}
    lines = []
    for line in (workdir / 'metrics.jsonl').read_text().splitlines():
      row = json.loads(line)
      lines.append({k: x for k, x in row.items() if k[:5] != 'perf/'})
    report = json.loads((workdir / 'report.json').read_text())
    kept = ('metrics', 'last_epoch', 'baselines', 'best_step', 'steps')
    return {'lines': lines, 'report': {k: report.get(k) for k in kept}}


def trained(root: pathlib.Path, kind: str, env: dict) -> pathlib.Path:
  """The workdir of an undisturbed run, whose publications all stay."""
  workdir = root / 'trained' / kind.replace(' ', '_').replace(',', '')
  place = Place(root, kind, env)
  if not (workdir / 'report.json').exists():
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    words = place.words(workdir)
    words[0] += ['--mode=train', '--config.checkpoint.publish.keep=100']
    job = Job(words, workdir.with_suffix('.log'), env)
    job.finish(LIVES_S)
    if set(job.statuses()) != {0}:
      raise RuntimeError('\n'.join(job.said())[-400:])
    job.close()
  return workdir


def run_chain(
  root: pathlib.Path, kind: str, seed: int, lives: int, env: dict
) -> dict:
  """One workdir and its signals.

  Args:
    root: directory of everything that is kept between chains.
    kind: a key of `KINDS`.
    seed: of what is sent when; the phases and signals take turns.
    lives: signals that are planned.
    env: variables added to ours.

  Returns:
    A row: 'case', 'kind', 'lives' [[phase, signal, outcome, seconds, phase in
    which it came], ...], 'result' ('equal', 'wrong' or 'none') and 'details'
    of what was bad.
  """
  place, rng = Place(root, kind, env), random.Random(f'{kind} {seed}')
  reference = place.reference()
  phases, names = place.kind.phases, list(SIGNALS)
  if place.name == 'follow':
    names.remove('STOP CONT')  # which ends no follower
  plan = [
    # Every phase meets every signal as seeds go on.
    (
      phases[(seed * lives + i) % len(phases)],
      names[(seed * lives + i) // len(phases) % len(names)],
    )
    for i in range(lives)
  ]
  rng.shuffle(plan)
  done, details = [], []
  with tempfile.TemporaryDirectory(dir=root, prefix='chain-') as directory:
    directory = pathlib.Path(directory)
    workdir = directory / 'run'
    place.prepare(workdir)
    for phase, name in plan:
      for _ in range(TRIES):
        if is_complete(place, workdir):  # the next ones meet a run of their own
          details += check_results(place, workdir, reference)
          shutil.rmtree(workdir)
          place.prepare(workdir)
        life = live(place, workdir, directory / 'life', phase, name, rng)
        seconds = round(life.seconds, 2)
        done.append([phase, name, life.outcome, seconds, life.met])
        if life.outcome in BAD:
          details.append(f'{phase}, {name}: {life.outcome}: {life.detail}')
        if life.outcome != 'ended before':
          break
    try:
      place.complete(workdir, directory / 'last')
      wrong = check_results(place, workdir, reference)
    except (RuntimeError, OSError, ValueError) as e:
      wrong = [f'no result: {e}'[:400]]
    details += wrong
  is_wrong = any(x.startswith(('wrong', 'no result')) for x in details)
  return {
    'case': f'{kind} {seed}',
    'kind': kind,
    'lives': done,
    'result': 'wrong' if is_wrong else 'equal',
    'details': details,
  }


def is_complete(place: Place, workdir: pathlib.Path) -> bool:
  names = {'predict': 'predictions.csv', 'follow': 'never'}
  return (workdir / names.get(place.name, 'report.html')).exists()


def check_results(place: Place, workdir, reference: dict) -> list[str]:
  results = json.loads(json.dumps(place.results(workdir)))
  return [
    f'wrong: {key} differs'
    for key in reference
    if results[key] != reference[key]
  ]


def live(
  place: Place, workdir, log, phase: str, name: str, rng: random.Random
) -> Life:
  """One life, and its signal."""
  life, until = Life(phase, name), time.monotonic() + LIVES_S
  job = place.start(workdir, log)
  count = place.kind.processes
  whom = list(range(count))
  if count > 1 and rng.random() < 0.5:
    whom = [rng.randrange(count)]
  try:
    once = ('start', 'compile', 'report', 'predict', 'follow')
    nth = 1 if phase in once else rng.choice((1, 1, 2))
    if job.wait_for(phase, nth, until):
      if place.name == 'follow':
        time.sleep(rng.uniform(0.0, 1.0))
        place.publish(workdir, rng.randint(1, 3))
      time.sleep(rng.uniform(0, LASTS_S.get(phase, 0.25)))
      if not job.is_over():
        life.met = job.find_phase()
        job.send(SIGNALS[name], whom)
    sent = time.monotonic()
    is_free = name == 'STOP CONT' or not life.met
    in_time = job.finish(LIVES_S if is_free else LEAVES_S)
    life.seconds = time.monotonic() - sent if life.met else 0.0
    end = End(
      job.statuses(), job.said(), in_time, is_complete(place, workdir), workdir
    )
    if life.met:
      judge(life, end, whom, place.name == 'follow')
    else:
      judge_missed(life, end)
  finally:
    for process in job.processes:
      if process.poll() is None:
        process.kill()
        process.wait()
    job.close()
  return life
