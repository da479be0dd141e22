"""MovieLens as labelled examples: does a user like this film?

Each rating is an example. Its label is 1 where the rating is `least` or more.
The splits are cut by user: of the n ratings of a user, in the order of time
(movielens_files.py says which of one second come first), the last
floor(n * test_fraction) test, the floor(n * valid_fraction) before them
validate, and the others train. A user with so few ratings that one of these
numbers is zero is in training alone. So everybody who validates or tests has
trained, and there is no global cut: a training row of one user may be later
than a test row of another.

The rows of a split are in the order of time.
"""

import dataclasses
import fractions
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from genrec_jax.data.ranges import expand_ranges
from genrec_jax.data.ranking import movielens_files, popularity, prepare, raw

NAMES = ('label', 'user', 'item', 'genres', 'time')
FEATURES = {
  'user': {'kind': 'categorical'},
  'item': {'kind': 'categorical'},
  'genres': {'kind': 'multi_hot'},
}
_SECTION = 'data.movielens_ratings'
_CHUNK = 1 << 12  # rows that a reader yields at once
_MOST = 5  # the highest rating of every edition


@dataclasses.dataclass(frozen=True)
class MovielensRatingOptions:
  """How examples are made of ratings.

  Attributes:
    least: the lowest rating whose label is 1.
    valid_fraction: of the ratings of each user, which validates.
    test_fraction: likewise, which tests.
    seed: of the draws that say which ratings of one second came first, where
      the files do not tell.
  """

  least: float = 4.0
  valid_fraction: float = 0.1
  test_fraction: float = 0.1
  seed: int = 0

  def __post_init__(self):
    # NaN is in no range.
    if not 0 < self.least <= _MOST:
      raise ValueError(
        f'{_SECTION}.least must be above 0 and at most {_MOST}, not '
        f'{self.least}'
      )
    held_out = self.valid_fraction, self.test_fraction
    if not (min(held_out) >= 0 and sum(held_out) < 1):
      raise ValueError(
        f'{_SECTION}: valid_fraction {held_out[0]} and test_fraction '
        f'{held_out[1]} must not be negative and leave something to train on'
      )
    if not self.seed >= 0:
      raise ValueError(f'{_SECTION}.seed must be at least 0, not {self.seed}')

  @property
  def splits(self) -> list[str]:
    """The splits that have rows, by their fractions."""
    held_out = {'valid': self.valid_fraction, 'test': self.test_fraction}
    return ['train', *(name for name, share in held_out.items() if share)]

  @property
  def fewest(self) -> int:
    """Ratings that a user needs to be in each of these splits."""
    held_out = filter(None, (self.valid_fraction, self.test_fraction))
    return max((-(-1 // _read_exactly(share)) for share in held_out), default=1)


class MovielensRatings:
  """The examples of an edition of MovieLens, which lies in memory.

  Attributes:
    files: ratings and films.
    options: of the examples.
    alone: how many users have so few ratings that all of them train.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    options: MovielensRatingOptions | None = None,
  ):
    """Reads the files.

    Args:
      path: the unpacked directory, or the file of the ratings.
      options: of the examples.

    Raises:
      ValueError: the files cannot be read, or a split would have no rows; the
        message says where and what to change.
    """
    self.options = options or MovielensRatingOptions()
    ratings = movielens_files.read_ratings(path, self.options.seed)
    self.files, self._ratings = ratings.files, ratings
    films, self._film = np.unique(ratings.item, return_inverse=True)
    genres = ratings.list_genres(films)
    lengths = np.array([len(own) for own in genres], np.int64)
    self._genre_ends = np.cumsum(lengths)
    self._genre_counts = lengths
    self._genres = np.array([g for own in genres for g in own], object)
    counts = np.diff(ratings.offsets)
    self.alone = int((counts < self.options.fewest).sum())
    if self.alone == len(counts) and len(self.options.splits) > 1:
      raise ValueError(self._explain_no_rows(int(counts.max())))
    self._places = self._cut(counts)

  def _explain_no_rows(self, most: int) -> str:
    options = self.options
    return (
      f'{self.files[0]}: nothing to validate or test on. With '
      f'{_SECTION}.valid_fraction={options.valid_fraction} and '
      f'{_SECTION}.test_fraction={options.test_fraction} that takes a user '
      f'with {options.fewest:,} ratings or more, and none of the '
      f'{self.alone:,} users has more than {most:,}; raise a fraction that is '
      'too small, or set it to 0'
    )

  def _cut(self, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Split -> places of its ratings, by time; `counts [U]` are of users."""
    ratings = self._ratings
    valid, test = (
      _take_share(counts, share)
      for share in (self.options.valid_fraction, self.options.test_fraction)
    )
    held_out = counts >= self.options.fewest
    first_test = counts - np.where(held_out, test, 0)
    first_valid = first_test - np.where(held_out, valid, 0)
    owner = ratings.owner
    rank = np.arange(len(owner)) - ratings.offsets[owner]
    split = (rank >= first_valid[owner]) * 1 + (rank >= first_test[owner])
    # Stable: ratings of one user and one second keep their order.
    by_time = np.argsort(ratings.time, kind='stable')
    return {
      name: by_time[split[by_time] == number]
      for number, name in enumerate(('train', 'valid', 'test'))
      if name in self.options.splits
    }

  def read_chunks(
    self, column_names: Sequence[str], split: str
  ) -> Iterator[raw.RawChunk]:
    """The examples of a split as a reader yields them, in the order of time.

    Args:
      column_names: those that are wanted.
      split: 'train', 'valid' or 'test'.
    """
    places = self._places[split]
    for first in range(0, len(places), _CHUNK):
      at = places[first : first + _CHUNK]
      columns = {name: self._make_column(name, at) for name in column_names}
      yield raw.RawChunk(
        columns, len(at), lambda i, at=at: self._name_row(int(at[i]))
      )

  def _name_row(self, place: int) -> str:
    ratings = self._ratings
    user = ratings.users[ratings.owner[place]]
    return f'{self.files[0]}, user {user}, film {ratings.item[place]}'

  def _make_column(self, name: str, at: np.ndarray) -> raw.Column:
    """A column of the ratings at some places."""
    ratings = self._ratings
    if name == 'genres':
      film = self._film[at]
      lengths = self._genre_counts[film]
      taken = expand_ranges(self._genre_ends[film] - lengths, lengths)
      return raw.ListColumn(self._genres[taken].tolist(), lengths)
    if name == 'user':
      return raw.NumberColumn(ratings.users[ratings.owner[at]])
    if name == 'label':
      liked = ratings.rating[at] >= self.options.least
      return raw.NumberColumn(liked.astype(np.int64))
    return raw.NumberColumn(
      {'item': ratings.item, 'time': ratings.time}[name][at]
    )

  def count_unseen(self, split: str) -> tuple[int, int]:
    """Ratings of a split whose film has no row in training, and such films.

    Args:
      split: 'valid' or 'test'.
    """
    trained = np.zeros(int(self._film.max()) + 1, bool)
    trained[self._film[self._places['train']]] = True
    film = self._film[self._places[split]]
    new = film[~trained[film]]
    return len(new), len(np.unique(new))

  def describe(self) -> list[str]:
    """Lines for a log: what splits hold, and what training lacks of them."""
    lines = popularity.describe_splits(
      self.options.splits, lambda split, names: self.read_chunks(names, split)
    )
    for number, split in enumerate(self.options.splits):
      if split != 'train':
        rows, films = self.count_unseen(split)
        lines[number] += (
          f'; {rows:,} examples are of {films:,} films that training lacks'
        )
    if len(lines) > 1:
      lines.append(
        f'{self.alone:,} of {len(self._ratings.users):,} users have fewer than '
        f'{self.options.fewest:,} ratings and are in the training split alone'
      )
    return lines


def _read_exactly(share: float) -> fractions.Fraction:
  """The number as it is written: 0.1 is a tenth, and not the nearest float."""
  return fractions.Fraction(str(share))


def _take_share(counts: np.ndarray, share: float) -> np.ndarray:
  """floor(count * share), without an error of floats."""
  exact = _read_exactly(share)
  distinct, place = np.unique(counts, return_inverse=True)
  return np.array([int(n * exact) for n in distinct.tolist()], np.int64)[place]


def make_sources(
  path: pathlib.Path,
  options: MovielensRatingOptions,
  log: Callable[[str], None],
) -> dict[str, prepare.RowSource]:
  """Split -> its rows, for which nothing is read before they are asked for.

  Args:
    path: of the edition.
    options: of the examples.
    log: called with what the splits hold.
  """

  @functools.cache  # data that are prepared already need no ratings
  def open_ratings():
    ratings = MovielensRatings(path, options)
    for line in ratings.describe():
      log(f'movielens_ratings, {line}')
    return ratings

  def make_source(split):
    return prepare.RowSource(
      lambda names: open_ratings().read_chunks(names, split),
      files,
      f'{path}, {split} split',
    )

  files = movielens_files.find_files(path)
  return {split: make_source(split) for split in options.splits}
