"""What students gain of a teacher's scores on MovieLens and Frappe.

  python -m benchmarks.exfm_public --runs DIR --data DIR
  python -m benchmarks.exfm_public --runs DIR --data DIR --only frappe

DIR of the data holds ml-100k, ml-latest-small and frappe. Methods are those of
`distill.method`: labels alone (none), one head for labels and scores
(one_head), a head of its own for the scores (head, AH), and that with an
adapter (adapter, AH + SA).

movielens  Two editions, each a stream of 40 windows in the order of the
           ratings (benchmarks/exfm_films.py). A Wukong learns all of them, and
           scores window w as it was behind window w - 1; three students, each
           of a segment, learn their own. Students of all segments, and not one
           of a large segment, so that every rating of the last half of the
           windows is measured: a segment of one genre would have 7,000. Each
           example is scored before it is learned from.
frappe     No times: a row is in one of three folds by a draw, which says
           nothing of what comes first, and is scored by a Wukong that was
           trained on the two others (benchmarks/exfm_folds.py). A small DLRM is
           trained on all of them and tested on the usual test split; teachers
           are of one seed, students of several.

`ne` is the log loss over the entropy of one base rate, `gain_%` the mean over
seeds of 100 (1 - NE / NE without a teacher), paired by seed. There are two 95 %
intervals, half of each given: `gain_ci` is over seeds, `data_ci` over 20 pieces
of the tested data, windows of MovieLens (most users are in one alone) and
groups of users of Frappe. A gain that one of them does not exclude from zero is
none.

Rates and knobs were chosen by what is not measured here
(benchmarks/exfm_public_search.py). Rows that a result file has are not measured
again, and what has been trained stays in DIR: the same command continues.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from benchmarks import cli, exfm_films, exfm_folds, exfm_worlds, runs
from benchmarks.exfm import describe_mean
from benchmarks.exfm_films import FilmLog, FilmWorld
from benchmarks.exfm_folds import Folds
from benchmarks.exfm_worlds import Teacher
from benchmarks.frappe import REBUILT

COLUMNS = (
  'case', 'seeds', 'ne', 'ne_std', 'gain_%', 'gain_ci', 'data_ci', 'auc',
  'auc_gain', 'auc_gain_ci', 'logloss', 'valid_auc', 'teacher_ne', 'core_s',
)  # fmt: skip
METHODS = ('none', 'one_head', 'head', 'adapter')
EDITIONS = {'100k': 'ml-100k', 'latest': 'ml-latest-small'}
TRAIN_FILE = 'train_rebuilt_negatives_resampled.csv'
SEEDS = (1, 2, 3)
BATCH = 64  # of MovieLens, whose windows have 2,500 ratings
# Chosen by benchmarks/exfm_public_search.py.
TEACHER, TEACHER_RATE = Teacher('small'), 3e-3
KNOBS = {
  'movielens/100k': {
    'none': dict(rate=1e-3),
    'one_head': dict(rate=3e-3, loss_weight=4.0),
    'head': dict(rate=3e-3, gradient_scale=4.0),
    'adapter': dict(rate=3e-3, gradient_scale=4.0),
  },
  'movielens/latest': {
    'none': dict(rate=3e-3),
    'one_head': dict(rate=3e-3, loss_weight=1.0),
    'head': dict(rate=3e-3, gradient_scale=4.0),
    'adapter': dict(rate=3e-3, gradient_scale=1.0),
  },
  'frappe': {
    'none': dict(table_l2=0.05),
    'one_head': dict(table_l2=0.05, loss_weight=1.0),
    'head': dict(table_l2=0.1, gradient_scale=1.0),
    'adapter': dict(table_l2=0.05, gradient_scale=1.0),
  },
}
NOTES = (
  'gain_%, auc_gain: means over seeds of differences between runs of equal '
  'seeds; gain_ci half of a 95 % interval over seeds (t, n - 1), data_ci over '
  '20 pieces of the tested data.',
  'movielens: all/METHOD is the mean of the three segments. '
  'known_of_last_tenth_%: ratings of the last tenth whose user has one among '
  'the first 80 %; known_to_teacher_%: measured ratings whose user has one in '
  'an earlier window.',
  'frappe: rows have no order, and folds are a draw. The epoch of every run is '
  'that of the best validation AUC.',
  REBUILT,
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A student that is trained, seed by seed.

  Attributes:
    group: what is compared: 'movielens/EDITION/segmentN', or 'frappe'.
    method: of METHODS.
  """

  group: str
  method: str

  @property
  def name(self) -> str:
    """As rows have it."""
    return f'{self.group}/{self.method}'

  @property
  def data(self) -> str:
    """'movielens' or 'frappe'."""
    return name_data(self.group)

  @property
  def stream(self) -> str:
    """The group without its segment.

    >>> Case('movielens/100k/segment2', 'head').stream
    'movielens/100k'
    """
    return self.group.partition('/segment')[0]

  @property
  def edition(self) -> str:
    """Of MovieLens.

    >>> Case('movielens/100k/segment2', 'head').edition
    '100k'
    """
    return self.group.split('/')[1]

  @property
  def segment(self) -> int:
    """Of MovieLens.

    >>> Case('movielens/100k/segment2', 'head').segment
    2
    """
    return int(self.group[-1])


def list_cases() -> list[Case]:
  """All of them, in the order of training."""
  groups = [
    f'movielens/{edition}/segment{i}'
    for edition in EDITIONS
    for i in range(exfm_films.SEGMENTS)
  ]
  return [
    Case(group, method) for group in [*groups, 'frappe'] for method in METHODS
  ]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm_public', __doc__)
  args = parse(parser, argv)
  rows = cli.read_rows(args, 'exfm_public')
  try:
    wanted = list_rows(args)
    for name, measure_row in wanted:
      if name not in rows:
        rows[name] = {'case': name} | measure_row()
        save(args, rows, name_data(name))
    for data in dict.fromkeys(name_data(name) for name, _ in wanted):
      save(args, rows, data)
  except (ValueError, OSError) as error:
    cli.fail(str(error))


def parse(
  parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
  """The options of the command line, with made-up data for --smoke."""
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--data', help='directory of the data sets')
  parser.add_argument(
    '--train-file', default=TRAIN_FILE, help='of frappe, if not the usual one'
  )
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as frappe or movielens/100k',
  )  # fmt: skip
  parser.add_argument('--seeds', nargs='+', type=int, default=list(SEEDS))
  args = parser.parse_args(argv)
  if args.smoke:
    args.data, args.seeds = invent_data(args), args.seeds[:1]
  elif not args.data:
    parser.error('--data DIR is needed, with ml-100k, ml-latest-small, frappe')
  return args


def list_rows(args: argparse.Namespace):
  """(name, function that measures it) of what is wanted, in their order."""
  wanted = []
  cases = list_cases()
  if args.smoke:
    cases = [
      case
      for case in cases
      if case.group in ('movielens/latest/segment1', 'frappe')
      and case.method in ('none', 'adapter')
    ]
  for edition in dict.fromkeys(c.edition for c in cases if c.data != 'frappe'):
    wanted.append(
      (
        f'movielens/{edition}/data',
        lambda edition=edition: (
          {'kind': 'data'} | make_log(args, edition).describe()
        ),
      )
    )
  for seed in args.seeds:
    wanted += [
      (
        f'{case.name}/seed{seed}',
        lambda case=case, seed=seed: measure_films(args, case, seed),
      )
      for case in cases
      if case.data == 'movielens'
    ]
  for fold in range(exfm_folds.FOLDS):
    wanted.append(
      (f'frappe/teacher/fold{fold}', lambda k=fold: measure_fold(args, k))
    )
  wanted.append(
    (
      'frappe/teacher/scores',
      lambda: {'kind': 'teacher'} | make_folds(args).measure_teachers(),
    )
  )
  for seed in args.seeds:
    wanted += [
      (
        f'{case.name}/seed{seed}',
        lambda case=case, seed=seed: measure_frappe(args, case, seed),
      )
      for case in cases
      if case.data == 'frappe'
    ]
  return select(args, wanted)


def select(args: argparse.Namespace, wanted: list) -> list:
  """Those whose names begin as --only says."""
  found = [x for x in wanted if x[0].startswith(tuple(args.only))]
  if not found:
    raise ValueError(f'there is no case that begins with {args.only}')
  return found


def invent_data(args: argparse.Namespace) -> str:
  """Made-up data for --smoke."""
  folder = pathlib.Path(args.runs) / 'made_up'
  exfm_films.invent_films(folder / EDITIONS['latest'])
  exfm_folds.invent_frappe(folder / 'frappe', args.train_file)
  return str(folder)


def make_log(args: argparse.Namespace, edition: str, **options) -> FilmLog:
  """An edition of MovieLens."""
  path = pathlib.Path(args.data).resolve() / EDITIONS[edition]
  return FilmLog(str(path), 4 if args.smoke else 40, **options)


def make_folds(args: argparse.Namespace) -> Folds:
  """Frappe in folds."""
  return Folds(
    (pathlib.Path(args.runs) / 'frappe').resolve(),
    pathlib.Path(args.data) / 'frappe',
    args.train_file,
    args.smoke,
  )


def make_world(args: argparse.Namespace, case: Case, seed: int) -> FilmWorld:
  """The stream of a case, with its teacher."""
  folder = pathlib.Path(args.runs) / 'movielens' / case.edition / f'seed{seed}'
  log = make_log(args, case.edition, seed=seed)
  return FilmWorld(folder, log, BATCH, TEACHER_RATE)


def measure_films(args: argparse.Namespace, case: Case, seed: int) -> dict:
  """The row of a run on MovieLens, trained unless that was done."""
  world = make_world(args, case, seed)
  parts = world.annotate(case.segment, TEACHER, 0)
  name = f'segment{case.segment}_{case.method}'
  knobs = KNOBS[case.stream][case.method]
  found = train_films(world, case, name, seed, knobs)
  store = world.score(TEACHER, 0)
  return about(case, seed) | {
    'teacher_ne': exfm_worlds.measure_teacher(store, parts)
  } | found  # fmt: skip


def train_films(
  world: FilmWorld, case: Case, name: str, seed: int, knobs: Mapping
) -> dict:
  """What a student on MovieLens reaches, trained unless that was done."""
  distill = set_method(case.method, knobs)
  rates = (distill.pop('rate'),) * 2
  parts = world.annotate(case.segment, TEACHER, 0)
  labels = exfm_worlds.read_labels(world.list_parts(case.segment))
  workdir = world.train_student(name, 'dlrm', parts, seed, rates, **distill)
  found = exfm_worlds.measure_student(workdir, labels)
  return {
    'ne': found['ne'],
    'logloss': found['ne'] * labels.entropy,
    'auc': found['auc'],
    'calibration': found['calibration'],
    'pieces_ne': found['windows_ne'],
    'pieces_rows': labels.rows.tolist(),
    'core_s': found['core_s'],
  }


def set_method(method: str, knobs: Mapping) -> dict:
  """Keys of the section `distill`, and knobs that are none of it.

  >>> set_method('head', {'rate': 0.1, 'gradient_scale': 4.0})
  {'method': 'head', 'rate': 0.1, 'gradient_scale': 4.0}
  """
  found = {'method': method, **knobs}
  if method == 'adapter':  # both heads flow into the model as strongly
    found['adapter_gradient_scale'] = knobs['gradient_scale']
    found['adapter_input'] = 'residual'
  return found


def measure_fold(args: argparse.Namespace, fold: int) -> dict:
  """The row of a teacher of Frappe, trained unless that was done."""
  report = runs.read_report(make_folds(args).train_teacher(fold))
  return {'kind': 'teacher'} | read_metrics(report)


def read_metrics(report: Mapping) -> dict[str, float]:
  """What a report says of the test split, and of validation."""
  test, valid = report['metrics']['test'], report['metrics']['valid']
  return {
    'ne': test['ne'],
    'auc': test['auc'],
    'logloss': test['logloss'],
    'valid_auc': valid['auc'],
    'valid_logloss': valid['logloss'],
    'parameters': sum(report['parameters'].values()),
    'core_s': report['core_s'],
  }


def measure_frappe(args: argparse.Namespace, case: Case, seed: int) -> dict:
  """The row of a run on Frappe, trained unless it has ended."""
  folds = make_folds(args)
  knobs = KNOBS[case.stream][case.method]
  workdir = folds.train_student(
    f'{case.method}_seed{seed}', seed, **set_method(case.method, knobs)
  )
  metrics = read_metrics(runs.read_report(workdir))
  losses, counts = folds.measure_pieces(workdir)
  entropy = metrics['logloss'] / metrics['ne']
  return about(case, seed) | metrics | {
    'pieces_ne': [x / entropy for x in losses],
    'pieces_rows': counts,
  }  # fmt: skip


def about(case: Case, seed: int) -> dict:
  """What every row of a run says of itself."""
  return {
    'kind': 'run', 'of': case.name, 'group': case.group,
    'method': case.method, 'seed': seed,
  }  # fmt: skip


def name_data(case: str) -> str:
  """'movielens' or 'frappe', of the name of a row.

  >>> name_data('movielens/100k/data')
  'movielens'
  """
  return case.partition('/')[0]


def save(args: argparse.Namespace, rows: Mapping[str, Mapping], data: str):
  """Writes the rows of a data set; another process may be at the other."""
  own = [
    row
    for name, row in rows.items()
    if row['kind'] != 'mean' and name_data(name) == data
  ]
  cli.finish(args, 'exfm_public', [*own, *average(own)], COLUMNS, NOTES)


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and what it gains."""
  own = [row for row in rows if row['kind'] == 'run']
  by_case = runs.group_by_seed([*own, *pool(own)])
  found = []
  for name, of in by_case.items():
    first = next(iter(of.values()))
    mean = {'case': name, 'kind': 'mean', 'seeds': len(of)}
    mean |= {key: first[key] for key in ('group', 'method')}
    for key in ('ne', 'auc', 'logloss', 'valid_auc', 'teacher_ne', 'core_s'):
      if key in first:
        mean |= runs.over_seeds(key, [row[key] for row in of.values()])
    plain = by_case.get(f'{first["group"]}/none', {})
    both = [(of[s], plain[s]) for s in of if s in plain]
    if both and first['method'] != 'none':
      mean |= compare(both)
    found.append(mean)
  return found


def pool(rows: Iterable[Mapping]) -> list[dict]:
  """Rows of all segments of an edition together, where all are there."""
  same: dict[tuple, list[Mapping]] = {}
  for row in rows:
    edition, slash, _ = row['group'].rpartition('/')
    if slash:
      same.setdefault((edition, row['method'], row['seed']), []).append(row)
  found = []
  for (edition, method, seed), segments in same.items():
    if len(segments) < exfm_films.SEGMENTS:
      continue
    case = Case(f'{edition}/all', method)
    row = about(case, seed)
    for key in ('ne', 'auc', 'logloss', 'teacher_ne', 'core_s'):
      row[key] = float(np.mean([x[key] for x in segments]))
    row['pieces_ne'] = np.mean([x['pieces_ne'] for x in segments], 0).tolist()
    row['pieces_rows'] = np.sum(
      [x['pieces_rows'] for x in segments], 0
    ).tolist()
    found.append(row)
  return found


def compare(both: Sequence[tuple[Mapping, Mapping]]) -> dict[str, float]:
  """What runs gain over those without a teacher.

  Args:
    both: (row, row without a teacher) of each seed.
  """
  gains = [100 * (1 - a['ne'] / b['ne']) for a, b in both]
  aucs = describe_mean('auc', [a['auc'] - b['auc'] for a, b in both])
  pieces = [
    100 * (np.array(b['pieces_ne']) - a['pieces_ne']) / b['ne'] for a, b in both
  ]
  found = describe_mean('gain', gains)
  found['data_ci'] = find_width(np.mean(pieces, 0), both[0][0]['pieces_rows'])
  found['auc_gain'] = aucs['auc_%']
  if 'auc_ci' in aucs:
    found['auc_gain_ci'] = aucs['auc_ci']
  return found


def find_width(values: np.ndarray, rows: Sequence[int]) -> float:
  """Half of the 95 % interval of a mean over pieces of the data.

  Args:
    values: `[P]` mean of each piece.
    rows: `[P]` of each piece.

  >>> round(find_width(np.array([1.0, 2.0, 3.0]), [5, 5, 5]), 3)
  2.484
  """
  share = np.array(rows) / np.sum(rows)
  count = len(share)
  off = share * (values - np.sum(share * values))
  error = np.sqrt(np.sum(off**2) * count / (count - 1))
  return float(stats.t.ppf(0.975, count - 1) * error)


if __name__ == '__main__':
  main()
