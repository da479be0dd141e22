"""Does this checkout train, bit for bit, what an earlier commit trained?

  git worktree add /tmp/base COMMIT
  python -m benchmarks.same_curves --base /tmp/base --runs DIR
  python -m benchmarks.same_curves --base /tmp/base --runs DIR --cases dlrm

Every case is a command line of `genrec_jax.main`. It is run with the code of
`--base` and with the code of this checkout, first to train and then to predict,
each in a process of its own. What is compared:

  metrics.jsonl    every line but for timings (`perf/...`): the loss and the
                   norm of the gradient of each step, and all evaluations
  predictions.csv  of the last weights, for all users or test examples; its
                   numbers have all digits of a float32

Both must have equal bits. Where they do not, the row says at which step which
measurement differs first, and by how much. Workdirs lie below `--runs`, named
by commit and case; what has ended is not run again, and a case that is in the
result file already is replaced.

Data are looked for in $GENREC_DATA, then in ../shared/data beside the checkout.
`--smoke` trains on generated data.
"""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

from benchmarks import cli, runs

PACKAGE = ('genrec_jax', 'pallas_kernels', 'configs')


@dataclasses.dataclass(frozen=True)
class Case:
  """A command line.

  Attributes:
    config: 'configs/FILE.py:variant'.
    data: directory below $GENREC_DATA.
    overrides: 'a.b=value' each.
  """

  config: str
  data: str
  overrides: tuple[str, ...]


EVERY_STEP = ('train.log_every=1',)
HSTU = Case('configs/hstu_ml1m.py', 'ml-1m', ('train.epochs=1', *EVERY_STEP))
DLRM = Case('configs/frappe.py:dlrm', 'frappe', ('train.epochs=3', *EVERY_STEP))
WUKONG = dataclasses.replace(DLRM, config='configs/wukong_frappe.py')
# The former name of the key: both commits understand it.
ROWS = ('data.table_update=row_adagrad',)
NO_L2 = ('loss.table_l2=0',)  # it moves whole tables, so rows refuse it


def with_rows(case: Case, *overrides: str) -> Case:
  """The same with a row optimizer of tables."""
  return dataclasses.replace(
    case, overrides=(*case.overrides, *ROWS, *overrides)
  )


CASES = {
  'dlrm': DLRM,
  'dlrm/rows': with_rows(DLRM, *NO_L2),
  'wukong': WUKONG,
  'wukong/rows': with_rows(WUKONG, *NO_L2),
  'hstu': HSTU,
  'hstu/rows': with_rows(HSTU),
}
SMOKE = ('dlrm/rows',)
PREDICT = ('predict.checkpoint=latest',)
COLUMNS = (
  'case', 'base', 'commit', 'same', 'steps', 'values', 'predictions', 'first',
  'relative', 'predictions_differ', 'core_s',
)  # fmt: skip
NOTES = (
  'values: numbers of metrics.jsonl that were compared, timings left out; '
  'predictions: lines of predictions.csv but for the first.',
  'added: measurements that only the later commit writes; they are not '
  'compared.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('same_curves', __doc__)
  parser.add_argument('--base', required=True, help='checkout to compare with')
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--cases', nargs='+', choices=CASES)
  args = parser.parse_args(argv)
  base = pathlib.Path(args.base).resolve()
  if not (base / 'genrec_jax').is_dir():
    cli.fail(f'--base={args.base}: no checkout, genrec_jax is not in it')
  for name in args.cases or (SMOKE if args.smoke else CASES):
    try:
      found = measure(name, base, pathlib.Path(args.runs), args.smoke)
    except (OSError, RuntimeError) as error:
      cli.fail(str(error))
    cli.finish(args, 'same_curves', [found], COLUMNS, NOTES)


def measure(
  name: str, base: pathlib.Path, directory: pathlib.Path, smoke: bool
) -> dict:
  """Runs a case with both checkouts and compares what they left."""
  case = CASES[name]
  overrides = case.overrides
  if smoke:
    config = case.config + (',smoke' if ':' in case.config else ':smoke')
    case = dataclasses.replace(case, config=config)
    overrides = [o for o in overrides if 'epochs' not in o]
  else:
    overrides = [f'data.path={data() / case.data}', *overrides]
  workdirs = []
  for who, checkout in (('base', base), ('this', runs.ROOT)):
    workdir = directory / who / commit(checkout) / name.replace('/', '_')
    run(checkout, case.config, workdir, overrides)
    workdirs.append(workdir)
  report = runs.read_report(workdirs[1])
  shown = [f'--config={case.config}']
  if not smoke:
    shown.append(f'--config.data.path=$GENREC_DATA/{case.data}')
  shown += [f'--config.{o}' for o in case.overrides]
  return {
    'case': name,
    'base': commit(base),
    'commit': commit(runs.ROOT),
    **compare(*workdirs),
    'steps': report['steps'],
    'core_s': report['core_s'],
    'devices': report['devices'],
    'options': ' '.join(shown),
  }


def run(checkout, config: str, workdir: pathlib.Path, overrides) -> None:
  """Trains and predicts, unless both have been done by a commit as it is."""
  if workdir.parent.name.endswith('+') and workdir.exists():
    shutil.rmtree(workdir)  # of other changes, perhaps
  if not runs.ended(workdir):
    runs.start(checkout, config, workdir, overrides)
  if not (workdir / 'predictions.csv').exists():
    more = (*overrides, *PREDICT)
    runs.start(checkout, config, workdir, more, mode='predict')


def commit(checkout: pathlib.Path) -> str:
  """The last commit that changed what is run; with '+' if files differ."""

  def git(*words):
    return subprocess.run(
      ['git', '-C', str(checkout), *words, '--', *PACKAGE],
      capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip

  try:
    name = git('log', '-1', '--format=%h')
    return name + '+' * bool(git('status', '--porcelain'))
  except (OSError, subprocess.CalledProcessError):
    return 'unknown+'  # no git, or no history


def data() -> pathlib.Path:
  """The directory of all data."""
  found = os.environ.get('GENREC_DATA', runs.ROOT.parent / 'shared/data')
  return pathlib.Path(found).resolve()


def compare(base: pathlib.Path, this: pathlib.Path) -> dict:
  """What two workdirs have in common.

  Args:
    base: workdir of the earlier code.
    this: workdir of the later code.

  Returns:
    'same'; what was compared ('values', 'predictions'); where curves differ
    'first' (step and measurement) and how far apart the two numbers are
    ('relative'); where predictions differ how many ('predictions_differ') and
    by how much at most ('predictions_relative'); measurements that only `this`
    has ('added').
  """
  old, new = measurements(base), measurements(this)
  found = {'same': 'equal', 'values': len(old)}
  added = sorted({key for _, key in new.keys() - old.keys()})
  different = [at for at, x in old.items() if new.get(at) != x]
  if different:
    step, key = different[0]
    was, now = old[step, key], new.get((step, key))
    found |= {'same': 'curves differ', 'first': f'step {step}: {key}'}
    found |= {'was': was, 'now': now, 'values_differ': len(different)}
    if now is not None:
      found['relative'] = relative(was, now)
  if added:
    found['added'] = added
  rows, others = predictions(base), predictions(this)
  found['predictions'] = len(rows) - 1
  changed = [
    (a, b) for a, b in zip(rows, others, strict=False) if a != b
  ]  # as text: they have all digits
  apart = len(changed) + abs(len(rows) - len(others))
  if apart:
    found['predictions_differ'] = apart
    found['predictions_relative'] = max(
      [relative(*pair) for a, b in changed for pair in numbers(a, b)],
      default=0.0,
    )
    if not different:
      found['same'] = 'predictions differ'
  return found


def measurements(workdir: pathlib.Path) -> dict[tuple[int, str], object]:
  """(step, measurement) -> number, in the order of metrics.jsonl."""
  found = {}
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    row = json.loads(line)
    step = row.pop('step')
    for key, value in row.items():
      if not key.startswith('perf/'):
        found[step, key] = value
  return found


def predictions(workdir: pathlib.Path) -> list[list[str]]:
  """Rows of predictions.csv, the names of the columns first."""
  with open(workdir / 'predictions.csv', newline='', encoding='utf-8') as f:
    return list(csv.reader(f))


def numbers(a: list[str], b: list[str]) -> list[tuple[float, float]]:
  """The cells of two rows that are fractions, side by side."""
  found = []
  for pair in zip(a, b, strict=False):
    if all('.' in cell for cell in pair):
      with contextlib.suppress(ValueError):  # a title
        found.append((float(pair[0]), float(pair[1])))
  return found


def relative(a: float, b: float) -> float:
  """How far apart two numbers are.

  >>> relative(2.0, 2.5), relative(0.0, 0.0)
  (0.2, 0.0)
  """
  return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


if __name__ == '__main__':
  main()
