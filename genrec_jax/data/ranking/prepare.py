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

from genrec_jax import provenance, sealed
from genrec_jax.data import scratch, source_files
from genrec_jax.data.ranking import (
  blocks,
  history_checks,
  raw,
  split_rules,
  store,
  value_shares,
  value_tally,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import equal_rows as equal_rows_lib
from genrec_jax.data.ranking import schema as schema_lib

LOG_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class RowSource:
  """Rows that can be read again and again.

  Attributes:
    chunks: the columns that are wanted -> the rows.
    files: what they are read from; none for generated ones.
    name: for messages.
    repeats: whether candidates are known to be in their own histories now and
      then, so that no warning is due.
  """

  chunks: Callable[[Sequence[str]], Iterator[raw.RawChunk]]
  files: tuple[pathlib.Path, ...] = ()
  name: str = ''
  repeats: bool = False


class Progress:
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
  with path.open('rb') as f:
    sha256 = hashlib.file_digest(f, 'sha256').hexdigest()
  # The prepared data may be shared, a password in a URL may not.
  name = provenance.mask_secrets(str(path))
  return {'file': name, 'bytes': path.stat().st_size, 'sha256': sha256}


def cut_chunks(
  source: RowSource,
  columns,
  cut: split_rules.TrainingCut | None,
  progress,
  what: str,
) -> Iterator[tuple[raw.RawChunk, np.ndarray | None]]:
  """Chunks, and the split of each row where rows are cut off.

  Args:
    source: of the rows.
    columns: those that are wanted.
    cut: of `measure_cut`; None where all rows are of one split.
    progress: told what is done.
    what: the words for that.
  """
  done = 0
  columns = list(dict.fromkeys([*columns, *(cut.columns if cut else ())]))
  for chunk in source.chunks(columns):
    split_numbers = cut.assign(chunk, done) if cut else None
    done += len(chunk)
    progress(what, done)
    yield chunk, split_numbers
  if not done:
    raise ValueError(f'{source.name}: holds no rows')


def _fit_encoder(schema, reading, source, cut, progress):
  """Pass 1, over the training rows."""
  fit = encoder_lib.EncoderFit(schema)
  if fit.needed:
    progress.start()
    pieces = cut_chunks(
      source, schema.sources, cut, progress, 'counting values'
    )
    for chunk, split_numbers in pieces:
      fit.add(
        chunk if split_numbers is None else chunk.take(split_numbers == 0)
      )
  return fit.encoder(reading)


def measure_cut(schema, source, split_rule, progress, log):
  """What cuts the training rows; reads them where it must know them all."""
  cut = split_rules.TrainingCut(split_rule, schema.labels, schema.annotations)
  progress.start()

  def read_chunks(columns):
    done = 0
    for chunk in source.chunks(columns):
      yield chunk
      done += len(chunk)
      progress('counting rows', done)

  cut.measure(read_chunks, source.name, log)
  return cut


def _origin_of(chunk: raw.RawChunk, at: np.ndarray) -> Callable[[int], str]:
  """Names the origin of row number `at[i]`."""
  return lambda i: chunk.where(int(at[i]))


def _encode_sources(
  work, encoder, sources, split_rule, cut, block_rows, progress, log
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
  histories = history_checks.HistoryChecks(encoder, sources['train'].repeats)
  groups, first = {}, 0
  equal_rows = equal_rows_lib.EqualRows(names)
  cut.negatives = cut.kept = 0  # pass 1 has counted them too
  try:
    for name in store.SPLITS:
      if name not in sources:
        continue
      progress.start()
      for chunk, split_numbers in cut_chunks(
        sources[name],
        encoder.schema.everything,
        cut if name == 'train' else None,
        progress,
        f'writing the {name} split',
      ):
        absent = encoder.make_absent(chunk)
        rows = encoder.encode(chunk, groups, first, absent)
        first += len(chunk)
        if split_numbers is None or not split_numbers.any():
          writers[name].add(rows)
          tallies[name].add(chunk, rows, absent)
          histories.add(chunk, rows, absent)
          equal_rows.add(name, rows, chunk.where)
          continue
        for i, where in enumerate(store.SPLITS):
          at = np.flatnonzero(split_numbers == i)
          if len(at):
            own = rows.take(at)
            writers[where].add(own)
            own_absent = absent.take(at)
            tallies[where].add(chunk, own, own_absent, at)
            histories.add(chunk, own, own_absent, at)
            equal_rows.add(where, own, _origin_of(chunk, at))
  finally:
    for writer in writers.values():
      writer.close()
  for name, writer in writers.items():
    if not writer.rows:
      raise ValueError(
        f'the {name} split is empty: data.split leaves it no row of '
        f'{sources["train"].name}; raise its fraction, or set it to 0'
      )
  equal_rows.log_shares(log)
  histories.warn()
  if cut.negatives:
    log(f'kept {cut.kept:,} of the {cut.negatives:,} negatives of training')
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
  split_rule: split_rules.SplitRule | None = None,
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
    progress = Progress(log)
    cut = measure_cut(schema, sources['train'], split_rule, progress, log)
    encoder = _fit_encoder(
      schema, reading or {}, sources['train'], cut, progress
    )
    splits, groups, counts = _encode_sources(
      work, encoder, sources, split_rule, cut, block_rows, progress, log
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
