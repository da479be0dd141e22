"""What do files of requests, and long lists of candidates, cost?

  python -m benchmarks.gr_memory --ml1m DIR/ml-1m

Each case has a process of its own. Reading: generated files of the published
layouts of KuaiRand and Yambda, and MovieLens 1M where its directory is given;
`kept` is what the arrays of the requests hold, `peak` by how much the process
grew while they were read, both by event. Scoring: many candidates of one user,
by a small model that was trained for some steps, from Python and through a
file, each including what is compiled first; `grown_MB` is the peak less
what the process had before, and `peak_MB` the peak with JAX and all else.
"""

import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks import cli, result, runs

EVENTS = {'kuairand': 1_000_000, 'yambda': 3_000_000}
CANDIDATES = 100_000
EVENTS_A_USER = 500
COLUMNS = (
  'case', 'kind', 'events', 'core_s', 'wall_s', 'kept_bytes', 'kept_MB',
  'peak_bytes', 'grown_MB', 'peak_MB',
)  # fmt: skip
CONFIG = 'configs/gr_streaming.py:smoke'
_BEGIN, _DAYS = 1_649_400_000, 30  # of KuaiRand: 8 April 2022, seconds


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gr_memory', __doc__)
  parser.add_argument('--ml1m', default='', help='directory of MovieLens 1M')
  parser.add_argument('--child', nargs=3, help='of this program itself')
  args = parser.parse_args(argv)
  if args.child:
    kind, name, path = args.child
    print(json.dumps(_read(name, path) if kind == 'read' else _score(path)))
    return
  share = 100 if args.smoke else 1
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name, write in (('kuairand', write_log), ('yambda', write_events)):
      (root / name).mkdir()
      write(root / name, EVENTS[name] // share)
      rows += _ask('read', name, root / name)
    if args.ml1m:
      rows += _ask('read', 'movielens', pathlib.Path(args.ml1m).resolve())
    runs.train_once(CONFIG, root / 'run', [])
    write_candidates(root / 'candidates.csv', CANDIDATES // share)
    rows += _ask('score', '-', root)
  notes = ['Events are those that the files hold; candidates where it scores.']
  cli.finish(args, 'gr_memory', rows, COLUMNS, notes)


def _ask(kind: str, name: str, path: pathlib.Path) -> list[dict]:
  command = [sys.executable, '-m', 'benchmarks.gr_memory', '--child']
  done = subprocess.run(
    [*command, kind, name, str(path)],
    cwd=runs.ROOT,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def measure_memory(name: str = 'VmHWM') -> int:
  """The most bytes that this process has had, or those of now, VmRSS."""
  # Not ru_maxrss, in which a child begins with what its parent had.
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(re.search(rf'{name}:\s+(\d+) kB', status)[1])


# --- Reading


def _read(name: str, path: str) -> list[dict]:
  from genrec_jax.data.requests import datasets

  # What a first call loads is no cost of a row.
  read, options = datasets.DATASETS[name], datasets.OPTIONS[name]()
  if name == 'yambda':
    from genrec_jax.data import parquet

    parquet.read_schema(pathlib.Path(path) / 'multi_event.parquet')
  before = measure_memory('VmRSS')
  with result.CoreTimer() as timer:
    dataset = read(path, options)
  grown, count = measure_memory() - before, len(dataset.events)
  kept = sum(array.nbytes for array in dataset.arrays().values())
  row = {'case': name, 'kind': 'read', 'events': count}
  row |= {'core_s': timer.core_s, 'kept_bytes': kept / count}
  row |= {'peak_bytes': grown / count, 'kept_MB': kept / 2**20}
  return [row | {'grown_MB': grown / 2**20}]


def write_log(folder: pathlib.Path, count: int) -> None:
  """A log of KuaiRand-1K in two files, and its users."""
  from genrec_jax.data.requests import kuairand

  rng = np.random.default_rng(0)
  users = max(1, count // EVENTS_A_USER)
  seconds = np.sort(rng.integers(0, _DAYS * 86_400, count))
  rated = [name for name, _ in kuairand.ACTIONS]
  names = ['user_id', 'video_id', 'time_ms', *rated, 'play_time_ms', 'is_rand']
  numbers = np.zeros((count, len(names)), np.int64)
  numbers[:, 0] = rng.integers(0, users, count)
  numbers[:, 1] = rng.integers(0, 40 * users, count)
  numbers[:, 2] = 1000 * (_BEGIN + seconds)
  numbers[:, 3:11] = rng.random((count, 8)) < 0.2
  numbers[:, 11] = rng.integers(0, 200_000, count)
  half = int(np.searchsorted(seconds, 14 * 86_400))
  for period, some in (
    ('4_08_to_4_21', numbers[:half]),
    ('4_22_to_5_08', numbers[half:]),
  ):
    with open(folder / f'log_standard_{period}_1k.csv', 'w', newline='') as f:
      table = csv.writer(f)
      table.writerow(names)
      table.writerows(some.tolist())
  columns = [kuairand.USER, *kuairand.CONTEXT]
  with open(folder / 'user_features_1k.csv', 'w', newline='') as f:
    table = csv.writer(f)
    table.writerow(columns)
    table.writerows([user, *'abcde'] for user in range(users))


def write_events(folder: pathlib.Path, count: int) -> None:
  """Events of Yambda, sorted by user and time."""
  import pyarrow as pa
  import pyarrow.parquet as pq

  rng = np.random.default_rng(0)
  users = max(1, count // EVENTS_A_USER)
  user = np.sort(rng.integers(0, users, count))
  time = rng.integers(0, 26_000_000, count) // 5 * 5
  order = np.lexsort((time, user))
  listens = rng.random(count) < 0.95
  kinds = pa.DictionaryArray.from_arrays(
    (~listens).astype(np.int8), ['listen', 'like']
  )
  pq.write_table(
    pa.table(
      {
        'uid': user.astype(np.uint32),
        'timestamp': time[order].astype(np.uint32),
        'item_id': rng.integers(0, 40 * users, count).astype(np.uint32),
        'event_type': kinds,
        'played_ratio_pct': rng.integers(0, 101, count).astype(np.uint16),
      }
    ),
    folder / 'multi_event.parquet',
  )


# --- Scoring


def write_candidates(path: pathlib.Path, count: int) -> None:
  items = np.arange(count) % 6400
  lines = ['user,item', *(f'1,{item}' for item in items.tolist())]
  path.write_text('\n'.join(lines) + '\n')


def _score(path: str) -> list[dict]:
  from ml_collections import ConfigDict

  from genrec_jax import config as config_lib
  from genrec_jax.serve import score_requests
  from genrec_jax.serve.request_scorer import RequestScorer

  root, rows = pathlib.Path(path), []
  lines = (root / 'candidates.csv').read_text().splitlines()[1:]
  items = np.array([int(line.split(',')[1]) for line in lines])
  candidates = {'item': items, 'category': items // 800}
  history = {'item': [5, 900], 'category': [0, 1], 'action': ['rated_5'] * 2}
  scorer = RequestScorer.load(root / 'run')

  def measure(case: str, run) -> None:
    before = measure_memory('VmRSS')
    with result.CoreTimer() as timer:
      run()
    row = {'case': case, 'kind': 'score', 'events': len(items)}
    row |= {'core_s': timer.core_s, 'wall_s': timer.wall_s}
    row |= {'grown_MB': (measure_memory() - before) / 2**20}
    rows.append(row | {'peak_MB': measure_memory() / 2**20})

  for case in ('RequestScorer', 'RequestScorer, again'):
    measure(case, lambda: scorer.score(history, candidates, user=1))
  config = ConfigDict(config_lib.read_config(root / 'run' / 'config.json'))
  for key, value in (('input', 'candidates.csv'), ('output', 'scores.csv')):
    config_lib.apply_override(config, f'predict.{key}={root / value}')
  measure(
    'genrec predict',
    lambda: score_requests.write_request_scores(config, root / 'run'),
  )
  return rows


if __name__ == '__main__':
  main()
