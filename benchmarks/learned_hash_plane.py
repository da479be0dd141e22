"""Vectors of the values of a tail in a plane, and which of them share a row.

  python -m benchmarks.learned_hash_plane --runs DIR --data DIR

Runs of benchmarks/learned_hash.py of the first seed, trained if they are not
there yet. `films`: the map `learned` of MovieLens 1M at 10 times;
`kinds`: `embedding` of a generated field, with as many rows as kinds of values.
Vectors are those of the small model that the map was learned from, 4 wide, and
the plane that of their first two principal components, weighted by sightings;
values with a row alone are left out.

`points` are values, (x, y, row), the row 0 where it is none of the four that
are shown. Of films, shown are the rows with the most
sightings among those of 5 to 12 films, and `title` is the name of the file
movies.dat; of the generated field, those with the most values, and `of_kind`
says of how many of their values the kind is that of most. `near` is the mean
squared distance from the mean of the row, `all` that from the mean of all, of
values with a row in common, each by its sightings.
"""

import argparse
import pathlib
from collections.abc import Mapping

import numpy as np

from benchmarks import cli, learned_hash, learned_hash_kinds
from benchmarks.learned_hash import AS_KINDS, SEEDS
from genrec_jax import config as config_lib
from genrec_jax.embedding.learned_map import MapFile
from genrec_jax.report import charts
from genrec_jax.report.axes import linear_axis
from genrec_jax.report.chart_files import draw_file, pick_color
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment

COLUMNS = ('case', 'values', 'rows', 'near', 'all', 'sightings', 'titles')
SHOWN, POINTS = 4, 1_000  # rows that are named, values that are drawn
TITLES = (5, 12)  # values of a row of which titles are told
# Name -> (data set, map, compression, table, title of the picture).
PLANES = {
  'kinds': ('rows/200000', 'embedding', AS_KINDS, 'c0', 'A generated field'),
  'films': ('movielens', 'learned', 10, 'item', 'Films of MovieLens 1M'),
}
FRAME = charts.Frame(470, 470, 22, 14, 66, 30)


def main(argv: list[str] | None = None) -> None:
  args = learned_hash.parse('learned_hash_plane', __doc__, argv)
  rows = []
  try:
    for name, plane in PLANES.items():
      if name.startswith(tuple(args.only)) and (name != 'films' or args.data):
        rows += measure(args, name, *plane[:4])
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  cli.finish(args, 'learned_hash_plane', rows, COLUMNS)


def measure(
  args: argparse.Namespace, name: str, data: str, case: str, times: int,
  table: str,
) -> list[dict]:  # fmt: skip
  """The rows of a plane."""
  knobs = learned_hash.find_knobs(
    learned_hash.read_knobs(args), data, case, times
  )
  seed = SEEDS[0]
  _, at = learned_hash.train_case(args, data, case, times, seed, knobs)
  folder = learned_hash.name_folder(args, data, seed)
  config = config_lib.load_saved(folder / 'small' / 'config.json')
  loaded, task = experiment.load_data_and_task(
    config, folder / 'small', TASK_KINDS
  )
  known = loaded.dataset.vocabularies[table]
  weights = load_weights(folder / 'small', task, 'best')
  vectors = np.asarray(weights.tables[table], np.float64)
  a_map = MapFile.load(at / 'maps' / f'{table}.npz')
  ids = np.arange(1 + a_map.about['private'], 1 + len(known.values))
  own, counts, vectors = a_map.rows[ids], known.counts[ids - 1], vectors[ids]
  row = {'kind': 'plane', 'case': name, 'values': len(ids)}
  row |= {'rows': len(np.unique(own))} | spread(vectors, counts, own)
  found = [row]
  if name == 'films':
    shown = choose_rows(own, counts, TITLES)
    titles = read_titles(pathlib.Path(args.data) / 'ml-1m' / 'movies.dat')
    names = [titles[known.values[i - 1]] for i in ids]
  else:
    shown = choose_rows(own, np.ones(len(own)), (1, len(own)))
    log = learned_hash.make_log(
      learned_hash.choose_data(args, data, seed), args
    )
    kinds = learned_hash_kinds.find_kinds(log, folder / 'small')[table]
    kinds = kinds[ids - 1]
  for bucket, number in shown.items():
    members = np.flatnonzero(own == bucket)
    row = {
      'kind': 'bucket', 'case': f'{name}, row {number}', 'plane': name,
      'bucket': number, 'values': len(members),
      'sightings': int(counts[members].sum()),
    }  # fmt: skip
    if name == 'films':
      row['titles'] = '; '.join(names[i] for i in members)
    else:
      row['of_kind'] = int(np.bincount(kinds[members]).max())
    found.append(row)
  places = project(vectors, counts)
  drawn = np.random.default_rng(0).permutation(len(ids))[:POINTS]
  named = np.flatnonzero(np.isin(own, [*shown]))
  found[0]['points'] = [
    (*(round(float(x), 4) for x in places[i]), shown.get(int(own[i]), 0))
    for i in np.union1d(drawn, named)
  ]
  return found


def choose_rows(
  rows: np.ndarray, weights: np.ndarray, sizes: tuple[int, int]
) -> dict[int, int]:
  """Row -> its number from 1, of those with the largest sums of weights.

  >>> choose_rows(np.array([3, 3, 5, 7]), np.array([1, 1, 9, 1]), (1, 2))
  {5: 1, 3: 2, 7: 3}

  Args:
    rows: of values.
    weights: of values.
    sizes: least and most values of a row.
  """
  sums = np.bincount(rows, weights)
  many = np.bincount(rows)
  sums[(many < max(1, sizes[0])) | (many > sizes[1])] = -1
  order = np.argsort(-sums, kind='stable')[:SHOWN]
  return {int(row): i for i, row in enumerate(order, 1) if sums[row] >= 0}


def spread(vectors, counts, rows) -> dict[str, float]:
  """{'near', 'all'}: mean squared distances, each value by its sightings."""
  weights = counts[:, None]
  middle = np.sum(weights * vectors, axis=0) / np.sum(weights)
  sums = np.zeros((rows.max() + 1, vectors.shape[1]))
  np.add.at(sums, rows, weights * vectors)
  means = sums / np.maximum(np.bincount(rows, counts), 1)[:, None]
  return {
    key: float(np.average(np.sum((vectors - m) ** 2, axis=1), weights=counts))
    for key, m in (('near', means[rows]), ('all', middle))
  }


def project(vectors: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """`[N, 2]`: the first two principal components."""
  middle = np.average(vectors, axis=0, weights=counts)
  covariance = np.cov(vectors.T, aweights=counts)
  axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :2]
  # Their signs are arbitrary: the largest part points up.
  axes *= np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
  return (vectors - middle) @ axes


def read_titles(path: pathlib.Path) -> dict[str, str]:
  """Number of a film -> its title."""
  lines = path.read_text(encoding='latin-1').splitlines()
  return {x[0]: x[1] for x in (line.split('::') for line in lines)}


def draw(rows: list[Mapping]) -> str:
  """Returns the picture of all planes."""
  drawn = []
  for name, (*_, title) in PLANES.items():
    for row in rows:
      if row['kind'] == 'plane' and row['case'] == name:
        drawn.append(_draw_plane(row['points'], f'{title}: vectors by row'))
  return draw_file(drawn, FRAME)


def _draw_plane(points: list, title: str) -> charts.Chart:
  # One scale for both sides: distances are what the picture shows. A few
  # values far out would leave no room for the others.
  places = np.array([(x, y) for x, y, _ in points])
  low, high = np.quantile(places, [0.005, 0.995], axis=0)
  middle, half = (low + high) / 2, 0.55 * (high - low).max()
  inside = np.abs(places - middle).max(axis=1) <= half
  shown = [p for p, near in zip(points, inside, strict=True) if near]
  series = [
    charts.scatter(
      f'row {number}' if number else 'others',
      [(x, y) for x, y, row in shown if row == number],
      pick_color(number - 1) if number else 'muted',
    )
    for number in sorted({row for *_, row in points})
  ]
  x, y = (linear_axis(m - half, m + half) for m in middle)
  return charts.Chart(title, x, y, series)


if __name__ == '__main__':
  main()
