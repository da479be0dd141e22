"""The files of an edition of MovieLens: ratings in the order of time, genres.

A user's ratings of one second stay in the order of the file, but for editions
with `ratings.csv`: their files have a user's films in the order of ids, so a
draw decides there which came first.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from genrec_jax.data import (
  fields,
  readers,
  remote_files,
  source_files,
  text,
)
from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking.counted_draws import draw_uniform

# The use of the draws that order ratings of one second; the data sets that read
# these files have other uses for their own draws.
TIE = 4
_CHUNK = 1 << 12  # rows that a reader yields at once
_SITE = 'https://grouplens.org/datasets/movielens/'
# Of u.item of MovieLens 100K, in the order of its columns of 0 and 1.
FLAG_GENRES = (
  'unknown', 'Action', 'Adventure', 'Animation', "Children's", 'Comedy',
  'Crime', 'Documentary', 'Drama', 'Fantasy', 'Film-Noir', 'Horror', 'Musical',
  'Mystery', 'Romance', 'Sci-Fi', 'Thriller', 'War', 'Western',
)  # fmt: skip
_FLAGS_FROM = 5  # the column of u.item in which they begin


@dataclasses.dataclass(frozen=True)
class _Layout:
  """The files of an edition.

  Attributes:
    ratings: file of the ratings.
    films: file of the films.
    read: what reads the ratings.
    by_film: whether its ratings of one user are in the order of films.
  """

  ratings: str
  films: str
  read: Callable[..., Iterator[readers.Events]]
  by_film: bool = False


_LAYOUTS = (
  _Layout('ratings.dat', 'movies.dat', readers.movielens_dat),
  _Layout('u.data', 'u.item', readers.movielens_tab),
  _Layout('ratings.csv', 'movies.csv', readers.movielens_csv, by_film=True),
)


@dataclasses.dataclass(frozen=True)
class Ratings:
  """All ratings of an edition, those of a user side by side, by time.

  Attributes:
    files: of the ratings and of the films.
    users: `[U]` int64 ids, ascending.
    owner: `[N]` number of the user of each rating, ascending.
    item: `[N]` int64 film.
    time: `[N]` int64 seconds, ascending for each user.
    rating: `[N]` float32.
    genres: film -> its genres; of every film of the catalogue.
  """

  files: tuple[pathlib.Path, pathlib.Path]
  users: np.ndarray
  owner: np.ndarray
  item: np.ndarray
  time: np.ndarray
  rating: np.ndarray
  genres: Mapping[int, list[str]]

  @property
  def offsets(self) -> np.ndarray:
    """`[U + 1]` the first rating of each user, and N."""
    counts = np.bincount(self.owner, minlength=len(self.users))
    return np.concatenate([[0], np.cumsum(counts)])

  def list_genres(self, films: np.ndarray) -> list[list[str]]:
    """The genres of some films, each of which the catalogue must have."""
    out = []
    for film in films.tolist():
      if film not in self.genres:
        raise ValueError(
          f'{self.files[0]}: film {film} is not in {self.files[1]}; give the '
          'catalogue of the same edition'
        )
      out.append(self.genres[film])
    return out


def read_ratings(path: str | pathlib.Path, seed: int) -> Ratings:
  """Reads the files of an edition.

  Args:
    path: the unpacked directory, or the file of the ratings.
    seed: of the draws that say which of a user's ratings of one second came
      first, where the file does not tell.

  Raises:
    ValueError: the files cannot be read; the message says where and what to
      change.
  """
  layout, _ = _find_layout(remote_files.locate(path))
  files = find_files(path)
  before = source_files.stat_files(files)
  for file in files:
    _refuse_cut(file)
  chunks = list(layout.read(files[0]))
  genres = _read_genres(files[1])
  source_files.check_unchanged(before)
  user, item, time, rating = (
    np.concatenate([getattr(chunk, name) for chunk in chunks])
    for name in ('user', 'item', 'time', 'rating')
  )
  users, code = np.unique(user, return_inverse=True)
  # Sorts that are stable: events of one second stay as the file has them.
  # Where that is the order of films, a later event of a second would have the
  # larger id, which a model can learn.
  tie = draw_uniform(seed, TIE, user, item) if layout.by_film else time
  order = np.lexsort((tie, time, code))
  return Ratings(
    files, users, code[order], item[order], time[order], rating[order], genres
  )


def find_files(path: str | pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """The files of the ratings and of the films of an edition.

  Args:
    path: the unpacked directory, or the file of the ratings.
  """
  layout, folder = _find_layout(remote_files.locate(path))
  return folder / layout.ratings, text.require_file(folder / layout.films)


def _find_layout(path) -> tuple[_Layout, pathlib.Path]:
  """The layout and the directory of the edition at `path`."""
  folder = path.parent if path.is_file() else path
  there = [
    layout
    for layout in _LAYOUTS
    if (folder / layout.ratings).is_file()
    and (path == folder or path.name == layout.ratings)
  ]
  files = ', '.join(layout.ratings for layout in _LAYOUTS)
  if not there:
    raise FileNotFoundError(
      f'{path}: none of the files {files} (data.path); give the unpacked '
      f'directory of a MovieLens edition, from {_SITE}'
    )
  if len(there) > 1:
    raise ValueError(
      f'{path}: several of the files {files} (data.path); give the path of the '
      'one that is meant'
    )
  return there[0], folder


def _refuse_cut(path: pathlib.Path) -> None:
  """Refuses a file that ends within a line, as no edition does.

  A genre of which a part is left would be one of its own, and the rarest; a
  time would be an early one.
  """
  with path.open('rb') as f:
    size = f.seek(0, 2)
    f.seek(max(0, size - 1))
    if not size or f.read() in (b'\n', b'\r'):
      return
    f.seek(0)
    lines = sum(1 for _ in f)
  raise ValueError(
    f'{path}, line {lines}: the file ends within this line, so that it may be '
    'cut; unpack or download it anew, or end the line if it is whole'
  )


def _read_genres(path: pathlib.Path) -> dict[int, list[str]]:
  """Film -> its genres, of `movies.dat`, `movies.csv` or `u.item`."""
  path = text.require_file(path)
  if path.suffix == '.csv':
    options = dict(delimiter=',', quotes=True, skip=1, width=3)
  elif path.suffix == '.dat':
    options = dict(delimiter='::', encoding='latin-1', width=3)
  else:
    width = _FLAGS_FROM + len(FLAG_GENRES)
    options = dict(delimiter='|', encoding='latin-1', width=width)
  found = {}
  for block in text.read_blocks(path, rows=_CHUNK, **options):
    films, good = fields.parse_ids(block.columns[0], 'int')
    if not good.all():
      bad = int(np.argmin(good))
      raise ValueError(
        f'{path}, line {block.lines[bad]}: {quote(block.columns[0][bad])} is '
        'no id of a film; mend or remove the line'
      )
    if options['width'] == 3:
      genres = [[*filter(None, c.split('|'))] for c in block.columns[2]]
    else:
      genres = _read_flags(path, block)
    for film, own, line in zip(
      films.tolist(), genres, block.lines, strict=True
    ):
      if film in found:
        raise ValueError(
          f'{path}, line {line}: film {film} a second time; remove one of the '
          'lines'
        )
      found[film] = own
  return found


def _read_flags(path, block: text.TextBlock) -> list[list[str]]:
  """The genres of each line of u.item, which has a 0 or 1 for each genre."""
  out = [[] for _ in block.lines]
  columns = block.columns[_FLAGS_FROM:]
  for genre, cells in zip(FLAG_GENRES, columns, strict=True):
    for own, cell, line in zip(out, cells, block.lines, strict=True):
      if cell not in ('0', '1'):
        raise ValueError(
          f'{path}, line {line}: {quote(cell)} for the genre {genre!r} is '
          'neither 0 nor 1; mend the line'
        )
      if cell == '1':
        own.append(genre)
  return out
