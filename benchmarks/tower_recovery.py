"""Does the tower partitioner find which features belong together?

  python -m benchmarks.tower_recovery --runs DIR
  python -m benchmarks.tower_recovery --runs DIR --only sizes

Generated clicks have fields in planted blocks (`data.clicks.blocks`): nine of
ten interactions join fields of one block, and numbers of fields say nothing. A
flat DLRM is trained on them, and `genrec_jax.train.partition_towers` chooses as
many towers as there are blocks. `ari`, the adjusted Rand index, is 1 where it
finds the blocks exactly, and about 0 for a partition that knows nothing.

  sizes     logs of 10 to 160 thousand rows, four in five of them to train on:
            how many does it take, by which strategy?
  samples   examples that the cosines are a mean of, for one size
  settings  other logs and models of the largest size: where does it end?

'coherent' clusters points of as many dimensions as there are towers, 'coherent
2d' points of the plane, which is what the paper of DMT says. A row is the mean
over seeds; `exact` counts those that found every block. What has ended in
`--runs` is not trained again.
"""

import argparse
import collections
import math
import pathlib
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from benchmarks import cli, runs
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import clicks
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, partition_towers

SIZES = (10_000, 20_000, 40_000, 80_000, 160_000)
SAMPLES = (16, 64, 256, 1024, 8192)
STRATEGIES = {  # -> options of `make_towers`
  'coherent': dict(strategy='coherent'),
  'coherent 2d': dict(strategy='coherent', dimensions=2),
  'diverse': dict(strategy='diverse'),
  'cooccurrence': dict(strategy='cooccurrence'),
  'cooccurrence_by_label': dict(strategy='cooccurrence_by_label'),
  'round_robin': dict(strategy='round_robin'),
  'random': dict(strategy='random'),
}
LEARNED = ('coherent', 'coherent 2d', 'diverse')
BASE = dict(
  fields=16, blocks=4, values=30, numbers=0, orders=(2,), terms=64, traits=1
)
# What differs from BASE, and from a DLRM that multiplies pairs of vectors.
SETTINGS = {
  'as above': ({}, {}),
  'orders 1 to 4': (dict(orders=(1, 2, 3, 4)), {}),
  'three traits a value': (dict(traits=3, terms=200), {}),
  '200 values a field': (dict(values=200), {}),
  'three numbers': (dict(numbers=3), {}),
  '26 fields': (dict(fields=26, terms=100), {}),
  '8 blocks of 24 fields': (dict(fields=24, blocks=8), {}),
  'interaction=cat': ({}, dict(interaction='cat')),
}
COLUMNS = (
  'case', 'ari', 'ari_least', 'exact', 'seeds', 'stress', 'auc', 'core_s'
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tower_recovery', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument('--only', choices=('sizes', 'samples', 'settings'))
  args = parser.parse_args(argv)
  args.steps, args.sizes, args.settings = 1000, SIZES, SETTINGS
  if args.smoke:
    args.steps, args.sizes, args.seeds = 8, (2_000,), [0]
    args.settings = {'as above': ({}, {})}
  measure = {
    'sizes': measure_sizes,
    'samples': measure_samples,
    'settings': measure_settings,
  }
  rows = []
  for part, function in measure.items():
    if args.only in (None, part):
      for row in function(args):
        rows.append({'part': part, **row})
        print(cli.table(rows[-1:], COLUMNS), flush=True)
  notes = [
    'rows are those of the log, four in five train; ari is the mean over seeds '
    'and core_s that of a training.',
    'The fields of the log are drawn independently of each other: '
    'co-occurrence can find blocks by the label alone.',
  ]
  cli.finish(args, 'tower_recovery', rows, COLUMNS, notes)


def measure_sizes(args: argparse.Namespace) -> Iterable[dict]:
  """A row for each size and strategy."""
  for size in args.sizes:
    trained = [train(args, size, seed) for seed in args.seeds]
    for strategy in STRATEGIES:
      # Without a model every training example is looked at.
      samples = 8192 if strategy in LEARNED else size
      case = {'case': f'{size // 1000}k/{strategy}', 'rows': size}
      yield case | judge(trained, strategy, samples)


def measure_samples(args: argparse.Namespace) -> Iterable[dict]:
  """A row for each number of samples, of runs of one size."""
  size = args.sizes[min(3, len(args.sizes) - 1)]
  trained = [train(args, size, seed) for seed in args.seeds]
  for samples in SAMPLES:
    case = {'case': f'{samples} samples/{size // 1000}k', 'rows': size}
    yield case | judge(trained, 'coherent', samples)


def measure_settings(args: argparse.Namespace) -> Iterable[dict]:
  """A row for each setting and each way of looking at a trained model."""
  size = args.sizes[-1]
  for name, (log, model) in args.settings.items():
    trained = [train(args, size, seed, log, model) for seed in args.seeds]
    for strategy in ('coherent', 'coherent 2d', 'cooccurrence_by_label'):
      samples = 8192 if strategy in LEARNED else size
      case = {'case': f'{name}/{strategy}', 'setting': name, 'rows': size}
      yield case | judge(trained, strategy, samples)


def train(
  args: argparse.Namespace,
  rows: int,
  seed: int,
  log: Mapping | None = None,
  model: Mapping | None = None,
) -> pathlib.Path:
  """The workdir of a flat DLRM, trained unless it has ended."""
  changes = {**(log or {}), **(model or {})}
  name = '_'.join([f'{k}{v}' for k, v in changes.items()] or ['base'])
  name = ''.join(c for c in name if c.isalnum() or c == '_')
  workdir = pathlib.Path(args.runs) / f'{name}_{rows}_seed{seed}'
  if not runs.ended(workdir):
    config = make_config(rows, seed, args.steps, log or {}, model or {})
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  return workdir


def make_config(rows: int, seed: int, steps: int, log: Mapping, model: Mapping):
  """The experiment: only the tables and a small net, two seconds to compile."""
  config = config_lib.ranking()
  config.seed = seed
  config.model = config_lib.dlrm(
    **dict(dim=16, interaction='dot', top=(64,), bottom=(16,)) | dict(model)
  )
  config.data.clicks.update(rows=rows, seed=seed, **BASE | dict(log))
  config.data.init_std = 0.01
  config.loss.table_l2 = 1e-5
  config.optimizer.learning_rate = 2e-3
  config.train.update(batch_size=512, steps=steps, patience=0)
  config.train.eval_every = config.train.checkpoint_every = max(8, steps // 8)
  config.train.log_every = max(8, steps // 8)
  config.eval.splits = ('valid',)
  config.report.importance_rows = 0
  return config


def judge(
  workdirs: Sequence[pathlib.Path], strategy: str, samples: int
) -> dict:
  """How well a strategy finds the blocks of some runs."""
  scores, stresses, reports = [], [], []
  for workdir in workdirs:
    reports.append(runs.read_report(workdir))
    options = dict(reports[-1]['config']['data']['clicks'])
    log = clicks.ClickLog(**options | {'orders': tuple(options['orders'])})
    seed = reports[-1]['config']['seed']
    found = partition_towers.make_towers(
      workdir, log.blocks, samples=samples, seed=seed, **STRATEGIES[strategy]
    )
    blocks = {n: i for i, b in enumerate(clicks.list_blocks(log)) for n in b}
    towers = [found.plan.find_tower(name) for name in blocks]
    scores.append(adjusted_rand(towers, list(blocks.values())))
    if found.plan.stress is not None:
      stresses.append(found.plan.stress)
  row = {
    'strategy': strategy,
    'samples': samples,
    'ari': float(np.mean(scores)),
    'ari_least': min(scores),
    'exact': sum(score == 1 for score in scores),
    'seeds': len(scores),
    'auc': float(np.mean([r['metrics']['valid']['auc'] for r in reports])),
    'core_s': float(np.mean([r['core_s'] for r in reports])),
  }
  return row | ({'stress': float(np.mean(stresses))} if stresses else {})


def adjusted_rand(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
  """How alike two partitions are: 1 if equal, 0 in the mean by chance.

  >>> [round(adjusted_rand('aabb', b), 3) for b in ('xxyy', 'xyxy', 'xxxy')]
  [1.0, -0.5, 0.0]

  Args:
    a: the group of each member.
    b: the same in the other partition.
  """

  def count_pairs(groups: Iterable[Hashable]) -> int:
    return sum(math.comb(n, 2) for n in collections.Counter(groups).values())

  both = count_pairs(zip(a, b, strict=True))
  first, second, every = count_pairs(a), count_pairs(b), math.comb(len(a), 2)
  chance = first * second / every if every else 0.0
  most = (first + second) / 2
  return 1.0 if most == chance else (both - chance) / (most - chance)


if __name__ == '__main__':
  main()
