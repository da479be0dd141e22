"""For which films and users of MovieLens a map is worth something.

  python -m benchmarks.learned_hash_deciles --runs DIR --data DIR

Runs of benchmarks/learned_hash.py, which are trained if they are not there:
`identity`, and `hash`, `ordered`, `frequency`, `learned` at 10 and 100 times.
The examples of the test split are cut into ten parts by how often their film
stands in the training split, the most frequent ones first, and by how often
their user does. `seen` is the least of these numbers in a part, `examples` how
many it has. A part ends where the number changes, so that parts are not quite
of one size.

`logloss` is the mean over five seeds, `_std` the deviation between them;
`logloss_diff` the mean difference of equal seeds from `frequency` with as many
rows (of `frequency`: from `hash`), `logloss_ci` half of its 95 % interval
(t, n - 1). Rows that a result file has are not measured again.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks import cli, learned_hash, runs, tbsm, unseen_values
from benchmarks.learned_hash import SEEDS, name_case
from genrec_jax import config as config_lib

COLUMNS = (
  'case', 'seeds', 'seen', 'examples', 'logloss', 'logloss_std', 'logloss_diff',
  'logloss_ci',
)  # fmt: skip
NOTES = (
  'logloss_diff: means over seeds of differences from frequency with as many '
  'rows (of frequency: from hash); logloss_ci half of a 95 % interval '
  '(t, n - 1).',
)
DATA, TABLES, PARTS = 'movielens', ('item', 'user'), 10
# Map -> the one that it is compared with.
AGAINST = {
  'hash': 'frequency',
  'ordered': 'frequency',
  'frequency': 'hash',
  'learned': 'frequency',
}
COMPRESSIONS = (10, 100)


def main(argv: list[str] | None = None) -> None:
  args = learned_hash.parse('learned_hash_deciles', __doc__, argv)
  rows = cli.read_rows(args, 'learned_hash_deciles')
  cli.measure_missing(rows, list_rows(args), lambda: save(args, rows))


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it), in their order."""
  knobs, found = learned_hash.read_knobs(args), []
  cases = [(m, c) for c in COMPRESSIONS for m in AGAINST]
  if args.smoke:
    cases = [('frequency', 10), ('hash', 10)]
  for seed in SEEDS[: 1 if args.smoke else None]:
    for case, times in [('identity', 1), *cases]:
      own = learned_hash.find_knobs(knobs, DATA, case, times)
      measure = functools.partial(measure_run, args, case, times, seed, own)
      found.append((f'{name_case(DATA, case, times)}/seed{seed}', measure))
  return [x for x in found if x[0].startswith(tuple(args.only))]


def measure_run(
  args: argparse.Namespace,
  case: str,
  times: int,
  seed: int,
  knobs: Mapping[str, float],
) -> dict:
  """The row of a run: losses of all parts."""
  _, at = learned_hash.train_case(args, DATA, case, times, seed, knobs)
  losses, counts = score_test(at)
  row = {
    'kind': 'run', 'of': name_case(DATA, case, times), 'seed': seed,
    'map': case, 'compression': times,
  }  # fmt: skip
  for table, seen in counts.items():
    row[table] = cut_parts(losses, seen, PARTS)
  return row


def score_test(
  workdir: pathlib.Path,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """(log loss, {table: sightings of the value in training}) of each example."""
  config = config_lib.load_saved(workdir / 'config.json')
  chance, rows, dataset = unseen_values.score_test(config, workdir)
  labels = rows.labels[:, 0]
  losses = -np.where(labels > 0.5, np.log(chance), np.log1p(-chance))
  names = [c.table_name for c in dataset.encoder.schema.single]
  counts = {}
  for table in TABLES:
    known = dataset.vocabularies[table]
    # Of padding, of known values and of what training has not seen.
    seen = np.zeros(known.rows, np.int64)
    seen[1 : 1 + len(known.counts)] = known.counts
    counts[table] = seen[rows.ids[:, names.index(table)]]
  return losses, counts


def cut_parts(losses: np.ndarray, seen: np.ndarray, parts: int) -> list[dict]:
  """{'seen', 'examples', 'logloss'} of each part, the most frequent first.

  >>> cut_parts(np.arange(4.0), np.array([9, 1, 5, 5]), 2)
  [{'seen': 5, 'examples': 3, 'logloss': 1.6666666666666667},
   {'seen': 1, 'examples': 1, 'logloss': 1.0}]
  """
  order = np.argsort(-seen, kind='stable')
  seen, losses = seen[order], losses[order]
  found, start = [], 0
  for end in np.linspace(0, len(seen), parts + 1).astype(int)[1:]:
    # Equal numbers lie in one part, since their order says nothing.
    end = int(np.searchsorted(-seen, -seen[end - 1], side='right'))
    if end > start:
      own = slice(start, end)
      found.append({
        'seen': int(seen[end - 1]), 'examples': end - start,
        'logloss': float(losses[own].mean()),
      })  # fmt: skip
      start = end
  return found


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes the rows, and a mean over seeds for each part."""
  own = [row for row in rows.values() if row.get('kind') == 'run']
  by_case, means = runs.group_by_seed(own), []
  for name, of in by_case.items():
    first = next(iter(of.values()))
    against = AGAINST.get(first['map'], '')
    base = by_case.get(name_case(DATA, against, first['compression']), {})
    for table in TABLES:
      for i, part in enumerate(first[table]):
        mean = {
          'case': f'{name}, {table} {i + 1}', 'kind': 'mean', 'table': table,
          'part': i + 1, 'seeds': len(of), 'map': first['map'],
          'compression': first['compression'],
        } | {key: part[key] for key in ('seen', 'examples')}  # fmt: skip
        losses = {s: row[table][i]['logloss'] for s, row in of.items()}
        mean |= runs.over_seeds('logloss', [*losses.values()])
        if both := [s for s in of if s in base]:
          others = {s: base[s][table][i]['logloss'] for s in both}
          differences = [losses[s] - others[s] for s in both]
          mean |= tbsm.compare('logloss', differences)
        means.append(mean)
  cli.finish(args, 'learned_hash_deciles', [*own, *means], COLUMNS, NOTES)


if __name__ == '__main__':
  main()
