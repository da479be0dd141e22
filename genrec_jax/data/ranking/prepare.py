"""Raw chunks -> a directory of prepared data, in two passes.

1. Fit: the values of the training split are counted, its numbers measured.
2. Encode: the rows of all splits are encoded and written, block by block.

Memory holds the distinct values, one chunk and one block of each split. The
result appears under its name by a rename, when it is complete.
"""

import dataclasses
import hashlib
import pathlib
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax import sealed
from genrec_jax.data import scratch, source_files
from genrec_jax.data.ranking import (
  blocks,
  raw,
  store,
  value_shares,
  value_tally,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import schema as schema_lib

LOG_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class RowSource:
  """Rows that can be read again and again.

  Attributes:
    chunks: the columns that are wanted -> the rows.
    files: what they are read from; none for generated ones.
    name: for messages.
  """

  chunks: Callable[[Sequence[str]], Iterator[raw.RawChunk]]
  files: tuple[pathlib.Path, ...] = ()
  name: str = ''


@dataclasses.dataclass(frozen=True)
class SplitRule:
  """How splits without files of their own are cut from the training rows.

  Attributes:
    by: 'order': the last rows; 'random': each row by a draw of its own.
    valid: fraction of the rows, 0 for no such split.
    test: likewise.
    seed: of the draws.
  """

  by: str = 'order'
  valid: float = 0.0
  test: float = 0.0
  seed: int = 0

  def __post_init__(self):
    if self.by not in ('order', 'random'):
      raise ValueError(
        f"data.split.by must be 'order' or 'random', not {self.by!r}"
      )
    if min(self.valid, self.test) < 0 or self.valid + self.test >= 1:
      raise ValueError(
        f'data.split: valid_fraction {self.valid} and test_fraction '
        f'{self.test} must not be negative and leave something to train on'
      )

  def cuts(self, total: int) -> tuple[int, int]:
    """First row of the validation and of the test split, by order."""
    test = round(total * self.test)
    return total - test - round(total * self.valid), total - test

  def assign_splits(self, first: int, count: int, total: int) -> np.ndarray:
    """`[count]` place in `SPLITS` of the rows from number `first` on."""
    if self.by == 'order':
      row = np.arange(first, first + count)
      return np.searchsorted(np.array(self.cuts(total)), row, 'right')
    draw = _draw_uniform(self.seed, first, count)
    # Training rows are those below the first bound, whatever the others are.
    bounds = np.array([1 - self.valid - self.test, 1 - self.test])
    return np.searchsorted(bounds, draw, 'right')


def _draw_uniform(seed: int, first: int, count: int) -> np.ndarray:
  """`[count]` draws in [0, 1), each a function of the seed and its number."""
  x = np.arange(first, first + count, dtype=np.uint64)
  x = x * np.uint64(0x9E3779B97F4A7C15)
  x += np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  x ^= x >> np.uint64(31)
  return (x >> np.uint64(11)) / 2.0**53


class _Progress:
  """Tells `log` about rows, at most every `LOG_SECONDS`."""

  def __init__(self, log: Callable[[str], None]):
    self._log = log
    self._last = self._start = clock.monotonic()

  def start(self) -> None:
    self._start = clock.monotonic()

  def __call__(self, what: str, rows: int) -> None:
    now = clock.monotonic()
    if now - self._last > LOG_SECONDS:
      self._last = now
      rate = rows / max(now - self._start, 1e-9)
      self._log(f'{what}: {rows:,} rows ({rate:,.0f} rows/s)')


def _describe_file(path: pathlib.Path) -> dict:
  with open(path, 'rb') as f:
    sha256 = hashlib.file_digest(f, 'sha256').hexdigest()
  return {'file': str(path), 'bytes': path.stat().st_size, 'sha256': sha256}


def _cut_chunks(
  source: RowSource,
  columns,
  split_rule: SplitRule | None,
  total: int,
  progress,
  what: str,
) -> Iterator[tuple[raw.RawChunk, np.ndarray | None]]:
  """Chunks, and the split of each row where the rule cuts."""
  done = 0
  for chunk in source.chunks(columns):
    split_numbers = (
      split_rule.assign_splits(done, len(chunk), total) if split_rule else None
    )
    done += len(chunk)
    progress(what, done)
    yield chunk, split_numbers
  if not done:
    raise ValueError(f'{source.name}: holds no rows')


def _fit_encoder(schema, reading, source, split_rule, progress):
  """Pass 1, over the training rows; also their number, for a cut by order."""
  total = 0
  if split_rule and split_rule.by == 'order':
    progress.start()
    for chunk in source.chunks(schema.labels[:1]):
      total += len(chunk)
      progress('counting rows', total)
  fit = encoder_lib.EncoderFit(schema)
  if fit.needed:
    progress.start()
    pieces = _cut_chunks(
      source, schema.sources, split_rule, total, progress, 'counting values'
    )
    for chunk, split_numbers in pieces:
      fit.add(
        chunk if split_numbers is None else chunk.take(split_numbers == 0)
      )
  return fit.encoder(reading), total


def _encode_sources(
  work, encoder, sources, split_rule, total, block_rows, progress
) -> tuple[dict, int, value_shares.Parts]:
  """Pass 2.

  Returns:
    What the manifest shall say of each split, the number of groups, and what
    was counted of the values.
  """
  names = list(sources)
  if split_rule:
    names += ['valid'] * (split_rule.valid > 0) + ['test'] * (
      split_rule.test > 0
    )
  names = [name for name in store.SPLITS if name in names]
  paths = {name: work / f'{name}.array_record' for name in names}
  writers = {n: blocks.BlockWriter(paths[n], block_rows) for n in names}
  tallies = {n: value_tally.Tally(encoder) for n in names}
  groups, first = {}, 0
  try:
    for name in store.SPLITS:
      if name not in sources:
        continue
      cut = split_rule if name == 'train' else None
      progress.start()
      for chunk, split_numbers in _cut_chunks(
        sources[name],
        encoder.schema.everything,
        cut,
        total,
        progress,
        f'writing the {name} split',
      ):
        absent = encoder.make_absent(chunk)
        rows = encoder.encode(chunk, groups, first, absent)
        first += len(chunk)
        if split_numbers is None or not split_numbers.any():
          writers[name].add(rows)
          tallies[name].add(chunk, rows, absent)
          continue
        for i, where in enumerate(store.SPLITS):
          at = np.flatnonzero(split_numbers == i)
          if len(at):
            own = rows.take(at)
            writers[where].add(own)
            tallies[where].add(chunk, own, absent[at], at)
  finally:
    for writer in writers.values():
      writer.close()
  for name, writer in writers.items():
    if not writer.rows:
      raise ValueError(
        f'the {name} split is empty: data.split leaves it no row of '
        f'{sources["train"].name}; raise its fraction, or set it to 0'
      )
  splits = {
    name: {
      'file': paths[name].name,
      'rows': writers[name].rows,
      'bytes': paths[name].stat().st_size,
      'crc32': writers[name].crcs,
    }
    for name in names
  }
  counts = {name: tally.counts() for name, tally in tallies.items()}
  return splits, len(groups) if encoder.schema.group else 0, counts


def prepare_store(
  sources: Mapping[str, RowSource],
  schema: schema_lib.Schema,
  out: str | pathlib.Path,
  *,
  split_rule: SplitRule | None = None,
  block_rows: int = 1 << 14,
  reading: Mapping[str, str] | None = None,
  fingerprint: str = '',
  log: Callable[[str], None] = print,
) -> store.PreparedStore:
  """Prepares data once; later calls with the same fingerprint open it.

  Args:
    sources: 'train', and maybe 'valid' and 'test' -> their rows.
    schema: what becomes of the columns.
    out: the directory to make.
    split_rule: cuts splits from the training rows; None cuts nothing.
    block_rows: rows of a block.
    reading: format of the raw files and its options, kept with the encoder.
    fingerprint: names sources and options; '' never matches.
    log: called with progress messages.

  Returns:
    The prepared data.
  """
  out = pathlib.Path(out)
  if any((out / name).exists() for name in (store.MANIFEST, sealed.NAME)):
    out_store = store.PreparedStore(
      out, f'remove {out}: it is made again from the source files'
    )
    if fingerprint and out_store.manifest.get('made_from') == fingerprint:
      return out_store
    raise ValueError(
      f'{out}: holds data made from other files or with other options; remove '
      'it or choose another directory'
    )
  if block_rows < 1:
    raise ValueError(f'data.block_rows must be at least 1, not {block_rows}')
  if split_rule and not split_rule.valid and not split_rule.test:
    split_rule = None
  start = clock.monotonic()
  before = source_files.stat_files(
    path for source in sources.values() for path in source.files
  )
  with scratch.staged_directory(out, store.MANIFEST) as work:
    progress = _Progress(log)
    encoder, total = _fit_encoder(
      schema, reading or {}, sources['train'], split_rule, progress
    )
    splits, groups, counts = _encode_sources(
      work, encoder, sources, split_rule, total, block_rows, progress
    )
    encoder = dataclasses.replace(encoder, value_counts=counts)
    checksums = [_describe_file(path) for path in before]
    source_files.check_unchanged(before)
    encoder.save(work)
    store.write_manifest(
      work,
      {
        'made_from': fingerprint,
        'encoder': encoder.fingerprint(),
        'block_rows': block_rows,
        'groups': groups,
        'parts': splits,
        'sources': checksums,
      },
      encoder_lib.FORMATS[bool(schema.annotations.to_json())],
    )
  rows = sum(entry['rows'] for entry in splits.values())
  seconds = clock.monotonic() - start
  log(
    f'prepared {rows:,} rows in {seconds:,.1f} s '
    f'({rows / max(seconds, 1e-9):,.0f} rows/s)'
  )
  return store.PreparedStore(out)
