"""How fast is Taobao's log sorted and cut into examples, and in which memory?

  python -m benchmarks.taobao_prepare --rows 10000000 --scratch DIR

Writes a file of the layout of UserBehavior.csv whose rows are in random order,
and reads the training examples of `data.name=taobao` from it, in a process of
its own for each limit of memory. The file is drawn (popularity of items falls
as 1 / rank), so that speed and memory are those of the real one and nothing
else is. The real file has 100,150,807 rows, 987,994 users, 4,162,024 items.

`peak_mb` is the most memory of the process, `idle_mb` what it has before it
reads anything; `sort_rows_per_core_s` are the rows of the file by the seconds
of a core until the first examples come, `examples_per_core_s` the examples by
those after that.
"""

import json
import multiprocessing
import pathlib
import re
import time

import numpy as np

from benchmarks import cli
from genrec_jax.data.ranking import taobao, taobao_sort

COLUMNS = (
  'case', 'rows', 'users', 'items', 'memory_mb', 'runs', 'sort_wall_s',
  'sort_core_s', 'sort_rows_per_core_s', 'examples', 'examples_per_core_s',
  'idle_mb', 'peak_mb', 'file_mb', 'scratch_mb',
)  # fmt: skip
EVENTS = 101  # of a user, in the mean, as in the real file
ITEMS_X = 4.2  # items, in users
CATEGORIES = 9_439
FIRST, SECONDS = 1_511_539_200, 777_600  # nine days
_PIECE = 1 << 19  # rows that are drawn at once


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('taobao_prepare', __doc__)
  parser.add_argument('--rows', type=int, default=10_000_000)
  parser.add_argument(
    '--memory-mb', type=int, nargs='+', default=[64, 256], help='of the sort'
  )
  parser.add_argument('--scratch', required=True, help='a directory for files')
  args = parser.parse_args(argv)
  count = 20_000 if args.smoke else args.rows
  folder = pathlib.Path(args.scratch)
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'taobao-{count}.csv'
  if not path.exists():
    write_log(path, count)
  rows = []
  for memory_mb in args.memory_mb:
    # A fresh process each: a peak of memory never falls.
    with multiprocessing.get_context('spawn').Pool(1) as pool:
      row = pool.apply(measure, (str(path), memory_mb))
    rows.append({'case': f'{count}/{memory_mb}', 'rows': count, **row})
    print(json.dumps(rows[-1]))
  notes = ['A generated file in random order; nothing is learned from it.']
  cli.finish(args, 'taobao_prepare', rows, COLUMNS, notes)


def write_log(path: pathlib.Path, count: int, seed: int = 0) -> None:
  """Writes a log in random order, in constant memory.

  Args:
    path: of the file.
    count: of its rows.
    seed: of everything.
  """
  users = max(1, count // EVENTS)
  items = max(2, round(users * ITEMS_X))
  words = np.array(taobao_sort.BEHAVIOURS)
  partial = path.with_suffix('.tmp')
  with partial.open('w') as f:
    for number, first in enumerate(range(0, count, _PIECE)):
      size = min(_PIECE, count - first)
      rng = np.random.default_rng([seed, number])
      # The inverse of the cumulative distribution of a 1 / x density.
      item = np.exp(rng.random(size) * np.log(items + 1)).astype(np.int64)
      item = np.minimum(item, items)
      columns = (
        # Some are far more active than others.
        (rng.random(size) ** 1.5 * users).astype(np.int64) + 1,
        # Neighbouring numbers are nothing alike.
        item * 7_919 % 5_163_071 + 1,
        item % CATEGORIES + 1,
        words[rng.choice(4, size=size, p=(0.895, 0.02, 0.055, 0.03))],
        FIRST + rng.integers(SECONDS, size=size),
      )
      lists = [column.tolist() for column in columns]
      f.writelines(
        f'{u},{i},{c},{b},{t}\n' for u, i, c, b, t in zip(*lists, strict=True)
      )
  partial.rename(path)


def measure(path: str, memory_mb: int) -> dict:
  """Reads the training examples once; a row of the results without its case.

  Args:
    path: of the log.
    memory_mb: for rows that are sorted or merged.
  """
  idle = _read_peak()
  file, lines = pathlib.Path(path), []
  options = taobao.TaobaoOptions(memory_mb=memory_mb)
  scratch = file.parent / f'scratch-{memory_mb}'
  begin, begin_core = time.perf_counter(), time.process_time()
  examples, sorted_at, core_s, scratch_bytes = 0, None, 0.0, 0
  with taobao.TaobaoClicks(file, options, scratch, lines.append) as log:
    for chunk in log.read_chunks(taobao.NAMES, 'train'):
      if sorted_at is None:
        sorted_at = time.perf_counter()
        core_s = time.process_time() - begin_core
        files = (p for p in scratch.rglob('*') if p.is_file())
        scratch_bytes = sum(p.stat().st_size for p in files)
      examples += len(chunk)
  examples_core_s = time.process_time() - begin_core - core_s
  scratch.rmdir()
  said = next(line for line in lines if 'sorted runs' in line).split()
  rows, runs = (int(said[i].replace(',', '')) for i in (1, 4))
  rule = next(line for line in lines if 'data.taobao.split' in line)
  users, items = (
    int(rule.split(f' {word}')[0].split()[-1].replace(',', ''))
    for word in ('users', 'items')
  )
  return {
    'users': users,
    'items': items,
    'memory_mb': memory_mb,
    'runs': runs,
    'sort_wall_s': sorted_at - begin,
    'sort_core_s': core_s,
    'sort_rows_per_core_s': rows / core_s,
    'examples': examples,
    'examples_per_core_s': examples / examples_core_s,
    'idle_mb': idle,
    'peak_mb': _read_peak(),
    'file_mb': file.stat().st_size / 2**20,
    'scratch_mb': scratch_bytes / 2**20,
  }


def _read_peak() -> float:
  """Megabytes. What getrusage says is at least the peak of the parent."""
  status = pathlib.Path('/proc/self/status').read_text()
  return int(re.search(r'VmHWM:\s*(\d+)', status)[1]) / 1024


if __name__ == '__main__':
  main()
