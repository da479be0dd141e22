"""The whole life of a model that is larger than each of its processes may be.

  python -m benchmarks.mesh_life
  python -m benchmarks.mesh_life --kinds ranking --table_mb 256 --processes 4

Several processes, joined by gloo on this machine, run the commands of a user:
they train (with evaluations, checkpoints, publications and the report),
evaluate, predict, and go on with the training on a mesh of half as many; in
between, one process exports the weights, and one follows what was published.
Each process may have twice the bytes of its share of the table, by RLIMIT_DATA,
beside what the same commands need with next to no table: one of few rows, or,
for retrieval, where every process has the log and the ids of all items, one of
as many narrow rows. With eight processes the table is therefore four times what
one of them may have of it.

The last case shows that the limit holds: a process alone, with the whole table,
dies under it, or stands still before its first step.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks import cli

ROOT = pathlib.Path(__file__).parent.parent
MB = 1 << 20
KINDS = ('ranking', 'retrieval')
WIDTH = 256  # of a row
# Of a table that is next to nothing, and yet has as many rows on each device
# as are written at a time; and how narrow one of as many rows is.
SMALL_ROWS, SMALL_WIDTH = 8_192, 8
# Small gifts of the system that differ from run to run.
SLACK_MB = 16
# Of a thread. What a process reserves for stacks counts as its data, and how
# many threads there are at a time is left to chance.
STACK = MB
COLUMNS = (
  'case', 'processes', 'table_mb', 'share_mb', 'empty_mb', 'limit_mb',
  'peak_mb', 'shares_x', 'table_over_limit_x', 'status', 'wall_s',
)  # fmt: skip
ENVIRONMENT = {
  'JAX_PLATFORMS': 'cpu',
  'JAX_NUM_CPU_DEVICES': '1',
  'NPROC': '4',
  # The compiler shall not decide what is measured here, or for how long.
  'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
  # What is freed goes back at once, so that a limit means what is in use.
  'MALLOC_ARENA_MAX': '1',
  'MALLOC_MMAP_THRESHOLD_': str(MB),
  'MALLOC_TRIM_THRESHOLD_': str(MB),
}


def main(argv: list[str] | None = None) -> None:
  argv = sys.argv[1:] if argv is None else argv
  if argv[:1] == ['--process']:
    return run_process(*argv[1:])
  parser = cli.parser('mesh_life', __doc__)
  parser.add_argument('--kinds', nargs='+', choices=KINDS, default=KINDS)
  parser.add_argument('--table_mb', type=int, default=1024)
  parser.add_argument('--processes', type=int, default=8)
  parser.add_argument(
    '--shares', type=float, default=2.0,
    help='what a process may have of the table, in shares; 0 sets no limit',
  )  # fmt: skip
  parser.add_argument('--timeout_s', type=float, default=900)
  parser.add_argument(
    '--directory', help='where the runs may be put (the system decides)'
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.kinds, args.table_mb, args.processes = ('ranking',), 128, 4
  rows = []
  for kind in args.kinds:
    rows += measure_life(args, kind)
  notes = [
    'peak_mb is VmData of the process that had most, looked at every 5 ms; '
    'empty_mb the same of the same commands with a table of '
    f'{SMALL_ROWS:,} rows (ranking), or of as many rows of width {SMALL_WIDTH} '
    'in place of 256 (retrieval); shares_x what the table added to it, in '
    'shares. limit_mb is RLIMIT_DATA.',
  ]
  cli.finish(args, 'mesh_life', rows, COLUMNS, notes)
  wrong = [r['case'] for r in rows if (r['status'] == 'done') == r['dies']]
  if wrong:
    cli.fail(f'these ended otherwise than they should: {", ".join(wrong)}')


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of a life.

  Attributes:
    name: of the command, in the case of its row.
    processes: how many run it.
    flags: of the command line; none of a program of its own.
    module: that program, which has no devices.
    words: its arguments, in which WORKDIR stands for the run.
    dies: whether it is to find no memory.
  """

  name: str
  processes: int
  flags: tuple[str, ...] = ()
  module: str = ''
  words: tuple[str, ...] = ()
  dies: bool = False


def list_commands(many: int) -> list[Command]:
  """The commands of a life, in their order."""
  few = max(many // 2, 1)
  train = '--mode=train', '--config.train.steps=4'
  follow = 'genrec_jax.checkpoint.follow'
  return [
    Command('train', many, train),
    Command('eval', many, ('--mode=eval',)),
    Command('predict', many, ('--mode=predict',)),
    Command(
      'export', 1, (), 'genrec_jax.weights', ('export', 'WORKDIR', 'WORKDIR.st')
    ),
    Command('follow', 1, (), follow, ('WORKDIR', 'WORKDIR.copy', '--once')),
    Command(
      f'resume on {few}', few, ('--mode=train', '--config.train.steps=6')
    ),
    # Alone: where processes wait for one that finds no memory, they wait long.
    Command('train with the whole table', 1, train, dies=True),
  ]


def measure_life(args, kind: str) -> list[dict]:
  """The rows of one kind of task."""
  rows, empty, many = [], {}, args.processes
  with tempfile.TemporaryDirectory(dir=args.directory) as directory:
    job = Job(args, pathlib.Path(directory), kind)
    for command in list_commands(many):
      if not command.dies:
        made = job.run(command, large=False, limit=0)
        empty[command.name] = made['peak_mb']
    for command in list_commands(many):
      # What runs alone may hold what one of many has.
      alone = command.module or command.dies
      share = args.table_mb / (many if alone else command.processes)
      need = empty.get(command.name, empty['train'])
      limit = need + args.shares * share + SLACK_MB if args.shares else 0
      made = job.run(command, large=True, limit=limit)
      row = {
        'case': f'{kind}/{command.name}',
        'processes': command.processes,
        'table_mb': args.table_mb,
        'share_mb': share,
        'empty_mb': need,
        'limit_mb': limit,
        **made,
        'dies': command.dies,
      }
      if not command.dies:
        row['shares_x'] = (made['peak_mb'] - need) / share
      if args.shares:
        row['table_over_limit_x'] = args.table_mb / (args.shares * share)
      rows.append(row)
      print(cli.table([row], COLUMNS), flush=True)
  return rows


@dataclasses.dataclass(frozen=True)
class Job:
  """Runs commands in processes of their own, below a directory."""

  args: argparse.Namespace
  root: pathlib.Path
  kind: str

  def run(self, command: Command, large: bool, limit: float) -> dict:
    """What became of a command with the table, or with next to none."""
    size = 'large' if large else 'small'
    stem = f'{size}-{command.name}'.replace(' ', '-').replace(',', '')
    workdir = self.root / ('whole' if command.dies else size)
    rows, width = self.args.table_mb * MB // (4 * WIDTH), WIDTH
    if not large and self.kind == 'retrieval':
      width = SMALL_WIDTH
    elif not large:
      rows = SMALL_ROWS
    config = write_config(self.root / f'data_{size}', self.kind, rows, width)
    lines = self._list_lines(command, workdir, config)
    began, running, logs = time.monotonic(), [], []
    env = {**os.environ, **ENVIRONMENT, 'PYTHONPATH': str(ROOT)}
    env['JAX_COMPILATION_CACHE_DIR'] = str(self.root / 'compiled')
    for number, line in enumerate(lines):
      logs.append(self.root / f'{stem}-{number}.log')
      found = str(logs[-1].with_suffix('.json'))
      start = sys.executable, '-m', 'benchmarks.mesh_life', '--process'
      with open(logs[-1], 'wb') as file:
        running.append(
          subprocess.Popen(
            [*start, str(limit), found, *line],
            cwd=ROOT,
            env=env,
            preexec_fn=_limit_stacks,
            stdout=file,
            stderr=subprocess.STDOUT,
          )
        )
    # XLA may stand still where it finds no memory.
    most = 120.0 if command.dies else self.args.timeout_s
    status = self._await(running, began + most)
    if status != 'done' and not command.dies:
      for log in logs:
        print(f'--- {log.name}\n{log.read_text(errors="replace")[-1500:]}')
    found = [log.with_suffix('.json') for log in logs]
    peaks = [json.loads(f.read_text()) for f in found if f.exists()]
    return {
      'peak_mb': max(peaks, default=0.0),
      'status': status,
      'wall_s': time.monotonic() - began,
    }

  def _list_lines(self, command: Command, workdir, config) -> list[list[str]]:
    """The arguments of each process."""
    if command.module:
      words = [w.replace('WORKDIR', str(workdir)) for w in command.words]
      return [[command.module, *words]]
    with socket.socket() as s:
      s.bind(('localhost', 0))
      port = s.getsockname()[1]
    words = [
      'genrec',
      f'--config={config}',
      f'--workdir={workdir}',
      f'--config.parallel.hosts={command.processes}',
      '--config.parallel.devices=1',
      *command.flags,
    ]
    if command.processes == 1:
      return [words]
    words += [
      f'--coordinator=localhost:{port}',
      f'--processes={command.processes}',
    ]
    return [[*words, f'--process={i}'] for i in range(command.processes)]

  def _await(self, running, deadline: float) -> str:
    """How the processes ended, all of them."""
    try:
      codes = [p.wait(max(deadline - time.monotonic(), 0.1)) for p in running]
    except subprocess.TimeoutExpired:
      return 'stood still'
    finally:
      for process in running:
        process.kill()
        process.wait()
    return 'died' if any(codes) else 'done'


def write_config(
  directory, kind: str, table_rows: int, width: int
) -> pathlib.Path:
  """Writes a config file, and the data that it names."""
  path = directory / 'life.py'
  if path.exists():
    return path
  directory.mkdir(parents=True)
  if kind == 'retrieval':
    write_log(directory / 'log.csv', table_rows)
  path.write_text(_CONFIG.format(
    kind=kind, rows=table_rows, width=width, directory=directory
  ))  # fmt: skip
  return path


def write_log(path: pathlib.Path, items: int) -> None:
  """A log in which every item occurs, of users with a thousand events."""
  events = np.arange(max(items, 20_000))
  order = np.random.default_rng(0).permutation(events) % items
  lines = [f'{at // 1_000},{item},{at}' for at, item in enumerate(order)]
  path.write_text('\n'.join(['user,item,time', *lines, '']))


_CONFIG = """
from genrec_jax import config as config_lib
from genrec_jax.config import rankers

KIND, ROWS, WIDTH, DIRECTORY = '{kind}', {rows}, {width}, '{directory}'


def get_config(arg=None):
  if KIND == 'ranking':
    config = config_lib.ranking()
    config.data.clicks.update(rows=2_000, fields=1, values=100, numbers=1)
    config.data.clicks.update(orders=(1,), terms=1)
    config.data.update(oov='hash', hash_rows=ROWS)
    config.model = rankers.dnn()
    config.model.update(dim=WIDTH, hidden=(8,))
    config.report.importance_rows = 100
    config.report.importance_repeats = 1
    config.eval.batch_size = 64
  else:
    config = config_lib.retrieval()
    config.data.update(name='csv', path=f'{{DIRECTORY}}/log.csv')
    config.model.update(dim=WIDTH, dqk=8, dv=8, blocks=1, max_len=8)
    config.model.time_bias = False
    config.split.name = 'stream'
    config.loss.negatives = 4
    config.eval.update(ks=(1, 10), batch_size=64, batch_tokens=512)
    config.eval.update(item_chunk=2_048, keep_vectors=False)
    config.report.users = 2
  config.optimizer.rows.name = 'row_adagrad'
  config.train.update(batch_size=64, steps=4, log_every=1, eval_every=2)
  config.train.update(checkpoint_every=2)
  config.checkpoint.update(policy='consecutive', chunk_rows=1_024)
  config.checkpoint.copy_gb = .016
  config.checkpoint.publish.every = 2
  return config
"""


def _limit_stacks() -> None:
  _, most = resource.getrlimit(resource.RLIMIT_STACK)
  resource.setrlimit(resource.RLIMIT_STACK, (STACK, most))


def run_process(limit_mb: str, found: str, program: str, *words: str) -> None:
  """What each process does: watch itself, be limited, run the command."""
  if limit := float(limit_mb):
    # Code and files are not counted: what the library loads has always room.
    limit = int(limit * MB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
  watch = threading.Thread(target=_watch, args=(pathlib.Path(found),))
  watch.daemon = True
  watch.start()
  sys.argv = [program, *words]
  if program != 'genrec':
    return runpy.run_module(program, run_name='__main__', alter_sys=True)
  from genrec_jax import main as main_lib

  main_lib.run()


def _watch(path: pathlib.Path) -> None:
  """Writes the most bytes there were, whenever there are more."""
  most = 0.0
  while True:
    now = read_data_mb()
    if now > most + 1:
      most = now
      temporary = path.with_suffix('.tmp')
      temporary.write_text(json.dumps(most))
      temporary.rename(path)
    time.sleep(0.005)


def read_data_mb() -> float:
  """What RLIMIT_DATA counts of this process, in MB (Linux)."""
  with open('/proc/self/status') as f:
    for line in f:
      if line.startswith('VmData:'):
        return int(line.split()[1]) / 1024
  return 0.0


if __name__ == '__main__':
  main()
