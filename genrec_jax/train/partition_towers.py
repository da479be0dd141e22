"""Puts the features of a run into towers.

    python -m genrec_jax.train.partition_towers WORKDIR --towers=4
        [--strategy=coherent] [--samples=8192] [--seed=0] [--max_bytes=2e9]
        [--output=DIR]

WORKDIR is a run of task ranking. The strategies:

    coherent                features whose learned rows point the same way, as
                            those of a trained flat model do that interact
    diverse                 the opposite
    cooccurrence            features whose values say something of each other
    cooccurrence_by_label   the same among examples of equal labels, so also
                            features that say something of the label together
    round_robin, random     to compare with

The first two need a trained run, the others its config and its data alone.
Writes towers.json and towers.svg, the features as points in the plane, into
WORKDIR or DIR. With --check=FILE it makes no partition, but says of the towers
in FILE what it says of its own. It is here and not beside the partitioner,
because it reads runs: planner/tower_partitioner.py knows features alone.
"""

import argparse
import dataclasses
import logging
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax import last_resort
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.config import tower_file
from genrec_jax.data.quoting import escape
from genrec_jax.formatting import format_bytes

LEARNED = {'coherent': 'coherent', 'diverse': 'diverse'}
BY_VALUES = ('cooccurrence', 'cooccurrence_by_label')
DEALT = ('round_robin', 'random')
# Of the distances between towers: features within one that are farther apart
# than that may be there by chance.
_NEAR = 0.95
STRATEGIES = (*LEARNED, *BY_VALUES, *DEALT)
PICTURE = 'towers.svg'
_HEAD = ('>tower', '>features', '>bytes', '>read', '>distance', '<which')
LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class TowerReport:
  """Towers of a run, and what is known of them.

  Attributes:
    plan: the towers, as they are written.
    features: `TowerFeature` of each feature.
    distances: `[F, F]` between them, or None where nobody measured any.
    measured: what the distances are, in words.
    partition: `Partition` with the plane; None for towers of a file.
    notes: sentences about what could not be measured.
  """

  plan: tower_file.TowerPlan
  features: Sequence
  distances: np.ndarray | None = None
  measured: str = ''
  partition: object = None
  notes: Sequence[str] = ()


def make_towers(
  workdir: str | os.PathLike,
  towers: int,
  *,
  strategy: str = 'coherent',
  samples: int = 8192,
  seed: int = 0,
  least: int | None = None,
  most: int | None = None,
  max_bytes: float | None = None,
  max_load: float | None = None,
  dimensions: int | None = None,
  checkpoint: str = 'best',
  check: str | os.PathLike = '',
) -> TowerReport:
  """Chooses towers for the features of a run.

  Args:
    workdir: of the run.
    towers: how many.
    strategy: one of `STRATEGIES`.
    samples: training examples to look at.
    seed: of their draw and of the partition.
    least: features of a tower at least; None is an even share.
    most: features of a tower at most; None is an even share, rounded up.
    max_bytes: of the rows of a tower's tables.
    max_load: bytes of rows that an example reads of a tower.
    dimensions: of the points; see `partition_features`.
    checkpoint: 'best' or 'latest', of a trained run.
    check: a file of towers to describe; '' chooses towers.
  """
  # Late, so that --help need not wait for JAX.
  from genrec_jax.planner.tower_bounds import Bounds
  from genrec_jax.planner.tower_partitioner import (
    deal_features,
    partition_features,
  )
  from genrec_jax.train import tower_samples

  if strategy not in STRATEGIES:
    raise ValueError(
      f'the strategy is {strategy!r}, must be one of {", ".join(STRATEGIES)}'
    )
  if samples < 2:
    raise ValueError(f'--samples must be at least 2, not {samples}')
  if seed < 0:
    raise ValueError(f'--seed must be at least 0, not {seed}')
  for name, bound in (('max_bytes', max_bytes), ('max_load', max_load)):
    if bound is not None and not bound > 0:
      raise ValueError(f'--{name} must be above 0, not {bound}')
  if dimensions is not None and dimensions < 1:
    raise ValueError(f'--dimensions must be at least 1, not {dimensions}')
  for name, bound in (('least', least), ('most', most)):
    if bound is not None and bound < 1:
      raise ValueError(f'--{name} must be at least 1, not {bound}')
  if least is not None and most is not None and most < least:
    raise ValueError(f'--most={most} is less than --least={least}')
  data, task, extensions = _load_run(workdir)
  looked = tower_samples.load_samples(data, task, samples, seed)
  features = looked.features
  facts = dict(strategy=strategy, seed=seed, source=str(workdir))
  distances, measured, notes = None, '', ()
  if strategy not in DEALT:
    similarity, words = _measure(
      workdir, task, looked, strategy, checkpoint, extensions
    )
    distances = similarity.to_distances(LEARNED.get(strategy, 'coherent'))
    notes = tuple(similarity.notes)
    if strategy in LEARNED and task.towers is not None:
      notes += (
        'the run stands on towers already, so that its rows have learned to '
        'work within them; a flat run says more',
      )
    measured = f'{words}, in {similarity.samples:,} training examples'
    facts |= {'distance': words, 'samples': similarity.samples}
  if check:
    plan = tower_file.read_towers(check)
    tower_file.check_towers(
      plan.towers,
      [f.name for f in features],
      {f.name: f.source for f in features},
    )
    return TowerReport(plan, features, distances, measured, None, notes)
  even = Bounds.even(len(features), max(1, towers))
  if least is None:
    least = even.least if most is None else min(even.least, most)
  bounds = Bounds(
    least, max(even.most, least) if most is None else most, max_bytes, max_load
  )
  if distances is None:
    partition = deal_features(
      features, towers, strategy, bounds=bounds, seed=seed
    )
  else:
    partition = partition_features(
      features,
      distances,
      towers,
      bounds=bounds,
      dimensions=dimensions,
      seed=seed,
    )
  plan = partition.plan(**facts)
  return TowerReport(plan, features, distances, measured, partition, notes)


def _load_run(workdir):
  from genrec_jax import extensions as extensions_lib
  from genrec_jax.train.ranking_data import RankingData

  path = pathlib.Path(workdir) / 'config.json'
  if not path.exists():
    raise FileNotFoundError(
      f'{workdir} is not the workdir of a run (no config.json); train first'
    )
  config = config_lib.load_saved(path, forget_mesh=True)
  if config.task != 'ranking':
    raise ValueError(
      f'{workdir} is a run of task {config.task!r}; towers are for task '
      "'ranking', whose features have tables"
    )
  extensions = extensions_lib.load_extensions(config.get('extensions', ''))
  data = RankingData.load(config, workdir, LOG.info)
  return data, data.task(config, extensions), extensions


def _measure(workdir, task, looked, strategy, checkpoint, extensions):
  """The similarity of the features, and the distance in words."""
  from genrec_jax.planner.feature_distances import (
    measure_alignment,
    measure_cooccurrence,
  )
  from genrec_jax.train import tower_samples

  if strategy in LEARNED:
    vectors, step = tower_samples.read_vectors(
      workdir, task, looked, checkpoint, extensions
    )
    mean = f'mean |cos| of the learned rows of step {step}'
    words = f'1 - {mean}' if strategy == 'coherent' else mean
    return measure_alignment(vectors, looked.present, looked.values), words
  strata = looked.strata() if strategy == 'cooccurrence_by_label' else None
  words = "1 - Cramer's V of the values"
  if strata is not None:
    words += ' among examples of equal labels'
  measured = measure_cooccurrence(looked.codes(), looked.present, strata)
  return measured.scale(), f'{words}, as a share of the largest'


def describe_towers(report: TowerReport) -> list[str]:
  """Lines for a person who has not seen any before."""
  plan, features = report.plan, {f.name: f for f in report.features}
  numbers = {name: i for i, name in enumerate(features)}
  lines = [f'{len(features)} features in {len(plan.towers)} towers']
  lines[0] += f', strategy {plan.strategy}' if plan.strategy else ''
  if report.measured:
    lines.append(f'distance of two features: {report.measured}')
  rows = []
  for number, tower in enumerate(plan.towers):
    own = [features[name] for name in tower]
    tables = {f.source: f.bytes for f in own}
    rows.append(
      [
        str(number),
        str(len(own)),
        format_bytes(sum(tables.values())),
        format_bytes(sum(f.load for f in own)),
        _format_mean(report.distances, [numbers[f.name] for f in own]),
        ', '.join(tower),
      ]
    )
  lines += ['', *format_columns(_HEAD, rows), '']
  lines.append(
    'bytes: of the rows of the tables; read: bytes of rows that an example '
    'reads in the mean'
  )
  if report.distances is not None:
    lines.append(
      f'distance: the mean within a tower; {_compare_distances(report)}'
    )
  partition = report.partition
  if partition is not None and partition.plane is not None:
    lines.append(
      f'stress: {partition.stress:.2f} of the points that were clustered, in '
      f'{partition.dimensions} dimensions, and {partition.plane.stress:.2f} of '
      'the picture; 0 keeps all distances'
    )
  notes = [*report.notes, *_doubt_distances(report)]
  return [*lines, *(f'note: {note}' for note in notes)]


def _format_mean(distances: np.ndarray | None, numbers: list[int]) -> str:
  if distances is None or len(numbers) < 2:
    return '-'
  pairs = distances[np.ix_(numbers, numbers)][np.triu_indices(len(numbers), 1)]
  return f'{pairs.mean():.3f}'


def _compare_distances(report: TowerReport) -> str:
  within, between = _mean_distances(report)
  parts = []
  if within is not None:
    parts.append(f'{within:.3f} in all towers')
  if between is not None:
    parts.append(f'{between:.3f} between towers')
  return ', '.join(parts)


def _doubt_distances(report: TowerReport) -> Iterator[str]:
  """Says so where the towers hardly differ from any others."""
  if report.distances is None or report.plan.strategy == 'diverse':
    return
  within, between = _mean_distances(report)
  if within is None or between is None or within < _NEAR * between:
    return
  hint = '--strategy=cooccurrence_by_label looks at the values alone'
  if 'cooccurrence' in report.plan.strategy:
    hint = 'more --samples may show more'
  if near := _find_parted(report, within):
    yield near
  yield (
    f'features of a tower are hardly nearer to each other ({within:.3f}) than '
    f'to others ({between:.3f}), so that this partition may be chance; a run '
    f'that has learned more may show more, and {hint}'
  )


def _find_parted(report: TowerReport, within: float) -> str:
  """Which near features the bounds, or their tables, keep apart, in words."""
  names = [f.name for f in report.features]
  tower = np.array([report.plan.find_tower(name) for name in names])
  apart = np.where(
    tower[:, None] == tower[None], np.inf, report.distances
  )  # fmt: skip
  i, j = divmod(int(np.argmin(apart)), len(names))
  if not apart[i, j] < _NEAR * within:
    return ''
  return (
    f'{names[i]} and {names[j]} are near each other ({apart[i, j]:.3f}) and in '
    'two towers: other features that share their tables, or --least and '
    '--most, may keep them apart'
  )


def _mean_distances(report: TowerReport) -> tuple[float | None, float | None]:
  """(mean distance within towers, between towers); None where there is none."""
  names = [f.name for f in report.features]
  tower = np.array([report.plan.find_tower(name) for name in names])
  upper = np.triu_indices(len(names), 1)
  pairs = report.distances[upper]
  within = (tower[:, None] == tower[None])[upper]
  return (
    float(pairs[within].mean()) if within.any() else None,
    float(pairs[~within].mean()) if not within.all() else None,
  )


def write_report(
  report: TowerReport, directory: str | os.PathLike, *, replace: bool = False
) -> list:
  """Writes towers.json and, of distances, the picture; returns their paths.

  Args:
    report: of `make_towers`.
    directory: where they go.
    replace: whether a file with other towers may be written over.
  """
  from genrec_jax.report.tower_plane import draw_plane

  directory = pathlib.Path(directory)
  if directory.exists() and not directory.is_dir():
    raise ValueError(f'--output={directory} is no directory')
  directory.mkdir(parents=True, exist_ok=True)
  paths = [directory / tower_file.NAME]
  if not replace and paths[0].exists():
    # Runs may have been begun with it.
    if tower_file.read_towers(paths[0]).towers != report.plan.towers:
      raise ValueError(
        f'{paths[0]} has other towers, which runs may have been begun with; '
        'give another directory by --output, or pass --replace'
      )
  tower_file.write_towers(paths[0], report.plan)
  if report.partition is not None and report.partition.plane is not None:
    names = [f.name for f in report.features]
    points = dict(zip(names, report.partition.plane.points, strict=True))
    title = (
      f'{len(report.plan.towers)} towers, {report.plan.strategy}: near '
      f'features belong together (stress {report.partition.plane.stress:.2f})'
    )
    picture = draw_plane(points, report.plan.towers, title)
    paths.append(directory / PICTURE)
    paths[1].write_text(picture, encoding='utf-8')
  return paths


def main(argv: list[str] | None = None) -> int:
  args = vars(_make_parser().parse_args(argv))
  output, replace = args.pop('output'), args.pop('replace')
  # No device that a training may be using is asked for.
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  workdir = args.pop('workdir')
  report = make_towers(workdir, args.pop('towers'), **args)
  lines = describe_towers(report)
  if output or not args['check']:
    paths = write_report(report, output or workdir, replace=replace)
    lines.append(f'wrote {", ".join(map(str, paths))}')
  last_resort.print_result(escape('\n'.join(lines), keep='\n'))
  return 0


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.train.partition_towers',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('workdir')
  add('--towers', type=int, default=4, help='how many (4)')
  add('--strategy', choices=STRATEGIES, default='coherent')
  add('--samples', type=int, default=8192, help='training examples (8192)')
  add('--seed', type=int, default=0, help='of samples and partition (0)')
  add('--least', type=int, help='features of a tower (an even share)')
  add('--most', type=int, help='features of a tower (an even share)')
  add('--max_bytes', type=float, help='of the rows of a tower (any number)')
  add('--max_load', type=float, help='bytes an example reads of a tower (any)')
  add(
    '--dimensions',
    type=int,
    help="of the points (towers), one for each feature at most; paper: 2",
  )
  add('--checkpoint', choices=('best', 'latest'), default='best')
  add('--check', default='', help='a file of towers to describe')
  add('--output', default='', help='directory of the files (WORKDIR)')
  add('--replace', action='store_true', help='write over other towers there')
  return parser


if __name__ == '__main__':
  last_resort.run_command(main, 'partitioning')
