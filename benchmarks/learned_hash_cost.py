"""What a learned map costs: in a step, on the host, and to be learned.

  python -m benchmarks.learned_hash_cost --runs DIR
  python -m benchmarks.learned_hash_cost --runs DIR --only step

step   a training step of 1,024 examples of DLRM, 16 wide, with six tables of
       2,002 rows: `rows` reads rows, since there are no more values; `hash` and
       `learned` read 20,000 values by a map on the device; `host` is `rows`
       and, before each step, `unpack_rows` of all ids of the batch by NumPy.
       All take turns, a few steps at a time, in one process. `core_ms` is the
       median over turns of the core-milliseconds of a step, `low` and `high`
       the quarter below and above it; `times` the median over turns of the
       ratio to `rows` in the same turn.
learn  a map of so many ids on a hundredth as many rows, by counts that fall as
       1 / rank and vectors 4 wide around 1,000 centres; half of the rows are
       private. Each in a process of its own: `core_s` and `wall_s` without
       making the vectors, `peak_gb` the most memory of the process, with them.

Rows that a result file has are not measured again.
"""

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import cli, gr_memory, runs
from benchmarks.result import CoreTimer
from benchmarks.tbsm_cost import BATCHES, Side
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import store
from genrec_jax.embedding.learned_hash import HashOptions, learn_rows
from genrec_jax.embedding.learned_map import MapFile, pack_rows, unpack_rows

COLUMNS = (
  'case', 'core_ms', 'low', 'high', 'times', 'turns', 'ids', 'rows', 'core_s',
  'wall_s', 'peak_gb',
)  # fmt: skip
CONFIG = 'configs/learned_hash_synthetic.py'
KINDS = ('rows', 'hash', 'learned', 'host')
FIELDS, VALUES, ROWS, BATCH, TURNS = 6, 20_000, 2_002, 1_024, 20
IDS = (100_000, 1_000_000, 10_000_000)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('learned_hash_cost', __doc__)
  parser.add_argument('--runs', required=True, help='directory of data')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so: step, learn, learn/100000',
  )  # fmt: skip
  parser.add_argument('--learn', type=int, default=0, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.learn:
    print(*time_learning(args.learn))
    return
  rows = cli.read_rows(args, 'learned_hash_cost')
  names = [f'step/{kind}' for kind in KINDS]
  try:
    if is_wanted(args, names) and not {*names} <= rows.keys():
      rows |= {row['case']: row for row in measure_steps(args)}
      save(args, rows)
    for ids in IDS[:1] if args.smoke else IDS:
      name = f'learn/{ids}'
      if is_wanted(args, [name]) and name not in rows:
        rows[name] = {'case': name} | measure_learning(ids)
        save(args, rows)
    save(args, rows)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))


def is_wanted(args: argparse.Namespace, names: Sequence[str]) -> bool:
  """Whether `--only` names one of some cases."""
  return any(name.startswith(tuple(args.only)) for name in names)


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes all rows."""
  cli.finish(args, 'learned_hash_cost', [*rows.values()], COLUMNS)


def measure_steps(args: argparse.Namespace) -> list[dict]:
  """The rows of all kinds of a step."""
  folder = pathlib.Path(args.runs).resolve() / 'step'
  sides = {kind: make_side(folder, kind) for kind in ('rows', 'hash')}
  sides['learned'] = make_side(folder, 'learned')
  rng = np.random.default_rng(27)
  words = pack_rows(rng.integers(1, ROWS, VALUES).astype(np.int32), ROWS)
  ids = rng.integers(1, VALUES, (BATCHES, FIELDS, BATCH), np.int32)
  times: dict[str, list[float]] = {kind: [] for kind in KINDS}
  order = [*sides]
  for _ in range(2 if args.smoke else TURNS):
    for kind in order:
      times[kind].append(sides[kind].time_steps())
    with CoreTimer() as timer:
      for batch in ids:
        unpack_rows(words, batch, ROWS)
    more = 1000 * timer.core_s / BATCHES
    times['host'].append(times['rows'][-1] + more)
    order = [*order[1:], order[0]]  # nobody is always the first
  found = []
  for kind, own in times.items():
    low, middle, high = np.percentile(own, [25, 50, 75])
    ratios = np.array(own) / np.array(times['rows'])
    found.append({
      'case': f'step/{kind}', 'core_ms': float(middle), 'low': float(low),
      'high': float(high), 'times': float(np.median(ratios)),
      'turns': len(own),
    })  # fmt: skip
  return found


def make_side(folder: pathlib.Path, kind: str) -> Side:
  """The step of a kind, compiled."""
  values = ROWS - 2 if kind == 'rows' else VALUES
  options = {
    'data.clicks.values': values, 'data.clicks.rows': 60_000,
    'data.cache': str(folder / f'data_{values}'), 'train.batch_size': BATCH,
  }  # fmt: skip
  workdir = folder / kind
  if kind == 'learned':
    maps = write_maps(folder)
    options['tables'] = (
      *(
        (name, {'id_map': 'learned', 'rows': ROWS, 'map': str(path)})
        for name, path in maps.items()
      ),
      ('.*', {}),
    )
  elif kind == 'hash':
    options['tables'] = (
      ('c.*', {'id_map': 'hash', 'rows': ROWS}),
      ('.*', {}),
    )
  words = [f'{key}={value}' for key, value in options.items()]
  return Side(config_lib.load(str(runs.ROOT / CONFIG), words), workdir)


def write_maps(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Table -> file of a map, of the data that `hash` has prepared."""
  (prepared,) = (folder / f'data_{VALUES}').glob('*/dataset.json')
  vocabularies = store.PreparedStore(prepared.parent).encoder.vocabularies
  found = {}
  for i in range(FIELDS):
    name = f'c{i}'
    counts = vocabularies[name].counts
    options = HashOptions(ROWS, private=ROWS // 2, method='frequency')
    rows = learn_rows(counts, None, options)
    found[name] = folder / 'maps' / f'{name}.npz'
    MapFile(name, rows, ROWS).save(found[name])
  return found


def measure_learning(ids: int) -> dict:
  """What it costs to learn a map, in a process of its own."""
  command = [sys.executable, '-m', 'benchmarks.learned_hash_cost', '--runs=.']
  done = subprocess.run(
    [*command, f'--learn={ids}'],
    cwd=runs.ROOT, capture_output=True, text=True, check=True,
  )  # fmt: skip
  core_s, wall_s, peak_gb = map(float, done.stdout.split())
  return {
    'ids': ids, 'rows': ids // 100, 'core_s': core_s, 'wall_s': wall_s,
    'peak_gb': peak_gb,
  }  # fmt: skip


def time_learning(ids: int) -> tuple[float, float, float]:
  """(core-seconds, wall seconds, gigabytes) of a map of so many ids."""
  rng = np.random.default_rng(0)
  counts = (1e9 / ids / np.arange(1, ids + 1)).astype(np.int64) + 1
  centres = rng.normal(size=(1_000, 4)).astype(np.float32)
  vectors = centres[rng.integers(0, len(centres), ids)]
  vectors += 0.3 * rng.standard_normal((ids, 4), np.float32)
  options = HashOptions(rows=ids // 100, private=ids // 200)
  with CoreTimer() as timer:
    learn_rows(counts, vectors, options)
  return timer.core_s, timer.wall_s, gr_memory.measure_memory() / 1e9


if __name__ == '__main__':
  main()
