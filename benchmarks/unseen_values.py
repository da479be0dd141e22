"""What does a model gain by training the rows of unseen values?

  python -m benchmarks.unseen_values --data DIR --runs DIR

For each share of `data.train_unseen`, models learn which films users rate 4
stars or more, on MovieLens-100K and MovieLens latest-small. The last tenth of
the ratings by time tests, the tenth before validates, so that most users of the
test are new. Log loss and AUC of the test are taken over the examples with an
unseen value and over the others apart, over three seeds. `--data` is the
directory of `ml-100k` and `ml-latest-small`; what is measured is kept in
`--runs`, a file a run, and not measured again.
"""

import csv
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import cli, runs
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import batches
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks.ranking_metrics.metrics import measure_labels
from genrec_jax.train import experiment, loop

SHARES = (0.0, 0.001, 0.01, 0.05)
SEEDS = 3
# Model -> its section, and the deviation of fresh rows.
MODELS = {
  'dnn': (config_lib.dnn(dim=16, hidden=(128, 64)), 1e-4),
  'fm': (config_lib.fm(dim=16), 0.05),
  # As PyTorch draws the rows of an embedding.
  'dnn from N(0, 1)': (config_lib.dnn(dim=16, hidden=(128, 64)), 1.0),
}
COLUMNS = (
  'case', 'unseen_rows', 'unseen_logloss', 'unseen_logloss_std', 'unseen_auc',
  'unseen_auc_std', 'seen_logloss', 'seen_auc', 'logloss', 'auc',
)  # fmt: skip


def read_ml_100k(directory: pathlib.Path) -> Iterator[list]:
  """Rows of (time, stars, user, film, age, gender, occupation)."""
  people = {}
  for line in (directory / 'u.user').read_text().splitlines():
    user, age, gender, occupation, _ = line.split('|')
    people[user] = [int(age) // 5 * 5, gender, occupation]
  for line in (directory / 'u.data').read_text().splitlines():
    user, film, stars, time = line.split('\t')
    yield [int(time), float(stars), user, film, *people[user]]


def read_ml_latest_small(directory: pathlib.Path) -> Iterator[list]:
  """Rows of (time, stars, user, film, genres)."""
  with open(directory / 'movies.csv', newline='') as f:
    genres = {row['movieId']: row['genres'] for row in csv.DictReader(f)}
  with open(directory / 'ratings.csv', newline='') as f:
    for row in csv.DictReader(f):
      film, time = row['movieId'], int(row['timestamp'])
      yield [time, float(row['rating']), row['userId'], film, genres[film]]


# Name -> (reader, directory, features behind time and stars).
DATA: dict[str, tuple[Callable, str, dict]] = {
  'MovieLens-100K': (
    read_ml_100k,
    'ml-100k',
    dict.fromkeys(
      ('user', 'film', 'age', 'gender', 'occupation'), {'kind': 'categorical'}
    ),
  ),
  'MovieLens latest-small': (
    read_ml_latest_small,
    'ml-latest-small',
    {
      **dict.fromkeys(('user', 'film'), {'kind': 'categorical'}),
      'genres': {'kind': 'multi_hot', 'separator': '|'},
    },
  ),
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('unseen_values', __doc__)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--runs', type=pathlib.Path, required=True)
  parser.add_argument('--only', default='', help='name of one data set')
  args = parser.parse_args(argv)
  seeds, shares = (1, SHARES[::2]) if args.smoke else (SEEDS, SHARES)
  rows = []
  for name in DATA:
    if args.only in ('', name):
      path = write_examples(name, args.data, args.runs)
      for model in MODELS:
        for share in shares:
          measured = [
            measure_once(name, path, model, share, seed, args.smoke)
            for seed in range(seeds)
          ]
          rows.append(summarise(name, model, share, measured))
  notes = [
    'unseen_*: over the test examples with a value that training lacks; '
    'seen_*: over the others; mean and deviation (n - 1) over the seeds.'
  ]
  cli.finish(args, 'unseen_values', rows, COLUMNS, notes)


def write_examples(name, data: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
  """The examples of a data set as a CSV file, the oldest first."""
  read, directory, features = DATA[name]
  path = out / f'{directory}.csv'
  if not path.exists():
    out.mkdir(parents=True, exist_ok=True)
    examples = sorted(read(data / directory), key=lambda row: row[0])
    # Renamed when it is whole.
    partial = path.with_suffix('.partial')
    with open(partial, 'w', newline='') as f:
      writer = csv.writer(f)
      writer.writerow(['label', *features])
      for _, stars, *values in examples:
        writer.writerow([int(stars >= 4), *values])
    os.replace(partial, path)
  return path


def measure_once(
  name: str, path: pathlib.Path, model: str, share: float, seed: int, smoke
) -> dict:
  """Test metrics of one run, trained unless that is done."""
  label = ''.join(c for c in model if c.isalnum())
  workdir = path.parent / f'{path.stem}_{label}_{share}_{seed}'
  measured = workdir.with_suffix(workdir.suffix + '.json')
  if measured.exists():
    return json.loads(measured.read_text())
  config = config_lib.ranking()
  config.seed = seed
  config.data.update(name='csv', path=str(path), train_unseen=share)
  config.data.cache = str(path.parent / 'data')
  with config.data.unlocked():
    config.data.features.update(DATA[name][2])
  config.model, config.data.init_std = MODELS[model]
  config.train.epochs, config.train.patience = (1 if smoke else 20), 3
  config.train.monitor, config.optimizer.plateau_factor = 'logloss', 0.1
  config.report.importance_rows = 0
  report = loop.train_and_evaluate(config, workdir, TASK_KINDS)
  content = measure_test(config, workdir)
  content['core_s'] = report['train_core_s']
  measured.write_text(json.dumps(content))
  return content


def score_test(config, workdir: pathlib.Path):
  """(probability of each test example, its rows, the data) of a run."""
  scorer = Scorer.load(workdir)
  dataset = experiment.load_data(config, workdir, TASK_KINDS).dataset
  split = dataset.splits['test']
  probabilities = np.concatenate(
    list(scorer.score_batches(batches.eval_batches(split, batch_size=4096)))
  )[:, 0]
  probabilities = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
  return probabilities, split.rows(0, len(split)), dataset


def measure_test(config, workdir: pathlib.Path) -> dict:
  """Log loss and AUC of the test, by whether an example has unseen values."""
  probabilities, rows, dataset = score_test(config, workdir)
  logits = np.log(probabilities) - np.log1p(-probabilities)
  columns = dataset.encoder.schema.single
  known = [len(dataset.vocabularies[c.table_name].values) for c in columns]
  is_unseen = (rows.ids > np.array(known)).any(axis=1)
  content = {'examples': len(rows.ids), 'unseen_rows': int(is_unseen.sum())}
  for prefix, which in (
    ('', np.ones(len(rows.ids), bool)),
    ('unseen_', is_unseen),
    ('seen_', ~is_unseen),
  ):
    metrics = measure_labels(logits[which, None], rows.labels[which])
    content |= {prefix + key: metrics[key] for key in ('logloss', 'auc')}
  return content


def summarise(
  name: str, model: str, share: float, measured: list[dict]
) -> dict:
  row = {
    'case': f'{name}/{model}/{share:g}',
    'data': name,
    'model': model,
    'share': share,
    'seeds': len(measured),
    'examples': measured[0]['examples'],
    'unseen_rows': measured[0]['unseen_rows'],
  }
  for key in measured[0]:
    if key not in row:
      row |= runs.over_seeds(key, [m[key] for m in measured])
  return row


if __name__ == '__main__':
  main()
