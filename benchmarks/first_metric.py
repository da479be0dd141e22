"""What it costs from the command to the first metric, on small data.

  python -m benchmarks.first_metric --data $GENREC_DATA
  python -m benchmarks.first_metric --data $GENREC_DATA --peer_python PATH

A run trains SASRec for one epoch and validates; its process is ended as soon as
the first validation metric is there. Each data set is trained with the token
capacities that are chosen beforehand and with the ladder of eight an octave
(`data.token_capacities=0`), each with an empty directory of compiled programs
and then with what the first run left there. `--peer_python` is a Python that
has RecBole (see peer_recbole.py), which then trains its SASRec on the same
file, and is ended behind `--core_limit_s` where it has no metric by then; its
row says so, and has the limit. `--only` measures one data set; `--smoke` a
small one.
"""

import contextlib
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import cli
from benchmarks.result import CoreTimer

CASES = ('generated', 'ml-100k', 'ml-1m')
COLUMNS = (
  'case', 'users', 'first_line_core_s', 'first_line_wall_s', 'metric_core_s',
  'metric_wall_s', 'programs',
)  # fmt: skip
_ROOT = pathlib.Path(__file__).parent.parent
_LIMIT_S = 3600.0
_CONFIG = """\
from genrec_jax import config as config_lib


def get_config(arg=None):
  config = config_lib.retrieval()
  config.data.name = 'csv'
  config.data.path = {events!r}
  config.data.token_capacities = {capacities}
  config.model = config_lib.sasrec(
    dim=64, heads=2, ffn_dim=256, max_len=50, dropout=0.5, embedding_dropout=0.5
  )
  config.compile_cache.directory = {cache!r}
  config.train.epochs = 1
  config.eval.splits = ('valid',)
  return config
"""
_NOTES = (
  'From the start of Python to the first validation metric, over the whole '
  'catalogue, behind one epoch; first_line: to the first line of progress.',
  'A sequence is one example here and is trained at every position; RecBole '
  'makes an example of each position. An epoch trains the same targets.',
  'Other programs ran on the machine: wall seconds are upper bounds.',
  'The C++ code of the kernels is there; it is compiled once for a machine.',
  'programs: of the training step, each of another shape.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('first_metric', __doc__)
  parser.add_argument('--data', help='directory of MovieLens data', default='')
  parser.add_argument('--peer_python', help='a Python that has RecBole')
  parser.add_argument(
    '--core_limit_s', type=float, default=1500.0, help='of the peer (1500)'
  )
  parser.add_argument('--only', choices=CASES, help='one data set')
  args = parser.parse_args(argv)
  cases = [args.only] if args.only else CASES[: 1 if args.smoke else None]
  rows = []
  with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    for case in cases:
      events = directory / f'{case}.csv'
      users = write_events(case, args.data, events, 60 if args.smoke else 1000)
      if args.peer_python:
        found = measure_peer(
          args.peer_python, events, directory / case, args.core_limit_s
        )
        rows.append({'data': case, 'users': users, **found})
        continue
      for name, capacities in (('eight an octave', 0), ('chosen', 3)):
        for start, found in measure_case(
          events, capacities, directory / f'{case}_{capacities}'
        ).items():
          row = {'data': case, 'users': users, 'what': name, 'start': start}
          rows.append({**row, **found})
  for row in rows:
    about = (row[key] for key in ('data', 'what', 'start') if key in row)
    row['case'] = ', '.join(about)
  cli.finish(args, 'first_metric', rows, COLUMNS, _NOTES)


def write_events(
  case: str, data: str, target: pathlib.Path, users: int = 1000
) -> int:
  """Writes a CSV file of user, item and time; returns how many users it has.

  Args:
    case: one of `CASES`.
    data: directory of 'ml-100k' and 'ml-1m'.
    target: the file.
    users: of the generated events, of which each has 34 on average.
  """
  if case == 'generated':
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.geometric(1 / 30, users) + 4, 5)
    user = np.repeat(np.arange(users), lengths)
    item = rng.zipf(1.3, len(user)) % 2000
    time_ = rng.integers(1_700_000_000, 1_710_000_000, len(user))
    rows = zip(user.tolist(), item.tolist(), time_.tolist(), strict=True)
  else:
    name, cut = {'ml-100k': ('u.data', '\t'), 'ml-1m': ('ratings.dat', '::')}[
      case
    ]
    path = pathlib.Path(data) / case / name
    if not path.is_file():
      cli.fail(f'{path}: no such file; --data names the directory of {case}')
    split = (line.split(cut) for line in path.read_text().splitlines())
    rows = [(user, item, when) for user, item, _, when in split]
    users = len({row[0] for row in rows})
  with open(target, 'w') as file:
    file.write('user,item,time\n')
    file.writelines(','.join(map(str, row)) + '\n' for row in rows)
  return users


def measure_case(
  events: pathlib.Path, capacities: int, directory: pathlib.Path
) -> dict[str, dict]:
  """'cold' and 'warm' -> what a run costs up to its first metric."""
  directory.mkdir()
  config = directory / 'config.py'
  values = dict(events=str(events), cache=str(directory / 'programs'))
  config.write_text(_CONFIG.format(capacities=capacities, **values))
  env = {
    'PYTHONPATH': str(_ROOT),
    # Set, these would keep programs elsewhere, or none.
    'JAX_COMPILATION_CACHE_DIR': '',
    'JAX_ENABLE_COMPILATION_CACHE': '1',
  }
  found = {}
  for start in ('cold', 'warm'):
    workdir, log = directory / start, directory / f'{start}.log'
    command = [
      *(sys.executable, '-m', 'genrec_jax.main'),
      *(f'--config={config}', f'--workdir={workdir}'),
    ]
    metrics = workdir / 'metrics.jsonl'
    found[start] = watch(
      command,
      log,
      r'^step ',
      lambda path=metrics: path.exists() and '"valid/' in path.read_text(),
      env,
    )
    del found[start]['has_metric']  # always: it has no limit
    numbers = re.findall(r'compiling program (\d+)', log.read_text())
    found[start]['programs'] = max(map(int, numbers))
  return found


def measure_peer(
  python: str,
  events: pathlib.Path,
  directory: pathlib.Path,
  core_limit_s: float,
) -> dict:
  """The same of RecBole, and its name; at most so many core-seconds."""
  directory.mkdir()
  program = pathlib.Path(__file__).with_name('peer_recbole.py')
  log = directory / 'output.txt'
  found = watch(
    [python, str(program), str(events), str(directory)],
    log,
    r'epoch 0 training',
    lambda: 'valid result' in log.read_text(),
    {'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD': '1', 'PYTHONPATH': ''},
    core_limit_s,
  )
  version = re.search(r'^version (\S+)', log.read_text(), re.MULTILINE)[1]
  ended = '' if found.pop('has_metric') else ', ended without a metric'
  return {'what': f'RecBole {version}{ended}', **found}


def watch(
  command: list[str],
  log: pathlib.Path,
  first_line: str,
  has_metric: Callable[[], bool],
  env: dict[str, str],
  core_limit_s: float = math.inf,
) -> dict:
  """Seconds and core-seconds until a process has its first line and metric.

  Args:
    command: of the process, which is ended behind its first metric.
    log: where its output goes.
    first_line: pattern of the first line of progress.
    has_metric: whether the metric is there.
    env: variables added to ours.
    core_limit_s: core-seconds without a metric behind which it is ended.

  Returns:
    'metric_core_s' and 'metric_wall_s', up to the metric or to the end without
    one, which 'has_metric' tells apart; the same of 'first_line'.
  """
  found, pattern = {}, re.compile(first_line, re.MULTILINE)
  with _process(command, log, env) as process, CoreTimer() as timer:
    while not (done := has_metric()):
      if _read_core_s(process.pid) > core_limit_s:
        break
      if process.poll() is not None or timer.wall_s > _LIMIT_S:
        raise RuntimeError(f'{" ".join(command)} gave no metric, see\n'
                           f'{log.read_text()[-2000:]}')  # fmt: skip
      if 'first_line_core_s' not in found and pattern.search(log.read_text()):
        found['first_line_core_s'] = _read_core_s(process.pid)
        found['first_line_wall_s'] = timer.wall_s
      time.sleep(0.05)
    found['metric_core_s'] = _read_core_s(process.pid)
    found['metric_wall_s'] = timer.wall_s
  return {**found, 'has_metric': done}


@contextlib.contextmanager
def _process(command, log, env) -> Iterator[subprocess.Popen]:
  with open(log, 'w') as file:
    process = subprocess.Popen(
      command,
      cwd=_ROOT,
      env={**os.environ, **env},
      stdout=file,
      stderr=subprocess.STDOUT,
    )
    try:
      yield process
    finally:
      process.kill()
      process.wait()


def _read_core_s(pid: int) -> float:
  """Processor time of a running process, in hundredths of a second."""
  fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1]
  ticks = [int(x) for x in fields.split()[11:15]]  # and of its children
  return sum(ticks) / os.sysconf('SC_CLK_TCK')


if __name__ == '__main__':
  main()
