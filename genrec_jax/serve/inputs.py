"""The histories to predict for: any log, in the vocabulary of a model."""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax.data import (
  convert,
  csv_layout,
  datasets,
  readers,
  remote_files,
  text,
  text_arrays,
)
from genrec_jax.data.histories import Histories
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.data.quoting import LONGEST, escape
from genrec_jax.data.vocab import Vocab

LOG = logging.getLogger('genrec_jax')
EXAMPLES = 5  # of what is left out, for the log

# Official layouts: how to read them, and the file's name in their directory.
LAYOUTS = {
  'ml100k': (readers.movielens_tab, 'u.data'),
  'ml1m': (readers.movielens_dat, 'ratings.dat'),
  'ml20m': (readers.movielens_csv, 'ratings.csv'),
  'ml_latest': (readers.movielens_csv, 'ratings.csv'),
  'sasrec_text': (readers.sasrec_text, 'sasrec.txt'),
}
SUFFIXES = {
  'csv': ('.csv', '.csv.gz', '.tsv', '.tsv.gz'),
  'parquet': ('.parquet',),
}


@dataclasses.dataclass
class SkippedEvents:
  """What of a log is not predicted from.

  Attributes:
    events: read altogether.
    kept: of these.
    low_rated: events below data.min_rating.
    unknown: events of items the model does not know.
    unknown_items: a few of those, as 'item 7 (log.csv, line 3)'.
    users: how many users have no event left.
    some_users: ids of a few of those.
  """

  events: int = 0
  kept: int = 0
  low_rated: int = 0
  unknown: int = 0
  unknown_items: dict[str, str] = dataclasses.field(default_factory=dict)
  users: int = 0
  some_users: list = dataclasses.field(default_factory=list)
  _touched: list = dataclasses.field(default_factory=list)

  def count_skipped(
    self, chunks: Iterator[readers.Events], vocab: Vocab, min_rating
  ) -> Iterator[readers.Events]:
    """The same chunks; what the conversion will leave out is counted."""
    for chunk in chunks:
      liked = np.ones(len(chunk), bool)
      if min_rating is not None:
        liked = chunk.rating >= min_rating
      known = vocab.encode(chunk.item) > 0
      unknown, keep = liked & ~known, liked & known
      self.events += len(chunk)
      self.kept += int(keep.sum())
      self.low_rated += int(np.sum(~liked))
      self.unknown += int(unknown.sum())
      for i in np.flatnonzero(unknown):
        if len(self.unknown_items) == EXAMPLES:
          break
        item = str(chunk.item[i])[:LONGEST]
        self.unknown_items.setdefault(
          item, f'{escape(item)} ({chunk.where(i)})'
        )
      if not keep.all():
        self._note_users(np.unique(chunk.user[~keep]))
      yield chunk

  def settle_users(self, users: Vocab) -> None:
    """Counts the users that lost every event; `users` are the others."""
    gone = _unite_ids(self._touched)
    gone = gone[users.encode(gone) == 0]
    self._touched = []
    self.users = len(gone)
    self.some_users = gone[:EXAMPLES].tolist()

  def _note_users(self, users: np.ndarray) -> None:
    self._touched.append(users)
    # Merged when they have doubled, so that memory holds each id about twice.
    if sum(map(len, self._touched[1:])) > max(1 << 20, len(self._touched[0])):
      self._touched = [_unite_ids(self._touched)]

  def log_skipped(self, path: pathlib.Path) -> None:
    """Says in the log what was left out."""
    if self.low_rated:
      LOG.info(
        '%s: %s events are rated below data.min_rating and are skipped',
        path,
        f'{self.low_rated:,}',
      )
    if self.unknown:
      LOG.warning(
        '%s: %s of %s events are of items the model does not know and are '
        'skipped, such as %s',
        path,
        f'{self.unknown:,}',
        f'{self.events:,}',
        ', '.join(self.unknown_items.values()),
      )
    if self.users:
      LOG.warning(
        '%s: %s users have no known item and are left out, such as %s',
        path,
        f'{self.users:,}',
        ', '.join(escape(str(user)[:LONGEST]) for user in self.some_users),
      )


def read_input(
  config, items: ItemCatalogue, scratch: pathlib.Path
) -> tuple[Histories, SkippedEvents]:
  """Reads `config.predict.input` in constant memory.

  Args:
    config: of a trained run, with its `predict` section.
    items: the items of that run.
    scratch: directory that does not exist; the histories are mapped from it.

  Returns:
    Every user with a known item, and what was left out.
  """
  path = remote_files.locate(config.predict.input)
  if not path.exists():
    raise FileNotFoundError(f'{path}: no such file (predict.input)')
  format_ = config.predict.format or _format_of(path)
  if format_ in LAYOUTS:
    layout, name = LAYOUTS[format_]
    path = path / name if path.is_dir() else path
    timed = rated = format_ != 'sasrec_text'
    chunks = layout(path)
  elif format_ in SUFFIXES:
    timed, rated, chunks = _by_columns(config, format_, path)
  else:
    raise ValueError(
      f'predict.format is {format_!r}, must be one of '
      f'{", ".join([*SUFFIXES, *LAYOUTS])}'
    )
  if not timed and config.model.get('time_bias'):
    raise ValueError(
      f'{path}: the model reads times (model.time_bias) and the file has '
      'none; name its column with --config.predict.columns.time=NAME'
    )
  min_rating = config.data.min_rating if rated else None
  left_out = SkippedEvents()
  histories = convert.convert_log(
    _require_events(
      path, left_out, left_out.count_skipped(chunks, items.vocab, min_rating)
    ),
    scratch,
    item_vocab=items.vocab,
    unknown='skip',
    min_rating=min_rating,
    log=LOG.info,
  )
  datasets.check_times(histories, path)
  left_out.settle_users(histories.users)
  return histories, left_out


def _format_of(path: pathlib.Path) -> str:
  for format_, suffixes in SUFFIXES.items():
    if path.name.lower().endswith(suffixes):
      return format_
  raise ValueError(
    f'{path}: say how to read it with --config.predict.format=, one of '
    f'{", ".join([*SUFFIXES, *LAYOUTS])}'
  )


def _require_events(
  path, left_out: SkippedEvents, chunks
) -> Iterator[readers.Events]:
  """The same chunks, and an error when they hold no event."""
  yield from chunks
  if not left_out.kept:
    some = ', '.join(left_out.unknown_items.values())
    raise ValueError(
      f'{path}: of {left_out.events:,} events none is of an item the model '
      f'knows ({left_out.low_rated:,} are rated below data.min_rating)'
      + (f'; unknown are {some}' if some else '')
    )


def _by_columns(config, format_: str, path: pathlib.Path):
  """Whether a CSV or Parquet log has times and ratings, and its chunks."""
  paths = [path]
  if path.is_dir():
    suffixes = SUFFIXES[format_]
    paths = sorted(
      p for p in path.iterdir() if p.name.lower().endswith(suffixes)
    )
    if not paths:
      raise FileNotFoundError(f'{path}: the directory has no {format_} files')
  p, data = config.predict, config.data
  options = {
    'ids': p.id_type or data.id_type,
    'time_unit': p.time_unit or data.time_unit,
  }
  columns = {role: p.columns[role] or data.columns[role] for role in p.columns}
  read: Callable[..., Iterator[readers.Events]] = readers.read_parquet
  if format_ == 'csv':
    layout = {key: p[key] or data[key] for key in ('delimiter', 'header')}
    read = functools.partial(
      readers.read_csv, **layout, decimal=data.get('decimal', '.')
    )
    file = text.require_file(paths[0])
    ids = [columns['user'], columns['item']]
    found = csv_layout.find_layout(file, ids, **layout)
    there = found.names
    if said := found.describe(file):
      LOG.info('%s', said)
  else:
    from genrec_jax.data import parquet  # needs pyarrow

    there = parquet.read_schema(text.require_file(paths[0])).names
  # What `data` names belongs to the training log; this one may lack it.
  for role in ('time', 'rating'):
    is_required = role == 'time' or data.min_rating is not None
    if not is_required:
      columns[role] = ''
    elif columns[role] and not p.columns[role] and columns[role] not in there:
      LOG.warning(
        '%s: no column %r; %s',
        paths[0],
        columns[role],
        'events are taken in the order of the file'
        if role == 'time'
        else 'every event counts as liked',
      )
      columns[role] = ''
  chunks = read(paths, columns, **options)
  return bool(columns['time']), bool(columns['rating']), chunks


def _unite_ids(arrays: list[np.ndarray]) -> np.ndarray:
  if not arrays:
    return np.zeros(0, np.int64)
  return np.unique(text_arrays.concatenate(arrays))
