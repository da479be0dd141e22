"""Logs with extra columns, as files and as arrays."""

import csv

import ml_collections
import numpy as np

from genrec_jax.data import datasets

COLUMNS = dict(user='user', item='item', time='time')
ASKED = {
  'action': {'kind': 'category', 'fill': 'none'},
  'rating': 'float',
  'seconds': {'kind': 'int64', 'column': 'time'},
  'stars': {'kind': 'int', 'column': 'rating'},
  'watched': {'kind': 'float', 'fill': -1},
}


def quiet(_):
  pass


def write(path, rows, names=('user', 'item', 'time', 'action', 'rating')):
  with open(path, 'w', newline='') as f:
    out = csv.writer(f)
    out.writerow([*names, 'watched'] if len(names) == 5 else names)
    out.writerows(rows)
  return path


def config(path, **changes):
  base = dict(name='csv', path=str(path), columns={**COLUMNS, 'rating': ''})
  return ml_collections.ConfigDict(base | changes)


def load(path, cache, log=quiet, **changes):
  return datasets.load(config(path, **changes), cache, log).histories


def log_of(count, seed=0, users=20):
  rng = np.random.default_rng(seed)
  item = rng.integers(1, 40, count)
  return dict(
    user=rng.integers(0, users, count),
    item=item,
    time=rng.integers(0, 50, count),
    extras={
      'tens': (item * 10).astype(np.int32),
      'tenth': (item / 10).astype(np.float32),
      'name': np.char.add('n', np.char.zfill(item.astype(str), 3)),
    },
  )
