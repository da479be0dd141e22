"""Models of requests on MovieLens: will a user like the next ten films?

  python -m benchmarks.gr_ml1m --data DIR --runs DIR
  python -m benchmarks.gr_ml1m --data DIR --runs DIR --only ml-100k/stu/seed0

DIR has the unpacked editions, `ml-1m` and `ml-100k`. The last ten ratings of
each user test, and the ten before choose the epoch. Two predictors that count
stand beside the models: the share of likes of a film, and a film's part plus a
user's (`gr_counts`). `--smoke` trains on generated files of both layouts, which
tell nothing about films.
"""

import json
import pathlib
import random
from collections.abc import Sequence

from benchmarks import gr_counts, gr_runs, runs
from genrec_jax.data.requests.movielens import ACTIONS

MODELS = {
  'stu': 'STU',
  'dlrm': 'DLRM, pooled history',
  'wukong': 'Wukong, pooled history',
}
# Edition -> what its runs differ in: a pass over the larger one costs ten times
# as much, and is worth more than one over the other.
EDITIONS = {
  'ml-1m': ('train.epochs=5', 'train.patience=1'),
  'ml-100k': (),
}
# The best of two for both, by the validation of seed 0 of ML-100K.
POOLED_RATE = ('optimizer.rows.learning_rate=0.2',)
MEASURED = (
  'test_ne', 'test_auc', 'test_gauc', 'test_calibration', 'test_logloss',
  'epoch', 'tokens', 'train_core_s', 'core_s',
)  # fmt: skip
COLUMNS = (
  'case', 'seeds', 'test_ne', 'test_ne_std', 'test_auc', 'test_auc_std',
  'test_gauc', 'test_calibration', 'epoch', 'train_core_s',
)  # fmt: skip
NOTES = (
  'test_*: of the last 10 ratings of each user, with the weights of the epoch '
  'whose NE on the 10 before is the least.',
  'calibration: mean prediction over the share of likes. std is over seeds, '
  'with n - 1.',
  'Times of the ML-1M here: 28 % official, the others interpolated in the '
  'official order. Those of ML-100K are official.',
)
# Whole stars from which on a film is liked, by the threshold of 3.5.
LIKED = sum(bit for name, bit in ACTIONS if name in ('stars_4', 'stars_5'))
SMOKE_EPOCHS = ('train.epochs=2', 'train.batch_size=8', 'data.max_history=32')


def make_cases(data: str) -> dict[str, gr_runs.Case]:
  """The runs of all editions below a directory."""
  return {
    f'{edition}/{model}': gr_runs.Case(
      f'configs/gr_ml1m.py:{model}',
      (
        f'data.path={pathlib.Path(data).resolve() / edition}',
        *(() if model == 'stu' else POOLED_RATE),
        *more,
      ),
      3,
      name,
    )
    for edition, more in EDITIONS.items()
    for model, name in MODELS.items()
  }


def main(argv: list[str] | None = None) -> None:
  parser = gr_runs.make_parser('gr_ml1m', __doc__)
  parser.add_argument('--data', help='directory of ml-1m and ml-100k')
  args = parser.parse_args(argv)
  cache = pathlib.Path(args.runs).resolve() / 'requests'
  overrides = (f'data.cache={cache}',)
  if args.smoke:
    args.data = pathlib.Path(args.runs) / 'generated'
    for edition in EDITIONS:
      write_ratings(args.data / edition, edition)
    overrides += SMOKE_EPOCHS
  elif not args.data:
    parser.error('--data DIR is needed, with ml-1m and ml-100k below it')
  cases, counted = make_cases(args.data), {}

  def report(rows: list[dict]) -> list[dict]:
    means = gr_runs.average_seeds(rows, MEASURED, ('name', 'edition'))
    for edition in dict.fromkeys(r['edition'] for r in rows):
      if edition not in counted:
        counted[edition] = count_likes(
          cases[f'{edition}/stu'], (f'data.cache={cache}',), edition
        )
      means += counted[edition]
    return means

  gr_runs.sweep(
    args,
    'gr_ml1m',
    cases,
    measure=measure_run,
    report=report,
    columns=COLUMNS,
    notes=NOTES,
    overrides=overrides,
  )


def measure_run(case: str, workdir: pathlib.Path) -> dict:
  """What only the rows of this benchmark have."""
  report = runs.read_report(workdir)
  evaluated = [e['step'] for e in runs.evaluations(workdir, 'valid')]
  return {
    'edition': case.partition('/')[0],
    'epoch': evaluated.index(report['best_step']) + 1,
    'epochs': len(evaluated),
    'popularity_ne': report['baselines']['popularity']['test']['ne'],
  }


def count_likes(
  case: gr_runs.Case, overrides: tuple[str, ...], edition: str
) -> list[dict]:
  """Rows of the predictors that count, on the test of an edition."""
  texts = {
    'popularity': 'share of likes of the film',
    'biases': "film's and user's share, added",
  }
  found = gr_counts.measure_counts(
    case, overrides, texts, lambda action: (action & LIKED) > 0
  )
  return [
    {**row, 'case': f'{edition}/{row["case"]}', 'edition': edition}
    for row in found
  ]


def write_ratings(
  folder: pathlib.Path, edition: str, users: int = 24, films: int = 30
) -> None:
  """Writes files of an edition's layout, made up from tastes, unless there."""
  if (folder / 'made').exists():
    return
  folder.mkdir(parents=True, exist_ok=True)
  draw, delimiter = random.Random(0), '::' if edition == 'ml-1m' else '\t'
  quality = [draw.gauss(0, 1) for _ in range(films)]
  ratings, people = [], []
  for user in range(1, users + 1):
    times = sorted(draw.randrange(10**9, 10**9 + 10**6) for _ in range(30))
    chosen = draw.sample(range(films), 30)
    for time, film in zip(times, chosen, strict=True):
      stars = min(5, max(1, round(3.5 + quality[film] + draw.gauss(0, 1))))
      ratings.append((user, film + 1, stars, time))
    sex, job = draw.choice('MF'), draw.randrange(4)
    people.append(
      (user, sex, 25, job, '12345')
      if edition == 'ml-1m'
      else (user, 25, sex, job, '12345')
    )
  names = ('ratings.dat', 'users.dat') if edition == 'ml-1m' else (
    'u.data', 'u.user',
  )  # fmt: skip
  _write_lines(folder / names[0], ratings, delimiter)
  _write_lines(folder / names[1], people, '::' if edition == 'ml-1m' else '|')
  (folder / 'made').write_text(json.dumps({'users': users, 'films': films}))


def _write_lines(
  path: pathlib.Path, rows: Sequence[Sequence], delimiter: str
) -> None:
  lines = (delimiter.join(map(str, row)) + '\n' for row in rows)
  path.write_text(''.join(lines))


if __name__ == '__main__':
  main()
