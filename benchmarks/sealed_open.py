"""What it costs to open converted histories whose files have checksums.

  python -m benchmarks.sealed_open

Histories of generated events, one of the size of MovieLens-1M and one whose
column of items takes 2 GB, are written, sealed and opened, with the seal and
without it, from the page cache. Beside it stands what a training does next with
the same columns: it counts the items of the training split. Needs 6 GB of disk,
freed afterwards.
"""

import json
import pathlib
import tempfile

import numpy as np

from benchmarks import cli
from benchmarks.result import CoreTimer
from genrec_jax import sealed
from genrec_jax.data import splits
from genrec_jax.data.histories import Histories
from genrec_jax.data.vocab import Vocab

# case -> events, users, items, whether there are times
CASES = {
  'the size of MovieLens-1M': (1_000_209, 6_040, 3_706, True),
  'a column of 2 GB': (500_000_000, 2_000_000, 1_000_000, False),
}
SMOKE = {'smoke': (20_000, 300, 200, True)}
REPEATS = 5
COLUMNS = (
  'case', 'events', 'bytes', 'seal_s', 'open_s', 'open_core_s', 'unsealed_s',
  'bytes_per_s', 'count_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('sealed_open', __doc__)
  parser.add_argument('--directory', help='where the files may be put')
  args = parser.parse_args(argv)
  rows = []
  for case, sizes in (SMOKE if args.smoke else CASES).items():
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
      rows.append({'case': case, **measure(pathlib.Path(directory), *sizes)})
  notes = [
    f'Medians of {REPEATS}; the files are in the page cache. open_s: '
    'Histories.open with a seal; unsealed_s: without one, when only what the '
    'columns hold is looked at; count_s: splits.count_events, for comparison.',
    'bytes_per_s: bytes over open_s - unsealed_s, on all cores of the machine.',
  ]
  cli.finish(args, 'sealed_open', rows, COLUMNS, notes)


def measure(path: pathlib.Path, events, users, items, with_times) -> dict:
  """The row of a case, whose files are written into `path`."""
  write_histories(path, events, users, items, with_times)
  size = sum(file.stat().st_size for file in path.iterdir())
  seal_s, _ = _median(lambda: sealed.seal(path))
  open_s, open_core_s = _median(lambda: Histories.open(path))
  histories = Histories.open(path)
  ends = histories.offsets[1:] - 1
  spans = splits.ExampleSpans(
    np.arange(len(histories)), histories.offsets[:-1], ends
  )
  count_s, _ = _median(lambda: splits.count_events(histories, spans))
  (path / sealed.NAME).unlink()
  unsealed_s, _ = _median(lambda: Histories.open(path))
  return {
    'events': events,
    'bytes': size,
    'seal_s': seal_s,
    'open_s': open_s,
    'open_core_s': open_core_s,
    'unsealed_s': unsealed_s,
    'bytes_per_s': size / max(open_s - unsealed_s, 1e-9),
    'count_s': count_s,
  }


def write_histories(path, events, users, items, with_times) -> None:
  """Files as `convert.convert_log` leaves them, without the seal."""
  rng = np.random.default_rng(0)
  columns = {'items': rng.integers(1, items + 1, events, np.int32)}
  if with_times:
    columns['times'] = np.arange(events, dtype=np.int64)
  for name, column in columns.items():
    np.save(path / f'{name}.npy', column)
  ends = np.linspace(0, events, users + 1).astype(np.int64)
  np.save(path / 'offsets.npy', ends)
  Vocab(np.arange(users)).save(path / 'user_ids.npy')
  Vocab(np.arange(items)).save(path / 'item_ids.npy')
  meta = {'format': 1, 'events': events, 'columns': list(columns)}
  (path / 'meta.json').write_text(json.dumps(meta))


def _median(run) -> tuple[float, float]:
  """(seconds, core-seconds) of the median of some calls."""
  pairs = []
  for _ in range(REPEATS):
    with CoreTimer() as timer:
      run()
    pairs.append((timer.wall_s, timer.core_s))
  return sorted(pairs)[REPEATS // 2]


if __name__ == '__main__':
  main()
