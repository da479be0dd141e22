"""Memory while a long log is converted and trained on, by kind.

  python -m benchmarks.out_of_core
  python -m benchmarks.out_of_core --events 50_000_000 5_000_000 --steps 300

A generated log is converted, then a small HSTU trains on it, once on the latest
window of each user and once on all windows; each stage is a process of its own.
Anonymous memory is what must fit into a machine. File-mapped memory is code
and those pages of the log that the system keeps for us; it takes them back
when it needs them. Needs 50 bytes of disk an event, freed afterwards.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks import cli
from benchmarks.result import CoreTimer

ROOT = pathlib.Path(__file__).parent.parent
STAGES = ('convert', 'latest', 'all')
COLUMNS = (
  'case', 'users', 'log_bytes', 'table_bytes', 'split_anon_bytes',
  'start_anon_bytes', 'peak_anon_bytes', 'peak_file_bytes', 'steps',
  'steps_per_s', 'core_s', 'wall_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('out_of_core', __doc__)
  parser.add_argument(
    '--events', type=int, nargs='+', default=[5_000_000, 50_000_000]
  )
  parser.add_argument('--users', type=int, default=200_000)
  parser.add_argument('--items', type=int, default=100_000)
  parser.add_argument('--steps', type=int, default=300)
  parser.add_argument(
    '--directory', help='where the log may be put (the system decides)'
  )
  parser.add_argument('--stage', choices=STAGES, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.stage:  # one of the processes
    print(json.dumps(stage(args)))
    return
  if args.smoke:
    args.events, args.users, args.items, args.steps = [20_000], 500, 300, 3
  rows = []
  for events in args.events:
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
      for name in STAGES:
        rows.append(_child(args, events, directory, name))
        print(cli.table(rows[-1:], COLUMNS), flush=True)
  notes = [
    'Peaks are of the whole process, libraries (start_anon_bytes: before the '
    'conversion, or the training) and, in training, the compiler included; '
    'split_anon_bytes is how far opening and splitting the log raised it.',
    'latest: one window of 64 tokens for each user; all: every window of every '
    'user, for each of which memory holds 24 bytes.',
    'The item table and its optimizer state (table_bytes) are anonymous too.',
    'steps_per_s is one over the median step, without compilation.',
  ]
  cli.finish(args, 'out_of_core', rows, COLUMNS, notes)


def _child(args, events: int, directory: str, name: str) -> dict:
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'benchmarks.out_of_core'),
      *('--stage', name, '--directory', directory, '--events', str(events)),
      *('--users', str(args.users), '--items', str(args.items)),
      *('--steps', str(args.steps)),
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )
  if done.returncode:
    cli.fail(f'stage {name} of {events:,} events ended with {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def stage(args) -> dict:
  """Runs one stage in this process; returns its row."""
  (events,) = args.events
  path = pathlib.Path(args.directory) / 'histories'
  row = {'case': f'{events}/{args.stage}', 'events': events,
         'stage': args.stage}  # fmt: skip
  run = _convert if args.stage == 'convert' else _train
  return row | run(args, events, path) | {'load_1min': os.getloadavg()[0]}


def _convert(args, events: int, path: pathlib.Path) -> dict:
  from benchmarks import event_log
  from genrec_jax.data import convert

  with Memory() as memory, CoreTimer() as timer:
    log = event_log.generate_events(events, args.users, args.items, seed=0)
    histories = convert.convert_log(log, path, log=_log)
  return {
    'users': len(histories),
    'log_bytes': sum(f.stat().st_size for f in path.iterdir()),
    **memory.row(),
    'core_s': timer.core_s,
    'wall_s': timer.wall_s,
    'events_per_s': events / timer.wall_s,
  }


def _train(args, events: int, path: pathlib.Path) -> dict:
  import jax

  from genrec_jax.runtime.step import make_step
  from genrec_jax.task_kinds import TASK_KINDS
  from genrec_jax.train import experiment as experiment_lib

  config = _config(path, args.stage)
  jax.block_until_ready(jax.numpy.zeros(8) + 1)  # JAX has loaded everything
  with Memory() as building:
    experiment = experiment_lib.build_experiment(
      config, path.parent, TASK_KINDS, log=_log
    )
  with Memory() as memory, CoreTimer() as timer:
    step = jax.jit(
      make_step(
        experiment.task,
        experiment.tx,
        seed=config.seed,
        row_learning_rate=config.optimizer.rows.learning_rate,
      ),
      donate_argnums=0,
    )
    state = experiment.runtime.fresh_state()
    batches = iter(experiment.train_batches(config))
    seconds, tokens = [], 0
    for _ in range(args.steps):
      begin = time.perf_counter()
      batch = next(batches)
      state, loss = step(state, batch)
      jax.block_until_ready(state)
      seconds.append(time.perf_counter() - begin)
      tokens += int(batch.jagged['events'].lengths.sum())
    if not np.isfinite(float(loss)):
      raise FloatingPointError(f'the loss is {loss}')
  tables = jax.tree.leaves((state.tables, state.row_opt_state))
  return {
    'users': len(experiment.data.dataset.histories),
    'examples': len(experiment.data.splits['train']),
    'table_bytes': sum(x.nbytes for x in tables),
    'split_anon_bytes': building.row()['grown_anon_bytes'],
    **memory.row(),
    'steps': args.steps,
    'tokens_per_step': tokens / args.steps,
    'steps_per_s': 1 / float(np.median(seconds)),
    'core_s': timer.core_s,
    'wall_s': timer.wall_s,
  }


def _config(path: pathlib.Path, windows: str):
  from genrec_jax import config as config_lib

  config = config_lib.retrieval()
  config.data.name, config.data.path = 'histories', str(path)
  config.optimizer.rows.name = 'row_adagrad'
  config.split.windows = windows
  config.model = config_lib.hstu(dim=32, dqk=32, dv=32, max_len=64)
  config.loss.sampler = 'shared'
  config.loss.negatives = 1024
  return config


class Memory:
  """Watches the resident memory of this process, every 20 ms."""

  def __enter__(self) -> 'Memory':
    self._start = self._peak = resident()
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *exc_info) -> None:
    self._stop.set()
    self._thread.join()
    self._look()

  def row(self) -> dict[str, int]:
    """Keys of a result row."""
    return {
      'start_anon_bytes': self._start['RssAnon'],
      'peak_anon_bytes': self._peak['RssAnon'],
      'grown_anon_bytes': self._peak['RssAnon'] - self._start['RssAnon'],
      'start_file_bytes': self._start['RssFile'],
      'peak_file_bytes': self._peak['RssFile'],
    }

  def _watch(self) -> None:
    while not self._stop.wait(0.02):
      self._look()

  def _look(self) -> None:
    now = resident()
    self._peak = {k: max(v, now[k]) for k, v in self._peak.items()}


def resident() -> dict[str, int]:
  """Bytes of anonymous and of file-mapped memory (Linux)."""
  found = {}
  with open('/proc/self/status') as f:
    for line in f:
      name, _, value = line.partition(':')
      if name in ('RssAnon', 'RssFile'):
        found[name] = int(value.split()[0]) * 1024
  return found


def _log(line: str) -> None:
  print(line, file=sys.stderr)


if __name__ == '__main__':
  main()
