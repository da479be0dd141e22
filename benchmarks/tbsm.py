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
weights (mul), heads, k-sequences, what is told of time (no age, no place, no
time), the projection, and whether the tower reads the user's id, whose row was
never trained for a user who tests. Baselines have as many parameters as `def`
beside the tables (`match_size`); their rates, L2 and dropout were searched as
those of TBSM were (benchmarks/tbsm_search.py), and what stands around `def` has
its own.

movielens/100k/leak  what users who train and test are worth. The tested rows
                  are half of those of users that no other split has: their last
                  ones (`order`) or any (`random`). `shared` trains on the other
                  half, too, and `apart` on as many rows of other users
                  instead; `shared, id` and `apart, id` also read the user's id.

`auc`, `gauc` (within a user), `ne` and `logloss` are of the test split, with
the weights that validated best. Rows of kind 'mean' are over seeds, `_std` the
deviation between them; `_diff` is the mean difference from `def` (of the leak,
from `apart`) of the same seed, `_ci` half of its 95 % interval (t, n - 1).
`parameters` are those beside the tables. `core_s` is what training and
evaluations took, `run_core_s` the whole process.

Rows that a result file has are not measured again, and what has been trained
stays in DIR: the same command continues.
"""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
from flax import nnx
from scipy import stats

from benchmarks import cli, exfm_films, frappe, runs
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.config import event_models
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import (
  behaviour_rows,
  interests,
  movielens_clicks,
  popularity,
  raw,
)
from genrec_jax.features import FeatureSpec
from genrec_jax.models import tbsm

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'auc_diff', 'auc_ci', 'gauc', 'gauc_diff',
  'gauc_ci', 'ne', 'ne_std', 'ne_diff', 'ne_ci', 'logloss', 'floor',
  'best_auc', 'popularity_auc', 'parameters', 'epochs', 'core_s', 'run_core_s',
)  # fmt: skip
METRICS = ('auc', 'gauc', 'ne', 'logloss')
BASELINES = event_models.BASELINES
EVENTS = 20  # of a history
SEEDS = (1, 2, 3, 4, 5)
EDITIONS = {'1m': 'ml-1m', '100k': 'ml-100k', 'latest': 'ml-latest-small'}
# What is widened or narrowed until a baseline is as large as `def`.
WIDTHS = {
  'mean': 'hidden',
  'concat': 'hidden',
  'attention': 'hidden',
  'gru': 'recurrent_width',
  'lstm': 'recurrent_width',
  'din': 'attention_hidden',
}
NO_AGE = ('user', 'history_age')
# What is varied around `def` -> what of the model differs.
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
  'user id': dict(leave_out=()),
}
# As benchmarks/tbsm_search.py --knobs prints them; until it was run, one guess.
KNOBS = {
  'interests': {
    'def': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'ind': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'dot': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'mean': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'concat': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'attention': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'gru': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'lstm': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
    'din': dict(rate=3e-3, rows_rate=3e-3, table_l2=0.0, dropout=0.0),
  },
  'movielens': {
    'def': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'ind': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'dot': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'mean': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'concat': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'attention': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'gru': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'lstm': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
    'din': dict(rate=3e-3, rows_rate=1e-3, table_l2=0.0, dropout=0.0),
  },
}
LEAK = 'movielens/100k/leak'
LEAKS = [
  f'{by}/{trained}'
  for by in ('order', 'random')
  for trained in ('apart', 'apart, id', 'shared', 'shared, id')
]
LEAK_SHARES = dict(valid_share=0.1, test_share=0.3)
NOTES = (
  'auc_diff, gauc_diff, ne_diff, logloss_diff: means over seeds of differences '
  'from the row that `against` names, between runs of equal seeds; _ci half of '
  'a 95 % interval (t, n - 1).',
  'The knobs of def and of each baseline were searched by validation, as often '
  'for each; what is varied around def has those of def, but for ind and dot.',
)


@dataclasses.dataclass(frozen=True)
class Group:
  """A data set, and what is trained on it.

  Attributes:
    name: as rows begin.
    config: file of the config.
    seeds: how many.
    cases: what is trained: 'def', keys of AROUND, BASELINES, or LEAKS.
    options: keys that differ from the config.
    run_core_s: of a whole process of `def`, measured on two cores.
  """

  name: str
  config: str
  seeds: int
  cases: tuple[str, ...]
  options: Mapping[str, object]
  run_core_s: float

  @property
  def data(self) -> str:
    """'interests' or 'movielens', as keys of KNOBS.

    >>> list_groups()[1].name, list_groups()[1].data
    ('movielens/1m', 'movielens')
    """
    return self.name.partition('/')[0]

  @property
  def edition(self) -> str:
    """Of MovieLens; '' of the stream."""
    return (*self.name.split('/'), '')[1]


def list_groups() -> list[Group]:
  """All of them, in the order of training."""
  everything = ('def', *AROUND, *BASELINES)
  some = ('def', *BASELINES)
  stream = {
    'data.group': 'user',
    'data.interests.users': 10_000,
    'data.interests.history': EVENTS,
    'train.epochs': 20,
    'train.patience': 3,
  }
  films = {'data.movielens_clicks.history': EVENTS, 'train.epochs': 10}
  of_1m = films | {'data.movielens_clicks.windows': 40}
  synthetic, movielens = 'configs/tbsm_synthetic.py', 'configs/tbsm_movielens.py'
  return [
    Group('interests', synthetic, 5, everything, stream, 80.0),
    Group('movielens/1m', movielens, 5, everything, of_1m, 70.0),
    Group('movielens/100k', movielens, 3, some, films, 50.0),
    Group('movielens/latest', movielens, 3, some, films, 50.0),
    Group(LEAK, movielens, 3, tuple(LEAKS), films, 40.0),
  ]


def main(argv: list[str] | None = None) -> None:
  args = parse(cli.parser('tbsm', __doc__), argv)
  rows = cli.read_rows(args, 'tbsm')
  try:
    wanted = list_rows(args)
    print(estimate(rows, [name for name, _ in wanted]))
    for name, measure in wanted:
      if name not in rows:
        rows[name] = {'case': name} | measure()
        save(args, rows)
    save(args, rows)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))


def parse(
  parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
  """The options of the command line, with made-up films for --smoke."""
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--data', help='directory of the editions of MovieLens')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as interests or movielens/1m/gru',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if args.smoke:
    folder = pathlib.Path(args.runs) / 'made_up'
    for name in EDITIONS.values():
      exfm_films.invent_films(folder / name)
    args.data = str(folder)
  elif not args.data:
    parser.error('--data DIR is needed, with ml-1m, ml-100k, ml-latest-small')
  return args


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
  '0.0 core-hours for 1 runs, of which 0.0 for 1 that are not there yet'

  Args:
    rows: what was measured; a group without runs has the figure of `Group`.
    wanted: names of rows.
  """
  costs, runs_of, missing = {}, [], []
  for group in list_groups():
    found = [
      row['run_core_s']
      for name, row in rows.items()
      if name.startswith(f'{group.name}/') and 'run_core_s' in row
    ]
    costs[group.name] = float(np.mean(found)) if found else group.run_core_s
  for name in wanted:
    of, case, _ = split_name(name)
    if case != 'data':
      runs_of.append(costs[of])
      missing += [costs[of]] if name not in rows else []
  return (
    f'{sum(runs_of) / 3600:.1f} core-hours for {len(runs_of)} runs, of which '
    f'{sum(missing) / 3600:.1f} for {len(missing)} that are not there yet'
  )


def split_name(name: str) -> tuple[str, str, int]:
  """The group, the case and the seed of the name of a row.

  >>> split_name('movielens/100k/leak/order/shared, id/seed2')
  ('movielens/100k/leak', 'order/shared, id', 2)
  """
  whole, _, seed = name.rpartition('/seed')
  groups = sorted((g.name for g in list_groups()), key=len)
  group = [g for g in groups if whole.startswith(f'{g}/')][-1]
  return group, whole.removeprefix(f'{group}/'), int(seed)


def measure_run(
  args: argparse.Namespace, group: Group, case: str, seed: int
) -> dict:
  """The row of a run, trained unless it has ended."""
  folder = pathlib.Path(args.runs).resolve() / group.name.replace('/', '_')
  if group.name == LEAK:
    of, data = 'def', write_leak(args, group, case, seed)
    model = dict(leave_out=() if case.endswith('id') else ('user',))
    against = f'{group.name}/{case.split("/")[0]}/apart'
  else:
    of, model = describe_model(case)
    data = set_data(args, group, seed)
    data['data.cache'] = str(folder / f'data_seed{seed}')
    against = f'{group.name}/def'
  options = {
    'seed': seed,
    **group.options,
    **data,
    **set_knobs(KNOBS[group.data][of]),
    **{f'model.{key}': value for key, value in model.items()},
    **(shrink() if args.smoke else {}),
  }
  name = f'{case}_seed{seed}'.replace('/', '_').replace(', ', '_')
  workdir = folder / name.replace(' ', '_')
  found, whole = train(f'{group.config}:{of}', workdir, options)
  row = {'kind': 'run', 'of': f'{group.name}/{case}', 'group': group.name}
  row |= {'variant': case, 'seed': seed, 'against': against}
  row |= {key: found['metrics']['test'][key] for key in METRICS}
  return row | {
    'valid_logloss': found['metrics']['valid']['logloss'],
    'parameters': found['parameters']['model'],
    'epochs': frappe.best_epoch(found, workdir),
    'core_s': found['core_s'],
  } | whole  # fmt: skip


def describe_model(case: str) -> tuple[str, dict]:
  """The variant of the config, and what of the model differs from it.

  >>> describe_model('heads 2')
  ('def', {'heads': 2})

  Args:
    case: 'def', a key of AROUND, or a baseline.
  """
  if case in BASELINES:
    return case, match_size(case)
  model = dict(AROUND.get(case, {}))
  return model.pop('mechanism', 'def'), model


def train(
  config: str, workdir: pathlib.Path, options: Mapping[str, object]
) -> tuple[dict, dict]:
  """The report of a run, and the core-seconds of its process.

  Args:
    config: 'configs/FILE.py:variant'.
    workdir: of the run; what has ended there is not trained again.
    options: keys that differ.
  """
  if runs.ended(workdir):
    return runs.read_report(workdir), {}
  overrides = [f'{key}={value}' for key, value in options.items()]
  overrides.append('report.importance_rows=0')
  with CoreTimer() as timer:
    report = runs.train_once(config, workdir, overrides)
  return report, {'run_core_s': timer.core_s}


def set_data(args: argparse.Namespace, group: Group, seed: int) -> dict:
  """Keys that choose the data of a seed: its stream, or its draws of users."""
  if group.data == 'interests':
    users = {'data.interests.users': 300} if args.smoke else {}
    return {'data.interests.seed': seed, **users}
  path = pathlib.Path(args.data).resolve() / EDITIONS[group.edition]
  return {'data.path': str(path), 'data.movielens_clicks.seed': seed}


def set_knobs(knobs: Mapping[str, float]) -> dict:
  """Keys of what is searched.

  Args:
    knobs: rate, rows_rate, table_l2 and dropout.
  """
  return {
    'optimizer.learning_rate': knobs['rate'],
    'optimizer.rows.learning_rate': knobs['rows_rate'],
    'loss.table_l2': knobs['table_l2'],
    'model.dropout': knobs['dropout'],
  }


def shrink() -> dict:
  """Keys of a training of seconds."""
  return {'train.epochs': 1, 'train.batch_size': 128}


@functools.cache
def match_size(mechanism: str) -> dict:
  """The width with which a baseline is as large as `def` with one head.

  Args:
    mechanism: of BASELINES.
  """
  wanted, key = count_parameters('def'), WIDTHS[mechanism]

  def make(width):
    several = {'hidden': 1, 'attention_hidden': 2}.get(key)
    return {key: (width,) * several if several else width}

  low, high = 1, 2
  while count_parameters(mechanism, make(high)) < wanted:
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    small = count_parameters(mechanism, make(middle)) < wanted
    low, high = (middle, high) if small else (low, middle)
  return min(
    (make(low), make(high)),
    key=lambda x: abs(count_parameters(mechanism, x) - wanted),
  )


def count_parameters(mechanism: str, changed: Mapping | None = None) -> int:
  """Parameters beside the tables, of the data sets of this benchmark.

  Args:
    mechanism: variant of the configs.
    changed: keys of the model that differ from them.
  """
  path = runs.ROOT / 'configs' / 'tbsm_synthetic.py'
  section = config_lib.load(f'{path}:{mechanism}').model.to_dict()
  section.pop('name')
  config = tbsm.Config(**section | dict(changed or {}))
  columns = behaviour_rows.choose_features(EVENTS)
  features = []
  for name, options in columns.items():
    kept = {k: v for k, v in options.items() if k != 'transform'}
    features.append(FeatureSpec(name, rows=2, **kept))
  model = nnx.eval_shape(lambda: tbsm.TBSM(config, features, 1, nnx.Rngs(0)))
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def describe_data(args: argparse.Namespace, group: Group, seed: int) -> dict:
  """What the data of a seed are, and what is known of them without a model."""
  row = {'kind': 'data', 'of': f'{group.name}/data', 'group': group.name}
  row |= {'variant': 'data', 'seed': seed}
  options = {**group.options, **set_data(args, group, seed)}
  if group.data == 'interests':
    log = interests.InterestLog(**take_section(options, 'interests'))
    probability = interests.read_probabilities(log, 'test')
    bounds = interests.find_bounds(probability)
    found = {'floor': bounds.ne, 'best_auc': bounds.auc}
    return row | found | {'test_rows': len(probability)}
  clicks = open_films(options)
  columns = popularity.COLUMNS

  def read(split):
    return clicks.read_chunks(columns, split)

  score = popularity.Popularity(read('train'))
  trained, tested = (popularity.count_rows(read(x)) for x in ('train', 'test'))
  return row | {
    'popularity_auc': score.measure_auc(read('test')),
    'train_rows': trained.rows,
    'test_rows': tested.rows,
    'test_users': tested.users,
  }


def open_films(options: Mapping[str, object], **more):
  """The examples of MovieLens that keys of a config describe."""
  own = take_section(options, 'movielens_clicks') | more
  return movielens_clicks.MovielensClicks(
    options['data.path'], movielens_clicks.MovielensClickOptions(**own)
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
  args: argparse.Namespace, group: Group, case: str, seed: int
) -> dict:
  """Writes the rows of a case of the leak; keys that choose them.

  Args:
    args: of the command line.
    group: that of the leak.
    case: 'order/shared, id' for one.
    seed: of all draws.
  """
  by, trained = case.removesuffix(', id').split('/')
  options = {**group.options, **set_data(args, group, seed)}
  folder = pathlib.Path(args.runs).resolve() / f'leak_{by}_seed{seed}'
  if not (folder / 'test.parquet').exists():  # the last one that is written
    clicks = open_films(options, **LEAK_SHARES)
    rows = {x: read_table(clicks, x) for x in ('train', 'valid', 'test')}
    places = cut_leak(rows['test']['user'].to_numpy(), len(rows['train']), by)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (of_train, of_test) in places(seed).items():
      both = [rows['train'].take(of_train), rows['test'].take(of_test)]
      pq.write_table(pa.concat_tables(both), folder / f'{name}.parquet')
    for name in ('valid', 'test'):
      of = rows[name] if name == 'valid' else both[1]
      pq.write_table(of, folder / f'{name}.parquet')
  found = {
    'data.name': 'parquet',
    'data.path': str(folder),
    'data.cache': str(folder / f'data_{trained}'),
  }
  for split in ('train', 'valid', 'test'):
    file = trained if split == 'train' else split
    found[f'data.files.{split}'] = f'{file}.parquet'
  return found | set_features(EVENTS)


def cut_leak(user: np.ndarray, trained: int, by: str):
  """Which rows 'apart' and 'shared' train on, and which are tested.

  Args:
    user: `[N]` of the rows of users that no other split has.
    trained: rows of other users.
    by: 'order' tests the last half of each user's rows, 'random' any half.

  Returns:
    A function of the seed -> {name: (rows of other users, own rows)}; those of
    'test' are none and the tested ones.
  """

  def choose(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng([seed, 26])
    draw = rng.random(len(user))
    counts = np.unique(user, return_counts=True)[1]
    # The rows of a user stand side by side, in the order of time.
    place = np.concatenate([np.arange(n) for n in counts])
    order = place if by == 'order' else draw
    rank = np.empty(len(user), np.int64)
    rank[np.lexsort((order, user))] = place
    is_tested = rank >= np.repeat((counts + 1) // 2, counts)
    own = np.flatnonzero(~is_tested)
    kept = np.sort(rng.permutation(trained)[: max(trained - len(own), 0)])
    none = np.zeros(0, np.int64)
    # As many rows of either kind, unless there are too few of other users.
    return {
      'apart': (np.arange(trained), none),
      'shared': (kept, own),
      'test': (none, np.flatnonzero(is_tested)),
    }

  return choose
