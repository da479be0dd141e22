"""Predictions by counting, beside which models of requests are shown.

Both count what lies before a candidate is asked for: the candidates of the
training split, and for a user the events of the history of the request.
"""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks import cli, gr_runs, runs
from genrec_jax import config as config_lib
from genrec_jax.data.requests import prepared
from genrec_jax.data.requests.requests import RequestDataset
from genrec_jax.tasks import ranking_metrics

PRIOR = 10.0  # examples of the mean that each count is given beside its own
LEAST = 1e-3  # a chance keeps away from 0 and 1 by this


def measure_counts(
  case: gr_runs.Case,
  overrides: tuple[str, ...],
  texts: Mapping[str, str],
  is_positive: Callable[[np.ndarray], np.ndarray],
  is_asked: Callable[[np.ndarray], np.ndarray] = np.ones_like,
) -> list[dict]:
  """Rows of both predictors on the test of the data of a case.

  Args:
    case: names the data.
    overrides: of its config, beside its own; one is of `data.cache`.
    texts: what the 'popularity' and the 'biases' of these data are called.
    is_positive: see `predict_biases`.
    is_asked: see there.
  """
  config = config_lib.load(
    str(runs.ROOT / case.config), [*case.overrides, *overrides]
  )
  try:
    dataset = prepared.load(config.data, config.data.cache)
  except (ValueError, OSError) as error:
    cli.fail(str(error))
  chances = {
    'popularity': predict_popularity(dataset, 'test'),
    'biases': predict_biases(dataset, 'test', is_positive, is_asked),
  }
  return [
    {
      'case': kind,
      'kind': 'count',
      'name': texts[kind],
      **{
        f'test_{key}': value
        for key, value in measure(dataset, 'test', chance).items()
      },
    }
    for kind, chance in chances.items()
  ]


def predict_popularity(dataset: RequestDataset, split: str) -> np.ndarray:
  """`[M]` the smoothed share of positives among an item's candidates."""
  mean, total, positive = _count_items(dataset)
  asked = _list_items(dataset, split)
  return ((positive + PRIOR * mean) / (total + PRIOR))[asked]


def predict_biases(
  dataset: RequestDataset,
  split: str,
  is_positive: Callable[[np.ndarray], np.ndarray],
  is_asked: Callable[[np.ndarray], np.ndarray] = np.ones_like,
) -> np.ndarray:
  """`[M]` the mean, plus what the item and the user lie above it.

  The item's part is counted on candidates of training; the user's on the
  history of the request, as what is left when the items' parts are taken away.

  Args:
    dataset: the requests.
    split: whose candidates are predicted.
    is_positive: actions of events -> whether they are what the label says.
    is_asked: actions of events -> which of them have a label at all.
  """
  requests, events = dataset.splits[split], dataset.events
  mean, total, positive = _count_items(dataset)
  of_item = (positive - mean * total) / (total + PRIOR)
  item = events.items[dataset.spec.items[0].name]
  asked = np.asarray(is_asked(events.action), bool)
  left = is_positive(events.action) - mean - of_item[item]
  # Sums over histories are differences of running sums.
  sums = np.concatenate([[0.0], np.cumsum(np.where(asked, left, 0))])
  counts = np.concatenate([[0], np.cumsum(asked)])
  begin, end = events.offsets[requests.user], requests.end
  of_user = (sums[end] - sums[begin]) / (counts[end] - counts[begin] + PRIOR)
  chance = mean + of_item[_list_items(dataset, split)]
  chance += np.repeat(of_user, np.diff(requests.offsets))
  return np.clip(chance, LEAST, 1 - LEAST)


def measure(
  dataset: RequestDataset, split: str, chance: np.ndarray
) -> dict[str, float]:
  """{'auc', 'gauc', 'logloss', 'ne', 'calibration'} of predicted chances."""
  requests = dataset.splits[split]
  (label,) = requests.labels
  user = np.repeat(requests.user, np.diff(requests.offsets))
  return ranking_metrics.measure_labels(
    (np.log(chance) - np.log1p(-chance))[:, None],
    requests.labels[label][:, None],
    None,
    user,
    (label,),
  )


def _list_items(dataset: RequestDataset, split: str) -> np.ndarray:
  return dataset.splits[split].items[dataset.spec.items[0].name]


def _count_items(
  dataset: RequestDataset,
) -> tuple[float, np.ndarray, np.ndarray]:
  """The share of positives, and counts by item, of candidates of training."""
  train, rows = dataset.splits['train'], dataset.spec.items[0].rows
  (label,) = train.labels
  asked = _list_items(dataset, 'train')
  values = np.asarray(train.labels[label], np.float64)
  total = np.bincount(asked, minlength=rows)
  return values.mean(), total, np.bincount(asked, values, rows)
