"""Files with everything that a row may tell beside its features."""

import csv

from genrec_jax.data.ranking import datasets

NAMES = (
  'click',
  'seconds',
  'user',
  'when',
  'number',
  'importance',
  'teacher',
  'position',
)
ASKED = {
  'labels': ('click', 'seconds'),
  'features': {'user': {}},
  'time': 'when',
  'example_id': 'number',
  'label_kinds': {'click': 'binary', 'seconds': 'float'},
  'label_weights': {'seconds': 'importance'},
  'extras': {
    'score': {'kind': 'float', 'column': 'teacher', 'fill': -1},
    'position': 'int',
  },
}


def quiet(_):
  pass


def write(path, rows, names=NAMES):
  with open(path, 'w', newline='') as f:
    out = csv.writer(f)
    out.writerow(names)
    out.writerows(rows)
  return path


def load(path, cache, log=quiet, name='csv', **changes):
  cfg = {'name': name, 'path': str(path), **changes}
  return datasets.load(cfg, cache, log)


def row(i, **changes):
  plain = dict(
    click=i % 2,
    seconds=i / 4,
    user=f'u{i % 3}',
    when=1000 + i,
    number=7 * i,
    importance=1 + i % 3,
    teacher=i / 8,
    position=i % 5,
  )
  return tuple((plain | changes).values())
