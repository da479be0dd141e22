"""One teacher and its students on a stream that drifts: what is gained, where.

  python -m benchmarks.exfm --runs DIR
  python -m benchmarks.exfm --runs DIR --only ladder lag/effects

Streams are those of data/ranking/drift.py: 40 windows of 50,000 examples, three
segments, a student for each, which reads its own segment alone. Every example
is scored before it is learned from; NE is that of the last half of the windows,
over the entropy of one base rate, that of these examples. Methods are those of
`distill.method`:

  none           labels alone
  one_head       labels and scores by the head that serves, alike (eq. 2)
  one_head_w     the same with a weight of the scores, which the paper has not
  teacher_alone  scores alone
  head           a head of its own for the scores (AH)
  adapter        that, and one for scores that an adapter corrects (AH + SA)

ladder    three students, all methods
lag       a teacher that is 0 to 3 windows older than it could be, on three
          streams: the usual one; `calibration`, where the base rates of
          segments drift fast and far, and the effects of values slowly;
          `effects`, where the effects drift fast and base rates are one
transfer  teachers of three sizes, trained on all segments (1 : N) or on that of
          the student alone (1 : 1)
bias      segments that have nearly all in common, and ones with little

`gain_%` is the mean over seeds of 100 (1 - NE / NE without a teacher), paired
by seed and student, `gain_ci` half the width of its 95 % interval (Student's t
over seeds). `step_%` is the same from the method that STEPS names, `tuned_%`
that from one_head_w, a baseline with as many knobs as the head has, `late_%`
that from the same method without a lag. Cases of
`ladder/usual/all` have the mean NE of the three students. Knobs and rates were
chosen on other seeds (benchmarks/exfm_search.py). Rows that a result file has
are not measured again, and what has been trained stays in DIR: the same command
continues.
"""

import argparse
import dataclasses
import pathlib
import shutil
from collections.abc import Iterable, Mapping

import numpy as np
from scipy import stats

from benchmarks import cli, exfm_worlds, runs
from benchmarks.exfm_worlds import Teacher, World
from genrec_jax.data.ranking import drift

COLUMNS = (
  'case', 'seeds', 'ne', 'ne_std', 'gain_%', 'gain_ci', 'step_%', 'step_ci',
  'tuned_%', 'tuned_ci', 'late_%', 'late_ci', 'auc_gain_%', 'calibration',
  'teacher_ne', 'transfer', 'floor', 'core_s',
)  # fmt: skip
METHODS = (
  'none', 'one_head', 'one_head_w', 'head', 'adapter', 'teacher_alone',
)  # fmt: skip
# Method -> the one before it on the ladder.
STEPS = {
  'one_head': 'none',
  'one_head_w': 'one_head',
  'head': 'one_head',
  'adapter': 'head',
  'teacher_alone': 'one_head',
}
STUDENTS = {'dlrm': 0, 'dcn': 1, 'deepfm': 2}  # model -> its segment
USUAL = dict(windows=40, rows=50_000, segments=3, segment_zipf=0.0)
STREAMS = {
  'usual': {},
  # Base rates drift far and fast, and effects slowly; and the other way round.
  'calibration': dict(rate_spread=1.0, rate_half_life=4.0, half_life=100.0),
  'effects': dict(rate_spread=0.0, half_life=6.0),
  'alike': dict(common=0.95),
  'apart': dict(common=0.2),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a student is trained by a method.

  Attributes:
    method: of `distill.method`.
    rates: of dense parameters and of rows.
    knobs: further keys of `distill`.
  """

  method: str
  rates: tuple[float, float]
  knobs: Mapping = dataclasses.field(default_factory=dict)


# Chosen by benchmarks/exfm_search.py, on seeds that are not used here.
RECIPES = {
  'none': Recipe('none', (0.003, 0.0005)),
  'one_head': Recipe('one_head', (0.003, 0.0005)),
  'one_head_w': Recipe('one_head', (0.003, 0.001), dict(loss_weight=4.0)),
  'head': Recipe('head', (0.001, 0.00025), dict(gradient_scale=4.0)),
  'adapter': Recipe(
    'adapter',
    (0.003, 0.0005),
    dict(
      gradient_scale=4.0,
      adapter_gradient_scale=4.0,
      adapter_input='probability',
    ),
  ),
  'teacher_alone': Recipe('teacher_alone', (0.003, 0.001)),
}
LAGS = (0, 1, 2, 3)
LEAST_LEAD = 2e-3  # of a teacher's NE, to speak of what reaches a student
# What rows say of their case.
NAMED = ('group', 'method', 'part', 'stream', 'student', 'teacher', 'lag')
NOTES = (
  'ne: of the last half of the windows, each example scored before it is '
  'learned from; the entropy is that of one base rate for each student.',
  'gain_%, step_%: means over seeds of relative differences between runs of '
  'equal seeds and students; *_ci half of a 95 % interval (t, n - 1).',
  'transfer: what of the gain of the teacher over a student without one '
  'reaches the student, a ratio of means.',
  'Labels are there at once; see exfm_kills and docs/exfm.md for the join.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A student that is trained, seed by seed.

  Attributes:
    part: of the benchmark.
    stream: of STREAMS.
    model: of STUDENTS.
    method: of METHODS.
    teacher: whose scores it learns.
    lag: of them.
  """

  part: str
  stream: str
  model: str
  method: str
  teacher: Teacher = Teacher()
  lag: int = 0

  @property
  def group(self) -> str:
    """What cases share that differ in their method alone."""
    about = f'{self.part}/{self.stream}/{self.model}'
    if self.part == 'lag':
      about += f'/lag{self.lag}'
    if self.part == 'transfer':
      about += f'/{self.teacher.name}'
    return about

  @property
  def name(self) -> str:
    """As rows have it.

    >>> Case('lag', 'usual', 'dlrm', 'head', lag=2).name
    'lag/usual/dlrm/lag2/head'
    """
    return f'{self.group}/{self.method}'


def list_cases() -> dict[str, tuple[list[Case], range]]:
  """Part -> its cases and seeds."""
  ladder = [
    Case('ladder', 'usual', model, method)
    for model in STUDENTS
    for method in METHODS
  ]
  lag = [
    Case('lag', stream, 'dlrm', method, lag=lag)
    for stream in ('usual', 'calibration', 'effects')
    for lag in LAGS
    for method in ('none', 'one_head', 'head', 'adapter')
  ]
  transfer = [
    Case('transfer', 'usual', 'dlrm', method, Teacher(size, segment))
    for size in exfm_worlds.SIZES
    for segment in (exfm_worlds.EVERYTHING, STUDENTS['dlrm'])
    for method in ('none', 'head')
  ]
  bias = [
    Case('bias', stream, 'dlrm', method)
    for stream in ('alike', 'usual', 'apart')
    for method in ('none', 'one_head', 'one_head_w', 'head')
  ]
  three = range(1, 4)
  return {
    'ladder': (ladder, range(1, 6)),
    'lag': (lag, three),
    'transfer': (transfer, three),
    'bias': (bias, three),
  }


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as ladder or lag/effects',
  )  # fmt: skip
  parser.add_argument('--seeds', nargs='+', type=int, help='these alone')
  parser.add_argument(
    '--keep', action='store_true',
    help='keep checkpoints of teachers whose scores are all there',
  )  # fmt: skip
  args = parser.parse_args(argv)
  rows = cli.read_rows(args, 'exfm')
  for case, seed in list_runs(args):
    name = f'{case.name}/seed{seed}'
    if name not in rows:
      rows[name] = measure(args, case, seed)
      save(args, rows)
  save(args, rows)


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  own = [row for row in rows.values() if row['kind'] == 'run']
  # Gains of .02 % of NE are read, and averaged again from what is written.
  rows = [*own, *average(own)]
  cli.finish(args, 'exfm', rows, COLUMNS, NOTES, digits=9)


def list_runs(args: argparse.Namespace) -> list[tuple[Case, int]]:
  """(case, seed), in the order of training: seed by seed of each part."""
  found = []
  for cases, seeds in list_cases().values():
    if args.smoke:
      seeds, cases = seeds[:1], [c for c in cases if c.lag in (0, 1)]
    for seed in seeds:
      found += [(case, seed) for case in cases]
  if args.smoke:
    found = [x for x in found if x[0].part in ('ladder', 'lag')][:8]
  return [
    (case, seed)
    for case, seed in found
    if (args.seeds is None or seed in args.seeds)
    and case.name.startswith(tuple(args.only))
  ]


def make_world(args: argparse.Namespace, stream: str, seed: int) -> World:
  """The stream of a seed."""
  options = USUAL | STREAMS[stream] | {'seed': seed}
  if args.smoke:
    options |= dict(windows=4, rows=600, values=20)
  folder = pathlib.Path(args.runs) / stream / f'seed{seed}'
  return World(folder, drift.DriftLog(**options))


def measure(args: argparse.Namespace, case: Case, seed: int) -> dict:
  """The row of a run, trained unless that was done."""
  world = make_world(args, case.stream, seed)
  segment = STUDENTS[case.model]
  labels = exfm_worlds.read_labels(world.list_parts(segment))
  parts = world.annotate(segment, case.teacher, case.lag)
  store = world.score(case.teacher, case.lag)
  if not args.keep:
    drop_checkpoints(args, world, case)
  # Without a teacher, its name and its lag do not matter: one run for all.
  about = [case.model, case.method]
  if case.method == 'none':
    parts = world.annotate(segment, Teacher(), 0)
  else:
    about += [case.teacher.name, f'lag{case.lag}']
  recipe = RECIPES[case.method]
  workdir = world.train_student(
    '_'.join(about),
    case.model,
    parts,
    seed,
    recipe.rates,
    method=recipe.method,
    **recipe.knobs,
  )
  found = exfm_worlds.measure_student(workdir, labels)
  return {
    'case': f'{case.name}/seed{seed}',
    'kind': 'run',
    'of': case.name,
    'group': case.group,
    'method': case.method,
    'part': case.part,
    'stream': case.stream,
    'student': case.model,
    'teacher': case.teacher.name,
    'lag': case.lag,
    'seed': seed,
    'rows': int(labels.rows.sum()),
    'rate': labels.rate,
    'floor': labels.floor,
    'teacher_ne': exfm_worlds.measure_teacher(store, world.list_parts(segment)),
  } | found


def drop_checkpoints(args, world: World, case: Case) -> None:
  """Removes those of a teacher that no case needs any more."""
  wanted = {
    (c.teacher, c.lag)
    for cases, _ in list_cases().values()
    for c in cases
    if c.stream == case.stream and c.teacher == case.teacher
  }
  scored = world.folder / 'scores'
  if all((scored / f'{t.name}_lag{lag}').exists() for t, lag in wanted):
    folder = world.folder / 'teachers' / case.teacher.name / 'checkpoints'
    shutil.rmtree(folder, ignore_errors=True)


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and what it gains."""
  rows = list(rows)
  by_case = runs.group_by_seed([*pool_students(rows), *rows])
  found = []
  for name, of in by_case.items():
    first = next(iter(of.values()))
    mean = {'case': name, 'kind': 'mean', 'seeds': len(of)}
    mean |= {key: first[key] for key in NAMED if key in first}
    for key in ('auc', 'calibration', 'teacher_ne', 'floor', 'core_s'):
      mean[key] = float(np.mean([row[key] for row in of.values()]))
    mean |= runs.over_seeds('ne', [row['ne'] for row in of.values()])
    mean |= compare(of, by_case)
    found.append(mean)
  return found


def pool_students(rows: Iterable[Mapping]) -> list[dict]:
  """The mean student of each method and seed, once all students are there."""
  students = {}
  for row in rows:
    if row['group'].startswith('ladder/'):
      students.setdefault((row['method'], row['seed']), []).append(row)
  found = []
  for (method, seed), of in students.items():
    if len(of) == len(STUDENTS):
      group = 'ladder/usual/all'
      row = {key: of[0][key] for key in NAMED if key in of[0]}
      row |= {'of': f'{group}/{method}', 'group': group, 'seed': seed}
      for key in ('ne', 'auc', 'calibration', 'teacher_ne', 'floor', 'core_s'):
        row[key] = float(np.mean([x[key] for x in of]))
      found.append(row | {'student': 'all'})
  return found


def compare(of: Mapping[int, Mapping], by_case: Mapping) -> dict[str, float]:
  """What the runs of a case gain over those of the other methods."""
  first = next(iter(of.values()))
  group, method = first['group'], first['method']
  if method == 'none':
    return {}
  plain = by_case.get(f'{group}/none', {})
  found = describe_mean('gain', gain(of, plain, 'ne'))
  if plain:
    found['auc_gain_%'] = -float(np.mean(gain(of, plain, 'auc')))
    # Of means, and of a lead that is one: others divide by next to nothing.
    both = [(of[s], plain[s]) for s in of if s in plain]
    gained = np.mean([b['ne'] - a['ne'] for a, b in both])
    ahead = np.mean([b['ne'] - a['teacher_ne'] for a, b in both])
    if ahead > LEAST_LEAD:
      found['transfer'] = float(gained / ahead)
  before = by_case.get(f'{group}/{STEPS[method]}', {})
  found |= describe_mean('step', gain(of, before, 'ne'))
  if first.get('lag'):
    group = group.replace(f'/lag{first["lag"]}', '/lag0')
    soon = by_case.get(f'{group}/{method}', {})
    found |= describe_mean('late', gain(of, soon, 'ne'))
  if method in ('head', 'adapter'):
    tuned = by_case.get(f'{group}/one_head_w', {})
    found |= describe_mean('tuned', gain(of, tuned, 'ne'))
  return found


def gain(of: Mapping, over: Mapping, key: str) -> list[float]:
  """Per cent by which a number is smaller, for each seed that both have.

  >>> gain({1: {'ne': 0.9}, 2: {'ne': 0.8}}, {1: {'ne': 1.0}}, 'ne')
  [10.0]
  """
  return [
    round(100 * (1 - of[s][key] / over[s][key]), 9) for s in of if s in over
  ]


def describe_mean(key: str, values: list[float]) -> dict[str, float]:
  """The mean, and half of its 95 % interval.

  >>> found = describe_mean('gain', [1.0, 2.0, 3.0])
  >>> found['gain_%'], round(found['gain_ci'], 3)
  (2.0, 2.484)
  """
  if not values:
    return {}
  found = {f'{key}_%': float(np.mean(values))}
  if len(values) > 1:
    error = np.std(values, ddof=1) / len(values) ** 0.5
    width = stats.t.ppf(0.975, len(values) - 1) * error
    found[f'{key}_ci'] = float(width)
  return found


if __name__ == '__main__':
  main()
