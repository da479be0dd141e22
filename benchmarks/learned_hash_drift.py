"""Maps that grow old while values are born and die, and maps that are renewed.

  python -m benchmarks.learned_hash_drift --runs DIR

configs/learned_hash_drift.py: one pass over 19 of 24 windows of 50,000
impressions, six fields of 2,000 values at a time, of which a fiftieth is born
anew in each window; tables of a tenth of the rows that all values together
would need.

identity    a row for each value
never       a map that knows nothing: as many ids on each row
every N     maps of what had been seen, made anew every N windows; the windows
            before the first one have the map of `never`

Each window is scored before the model learns from it. `ne` is the normalised
entropy of these predictions, its mean over the windows from the ninth on, when
each of the renewed maps has been made once; `floor` is that of the true
probabilities. Rows of kind 'age' are means over the windows that read a map so
many windows old, `ne_diff` their difference from `every 1` in the same windows.

`renewals` is how often maps were made, `map_core_s` how many core-seconds each
took beside the training of the small model (counts, vectors, k-means), and
`core_s` what the whole process took. Rows of kind 'mean' are over seeds, `_std`
the deviation between them; `ne_diff` is the mean difference of equal seeds from
`never`, `ne_ci` half of its 95 % interval (t, n - 1). Rows that a result file
has are not measured again.
"""

import argparse
import functools
import pathlib
import re
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks import cli, runs, tbsm
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import drift
from genrec_jax.report.metric_writers import read_jsonl

CONFIG = 'configs/learned_hash_drift.py'
COLUMNS = (
  'case', 'seeds', 'ne', 'ne_std', 'ne_diff', 'ne_ci', 'floor', 'renewals',
  'map_core_s', 'core_s',
)  # fmt: skip
SEEDS = (1, 2, 3)
EVERY = (1, 2, 4, 8)  # windows
STEPS = 50  # of a window
FIRST = 8  # window that counts, from 0
CASES = ('identity', 'never', *(f'every {n}' for n in EVERY))
NOTES = (
  'ne is of the windows from the ninth on, scored before they are trained on; '
  'ne_diff is the mean difference of equal seeds from never (of kind age: from '
  'every 1, in the same windows); ne_ci half of its 95 % interval (t, n - 1).',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('learned_hash_drift', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  args = parser.parse_args(argv)
  rows = cli.read_rows(args, 'learned_hash_drift')
  cli.measure_missing(rows, list_rows(args), lambda: save(args, rows))


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it), in their order."""
  cases = ('identity', 'never', 'every 1') if args.smoke else CASES
  return [
    (f'{case}/seed{seed}', functools.partial(measure_run, args, case, seed))
    for seed in SEEDS[: 1 if args.smoke else None]
    for case in cases
  ]


def measure_run(args: argparse.Namespace, case: str, seed: int) -> dict:
  """The row of a training."""
  folder = pathlib.Path(args.runs).resolve() / f'seed{seed}'
  workdir = folder / case.replace(' ', '_')
  options = {
    'seed': seed, 'data.drift.seed': seed, 'hash.seed': seed,
    'data.cache': str(folder / 'data'),
  }  # fmt: skip
  config, steps, first = CONFIG, STEPS, FIRST
  if args.smoke:
    config, steps, first = f'{CONFIG}:smoke', 4, 1
  with CoreTimer() as timer:
    if case == 'identity':
      runs.train_once(config, workdir, list_words(options))
      of = workdir
    else:
      windows = int(case.split()[-1]) if case != 'never' else 1_000
      options['hash.renew_every'] = steps * windows
      if not (workdir / 'hash.json').exists():
        runs.start(
          runs.ROOT, config, workdir, list_words(options), mode='learn_hash'
        )
      of = workdir / 'model'
  log = read_log(config, options)
  by_window = read_windows(of / 'metrics.jsonl', steps)
  made = read_costs(workdir.with_name(workdir.name + '.log'))
  return {
    'kind': 'run', 'of': case, 'seed': seed, 'against': 'never',
    'ne': float(np.mean(by_window[first:])), 'by_window': by_window,
    'floor': find_floor(log, range(first, len(by_window))),
    'renewals': len(made), 'map_core_s': float(np.mean(made or [0.0])),
    'core_s': timer.core_s,
  }  # fmt: skip


def list_words(options: Mapping) -> list[str]:
  """The keys as words of a command line."""
  return [f'{key}={value}' for key, value in options.items()]


def read_windows(path: pathlib.Path, steps: int) -> list[float]:
  """The NE of each whole window, before it was trained on."""
  lines = read_jsonl(path)
  found = {x['step']: x['train/ne'] for x in lines if 'train/ne' in x}
  return [found[step] for step in sorted(found) if step % steps == 0]


def read_costs(log: pathlib.Path) -> list[float]:
  """Core-seconds of each renewal but the first map, which knows nothing."""
  found = re.findall(r'maps: ([\d.]+) core-seconds', log.read_text())
  return [float(x) for x in found[1:]]


def read_log(config: str, options: Mapping) -> drift.DriftLog:
  """The stream of a config."""
  words = [w for w in list_words(options) if not w.startswith('hash.')]
  found = config_lib.load(str(runs.ROOT / config), words)
  return drift.DriftLog(**found.data.drift.to_dict())


def find_floor(log: drift.DriftLog, windows: range) -> float:
  """The NE of the true probabilities of some windows."""
  stream = drift.DriftStream(log)
  return drift.find_floor(stream.window(k) for k in windows)


def save(args: argparse.Namespace, rows: Mapping[str, Mapping]) -> None:
  """Writes the rows, their means, and what age does to a map."""
  own = [row for row in rows.values() if row.get('kind') == 'run']
  by_case, means = runs.group_by_seed(own), []
  base = by_case.get('never', {})
  for name, of in by_case.items():
    mean = {'case': name, 'kind': 'mean', 'seeds': len(of)}
    for key in ('ne', 'floor', 'renewals', 'map_core_s', 'core_s'):
      mean |= runs.over_seeds(key, [row[key] for row in of.values()])
    both = [of[s]['ne'] - base[s]['ne'] for s in of if s in base]
    if both and name != 'never':
      mean |= tbsm.compare('ne', both)
    means.append(mean)
  means += compare_ages(by_case, 1 if args.smoke else FIRST)
  cli.finish(args, 'learned_hash_drift', [*own, *means], COLUMNS, NOTES)


def compare_ages(by_case: Mapping[str, Mapping], first: int) -> list[dict]:
  """What the rarest renewal loses by the age of its map."""
  fresh, old = by_case.get('every 1', {}), by_case.get(f'every {EVERY[-1]}', {})
  seeds, found = [s for s in old if s in fresh], []
  for age in range(EVERY[-1] if seeds else 0):
    losses, levels = [], []
    for seed in seeds:
      one, other = (np.array(x[seed]['by_window']) for x in (old, fresh))
      at = np.arange(first, len(one))
      at = at[at % EVERY[-1] == age]
      losses.append(float(np.mean(one[at] - other[at])))
      levels.append(float(np.mean(one[at])))
    found.append(
      {'case': f'age {age}', 'kind': 'age', 'seeds': len(seeds)}
      | runs.over_seeds('ne', levels)
      | tbsm.compare('ne', losses)
    )
  return found


if __name__ == '__main__':
  main()
