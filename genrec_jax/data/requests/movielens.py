"""MovieLens as requests: which of the next films will a user like?

The reference of generative recommenders takes the last 10 ratings of a user as
candidates and all earlier ones as history, and holds out users: the first of
them train, the others test, on the same ratings. Here users are in all splits
and time divides them. Of a user with n ratings, in order of time,

- test is the request for the last 10, whose history is the n - 10 before;
- valid is the request for the 10 before these, with a history of n - 20;
- train is requests for 10 ratings each, one behind the other, from rating
  n - 20 backwards, each with all ratings before it as history; the oldest of
  them may be for fewer. The first rating is history alone.

So every model, also one that counts or pools, learns of exactly the ratings
before the last 20 of each user, and is tested on what nobody has seen. A user
with too few ratings is missing in train and valid, or everywhere.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax.config.request_set_rules import check_options
from genrec_jax.config.request_sets import MovielensOptions
from genrec_jax.data import (
  fields,
  readers,
  remote_files,
  source_files,
  text,
)
from genrec_jax.data.quoting import quote
from genrec_jax.data.requests import cutting, rows, user_files
from genrec_jax.data.requests.ordering import sort_events
from genrec_jax.data.requests.requests import EventStore, RequestDataset
from genrec_jax.features import LabelSpec, RequestSpec

_SITE = 'https://grouplens.org/datasets/movielens/'
ITEM, LIKED, RATING = 'movie_id', 'liked', 'rating'
ACTIONS = tuple((f'stars_{n}', 1 << (n - 1)) for n in range(1, 6))
# The age groups of MovieLens 1M, by the least age of each.
_AGES = (1, 18, 25, 35, 45, 50, 56)


@dataclasses.dataclass(frozen=True)
class _Layout:
  """The files of an edition.

  Attributes:
    ratings: file of the ratings.
    read: what reads it.
    users: file of the users, or '' without one.
    delimiter: between its fields.
    columns: of it.
  """

  ratings: str
  read: Callable[..., Iterator[readers.Events]]
  users: str = ''
  delimiter: str = ''
  columns: tuple[str, ...] = ()


_LAYOUTS = {
  'ml-1m': _Layout(
    'ratings.dat',
    readers.movielens_dat,
    'users.dat',
    '::',
    ('user_id', 'sex', 'age_group', 'occupation', 'zip_code'),
  ),
  'ml-100k': _Layout(
    'u.data',
    readers.movielens_tab,
    'u.user',
    '|',
    ('user_id', 'age', 'sex', 'occupation', 'zip_code'),
  ),
  'ml-latest': _Layout('ratings.csv', readers.movielens_csv),
}
_CONTEXT = ('sex', 'age_group', 'occupation', 'zip_code')


def load(
  path: str | pathlib.Path, options: MovielensOptions | None = None
) -> RequestDataset:
  """Reads MovieLens 1M, 100K, or an edition with ratings.csv (20M to latest).

  Args:
    path: the unpacked directory, or the file of the ratings.
    options: see there.

  Raises:
    ValueError: the files cannot be read, or give no request; the message says
      where and what to change.
  """
  options = options or MovielensOptions()
  check_options('movielens', options)
  name, layout, ratings = _find_layout(remote_files.locate(path))
  files = [ratings]
  if options.user_features and layout.users:
    files.append(_require_users(ratings, layout))
  before = source_files.stat_files(files)
  user, time, columns = _read_ratings(ratings, layout)
  users, offsets, columns = sort_events(
    user, time, columns | {'time': time}, options.duplicates, ITEM
  )
  cuts, in_training = _cut_splits(offsets, options)
  for split, cut in cuts.items():
    cutting.require_requests(
      split,
      cut,
      ratings,
      f'lower min_history ({options.min_history}) or candidates '
      f'({options.candidates})',
    )
  films = rows.fit_vocab(columns[ITEM][in_training], options.min_count)
  is_known = np.zeros(len(users), bool)
  is_known[cuts['train'].user] = True
  values = {'user_id': users}
  if len(files) > 1:
    values |= _read_users(files[1], ratings, layout, users)
  source_files.check_unchanged(before)
  vocabs = {key: rows.fit_vocab(x[is_known]) for key, x in values.items()}
  stars = columns.pop('rating')
  events = EventStore(
    offsets,
    {ITEM: rows.encode_rows(films, columns[ITEM])},
    _find_actions(stars),
    columns['time'],
  )
  labels = {LIKED: (stars >= options.threshold)}
  kinds = [LabelSpec(LIKED)]
  if options.rating_label:
    labels[RATING] = stars
    kinds.append(LabelSpec(RATING, 'regression'))
  return RequestDataset(
    name=name,
    spec=RequestSpec(
      items=(rows.describe_feature(ITEM, films),),
      context=tuple(rows.describe_feature(k, v) for k, v in vocabs.items()),
      actions=ACTIONS,
      labels=tuple(kinds),
    ),
    events=events,
    context={key: rows.encode_rows(vocabs[key], values[key]) for key in values},
    splits={
      split: cutting.make_requests(
        cut,
        events,
        {key: x[cut.positions] for key, x in labels.items()},
        asked_at=options.asked_at,
      )
      for split, cut in cuts.items()
    },
    vocabs={ITEM: films} | vocabs,
    user_ids=users,
  )


def _find_layout(path) -> tuple[str, _Layout, pathlib.Path]:
  """Name, layout and file of the ratings of the edition at `path`."""
  folder = path.parent if path.is_file() else path
  there = {
    name: layout
    for name, layout in _LAYOUTS.items()
    if (folder / layout.ratings).is_file()
    and (path == folder or path.name == layout.ratings)
  }
  files = ', '.join(layout.ratings for layout in _LAYOUTS.values())
  if not there:
    raise FileNotFoundError(
      f'{path}: none of the files {files}; give the unpacked directory of a '
      f'MovieLens edition, from {_SITE}'
    )
  if len(there) > 1:
    raise ValueError(
      f'{path}: several of the files {files}; give the path of the one that is '
      'meant'
    )
  name, layout = there.popitem()
  return name, layout, folder / layout.ratings


def _read_ratings(path, layout: _Layout):
  """`[N]` users, `[N]` times, and the columns of the films and the stars."""
  parts = {'user': [], 'time': [], 'item': [], 'rating': []}
  for chunk in layout.read(path):
    stars = chunk.rating
    good = (stars >= 0.5) & (stars <= 5) & (2 * stars == np.floor(2 * stars))
    if not good.all():
      bad = int(np.argmin(good))
      raise ValueError(
        f'{chunk.where(bad)}: the rating {stars[bad]:g} of user '
        f'{chunk.user[bad]} is not 0.5, 1, 1.5 up to 5 stars; mend or remove '
        'the line'
      )
    for key, values in parts.items():
      values.append(getattr(chunk, key))
  user, time, item, rating = map(np.concatenate, parts.values())
  return user, time, {ITEM: item, 'rating': rating}


def _find_actions(stars: np.ndarray) -> np.ndarray:
  """The bit of the whole stars; half a star counts as one."""
  return 1 << (np.maximum(stars.astype(np.int32), 1) - 1)


def _cut_splits(
  offsets: np.ndarray, options: MovielensOptions
) -> tuple[dict[str, cutting.Cut], np.ndarray]:
  """The requests of each split, and which events are of the training split."""
  held_out = options.candidates
  ends = np.repeat(offsets[1:], np.diff(offsets))
  starts = np.repeat(offsets[:-1], np.diff(offsets))
  place = np.arange(offsets[-1])
  from_end = ends - place  # 1 for the last event of a user
  in_training = from_end > 2 * held_out
  masks = {
    # Else the oldest request would have no history.
    'train': in_training & (place - starts >= options.min_history),
    'valid': (from_end > held_out) & (from_end <= 2 * held_out),
    'test': from_end <= held_out,
  }
  cuts = {
    split: cutting.cut_requests(
      offsets,
      np.flatnonzero(mask),
      most=options.candidates,
      min_history=options.min_history,
      from_end=True,
    )
    for split, mask in masks.items()
  }
  if options.train_requests:
    cut = cuts['train']
    last = np.searchsorted(cut.user, cut.user, side='right')
    is_late = last - np.arange(len(cut)) <= options.train_requests
    cuts['train'] = cut.select(np.flatnonzero(is_late))
  return cuts, in_training


def _require_users(ratings, layout: _Layout):
  """The file of the users."""
  path = ratings.parent / layout.users
  if not path.is_file():
    raise FileNotFoundError(
      f'{path}: no such file; it lies beside {layout.ratings} in the archive, '
      'or set user_features=False to go without it'
    )
  return path


def _read_users(
  path, ratings, layout: _Layout, users: np.ndarray
) -> dict[str, np.ndarray]:
  """Column -> `[U]` texts of the users who rate, '' for what is missing."""
  positions = {name: i for i, name in enumerate(layout.columns)}
  blocks = text.read_blocks(
    path,
    layout.delimiter,
    encoding='latin-1',
    rows=readers.CHUNK_ROWS,
    width=len(layout.columns),
  )
  check = functools.partial(_check_ages, path, positions)
  table = user_files.read_users(path, blocks, positions, 'user_id', check)
  values = table.select(
    users,
    lambda user: _find_line(ratings, layout, user),
    'add the line, or set user_features=False to go without that file',
  )
  if 'age' in values:
    least = np.array(_AGES)
    ages = values['age'].astype(np.int64)
    group = np.searchsorted(least, ages, side='right') - 1
    values['age_group'] = least[group].astype(str)
  return {name: values[name] for name in _CONTEXT}


def _check_ages(path, positions: dict[str, int], block) -> None:
  if 'age' not in positions:
    return
  words = block.columns[positions['age']]
  ages, good = fields.whole_numbers(words)
  good &= ages >= 1
  if not good.all():
    bad = int(np.argmin(good))
    user = block.columns[positions['user_id']][bad]
    raise ValueError(
      f'{path}, line {block.lines[bad]}: {quote(words[bad])} is not the age of '
      f'user {user} in whole years; mend the line'
    )


def _find_line(ratings, layout: _Layout, user: int) -> str:
  """Where the first rating of a user stands."""
  for chunk in layout.read(ratings):
    found = np.flatnonzero(chunk.user == user)
    if len(found):
      return chunk.where(int(found[0]))
  return str(ratings)
