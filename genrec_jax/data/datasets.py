"""Named data sets: official layouts, your own files, generated logs."""

import dataclasses
import datetime
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable

import numpy as np

from genrec_jax.config.file_formats import SUFFIXES
from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import convert as convert_lib
from genrec_jax.data import (
  csv_layout,
  readers,
  remote_files,
  source_files,
  synthetic,
  text_arrays,
)
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import vocab as vocab_lib

YEAR_9999 = 253_402_300_799  # its last second


@dataclasses.dataclass(frozen=True)
class RetrievalDataset:
  """A data set, ready to be split.

  Attributes:
    name: as in the config.
    histories: the events.
    corpus: `[C]` int32 sorted item indices that may be recommended.
    titles: item index -> title for reports, or None.
  """

  name: str
  histories: histories_lib.Histories
  corpus: np.ndarray
  titles: dict[int, str] | None = None

  def summary(self) -> str:
    """One line for the log of a run."""
    h = self.histories
    lengths = np.diff(h.offsets)
    line = (
      f'{self.name}: {len(h):,} users, {len(h.items):,} events, '
      f'{len(self.corpus):,} items to recommend, '
      f'{int(np.median(lengths)):,} events a user (median; '
      f'{lengths.min():,} to {lengths.max():,})'
    )
    if h.has_times:
      first, last = (
        datetime.datetime.fromtimestamp(int(t), datetime.UTC).date()
        for t in (h.times.min(), h.times.max())
      )
      line += f', {first} to {last}'
    if h.skipped_unknown:
      line += f'; {h.skipped_unknown:,} events of unknown items were skipped'
    return line


def _find_file(cfg, name: str, source: str) -> pathlib.Path:
  """The file `name` of the directory `cfg.path`."""
  if not cfg.get('path', ''):
    raise ValueError(
      f'data.path is not set: download {source} and set config.data.path to '
      'its directory'
    )
  path = remote_files.locate(cfg.path)
  path = path if path.is_file() else path / name
  if not path.exists():
    raise FileNotFoundError(
      f'{path}: no such file; download {source} and set config.data.path to '
      'its directory'
    )
  return path


# Columns of events, and of those that follow, in a batch.
_RESERVED = ('user', 'item', 'time', 'next_item', 'next_time')


def build_extras(cfg) -> tuple[extras_lib.ExtraColumn, ...]:
  """The extra columns of `config.data`, beside users, items and times."""
  return extras_lib.build_extras(cfg.get('extras', None), reserved=_RESERVED)


def _keep_duplicates(cfg) -> None:
  """Refuses to drop events of data that are not converted."""
  if cfg.get('duplicates', 'keep') != 'keep':
    raise ValueError(
      f'data.duplicates is {cfg.duplicates!r}, and data.name={cfg.name} is not '
      'converted from files with times; remove the key'
    )


def _no_extras(cfg) -> None:
  """Refuses extra columns of data that have none."""
  if extras := build_extras(cfg):
    raise ValueError(
      f'{extras_lib.KEY}.{extras[0].name}: data.name={cfg.name} generates its '
      f'data, so there are no extra columns; remove {extras_lib.KEY}'
    )


def _convert_once(
  cfg, cache_dir, log, paths, read, recipe, vocab=None, look_closer=dict
):
  """Converted histories of `paths`, made when they are not in the cache.

  Args:
    cfg: `config.data`.
    cache_dir: where converted columns are kept.
    log: called with progress messages.
    paths: the files.
    read: what reads them.
    recipe: what else names the converted columns.
    vocab: of the items; None takes that of `cfg`, if there is one.
    look_closer: called where the cache lacks them; what belongs to the recipe
      too.
  """
  extras = build_extras(cfg)
  vocab = _given_vocab(cfg) if vocab is None else vocab
  filters = {
    'min_rating': cfg.get('min_rating', None),
    'min_item_events': cfg.get('min_item_events', 0),
    'min_user_events': cfg.get('min_user_events', 0),
    'unknown': cfg.get('unknown_items', 'error'),
  }
  # Named only where it is not the default: caches made before have no name of
  # it.
  if cfg.get('duplicates', 'keep') != 'keep':
    filters['duplicates'] = cfg.duplicates
  stats = source_files.stat_files(paths)
  sources = [[str(p.resolve()), *stats[p]] for p in paths]

  def name_cache(beside):
    known = vocab.fingerprint() if vocab is not None else ''
    text = json.dumps([sources, recipe | filters | beside, known]).encode()
    fingerprint = hashlib.sha256(text).hexdigest()[:16]
    return fingerprint, pathlib.Path(cache_dir) / f'{cfg.name}-{fingerprint}'

  vocabs = extras_lib.load_vocabularies(extras)
  extra_options = [
    # A vocabulary is what it holds, wherever it lies.
    dataclasses.asdict(e)
    | {'vocabulary': e.name in vocabs and vocabs[e.name].fingerprint()}
    for e in extras
  ]
  beside = {'extras': extra_options} if extras else {}
  fingerprint, out = name_cache(beside)
  if not out.exists():
    recipe = recipe | look_closer()
    fingerprint, out = name_cache(beside)
  without = name_cache({})[1]
  if without.exists() and not out.exists():
    log(
      f'{without} was made without the extra columns '
      f'{", ".join(extra.name for extra in extras)}; converting the files '
      f'anew, into {out}'
    )
  return convert_lib.convert_log(
    source_files.watch_files(stats, read(extras=extras)),
    out,
    item_vocab=vocab,
    **filters,
    extras=extras,
    extra_vocabs=vocabs,
    fingerprint=fingerprint,
    log=log,
  )


def _all_items(name, histories, titles=None) -> RetrievalDataset:
  """The corpus is the whole vocabulary."""
  corpus = np.arange(1, histories.vocab.rows, dtype=np.int32)
  return RetrievalDataset(name, histories, corpus, titles)


def _given_vocab(cfg) -> vocab_lib.Vocab | None:
  path = cfg.get('item_vocab', '')
  return vocab_lib.Vocab.load(path) if path else None


_SITE = 'https://files.grouplens.org/datasets/movielens/'
# data.name -> the archive, the ratings in it, the catalogue and the reader
_MOVIELENS = {
  'ml100k': ('ml-100k', 'u.data', 'u.item', readers.movielens_tab),
  'ml1m': ('ml-1m', 'ratings.dat', 'movies.dat', readers.movielens_dat),
  'ml20m': ('ml-20m', 'ratings.csv', 'movies.csv', readers.movielens_csv),
  'ml_latest': (
    'ml-latest-small', 'ratings.csv', 'movies.csv', readers.movielens_csv
  ),
}  # fmt: skip


def _load_movielens(cfg, cache_dir, log) -> RetrievalDataset:
  """The HSTU protocol: every item of the catalogue, rated or not."""
  archive, ratings, catalogue, read = _MOVIELENS[cfg.name]
  ratings = _find_file(cfg, ratings, f'{_SITE}{archive}.zip')
  ids, names = readers.read_catalogue(ratings.parent / catalogue)
  vocab = _given_vocab(cfg) or vocab_lib.Vocab(ids)
  options = {'read': cfg.name}
  read = functools.partial(read, ratings)
  histories = _convert_once(
    cfg, cache_dir, log, [ratings], read, options, vocab
  )
  index = vocab.encode(ids).tolist()
  titles = {i: name for i, name in zip(index, names, strict=True) if i}
  return _all_items(cfg.name, histories, titles)


def _sasrec_text(cfg, cache_dir, log) -> RetrievalDataset:
  path = _find_file(cfg, 'sasrec.txt', 'a "user item" text file')
  read = functools.partial(readers.sasrec_text, path)
  options = {'read': 'sasrec_text'}
  histories = _convert_once(cfg, cache_dir, log, [path], read, options)
  return _all_items(cfg.name, histories)


def _own_files(
  cfg, cache_dir, log, paths, read, recipe, look_closer=dict
) -> RetrievalDataset:
  """What files of the user's hold.

  Args:
    cfg: `config.data`.
    cache_dir: where converted columns are kept.
    log: called with progress messages.
    paths: the files.
    read: what reads them.
    recipe: what else names the converted columns.
    look_closer: as of `_convert_once`.
  """
  options = {
    'columns': dict(cfg.columns),
    'ids': cfg.get('id_type', 'auto'),
    'time_unit': cfg.get('time_unit', 's'),
  }
  read = functools.partial(read, paths, **options)
  recipe = options | recipe
  histories = _convert_once(
    cfg, cache_dir, log, paths, read, recipe, look_closer=look_closer
  )
  return _all_items(cfg.name, histories)


def _load_csv(cfg, cache_dir, log) -> RetrievalDataset:
  paths = source_files.list_files(cfg.get('path', ''), SUFFIXES['csv'])
  options = {key: cfg.get(key, x) for key, x in _CSV_OPTIONS.items()}
  wanted = [*filter(None, dict(cfg.columns).values())]
  wanted += [extra.source for extra in build_extras(cfg)]
  # The first file alone, for a store is asked for each of them at each start.
  first = csv_layout.find_layout(paths[0], wanted, **options)
  if said := first.describe(paths[0]):
    log(said)
  # Of earlier versions, too, which were told the delimiter and knew no header.
  recipe = {'delimiter': first.delimiter}
  recipe |= {} if first.has_header else {'header': 'no'}
  decimal = cfg.get('decimal', '.')
  recipe |= {} if decimal == '.' else {'decimal': decimal}
  layouts = []

  def look_at_all():
    layouts[:] = csv_layout.find_layouts(paths, wanted, **options)
    marks = [layout.delimiter for layout in layouts]
    return {'delimiters': marks} if len({*marks}) > 1 else {}

  read = functools.partial(
    readers.read_csv, **options, decimal=decimal, layouts=layouts
  )
  return _own_files(cfg, cache_dir, log, paths, read, recipe, look_at_all)


_CSV_OPTIONS = {'delimiter': '', 'header': 'auto'}


def _load_parquet(cfg, cache_dir, log) -> RetrievalDataset:
  paths = source_files.list_files(cfg.get('path', ''), SUFFIXES['parquet'])
  return _own_files(cfg, cache_dir, log, paths, readers.read_parquet, {})


def _load_synthetic(cfg, cache_dir, log) -> RetrievalDataset:
  _no_extras(cfg)
  _keep_duplicates(cfg)
  options = dict(cfg.synthetic)
  histories = synthetic.generate_stream(**options)
  category = synthetic.item_categories(
    len(histories.vocab), options.get('categories', 100), options.get('seed', 0)
  )
  titles = {
    i: f'item {i} (category {c})' for i, c in enumerate(category.tolist(), 1)
  }
  return _all_items(cfg.name, histories, titles)


def _load_histories(cfg, cache_dir, log) -> RetrievalDataset:
  _keep_duplicates(cfg)
  histories = histories_lib.Histories.open(cfg.path)
  for extra in build_extras(cfg):
    if extra.name not in histories.extras:
      there = ', '.join(histories.extras) or 'none'
      raise ValueError(
        f'{cfg.path}: no extra column {extra.name!r} ({extras_lib.KEY}); there '
        f'are {there}' + hint_nearest(extra.name, histories.extras)
      )
    of_category = extra.name in histories.extra_vocabs
    dtype = histories.extras[extra.name].dtype
    if dtype != extra.dtype or of_category != (extra.kind == 'category'):
      raise ValueError(
        f'{cfg.path}: the extra column {extra.name!r} was stored as '
        f'{"category" if of_category else dtype}, not as '
        f'{extras_lib.KEY}.{extra.name}.kind={extra.kind}'
      )
  return _all_items(cfg.name, histories)


def _read_titles(path: str, vocab: vocab_lib.Vocab) -> dict[int, str]:
  """Titles of the items that a CSV with columns item and title names."""
  ids, titles = readers.read_titles(path)
  index = vocab.encode(text_arrays.make_text_array(ids)).tolist()
  return {i: title for i, title in zip(index, titles, strict=True) if i}


def check_times(histories: histories_lib.Histories, path) -> None:
  """Refuses times that no calendar has, which are in another unit."""
  if histories.has_times and len(histories.times):
    last = int(histories.times.max())
    if last > YEAR_9999:
      raise ValueError(
        f'{path}: times reach {last} seconds since 1970, beyond the year 9999; '
        'are they in another unit? Set --config.data.time_unit (ms, us or ns)'
      )


DATASETS = {
  **dict.fromkeys(_MOVIELENS, _load_movielens),
  'sasrec_text': _sasrec_text,
  'csv': _load_csv,
  'parquet': _load_parquet,
  'synthetic': _load_synthetic,
  'histories': _load_histories,
}


def load(
  cfg,
  cache_dir: str | pathlib.Path,
  log: Callable[[str], None] = print,
) -> RetrievalDataset:
  """Loads the data set that `config.data` names.

  Args:
    cfg: mapping with `name` (a key of `DATASETS`), `path` and the options that
      docs/data.md lists.
    cache_dir: where converted columns are kept.
    log: called with progress messages.

  Returns:
    The data set; its columns are mapped from `cache_dir`.
  """
  if cfg.name not in DATASETS:
    raise ValueError(
      f'data.name must be one of {", ".join(DATASETS)}, not {cfg.name!r}'
    )
  dataset = DATASETS[cfg.name](cfg, cache_dir, log)
  check_times(dataset.histories, cfg.get('path', ''))
  if cfg.get('titles', ''):
    titles = _read_titles(cfg.titles, dataset.histories.vocab)
    dataset = dataclasses.replace(dataset, titles=titles)
  return dataset
