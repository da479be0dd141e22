"""Which ids share a row: maps against each other, by rows and by bytes.

  python -m benchmarks.learned_hash --runs DIR --data DIR
  python -m benchmarks.learned_hash --runs DIR --data DIR --only clicks/2000

clicks/2000   generated clicks, six fields of 2,000 values of up to eight kinds:
              values of a kind are alike in everything. `floor` is the least NE
              of the test split.
clicks/20000  the same with 20,000 values.
rows/N        N examples of 200 values a field, all of whose kinds differ, at 10
              times and with as many rows as kinds (21 times): `embedding` and
              `oracle`. Up to eight epochs.
movielens     the ratings of MovieLens 1M as examples: the last tenth of each
              user's ratings tests.
frappe        Frappe_x1 with rebuilt negatives; users and items share rows, the
              other tables are whole, 10 wide. The settings of the published
              runs with whole tables for all maps, half of the rows for one
              value alone, three seeds.

DIR of the data holds ml-1m and frappe.

DLRM, 16 wide, with tables of 1/2 to 1/100 of the rows:

identity      a row for each value, nothing shared
hash          the hashing trick
permutation   a drawn order, as many values on each row
ordered       id modulo rows; ids are in the order of frequency
frequency     the most frequent values have rows alone, the others a hash
double        the sum of two rows by two hashes
qr            the sum of a row of the quotient and of one of the remainder
embedding     k-means on the vectors of a small model, nobody alone
learned       the most frequent values alone, the others by k-means
oracle        of generated clicks: a row for each kind

Rates, the L2 of rows and the share of rows for one value alone (of `frequency`,
`double` and `learned`) are those that benchmarks/learned_hash_search.py has
found by validation, with as many trials for each map, at 2, 10 and 100 times;
5 times has those of 10, 20 and 21 of 10, 50 of 100, and rows/N those of
clicks/2000. clicks/20000 has 2, 10 and 100 times alone. Vectors are those of a
model 4 wide, trained on the training split.

`bytes` are those of the tables that share rows, in float32, and of the packed
maps where there are any; `times` is how many times the tables of `identity` are
as large. `rand` is the adjusted Rand index between rows and kinds, of values
beyond those alone; `alike` the share of one kind among all pairs of values on
one row, which does not fall where a kind has several rows (by chance .125).
`rand_1` to `rand_10`, `alike_1` and so on are those of each tenth of all
values, the most frequent ones first, `seen_1` how often its values stand in the
training split (median).

`auc`, `ne` and `logloss` are of the test split. Rows of kind 'mean' are over
seeds, `_std` the deviation between them; `_diff` is the mean difference of the
same seed from `hash` with as many rows, `_ci` half of its 95 % interval
(t, n - 1). Rows that a result file has are not measured again.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks import cli, learned_hash_kinds, runs, tbsm
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import clicks, saved_encoder
from genrec_jax.embedding.computed_maps import QuotientIdMap
from genrec_jax.embedding.learned_map import count_words

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'auc_diff', 'auc_ci', 'ne', 'ne_std',
  'ne_diff', 'ne_ci', 'floor', 'bytes', 'times', 'share', 'rand', 'core_s',
)  # fmt: skip
METRICS = ('auc', 'ne', 'logloss')
SEEDS = (1, 2, 3, 4, 5)
COMPRESSIONS = (2, 5, 10, 20, 50, 100)
SEARCHED = (2, 10, 100)  # compressions whose knobs are searched
# Of 202 ids this leaves ten rows: one for each of the eight kinds, one for
# unseen values, and padding.
AS_KINDS = 21
# Compression -> whose knobs it has.
NEIGHBOURS = {5: 10, 20: 10, 50: 100, AS_KINDS: 10}
ROWS = (50_000, 100_000, 200_000, 400_000, 800_000, 1_600_000)
SHARES = (0.0, 0.5, 0.9)
SHARED = ('frequency', 'double', 'learned')  # with a share to choose
LEARNED = ('embedding', 'learned')
MAPS = ('hash', 'permutation', 'ordered', 'frequency', 'double', 'qr', *LEARNED)
NOTES = (
  'auc_diff, ne_diff, logloss_diff: means over seeds of differences from the '
  'hashing trick with as many rows, between runs of equal seeds; _ci half of a '
  '95 % interval (t, n - 1).',
)
CONFIG = 'configs/learned_hash_synthetic.py'


@dataclasses.dataclass(frozen=True)
class DataSet:
  """What a model is trained on, and which maps it is trained with.

  Attributes:
    config: whose keys all of its runs have.
    tables: regular expression of the tables that share rows.
    keys: further keys of the config.
    compressions: how many times fewer rows there are.
    maps: that are compared.
    knobs_of: the data set whose knobs it has; '' for its own.
    share: of rows for one value alone, where nothing is searched.
    folder: of its files, in that of the data; '' where it is generated.
    dim: width of the tables.
    seeds: how many.
  """

  config: str
  tables: str
  keys: Mapping[str, int] = dataclasses.field(default_factory=dict)
  compressions: Sequence[int] = COMPRESSIONS
  maps: Sequence[str] = (*MAPS, 'oracle')
  knobs_of: str = ''
  share: float | None = None
  folder: str = ''
  dim: int = 16
  seeds: int = len(SEEDS)

  @property
  def is_searched(self) -> bool:
    """Whether benchmarks/learned_hash_search.py searches its knobs."""
    return not self.knobs_of and self.share is None

  def is_there(self, args: argparse.Namespace) -> bool:
    """Whether its files are."""
    return not self.folder or bool(args.data)


def _generate(values: int, rows: int, keys=(), **settings) -> DataSet:
  """Generated clicks of so many values and rows, with further keys."""
  sizes = {'data.clicks.values': values, 'data.clicks.rows': rows}
  return DataSet(CONFIG, 'c.*', sizes | dict(keys), **settings)


DATA = {
  'clicks/2000': _generate(2_000, 200_000),
  'clicks/20000': _generate(20_000, 1_000_000, compressions=SEARCHED),
  'movielens': DataSet(
    'configs/hash_movielens.py', 'user|item', maps=MAPS, folder='ml-1m'
  ),
  **{
    f'rows/{rows}': _generate(
      200, rows, {'data.clicks.terms': 30, 'train.epochs': 8},
      compressions=(10, AS_KINDS), maps=('embedding', 'oracle'),
      knobs_of='clicks/2000',
    )
    for rows in ROWS
  },
  'frappe': DataSet(
    'configs/frappe.py:dlrm', 'user|item', compressions=(5, 20),
    maps=('hash', 'frequency', 'learned'), share=0.5, folder='frappe', dim=10,
    seeds=3,
  ),
}  # fmt: skip


class TooFewRowsError(ValueError):
  """A map cannot have so few rows."""


def main(argv: list[str] | None = None) -> None:
  args = parse('learned_hash', __doc__, argv)
  rows = cli.read_rows(args, 'learned_hash')
  cli.measure_missing(rows, list_rows(args), lambda: save(args, rows))


def parse(name: str, doc: str, argv: list[str] | None) -> argparse.Namespace:
  """The options of the command line, of the search too."""
  parser = cli.parser(name, doc)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument(
    '--data', default='', help='directory with ml-1m and frappe'
  )
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as clicks/2000/learned',
  )  # fmt: skip
  return parser.parse_args(argv)


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it) of what is wanted, in their order."""
  found, knobs = [], read_knobs(args)
  for data, known in DATA.items():
    if not known.is_there(args):
      continue
    for seed in SEEDS[: 1 if args.smoke else known.seeds]:
      for case, times in list_cases(args, data):
        own = find_knobs(knobs, data, case, times)
        measure = functools.partial(
          measure_run, args, data, case, times, seed, own
        )
        name = name_case(data, case, times)
        found.append((f'{name}/seed{seed}', measure))
  wanted = [x for x in found if x[0].startswith(tuple(args.only))]
  if not wanted:
    raise ValueError(f'there is no case that begins with {args.only}')
  return wanted


def list_cases(args: argparse.Namespace, data: str) -> list[tuple[str, int]]:
  """(map, compression) of a data set."""
  found = DATA[data]
  compressions = (10,) if args.smoke else found.compressions
  return [('identity', 1), *((m, c) for c in compressions for m in found.maps)]


def read_knobs(args: argparse.Namespace) -> dict[tuple, dict[str, float]]:
  """(data set, map, compression) -> the best that was found by validation."""
  best: dict[tuple, Mapping] = {}
  for row in cli.read_rows(args, 'learned_hash_search').values():
    key = row['data'], row['map'], row['compression']
    if key not in best or row['valid_logloss'] < best[key]['valid_logloss']:
      best[key] = row
  return {key: dict(row['knobs']) for key, row in best.items()}


def find_knobs(
  knobs: Mapping[tuple, Mapping[str, float]], data: str, case: str, times: int
) -> Mapping[str, float]:
  """Those of a map, see `read_knobs`; they may be those of a neighbour."""
  known = DATA[data]
  if known.share is not None and case in SHARED:
    return {'share': known.share}
  near = NEIGHBOURS.get(times, times)
  return knobs.get((known.knobs_of or data, case, near), {})


def name_case(data: str, case: str, times: int) -> str:
  """What rows call a map.

  >>> name_case('movielens', 'hash', 10), name_case('movielens', 'identity', 1)
  ('movielens/hash, 10x', 'movielens/identity')
  """
  return f'{data}/{case}' + (f', {times}x' if times > 1 else '')


def choose_data(args: argparse.Namespace, data: str, seed: int) -> dict:
  """Keys of a data set, and of what all its runs have in common."""
  folder = pathlib.Path(args.runs).resolve() / data.replace('/', '_')
  known = DATA[data]
  found = {'seed': seed, **known.keys}
  if known.folder:
    # The rows are the same for all seeds, and so is what is prepared.
    found['data.path'] = str(pathlib.Path(args.data).resolve() / known.folder)
    return found | {'data.cache': str(folder / 'data')}
  if args.smoke:
    found |= {'data.clicks.rows': 4_000, 'data.clicks.values': 100}
  found |= {'data.clicks.seed': seed}
  return found | {'data.cache': str(folder / f'data_seed{seed}')}


def measure_run(
  args: argparse.Namespace,
  data: str,
  case: str,
  times: int,
  seed: int,
  knobs: Mapping[str, float],
) -> dict:
  """The row of a map."""
  options = choose_data(args, data, seed)
  folder = name_folder(args, data, seed)
  try:
    with CoreTimer() as timer:
      metrics, of = train_case(args, data, case, times, seed, knobs)
  except TooFewRowsError as error:
    return {'kind': 'none', 'data': data, 'map': case, 'why': str(error)}
  row = {
    'kind': 'run', 'of': name_case(data, case, times), 'data': data,
    'map': case, 'compression': times, 'seed': seed,
    'against': f'{data}/hash, {times}x', 'knobs': dict(knobs),
    'share': knobs.get('share', 0.0),
  } | {key: metrics['test'][key] for key in METRICS}  # fmt: skip
  sizes = find_sizes(folder / 'sizes', DATA[data].tables)
  row |= count_bytes(sizes, times, case, DATA[data].dim)
  if not DATA[data].folder:
    log = make_log(options, args)
    row['floor'] = learned_hash_kinds.find_floor(log)
    if case in LEARNED:
      row |= learned_hash_kinds.compare(log, folder / 'sizes', of / 'maps')
  return row | {
    'valid_logloss': metrics['valid']['logloss'], 'core_s': timer.core_s
  }  # fmt: skip


def name_folder(args: argparse.Namespace, data: str, seed: int) -> pathlib.Path:
  """The directory of the runs of a data set with a seed."""
  folder = pathlib.Path(args.runs).resolve() / data.replace('/', '_')
  return folder / f'seed{seed}'


def train_case(
  args: argparse.Namespace,
  data: str,
  case: str,
  times: int,
  seed: int,
  knobs: Mapping[str, float],
) -> tuple[dict, pathlib.Path]:
  """(split -> metrics, directory) of a training; learned maps lie in `maps`.

  Raises:
    TooFewRowsError: the map cannot have so few rows.
  """
  config = DATA[data].config
  folder, options = name_folder(args, data, seed), choose_data(args, data, seed)
  # One step: what it leaves says how many values there are.
  first = {'train.steps': 1, 'train.patience': 0, 'eval.splits': ()}
  if not (folder / 'sizes' / 'encoder').exists():
    words = list_overrides(args, options | first)
    runs.train(config, folder / 'sizes', words)
  sizes = find_sizes(folder / 'sizes', DATA[data].tables)
  if case == 'qr' and (why := refuse_quotients(sizes, times)):
    raise TooFewRowsError(why)
  own = options | set_knobs(knobs)
  settings, share = {'id_map': case}, knobs.get('share', 0.0)
  text = '_'.join(f'{k}{v:g}' for k, v in knobs.items())
  at, maps = folder / f'{case}_{times}x_{text}', None
  if case in LEARNED:
    hashed = {
      'hash.rows': 0, 'hash.compression': float(times), 'hash.dim': 4,
      'hash.tables': '|'.join(sizes), 'hash.private': (share,),
      'hash.seed': seed,
      'hash.vectors': str(train_small(args, config, folder, options)),
    }  # fmt: skip
    if not (at / 'hash.json').exists():
      words = list_overrides(args, own | hashed)
      runs.start(runs.ROOT, config, at, words, mode='learn_hash')
    found = json.loads((at / 'hash.json').read_text())
    (metrics,) = found['trials'].values()
    return metrics, pathlib.Path(found['best'])
  if case == 'oracle':
    maps = learned_hash_kinds.write_oracle(
      make_log(options, args), folder / 'sizes', folder / 'oracle',
      functools.partial(count_rows, times=times),
    )  # fmt: skip
    settings = {'id_map': 'learned'}
  elif case in SHARED:
    settings['share'] = share
  if case != 'identity':
    own['tables'] = set_tables(sizes, times, settings, maps)
  return train(args, config, at, own)['metrics'], at


def set_knobs(knobs: Mapping[str, float]) -> dict:
  """Keys of what is searched, but for the share.

  >>> set_knobs({'rate': 0.001})
  {'optimizer.learning_rate': 0.001}
  """
  found = {}
  if 'rate' in knobs:
    found['optimizer.learning_rate'] = knobs['rate']
  if 'rows_rate' in knobs:
    found['optimizer.rows.learning_rate'] = knobs['rows_rate']
  if knobs.get('l2'):
    found['optimizer.rows.weight_decay'] = knobs['l2']
    found['optimizer.rows.decay'] = 'l2'
  return found


def train(
  args: argparse.Namespace, config: str, workdir: pathlib.Path, options: Mapping
) -> dict:
  """The report of a run."""
  return runs.train_once(config, workdir, list_overrides(args, options))


def list_overrides(args: argparse.Namespace, options: Mapping) -> list[str]:
  """The keys as words of a command line."""
  options = {**options, 'report.importance_rows': 0}
  if args.smoke:
    options |= {'train.epochs': 1, 'train.batch_size': 256}
  return [f'{key}={value}' for key, value in options.items()]


def find_sizes(workdir: pathlib.Path, pattern: str) -> dict[str, int]:
  """Table -> its rows, where each value has one, of tables that will share."""
  encoder = saved_encoder.load_encoder(workdir)
  return {
    name: v.rows
    for name, v in encoder.vocabularies.items()
    if re.fullmatch(pattern, name)
  }


def count_rows(ids: int, times: int) -> int:
  """Rows of a table of so many ids: as `hash.compression` has it."""
  return max(-(-ids // times), 4)


def set_tables(
  sizes: Mapping[str, int],
  times: int,
  settings: Mapping,
  maps: Mapping[str, pathlib.Path] | None = None,
) -> tuple:
  """`config.tables` in which tables share rows."""
  found = []
  for name, ids in sizes.items():
    own = {**settings, 'rows': count_rows(ids, times)}
    if share := own.pop('share', 0.0):
      own['private'] = int(share * (own['rows'] - 2))
    if maps:
      own['map'] = str(maps[name])
    found.append((name, own))
  return (*found, ('.*', {}))


def refuse_quotients(sizes: Mapping[str, int], times: int) -> str:
  """Why quotients and remainders need more rows; '' where these do."""
  try:
    for name, ids in sizes.items():
      QuotientIdMap(name, ids, count_rows(ids, times))
  except ValueError as error:
    return str(error)
  return ''


def train_small(args, config, folder, options) -> pathlib.Path:
  """The run whose vectors say which values are alike."""
  workdir = folder / 'small'
  train(args, config, workdir, options | {'model.dim': 4})
  return workdir


def count_bytes(
  sizes: Mapping[str, int], times: int, case: str, dim: int = 16
) -> dict:
  """Bytes of the tables that share rows, and of their maps.

  >>> count_bytes({'user': 1001}, 10, 'learned')['bytes']
  7360

  Args:
    sizes: table -> rows of a table with one for each value.
    times: how many times fewer rows there are.
    case: which map.
    dim: width of the tables.
  """
  with_map = case in (*LEARNED, 'oracle')
  whole = sum(4 * dim * ids for ids in sizes.values())
  found = 0
  for ids in sizes.values():
    rows = count_rows(ids, times)
    found += 4 * dim * (ids if case == 'identity' else rows)
    found += 4 * count_words(ids, rows) if with_map else 0
  return {'bytes': found, 'times': whole / found}


def make_log(options: Mapping, args: argparse.Namespace) -> clicks.ClickLog:
  """The generated log of a config."""
  words = list_overrides(args, options)
  config = config_lib.load(str(runs.ROOT / CONFIG), words)
  return clicks.ClickLog(**config.data.clicks.to_dict())


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes the rows, and their means."""
  own = [row for row in rows.values() if row.get('kind') == 'run']
  means = average(own)
  cli.finish(args, 'learned_hash', [*own, *means], COLUMNS, NOTES)


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and how it differs from the hash."""
  by_case, found = runs.group_by_seed(rows), []
  keys = ('floor', 'bytes', 'times', 'share', 'core_s')
  for name, of in by_case.items():
    first = next(iter(of.values()))
    mean = {'case': name, 'kind': 'mean', 'seeds': len(of)}
    mean |= {key: first[key] for key in ('data', 'map', 'compression')}
    kinds = [key for key in first if re.match('rand|alike|seen', key)]
    for key in (*METRICS, *keys, *kinds):
      if values := [row[key] for row in of.values() if key in row]:
        mean |= runs.over_seeds(key, values)
    base = by_case.get(first['against'], {})
    both = [(of[seed], base[seed]) for seed in of if seed in base]
    if both and first['against'] != name:
      for key in METRICS:
        mean |= tbsm.compare(key, [a[key] - b[key] for a, b in both])
    found.append(mean)
  return found


if __name__ == '__main__':
  main()
