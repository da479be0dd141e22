"""Metrics of a ranking, from the rank of the one right item."""

import math

import numpy as np

from genrec_jax.tasks import wilson

# See `tasks.directions`.
DIRECTIONS = {'hr': 'higher', 'ndcg': 'higher', 'mrr': 'higher'}


def ranking_metrics(ranks: np.ndarray, ks, miss_rank: int = 0) -> dict:
  """Hit rate, NDCG and MRR.

  Args:
    ranks: `[N]` 1-based rank of the target among the candidates. It need not be
      whole, where candidates tie with the target, and is infinite for a target
      that is never recommended, which is a miss for every k.
    ks: cut-offs; `rank <= k` is a hit.
    miss_rank: if not 0, a rank of `miss_rank` or more counts as exactly that
      (the HSTU protocol looks at the best 2,500 and says 2,501 for the rest),
      and is a miss for every k.

  Returns:
    {'hr@k', 'ndcg@k', 'mrr'}, NaN when there is nothing to average.
  """
  values = _measure_each(ranks, ks, miss_rank)
  return {name: float(np.mean(each)) for name, each in values.items()}


def metric_intervals(
  ranks: np.ndarray, ks, miss_rank: int = 0, users: int | None = None
) -> dict:
  """95 % intervals of the same metrics, as if the users were drawn at random.

  >>> low, high = metric_intervals(np.array([1, 1, 9, 9]), [1])['hr@1']
  >>> round(low, 2), round(high, 2)
  (0.15, 0.85)

  Args:
    ranks: as of `ranking_metrics`, like the next two.
    ks: cut-offs.
    miss_rank: if not 0, the rank of all misses.
    users: how many the targets belong to; None is one each. Targets of one
      user may be alike, and then there are no more draws than users.

  Returns:
    name -> (low, high): Wilson's for how often there is a hit, which holds near
    0 and 1 too, widened by how hits differ. That of MRR, of which a few targets
    make the most, is Wilson's for the mean itself, and wider than it need be.
    Empty for fewer than two users.
  """
  n = len(ranks) if users is None else users
  if min(n, len(ranks)) < 2:
    return {}
  intervals = {}
  for name, each in _measure_each(ranks, ks, miss_rank).items():
    hits, mean = each[each > 0], float(np.mean(each))
    if name == 'mrr':  # as of hits that are worth 1, whose variance is larger
      hits, share = np.ones(1), mean
    else:
      share = len(hits) / len(each)
    center, half = wilson.center_interval(share, n)
    # What a hit is worth, and the deviation of the mean by that alone.
    worth = float(np.mean(hits)) if len(hits) else 1.0
    spread = float(np.var(hits)) * share / n if len(hits) else 0.0
    below = math.hypot(
      mean - worth * (center - half), wilson.Z * math.sqrt(spread)
    )
    above = math.hypot(
      worth * (center + half) - mean, wilson.Z * math.sqrt(spread)
    )
    intervals[name] = (max(0.0, mean - below), min(1.0, mean + above))
  return intervals


def _measure_each(ranks: np.ndarray, ks, miss_rank: int) -> dict:
  """name -> `[N]`, the metric of each target alone."""
  ranks = np.asarray(ranks, np.float64)
  miss_rank = miss_rank or np.inf
  ranks = np.minimum(ranks, miss_rank)
  out = {}
  if not len(ranks):
    ranks = np.array([np.nan])
  for k in ks:
    hit = (ranks <= k) & (ranks < miss_rank)
    out[f'hr@{k}'] = hit = np.where(np.isnan(ranks), np.nan, hit)
    out[f'ndcg@{k}'] = hit / np.log2(ranks + 1)
  out['mrr'] = 1.0 / ranks
  return out
