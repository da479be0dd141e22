"""Searches by the command, and what `benchmarks.dnas` reads of them."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from benchmarks import runs
from benchmarks.result import CoreTimer


def read_search(workdir: pathlib.Path) -> tuple[dict, dict]:
  """(what search.json holds, the model that was chosen)."""
  found = json.loads((workdir / 'search.json').read_text())
  best = next(c for c in found['candidates'] if c['name'] == found['best'])
  return found, best


def search_once(
  config: str, workdir: pathlib.Path, overrides: Sequence[str]
) -> dict:
  """What each row of a search has, searched unless it has ended.

  Args:
    config: 'configs/FILE.py:variant', below the checkout.
    workdir: of the search.
    overrides: 'a.b=value' each.
  """
  with CoreTimer() as timer:
    if not (workdir / 'search.json').exists():
      runs.start(runs.ROOT, config, workdir, overrides, mode='search')
  found, best = read_search(workdir)
  trained = [c['core_s'] for c in found['candidates']]
  return {
    'kind': 'search',
    'chosen': best['title'],
    'flops': best['costs']['flops'],
    'bytes': best['costs']['bytes'],
    'core_s': found['supernet']['core_s'],
    'trained_s': float(np.mean(trained)),
    'trained': len(trained),
    'run_core_s': timer.core_s,
  }


def find_spent(searched: Sequence[Mapping]) -> float:
  """Core-seconds of a search, of several in the mean.

  What a command took counts, since it tries proposals, too; of a search that
  went on in a second command, its trainings alone.

  Args:
    searched: rows of `search_once`.
  """
  return float(
    np.mean([
      max(r['core_s'] + r['trained'] * r['trained_s'], r['run_core_s'])
      for r in searched
    ])
  )  # fmt: skip


def correlate(scores: np.ndarray, truth: np.ndarray, name: str) -> dict:
  """Spearman's correlation, with an interval of 95 % by drawing models anew.

  >>> found = correlate(np.arange(9.0), np.arange(9.0) ** 2, 'rank')
  >>> {key: round(value, 9) for key, value in found.items()}
  {'rank': 1.0, 'rank_low': 1.0, 'rank_high': 1.0}

  Args:
    scores: `[models]`.
    truth: `[models]`.
    name: of the figure.
  """
  rng = np.random.default_rng(0)
  again = [
    stats.spearmanr(scores[own], truth[own])[0]
    for own in rng.integers(len(scores), size=(1_000, len(scores)))
  ]
  low, high = np.percentile(again, [2.5, 97.5])
  return {
    name: float(stats.spearmanr(scores, truth)[0]),
    f'{name}_low': float(low),
    f'{name}_high': float(high),
  }


def list_overrides(options: Mapping[str, object]) -> list[str]:
  """'a.b=value' of each key."""
  return [f'{key}={value}' for key, value in options.items()]
