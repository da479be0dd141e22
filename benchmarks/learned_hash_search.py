"""Rates, L2 of rows and private shares of maps, chosen by validation.

  python -m benchmarks.learned_hash_search --runs DIR --data DIR
  python -m benchmarks.learned_hash_search --runs DIR --only clicks/2000

As many trials for each map of benchmarks/learned_hash.py, at 2, 10 and 100
times, and for a row for each value: first three rates of rows, then two
strengths of their L2 with the best of these. A map with a share of rows for one
value alone has two shares then, any other one two rates of everything else. The
data are those of the seed of this search alone, of which no other figure is
told; films have the same rows for all seeds. `valid_logloss` is of the
validation split, and the test split is not looked at.

Rows that a result file has are not measured again.
"""

import argparse
from collections.abc import Mapping, Sequence

from benchmarks import cli, learned_hash
from benchmarks.learned_hash import DATA, SEARCHED, SHARED
from benchmarks.result import CoreTimer

COLUMNS = ('case', 'valid_logloss', 'valid_auc', 'core_s')
SEED = 101
RATE = 1e-3  # of everything but rows
ROWS_RATES = (1e-3, 3e-3, 1e-2)
STRENGTHS = (1e-5, 1e-4)  # of L2
RATES = (3e-4, 3e-3)
SHARE, OTHER_SHARES = 0.5, (0.0, 0.9)
NOTES = ('The seed is that of this search alone; nothing is tested.',)


def main(argv: list[str] | None = None) -> None:
  args = learned_hash.parse('learned_hash_search', __doc__, argv)
  rows = cli.read_rows(args, 'learned_hash_search')
  try:
    for data, case, times in list_searches(args):
      start = f'{learned_hash.name_case(data, case, times)}, '
      while True:
        own = [r for r in rows.values() if r['case'].startswith(start)]
        knobs = suggest_knobs(own, case in SHARED)
        if not knobs or args.smoke and own:
          break
        name = start + ', '.join(f'{k} {v:g}' for k, v in knobs.items())
        try:
          row = measure(args, data, case, times, knobs)
        except learned_hash.TooFewRowsError:
          break
        rows[name] = {'case': name} | row
        save(args, rows)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  save(args, rows)


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes all rows."""
  cli.finish(args, 'learned_hash_search', [*rows.values()], COLUMNS, NOTES)


def list_searches(args: argparse.Namespace) -> list[tuple[str, str, int]]:
  """(data set, map, compression) of all searches that are wanted."""
  found = []
  for data, known in DATA.items():
    if not known.is_searched or not known.is_there(args):
      continue
    cases = [(m, c) for c in SEARCHED for m in known.maps]
    if args.smoke:
      cases = [('learned', 10), ('hash', 10)]
    found += [(data, *case) for case in [('identity', 1), *cases]]
  return [
    search
    for search in found
    if learned_hash.name_case(*search).startswith(tuple(args.only))
  ]


def suggest_knobs(
  tried: Sequence[Mapping], shared: bool
) -> dict[str, float] | None:
  """What to try next; None when all has been tried.

  >>> suggest_knobs([], shared=True)
  {'rate': 0.001, 'rows_rate': 0.001, 'l2': 0.0, 'share': 0.5}

  Args:
    tried: rows with 'knobs' and 'valid_logloss'.
    shared: whether the map has a share of rows for one value alone.
  """
  first = {'rate': RATE, 'rows_rate': ROWS_RATES[0], 'l2': 0.0}
  first |= {'share': SHARE} if shared else {}
  known = {tuple(row['knobs'].items()) for row in tried}

  def pick_new(near: Mapping, key: str, values) -> dict | None:
    changed = ({**near, key: value} for value in values)
    return next((k for k in changed if tuple(k.items()) not in known), None)

  if found := pick_new(first, 'rows_rate', ROWS_RATES):
    return found
  # The stages stay what they were when the first of theirs was tried.
  best = _find_best(tried[: len(ROWS_RATES)])
  if found := pick_new(best, 'l2', STRENGTHS):
    return found
  best = _find_best(tried[: len(ROWS_RATES) + len(STRENGTHS)])
  key, values = ('share', OTHER_SHARES) if shared else ('rate', RATES)
  return pick_new(best, key, values)


def _find_best(tried: Sequence[Mapping]) -> dict[str, float]:
  return dict(min(tried, key=lambda row: row['valid_logloss'])['knobs'])


def measure(
  args: argparse.Namespace,
  data: str,
  case: str,
  times: int,
  knobs: Mapping[str, float],
) -> dict:
  """The row of a try."""
  with CoreTimer() as timer:
    metrics, _ = learned_hash.train_case(args, data, case, times, SEED, knobs)
  return {
    'kind': 'try', 'data': data, 'map': case, 'compression': times,
    'knobs': dict(knobs), 'seed': SEED,
    'valid_logloss': metrics['valid']['logloss'],
    'valid_auc': metrics['valid']['auc'], 'core_s': timer.core_s,
  }  # fmt: skip


if __name__ == '__main__':
  main()
