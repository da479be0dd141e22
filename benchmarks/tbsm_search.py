"""Rates, L2 and dropout of TBSM and of its baselines, chosen by validation.

  python -m benchmarks.tbsm_search --runs DIR --data DIR
  python -m benchmarks.tbsm_search --knobs

As many trials (`TRIES`) for each mechanism of TBSM and each baseline, on the
stream of `interests` and on MovieLens 1M as benchmarks/tbsm.py has them: the
rates of dense parameters and of rows, the L2 of the rows that a step reads, the
dropout of the last MLP, each on a ladder (`LADDERS`). After the first few
(`STARTS`) a trial is a neighbour of the best so far, so that the search goes
where it gets better, and not where somebody guessed.

`valid_logloss` and `valid_auc` are of the validation split at its best epoch;
`capped` is 1 where that is the last one allowed. The test split is not looked
at. The seed is that of this search alone: another stream, other draws of users.
Since the films have the same users for all seeds, some who validate here test
there.

Baselines have as many parameters as TBSM with one head, beside the tables
(`match_size`). --knobs prints what the least `valid_logloss` chooses, as
`KNOBS` of benchmarks/tbsm_knobs.py has it, and names those at the end of a
ladder. Rows that a result file has are not measured again.
"""

import argparse
import functools
import json
import pathlib
import zlib
from collections.abc import Iterable, Mapping, Sequence

import jax
from flax import nnx

from benchmarks import cli, exfm_films, frappe, runs
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.config import event_models
from genrec_jax.data.ranking import behaviour_rows
from genrec_jax.features import FeatureSpec
from genrec_jax.models import tbsm

COLUMNS = (
  'case', 'valid_logloss', 'valid_auc', 'capped', 'parameters', 'core_s',
  'run_core_s',
)  # fmt: skip
SEED = 101
EVENTS = 20  # of a history
MECHANISMS = event_models.COMPARING
BASELINES = event_models.BASELINES
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
CONFIGS = {
  'interests': 'configs/tbsm_synthetic.py',
  'movielens': 'configs/tbsm_movielens.py',
}
_FILMS = {
  'data.movielens_clicks.history': EVENTS,
  'train.epochs': 30,
  'train.patience': 8,  # what films are popular is learned first, then nothing
}
# Data set -> keys that differ from its config.
DATA = {
  'interests': {
    'data.group': 'user',
    'data.interests.users': 10_000,
    'data.interests.history': EVENTS,
    'train.batch_size': 256,
    'train.epochs': 50,
    'train.patience': 6,  # most mechanisms stand still at first
  },
  'movielens/1m': _FILMS | {'data.movielens_clicks.windows': 20},
  'movielens/100k': _FILMS,
  'movielens/latest': _FILMS,
}
# Knob -> what it may be.
LADDERS = {
  'rate': (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
  'rows_rate': (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
  'table_l2': (0.0, 1e-4, 1e-3, 1e-2),
  'dropout': (0.0, 0.1, 0.2),
}
# (rate, rows_rate) of the first trials. A row has a gradient in few steps: with
# rates below .01 most mechanisms stand still for epochs.
STARTS = ((1e-3, 1e-2), (3e-3, 1e-2), (3e-3, 3e-2))
TRIES = 7  # of each mechanism
SEARCHED = ('interests', 'movielens/1m')
NOTES = ('The seed is that of this search alone; nothing is tested.',)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tbsm_search', __doc__)
  parser.add_argument(
    '--knobs', action='store_true', help='print what was chosen, train nothing'
  )
  args = parse(parser, argv)
  rows = cli.read_rows(args, 'tbsm_search')
  if args.knobs:
    chosen = choose_knobs(rows.values())
    print(format_knobs(chosen))
    for data, by_mechanism in chosen.items():
      for mechanism, knobs in by_mechanism.items():
        if ends := list_ends(knobs):
          print(f'# {data}, {mechanism}: at an end: {", ".join(ends)}')
    return
  try:
    for data, mechanism in list_searches():
      if not f'{data}/{mechanism}'.startswith(tuple(args.only)):
        continue
      while knobs := suggest_knobs(find_tries(rows.values(), data, mechanism)):
        name = describe(data, mechanism, knobs)
        rows[name] = {'case': name} | measure(args, data, mechanism, knobs)
        cli.finish(args, 'tbsm_search', [*rows.values()], COLUMNS, NOTES)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  cli.finish(args, 'tbsm_search', [*rows.values()], COLUMNS, NOTES)


def parse(
  parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
  """The options of the command line, with made-up films for --smoke."""
  parser.add_argument('--runs', help='directory of all runs')
  parser.add_argument('--data', help='directory of the editions of MovieLens')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as interests or movielens/1m/gru',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if getattr(args, 'knobs', False):  # of the search, which trains nothing then
    return args
  if not args.runs:
    parser.error('--runs DIR is needed')
  if args.smoke:
    folder = pathlib.Path(args.runs) / 'made_up'
    for name in EDITIONS.values():
      exfm_films.invent_films(folder / name)
    args.data = str(folder)
  elif not args.data:
    parser.error('--data DIR is needed, with ml-1m, ml-100k, ml-latest-small')
  return args


def list_searches() -> list[tuple[str, str]]:
  """(data set, mechanism) of all searches."""
  return [(d, m) for d in SEARCHED for m in (*MECHANISMS, *BASELINES)]


def find_tries(
  rows: Iterable[Mapping], data: str, mechanism: str
) -> list[tuple[dict, float]]:
  """(knobs, validation log loss) of what was tried, in its order."""
  return [
    (dict(row['knobs']), row['valid_logloss'])
    for row in rows
    if (row['data'], row['mechanism']) == (data, mechanism)
  ]


def suggest_knobs(
  tried: Sequence[tuple[Mapping[str, float], float]],
) -> dict[str, float] | None:
  """What to try next; None after `TRIES` trials.

  >>> first = suggest_knobs([])
  >>> first
  {'rate': 0.001, 'rows_rate': 0.01, 'table_l2': 0.0, 'dropout': 0.0}
  >>> suggest_knobs([(first, 0.5)])['rate']
  0.003

  Args:
    tried: knobs and their loss.
  """
  if len(tried) >= TRIES:
    return None
  known = {tuple(knobs.values()): loss for knobs, loss in tried}
  for rates in STARTS:
    if (first := (*rates, 0.0, 0.0)) not in known:
      return dict(zip(LADDERS, first, strict=True))
  best = min(known, key=known.__getitem__)
  for changes in (
    {'rows_rate': 1},
    {'rate': 1},
    {'rate': -1},
    {'rows_rate': -1},
    {'rate': 1, 'rows_rate': 1},
    {'rate': -1, 'rows_rate': -1},
    {'table_l2': 1},
    {'dropout': 1},
    {'table_l2': -1},
    {'dropout': -1},
  ):
    if (near := _move(best, changes)) and near not in known:
      return dict(zip(LADDERS, near, strict=True))
  return None


def _move(
  knobs: tuple[float, ...], steps: Mapping[str, int]
) -> tuple[float, ...] | None:
  """So many rungs further on some ladders; None beyond an end."""
  moved = []
  for (name, ladder), value in zip(LADDERS.items(), knobs, strict=True):
    rung = ladder.index(value) + steps.get(name, 0)
    if not 0 <= rung < len(ladder):
      return None
    moved.append(ladder[rung])
  return tuple(moved)


def list_ends(knobs: Mapping[str, float]) -> list[str]:
  """Knobs at the end of a ladder behind which there could be more.

  >>> list_ends(dict(rate=0.03, rows_rate=0.003, table_l2=0.0, dropout=0.2))
  ['rate', 'dropout']
  """
  return [
    name
    for name, ladder in LADDERS.items()
    if knobs[name] == ladder[-1] or knobs[name] == ladder[0] != 0
  ]


def describe(data: str, mechanism: str, knobs: Mapping[str, float]) -> str:
  """What rows call a try.

  >>> describe('interests', 'gru', {'rate': 0.001, 'dropout': 0.1})
  'interests/gru, rate 0.001, dropout 0.1'
  """
  more = [f'{key} {value:g}' for key, value in knobs.items()]
  return ', '.join([f'{data}/{mechanism}', *more])


def measure(
  args: argparse.Namespace, data: str, mechanism: str, knobs: Mapping
) -> dict:
  """The row of a try, trained unless that was done."""
  folder = pathlib.Path(args.runs).resolve() / data.replace('/', '_')
  options = {
    **choose_data(args, data, SEED),
    'data.cache': str(folder / f'data_seed{SEED}'),
    **choose_model(mechanism),
    **set_knobs(knobs),
    'eval.splits': ('valid',),
  }
  name = f'search_{describe(data, mechanism, knobs).rpartition("/")[2]}'
  workdir = name_workdir(folder, name, options)
  config = f'{CONFIGS[data.partition("/")[0]]}:{mechanism}'
  report, whole = train(args, config, workdir, options)
  valid = report['metrics']['valid']
  return {
    'kind': 'try', 'data': data, 'mechanism': mechanism, 'knobs': dict(knobs),
    'seed': SEED, 'valid_logloss': valid['logloss'], 'valid_auc': valid['auc'],
    'parameters': report['parameters']['model'], 'core_s': report['core_s'],
    'capped': is_capped(report, workdir, options),
  } | whole  # fmt: skip


def is_capped(
  report: Mapping, workdir: pathlib.Path, options: Mapping[str, object]
) -> int:
  """1 where the best epoch is the last one allowed: more would be better."""
  return int(frappe.best_epoch(report, workdir) >= options['train.epochs'])


def choose_knobs(rows: Iterable[Mapping]) -> dict[str, dict[str, dict]]:
  """The knobs of the least validation log loss, as `tbsm.KNOBS`.

  Args:
    rows: of the result file; a mechanism without all its tries is left out.
  """
  tries: dict[tuple, list[Mapping]] = {}
  for row in rows:
    tries.setdefault((row['data'], row['mechanism']), []).append(row)
  found: dict[str, dict[str, dict]] = {}
  for (data, mechanism), own in tries.items():
    if len(own) >= TRIES:
      best = min(own, key=lambda row: row['valid_logloss'])
      short = data.partition('/')[0]
      found.setdefault(short, {})[mechanism] = dict(best['knobs'])
  return found


def format_knobs(knobs: Mapping[str, Mapping[str, Mapping]]) -> str:
  """The same as lines of Python.

  >>> print(format_knobs({'interests': {'gru': {'rate': 0.001}}}))
  KNOBS = {
    'interests': {
      'gru': dict(rate=0.001),
    },
  }
  """
  lines = ['KNOBS = {']
  for data, by_mechanism in knobs.items():
    lines.append(f'  {data!r}: {{')
    for mechanism, own in by_mechanism.items():
      text = ', '.join(f'{key}={value!r}' for key, value in own.items())
      lines.append(f'    {mechanism!r}: dict({text}),')
    lines.append('  },')
  return '\n'.join([*lines, '}'])


def train(
  args: argparse.Namespace,
  config: str,
  workdir: pathlib.Path,
  options: Mapping[str, object],
) -> tuple[dict, dict]:
  """The report of a run, and the core-seconds of its process.

  Args:
    args: of the command line.
    config: 'configs/FILE.py:variant'.
    workdir: of the run; what has ended there is not trained again.
    options: keys that differ from the config.
  """
  if runs.ended(workdir):
    return runs.read_report(workdir), {}
  options = {**options, 'report.importance_rows': 0}
  if args.smoke:
    options |= {'train.epochs': 1, 'train.batch_size': 128}
  overrides = [f'{key}={value}' for key, value in options.items()]
  with CoreTimer() as timer:
    report = runs.train_once(config, workdir, overrides)
  return report, {'run_core_s': timer.core_s}


def name_workdir(
  folder: pathlib.Path, name: str, options: Mapping[str, object]
) -> pathlib.Path:
  """The directory of a run: another one for other options."""
  text = json.dumps([[k, str(v)] for k, v in sorted(options.items())])
  mark = f'{zlib.crc32(text.encode()):08x}'
  for sign in (', ', ' ', '/'):
    name = name.replace(sign, '_')
  return folder / f'{name}_{mark}'


def choose_data(args: argparse.Namespace, data: str, seed: int) -> dict:
  """Keys of a data set: of a seed's stream, or its draws of users and films.

  Args:
    args: of the command line.
    data: a key of DATA.
    seed: of the data, and of the training.
  """
  found = {'seed': seed, **DATA[data]}
  if data == 'interests':
    users = {'data.interests.users': 300} if args.smoke else {}
    return found | {'data.interests.seed': seed, **users}
  path = pathlib.Path(args.data).resolve() / EDITIONS[data.split('/')[1]]
  return found | {'data.path': str(path), 'data.movielens_clicks.seed': seed}


def choose_features(history: int) -> dict[str, object]:
  """Keys of the columns that examples with histories have.

  Args:
    history: the most events that are read.
  """
  return {
    f'data.features.{name}.{key}': value
    for name, own in behaviour_rows.choose_features(history).items()
    for key, value in own.items()
  }


def choose_model(mechanism: str, changed: Mapping | None = None) -> dict:
  """Keys of the model, those of the size of a baseline too.

  Args:
    mechanism: variant of the configs.
    changed: fields of the model that differ.
  """
  fields = dict(changed or {})
  if mechanism in BASELINES:
    fields = match_size(mechanism) | fields
  return {f'model.{key}': value for key, value in fields.items()}


def set_knobs(knobs: Mapping[str, float]) -> dict:
  """Keys of what is searched.

  Args:
    knobs: rate, rows_rate, table_l2 and dropout.
  """
  found = {
    'optimizer.learning_rate': knobs['rate'],
    'optimizer.rows.learning_rate': knobs['rows_rate'],
    'model.dropout': knobs['dropout'],
  }
  if knobs['table_l2']:  # of the rows that a step reads: they are updated alone
    found['optimizer.rows.weight_decay'] = knobs['table_l2']
    found['optimizer.rows.decay'] = 'l2'
  return found


@functools.cache
def match_size(mechanism: str) -> dict:
  """The width with which a baseline is as large as `def` with one head.

  Args:
    mechanism: of BASELINES.
  """
  wanted, key = count_parameters('def'), WIDTHS[mechanism]

  def make(width: int) -> dict:
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
  """Parameters beside the tables, with the columns that all data sets have.

  Args:
    mechanism: variant of the configs.
    changed: fields of the model that differ from theirs.
  """
  path = runs.ROOT / CONFIGS['interests']
  fields = config_lib.load(f'{path}:{mechanism}').model.to_dict()
  fields.pop('name')
  config = tbsm.Config(**fields | dict(changed or {}))
  features = list_features(behaviour_rows.choose_features(EVENTS))
  model = nnx.eval_shape(lambda: tbsm.TBSM(config, features, 1, nnx.Rngs(0)))
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def list_features(columns: Mapping[str, Mapping]) -> Sequence[FeatureSpec]:
  """Features of columns, with tables of two rows."""
  return [
    FeatureSpec(
      name, rows=2, **{k: v for k, v in own.items() if k != 'transform'}
    )
    for name, own in columns.items()
  ]


if __name__ == '__main__':
  main()
