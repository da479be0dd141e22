"""What a run publishes, written without the run, and what it must come to."""

import pathlib

import ml_dtypes
import numpy as np

from genrec_jax.checkpoint import chain, chunks, manifest, row_files
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding

TABLES = {
  'item': (40, 6, 'float32'),
  'user': (23, 4, ml_dtypes.bfloat16),
  'odd name/1': (5, 3, 'float32'),
}
CUT = {'item': 4}  # columns from here on lie apart


class Published:
  """A directory of bases and deltas of tables of random bits.

  Attributes:
    whole: step -> all tables as they were then.
  """

  def __init__(self, directory, seed=0, tables=TABLES, key=None):
    self.directory, self._key = pathlib.Path(directory), key
    self.whole = {}
    self._rng = np.random.default_rng(seed)
    self._about = tables
    self._now = {n: self._random(n, rows) for n, (rows, *_) in tables.items()}
    self._parents = []

  def base(self, step):
    self._parents = []
    rows = {n: np.arange(rows) for n, (rows, *_) in self._about.items()}
    self.save(step, 'base', rows)

  def delta(self, step, share=0.4, parents=None):
    rows = {}
    for name, (count, *_) in self._about.items():
      rows[name] = np.flatnonzero(self._rng.random(count) < share)
      self._now[name][rows[name]] = self._random(name, len(rows[name]))
    self.save(step, 'delta', rows, parents)

  def line(self, *steps):
    """A base and deltas."""
    self.base(steps[0])
    for step in steps[1:]:
      self.delta(step)
    return self

  def save(self, step, kind, rows, parents=None):
    step_dir = self.directory / str(step)
    (step_dir / 'state').mkdir(parents=True)
    (step_dir / 'state' / 'd').write_bytes(self._rng.bytes(50))
    for name, numbers in rows.items():
      self._write(step_dir, name, numbers)
    about = {
      name: {'rows': count, 'dim': dim, 'dtype': str(np.dtype(dtype))}
      for name, (count, dim, dtype) in self._about.items()
    }
    parents = self._parents if parents is None else parents
    entry = {'kind': kind, 'parents': parents, 'tables': about}
    manifest.write(step_dir, step, self._key, rows=entry)
    self._parents = [*parents, [step, chain.read_identity(step_dir)]]
    self.whole[step] = {n: x.copy() for n, x in self._now.items()}

  def _random(self, name, rows):
    _, dim, dtype = self._about[name]
    raw = self._rng.bytes(rows * dim * np.dtype(dtype).itemsize)
    return np.frombuffer(raw, dtype).reshape(rows, dim).copy()

  def _write(self, step_dir, name, numbers):
    """Two processes, two chunks each, of each piece of the columns."""
    directory = step_dir / 'rows' / row_files.file_name(name)
    dim = self._about[name][1]
    cuts = (0, CUT[name], dim) if name in CUT else (0, dim)
    for process in (0, 1):
      mine = numbers[numbers % 2 == process]
      count = 0
      for first, end in zip(cuts, cuts[1:]):
        for ids in np.array_split(mine, 2):
          if not len(ids):
            continue
          values = self._now[name][ids, first:end]
          chunk = RowChunk(name, first, ids, values, {})
          directory.mkdir(parents=True, exist_ok=True)
          path = directory / f'{process}-{count:05d}.npz'
          path.write_bytes(chunks.to_bytes(chunk, RowEncoding()))
          count += 1


def assert_is(found, whole):
  """A follower or a copy has the tables of a whole save, to the last bit."""
  assert set(found.tables) == set(whole)
  for name, wanted in whole.items():
    table = found.table(name)
    assert table.dtype == wanted.dtype and table.shape == wanted.shape
    assert np.asarray(table).tobytes() == wanted.tobytes(), name


def change(path, how='flip'):
  raw = bytearray(path.read_bytes())
  if how == 'flip':
    raw[len(raw) // 2] ^= 1
  path.write_bytes(raw[: len(raw) // 2] if how == 'cut' else raw)


def file_of(run, step, kind):
  """Some of the files of a step."""
  step_dir = run.directory / str(step)
  return {
    'rows': sorted(step_dir.rglob('*.npz'))[3],
    'state': step_dir / 'state' / 'd',
    'manifest': step_dir / manifest.NAME,
  }[kind]
