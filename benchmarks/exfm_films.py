"""Ratings of MovieLens as a stream of windows, for benchmarks/exfm_public.py.

A label says whether a rating has four stars or more. Ratings are in the order
of their times, those of one second in that of the file, and windows have equal
numbers of them. A film belongs to the rarest of its genres, by the number of
films; genres are put in a row by that number, and the row is cut into three
segments of about equal numbers of ratings.

Most users come once, rate for an hour, and are gone before a teacher has seen
them. So that it can know something of them, what a user has rated and liked so
far, in all segments, is a feature: as with the labels, it is known at once.
"""

import collections
import csv
import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.exfm_worlds import World
from genrec_jax.data import readers
from genrec_jax.data.parquet import pa, pq

SEGMENTS = 3
LIKED = 4.0  # stars
NO_GENRE = 'none'
_EDITIONS = {  # directory -> its ratings, and what reads them
  'ml-100k': ('u.data', readers.movielens_tab),
  'ml-latest-small': ('ratings.csv', readers.movielens_csv),
}


@dataclasses.dataclass(frozen=True)
class FilmLog:
  """A log of ratings; a `World` reads `windows`, `features` and `seed`.

  Attributes:
    directory: of an edition, which its name tells.
    whole: windows of all ratings.
    share: of the windows, the oldest, that the log has.
    seed: of the weights of its teachers; the ratings are what they are.
  """

  directory: str
  whole: int = 40
  share: float = 1.0
  seed: int = 0

  def __post_init__(self):
    if self.path.name not in _EDITIONS:
      raise ValueError(
        f'{self.path}: the directory is called {" or ".join(_EDITIONS)}'
      )

  @property
  def path(self) -> pathlib.Path:
    return pathlib.Path(self.directory)

  @property
  def windows(self) -> int:
    return round(self.whole * self.share)

  @property
  def features(self) -> tuple[str, ...]:
    film = ('film', 'year', 'genre', 'genres')
    of_user = ('age', 'sex', 'occupation')
    own = of_user * (self.path.name == 'ml-100k')
    return ('user', 'taste', *film, *own)

  @functools.cached_property
  def table(self) -> pa.Table:
    """All ratings of the edition, in their order."""
    name, read = _EDITIONS[self.path.name]
    chunks = list(read(self.path / name))
    user, film, time, stars = (
      np.concatenate([getattr(chunk, key) for chunk in chunks])
      for key in ('user', 'item', 'time', 'rating')
    )
    order = np.argsort(time, kind='stable')
    user, film, time, stars = (x[order] for x in (user, film, time, stars))
    films = read_films(self.path)
    rarest = find_rarest({number: x[0] for number, x in films.items()})
    segments = cut_segments(films, rarest, film)
    columns = {
      'example_id': np.arange(len(time)),
      'time': time,
      'segment': np.array([segments[rarest[x]] for x in film.tolist()]),
      'user': user,
      'taste': find_tastes(user, stars >= LIKED),
      'film': film,
      'year': [films[x][1] for x in film.tolist()],
      'genre': [rarest[x] for x in film.tolist()],
      'genres': ['|'.join(films[x][0]) for x in film.tolist()],
      'label': (stars >= LIKED).astype(np.int64),
    }
    if self.path.name == 'ml-100k':
      users = read_users(self.path / 'u.user')
      for i, key in enumerate(('age', 'sex', 'occupation')):
        columns[key] = [users[x][i] for x in user.tolist()]
    return pa.table(columns)

  def list_windows(self) -> list[pa.Table]:
    """The windows of the log, oldest first."""
    rows = np.linspace(0, len(self.table), self.whole + 1).astype(int)
    spans = zip(rows[: self.windows], rows[1:], strict=False)
    return [self.table.slice(a, b - a) for a, b in spans]

  def describe(self) -> dict:
    """Rows, segments, and how many ratings are by users who are known."""
    user = self.table['user'].to_numpy()
    known = np.isin(user[len(user) * 9 // 10 :], user[: len(user) * 8 // 10])
    windows = [x['user'].to_numpy() for x in self.list_windows()]
    before = [
      np.isin(x, np.concatenate(windows[:k]))
      for k, x in enumerate(windows)
      if k >= len(windows) // 2
    ]
    table = self.table.group_by('segment').aggregate([('label', 'count')])
    counts = dict(
      zip(*(table[x].to_pylist() for x in table.column_names), strict=True)
    )
    genres = collections.defaultdict(set)
    for segment, genre in zip(
      *(self.table[x].to_pylist() for x in ('segment', 'genre')), strict=True
    ):
      genres[segment].add(genre)
    return {
      'rows': len(self.table),
      'rate': float(self.table['label'].to_numpy().mean()),
      'known_of_last_tenth_%': 100 * float(known.mean()),
      'known_to_teacher_%': 100 * float(np.concatenate(before).mean()),
      'segment_rows': [counts[i] for i in sorted(counts)],
      'segment_genres': [' '.join(sorted(genres[i])) for i in sorted(genres)],
    }


class FilmWorld(World):
  """A log of ratings, and all that was made of it so far."""

  def __init__(
    self,
    folder: pathlib.Path,
    log: FilmLog,
    batch_size: int,
    rate: float,
  ):
    """Makes nothing yet.

    Args:
      folder: of this log and teacher.
      log: the ratings.
      batch_size: of teacher and students.
      rate: of the teacher.
    """
    super().__init__(folder, log)
    self.batch_size, self.rate = batch_size, rate

  def _set_stream(self, config, parts: pathlib.Path) -> None:
    super()._set_stream(config, parts)
    # Most users and films come later than the windows of the vocabularies.
    config.data.hash_rows = 1 << 15
    config.loss.prior = ()  # that of the generated stream; half are liked here
    config.train.batch_size = self.batch_size
    # `train_student` sets others behind this.
    config.optimizer.learning_rate = self.rate
    config.optimizer.rows.learning_rate = self.rate

  def _write_windows(self, into: pathlib.Path) -> None:
    for k, window in enumerate(self.log.list_windows()):
      pq.write_table(window, into / f'window-{k:06d}.parquet')


def read_films(path: pathlib.Path) -> dict[int, tuple[list[str], str]]:
  """Film -> its genres, and its year or ''.

  Args:
    path: directory of an edition.
  """
  if path.name == 'ml-100k':
    with open(path / 'u.genre') as f:
      names = [line.split('|')[0] for line in f if '|' in line]
    found = {}
    with open(path / 'u.item', encoding='latin-1') as f:
      for line in f:
        number, title, *_ = cells = line.rstrip('\n').split('|')
        flags = zip(names, cells[5:], strict=True)
        found[int(number)] = [x for x, y in flags if y == '1'], find_year(title)
    return found
  with open(path / 'movies.csv', newline='', encoding='utf-8') as f:
    return {
      int(row['movieId']): (
        [] if row['genres'].startswith('(') else row['genres'].split('|'),
        find_year(row['title']),
      )
      for row in csv.DictReader(f)
    }


def find_tastes(user: np.ndarray, liked: np.ndarray) -> list[str]:
  """Of each rating, how many its user gave before, and how many liked.

  Args:
    user: `[N]` in the order of time.
    liked: `[N]` bool.

  >>> find_tastes(np.array([7, 7, 5, 7]), np.array([True, False, True, True]))
  ['0 0', '1 6', '0 0', '2 5']
  """
  given, good, found = collections.Counter(), collections.Counter(), []
  for who, likes in zip(user.tolist(), liked.tolist(), strict=True):
    count = given[who]
    # Powers of two, and tenths of a share that begins at a half.
    share = (good[who] + 1) / (count + 2) if count else 0
    found.append(f'{count.bit_length()} {int(share * 10)}')
    given[who] += 1
    good[who] += likes
  return found


def find_year(title: str) -> str:
  """The year at the end of a title.

  >>> find_year('Toy Story (1995)'), find_year('Paterson')
  ('1995', '')
  """
  found = re.search(r'\((\d{4})\)\s*$', title)
  return found[1] if found else ''


def find_rarest(genres: Mapping[int, Sequence[str]]) -> dict[int, str]:
  """Film -> the genre of its own that fewest films have.

  >>> find_rarest({1: ['Drama', 'War'], 2: ['Drama'], 3: []})
  {1: 'War', 2: 'Drama', 3: 'none'}
  """
  films = collections.Counter(x for own in genres.values() for x in own)
  return {
    number: min(own, key=lambda x: (films[x], x), default=NO_GENRE)
    for number, own in genres.items()
  }


def cut_segments(
  films: Mapping[int, tuple[Sequence[str], str]],
  rarest: Mapping[int, str],
  rated: np.ndarray,
) -> dict[str, int]:
  """Genre -> its segment; the first has the genres of most films.

  Args:
    films: number -> genres, year.
    rarest: number -> its genre.
    rated: `[N]` film of each rating.
  """
  count = collections.Counter(x for own, _ in films.values() for x in own)
  ratings = collections.Counter(rarest[x] for x in rated.tolist())
  found, done = {}, 0
  for genre in sorted({*rarest.values()}, key=lambda x: (-count[x], x)):
    # By the middle of its ratings.
    found[genre] = int((done + ratings[genre] / 2) * SEGMENTS / len(rated))
    done += ratings[genre]
  return found


def read_users(path: pathlib.Path) -> dict[int, tuple[str, str, str]]:
  """User -> age in tens of years, sex, occupation."""
  with open(path) as f:
    rows = [line.split('|') for line in f]
  return {int(x[0]): (str(int(x[1]) // 10 * 10), x[2], x[3]) for x in rows}


def invent_films(path: pathlib.Path, rows: int = 2400) -> None:
  """Writes a small made-up log in the layout of MovieLens latest."""
  rng = np.random.default_rng(0)
  names = ['Drama', 'Comedy', 'War']
  path.mkdir(parents=True, exist_ok=True)
  lines = ['movieId,title,genres']
  for number in range(1, 61):
    own = names[: rng.integers(1, 4)]
    lines.append(f'{number},A film (19{number + 30}),{"|".join(own)}')
  (path / 'movies.csv').write_text('\n'.join(lines) + '\n')
  film, time = rng.integers(1, 61, rows), np.arange(rows)
  user = time // 40 + 1
  stars = np.clip(np.round(film % 7 + rng.normal(0, 1, rows)), 1, 5)
  lines = ['userId,movieId,rating,timestamp']
  # In the order of users, newest first: the order of times is found.
  for i in reversed(range(rows)):
    lines.append(f'{user[i]},{film[i]},{stars[i]:.1f},{time[i]}')
  (path / 'ratings.csv').write_text('\n'.join(lines) + '\n')
