"""Metrics of a ranking, from the rank of the one right item."""

import numpy as np

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
  ranks = np.asarray(ranks, np.float64)
  miss_rank = miss_rank or np.inf
  ranks = np.minimum(ranks, miss_rank)
  out = {}
  if not len(ranks):
    ranks = np.array([np.nan])
  for k in ks:
    hit = (ranks <= k) & (ranks < miss_rank)
    hit = np.where(np.isnan(ranks), np.nan, hit)
    out[f'hr@{k}'] = float(np.mean(hit))
    out[f'ndcg@{k}'] = float(np.mean(hit / np.log2(ranks + 1)))
  out['mrr'] = float(np.mean(1.0 / ranks))
  return out
