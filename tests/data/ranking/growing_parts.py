"""Parts of labelled rows, as CSV or Parquet, and base data for them."""

import csv

import numpy as np

from genrec_jax.data.ranking import datasets

CFG = {
  'labels': ('click',),
  'features': {
    'user': {'kind': 'categorical'},
    'item': {'kind': 'categorical', 'oov': 'hash', 'hash_rows': 3},
    'price': {'kind': 'numeric', 'transform': 'standardize'},
    'tags': {'kind': 'multi_hot'},
  },
  'time': 'when',
  'example_id': 'number',
  'weight': 'importance',
  'group': 'user',
  'extras': {'score': {'kind': 'float', 'column': 'teacher'}},
}


def quiet(_):
  pass


def make_rows(seed: int, size: int, users: int = 9) -> list[dict]:
  """Rows of which those of other seeds differ; some values are missing."""
  rng = np.random.default_rng(seed)
  return [
    dict(
      click=int(rng.integers(2)),
      user=f'u{rng.integers(users)}',
      item=int(rng.integers(12)),
      price=float(rng.integers(100)) / 4,
      tags=[f't{x}' for x in rng.integers(0, 5, rng.integers(4))],
      when=10_000 * seed + i,
      number=(seed << 40) + i,
      importance=float(rng.integers(1, 4)),
      teacher=float(rng.integers(8)) / 8,
    )
    for i in range(size)
  ]


def put(directory, name: str, rows: list[dict]):
  """A part appears the way parts shall appear."""
  path = directory / 'unfinished'
  if name.endswith('.parquet'):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {key: [row[key] for row in rows] for key in make_rows(0, 1)[0]}
    pq.write_table(pa.table(columns), path)
  else:
    with open(path, 'w', newline='') as f:
      out = csv.DictWriter(f, make_rows(0, 1)[0])
      out.writeheader()
      for row in rows:
        out.writerow({**row, 'tags': '^'.join(row['tags'])})
  path.rename(directory / name)


def load(directory, **changes):
  """The base data, of users that parts have others beside."""
  path = directory / 'base.csv'
  if not path.exists():
    put(directory, 'base.csv', make_rows(99, 80, users=6))
  cfg = {'name': 'csv', 'path': str(path), **CFG, **changes}
  return datasets.load(cfg, directory / 'cache', quiet)
