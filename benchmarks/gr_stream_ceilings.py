"""What can a model reach on the generated stream, and how fast is it made?

  python -m benchmarks.gr_stream_ceilings
  python -m benchmarks.gr_stream_ceilings --users 400 --seed 1

Whether a candidate is liked is decided by the step, the place of its category
in the user's order, the rating of its item and the luck of the event. Here each
combination of the first three is told to a predictor that knows the process:
its prediction is the exact posterior of the label, computed from the tables of
the process and not fitted. Two things are measured at the inference steps: what
that gives if the four categories of a user are met equally often, by summing
over all cases, and what it gives on the candidates of a stream that is really
generated, in which tastes grow and most users meet few categories.
"""

import os

import numpy as np

from benchmarks import cli, result
from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import stream_draws, streaming
from genrec_jax.data.requests.stream_ceilings import (
  measure_cases,
  predict_labels,
  sum_by_score,
  tabulate_cases,
)
from genrec_jax.data.requests.streaming import LABEL

# Axes of all tables of cases: step, place of the category, item rating.
STEPS, PLACES = 10, 4
TOLD = {
  'place, item rating, step': (0, 1, 2),
  'place, item rating': (1, 2),
  'item rating, step': (0, 2),
  'item rating': (2,),
  'place, step': (0, 1),
  'place': (1,),
  'step': (0,),
}
# By another program: a simulation with equal shares, to three digits.
OTHERS = {
  'place, item rating, step': (0.110, 0.995, 0.975),
  'place, item rating': (0.242, 0.978, 0.902),
  'item rating, step': (0.565, 0.888, 0.790),
  'item rating': (0.621, 0.867, 0.790),
  'place, step': (0.794, 0.782, 0.715),
  'place': (0.831, 0.757, 0.709),
}
METRICS = ('ne', 'auc', 'accuracy')
PUBLISHED = {'ne': 0.867, 'auc': 0.787, 'accuracy': 0.697}
RESAMPLES = 200
COLUMNS = (
  'case', 'ne', 'other_ne', 'auc', 'other_auc', 'accuracy', 'other_accuracy',
  'learned_ne', 'generated_ne', 'generated_ne_error', 'generated_auc',
  'generated_auc_error', 'generated_gauc', 'generated_accuracy', 'users',
  'wall_s', 'core_s', 'users_per_s', 'users_per_core_s',
  'drawn_per_core_s',
)  # fmt: skip
NOTES = [
  'ne, auc, accuracy: all steps from 90 to 99 together, each category of a '
  'user met equally often; *@90: of one step alone. other_*: by another '
  'program, a simulation of the same.',
  'learned_ne: if a predictor that is not told the step takes all training '
  'steps for equally likely, and not those that it is tested on.',
  'generated_*: the same predictors on the candidates of a generated stream; '
  '*_error: standard error, by resampling users; the luck of the items, whose '
  'ratings are drawn once for all users, is not in it and is some .001. gauc: '
  'AUC within a request, weighted by candidates.',
  'users_per_s: of generate_requests, all splits, in one process; '
  'drawn_per_core_s: events that it draws.',
]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gr_stream_ceilings', __doc__)
  parser.add_argument('--users', type=int, default=2_000)
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args(argv)
  options = StreamOptions(users=args.users, seed=args.seed)
  if args.smoke:
    options = StreamOptions(users=40, seed=args.seed, inference_events=256,
                            inference_candidates=256)  # fmt: skip
  steps = np.arange(options.train_steps, options.steps)
  with result.CoreTimer() as timer:
    dataset = streaming.generate_requests(options)
  counts = count_cases(options, dataset.splits['test'])
  samples = resample(counts)
  rows = [
    measure_rates(steps, counts),
    *(measure_told(options, told, steps, counts, samples) for told in TOLD),
    {'case': "MLPerf's reference model, as published", 'kind': 'published'}
    | PUBLISHED,
    measure_speed(options, timer),
  ]
  cli.finish(args, 'gr_stream_ceilings', rows, COLUMNS, NOTES, merge=False)


def count_cases(options: StreamOptions, requests) -> np.ndarray:
  """`[U, T, 4, 5, 2]` candidates of each user in each case with each label."""
  truth = streaming.reveal_truth(options, 'test')
  shape = (PLACES, len(stream_draws.ITEM_RATINGS), 2)
  quartiles = stream_draws.find_quartiles(options.categories_per_user)
  # Position of a rating in `ITEM_RATINGS`, which begins with the best.
  rank = np.argsort(np.argsort(-np.arange(1, 6)))
  counts = np.zeros((options.users, STEPS, *shape), np.int64)
  for number, user in enumerate(requests.user):
    own = slice(requests.offsets[number], requests.offsets[number + 1])
    case = np.ravel_multi_index(
      (
        quartiles[truth.place[own]],
        rank[truth.item_rating[own] - 1],
        requests.labels[LABEL][own].astype(np.int64),
      ),
      shape,
    )
    step = requests.step[number] - options.train_steps
    counts[user, step] += np.bincount(case, minlength=np.prod(shape)).reshape(
      shape
    )
  return counts


def measure_within(counts: np.ndarray, predictions: np.ndarray) -> float:
  """gAUC: the AUC within a request of a user, weighted by its candidates."""
  total = weight = 0.0
  for step in range(counts.shape[1]):
    cases = counts[:, step].reshape(len(counts), -1, 2).astype(np.float64)
    sums = sum_by_score(cases, predictions[step].reshape(-1))
    negative, positive = sums[..., 0], sums[..., 1]
    below = np.cumsum(negative, axis=1) - negative / 2
    size = sums.sum(axis=(1, 2))
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    both = pairs > 0
    auc = np.sum(positive * below, axis=1)[both] / pairs[both]
    total += size[both] @ auc
    weight += size[both].sum()
  return total / weight


def measure_told(
  options: StreamOptions,
  told: str,
  steps: np.ndarray,
  counts: np.ndarray,
  samples: np.ndarray,
) -> dict:
  """What the best predictor reaches that is told some of it."""
  cases = tabulate_cases(steps, PLACES)
  best = predict_labels(cases, TOLD[told], cases.shape[:-1])
  row = {'case': told, 'kind': 'ceiling', **measure_cases(cases, best)}
  others = zip(METRICS, OTHERS.get(told, ()), strict=False)
  row |= {f'other_{name}': value for name, value in others}
  for i, step in enumerate(steps):
    one = measure_cases(cases[i], best[i])
    row |= {f'{name}@{step}': one[name] for name in METRICS}
  if 0 not in TOLD[told]:
    trained = tabulate_cases(np.arange(options.train_steps), PLACES)
    learned = predict_labels(trained, TOLD[told], cases.shape[:-1])
    row['learned_ne'] = measure_cases(cases, learned)['ne']
  total = counts.sum(axis=0)
  row |= add_prefix('generated', measure_cases(total, best))
  row['generated_gauc'] = measure_within(counts, best)
  resampled = [measure_cases(sample, best) for sample in samples]
  for name in METRICS:
    row[f'generated_{name}_error'] = np.std([m[name] for m in resampled])
  for i, step in enumerate(steps):
    one = measure_cases(total[i], best[i])
    row |= add_prefix('generated', {f'{n}@{step}': one[n] for n in METRICS})
  return row


def resample(counts: np.ndarray) -> np.ndarray:
  """`[RESAMPLES, ...]` sums over users that are drawn with replacement."""
  users = len(counts)
  times = np.random.default_rng(0).multinomial(
    users, np.full(users, 1 / users), size=RESAMPLES
  )
  return np.tensordot(times.astype(float), counts.astype(float), axes=1)


def measure_rates(steps: np.ndarray, counts: np.ndarray) -> dict:
  """The share of candidates that are liked."""
  cases, total = tabulate_cases(steps, PLACES), counts.sum(axis=0)
  row = {'case': 'base rate', 'kind': 'rate', 'rate': cases[..., 1].sum()}
  row['generated_rate'] = total[..., 1].sum() / total.sum()
  for i, step in enumerate(steps):
    row[f'rate@{step}'] = cases[i, ..., 1].sum() / cases[i].sum()
    row[f'generated_rate@{step}'] = total[i, ..., 1].sum() / total[i].sum()
  return row


def measure_speed(options: StreamOptions, timer: result.CoreTimer) -> dict:
  drawn = stream_draws.draw_plans(options, range(options.users)).drawn.sum()
  return {
    'case': 'generating',
    'kind': 'speed',
    'users': options.users,
    'drawn': int(drawn),
    'wall_s': timer.wall_s,
    'core_s': timer.core_s,
    'users_per_s': options.users / timer.wall_s,
    'users_per_core_s': options.users / timer.core_s,
    'drawn_per_core_s': drawn / timer.core_s,
    'load_1min': os.getloadavg()[0],
  }


def add_prefix(prefix: str, values: dict[str, float]) -> dict[str, float]:
  return {f'{prefix}_{name}': value for name, value in values.items()}


if __name__ == '__main__':
  main()
