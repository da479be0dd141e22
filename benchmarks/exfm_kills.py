"""A system of teacher and students that is killed again and again.

  python -m benchmarks.exfm_kills --runs DIR [--kills 200]

A tiny system (`python -m genrec_jax.train.exfm`: writer, service, teacher,
three students and their twins without a teacher) runs undisturbed once, and
then as often as it takes for the kills: SIGKILL to a process drawn at random,
at a moment drawn at random, of the writer, the service, the teacher and all
students alike. The driver starts again what was killed. Compared with the
undisturbed run:

  parts    files of the teacher and the students, byte by byte
  once     whether every example of the events is in the parts of its stream
           once, and in the store of scores once if a teacher was old enough
  curves   metrics.jsonl of the teacher and of every student, but for timings
  weights  those of the last step of all of them, to the bit
"""

import collections
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np

from benchmarks import cli
from genrec_jax.data.parquet import pq
from genrec_jax.distill.teacher_store import TeacherStore
from genrec_jax.processes import notes
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.weights import safetensors
from genrec_jax.weights.export import export_weights

COLUMNS = (
  'case', 'kills', 'rounds', 'examples', 'parts', 'parts_differ', 'twice',
  'lost', 'curves_differ', 'weights_differ', 'wall_s',
)  # fmt: skip
STREAMS = {'feed': 'dlrm', 'video': 'dcn', 'search': 'deepfm'}
OPTIONS = (
  '--students', *(f'{name}={model}' for name, model in STREAMS.items()),
  '--compare', 'none', '--threads', '1', '--retries', '100000',
  '--windows', '10', '--rows', '900', '--values', '20', '--rate', '0.1',
  '--set', 'all.train.batch_size=64', '--set', 'all.data.stream.poll_s=0.1',
)  # fmt: skip
NOTES = (
  'twice, lost: examples that are in the parts of their stream more than once, '
  'or not at all; likewise scores.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm_kills', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--kills', type=int, default=200, help='in all (200)')
  parser.add_argument(
    '--pause', type=float, default=8.0,
    help='most seconds between two kills (8); a process takes several to start',
  )  # fmt: skip
  parser.add_argument('--seed', type=int, default=0, help='of the draws (0)')
  args = parser.parse_args(argv)
  wanted = 4 if args.smoke else args.kills
  root, rng = pathlib.Path(args.runs), random.Random(args.seed)
  whole = root / 'whole'
  run_system(whole, rng, 0, args.pause)
  expected = describe_system(whole)
  killed: collections.Counter = collections.Counter()
  rows, rounds, begun = [], 0, time.monotonic()
  differences: collections.Counter = collections.Counter()
  while killed.total() < wanted:
    rounds += 1
    folder = root / f'killed{rounds}'
    left = wanted - killed.total()
    killed += run_system(folder, rng, left, args.pause)
    found = describe_system(folder)
    differences += compare(found, expected)
    row = {
      'case': 'all processes',
      'kills': killed.total(),
      'by_process': dict(sorted(killed.items())),
      'rounds': rounds,
      'examples': expected['examples'],
      'parts': len(expected['parts']),
      'wall_s': time.monotonic() - begun,
    }
    keys = ('parts_differ', 'twice', 'lost', 'curves_differ', 'weights_differ')
    rows = [row | {key: differences[key] for key in keys}]
    print(cli.table(rows, COLUMNS), flush=True)
  cli.finish(args, 'exfm_kills', rows, COLUMNS, NOTES)


def run_system(
  folder: pathlib.Path, rng: random.Random, most: int, pause: float
) -> collections.Counter:
  """Runs a system to its end; kills its processes meanwhile.

  Args:
    folder: of the system.
    rng: draws whom and when.
    most: kills; 0 leaves the system alone.
    pause: most seconds between two kills.

  Returns:
    Name of a process -> how often it was killed.
  """
  command = [sys.executable, '-m', 'genrec_jax.train.exfm', str(folder)]
  folder.parent.mkdir(parents=True, exist_ok=True)
  killed: collections.Counter = collections.Counter()
  with open(folder.with_name(f'{folder.name}.log'), 'a') as log:
    process = subprocess.Popen(
      [*command, *OPTIONS], stdout=log, stderr=subprocess.STDOUT
    )
    while process.poll() is None:
      if killed.total() >= most:
        time.sleep(0.1)
        continue
      time.sleep(rng.uniform(0.0, pause))
      alive = list_alive(folder)
      if alive:
        name = rng.choice(sorted(alive))
        try:
          os.kill(alive[name], signal.SIGKILL)
        except ProcessLookupError:
          continue
        killed[name] += 1
  if process.returncode:
    cli.fail(
      f'{" ".join(command)} ended with {process.returncode}: see {log.name}'
    )
  return killed


def list_alive(folder: pathlib.Path) -> dict[str, int]:
  """Name -> number of each process that runs."""
  found = {}
  for path in sorted((folder / 'logs').glob('*.json')):
    note = notes.read_note(path)
    if note.pid and notes.is_alive(note, path.with_suffix('.log')):
      found[path.stem] = note.pid
  return found


def describe_system(folder: pathlib.Path) -> dict:
  """What must be the same however often the system was killed."""
  annotated = folder / 'annotated'
  parts = {
    str(path.relative_to(annotated)): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(annotated.rglob('*.parquet'))
  }
  twice = lost = examples = 0
  for stream in STREAMS:
    shown = read_ids((folder / 'events' / stream).glob('impressions-*.parquet'))
    given = read_ids((annotated / stream).glob('window-*.parquet'))
    examples += len(shown)
    twice += len(given) - len(np.unique(given))
    lost += len(np.setdiff1d(shown, given))
  taught = read_ids((annotated / 'teacher').glob('window-*.parquet'))
  store = TeacherStore.open_existing(annotated / 'scores')
  scored = np.concatenate([scores.example_id for scores in store.iterate()])
  twice += len(taught) - len(np.unique(taught))
  twice += len(scored) - len(np.unique(scored))
  first = sorted((annotated / 'teacher').glob('window-*.parquet'))[:1]
  lost += len(np.setdiff1d(taught, np.union1d(scored, read_ids(first))))
  runs = [folder / 'teacher', *sorted((folder / 'students').iterdir())]
  curves, weights = {}, {}
  for workdir in runs:
    rows = read_jsonl(workdir / 'metrics.jsonl')
    curves[workdir.name] = [
      {key: value for key, value in row.items() if 'perf/' not in key}
      for row in rows
    ]
    path = folder / 'weights' / f'{workdir.name}.safetensors'
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    export_weights(workdir, path, 'latest')
    # Not the file: it names the workdir.
    tensors = safetensors.open_file(path)
    weights[workdir.name] = {n: x.tobytes() for n, x in tensors.items()}
  return dict(
    parts=parts, twice=twice, lost=lost, examples=examples, curves=curves,
    weights=weights,
  )  # fmt: skip


def read_ids(paths) -> np.ndarray:
  """The ids of all examples of some files."""
  found = [
    pq.read_table(path, columns=['example_id'])['example_id'].to_numpy()
    for path in sorted(paths)
  ]
  return np.concatenate([np.zeros(0, np.int64), *found])


def compare(found: dict, expected: dict) -> collections.Counter:
  """How many of each kind are not as they should be."""
  names = found['parts'].keys() | expected['parts'].keys()
  differ = [
    n for n in names if found['parts'].get(n) != expected['parts'].get(n)
  ]
  return collections.Counter(
    parts_differ=len(differ),
    twice=found['twice'],
    lost=found['lost'],
    curves_differ=sum(
      found['curves'][n] != expected['curves'][n] for n in expected['curves']
    ),
    weights_differ=sum(
      found['weights'][n] != expected['weights'][n] for n in expected['weights']
    ),
  )


if __name__ == '__main__':
  main()
