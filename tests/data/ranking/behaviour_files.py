"""Made-up files of the layouts of MovieLens and of Taobao's log."""

import random

import numpy as np

from genrec_jax.data.ranking import movielens_files, taobao_sort

GENRES = {
  1: ['Comedy', 'Drama'],
  2: ['Drama'],
  3: ['Drama', 'War'],
  4: ['Comedy', 'War', 'Drama'],
  5: ['Western'],
  6: [],
  7: ['Drama'],
  8: ['Comedy'],
}
OTHERS = 99  # an item that one user alone has touched


def write_edition(folder, rows, layout='ratings.dat', genres=GENRES):
  """Made-up files of the layout of an edition."""
  folder.mkdir(exist_ok=True)
  if layout == 'ratings.dat':
    lines = ['::'.join(map(str, row)) for row in rows]
    films = [f'{f}::T (1990)::{"|".join(own)}' for f, own in genres.items()]
    name = 'movies.dat'
  elif layout == 'u.data':
    lines = ['\t'.join(map(str, row)) for row in rows]
    flags = movielens_files.FLAG_GENRES
    films = [
      '|'.join(
        [str(f), 'T', '01-Jan-1990', '', 'http://x',
         *('01'[genre in own] for genre in flags)]
      )
      for f, own in genres.items()
    ]  # fmt: skip
    name = 'u.item'
  else:
    lines = ['userId,movieId,rating,timestamp']
    lines += [','.join(map(str, row)) for row in rows]
    films = ['movieId,title,genres']
    films += [f'{f},"T, a (1990)",{"|".join(o)}' for f, o in genres.items()]
    name = 'movies.csv'
  (folder / layout).write_text('\n'.join(lines) + '\n')
  (folder / name).write_text('\n'.join(films) + '\n')
  return folder


def make_ratings(seed, lengths, films=8, seconds=9):
  rng = random.Random(seed)
  rows = [
    (user, film, rng.randrange(1, 6), 900_000_000 + rng.randrange(seconds))
    for user, length in enumerate(lengths, 1)
    for film in rng.sample(range(1, films + 1), length)
  ]
  rng.shuffle(rows)
  return rows


def make_events(seed, lengths, items=6, seconds=40):
  """Rows of a file, shuffled; user 0 has one event and an item of its own."""
  rng = random.Random(seed)
  rows = [(0, OTHERS, 5, 'pv', rng.randrange(seconds))]
  for user, length in enumerate(lengths, 3):
    for _ in range(length):
      item = rng.randrange(items)
      # Now and then an item has another category than usual.
      category = item % 3 if rng.random() < 0.9 else 7
      word = rng.choice(taobao_sort.BEHAVIOURS)
      rows.append((user, item, category, word, rng.randrange(seconds)))
  rng.shuffle(rows)
  return rows


def write_events(path, rows):
  path.write_text(''.join(','.join(map(str, row)) + '\n' for row in rows))
  return path


def split_lists(column):
  values = column.values
  values = values if isinstance(values, list) else values.values.tolist()
  ends = np.cumsum(column.lengths)
  pairs = zip(ends.tolist(), column.lengths.tolist(), strict=True)
  return [values[e - n : e] for e, n in pairs]
