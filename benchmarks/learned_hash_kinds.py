"""Kinds of generated values that are alike, beside the rows of a map."""

import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from genrec_jax.data.ranking import clicks, interests, saved_encoder
from genrec_jax.embedding.learned_map import MapFile

DECILES = 10


def find_floor(log: clicks.ClickLog) -> float:
  """The least NE of the test split, of the true probabilities."""
  test = log.rows - round(0.1 * log.rows)
  return interests.find_bounds(clicks.true_probabilities(log, test)).ne


def find_kinds(log: clicks.ClickLog, workdir: pathlib.Path) -> dict:
  """Field -> the kind of each known value, in the order of its ids."""
  planted = clicks.PlantedSignal(log).find_kinds()
  vocabularies = saved_encoder.load_encoder(workdir).vocabularies
  return {
    f'c{i}': kinds[np.array(vocabularies[f'c{i}'].values, int)]
    for i, kinds in enumerate(planted)
  }


def write_oracle(
  log: clicks.ClickLog,
  workdir: pathlib.Path,
  out: pathlib.Path,
  count_rows: Callable[[int], int],
) -> dict[str, pathlib.Path]:
  """Writes maps in which the values of a kind share a row.

  Args:
    log: what was generated.
    workdir: of a run of it.
    out: directory of the files.
    count_rows: ids of a table -> its rows.

  Returns:
    Table -> file of its map.
  """
  vocabularies = saved_encoder.load_encoder(workdir).vocabularies
  found = {}
  for name, kinds in find_kinds(log, workdir).items():
    ids = vocabularies[name].rows
    count = count_rows(ids)
    rows = np.zeros(ids, np.int32)
    rows[1 : 1 + len(kinds)] = 1 + kinds % (count - 2)
    rows[1 + len(kinds) :] = count - 1
    found[name] = out / f'{name}_{count}.npz'
    fingerprint = vocabularies[name].fingerprint()
    MapFile(name, rows, count, fingerprint).save(found[name])
  return found


def compare(
  log: clicks.ClickLog, workdir: pathlib.Path, maps: pathlib.Path
) -> dict[str, float]:
  """How well the rows of learned maps are kinds; means over the fields.

  Args:
    log: what was generated.
    workdir: of a run of it.
    maps: directory of the maps.

  Returns:
    `rand` (adjusted Rand index) and `alike` (`find_alike`) of the values that
    have no row alone; `rand_1`, `alike_1` and `seen_1` (the median number of
    sightings in training) to `_10` of each tenth of all values.
  """
  vocabularies = saved_encoder.load_encoder(workdir).vocabularies
  scores: dict[str, list[float]] = {}

  def note(end: str, kinds, rows) -> None:
    for key, value in score(kinds, rows).items():
      scores.setdefault(key + end, []).append(value)

  for name, kinds in find_kinds(log, workdir).items():
    a_map = MapFile.load(maps / f'{name}.npz')
    rows = a_map.rows[1 : 1 + len(kinds)]
    alone = a_map.about['private']
    counts = vocabularies[name].counts
    note('', kinds[alone:], rows[alone:])
    ends = np.linspace(0, len(kinds), DECILES + 1).astype(int)
    for i, (start, end) in enumerate(zip(ends, ends[1:], strict=False), 1):
      note(f'_{i}', kinds[start:end], rows[start:end])
      seen = float(np.median(counts[start:end]))
      scores.setdefault(f'seen_{i}', []).append(seen)
  return {key: float(np.mean(values)) for key, values in scores.items()}


def score(kinds: np.ndarray, rows: np.ndarray) -> Mapping[str, float]:
  """{'rand', and 'alike' where rows are shared} of values."""
  from sklearn.metrics import adjusted_rand_score

  found = {'rand': float(adjusted_rand_score(kinds, rows))}
  alike = find_alike(kinds, rows)
  return found if np.isnan(alike) else found | {'alike': alike}


def find_alike(kinds: np.ndarray, rows: np.ndarray) -> float:
  """Of all pairs of values on one row, the share of one kind.

  Unlike the Rand index, it does not fall where a kind has several rows.

  >>> find_alike(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 6]))
  0.3333333333333333
  """
  both = np.unique(np.stack([kinds, rows]), axis=1, return_counts=True)[1]
  of_rows = np.unique(rows, return_counts=True)[1]
  pairs = np.sum(of_rows * (of_rows - 1))
  return float(np.sum(both * (both - 1)) / pairs) if pairs else float('nan')
