"""The reader of MovieLens against a plain one, on files of its layouts.

Layouts: https://files.grouplens.org/datasets/movielens/ml-1m-README.txt
(UserID::MovieID::Rating::Timestamp, whole stars; UserID::Gender::Age::
Occupation::Zip-code, ages 1, 18, 25, 35, 45, 50, 56; at least 20 ratings a
user), .../ml-100k-README.txt (u.data with tabs; u.user: user id | age | gender
| occupation | zip code), .../ml-latest-README.html (ratings.csv with the header
userId,movieId,rating,timestamp; half stars from 0.5 to 5.0; no users).
"""

import csv
import os
import pathlib
import random

import numpy as np
import pytest

from genrec_jax.data.requests import datasets, movielens
from genrec_jax.data.requests.movielens import MovielensOptions
from tests.data.requests import plain_requests as plain

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
AGES = ['1', '18', '25', '35', '45', '50', '56']


def make_ratings(seed, half_stars=False, counts=None):
  """Lines (user, film, stars, time) in no order of time, and with ties."""
  draw = random.Random(seed)
  stars = [x / 2 for x in range(1, 11)] if half_stars else [1, 2, 3, 4, 5]
  counts = counts or [3, 10, 11, 12, 20, 21, 22, 25, 31, 47, 60]
  lines = []
  for user, count in zip(
    draw.sample(range(1, 99), len(counts)), counts, strict=True
  ):
    for film in draw.sample(range(1, 90), count):
      time = 978300000 + 60 * draw.randrange(count)
      lines.append((user, film, draw.choice(stars), time))
  draw.shuffle(lines)
  return lines


def write(folder, layout, lines, seed=0):
  draw = random.Random(seed)
  users = sorted({line[0] for line in lines})
  zips = ['98107-2117', 'T8H1N', '02460', '']
  if layout == 'ml-1m':
    text = ''.join('{}::{}::{}::{}\n'.format(*line) for line in lines)
    (folder / 'ratings.dat').write_text(text)
    text = ''.join(
      f'{u}::{draw.choice("MF")}::{draw.choice(AGES)}::{draw.randrange(21)}'
      f'::{draw.choice(zips)}\n'
      for u in [*users, 999]
    )
    (folder / 'users.dat').write_text(text)
  elif layout == 'ml-100k':
    text = ''.join('{}\t{}\t{}\t{}\n'.format(*line) for line in lines)
    (folder / 'u.data').write_text(text)
    jobs = ['writer', 'none', 'other']
    text = ''.join(
      f'{u}|{draw.randrange(7, 74)}|{draw.choice("MF")}|{draw.choice(jobs)}'
      f'|{draw.choice(zips)}\n'
      for u in draw.sample(users, len(users))
    )
    (folder / 'u.user').write_text(text)
  else:
    with open(folder / 'ratings.csv', 'w', newline='') as f:
      table = csv.writer(f)
      table.writerow(['userId', 'movieId', 'rating', 'timestamp'])
      table.writerows(lines)
  return folder


def read_plainly(folder, layout, options):
  """User -> events in order of time, and user -> features."""
  ratings, delimiter, has_header = {
    'ml-1m': ('ratings.dat', '::', False),
    'ml-100k': ('u.data', '\t', False),
    'ml-latest': ('ratings.csv', ',', True),
  }[layout]
  lines = (folder / ratings).read_text().split('\n')[int(has_header) :]
  events = {}
  for line in filter(None, lines):
    user, film, stars, time = line.strip().split(delimiter)
    event = {'movie_id': int(film), 'rating': float(stars), 'time': int(time)}
    event['moment'] = event['time']
    event['action'] = 2 ** (max(1, int(float(stars))) - 1)
    event['liked'] = float(float(stars) >= options.threshold)
    events.setdefault(int(user), []).append(event)
  for user, some in events.items():
    some.sort(key=lambda event: event['time'])  # stable
    if options.duplicates == 'drop':
      kept = []
      for event in some:
        key = event['time'], event['movie_id']
        if key not in [(x['time'], x['movie_id']) for x in kept]:
          kept.append(event)
      events[user] = kept
  features = {user: {'user_id': user} for user in events}
  if ratings == 'ratings.dat' and options.user_features:
    for line in filter(None, (folder / 'users.dat').read_text().split('\n')):
      user, sex, age, job, code = line.split('::')
      if int(user) in features:
        features[int(user)] |= {'sex': sex, 'age_group': age}
        features[int(user)] |= {'occupation': job, 'zip_code': code}
  if ratings == 'u.data' and options.user_features:
    for line in filter(None, (folder / 'u.user').read_text().split('\n')):
      user, age, sex, job, code = line.split('|')
      group = [a for a in AGES if int(a) <= int(age)][-1]
      features[int(user)] |= {'sex': sex, 'age_group': group}
      features[int(user)] |= {'occupation': job, 'zip_code': code}
  return events, features


def describe_plainly(folder, layout, options):
  """Split -> requests, as `plain.expand`."""
  events, features = read_plainly(folder, layout, options)
  k = options.candidates
  found, learned = {'train': [], 'valid': [], 'test': []}, []
  for user in sorted(events):
    some = events[user]
    n = len(some)
    learned += [event['movie_id'] for event in some[: max(0, n - 2 * k)]]
    asked = {
      'train': range(options.min_history, n - 2 * k),
      'valid': range(max(0, n - 2 * k), max(0, n - k)),
      'test': range(max(0, n - k), n),
    }
    for split, numbers in asked.items():
      requests = plain.cut(
        some,
        numbers,
        lambda a, b: False,
        most=k,
        min_history=options.min_history,
        from_end=True,
      )
      if split == 'train' and options.train_requests:
        requests = requests[-options.train_requests :]
      found[split] += [(user, *request) for request in requests]
  counts = plain.count_values(learned)
  films = {film for film, n in counts.items() if n >= options.min_count}
  users = {user for user, _, _ in found['train']}
  known = {
    name: {features[user][name] for user in users}
    for name in next(iter(features.values()))
  }
  labels = ['liked'] + ['rating'] * options.rating_label
  return {
    split: [
      {
        'user': user,
        'context': {
          name: plain.encode(value, known[name])
          for name, value in features[user].items()
        },
        'history': [
          {
            'movie_id': plain.encode(event['movie_id'], films),
            'action': event['action'],
            'time': event['time'],
          }
          for event in past
        ],
        'candidates': [
          {'movie_id': plain.encode(event['movie_id'], films)}
          | {name: event[name] for name in labels}
          for event in ahead
        ],
        'time': past[-1]['time']
        if options.asked_at == 'last_event'
        else ahead[0]['time'],
        'step': None,
      }
      for user, past, ahead in requests
    ]
    for split, requests in found.items()
  }


OPTIONS = [
  MovielensOptions(),
  MovielensOptions(candidates=3, min_count=2, rating_label=True),
  MovielensOptions(train_requests=2, min_history=4, threshold=5),
  MovielensOptions(asked_at='first_candidate', candidates=4, min_count=3),
  MovielensOptions(user_features=False, train_requests=1, candidates=2),
  MovielensOptions(duplicates='drop', candidates=5),
]


@pytest.mark.parametrize('layout', ['ml-1m', 'ml-100k', 'ml-latest'])
@pytest.mark.parametrize('options', OPTIONS, ids=range(len(OPTIONS)))
def test_requests_are_those_of_the_plain_reader(tmp_path, layout, options):
  for seed in range(3):
    lines = make_ratings(seed, half_stars=layout == 'ml-latest')
    lines += random.Random(seed).choices(lines, k=5)  # some twice
    folder = tmp_path / str(seed)
    folder.mkdir()
    write(folder, layout, lines, seed)
    got = datasets.DATASETS['movielens'](folder, options)
    plain.check_shapes(got)
    expected = describe_plainly(folder, layout, options)
    for split, requests in expected.items():
      assert plain.expand(got, split) == requests
    assert got.name == layout
    kinds = [('liked', 'binary')]
    kinds += [('rating', 'regression')] * options.rating_label
    assert [(x.name, x.kind) for x in got.spec.labels] == kinds
    assert [bit for _, bit in got.spec.actions] == [1, 2, 4, 8, 16]


def test_half_stars_and_unknown_values(tmp_path):
  """The answers by hand, so that no oracle may share a mistake."""
  lines = [(7, film, stars, film) for film, stars in enumerate(
    [0.5, 1.5, 3, 3.5, 4.5, 5], 1
  )]  # fmt: skip
  write(tmp_path, 'ml-latest', lines)
  got = movielens.load(tmp_path, MovielensOptions(candidates=2))
  assert got.events.action.tolist() == [1, 1, 4, 4, 8, 16]
  # Films 3 to 6 come after training, and share a row.
  assert got.events.items['movie_id'].tolist() == [1, 2, 3, 3, 3, 3]
  assert got.splits['train'].labels['liked'].tolist() == [0]
  assert got.splits['valid'].labels['liked'].tolist() == [0, 1]
  assert got.splits['test'].time.tolist() == [4]
  assert got.spec.actions[2] == ('stars_3', 4)
  assert got.spec.items[0].rows == 4


def test_a_file_of_ratings_may_be_named(tmp_path):
  write(tmp_path, 'ml-1m', make_ratings(0))
  by_file = movielens.load(tmp_path / 'ratings.dat')
  assert by_file.fingerprint() == movielens.load(tmp_path).fingerprint()


def refuse(tmp_path, message, options=None):
  with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
    movielens.load(tmp_path, options)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'line, message',
  [
    ('7::1::6::5', 'ratings.dat, line 4: the rating 6 of user 7 is not'),
    ('7::1::0::5', 'ratings.dat, line 4: the rating 0 of user 7'),
    ('7::1::3.7::5', 'line 4: the rating 3.7 of user 7 .* mend or remove'),
    ('7::1::good::5', "line 4: 'good' is not a finite number"),
    ('x::1::3::5', "line 4: 'x' is not a user id"),
    ('7::1::3', 'line 4: 3 fields instead of 4'),
    ('7::1::3::-5', "line 4: '-5' is not a time"),
    ('5::1::3::5', 'line 4: user 5 has events and no line in .*users.dat; add'),
  ],
)
def test_a_bad_rating_is_named(tmp_path, line, message):
  write(tmp_path, 'ml-1m', make_ratings(0))
  path = tmp_path / 'ratings.dat'
  lines = path.read_text().split('\n')
  assert not any(x.startswith('5::') for x in lines)
  path.write_text('\n'.join([*lines[:3], line, *lines[3:]]))
  refuse(tmp_path, message)


def test_bad_files_of_users(tmp_path):
  write(tmp_path, 'ml-1m', make_ratings(0))
  path = tmp_path / 'users.dat'
  good = path.read_text()
  path.write_text(good + 'x::M::1::1::1\n')
  refuse(tmp_path, r"users.dat, line 13: 'x' is not the whole number of a user")
  user = good.split('::')[0]
  path.write_text(good + f'{user}::M::1::1::1\n')
  refuse(tmp_path, f'line 13: user {user} already has line 1; remove one')
  path.write_text(good + '1::M::1::1\n')
  refuse(tmp_path, 'line 13: 4 fields instead of 5')
  path.unlink()
  refuse(tmp_path, r'users.dat: no such file; .*user_features=False')
  movielens.load(tmp_path, MovielensOptions(user_features=False))


def test_a_bad_age_is_named(tmp_path):
  write(tmp_path, 'ml-100k', make_ratings(0))
  with open(tmp_path / 'u.user', 'a') as f:
    f.write('998|young|M|other|1\n')
  refuse(tmp_path, "u.user, line 12: 'young' is not the age of user 998 in")


@pytest.mark.parametrize('name', ['ratings.dat', 'users.dat'])
def test_a_file_that_changes_is_refused(tmp_path, monkeypatch, name):
  write(tmp_path, 'ml-1m', make_ratings(0))

  def sort_and_change(*args):
    with open(tmp_path / name, 'a') as f:
      f.write('\n')
    return sort_events(*args)

  sort_events = movielens.sort_events
  monkeypatch.setattr(movielens, 'sort_events', sort_and_change)
  refuse(tmp_path, f'changed while they were read .*{name}')


def test_data_that_give_no_request(tmp_path):
  write(tmp_path, 'ml-latest', make_ratings(0, counts=[21, 30]))
  with pytest.raises(ValueError, match=r"'train'; lower min_history \(25\)"):
    movielens.load(tmp_path, MovielensOptions(min_history=25))
  refuse(tmp_path, 'min_history is 0', MovielensOptions(min_history=0))
  refuse(tmp_path, 'candidates is 0', MovielensOptions(candidates=0))
  refuse(tmp_path, "asked_at is 'now'", MovielensOptions(asked_at='now'))
  refuse(tmp_path, "duplicates is 'no'", MovielensOptions(duplicates='no'))
  refuse(tmp_path, 'min_count is 0', MovielensOptions(min_count=0))
  (tmp_path / 'ratings.csv').write_text('userId,movieId,rating,timestamp\n')
  refuse(tmp_path, 'ratings.csv: the file holds no events')
  (tmp_path / 'ratings.csv').write_text('')
  refuse(tmp_path, 'ratings.csv: the file is empty')
  (tmp_path / 'ratings.csv').write_text(
    'userId,movieId,score,timestamp\n1,2,3,4'
  )
  refuse(tmp_path, "ratings.csv: no column 'rating' for the rating")
  (tmp_path / 'u.data').write_text('1\t2\t3\t4\n')
  refuse(tmp_path, 'several of the files ratings.dat, u.data, ratings.csv')
  refuse(
    tmp_path / 'absent', 'none of the files .* give the unpacked directory'
  )


@pytest.mark.parametrize('name', ['ml-1m', 'ml-100k', 'ml-latest-small'])
def test_the_real_data(name):
  if not (DATA / name).is_dir():
    pytest.skip(f'{DATA / name} is not there; set GENREC_DATA')
  got = movielens.load(DATA / name)
  plain.check_shapes(got)
  counts = np.diff(got.events.offsets)
  assert got.splits['test'].candidates == 10 * len(counts)
  assert len(got.splits['valid']) == (counts > 20).sum()
  # Every rating before the last 20 but a user's first is a candidate once.
  assert got.splits['train'].candidates == np.maximum(counts - 21, 0).sum()
