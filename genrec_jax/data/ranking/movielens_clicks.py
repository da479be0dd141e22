"""MovieLens as clicks: is this the next film that a user rates?

A user's ratings are sorted by time, see movielens_files.py for those of one
second. Rating number p, from the second one on, gives one example: the history
is the last ratings before it, and the candidate is its film (label 1) or, with
probability 1/2, a film that the user never rated, neither before nor later
(label 0). Such a film is drawn uniformly from all films that anybody rated. The
candidate of label 1 is in its own history only where a user rated a film twice.

The category of a film is its rarest genre: the one with the fewest films.

Users are in one split each, by a draw for each of them. Everything is a
function of the files and the options.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax.data.ranking import behaviour_rows, movielens_files, raw
from genrec_jax.data.ranking.counted_draws import (
  NoItemLeftError,
  draw_uniform,
  draw_unmet_items,
  make_keys,
)

_CHUNK = 1 << 12  # rows that a reader yields at once
# Each use of draws has a sequence of its own; movielens_files.TIE is another.
_SPLIT, _WINDOW, _LABEL, _FILM = range(4)


@dataclasses.dataclass(frozen=True)
class MovielensClickOptions:
  """How examples are made of ratings.

  Attributes:
    history: the most ratings of a history.
    least: the fewest, which leaves out the first ratings of a user.
    windows: the most examples of a user, drawn from all; 0 takes all.
    valid_share: share of the users that validate.
    test_share: share of the users that test.
    seed: of all draws.
  """

  history: int = 20
  least: int = 1
  windows: int = 0
  valid_share: float = 0.1
  test_share: float = 0.1
  seed: int = 0

  def __post_init__(self):
    for name, least in (
      ('history', 1),
      ('least', 1),
      ('windows', 0),
      ('seed', 0),
    ):
      if not getattr(self, name) >= least:
        raise ValueError(
          f'data.movielens_clicks.{name} must be at least {least}, not '
          f'{getattr(self, name)}'
        )
    shares = self.valid_share, self.test_share
    if not (min(shares) >= 0 and sum(shares) < 1):
      raise ValueError(
        f'data.movielens_clicks: valid_share {shares[0]} and test_share '
        f'{shares[1]} must not be negative and leave something to train on'
      )

  @property
  def splits(self) -> list[str]:
    """The splits that have rows, by their shares."""
    shares = {'valid': self.valid_share, 'test': self.test_share}
    return ['train', *(name for name, share in shares.items() if share)]


class MovielensClicks:
  """The examples of an edition of MovieLens, which lies in memory.

  Attributes:
    files: ratings and films.
    options: of the examples.
    users: `[U]` int64 ids, ascending.
  """

  def __init__(
    self, path: str | pathlib.Path, options: MovielensClickOptions | None = None
  ):
    """Reads the files.

    Args:
      path: the unpacked directory, or the file of the ratings.
      options: of the examples.

    Raises:
      ValueError: the files cannot be read; the message says where and what to
        change.
    """
    self.options = options or MovielensClickOptions()
    options = self.options
    ratings = movielens_files.read_ratings(path, options.seed)
    self.files, self.users = ratings.files, ratings.users
    self._owner, self._offsets = ratings.owner, ratings.offsets
    self._films, film = np.unique(ratings.item, return_inverse=True)
    self._genres = _choose_genres(ratings, self._films)
    self.events = behaviour_rows.PastEvents(
      ratings.item, self._genres[film], ratings.time
    )
    self._met = make_keys(self._owner, film, len(self._films))
    draw = draw_uniform(options.seed, _SPLIT, self.users)
    first = 1 - options.valid_share - options.test_share
    bounds = [first, 1 - options.test_share]
    names = np.array(['train', 'valid', 'test'])
    self._split = names[np.searchsorted(bounds, draw, 'right')]
    self._places = self._choose_places()

  def measure_ties(self) -> float:
    """Share of ratings that have the second of the user's one before."""
    time = self.events.time
    same = (np.diff(time) == 0) & (np.diff(self._owner) == 0)
    return float(same.sum() / max(len(time), 1))

  def draw_impressions(self, split: str = '') -> behaviour_rows.Impressions:
    """The examples of a split, in the order of users and times.

    Args:
      split: 'train', 'valid' or 'test'; '' is all of them.
    """
    seed, at = self.options.seed, self._places
    if split:
      at = at[self._split[self._owner[at]] == split]
    owner = self._owner[at]
    begin = np.maximum(at - self.options.history, self._offsets[owner])
    # The draws of an example depend on its user and on its place among the
    # user's ratings, and not on the users beside it.
    user, place = self.users[owner], at - self._offsets[owner]
    label = draw_uniform(seed, _LABEL, user, place) < 0.5
    item, category = self.events.item[at], self.events.category[at]
    negative = np.flatnonzero(~label)
    try:
      film = draw_unmet_items(
        self._met,
        owner[negative],
        len(self._films),
        lambda number, some: draw_uniform(
          seed, _FILM, user[negative[some]], place[negative[some]], number
        ),
      )
    except NoItemLeftError as error:
      raise ValueError(
        f'{self.files[0]}: user {self.users[error.owner]} rated all '
        f'{len(self._films):,} films, so that there is no negative for this '
        'user; leave the user out'
      ) from None
    item[negative] = self._films[film]
    category[negative] = self._genres[film]
    return behaviour_rows.Impressions(
      user, item, category, self.events.time[at], label.astype(np.int64), begin,
      at - begin,
    )  # fmt: skip

  def read_chunks(
    self, column_names: Sequence[str], split: str = ''
  ) -> Iterator[raw.RawChunk]:
    """The examples of a split as a reader yields them.

    Args:
      column_names: those that are wanted.
      split: 'train', 'valid' or 'test'; '' is all of them.

    Raises:
      ValueError: the split has no examples; the message says what to change.
    """
    shown, name = self.draw_impressions(split), self.files[0]
    if not len(shown):
      raise ValueError(self._explain_no_rows(split))
    for first in range(0, len(shown), _CHUNK):
      some = shown.take(slice(first, first + _CHUNK))
      yield behaviour_rows.make_chunk(
        self.events,
        some,
        column_names,
        lambda i, some=some: (
          f'{name}, user {some.user[i]}, time {some.time[i]}'
        ),
      )

  def _explain_no_rows(self, split: str) -> str:
    """Why a split has no examples, and what to change."""
    section, least = 'data.movielens_clicks.', self.options.least
    able = np.diff(self._offsets) > least
    own = self._split == split if split else np.ones_like(able)
    shares = {
      'train': f'lower {section}valid_share or {section}test_share',
    }.get(split, f'raise {section}{split}_share')
    if not own.any():
      remedy = shares
    elif least == 1:
      remedy = f'{shares}, or give users with more ratings'
    elif not able.any():
      remedy = f'lower {section}least, which is {least:,}'
    else:
      remedy = f'lower {section}least, which is {least:,}, or {shares}'
    return (
      f'{self.files[0]}, {split or "every"} split: holds no rows, since '
      f'examples are made of users with {least + 1:,} ratings or more, of whom '
      f'the file has {able.sum():,} among {len(able):,} users, and this split '
      f'{(able & own).sum():,} among {own.sum():,}; {remedy}'
    )

  def _choose_places(self) -> np.ndarray:
    """The ratings that give an example, ascending."""
    options = self.options
    place = np.arange(len(self._owner)) - self._offsets[self._owner]
    at = np.flatnonzero(place >= options.least)
    if not options.windows or not len(at):
      return at
    owner = self._owner[at]
    draw = draw_uniform(options.seed, _WINDOW, self.users[owner], place[at])
    order = np.lexsort((draw, owner))
    counts = np.bincount(owner, minlength=len(self.users))
    first = np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.arange(len(at)) - first
    return np.sort(at[order[rank < options.windows]])


def _choose_genres(ratings: movielens_files.Ratings, films) -> np.ndarray:
  """`[F]` text, the rarest genre of each film; of equals, the first by name."""
  counts = {}
  for own in ratings.genres.values():
    for genre in own:
      counts[genre] = counts.get(genre, 0) + 1
  return np.array(
    [
      min(own or [''], key=lambda genre: (counts.get(genre, 0), genre))
      for own in ratings.list_genres(films)
    ]
  )
