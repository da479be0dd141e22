"""TBSM, its parts and its baselines on a generated stream and on MovieLens.

  python -m benchmarks.tbsm --runs DIR --data DIR
  python -m benchmarks.tbsm --runs DIR --data DIR --only interests movielens/1m

DIR of the data holds ml-100k, ml-latest-small and ml-1m.

interests         the stream of `data.interests`: 10,000 users, ten impressions
                  each, users in one split alone. A seed has a stream of its
                  own, with its true probabilities: `floor` is the least NE of
                  its test split, `best_auc` the largest AUC
                  (`interests.find_bounds`).
movielens/1m      a user's next film or a random one, 40 examples a user.
movielens/100k    the same, all examples, `def` and the baselines alone.
movielens/latest  likewise. Of all editions `popularity_auc` is the AUC of the
                  number of positives that a film has in training.

`def` is TBSM with one head, told the place and the age of events, and not the
user. Of what stands around it one thing differs: the mechanism (ind, dot), the
weights (mul), heads, k-sequences of four heads, what is told of time (no age,
no place, no time), the projection, and whether the tower reads the user's id,
whose row was never trained for a user who tests, and the tower, whose vectors
are concatenated; in the `dot tower` they meet in inner products, of which there
are three without the user. K-sequences are compared with four heads. Heads have
parameters of their own: see `parameters`. Baselines have as many as `def`
beside the tables; their rates, L2 and dropout were searched as often as those
of `def`, `ind` and `dot` (benchmarks/tbsm_search.py), and the others have those
of `def`.

movielens/100k/leak  what users who train and test are worth. The tested rows
                  are half of those of users that no other split has: their last
                  ones (`order`) or any (`random`). `shared` trains on the other
                  half, too, and on as many rows less of other users, which are
                  all that `apart` trains on: both train on as many. Each also
                  with the user's id (`apart, id`, `shared, id`). No tested row
                  is trained; the public code draws windows of training and
                  validation from the same histories, and may draw one twice.

`auc`, `gauc` (within a user), `ne` and `logloss` are of the test split, with
the weights that validated best. Rows of kind 'mean' are over seeds, `_std` the
deviation between them; `_diff` is the mean difference from `def` (of the leak,
from `apart`) of the same seed, `_ci` half of its 95 % interval (t, n - 1).
`parameters` are those beside the tables. `core_s` is what training and
evaluations took, `run_core_s` the whole process. `capped` is the share of runs
that were best in the last epoch allowed.

Rows that a result file has are not measured again, and what has been trained
stays in DIR: the same command continues.
"""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from benchmarks import cli, frappe, runs, tbsm_search
from benchmarks.tbsm_knobs import KNOBS
from benchmarks.tbsm_search import BASELINES, EVENTS
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import (
  behaviour_rows,
  interests,
  movielens_clicks,
  popularity,
  raw,
)

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'auc_diff', 'auc_ci', 'gauc', 'gauc_diff',
  'gauc_ci', 'ne', 'ne_std', 'ne_diff', 'ne_ci', 'logloss', 'floor',
  'best_auc', 'popularity_auc', 'parameters', 'epochs', 'capped', 'core_s',
  'run_core_s',
)  # fmt: skip
METRICS = ('auc', 'gauc', 'ne', 'logloss')
KNOWN = ('floor', 'best_auc', 'popularity_auc')  # without a model
SEEDS = (1, 2, 3, 4, 5)
NO_AGE = ('user', 'history_age')
# What is varied around `def` -> the fields of the model that differ.
AROUND = {
  'ind': dict(mechanism='ind'),
  'dot': dict(mechanism='dot'),
  'mul': dict(weights='mul'),
  'heads 2': dict(heads=2),
  'heads 4': dict(heads=4),
  'heads 8': dict(heads=8),
  'k-sequences': dict(heads=4, k_sequences=True),
  'no age': dict(leave_out=NO_AGE),
  'no place': dict(position=False),
  'no time': dict(leave_out=NO_AGE, position=False),
  'no projection': dict(projection=False),
  'dot tower': dict(interaction='dot'),
  'user id': dict(leave_out=()),
}
# What is compared with another case than `def`.
BESIDE = {'k-sequences': 'heads 4'}
LEAK = 'movielens/100k/leak'
LEAKS = tuple(
  f'{by}/{trained}'
  for by in ('order', 'random')
  for trained in ('apart', 'apart, id', 'shared', 'shared, id')
)
# More users test than usual, since half of their rows do.
LEAK_SHARES = dict(valid_share=0.1, test_share=0.3)
NOTES = (
  'auc_diff, gauc_diff, ne_diff, logloss_diff: means over seeds of differences '
  'from the case that `against` names, between runs of equal seeds; _ci half '
  'of a 95 % interval (t, n - 1).',
  'The knobs of def, ind, dot and of each baseline were searched by '
  'validation, as often for each; what else is varied has those of def.',
)


@dataclasses.dataclass(frozen=True)
class Group:
  """A data set, and what is trained on it.

  Attributes:
    name: as rows begin.
    data: key of `tbsm_search.DATA`.
    seeds: how many.
    cases: what is trained: 'def', keys of AROUND, BASELINES, or LEAKS.
    run_core_s: of a whole process of `def`, measured on two cores.
  """

  name: str
  data: str
  seeds: int
  cases: tuple[str, ...]
  run_core_s: float

  @property
  def knobs(self) -> Mapping[str, Mapping[str, float]]:
    """Those of KNOBS."""
    return KNOBS[self.data.partition('/')[0]]

  @property
  def config(self) -> str:
    """File of the config."""
    return tbsm_search.CONFIGS[self.data.partition('/')[0]]


def list_groups() -> list[Group]:
  """All of them, in the order of training."""
  everything, some = ('def', *AROUND, *BASELINES), ('def', *BASELINES)
  return [
    Group('interests', 'interests', 5, everything, 95.0),
    Group('movielens/1m', 'movielens/1m', 5, everything, 45.0),
    Group('movielens/100k', 'movielens/100k', 3, some, 30.0),
    Group('movielens/latest', 'movielens/latest', 3, some, 30.0),
    Group(LEAK, 'movielens/100k', 3, LEAKS, 30.0),
  ]


def main(argv: list[str] | None = None) -> None:
  args = tbsm_search.parse(cli.parser('tbsm', __doc__), argv)
  rows = cli.read_rows(args, 'tbsm')
  try:
    wanted = list_rows(args)
    print(estimate(rows, [name for name, _ in wanted]))
    for name, measure in wanted:
      if name not in rows or is_stale(rows[name]):
        rows[name] = {'case': name} | measure()
        save(args, rows, split_name(name)[0])
    for group in dict.fromkeys(split_name(name)[0] for name, _ in wanted):
      save(args, rows, group)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))


def is_stale(row: Mapping) -> bool:
  """Whether a row is of a run with other knobs than those chosen now."""
  if 'knobs' not in row:
    return False
  group = next(g for g in list_groups() if g.name == row['group'])
  of = 'def' if group.name == LEAK else describe_model(row['variant'])[0]
  return dict(row['knobs']) != dict(group.knobs[of])


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it) of what is wanted, in their order."""
  found = []
  for group in list_groups():
    for seed in SEEDS[: 1 if args.smoke else group.seeds]:
      if group.name != LEAK:
        measure = functools.partial(describe_data, args, group, seed)
        found.append((f'{group.name}/data/seed{seed}', measure))
      for case in group.cases:
        measure = functools.partial(measure_run, args, group, case, seed)
        found.append((f'{group.name}/{case}/seed{seed}', measure))
  wanted = [x for x in found if x[0].startswith(tuple(args.only))]
  if not wanted:
    raise ValueError(f'there is no case that begins with {args.only}')
  return wanted


def estimate(rows: Mapping[str, Mapping], wanted: Iterable[str]) -> str:
  """How long all wanted runs take, and those that are not there yet.

  >>> estimate({}, ['interests/def/seed1', 'interests/data/seed1'])
  '0.03 core-hours for 1 runs, of which 0.03 for 1 that are not there'

  Args:
    rows: what was measured; a group without runs has the figure of `Group`.
    wanted: names of rows.
  """
  costs, planned, missing = {}, [], []
  for group in list_groups():
    found = [
      row['run_core_s']
      for row in rows.values()
      if row.get('group') == group.name and 'run_core_s' in row
    ]
    costs[group.name] = float(np.mean(found)) if found else group.run_core_s
  for name in wanted:
    group, case = split_name(name)
    if case != 'data':
      planned.append(costs[group])
      missing += [costs[group]] if name not in rows else []
  return (
    f'{sum(planned) / 3600:.2f} core-hours for {len(planned)} runs, of which '
    f'{sum(missing) / 3600:.2f} for {len(missing)} that are not there'
  )


def split_name(name: str) -> tuple[str, str]:
  """The group and the case of the name of a row.

  >>> split_name('movielens/100k/leak/order/shared, id/seed2')
  ('movielens/100k/leak', 'order/shared, id')
  """
  whole = name.rpartition('/seed')[0]
  groups = [g.name for g in list_groups() if whole.startswith(f'{g.name}/')]
  group = max(groups, key=len)
  return group, whole.removeprefix(f'{group}/')


def measure_run(
  args: argparse.Namespace, group: Group, case: str, seed: int
) -> dict:
  """The row of a run, trained unless it has ended."""
  folder = pathlib.Path(args.runs).resolve() / group.name.replace('/', '_')
  data = tbsm_search.choose_data(args, group.data, seed)
  if group.name == LEAK:
    of, fields = 'def', {'leave_out': () if 'id' in case else ('user',)}
    against = f'{group.name}/{case.partition("/")[0]}/apart'
    data = write_leak(folder, case, data)
  else:
    of, fields = describe_model(case)
    against = f'{group.name}/{BESIDE.get(case, "def")}'
    data['data.cache'] = str(folder / f'data_seed{seed}')
  options = {
    **data,
    **tbsm_search.choose_model(of, fields),
    **tbsm_search.set_knobs(group.knobs[of]),
  }
  workdir = tbsm_search.name_workdir(folder, f'{case}_seed{seed}', options)
  report, whole = tbsm_search.train(
    args, f'{group.config}:{of}', workdir, options
  )
  row = {'kind': 'run', 'of': f'{group.name}/{case}', 'group': group.name}
  row |= {'variant': case, 'seed': seed, 'against': against}
  row |= {key: report['metrics']['test'][key] for key in METRICS}
  return row | {
    'valid_logloss': report['metrics']['valid']['logloss'],
    'parameters': report['parameters']['model'],
    'epochs': frappe.best_epoch(report, workdir),
    'capped': tbsm_search.is_capped(report, workdir, options),
    'core_s': report['core_s'],
    'knobs': dict(group.knobs[of]),
  } | whole  # fmt: skip


def describe_model(case: str) -> tuple[str, dict]:
  """The variant of the config, and the fields of the model that differ.

  >>> describe_model('heads 2'), describe_model('ind'), describe_model('gru')
  (('def', {'heads': 2}), ('ind', {}), ('gru', {}))

  Args:
    case: 'def', a key of AROUND, or a baseline.
  """
  if case in BASELINES:
    return case, {}
  fields = dict(AROUND.get(case, {}))
  return fields.pop('mechanism', 'def'), fields


def describe_data(args: argparse.Namespace, group: Group, seed: int) -> dict:
  """What the data of a seed are, and what is known of them without a model."""
  row = {'kind': 'data', 'of': f'{group.name}/data', 'group': group.name}
  row |= {'variant': 'data', 'seed': seed}
  options = tbsm_search.choose_data(args, group.data, seed)
  if group.data == 'interests':
    log = interests.InterestLog(**take_section(options, 'interests'))
    probability = interests.read_probabilities(log, 'test')
    bounds = interests.find_bounds(probability)
    found = {'floor': bounds.ne, 'best_auc': bounds.auc}
    return row | found | {'test_rows': len(probability)}
  clicks = open_films(options)

  def read(split: str) -> Iterator[raw.RawChunk]:
    return clicks.read_chunks(popularity.COLUMNS, split)

  score = popularity.Popularity(read('train'))
  trained, tested = (popularity.count_rows(read(x)) for x in ('train', 'test'))
  return row | {
    'popularity_auc': score.measure_auc(read('test')),
    'same_second': clicks.measure_ties(),
    'train_rows': trained.rows,
    'test_rows': tested.rows,
    'test_users': tested.users,
  }


def open_films(
  options: Mapping[str, object], **more
) -> movielens_clicks.MovielensClicks:
  """The examples of MovieLens that keys of a config describe."""
  own = take_section(options, 'movielens_clicks') | more
  return movielens_clicks.MovielensClicks(
    str(options['data.path']), movielens_clicks.MovielensClickOptions(**own)
  )


def take_section(options: Mapping[str, object], name: str) -> dict:
  """The keys of `data.NAME`.

  >>> take_section({'seed': 1, 'data.interests.users': 7}, 'interests')
  {'users': 7}
  """
  start = f'data.{name}.'
  return {
    key.removeprefix(start): value
    for key, value in options.items()
    if key.startswith(start)
  }


def write_leak(
  folder: pathlib.Path, case: str, options: Mapping[str, object]
) -> dict:
  """Writes the rows of a case of the leak, unless they are there.

  Args:
    folder: of the group.
    case: 'order/shared, id' for one.
    options: keys that choose an edition of MovieLens, and a seed.

  Returns:
    Keys that choose these rows instead.
  """
  by, trained = case.removesuffix(', id').split('/')
  folder = folder / f'rows_{by}_seed{options["seed"]}'
  if not (folder / 'test.parquet').exists():  # which is written last
    clicks = open_films(options, **LEAK_SHARES)
    rows = {x: read_table(clicks, x) for x in ('train', 'valid', 'test')}
    own = rows['test']['user'].to_numpy()
    at = cut_leak(own, len(rows['train']), by, int(options['seed']))
    shared = [rows['train'].take(at['kept']), rows['test'].take(at['own'])]
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in {
      'apart': rows['train'],
      'shared': pa.concat_tables(shared),
      'valid': rows['valid'],
      'test': rows['test'].take(at['tested']),
    }.items():
      pq.write_table(table, folder / f'{name}.parquet')
  kept = {k: v for k, v in options.items() if '.movielens_clicks.' not in k}
  files = {'train': trained, 'valid': 'valid', 'test': 'test'}
  return {
    **kept,
    'data.name': 'parquet',
    'data.path': str(folder),
    'data.cache': str(folder / f'data_{trained}'),
    **{f'data.files.{of}': f'{file}.parquet' for of, file in files.items()},
    **tbsm_search.choose_features(EVENTS),
  }


def read_table(clicks: movielens_clicks.MovielensClicks, split: str):
  """The rows of a split as a table of Arrow."""
  names = ('label', *behaviour_rows.choose_features(EVENTS))
  tables = []
  for chunk in clicks.read_chunks(names, split):
    columns = {x: to_array(column) for x, column in chunk.columns.items()}
    tables.append(pa.table(columns))
  return pa.concat_tables(tables)


def to_array(column: raw.Column):
  """The column of a chunk as an array of Arrow."""
  if isinstance(column, raw.NumberColumn):
    return pa.array(column.values)
  if isinstance(column, raw.ListColumn):
    ends = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), to_array(column.values))
  return pa.array(list(column))


def cut_leak(
  user: np.ndarray, others: int, by: str, seed: int
) -> dict[str, np.ndarray]:
  """Which rows are tested, and which ones train beside other users'.

  >>> at = cut_leak(np.array([7, 7, 7, 8, 8]), 10, 'order', 0)
  >>> at['own'].tolist(), at['tested'].tolist(), len(at['kept'])
  ([0, 1, 3], [2, 4], 7)

  Args:
    user: `[N]` of each row of users that no other split has, those of one side
      by side and in the order of time.
    others: rows of other users.
    by: 'order' tests the last half of each user's rows, 'random' any half.
    seed: of all draws.

  Returns:
    'tested' and 'own', rows of these users, and 'kept', those of others that
    train beside 'own': as many less.
  """
  rng = np.random.default_rng([seed, 26])
  draw = rng.random(len(user))
  counts = np.unique(user, return_counts=True)[1]
  place = np.concatenate([np.arange(n) for n in counts])
  rank = np.empty(len(user), np.int64)
  rank[np.lexsort((place if by == 'order' else draw, user))] = place
  is_tested = rank >= np.repeat((counts + 1) // 2, counts)
  own = np.flatnonzero(~is_tested)
  kept = np.sort(rng.permutation(others)[: max(others - len(own), 0)])
  return {'tested': np.flatnonzero(is_tested), 'own': own, 'kept': kept}


def save(
  args: argparse.Namespace, rows: Mapping[str, Mapping], group: str
) -> None:
  """Writes the rows of a group, and their means."""
  own = [
    row
    for row in rows.values()
    if 'seed' in row and row['group'] == group  # and no mean
  ]
  cli.finish(args, 'tbsm', [*own, *average(own)], COLUMNS, NOTES)


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and how it differs from another one."""
  by_case = runs.group_by_seed(rows)
  found = []
  for name, of in by_case.items():
    first = next(iter(of.values()))
    kind = 'mean' if first['kind'] == 'run' else 'known'
    mean = {'case': name, 'kind': kind, 'seeds': len(of)}
    mean |= {key: first[key] for key in ('group', 'variant')}
    if 'parameters' in first:
      mean['parameters'] = first['parameters']
    for key in (*METRICS, *KNOWN, 'epochs', 'capped', 'core_s', 'run_core_s'):
      if values := [row[key] for row in of.values() if key in row]:
        mean |= runs.over_seeds(key, values)
    against = first.get('against', name)
    base = by_case.get(against, {})
    both = [(of[seed], base[seed]) for seed in of if seed in base]
    if both and against != name:
      mean['against'] = against
      for key in METRICS:
        mean |= compare(key, [a[key] - b[key] for a, b in both])
    found.append(mean)
  return found


def compare(key: str, differences: Sequence[float]) -> dict[str, float]:
  """Their mean, and half of its 95 % interval.

  >>> found = compare('auc', [1.0, 2.0, 3.0])
  >>> found['auc_diff'], round(found['auc_ci'], 3)
  (2.0, 2.484)
  """
  found = {f'{key}_diff': float(np.mean(differences))}
  if (count := len(differences)) > 1:
    error = np.std(differences, ddof=1) / count**0.5
    found[f'{key}_ci'] = float(stats.t.ppf(0.975, count - 1) * error)
  return found


if __name__ == '__main__':
  main()
