"""Does a model lose quality on towers, and does it matter what shares one?

  python -m benchmarks.dmt_quality --runs DIR --data DIR/frappe
  python -m benchmarks.dmt_quality --runs DIR --only planted
  python -m benchmarks.dmt_quality --runs DIR --data DIR/frappe \\
    --only frappe/dlrm

Models are trained flat and on towers (DMT, docs/dmt.md), with equal data,
seeds and settings. The towers of a case are

  coherent      what the partitioner makes of a flat DLRM that multiplies pairs
  cooccurrence  what it makes of the values alone, among equal labels
  random        drawn anew for each seed
  worst         each planted block divided over all towers

  planted       generated clicks of 16 fields in four blocks, with four towers;
                the coherent towers are those of the flat DLRM of the same seed
  frappe        Frappe_x1 by the protocol of configs/frappe.py; the coherent
                towers are those of one DLRM, of a seed that is not counted

Validation alone chooses the epoch, and a model is compared with the flat one of
its own seed. Cases come in the order of what they are worth, seed by seed. A
run that has ended in `--runs` is not trained again, nor is one whose row the
result file has; each row is written when its run ends. NPROC=1 and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false keep a run to one core.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks import cli, runs, tower_recovery
from benchmarks.frappe import NAMES, REBUILT, best_epoch
from genrec_jax import config as config_lib
from genrec_jax.config import tower_file
from genrec_jax.data.ranking import clicks
from genrec_jax.models import RANKERS, dmt
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks import ranking_metrics
from genrec_jax.train import loop, partition_towers

STRATEGIES = {  # -> options of `make_towers`
  'coherent': dict(strategy='coherent'),
  'cooccurrence': dict(strategy='cooccurrence_by_label', samples=1 << 16),
  'random': dict(strategy='random'),
}
ROWS, STEPS = 80_000, 1000  # of the planted log; eight epochs
PLANTED = {
  'dlrm': dict(interaction='dot', top=(64,), bottom=(16,)),
  'dcn': dict(cross=2, hidden=(64,)),
  'wukong': dict(fmb_hidden=(64,), attention_hidden=(32,), top=(64,)),
}
FRAPPE = {
  'dlrm': 'configs/frappe.py:dlrm',
  'dcn': 'configs/frappe.py:dcn',
  'wukong': 'configs/wukong_frappe.py',
}
SOURCE_SEED = 0  # of the DLRM that says which towers are coherent on Frappe
COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'minus_flat', 'minus_flat_se', 'logloss',
  'logloss_minus_flat', 'possible_auc', 'parameters', 'compression', 'ari',
  'core_s',
)  # fmt: skip
NOTES = (
  'minus_flat and minus_random are means of differences between runs of equal '
  'seeds, *_se their standard errors; std is over seeds, with n - 1.',
  'planted: 64,000 rows train, 8,000 validate and 8,000 test; a seed has a log '
  'of its own. The settings of towers and models were looked at on seed 100.',
  'possible_auc: of predictions by the planted signal itself.',
  'ari: the adjusted Rand index of the towers and the planted blocks.',
  REBUILT,
  'Other work kept the machine busy, which makes core_s larger.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is trained, with which seeds.

  Attributes:
    part: 'planted' or 'frappe'.
    model: key of `PLANTED` and `FRAPPE`.
    how: 'flat', or how the towers were chosen.
    seeds: of the runs.
    towers: how many.
    more: what else differs from the flat model, key and value each.
  """

  part: str
  model: str
  how: str
  seeds: tuple[int, ...]
  towers: int = 0
  more: tuple[tuple[str, object], ...] = ()

  @property
  def name(self) -> str:
    """As rows have it.

    >>> Case('planted', 'dlrm', 'worst', (0,), 4, (('tower', 'dcn'),)).name
    'planted/dlrm/worst 4, tower=dcn'
    """
    towers = f' {self.towers}' if self.towers else ''
    more = ''.join(f', {key}={value}' for key, value in self.more)
    return f'{self.part}/{self.model}/{self.how}{towers}{more}'


def list_stages() -> list[list[Case]]:
  """Cases that are trained side by side, the most wanted first."""
  five, three = range(5), range(3)
  uncompressed = (('tower_compression', 1.0),)
  planted = [Case('planted', 'dlrm', 'flat', (*five,))]
  for more in ((), uncompressed):
    for how in ('coherent', 'random', 'worst'):
      planted.append(Case('planted', 'dlrm', how, (*five,), 4, more))
  for model in ('dcn', 'wukong'):
    planted.append(Case('planted', model, 'flat', (*three,)))
    for how in ('coherent', 'worst'):
      planted.append(Case('planted', model, how, (*three,), 4))

  def make(seeds, *cases):
    return [Case('frappe', *case[:2], seeds, *case[2:]) for case in cases]

  dlrm = (
    ('dlrm', 'flat'),
    ('dlrm', 'coherent', 4),
    ('dlrm', 'random', 4),
  )
  others = (
    ('dlrm', 'coherent', 2),
    ('dlrm', 'random', 2),
    ('dlrm', 'cooccurrence', 4),
    ('dlrm', 'coherent', 4, uncompressed),
  )
  return [
    planted,
    make((1, 2, 3), *dlrm),
    make((1, 2, 3), *others),
    make((1, 2, 3), ('dcn', 'flat'), ('dcn', 'coherent', 4)),
    make((1, 2, 3), ('wukong', 'flat'), ('wukong', 'coherent', 4)),
    make((1, 2, 3), ('wukong', 'coherent', 4, (('tower', 'wukong_layer'),))),
    make((1, 2, 3), ('wukong', 'coherent', 4, (('tower', 'dlrm'),))),
    make((4, 5), *dlrm, *others),
  ]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('dmt_quality', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--data', help='directory of the CSVs of Frappe')
  parser.add_argument('--train-file', help='of --data, if not the usual one')
  parser.add_argument('--seeds', nargs='+', type=int, help='these alone')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as planted or frappe/dcn',
  )  # fmt: skip
  parser.add_argument('--finished', action='store_true', help='train nothing')
  args = parser.parse_args(argv)
  wanted = list_runs(args)
  if not wanted:
    cli.fail(f'there is no such run: {args.only}, seeds {args.seeds}')
  if not (args.data or args.smoke) and any(
    case.part == 'frappe' for case, _ in wanted
  ):
    parser.error('--data DIR is needed, with the files of Frappe')
  rows = cli.read_rows(args, 'dmt_quality')
  for case, seed in wanted:
    name = f'{case.name}/seed{seed}'
    if name not in rows:
      workdir = find_workdir(args, case, seed)
      if args.finished and not runs.ended(workdir):
        continue
      train(args, case, seed)
      rows[name] = measure(case, seed, workdir)
    # Rows of other models are left alone: another process may be at them.
    same = [r for r in rows.values() if is_run_of(r, case)]
    cli.finish(args, 'dmt_quality', [*same, *average(same)], COLUMNS, NOTES)


def is_run_of(row: Mapping, case: Case) -> bool:
  """Whether a row is a run that is compared with those of a case."""
  prefix = case.name.rpartition('/')[0]
  return row['kind'] == 'run' and row['case'].startswith(f'{prefix}/')


def list_runs(args: argparse.Namespace) -> list[tuple[Case, int]]:
  """(case, seed) of what is wanted, in the order of training."""
  wanted = []
  for stage in list_stages()[: 2 if args.smoke else None]:
    if args.smoke:  # one run of each way to choose towers
      stage = [
        dataclasses.replace(case, seeds=case.seeds[:1])
        for case in stage
        if case.model == 'dlrm' and not case.more
      ]
    wanted += [
      (case, seed)
      for seed in sorted({seed for case in stage for seed in case.seeds})
      for case in stage
      if seed in case.seeds
      and (args.seeds is None or seed in args.seeds)
      and case.name.startswith(tuple(args.only))
    ]
  return wanted


def train(args: argparse.Namespace, case: Case, seed: int) -> pathlib.Path:
  """The workdir of a run, trained unless it has ended."""
  workdir = find_workdir(args, case, seed)
  if not runs.ended(workdir):
    config = make_config(args, case, seed)
    if case.how != 'flat':
      config.model.towers = str(find_towers(args, case, seed))
    config.model.update(dict(case.more))
    train_to_the_end(config, workdir)
  return workdir


def train_to_the_end(config, workdir: pathlib.Path) -> None:
  """Trains; a signal that ends a run ends the sweep, too."""
  loop.train_and_evaluate(config, workdir, TASK_KINDS)
  if not runs.ended(workdir):
    cli.fail(f'{workdir} was stopped; the same command continues')


def find_workdir(
  args: argparse.Namespace, case: Case, seed: int
) -> pathlib.Path:
  """Where a run is, or will be."""
  name = case.name.replace(', ', '_').replace('/', '_').replace(' ', '_')
  return pathlib.Path(args.runs) / f'{name}_seed{seed}'


def make_config(args: argparse.Namespace, case: Case, seed: int):
  """The experiment of a case without its towers."""
  if case.part == 'frappe':
    return make_frappe(args, case.model, seed)
  rows, steps = (2_000, 8) if args.smoke else (ROWS, STEPS)
  config = tower_recovery.make_config(rows, seed, steps, {}, {})
  make = getattr(config_lib, case.model)
  config.model = make(dim=16, **PLANTED[case.model])
  config.eval.splits = ('valid', 'test')
  return config


def make_frappe(args: argparse.Namespace, model: str, seed: int):
  """The published protocol, and small generated data for --smoke."""
  config = FRAPPE[model]
  overrides = [f'seed={seed}']
  if args.smoke:
    config += ',smoke' if ':' in config else ':smoke'
  else:
    overrides += [
      f'data.path={pathlib.Path(args.data).resolve()}',
      f'data.cache={pathlib.Path(args.runs).resolve() / "frappe_data"}',
    ]
    if args.train_file:
      overrides.append(f'data.files.train={args.train_file}')
  return config_lib.load(str(runs.ROOT / config), overrides)


def find_towers(
  args: argparse.Namespace, case: Case, seed: int
) -> pathlib.Path:
  """The file with the towers of a run, made unless it is there."""
  of_seed = f'_seed{seed}'
  if case.part == 'frappe' and case.how != 'random':
    of_seed = ''  # one partition for all seeds and models
  folder = pathlib.Path(args.runs) / 'towers'
  path = folder / f'{case.part}_{case.how}_{case.towers}{of_seed}.json'
  if path.exists():
    return path.resolve()
  if case.part == 'frappe':
    flat, own = train_source(args), seed if case.how == 'random' else 0
  else:
    flat, own = train(args, Case('planted', 'dlrm', 'flat', ()), seed), seed
  if case.how == 'worst':
    plan = tower_file.TowerPlan(
      split_blocks(clicks.list_blocks(read_log(flat))), case.how
    )
  else:
    plan = partition_towers.make_towers(
      flat, case.towers, seed=own, **STRATEGIES[case.how]
    ).plan
  folder.mkdir(parents=True, exist_ok=True)
  tower_file.write_towers(path, plan)
  return path.resolve()


def train_source(args: argparse.Namespace) -> pathlib.Path:
  """The flat DLRM of which the partitioner takes the towers of Frappe.

  The settings of Frappe concatenate vectors, whose directions then say nothing
  of each other; in this one they are multiplied.
  """
  workdir = pathlib.Path(args.runs) / f'frappe_dlrm_dot_seed{SOURCE_SEED}'
  if not runs.ended(workdir):
    config = make_frappe(args, 'dlrm', SOURCE_SEED)
    config.model.interaction = 'dot'
    train_to_the_end(config, workdir)
  return workdir


def read_log(workdir: pathlib.Path) -> clicks.ClickLog:
  """The generated log of a run."""
  options = dict(runs.read_report(workdir)['config']['data']['clicks'])
  return clicks.ClickLog(**options | {'orders': tuple(options['orders'])})


def split_blocks(
  blocks: Sequence[Sequence[str]],
) -> tuple[tuple[str, ...], ...]:
  """Towers that have one field of each block.

  >>> split_blocks([['a', 'b'], ['c', 'd']])
  (('a', 'c'), ('b', 'd'))
  """
  return tuple(zip(*blocks, strict=True))


def measure(case: Case, seed: int, workdir: pathlib.Path) -> dict:
  """The row of a finished run."""
  report = runs.read_report(workdir)
  metrics = report['metrics']
  row = {
    'case': f'{case.name}/seed{seed}',
    'kind': 'run',
    'part': case.part,
    'of': case.name,
    'model': NAMES[case.model],
    'towers': case.how,
    'count': case.towers,
    'seed': seed,
    'auc': metrics['test']['auc'],
    'logloss': metrics['test']['logloss'],
    'valid_auc': metrics['valid']['auc'],
    'valid_logloss': metrics['valid']['logloss'],
    'epochs': best_epoch(report, workdir),
    'parameters': report['parameters']['model'],
    'core_s': report['core_s'],
  }
  if case.part == 'planted':
    log = read_log(workdir)
    row['possible_auc'] = find_possible_auc(log, report['splits'])
  if case.how == 'flat':
    return row
  towers = tower_file.read_run_towers(
    workdir, config_lib.load_saved(workdir / 'config.json')
  )
  row['partition'] = ' | '.join(' '.join(own) for own in towers)
  row['compression'] = find_compression(report['config']['model'], towers)
  if case.part == 'planted':
    blocks = {
      n: i for i, own in enumerate(clicks.list_blocks(log)) for n in own
    }
    numbers = {n: i for i, own in enumerate(towers) for n in own}
    row['ari'] = tower_recovery.adjusted_rand(
      [numbers[name] for name in blocks], list(blocks.values())
    )
  return row


def find_possible_auc(log: clicks.ClickLog, splits: Mapping) -> float:
  """Test AUC of whoever knows the planted signal, but not the noise."""
  tested = splits['test']['examples']  # the last rows
  logits, labels = [], []
  for _, _, label, chance in clicks.generate_arrays(log, log.rows - tested):
    logits.append(np.log(chance) - np.log1p(-chance))
    labels.append(label)
  return ranking_metrics.measure_labels(
    np.concatenate(logits)[:, None], np.concatenate(labels)[:, None]
  )['auc']


def find_compression(model: Mapping, towers: Sequence[Sequence[str]]) -> float:
  """How many times fewer numbers leave the towers of a model."""
  options = {key: value for key, value in model.items() if key != 'name'}
  config = RANKERS[model['name']].Config(**options)
  width = config.tower_width or config.dim
  return dmt.plan_sizes(
    config, [[width] * len(own) for own in towers]
  ).compression


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and what it is above the flat model."""
  by_case = runs.group_by_seed(rows)
  found = []
  for name, runs_of in by_case.items():
    first = next(iter(runs_of.values()))
    mean = {'case': name, 'kind': 'mean', 'seeds': len(runs_of)}
    for key in ('part', 'model', 'towers', 'count', 'parameters'):
      mean[key] = first[key]
    for key in ('auc', 'logloss', 'valid_auc', 'epochs', 'core_s'):
      mean |= runs.over_seeds(key, [r[key] for r in runs_of.values()])
    for key in ('compression', 'ari', 'possible_auc'):
      if key in first:
        mean[key] = float(np.mean([r[key] for r in runs_of.values()]))
    flat = by_case.get(f'{name.rpartition("/")[0]}/flat', {})
    random = by_case.get(name.replace(f'/{first["towers"]} ', '/random '), {})
    if first['towers'] != 'flat':
      mean |= compare('minus_flat', runs_of, flat)
      if first['towers'] != 'random':
        mean |= compare('minus_random', runs_of, random)
    found.append(mean)
  return found


def compare(
  name: str, runs_of: Mapping[int, Mapping], others: Mapping[int, Mapping]
) -> dict[str, float]:
  """Mean differences of runs of equal seeds, and their standard errors.

  >>> one = {0: {'auc': 0.75, 'logloss': 1}, 1: {'auc': 0.5, 'logloss': 1}}
  >>> compare('minus_flat', one, {0: {'auc': 0.5, 'logloss': 0.5}})
  {'minus_flat': 0.25, 'logloss_minus_flat': 0.5, 'minus_flat_pairs': 1}
  """
  both = [(row, others[s]) for s, row in runs_of.items() if s in others]
  if not both:
    return {}
  found = {}
  for key, prefix in (('auc', ''), ('logloss', 'logloss_')):
    differences = [a[key] - b[key] for a, b in both]
    found |= runs.mean_difference(f'{prefix}{name}', differences)
  return found | {f'{name}_pairs': len(both)}


if __name__ == '__main__':
  main()
