"""Prepared files against a plain encoder that reads rows with `csv`."""

import collections
import csv
import math
import random

import numpy as np
import pytest

from genrec_jax.data.ranking import batches, collation, datasets

FEATURES = {
  'user': {},
  'tags': {'kind': 'multi_hot', 'max_len': 2, 'table': 'tag'},
  'path': {'kind': 'sequence', 'max_len': 3, 'table': 'tag'},
  'price': {'kind': 'numeric', 'transform': 'log'},
  'age': {'kind': 'numeric', 'transform': 'standardize'},
  'clicks': {'kind': 'numeric', 'transform': 'ln2'},
}


def write(path, seed, rows, end='\r\n', header=True):
  """A random file, with columns that no feature reads."""
  draw = random.Random(seed)
  names = ['user', 'junk', 'label', 'tags', 'price', 'path', 'age', 'clicks']

  def listed():
    count = draw.choice([0, 1, 2, 5])
    return '^'.join(f't{draw.randrange(6)}' for _ in range(count))

  with open(path, 'w', newline='') as f:
    out = csv.writer(f, lineterminator=end)
    out.writerow(names)
    for _ in range(rows):
      out.writerow(
        [
          draw.choice(['', f'u{min(draw.randrange(30), draw.randrange(30))}']),
          draw.choice(['a,b', 'say "x"', 'z']) if seed % 2 else 'z',
          draw.choice(['0', '1', '1.0']),
          listed(),
          draw.choice(['', '-3', '0', f'{draw.random() * 100:.3f}']),
          listed(),
          draw.choice(['', f'{draw.gauss(30, 9):.2f}']),
          draw.choice(['', '-1', '2', '3', f'{draw.randrange(5000)}']),
        ]
      )


def bucket(text):
  if not text:
    return ''
  x = float(text)
  return str(math.floor(math.log(x) ** 2) if x > 2 else int(x))


def values(row, name):
  """The values of a coded feature of a row, one by one."""
  if name == 'clicks':
    return [bucket(row[name])]
  if name == 'user':
    return [row[name]]
  found = row[name].split('^') if row[name] else []
  return found[:2] if name == 'tags' else found[-3:]


def expected(train, rows, min_count, oov_rows=1):
  """What each row becomes, by dictionaries."""
  tables = {'user': ['user'], 'tag': ['tags', 'path'], 'clicks': ['clicks']}
  ids = {}
  for table, readers in tables.items():
    counts = collections.Counter(
      v for row in train for name in readers for v in values(row, name) if v
    )
    known = sorted(
      (v for v in counts if counts[v] >= min_count),
      key=lambda v: (-counts[v], v),
    )
    lookup = {v: i for i, v in enumerate(known, 1)} | {'': 0}
    for name in readers:
      ids[name] = lambda v, d=lookup: d.get(v, len(d))
  ages = [float(row['age']) for row in train if row['age']]
  mean = sum(ages) / len(ages)
  deviation = math.sqrt(sum((a - mean) ** 2 for a in ages) / len(ages))
  out = []
  for row in rows:
    coded = {n: [ids[n](v) for v in values(row, n)] for n in ids}
    price = math.log(1 + max(float(row['price'] or 0), 0))
    age = (float(row['age']) - mean) / deviation if row['age'] else 0.0
    out.append((float(row['label']), coded, price, age))
  return out


def config(path, **changes):
  return {
    'name': 'csv',
    'path': str(path),
    'files': {'train': 'train.csv', 'test': 'test.csv'},
    'split': {'by': 'order', 'valid_fraction': 0.25},
    'labels': ('label',),
    'features': FEATURES,
    'min_count': 2,
    'block_rows': 32,
    **changes,
  }


def quiet(_):
  pass


@pytest.mark.parametrize('seed', range(4))
def test_prepared_rows_are_those_of_a_plain_encoder(tmp_path, seed):
  write(tmp_path / 'train.csv', seed, 120, end='\r\n' if seed < 2 else '\n')
  write(tmp_path / 'test.csv', seed + 100, 50)
  ds = datasets.load(config(tmp_path), tmp_path / 'cache', quiet)
  raw = {}
  for name in ('train', 'test'):
    with open(tmp_path / f'{name}.csv', newline='') as f:
      raw[name] = list(csv.DictReader(f))
  raw['valid'] = raw['train'][90:]
  raw['train'] = raw['train'][:90]
  order = [spec.name for spec in ds.features]
  assert order == ['user', 'tags', 'price', 'path', 'age', 'clicks']
  assert ds.vocabularies.keys() == {'user', 'tag', 'clicks'}
  for split, rows in raw.items():
    want = expected(raw['train'], rows, 2)
    got = list(batches.eval_batches(ds.splits[split], batch_size=len(rows)))
    assert len(got) == 1
    batch = got[0]
    np.testing.assert_array_equal(
      batch.labels.values[:, 0], [w[0] for w in want]
    )
    np.testing.assert_array_equal(
      batch.ids.values, [[w[1]['user'][0], w[1]['clicks'][0]] for w in want]
    )
    np.testing.assert_allclose(
      batch.dense.values, [[w[2], w[3]] for w in want], rtol=1e-5, atol=1e-6
    )
    for name in ('tags', 'path'):
      flat = [v for w in want for v in w[1][name]]
      bags, values = batch.jagged[name], batch.jagged[name][name]
      np.testing.assert_array_equal(values[: len(flat)], flat)
      assert not values[len(flat) :].any()
      np.testing.assert_array_equal(
        bags.lengths, [len(w[1][name]) for w in want]
      )


def test_a_saved_encoder_makes_the_same_batches_of_raw_rows(tmp_path):
  from genrec_jax.data.ranking import formats
  from genrec_jax.data.ranking.encoder import Encoder

  write(tmp_path / 'train.csv', 0, 120)
  write(tmp_path / 'test.csv', 7, 50)
  ds = datasets.load(config(tmp_path), tmp_path / 'cache', quiet)
  ds.encoder.save(tmp_path / 'served')
  encoder = Encoder.load(tmp_path / 'served')
  assert encoder.fingerprint() == ds.encoder.fingerprint()
  assert encoder.features == ds.features
  want = list(batches.eval_batches(ds.splits['test'], batch_size=16))
  chunks = formats.read_examples(encoder, tmp_path / 'test.csv')
  got = list(collation.raw_batches(encoder, chunks, batch_size=16))
  assert len(got) == len(want) == 4
  for a, b in zip(want, got, strict=True):
    np.testing.assert_array_equal(a.ids.values, b.ids.values)
    np.testing.assert_array_equal(a.dense.values, b.dense.values)
    np.testing.assert_array_equal(a.labels.values, b.labels.values)
    np.testing.assert_array_equal(a.weights, b.weights)
    used = int(b.jagged['path'].lengths.sum())
    np.testing.assert_array_equal(
      a.jagged['path']['path'][:used], b.jagged['path']['path'][:used]
    )
