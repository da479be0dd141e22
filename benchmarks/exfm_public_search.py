"""Rates and knobs of benchmarks/exfm_public.py, by what it does not measure.

  python -m benchmarks.exfm_public_search --runs DIR --data DIR

movielens  the first half of the windows of each edition, of which the second
           half is measured: the second quarter of all, and none of those that
           benchmarks/exfm_public.py measures. `ne` of the teacher, which is
           chosen on 100K for both, is that of its scores of one segment, of a
           student that of this segment.
frappe     validation AUC, which also chooses the epoch of each run.

One seed, which is not used there. The best of each method is what
benchmarks/exfm_public.py takes.
"""

import argparse
import pathlib
from collections.abc import Mapping

from benchmarks import cli, exfm_public, exfm_worlds, runs
from benchmarks.exfm_films import FilmWorld
from benchmarks.exfm_public import Case
from benchmarks.exfm_worlds import Teacher

COLUMNS = ('case', 'ne', 'auc', 'valid_auc', 'valid_logloss', 'core_s')
SEED = 101
NOTES = ('The seed is that of this search alone.',)


def list_tries() -> list[tuple[Case, dict]]:
  """(case, knobs); of MovieLens the students of one segment."""
  found = [
    (Case('movielens/100k/segment1', 'teacher'), dict(size=size, rate=rate))
    for rate in (1e-3, 3e-3)
    for size in ('small', 'medium')
  ]
  for edition in exfm_public.EDITIONS:
    films = f'movielens/{edition}/segment1'
    found += [(Case(films, 'none'), dict(rate=x)) for x in (1e-3, 3e-3, 1e-2)]
    for rate, weights in ((3e-3, (1.0, 4.0, 16.0)), (1e-3, (4.0,))):
      for w in weights:
        found += list_methods(films, w, rate=rate)
  for table_l2 in (0.02, 0.05, 0.1):
    found.append((Case('frappe', 'none'), dict(table_l2=table_l2)))
  for table_l2 in (0.05, 0.1):
    for w in (1.0, 4.0):
      found += list_methods('frappe', w, table_l2=table_l2)
  return found


def list_methods(group: str, weight: float, **knobs) -> list[tuple[Case, dict]]:
  """The methods with a teacher, of one weight of its scores."""
  beta = knobs | dict(gradient_scale=weight)
  return [
    (Case(group, 'one_head'), knobs | dict(loss_weight=weight)),
    (Case(group, 'head'), beta),
    (Case(group, 'adapter'), beta),
  ]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm_public_search', __doc__)
  args = exfm_public.parse(parser, argv)
  rows = cli.read_rows(args, 'exfm_public_search')
  tries = list_tries()
  if args.smoke:  # of the edition that is made up
    tries = [
      (Case(case.group.replace('100k', 'latest'), case.method), knobs)
      for case, knobs in tries
      if case.data == 'movielens' and case.method in ('teacher', 'none')
    ][3:5]
  try:
    for case, knobs in tries:
      name = describe(case, knobs)
      if name not in rows and name.startswith(tuple(args.only)):
        rows[name] = {'case': name} | measure(args, case, knobs)
        finish(args, rows)
  except (ValueError, OSError) as error:
    cli.fail(str(error))
  finish(args, rows)


def describe(case: Case, knobs: Mapping) -> str:
  """What rows call a try.

  >>> describe(Case('frappe', 'head'), {'table_l2': 0.1})
  'frappe/head, table_l2 0.1'
  """
  more = [f'{key} {value}' for key, value in knobs.items()]
  return ', '.join([case.name, *more])


def measure(args: argparse.Namespace, case: Case, knobs: Mapping) -> dict:
  """The row of a try, trained unless that was done."""
  row = {'kind': 'try', 'of': case.name, 'knobs': dict(knobs), 'seed': SEED}
  name = describe(case, knobs).replace('/', '_').replace(', ', '_')
  name = 'search_' + name.replace(' ', '_')
  if case.data == 'frappe':
    workdir = exfm_public.make_folds(args).train_student(
      name, SEED, **exfm_public.set_method(case.method, knobs)
    )
    found = exfm_public.read_metrics(runs.read_report(workdir))
    kept = ('valid_auc', 'valid_logloss', 'core_s')
    return row | {key: found[key] for key in kept}
  if case.method == 'teacher':
    world = make_world(args, case, knobs['rate'])
    teacher = Teacher(knobs['size'])
    store = world.score(teacher, 0)
    parts = world.list_parts(case.segment)
    core_s = exfm_worlds.read_core_s(world.train_teacher(teacher))
    ne = exfm_worlds.measure_teacher(store, parts)
    return row | {'ne': ne, 'core_s': core_s}
  world = make_world(args, case, exfm_public.TEACHER_RATE)
  found = exfm_public.train_films(world, case, name, SEED, knobs)
  return row | {key: found[key] for key in ('ne', 'auc', 'core_s')}


def make_world(args: argparse.Namespace, case: Case, rate: float) -> FilmWorld:
  """The first half of the stream of a case, and a teacher of a rate."""
  folder = pathlib.Path(args.runs) / 'movielens' / case.edition / f'seed{SEED}'
  log = exfm_public.make_log(args, case.edition, share=0.5, seed=SEED)
  return FilmWorld(folder / f'teacher_{rate}', log, exfm_public.BATCH, rate)


def finish(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  cli.finish(args, 'exfm_public_search', [*rows.values()], COLUMNS, NOTES)


if __name__ == '__main__':
  main()
