"""Prepared data: a directory of blocks, an encoder and a manifest."""

import collections
import functools
import hashlib
import json
import pathlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax import sealed
from genrec_jax.data.ranking import blocks
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import rows as rows_lib

MANIFEST = 'dataset.json'
CACHE_BYTES = 1 << 29  # decoded blocks that a split keeps
SPLITS = ('train', 'valid', 'test')


class SplitStore:
  """One split of a data set: blocks of rows, read when they are asked for.

  Attributes:
    name: 'train', 'valid' or 'test'.
    names: what the columns of its rows are called.
    starts: `[blocks + 1]` int64, number of the first row of each block.
  """

  def __init__(
    self,
    name: str,
    sizes: Sequence[int],
    source: Sequence[rows_lib.Rows],
    names: rows_lib.ColumnNames,
  ):
    """Wraps blocks.

    Args:
      name: of the split.
      sizes: rows of each block.
      source: the blocks, on disk or in memory.
      names: what the columns of the rows are called.
    """
    self.name, self.names = name, names
    self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    self._source = source
    self._lock = threading.Lock()
    self._kept = collections.OrderedDict()  # number of a block -> its rows
    self._window = (None, None)

  def __len__(self) -> int:
    return int(self.starts[-1])

  @property
  def blocks(self) -> int:
    return len(self.starts) - 1

  def block(self, number: int) -> rows_lib.Rows:
    """A block; those met last stay decoded, `CACHE_BYTES` of them."""
    with self._lock:
      rows = self._kept.pop(number, None)
      if rows is None:
        rows = self._source[number]
      self._kept[number] = rows
      most = CACHE_BYTES // max(1, size_of(rows))
      while len(self._kept) > max(1, most):
        self._kept.popitem(last=False)
      return rows

  def window(self, numbers: tuple[int, ...]) -> rows_lib.Rows:
    """Some blocks as one; the last window stays in memory."""
    with self._lock:
      if self._window[0] != numbers:
        self._window = (None, None)  # before the next one is in memory too
        total = int(np.diff(self.starts)[list(numbers)].sum())
        blocks = (self._source[i] for i in numbers)
        self._window = (numbers, rows_lib.concatenate_stream(blocks, total))
      return self._window[1]

  def rows(self, a: int, b: int) -> rows_lib.Rows:
    """The rows a .. b - 1, in order."""
    first = int(np.searchsorted(self.starts, a, 'right')) - 1
    pieces = []
    while first < self.blocks and self.starts[first] < b:
      start = int(self.starts[first])
      block = self.block(first)
      pieces.append(
        block.slice_rows(max(a - start, 0), min(b - start, len(block)))
      )
      first += 1
    return rows_lib.concatenate_rows(pieces)

  def __iter__(self) -> Iterator[rows_lib.Rows]:
    for number in range(self.blocks):
      yield self.block(number)


def size_of(rows: rows_lib.Rows) -> int:
  """Bytes of its arrays."""
  arrays = [*rows_lib.columns_of(rows).values()]
  for bags in rows.bags.values():
    arrays += [bags.values, bags.lengths]
  return sum(a.nbytes for a in arrays)


class PreparedStore:
  """A directory of prepared data, opened.

  Attributes:
    directory: where it is.
    manifest: what `dataset.json` says.
    encoder: what made the rows.
  """

  def __init__(
    self, directory: str | pathlib.Path, remedy: str = encoder_lib.REMEDY
  ):
    """Opens a directory that `prepare.prepare_store` made.

    Args:
      directory: where it is.
      remedy: what a user does about a damaged one.
    """
    self.directory, self._remedy = pathlib.Path(directory), remedy
    files = sealed.SealedDirectory(directory, remedy)
    self.manifest = encoder_lib.read_json(
      files, MANIFEST, 'prepared ranking data', encoder_lib.FORMATS
    )
    with files.explain_damage(MANIFEST):
      sealed.check_keys(
        self.manifest, encoder=str, block_rows=int, groups=int, parts=dict
      )
      for name, entry in self.manifest['parts'].items():
        sealed.check_keys(entry, file=str, rows=int, bytes=int, crc32=list)
        if entry['file'] != f'{name}.array_record' or name not in SPLITS:
          raise ValueError(f'it has a split {name!r} in {entry["file"]!r}')
    self.encoder = encoder_lib.Encoder.from_files(files)
    if self.encoder.fingerprint() != self.manifest['encoder']:
      raise files.damaged(
        'encoder.json', 'it is not the one the blocks were made with'
      )

  @functools.cached_property
  def splits(self) -> dict[str, SplitStore]:
    return {
      name: self._open_split(name, entry)
      for name, entry in self.manifest['parts'].items()
    }

  def _open_split(self, name: str, entry: dict) -> SplitStore:
    path = self.directory / entry['file']
    if not path.is_file():
      raise FileNotFoundError(f'{path}: no such file; {self._remedy}')
    size = path.stat().st_size
    if size != entry['bytes']:
      raise sealed.DamagedError(
        f'{path} is damaged ({size:,} bytes instead of {entry["bytes"]:,}); '
        f'{self._remedy}'
      )
    full, rest = divmod(entry['rows'], self.manifest['block_rows'])
    sizes = [self.manifest['block_rows']] * full + [rest] * bool(rest)
    source = blocks.BlockReader(path, entry['crc32'], self._remedy)
    return SplitStore(name, sizes, source, self.encoder.schema.names)

  def fingerprint(self) -> str:
    """Names the content: equal rows, equal fingerprints, wherever they lie."""
    content = [self.manifest['encoder'], self.manifest['block_rows']]
    content += [
      [name, entry['rows'], entry['crc32']]
      for name, entry in self.manifest['parts'].items()
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def write_manifest(
  directory: pathlib.Path, manifest: dict, version: int
) -> None:
  """Completes a directory: its manifest, and the seal over all files."""
  text = json.dumps({'format': version, **manifest}, indent=1)
  (directory / MANIFEST).write_text(text)
  sealed.seal(directory, MANIFEST)
